//! Random operations on a pair: each completes exactly once, in the order of its tag, and credits never go negative.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::pair::{A, B, Pair, Way};

#[derive(Clone, Copy, Debug)]
enum Op {
    Send { side: usize, tag: u64, long: bool },
    Receive { side: usize, tag: u64, roomy: bool },
    Run(usize),
    Close(usize),
}

fn operation() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..2usize, 0..3u64, any::<bool>()).prop_map(|(side, tag, long)| Op::Send { side, tag, long }),
        3 => (0..2usize, 0..3u64, any::<bool>()).prop_map(|(side, tag, roomy)| Op::Receive { side, tag, roomy }),
        3 => (1..20usize).prop_map(Op::Run),
        1 => (0..2usize).prop_map(Op::Close),
    ]
}

fn check(pair: &Pair, receives: &[BTreeSet<u64>; 2]) -> Result<(), TestCaseError> {
    for (from, to) in [(A, B), (B, A)] {
        let (from, to, posted) = (&pair.sides[from], &pair.sides[to], &receives[to]);
        let mut sent = from.sent.clone();
        sent.sort_unstable();
        let expected: Vec<_> = from.serials.iter().map(|(_, serial)| *serial).collect();
        prop_assert_eq!(&sent, &expected, "each send completes exactly once");
        for tag in 0..3 {
            let went: Vec<_> = from.serials.iter().filter(|entry| entry.0 == tag).map(|entry| entry.1).collect();
            let came: Vec<_> = to.delivered.iter().filter(|entry| entry.0 == tag).map(|entry| entry.1).collect();
            prop_assert_eq!(went, came, "tag {} in order, once", tag);
        }
        let mut ended = BTreeSet::new();
        let into = to.delivered.iter().filter_map(|entry| match entry.2 {
            Way::Into(op) => Some(op),
            Way::Received => None,
        });
        for op in into.chain(to.failed.iter().copied()) {
            prop_assert!(posted.contains(&op) && ended.insert(op), "receive {} ended twice", op);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn every_operation_completes_exactly_once(
        ops in proptest::collection::vec(operation(), 0..120),
        window in 1u32..9, depth in 4u32..12, hold: bool, seed: u64,
    ) {
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
            }
        }
        if !opened {
            pair.open(window);
        }
        pair.close(A);
        pair.close(B);
        pair.run_all();
        check(&pair, &receives)?;
        for side in [A, B] {
            prop_assert!(pair.sides[side].link.is_finished());
            let ended = pair.sides[side].delivered.iter().filter(|entry| entry.2 != Way::Received).count()
                + pair.sides[side].failed.len();
            let (sends, left) = pair.sides[side].link.abort();
            prop_assert!(sends.is_empty());
            prop_assert_eq!(ended + left.len(), receives[side].len());
        }
    }
}
