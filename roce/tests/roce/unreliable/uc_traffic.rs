//! Each operation of an unreliable connection alone, on a network without faults.

use qpair_roce::wire::Packet;
use qpair_roce::{
    Completion, Counters, Extra, Incoming, Op, Outcome, Psn, Qpn, Remote, Send, UnreliableConfig, UnreliableConnection,
};

use super::pair::{Pair, bytes};
use crate::side::{BASE, KEY, Side};

/// Lengths around the MTU of 1024.
const LENGTHS: [usize; 10] = [0, 1, 3, 4, 1023, 1024, 1025, 2048, 5000, 40_000];

#[test]
fn a_send_arrives_in_a_receive() {
    for len in LENGTHS {
        for extra in [Extra::Nothing, Extra::Immediate(7)] {
            let mut pair = Pair::perfect();
            pair.ends[1].side.receive(5, 40_000);
            let id = pair.post(0, Op::Send(extra), bytes(len));
            pair.drive();
            assert_eq!(pair.sent(0), [(id, Outcome::Success)]);
            let side = &pair.ends[1].side;
            let solicited = len % 2 == 1;
            let message = Incoming { len: len as u32, extra, solicited, ..Incoming::default() };
            assert_eq!(
                side.completions,
                [Completion::Received { id: 5, outcome: Outcome::Success, local: 0, message }]
            );
            assert_eq!(side.buffers[0][..len], bytes(len));
            assert!(side.buffers[0][len..].iter().all(|byte| *byte == 0xee), "no byte more");
        }
    }
}

#[test]
fn a_write_arrives_where_it_is_meant_to() {
    for len in LENGTHS {
        for immediate in [None, Some(7)] {
            let mut pair = Pair::perfect();
            pair.ends[1].side.receive(5, 0);
            let id = pair.post(0, Op::Write(Remote { va: BASE + 100, rkey: KEY }, immediate), bytes(len));
            pair.drive();
            assert_eq!(pair.sent(0), [(id, Outcome::Success)]);
            let side = &pair.ends[1].side;
            assert_eq!(side.memory[100..100 + len], bytes(len));
            assert!(side.memory[..100].iter().chain(&side.memory[100 + len..]).all(|byte| *byte == 0), "no byte more");
            let took = immediate.map(|immediate| Completion::Received {
                id: 5,
                outcome: Outcome::Success,
                local: 0,
                message: Incoming {
                    len: len as u32,
                    extra: Extra::Immediate(immediate),
                    is_write: true,
                    solicited: len % 2 == 1,
                    ..Incoming::default()
                },
            });
            assert_eq!(side.completions, Vec::from_iter(took));
        }
    }
}

#[test]
fn only_what_takes_a_receive_is_solicited_and_only_its_last_packet() {
    let config = UnreliableConfig { pkey: 0x8001, ..UnreliableConfig::new(Qpn(1), Qpn(2), Psn::new(0), Psn::new(0)) };
    let remote = Remote { va: BASE, rkey: KEY };
    let ops = [(Op::Send(Extra::Nothing), true), (Op::Write(remote, Some(1)), true), (Op::Write(remote, None), false)];
    for (op, wanted) in ops {
        let (mut uc, mut side, mut counters) = (UnreliableConnection::new(config), Side::new(0), Counters::default());
        let local = side.buffer(vec![1; 3000]);
        uc.post(Send { id: 1, op, local, len: 3000, solicited: true, fence: false }, &mut side).unwrap();
        let mut solicited = Vec::new();
        let mut packet = vec![0; config.longest_packet()];
        while let Some(len) = uc.transmit(&mut packet, &mut side, &mut counters) {
            let bth = Packet::parse(&packet[..len + 4]).unwrap().headers.bth;
            assert_eq!((bth.pkey, bth.ack_request), (0x8001, false));
            solicited.push(bth.solicited);
        }
        assert_eq!(solicited, [false, false, wanted], "{op:?}");
    }
}

#[test]
fn both_ends_send_at_once() {
    let mut pair = Pair::perfect();
    for end in [0, 1] {
        pair.ends[end].side.receive(5, 5000);
        pair.post(end, Op::Send(Extra::Immediate(end as u32)), bytes(5000));
    }
    pair.drive();
    for end in [0, 1] {
        assert_eq!(pair.sent(end).len(), 1);
        let side = &pair.ends[end].side;
        let extra = Extra::Immediate(1 - end as u32);
        assert!(
            matches!(side.completions[..], [Completion::Received { message, .. }] if message.extra == extra),
            "{:?}",
            side.completions
        );
        assert_eq!(side.buffers[0], bytes(5000));
    }
}
