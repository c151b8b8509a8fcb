//! Sockets that have no room, as tests have it: what they hold up, and what they do not.

use std::time::{Duration, Instant};

use qpair_roce::wire::{Addresses, Part};
use qpair_roce::{Departure, Qpn, Route};

use super::ground::{Kept, TestPort, flow, loopbacks, nobody, packet, put, qpn, receive, route};
use crate::soft::roce::udp::backlog::PATIENCE;
use crate::soft::roce::udp::counters::Loss;
use crate::soft::roce::udp::{HeldUp, Outbox, Wire};

/// Two wires at a port, and routes from one to the other by sockets of their own: one full, one not.
struct Ground {
    port: TestPort,
    from: Wire,
    to: Wire,
    full: Route,
    free: Route,
    outbox: Outbox,
    now: Instant,
}

impl Ground {
    fn new(addresses: Addresses) -> Self {
        let port = TestPort::new();
        let (from, to) = (port.wire(), port.wire());
        let full = route(&from, addresses, Qpn(0));
        let free = route(&from, addresses, Qpn(1));
        let mut ground = Ground { port, from, to, full, free, outbox: Outbox::new(), now: Instant::now() };
        ground.leave_room(Some(0));
        ground
    }

    fn leave_room(&mut self, departures: Option<usize>) {
        self.from.leave_room(&self.full.addresses, self.full.source_port, departures);
    }

    /// Puts a packet with a number into the outbox.
    fn put(&mut self, route: Route, number: u32) {
        let to = qpn(self.to.slot().number(), 0);
        put(&mut self.outbox, route, &[packet(&flow(&self.port, &route), Part::WHOLE, to, &number.to_be_bytes())]);
    }

    /// Puts a packet of a connection.
    fn put_of(&mut self, from: Qpn, route: Route) {
        self.outbox.room().unwrap()[..100].fill(0);
        self.outbox.push(Departure { from: Some(from), route, segment: 100, len: 100 });
    }

    /// Sends what is in the outbox; true if a socket is full then.
    fn send(&mut self) -> bool {
        self.from.send(self.now, &mut self.outbox, nobody);
        self.from.is_full()
    }

    /// Tries the full socket again after a while; whether it has room, and what was told of whom.
    fn send_held(&mut self, later: Duration) -> (bool, Vec<(Qpn, HeldUp)>) {
        self.now += later;
        let mut told = Vec::new();
        (self.from.send_held(self.now, |qpn, held_up| told.push((qpn, held_up))), told)
    }

    /// The numbers of so many packets.
    fn receive(&mut self, count: usize) -> Vec<u32> {
        let number = |kept: Kept| u32::from_be_bytes(kept.check(&self.port, Part::WHOLE).try_into().unwrap());
        receive(&mut self.to, count).into_iter().map(number).collect()
    }

    fn held_up(&self) -> u64 {
        self.from.counters().lost[Loss::HeldUp as usize]
    }
}

const MS: Duration = Duration::from_millis(1);

#[test]
fn a_full_socket_holds_up_no_other() {
    for addresses in loopbacks() {
        let mut ground = Ground::new(addresses);
        let (full, free) = (ground.full, ground.free);
        // Of those that go by one call, it takes two.
        ground.leave_room(Some(2));
        for number in 0..12 {
            ground.put(if number < 4 || number % 2 == 0 { full } else { free }, number);
        }
        assert!(ground.send() && ground.outbox.is_empty());
        assert_eq!(ground.receive(6), [0, 1, 5, 7, 9, 11]);
        assert!(ground.from.is_full() && !ground.from.has_room(&full) && ground.from.has_room(&free));
        // What comes later is behind what waits, though there is room now.
        ground.leave_room(None);
        ground.put(full, 12);
        ground.put(free, 13);
        assert!(ground.send());
        assert_eq!(ground.receive(1), [13]);
        assert_eq!(ground.send_held(MS), (true, vec![]));
        assert_eq!(ground.receive(6), [2, 3, 4, 6, 8, 10]);
        assert_eq!(ground.receive(1), [12]);
        assert!(!ground.from.is_full() && ground.from.has_room(&full));
        assert_eq!(ground.held_up(), 0);
    }
}

#[test]
fn what_a_full_socket_holds_up_goes_as_there_is_room() {
    let mut ground = Ground::new(loopbacks()[0]);
    (0..8).for_each(|number| ground.put(ground.full, number));
    assert!(ground.send());
    let mut came = Vec::new();
    for _ in 0..3 {
        ground.leave_room(Some(2));
        assert_eq!(ground.send_held(MS), (false, vec![]));
        came.extend(ground.receive(2));
    }
    ground.leave_room(Some(2));
    assert_eq!(ground.send_held(Duration::ZERO), (false, vec![]), "it was tried just now");
    assert_eq!(ground.send_held(MS), (true, vec![]));
    came.extend(ground.receive(2));
    assert!(came.into_iter().eq(0..8));
}

#[test]
fn what_can_not_go_for_long_is_lost_and_its_connection_told() {
    let mut ground = Ground::new(loopbacks()[0]);
    let (full, half) = (ground.full, PATIENCE / 2);
    let [old, new] = [Qpn(5), Qpn(6)];
    ground.put_of(old, full);
    ground.put(full, 1);
    assert!(ground.send());
    assert_eq!(ground.send_held(half), (false, vec![(old, HeldUp::Still)]));
    ground.put_of(new, full);
    assert!(ground.send());
    assert_eq!(ground.send_held(half), (false, vec![(old, HeldUp::TooLong), (new, HeldUp::Still)]));
    assert_eq!(ground.held_up(), 2);
    assert_eq!(ground.send_held(half), (false, vec![(new, HeldUp::TooLong)]));
    // Nothing waits, and the socket is full still: that is asked for without a packet.
    assert_eq!(ground.send_held(half), (false, vec![]));
    assert!(!ground.from.has_room(&full));
    ground.leave_room(Some(1));
    assert_eq!(ground.send_held(half), (true, vec![]));
    assert!(ground.from.has_room(&full));
    ground.put(full, 2);
    assert_eq!((ground.send(), ground.receive(1)), (false, vec![2]));
    assert_eq!(ground.held_up(), 3);
}

#[test]
fn no_more_than_an_outbox_or_so_waits_at_a_socket() {
    let mut ground = Ground::new(loopbacks()[0]);
    let mut lost = 0;
    for _ in 0..5 {
        for _ in 0..16 {
            ground.put_of(Qpn(5), ground.full);
        }
        ground.from.send(ground.now, &mut ground.outbox, |qpn, held_up| {
            assert_eq!((qpn, held_up), (Qpn(5), HeldUp::TooLong));
            lost += 1;
        });
        assert!(ground.outbox.is_empty());
    }
    assert_eq!((lost, ground.held_up()), (5 * 16 - 32, 5 * 16 - 32));
}
