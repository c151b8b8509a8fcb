//! Every algorithm gives the serial result, for every number of ranks and elements.

use proptest::prelude::*;
use qpair_collectives::{Algorithm, Collective, Counts, Elements, Plan, Ranks, Recipe, Spec};

use crate::catalog::{Case, all, all_reduces, of, recipe};
use crate::executor::{Vectors, run};
use crate::random::{Random, seed};

const RANKS: [u32; 11] = [1, 2, 3, 5, 7, 8, 12, 13, 16, 17, 24];

/// What a place holds that nobody gave anything for.
const NOTHING: i64 = i64::MIN / 3;

/// What each rank gives: small whole numbers, which sums of floats hold exactly.
pub fn given(spec: &Spec, seed: u64) -> Vec<Vec<i64>> {
    let mut random = Random::new(seed ^ 0xda7a);
    let mut vector = |rank| (0..spec.contribution(rank).len).map(|_| random.below(2001) as i64 - 1000).collect();
    (0..spec.ranks.0).map(&mut vector).collect()
}

/// The vectors that hold it.
pub fn vectors(spec: &Spec, given: &[Vec<i64>]) -> Vec<Vectors<i64>> {
    let rank = |(rank, given): (u32, &Vec<i64>)| {
        let mut vectors = Vectors {
            input: vec![NOTHING; spec.input_len(rank) as usize],
            data: vec![NOTHING; spec.data_len(rank) as usize],
        };
        let at = spec.contribution(rank).offset as usize;
        let into = if spec.in_place { &mut vectors.data } else { &mut vectors.input };
        into[at..at + given.len()].copy_from_slice(given);
        vectors
    };
    (0..).zip(given).map(rank).collect()
}

/// What rank `me` must end with, computed serially from what the collective is.
pub fn expected(spec: &Spec, given: &[Vec<i64>], me: u32) -> Vec<i64> {
    let rank = |rank: u32| &given[rank as usize];
    let finish = |sum: i64| if spec.finish { finished(sum) } else { sum };
    let sums = || -> Vec<i64> {
        let sum = |i: usize| finish(given.iter().map(|vector| vector[i]).sum());
        (0..given[0].len()).map(sum).collect()
    };
    let block = |from: u32| {
        let before: u64 = (0..me).map(|to| spec.pair(from, to)).sum();
        let at = before as usize;
        &rank(from)[at..at + spec.pair(from, me) as usize]
    };
    let own = spec.offset(me) as usize..(spec.offset(me) + spec.block(me)) as usize;
    match spec.collective {
        Collective::AllReduce => sums(),
        Collective::Reduce { root } if me == root => sums(),
        Collective::ReduceScatter => sums()[own].to_vec(),
        Collective::AllGather => given.concat(),
        Collective::Gather { root } if me == root => given.concat(),
        Collective::AllToAll => (0..spec.ranks.0).flat_map(|from| block(from).to_vec()).collect(),
        Collective::Broadcast { root } => rank(root).clone(),
        Collective::Scatter { root } => rank(root)[own].to_vec(),
        Collective::Transfer { from, to } if me == to => rank(from).clone(),
        _ => Vec::new(),
    }
}

/// An operation that shows if it is done twice, or not at all.
pub fn finished(sum: i64) -> i64 {
    sum * 3 + 1
}

/// Whether all ranks ended with what they must, and what is not to change did not.
pub fn check_result(spec: &Spec, given: &[Vec<i64>], result: &[Vectors<i64>]) -> Result<(), String> {
    let before = vectors(spec, given);
    for (me, (result, before)) in (0..).zip(result.iter().zip(&before)) {
        let output = spec.output(me);
        let at = output.offset as usize..(output.offset + output.len) as usize;
        if result.data[at] != expected(spec, given, me) {
            return Err(format!("wrong result at rank {me}: {:?}", result.data));
        }
        if result.input != before.input {
            return Err(format!("the input of rank {me} changed"));
        }
    }
    Ok(())
}

