//! Datagrams: where they arrive, and what is known of them.

use std::time::Instant;

use proptest::prelude::*;
use qpair_roce::wire::{Addresses, Flow, PORT, Packet, Part};
use qpair_roce::{
    Completion, Counters, Datagram, DatagramConfig, Datagrams, Extra, Grh, Incoming, Outcome, PostError, Qpn, Target,
};

use super::pair::bytes;
use crate::network::{Faults, Network, Random};
use crate::side::Side;

/// A queue pair, and the device around it. A path is a number.
pub struct End {
    pub ud: Datagrams<usize, usize>,
    pub side: Side,
    pub counters: Counters,
}

pub const QKEY: u32 = 0x1111_1111;

pub const FLOW: Flow = Flow {
    addresses: Addresses::V4(std::net::Ipv4Addr::new(10, 0, 0, 1), std::net::Ipv4Addr::new(10, 0, 0, 2)),
    source_port: 50_000,
    destination_port: PORT,
};

pub fn grh() -> Grh {
    Grh::v4(&std::array::from_fn(|at| at as u8 + 1))
}

impl End {
    pub fn new(qpn: u32, qkey: u32) -> Self {
        let config = DatagramConfig { pkey: 0x8001, send_depth: 1000, ..DatagramConfig::new(Qpn(qpn), qkey) };
        End { ud: Datagrams::new(config), side: Side::new(0), counters: Counters::default() }
    }

    pub fn post(&mut self, target: Target<usize>, immediate: Option<u32>, contents: Vec<u8>) -> Result<u64, PostError> {
        let len = contents.len() as u32;
        let local = self.side.buffer(contents);
        let id = local as u64;
        let work = Datagram { id, local, len, immediate, solicited: len % 2 == 1, target };
        self.ud.post(work, &mut self.side).map(|()| id)
    }

    /// Packets that it sends now, and their paths.
    pub fn transmit(&mut self) -> Vec<(Vec<u8>, usize)> {
        let mut made = Vec::new();
        let mut packet = vec![0xaa; self.ud.config().longest_packet()];
        while let Some((len, path)) = self.ud.transmit(&mut packet, &mut self.side, &mut self.counters) {
            let mut whole = packet[..len].to_vec();
            FLOW.seal(Part::WHOLE, &mut whole);
            made.push((whole, path));
        }
        made
    }

    /// A packet comes. It is answered by nothing.
    pub fn handle(&mut self, bytes: &[u8], grh: &Grh) {
        if let Ok(packet) = Packet::parse(bytes)
            && FLOW.verifies(Part::WHOLE, &packet)
        {
            self.ud.handle(&packet, grh, &mut self.side, &mut self.counters);
        }
        assert_eq!(self.transmit(), [], "nothing is answered");
    }
}

/// Sends to the other end all that is posted.
pub fn carry(from: &mut End, to: &mut End) {
    for (packet, _) in from.transmit() {
        to.handle(&packet, &grh());
    }
}

#[test]
fn a_datagram_arrives_behind_the_header_of_its_packet() {
    let six = Grh::v6(&std::array::from_fn(|at| 0x60 + at as u8));
    for grh in [grh(), six] {
        for len in [0, 1, 3, 4, 255, 1023, 1024] {
            for immediate in [None, Some(7)] {
                let (mut near, mut far) = (End::new(0x11, 5), End::new(0x12, QKEY));
                far.side.receive(5, 2000);
                let target = Target { qpn: Qpn(0x12), qkey: QKEY, path: 77 };
                let id = near.post(target, immediate, bytes(len)).unwrap();
                let [(packet, 77)] = &near.transmit()[..] else { panic!("one packet, by that path") };
                assert_eq!(
                    near.side.completions,
                    [Completion::Sent { id, outcome: Outcome::Success, local: id as usize }]
                );
                assert_eq!(Packet::parse(packet).unwrap().headers.bth.destination, Qpn(0x12));
                far.handle(packet, &grh);
                let message = Incoming {
                    len: len as u32 + 40,
                    extra: immediate.map_or(Extra::Nothing, Extra::Immediate),
                    is_write: false,
                    solicited: len % 2 == 1,
                    source: Some(Qpn(0x11)),
                };
                let wanted = Completion::Received { id: 5, outcome: Outcome::Success, local: 0, message };
                assert_eq!(far.side.completions, [wanted]);
                let buffer = &far.side.buffers[0];
                assert_eq!((&buffer[..40], &buffer[40..40 + len]), (&grh.bytes()[..], &bytes(len)[..]));
                assert!(buffer[40 + len..].iter().all(|byte| *byte == 0xee), "no byte more");
            }
        }
    }
}

