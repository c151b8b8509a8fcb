//! Every algorithm gives the serial result, for every number of ranks and elements.

use proptest::prelude::*;
use qpair_collectives::{Collective, Plan};

use crate::catalog::{ALL, ALL_REDUCE, Case, plan};
use crate::executor::run;
use crate::random::{Random, seed};

const RANKS: [u32; 11] = [1, 2, 3, 5, 7, 8, 12, 13, 16, 17, 24];

/// Vectors of small whole numbers, which sums of floats hold exactly.
pub fn inputs(plan: &Plan, seed: u64) -> Vec<Vec<i64>> {
    let mut random = Random::new(seed ^ 0xda7a);
    let ranks = 0..plan.ranks.0;
    let mut vector = |_| {
        let elements = 0..plan.elements.0;
        elements.map(|_| random.below(2001) as i64 - 1000).collect()
    };
    ranks.map(&mut vector).collect()
}

/// What each rank must end with, computed serially.
pub fn expected(plan: &Plan, inputs: &[Vec<i64>]) -> Vec<i64> {
    match plan.collective {
        Collective::Broadcast { root } => inputs[root as usize].clone(),
        _ => (0..plan.elements.0 as usize).map(|i| inputs.iter().map(|vector| vector[i]).sum()).collect(),
    }
}

/// Runs on integers, or on floats, and compares with the serial result.
fn check(plan: &Plan, floats: bool, seed: u64) -> Result<(), String> {
    let inputs = inputs(plan, seed);
    let expected = expected(plan, &inputs);
    let wrong = |rank: usize| Err(format!("wrong result at rank {rank}, seed {seed}"));
    if floats {
        let float = |v: &Vec<i64>| v.iter().map(|&x| x as f32).collect::<Vec<_>>();
        let mut data: Vec<_> = inputs.iter().map(float).collect();
        run(plan, &mut data, f32::NAN, |a, b| a + b, seed)?;
        let expected = float(&expected);
        data.iter().position(|v| *v != expected).map_or(Ok(()), wrong)
    } else {
        let mut data = inputs;
        run(plan, &mut data, i64::MIN / 3, i64::wrapping_add, seed)?;
        data.iter().position(|v| *v != expected).map_or(Ok(()), wrong)
    }
}

fn check_all(case: Case, n: u32, lengths: &[u64], segments: &[u64], seed: u64) {
    for &len in lengths {
        for &segment in segments {
            let plan = plan(case, n, len, segment);
            let context = format!("{case:?}, {n} ranks, {len} elements, segments of {segment}");
            if let Err(error) = plan.verify() {
                panic!("{context}: {error}");
            }
            for (i, floats) in [(0, false), (1, true)] {
                if let Err(error) = check(&plan, floats, seed + i) {
                    panic!("{context}: {error}");
                }
            }
        }
    }
}

fn short_and_ragged(case: Case) {
    let seed = seed();
    for n in RANKS {
        let n64 = u64::from(n);
        let lengths = [0, 1, n64 - 1, n64, n64 + 1, 2 * n64 + 1, 2, 37, 101];
        check_all(case, n, &lengths, &[1, 3, 1000], seed);
    }
}

#[test]
fn ring_short_and_ragged() {
    short_and_ragged(Case::Ring);
}

#[test]
fn recursive_doubling_short_and_ragged() {
    short_and_ragged(Case::RecursiveDoubling);
}

#[test]
fn direct_short_and_ragged() {
    short_and_ragged(Case::Direct);
}

#[test]
fn binomial_short_and_ragged() {
    short_and_ragged(Case::Binomial);
}

#[test]
fn chain_short_and_ragged() {
    short_and_ragged(Case::Chain);
}

#[test]
fn long_vectors() {
    let seed = seed();
    for case in ALL {
        for n in RANKS {
            check_all(case, n, &[997, 1000], &[64], seed);
        }
        check_all(case, 5, &[65_537], &[1000, 1 << 20], seed);
        check_all(case, 2, &[1 << 18], &[1 << 14], seed);
    }
}

#[test]
fn barriers_hold_under_many_schedules() {
    let seed = seed();
    for n in RANKS {
        let plan = plan(Case::Barrier, n, 0, 1);
        plan.verify().unwrap();
        for i in 0..50 {
            let mut data = vec![Vec::<i64>::new(); n as usize];
            run(&plan, &mut data, 0, |a, _| a, seed + i).unwrap();
        }
    }
}

#[test]
fn every_root_broadcasts() {
    let seed = seed();
    let grain = qpair_collectives::Grain::new(4, 16);
    let (ranks, len) = (qpair_collectives::Ranks(6), qpair_collectives::Elements(11));
    for root in 0..6 {
        for plan in [
            qpair_collectives::algorithms::binomial_broadcast(ranks, root, len, grain),
            qpair_collectives::algorithms::chain_broadcast(ranks, root, len, grain),
        ] {
            plan.verify().unwrap();
            check(&plan, false, seed).unwrap();
        }
    }
}

#[test]
fn all_ranks_get_the_same_bits_whatever_the_rounding() {
    let seed = seed();
    for case in ALL_REDUCE {
        for n in RANKS {
            let plan = plan(case, n, 50, 4);
            let mut random = Random::new(seed);
            let mut float = || (random.next() as i32 as f32) * 1e-3 / (random.below(99) + 1) as f32;
            let inputs: Vec<Vec<f32>> = (0..n).map(|_| (0..50).map(|_| float()).collect()).collect();
            let bits = |schedule: u64| -> Vec<Vec<u32>> {
                let mut data = inputs.clone();
                run(&plan, &mut data, f32::NAN, |a, b| a + b, schedule).unwrap();
                data.iter().map(|v| v.iter().map(|x| x.to_bits()).collect()).collect()
            };
            let first = bits(seed);
            assert!(first.iter().all(|rank| *rank == first[0]), "{case:?}, {n} ranks");
            assert_eq!(first, bits(seed + 1), "{case:?}, {n} ranks: another schedule");
        }
    }
}

#[test]
fn plans_of_huge_vectors_verify() {
    for case in ALL {
        for len in [1 << 32, (1 << 40) + 1] {
            let plan = plan(case, 3, len, 1 << 14);
            plan.verify().unwrap();
            assert!(plan.total_steps() < 100_000);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_plan_verifies_and_runs(
        case in prop::sample::select(ALL.to_vec()),
        n in 1_u32..12,
        len in 0_u64..200,
        segment in 0_u64..40,
        seed: u64,
    ) {
        let plan = plan(case, n, len, segment);
        prop_assert_eq!(plan.verify(), Ok(()));
        prop_assert_eq!(check(&plan, seed % 2 == 0, seed), Ok(()));
    }
}