/// Runs on integers, or on floats, and compares with the serial result.
pub fn check(plan: &Plan, floats: bool, seed: u64) -> Result<(), String> {
    let spec = &plan.spec;
    let given = given(spec, seed);
    let mut data = vectors(spec, &given);
    if floats {
        let cast = |v: &Vec<i64>| v.iter().map(|&x| x as f64).collect::<Vec<_>>();
        let back = |v: &Vec<f64>| v.iter().map(|&x| if x.is_nan() { NOTHING } else { x as i64 }).collect::<Vec<_>>();
        let mut floats: Vec<_> = data.iter().map(|v| Vectors { input: cast(&v.input), data: cast(&v.data) }).collect();
        run(plan, &mut floats, f64::NAN, |a, b| a + b, |x| x * 3.0 + 1.0, seed)?;
        data = floats.iter().map(|v| Vectors { input: back(&v.input), data: back(&v.data) }).collect();
        if !spec.in_place {
            // Not all whole numbers are floats; those that were given are.
            data.iter_mut().zip(vectors(spec, &given)).for_each(|(after, before)| {
                if after.input.iter().zip(&before.input).all(|(a, b)| a == b || *b == NOTHING) {
                    after.input = before.input;
                }
            });
        }
    } else {
        run(plan, &mut data, NOTHING, i64::wrapping_add, finished, seed)?;
    }
    check_result(spec, &given, &data).map_err(|error| format!("{error}, seed {seed}"))
}

fn check_one(case: Case, n: u32, len: u64, segment: u64, seed: u64) {
    let plan = recipe(case, n, len, segment).plan();
    let context = format!("{case:?}, {n} ranks, {len} elements, segments of {segment}");
    if let Err(error) = plan.verify() {
        panic!("{context}: {error}\n{plan}");
    }
    if let Err(error) = check(&plan, n.is_multiple_of(2), seed) {
        panic!("{context}: {error}\n{plan}");
    }
}

fn short_and_ragged(algorithm: Algorithm) {
    let seed = seed();
    for case in of(algorithm) {
        for n in RANKS {
            let n64 = u64::from(n);
            for (len, segment) in [(0, 1), (1, 3), (n64 - 1, 1000), (n64, 1), (n64 + 1, 3)] {
                check_one(case, n, len, segment, seed);
            }
            if !case.collective.has_blocks() {
                check_one(case, n, 2 * n64 + 1, 1, seed);
                check_one(case, n, 101, 3, seed);
            }
        }
    }
}