#[test]
fn the_area_of_ipv4_begins_with_20_zeros() {
    let header: [u8; 20] = std::array::from_fn(|at| at as u8 + 1);
    let bytes = *Grh::v4(&header).bytes();
    assert_eq!((&bytes[..20], &bytes[20..]), (&[0; 20][..], &header[..]));
}

#[test]
fn each_datagram_goes_to_whom_it_names() {
    let mut near = End::new(0x11, 5);
    for path in 0..10 {
        near.post(Target { qpn: Qpn(0x20 + path as u32), qkey: QKEY, path }, None, vec![path as u8]).unwrap();
    }
    let sent = near.transmit();
    let psn = near.ud.config().send_psn;
    assert_eq!(sent.len(), 10);
    for (number, (packet, path)) in sent.iter().enumerate() {
        let packet = Packet::parse(packet).unwrap();
        assert_eq!((*path, packet.payload), (number, &[number as u8][..]));
        assert_eq!((packet.headers.bth.destination, packet.headers.bth.pkey), (Qpn(0x20 + number as u32), 0x8001));
        assert_eq!(packet.headers.bth.psn, psn.advance(number as u32));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Whatever the network does: what is received was sent, whole, and to this queue pair.
    #[test]
    fn datagrams_arrive_whole_or_not_at_all(
        seed in any::<u64>(),
        lens in prop::collection::vec(0..=1024u32, 0..60),
        receives in 0..60u64,
        loss in 0.0..0.3f64,
        duplicate in prop_oneof![Just(0.0), 0.0..0.3f64],
        corrupt in 0.0..0.3f64,
        reorder in 0.0..0.3f64,
    ) {
        let mut network = Network::new(seed, Faults { loss, duplicate, corrupt, reorder, late: 0.0 });
        let (mut random, mut now) = (Random(seed ^ 0x5eed), Instant::now());
        let (mut near, mut far) = (End::new(0x11, 5), End::new(0x12, QKEY));
        for id in 0..receives {
            far.side.receive(id, 40 + 1024);
        }
        let mut sent = Vec::new();
        for (number, len) in lens.iter().enumerate() {
            let contents: Vec<u8> = (0..*len).map(|_| random.next() as u8).collect();
            near.post(Target { qpn: Qpn(0x12), qkey: QKEY, path: 1 }, Some(number as u32), contents.clone()).unwrap();
            sent.push(contents);
        }
        for (packet, path) in near.transmit() {
            network.send(now, path, &packet, ());
        }
        prop_assert_eq!(near.side.completions.len(), sent.len(), "all are done, whatever becomes of them");
        while let Some(next) = network.next_arrival() {
            now = now.max(next);
            while let Some((_, packet, ())) = network.arrived(now) {
                far.handle(&packet, &grh());
            }
        }
        let mut times = vec![0; sent.len()];
        for (number, completion) in far.side.completions.iter().enumerate() {
            let Completion::Received { id, outcome: Outcome::Success, local, message } = completion else {
                panic!("{completion:?}")
            };
            let Extra::Immediate(which) = message.extra else { panic!("{message:?}") };
            prop_assert_eq!(*id, number as u64);
            prop_assert!(far.side.buffers[*local][40..message.len as usize] == sent[which as usize][..]);
            times[which as usize] += 1;
        }
        let most = if duplicate > 0.0 { 2 } else { 1 };
        prop_assert!(times.iter().all(|times| *times <= most));
        let counted = far.side.completions.len() as u64 + far.counters.out_of_buffer;
        prop_assert_eq!(counted, far.counters.rcvd_pkts, "what came was received, or counted");
    }
}
