//! Each operation alone, on a network without faults.

use qpair_roce::{Completion, Extra, Incoming, Op, Outcome, Remote, Rkey};

use super::pair::Pair;
use crate::network::Faults;
use crate::side::{BASE, KEY};

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 256) as u8).collect()
}

fn remote(offset: u64) -> Remote {
    Remote { va: BASE + offset, rkey: KEY }
}

/// Lengths around the MTU of 1024.
const LENGTHS: [usize; 10] = [0, 1, 3, 4, 1023, 1024, 1025, 2048, 5000, 40_000];

#[test]
fn a_send_arrives_in_a_receive() {
    for len in LENGTHS {
        for extra in [Extra::Nothing, Extra::Immediate(7), Extra::Invalidate(Rkey(9))] {
            let mut pair = Pair::new(1, Faults::default());
            pair.ends[1].side.receive(5, 40_000);
            let (id, _) = pair.post(0, Op::Send(extra), bytes(len));
            pair.drive();
            assert_eq!(pair.sent(0), [(id, Outcome::Success)]);
            let side = &pair.ends[1].side;
            let message = Incoming { len: len as u32, extra, ..Incoming::default() };
            assert_eq!(
                side.completions,
                [Completion::Received { id: 5, outcome: Outcome::Success, local: 0, message }]
            );
            assert_eq!(side.buffers[0][..len], bytes(len));
            assert!(side.buffers[0][len..].iter().all(|byte| *byte == 0xee), "no byte more");
            assert_eq!(side.invalidated.len(), usize::from(matches!(extra, Extra::Invalidate(_))));
        }
    }
}

#[test]
fn a_write_arrives_where_it_is_meant_to() {
    for len in LENGTHS {
        for immediate in [None, Some(7)] {
            let mut pair = Pair::new(1, Faults::default());
            pair.ends[1].side.receive(5, 0);
            let (id, _) = pair.post(0, Op::Write(remote(100), immediate), bytes(len));
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
                    ..Incoming::default()
                },
            });
            assert_eq!(side.completions, Vec::from_iter(took));
        }
    }
}

#[test]
fn a_read_brings_what_is_there() {
    for len in LENGTHS {
        let mut pair = Pair::new(1, Faults::default());
        pair.ends[1].side.memory[100..100 + len].copy_from_slice(&bytes(len));
        let (id, local) = pair.post(0, Op::Read(remote(100)), vec![0; len]);
        pair.drive();
        assert_eq!(pair.sent(0), [(id, Outcome::Success)]);
        assert_eq!(pair.ends[0].side.buffers[local], bytes(len));
    }
}

#[test]
fn atomics_change_and_bring_what_was_there() {
    let mut pair = Pair::new(1, Faults::default());
    pair.ends[1].side.memory[8..16].copy_from_slice(&40u64.to_ne_bytes());
    let posted = [
        Op::FetchAdd { remote: remote(8), add: 2 },
        Op::CompareSwap { remote: remote(8), compare: 42, swap: 7 },
        Op::CompareSwap { remote: remote(8), compare: 42, swap: 9 },
    ]
    .map(|op| pair.post(0, op, vec![0; 8]));
    pair.drive();
    assert_eq!(pair.sent(0), posted.map(|(id, _)| (id, Outcome::Success)));
    let was = posted.map(|(_, local)| u64::from_ne_bytes(pair.ends[0].side.buffers[local][..].try_into().unwrap()));
    assert_eq!((was, &pair.ends[1].side.memory[8..16]), ([40, 42, 7], &7u64.to_ne_bytes()[..]));
}

#[test]
fn a_fence_waits_for_reads() {
    let mut pair = Pair::new(1, Faults::default());
    let (_, local) = pair.post(0, Op::Read(remote(0)), vec![1; 3000]);
    pair.post_as(0, Op::Write(remote(0), None), vec![2; 3000], true);
    pair.drive();
    assert_eq!(pair.ends[0].side.buffers[local], [0; 3000], "read before it was written");
    assert_eq!(pair.ends[1].side.memory[..3000], [2; 3000]);
}
