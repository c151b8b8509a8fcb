//! Random operations and faults on a pair: each operation ends exactly once, messages come in the order of their tag, and
//! credits never go negative.

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

use super::pair::{A, B, Pair};
use super::side::Way;

#[derive(Clone, Copy, Debug)]
enum Op {
    Send { side: usize, tag: u64, long: bool },
    Receive { side: usize, tag: u64, roomy: bool },
    Run(usize),
    Close(usize),
    Stall(usize),
    Resume(usize),
    Refuse(usize),
    Rest(usize),
    Cancel { side: usize, receive: bool, which: prop::sample::Index },
    Break,
    Suspend,
    Renew,
}

fn operation() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..2usize, 0..3u64, any::<bool>()).prop_map(|(side, tag, long)| Op::Send { side, tag, long }),
        3 => (0..2usize, 0..3u64, any::<bool>()).prop_map(|(side, tag, roomy)| Op::Receive { side, tag, roomy }),
        3 => (1..20usize).prop_map(Op::Run),
        1 => (0..2usize).prop_map(Op::Close),
        1 => (0..2usize).prop_map(Op::Stall),
        1 => (0..2usize).prop_map(Op::Resume),
        1 => (0..2usize).prop_map(Op::Refuse),
        1 => (0..2usize).prop_map(Op::Rest),
        1 => Just(Op::Suspend),
        2 => Just(Op::Renew),
        1 => (0..2usize, any::<bool>(), any::<prop::sample::Index>())
            .prop_map(|(side, receive, which)| Op::Cancel { side, receive, which }),
    ]
}

/// Each operation has ended once: `posted` are the receives of each side, `left` those that wait for a message for ever.
fn check(pair: &Pair, posted: &[BTreeSet<u64>; 2], left: &[Vec<u64>; 2]) -> Result<(), TestCaseError> {
    for (from, to) in [(A, B), (B, A)] {
        let (posted, left) = (&posted[to], &left[to]);
        let (from, to) = (&pair.sides[from], &pair.sides[to]);
        let mut ended: Vec<_> = from.sent.iter().chain(&from.cut).copied().collect();
        ended.sort_unstable();
        let expected: Vec<_> = from.serials.iter().map(|(_, serial)| *serial).collect();
        prop_assert_eq!(&ended, &expected, "each send ends exactly once");
        for tag in 0..3 {
            let went = from.serials.iter().filter(|entry| entry.0 == tag).map(|entry| entry.1);
            // When the connection breaks, short messages that came behind a long one come without it.
            let went: Vec<_> = went.filter(|serial| !from.cut.contains(serial)).collect();
            let came: Vec<_> = to.delivered.iter().filter(|entry| entry.0 == tag).map(|entry| entry.1).collect();
            let mut left = came.iter().filter(|serial| !from.cut.contains(serial)).peekable();
            let ordered = went.iter().filter(|serial| left.next_if_eq(serial).is_some()).count();
            prop_assert!(left.peek().is_none(), "tag {} in order, once: {:?}, not {:?}", tag, came, went);
            prop_assert!(pair.broken || ordered == went.len(), "tag {}: {:?}, not {:?}", tag, came, went);
            prop_assert!(pair.broken || went.len() == came.len(), "tag {} is not complete", tag);
        }
        let into = to.delivered.iter().filter_map(|entry| match entry.2 {
            Way::Into(op) => Some(op),
            Way::Received => None,
        });
        let mut ended: Vec<_> = into.chain(to.failed.iter().copied()).chain(left.iter().copied()).collect();
        ended.sort_unstable();
        prop_assert!(ended.iter().eq(posted), "each receive ends exactly once: {:?}, not {:?}", ended, posted);
    }
    Ok(())
}

/// What is done to a pair, and what pair it is.
#[derive(Clone, Debug)]
struct Case {
    ops: Vec<Op>,
    window: u32,
    depth: u32,
    hold: bool,
    breaks: Option<usize>,
    seed: u64,
}

fn case() -> impl Strategy<Value = Case> {
    let ops = proptest::collection::vec(operation(), 0..120);
    let breaks = proptest::option::of(4..120usize);
    (ops, 1u32..9, 4u32..12, any::<bool>(), breaks, any::<u64>())
        .prop_map(|(ops, window, depth, hold, breaks, seed)| Case { ops, window, depth, hold, breaks, seed })
}

fn run(case: Case) -> Result<(), TestCaseError> {
    let Case { mut ops, window, depth, hold, breaks, seed } = case;
    if let Some(at) = breaks {
        ops.insert(at.min(ops.len()), Op::Break);
    }
    let mut pair = Pair::new(window, depth, hold, seed);
    let mut receives = [BTreeSet::new(), BTreeSet::new()];
    let mut opened = false;
    for (step, op) in ops.into_iter().enumerate() {
        if step == 3 {
            pair.open(window);
            opened = true;
        }
        match op {
            Op::Send { side, tag, long } => {
                pair.send(side, tag, if long { 5000 } else { 50 });
            }
            Op::Receive { side, tag, roomy } => {
                receives[side].extend(pair.recv(side, tag, if roomy { 10_000 } else { 60 }));
            }
            Op::Run(count) => {
                pair.run(count);
            }
            Op::Close(side) => pair.close(side),
            Op::Stall(side) => pair.stall(side),
            Op::Resume(side) => pair.resume(side),
            Op::Refuse(side) => pair.refuse(side),
            Op::Rest(side) => pair.rest(side),
            Op::Cancel { side, receive, which } => {
                let ops: Vec<_> = match receive {
                    true => receives[side].iter().copied().collect(),
                    false => pair.sides[side].serials.iter().map(|(_, serial)| *serial).collect(),
                };
                if !ops.is_empty() {
                    pair.cancel(side, *which.get(&ops));
                }
            }
            Op::Break => pair.break_off(),
            Op::Suspend if opened => pair.suspend(),
            Op::Suspend => {}
            Op::Renew => pair.renew(),
        }
    }
    if !opened {
        pair.open(window);
    }
    for side in [A, B] {
        pair.close(side);
        pair.resume(side);
    }
    pair.renew();
    pair.run_all();
    let mut left = [Vec::new(), Vec::new()];
    for side in [A, B] {
        prop_assert!(
            pair.broken || pair.sides[side].link.is_finished(),
            "{side} is not over: {:#?}",
            pair.sides[side].link
        );
        prop_assert!(pair.sides[side].link.abort().0.is_empty());
        left[side].extend(pair.left(side));
    }
    check(&pair, &receives, &left)?;
    Ok(())
}

/// Runs the cases of a seed.
///
/// # Panics
/// With the least case that goes wrong.
pub(crate) fn run_seed(seed: u64) {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let config = ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() };
    if let Err(error) = TestRunner::new_with_rng(config, rng).run(&case(), run) {
        panic!("QPAIR_SEED={seed}: {error}");
    }
}

/// Cases of a seed.
pub(crate) const CASES: u32 = 600;
