//! Predictions that can be worked out by hand.

use qpair_collectives::cost::{CostModel, Work};

use crate::catalog::{ALL, Case, plan};

const MODEL: CostModel = CostModel { latency: 1.0, copy_byte: 0.5, reduce_byte: 2.0 };

/// 64 elements of 8 B.
const LEN: u64 = 64;
const BYTES: f64 = 512.0;

fn seconds(case: Case, n: u32, segment: u64) -> f64 {
    plan(case, n, LEN, segment).cost(&MODEL).unwrap().seconds
}

#[test]
fn alone_is_free() {
    for case in ALL {
        assert_eq!(seconds(case, 1, LEN), 0.0);
    }
}

#[test]
fn without_contention() {
    let (copy, reduce) = (BYTES * MODEL.copy_byte, BYTES * MODEL.reduce_byte);
    // Each round: copy to scratch, a message, reduce.
    assert_eq!(seconds(Case::RecursiveDoubling, 4, LEN), 2.0 * (copy + 1.0 + reduce));
    // A half to reduce, a half to copy.
    assert_eq!(seconds(Case::Direct, 2, LEN), 2.0 + reduce / 2.0 + copy / 2.0);
    // Each block: N - 1 hops to reduce, N - 1 to copy.
    assert_eq!(seconds(Case::Ring, 4, LEN), 3.0 * (1.0 + reduce / 4.0) + 3.0 * (1.0 + copy / 4.0));
    assert_eq!(seconds(Case::Binomial, 4, LEN), 2.0 * (1.0 + copy));
    assert_eq!(seconds(Case::Barrier, 5, LEN), 3.0);
}

#[test]
fn a_chain_overlaps_its_segments() {
    let copy = BYTES * MODEL.copy_byte;
    // 3 hops of the first of 8 segments, then the other 7.
    assert_eq!(seconds(Case::Chain, 4, LEN / 8), 3.0 * (1.0 + copy / 8.0) + 7.0 * copy / 8.0);
}

#[test]
fn one_rank_does_one_thing_at_a_time() {
    // Each rank pulls its block from three others, then three blocks.
    let (copy, reduce) = (BYTES * MODEL.copy_byte, BYTES * MODEL.reduce_byte);
    let direct = seconds(Case::Direct, 4, LEN);
    assert_eq!(direct, 2.0 + 3.0 * reduce / 4.0 + 3.0 * copy / 4.0);
}

#[test]
fn the_parts_add_up_and_name_the_bottleneck() {
    for case in ALL {
        for n in [2, 3, 8, 13] {
            let cost = plan(case, n, 1000, 16).cost(&MODEL).unwrap();
            let parts = cost.latency + cost.copy + cost.reduce;
            assert!((parts - cost.seconds).abs() <= 1e-6 * cost.seconds, "{case:?}, {n}: {cost}");
            assert!(cost.rank < n);
        }
    }
    let cost = |case| plan(case, 4, LEN, LEN).cost(&MODEL).unwrap();
    assert_eq!(cost(Case::Barrier).bottleneck().1, Work::Latency);
    assert_eq!(cost(Case::Binomial).bottleneck().1, Work::Copy);
    assert_eq!(cost(Case::Direct).bottleneck().1, Work::Reduce);
    assert_eq!(
        cost(Case::Binomial).to_string(),
        "514000000.00 us: latency 2000000.00, copies 512000000.00, reductions 0.00; most of it \
         Copy at rank 1"
    );
}
