//! Any traffic over a bad network: each request completes once, in order, and both memories are as if nothing had happened.

use std::time::Duration;

use proptest::prelude::*;
use qpair_roce::{Completion, Extra, Mtu, Op, Outcome, ReliableConfig, Remote};

use super::pair::Pair;
use crate::network::{Faults, Random};
use crate::side::{BASE, KEY};

/// A request, without its contents.
#[derive(Clone, Copy, Debug)]
enum Step {
    Send(u32, Extra),
    Write(u32, u32, bool),
    Read(u32, u32),
    Add(u64),
}

/// What is written lies behind what is read, so that a READ that is answered again brings the same.
const WRITTEN: u32 = 1 << 15;
const COUNTER: u64 = (1 << 16) - 8;

fn step() -> impl Strategy<Value = Step> {
    let extra = prop_oneof![Just(Extra::Nothing), any::<u32>().prop_map(Extra::Immediate)];
    prop_oneof![
        (0..6000u32, extra).prop_map(|(len, extra)| Step::Send(len, extra)),
        (0..20_000u32, 0..6000u32, any::<bool>()).prop_map(|(at, len, notify)| Step::Write(at, len, notify)),
        (0..20_000u32, 0..6000u32).prop_map(|(at, len)| Step::Read(at, len)),
        (1..1000u64).prop_map(Step::Add),
    ]
}

fn faults() -> impl Strategy<Value = Faults> {
    let share = || prop_oneof![Just(0.0), 0.0..0.2f64];
    (share(), share(), share(), share()).prop_map(|(loss, duplicate, corrupt, reorder)| Faults {
        loss,
        duplicate,
        corrupt,
        reorder,
        late: 0.0,
    })
}

fn contents(random: &mut Random, len: u32) -> Vec<u8> {
    (0..len).map(|_| random.next() as u8).collect()
}

/// What an end expects of its peer's requests.
#[derive(Default)]
struct Expected {
    sent: Vec<(u64, Outcome)>,
    /// Contents of receives, in order.
    received: Vec<Vec<u8>>,
    /// Buffers of READs, and what is to be there.
    read: Vec<(usize, Vec<u8>)>,
    sum: u64,
}

fn run(seed: u64, steps: [&[Step]; 2], faults: Faults, change: impl Fn(ReliableConfig) -> ReliableConfig) {
    // No number of retries is too few for any luck.
    let patient = |config| {
        change(ReliableConfig {
            send_depth: 1000,
            retry_count: None,
            ack_timeout: Some(Duration::from_micros(300)),
            ..config
        })
    };
    let mut pair = Pair::with(seed, faults, patient);
    let mut random = Random(seed ^ 0x5eed);
    for end in &mut pair.ends {
        end.side.memory[..WRITTEN as usize].copy_from_slice(&contents(&mut random, WRITTEN));
    }
    let mut memories = [0, 1].map(|end: usize| pair.ends[1 - end].side.memory.clone());
    let mut expected = [Expected::default(), Expected::default()];
    for (end, steps) in steps.into_iter().enumerate() {
        let Expected { sent, received, read, sum } = &mut expected[end];
        let memory = &mut memories[end];
        for step in steps {
            let at = |offset: u32| Remote { va: BASE + u64::from(offset), rkey: KEY };
            let id = match *step {
                Step::Send(len, extra) => {
                    let message = contents(&mut random, len);
                    received.push(message.clone());
                    pair.ends[1 - end].side.receive(received.len() as u64, 6000);
                    pair.post(end, Op::Send(extra), message).0
                }
                Step::Write(offset, len, notify) => {
                    let message = contents(&mut random, len);
                    let start = (WRITTEN + offset) as usize;
                    let len = message.len().min(COUNTER as usize - start);
                    let message = message[..len].to_vec();
                    memory[start..start + len].copy_from_slice(&message);
                    if notify {
                        received.push(Vec::new());
                        pair.ends[1 - end].side.receive(received.len() as u64, 6000);
                    }
                    pair.post(end, Op::Write(at(WRITTEN + offset), notify.then_some(len as u32)), message).0
                }
                Step::Read(offset, len) => {
                    let (start, len) = (offset as usize, len as usize);
                    let (id, local) = pair.post(end, Op::Read(at(offset)), vec![0; len]);
                    read.push((local, memory[start..start + len].to_vec()));
                    id
                }
                Step::Add(add) => {
                    let remote = Remote { va: BASE + COUNTER, rkey: KEY };
                    let (id, local) = pair.post(end, Op::FetchAdd { remote, add }, vec![0; 8]);
                    read.push((local, sum.to_ne_bytes().to_vec()));
                    *sum += add;
                    id
                }
            };
            sent.push((id, Outcome::Success));
        }
        memory[COUNTER as usize..].copy_from_slice(&sum.to_ne_bytes());
    }
    pair.drive();
    let done = [pair.sent(0), pair.sent(1)];
    for (end, Expected { sent, received, read, .. }) in expected.into_iter().enumerate() {
        assert_eq!(done[end], sent);
        for (local, wanted) in read {
            assert!(pair.ends[end].side.buffers[local] == wanted, "what was read by {end} into {local}");
        }
        let peer = &pair.ends[1 - end].side;
        assert!(peer.memory == memories[end], "memory of {}", 1 - end);
        assert_eq!(peer.completions.len(), received.len());
        for (number, (completion, wanted)) in peer.completions.iter().zip(&received).enumerate() {
            let Completion::Received { id, outcome, local, message } = completion else { panic!("{completion:?}") };
            assert_eq!((*id, *outcome), (number as u64 + 1, Outcome::Success));
            if !message.is_write {
                assert!(peer.buffers[*local][..message.len as usize] == wanted[..], "message {number}");
            }
        }
        assert!(peer.receives.is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn all_arrives_once_and_in_order(
        seed in any::<u64>(),
        near in prop::collection::vec(step(), 0..30),
        far in prop::collection::vec(step(), 0..30),
        faults in faults(),
        mtu in prop_oneof![Just(Mtu::B256), Just(Mtu::B1024), Just(Mtu::B4096)],
        window in 1..200u32,
        reads in 1..8u8,
    ) {
        let change = |config| ReliableConfig { mtu, window, max_reads: reads, reads_answered: reads, ..config };
        run(seed, [&near, &far], faults, change);
    }
}