macro_rules! short_and_ragged {
    ($($name:ident: $algorithm:ident,)*) => {
        $(#[test] fn $name() { short_and_ragged(Algorithm::$algorithm); })*
    };
}

short_and_ragged! {
    ring_short_and_ragged: Ring,
    recursive_doubling_short_and_ragged: RecursiveDoubling,
    halving_doubling_short_and_ragged: HalvingDoubling,
    direct_short_and_ragged: Direct,
    exchange_short_and_ragged: Exchange,
    flat_short_and_ragged: Flat,
    binomial_tree_short_and_ragged: BinomialTree,
    double_tree_short_and_ragged: DoubleTree,
    chain_short_and_ragged: Chain,
    bruck_short_and_ragged: Bruck,
    pairwise_short_and_ragged: Pairwise,
    parameter_server_short_and_ragged: ParameterServer,
    hierarchical_short_and_ragged: Hierarchical,
}

#[test]
fn long_vectors() {
    let seed = seed();
    for case in all() {
        check_one(case, 5, 997, 64, seed);
        check_one(case, 12, 300, 50, seed);
        check_one(case, 2, 1 << 12, 1 << 9, seed);
    }
}

#[test]
fn barriers_hold_under_many_schedules() {
    let seed = seed();
    for case in all().into_iter().filter(|case| case.collective == Collective::Barrier) {
        for n in RANKS {
            let plan = recipe(case, n, 0, 1).plan();
            let _ = plan.verify().unwrap();
            for i in 0..50 {
                let mut data = vec![Vectors::<i64> { input: Vec::new(), data: Vec::new() }; n as usize];
                run(&plan, &mut data, 0, |a, _| a, |a| a, seed + i).unwrap();
            }
        }
    }
}

#[test]
fn every_root_serves() {
    let seed = seed();
    for collective in Collective::ALL {
        for root in (0..6).filter(|_| collective.root().is_some()) {
            for algorithm in Algorithm::ALL {
                let spec = Spec::new(collective.with_root(root), Ranks(6), Elements(11), 4);
                let Ok(recipe) = Recipe::new(spec, algorithm) else { continue };
                let plan = recipe.plan();
                let _ = plan.verify().unwrap();
                check(&plan, false, seed).unwrap();
            }
        }
    }
}

#[test]
fn all_ranks_get_the_same_bits_whatever_the_rounding() {
    let seed = seed();
    for case in all_reduces() {
        for n in RANKS {
            let plan = recipe(case, n, 50, 4).plan();
            let (inputs, bits) =
                (rounding_inputs(n, seed), |schedule| bits(&plan, &rounding_inputs(n, seed), schedule));
            let first = bits(seed);
            assert!(first.iter().all(|rank| *rank == first[0]), "{case:?}, {n} ranks");
            assert_eq!(first, bits(seed + 1), "{case:?}, {n} ranks: another schedule");
            assert_eq!(inputs.len(), n as usize);
        }
    }
}

fn rounding_inputs(n: u32, seed: u64) -> Vec<Vec<f32>> {
    let mut random = Random::new(seed);
    let mut float = || (random.next() as i32 as f32) * 1e-3 / (random.below(99) + 1) as f32;
    (0..n).map(|_| (0..50).map(|_| float()).collect()).collect()
}

fn bits(plan: &Plan, inputs: &[Vec<f32>], schedule: u64) -> Vec<Vec<u32>> {
    let mut data: Vec<_> = inputs.iter().map(|input| Vectors { input: Vec::new(), data: input.clone() }).collect();
    run(plan, &mut data, f32::NAN, |a, b| a + b, |a| a, schedule).unwrap();
    data.iter().map(|v| v.data.iter().map(|x| x.to_bits()).collect()).collect()
}

/// What the verifier calls canonical has one result, whichever plan it is.
#[test]
fn canonical_plans_agree_to_the_bit() {
    let seed = seed();
    for n in RANKS {
        let inputs = rounding_inputs(n, seed);
        let mut results = Vec::new();
        for case in all_reduces() {
            for segment in [4, 1000] {
                let mut recipe = recipe(case, n, 50, segment);
                recipe.spec.finish = false;
                let plan = recipe.plan();
                if plan.verify().unwrap().canonical {
                    results.push((case, bits(&plan, &inputs, seed).remove(0)));
                }
            }
        }
        let has = |algorithm| results.iter().any(|(case, _)| case.algorithm == algorithm);
        for algorithm in [
            Algorithm::RecursiveDoubling,
            Algorithm::HalvingDoubling,
            Algorithm::Exchange,
            Algorithm::Direct,
            Algorithm::ParameterServer,
        ] {
            assert!(has(algorithm), "{algorithm}, {n} ranks");
        }
        assert!(n < 5 || !has(Algorithm::Ring));
        let (first, bits) = &results[0];
        for (case, other) in &results {
            assert_eq!(bits, other, "{first:?} and {case:?}, {n} ranks");
        }
    }
}

#[test]
fn plans_of_huge_vectors_verify() {
    for case in all() {
        for len in [1 << 32, (1 << 40) + 1] {
            let plan = recipe(case, 3, len, 1 << 14).plan();
            let proof = plan.verify().unwrap_or_else(|error| panic!("{case:?}: {error}"));
            assert!(proof.steps < 100_000);
        }
    }
}

/// What each rank knows of an all-to-all gives the same programs as what is known of all.
#[test]
fn what_a_rank_knows_alone_is_enough() {
    let pairs: Vec<u64> = (0..25).map(|i| i * 3 % 7).collect();
    let spec = Spec::new(Collective::AllToAll, Ranks(5), Elements(0), 4).separate();
    for algorithm in [Algorithm::Direct, Algorithm::Pairwise] {
        let known = |counts| Recipe::new(spec.clone().with_counts(counts), algorithm).unwrap();
        let whole = known(Counts::Pairs(pairs.clone().into()));
        for rank in 0..5 {
            let gives = pairs[rank as usize * 5..][..5].to_vec();
            let gets = (0..5).map(|from| pairs[from * 5 + rank as usize]).collect::<Vec<_>>();
            let own = known(Counts::Own { rank, gives: gives.into(), gets: gets.into() });
            assert_eq!(own.program(rank), whole.program(rank));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_plan_verifies_and_runs(
        case in prop::sample::select(all()),
        n in 1_u32..12,
        len in 0_u64..200,
        segment in 0_u64..40,
        seed: u64,
    ) {
        let plan = recipe(case, n, len, segment).plan();
        prop_assert!(plan.verify().is_ok(), "{:?}", plan.verify());
        prop_assert_eq!(check(&plan, seed % 2 == 0, seed), Ok(()));
    }
}
