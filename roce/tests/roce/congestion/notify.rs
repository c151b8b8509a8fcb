//! The notification point: one event, and which CNP comes of it.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use qpair_roce::congestion::{MIN_TIME_BETWEEN_CNPS, NotificationPoint};
use qpair_roce::wire::{DEFAULT_PKEY, ICRC_LEN, Packet};
use qpair_roce::{Counters, Qpn};

struct Fixture {
    start: Instant,
    point: NotificationPoint,
    counters: Counters,
}

impl Fixture {
    fn new() -> Self {
        let point = NotificationPoint::new(Qpn(0xd2), DEFAULT_PKEY, MIN_TIME_BETWEEN_CNPS);
        Fixture { start: Instant::now(), point, counters: Counters::default() }
    }

    fn at(&self, micros: u64) -> Instant {
        self.start + Duration::from_micros(micros)
    }

    fn marked(&mut self, micros: u64) {
        self.point.handle_marked(self.at(micros), &mut self.counters);
    }

    fn sends(&mut self, micros: u64) -> bool {
        let now = self.at(micros);
        self.point.transmit(now, &mut [0; NotificationPoint::CNP_LEN], &mut self.counters).is_some()
    }
}

#[test]
fn without_a_mark_nothing_is_sent() {
    let mut flow = Fixture::new();
    assert_eq!((flow.point.timeout(), flow.sends(1000)), (None, false));
    assert_eq!(flow.counters, Counters::default());
}

#[test]
fn the_first_mark_is_told_at_once() {
    let mut flow = Fixture::new();
    flow.marked(7);
    assert_eq!(flow.point.timeout(), Some(flow.at(7)));
    assert!(flow.sends(7) && !flow.sends(7));
    assert_eq!(flow.point.timeout(), None);
}

#[test]
fn marks_within_the_time_are_told_once_at_its_end() {
    let mut flow = Fixture::new();
    flow.marked(0);
    assert!(flow.sends(0));
    for micros in [1, 20, 49] {
        flow.marked(micros);
        assert!(!flow.sends(micros));
    }
    assert_eq!(flow.point.timeout(), Some(flow.at(50)));
    assert!(flow.sends(50) && !flow.sends(100));
    assert_eq!((flow.counters.np_ecn_marked_roce_packets, flow.counters.np_cnp_sent), (4, 2));
}

#[test]
fn a_mark_after_the_time_is_told_at_once() {
    let mut flow = Fixture::new();
    flow.marked(0);
    assert!(flow.sends(0));
    flow.marked(51);
    assert!(flow.sends(51));
}

#[test]
fn what_is_overdue_stays_so() {
    let mut flow = Fixture::new();
    flow.marked(0);
    flow.marked(9);
    assert_eq!(flow.point.timeout(), Some(flow.start));
}

#[test]
fn it_is_of_the_flows_partition() {
    let mut point = NotificationPoint::new(Qpn(0xd2), 0x8123, MIN_TIME_BETWEEN_CNPS);
    let (now, mut bytes, mut counters) = (Instant::now(), [0; NotificationPoint::CNP_LEN], Counters::default());
    point.handle_marked(now, &mut counters);
    point.transmit(now, &mut bytes, &mut counters);
    assert_eq!(bytes[2..4], [0x81, 0x23]);
}

#[test]
fn the_packet_is_that_of_the_annex() {
    let mut flow = Fixture::new();
    flow.marked(0);
    let mut bytes = [0xee; NotificationPoint::CNP_LEN + ICRC_LEN];
    let made = flow.point.transmit(flow.start, &mut bytes, &mut flow.counters);
    assert_eq!(made, Some(28));
    // But for the CRC those of a ConnectX, in Mellanox' "RoCEv2 CNP Packet Format Example".
    let head = [0x81, 0x00, 0xff, 0xff, 0x40, 0x00, 0x00, 0xd2, 0, 0, 0, 0];
    assert_eq!((&bytes[..12], &bytes[12..28]), (&head[..], &[0; 16][..]));
    let packet = Packet::parse(&bytes).unwrap();
    assert_eq!((packet.headers.bth.destination, packet.payload.len()), (Qpn(0xd2), 0));
}

#[test]
fn without_room_it_stays_due() {
    let mut flow = Fixture::new();
    flow.marked(0);
    assert_eq!(flow.point.transmit(flow.start, &mut [0; 27], &mut flow.counters), None);
    assert_eq!(flow.counters.np_cnp_sent, 0);
    assert!(flow.sends(0));
}

proptest! {
    #[test]
    fn each_mark_is_told_and_never_too_often(pauses in prop::collection::vec((0..120u64, 0..30u64), 1..200)) {
        let mut flow = Fixture::new();
        let (mut told, mut now): (Vec<Instant>, _) = (Vec::new(), flow.start);
        for (pause, late) in pauses {
            let mark = now + Duration::from_micros(pause);
            // What is due before the mark, and the driver is a little late.
            for until in [mark, mark + Duration::from_micros(late)] {
                while let Some(due) = flow.point.timeout().filter(|due| *due <= until) {
                    now = now.max(due);
                    let sent = flow.point.transmit(now, &mut [0; NotificationPoint::CNP_LEN], &mut flow.counters);
                    prop_assert!(sent.is_some(), "it was due");
                    told.push(now);
                }
                now = now.max(until);
                if until == mark {
                    flow.point.handle_marked(now, &mut flow.counters);
                }
            }
            let last = told.last().copied();
            let due = flow.point.timeout();
            let is_told = last.is_some_and(|last| last >= mark);
            prop_assert!(is_told || due.is_some_and(|due| due <= mark + MIN_TIME_BETWEEN_CNPS));
        }
        prop_assert!(told.windows(2).all(|pair| pair[1] - pair[0] >= MIN_TIME_BETWEEN_CNPS));
        prop_assert_eq!(flow.counters.np_cnp_sent, told.len() as u64);
    }
}
