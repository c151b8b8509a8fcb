//! No assignment is better than the one chosen: all of them are tried.
//!
//! Without optimisation most of the time goes into making and choosing, not into trying: with the
//! default some 30 machines keep 8 GPUs and 8 NICs. Optimised, `QPAIR_ASSIGNMENTS=60000000` takes some minutes,
//! and 266 do. What was tried is printed (`--nocapture`).
//!
//! `QPAIR_MACHINES` sets how many random machines, `QPAIR_SEED` the first of them, and
//! `QPAIR_ASSIGNMENTS` up to how many assignments a machine may have; beyond, GPUs are taken away
//! from it until it has fewer.

mod support;

use qpair_topology::{GpuId, Machine, NicId, PathClass, Selection};
use support::brute;
use support::model::{self, Numbers, Way};
use support::random::{self, Random};

/// The ways that a GPU may choose of: those with GPUDirect if there are any; a neighbour's NIC only
/// from the GPUs that are nearest to it.
fn ways(machine: &Machine) -> Vec<Vec<Way>> {
    let usable = |nic: &NicId| machine.nic(*nic).is_some_and(|nic| nic.is_usable() && !nic.software);
    let own =
        |gpu: GpuId| machine.nic_ids().filter(usable).filter_map(|nic| model::way(machine, gpu, None, nic)).collect();
    let own: Vec<Vec<Way>> = machine.gpu_ids().map(own).collect();
    let mut all = own.clone();
    for nic in machine.nic_ids().filter(usable) {
        let near = machine.gpu_ids().zip(own.iter().flatten().filter(|way| way.nic == nic));
        let near: Vec<_> = near.filter(|(_, way)| way.direct && way.class <= PathClass::Pxb).collect();
        let best = near.iter().map(|(_, way)| way.class).min();
        let nearest = near.iter().filter(|(_, way)| Some(way.class) == best).take(4);
        let nearest: Vec<GpuId> = nearest.map(|(gpu, _)| *gpu).collect();
        for (gpu, all) in machine.gpu_ids().zip(&mut all).filter(|(gpu, _)| !nearest.contains(gpu)) {
            all.extend(nearest.iter().filter_map(|&via| model::way(machine, gpu, Some(via), nic)));
        }
    }
    for all in &mut all {
        if all.iter().any(|way| way.direct) {
            all.retain(|way| way.direct);
        }
        all.sort_by_key(|way| (way.nic, far(way), way.via));
    }
    all
}

fn far(way: &Way) -> u64 {
    u64::from(!way.direct) << 20 | (way.class as u64) << 8 | way.hops as u64
}

/// What each GPU may choose, in the order of NICs: each way, and where there are more NICs than GPUs,
/// each set of NICs by the best way to each.
fn options(machine: &Machine) -> Vec<Vec<Vec<Way>>> {
    let ways = ways(machine);
    let mut nics: Vec<NicId> = ways.iter().flatten().map(|way| way.nic).collect();
    nics.sort();
    nics.dedup();
    let users = ways.iter().filter(|ways| !ways.is_empty()).count();
    let all = ways.into_iter().filter(|ways| !ways.is_empty()).map(|ways| {
        let mut sets: Vec<Vec<Way>> = ways.iter().map(|way| vec![way.clone()]).collect();
        if nics.len() > users {
            let mut best = ways;
            best.dedup_by_key(|way| way.nic);
            let sets_of = (1_u32..1 << best.len()).filter(|bits| bits.count_ones() > 1);
            sets.extend(
                sets_of.map(|bits| (0..best.len()).filter(|i| bits >> i & 1 == 1).map(|i| best[i].clone()).collect()),
            );
        }
        sets.sort_by_key(|set| set.iter().map(|way| way.nic).collect::<Vec<_>>());
        sets
    });
    all.collect()
}

/// The best of all assignments, and how many were looked at to their end.
fn best(options: &[Vec<Vec<Way>>]) -> (brute::Worth, Vec<Vec<NicId>>, u64) {
    let mut numbers = Numbers::default();
    let mut option = |set: &Vec<Way>| brute::Option {
        nics: set.iter().fold(0, |nics, way| nics | 1 << way.nic.0),
        ways: set.iter().map(|way| numbers.of(way)).collect(),
        far: set.iter().map(far).sum(),
    };
    let all: Vec<Vec<brute::Option>> = options.iter().map(|sets| sets.iter().map(&mut option).collect()).collect();
    let (worth, chosen, tried) = brute::best(&all, &numbers.capacity);
    let nics = options.iter().zip(chosen).filter(|(sets, _)| !sets.is_empty());
    let nics = nics.map(|(sets, place)| sets[place].iter().map(|way| way.nic).collect());
    (worth, nics.collect(), tried)
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// How much each GPU chooses of.
fn options_count(options: &[Vec<Vec<Way>>]) -> Vec<u64> {
    options.iter().map(|sets| sets.len() as u64).collect()
}

fn assignments(options: &[Vec<Vec<Way>>]) -> u64 {
    options.iter().fold(1, |product: u64, sets| product.saturating_mul(sets.len() as u64))
}

/// Half of the machines; tests run in parallel.
#[test]
fn no_assignment_of_a_random_machine_is_better() {
    try_every_other_machine(0);
}

#[test]
fn no_assignment_of_the_other_random_machines_is_better() {
    try_every_other_machine(1);
}

fn try_every_other_machine(first: u64) {
    let (count, seed, most) =
        (number("QPAIR_MACHINES", 10_000), number("QPAIR_SEED", 6), number("QPAIR_ASSIGNMENTS", 2_000));
    let (mut tried, mut looked_at, mut full, mut several) = (0_u64, 0, 0_u64, 0_u64);
    let mut most_gpus = [[0_u64; 9]; 9];
    for seed in (seed + first..seed + count).step_by(2) {
        let mut machine = random::machine(&mut Random(seed), 8, 8);
        let mut all = options(&machine);
        while assignments(&all) > most {
            let Some(fewer) = random::fewer_gpus(&machine, &options_count(&all), most) else { break };
            machine = fewer;
            all = options(&machine);
        }
        if assignments(&all) > most {
            continue;
        }
        let choice = Selection::of(&machine).cpus([]).choose().expect("nothing was asked for");
        let nics: Vec<Vec<NicId>> =
            machine.gpu_ids().map(|gpu| choice.nics(gpu)).filter(|nics| !nics.is_empty()).collect();
        let (worth, best, count) = best(&all);
        assert_eq!(nics, best, "seed {seed}: {worth:?}\n{:#?}\n{}", machine.description(), choice.explain());
        tried += 1;
        looked_at += count;
        let usable = machine.nics().iter().filter(|nic| nic.is_usable()).count();
        full += u64::from(machine.gpus().len() == 8 && machine.nics().len() == 8);
        several += u64::from(all.iter().flatten().any(|set| set.len() > 1));
        most_gpus[machine.gpus().len().min(8)][usable.min(8)] += 1;
    }
    println!(
        "{tried} machines from seed {seed} on, every other: {full} of 8 GPUs and 8 NICs, {several} with sets of NICs; \
         {looked_at} assignments looked at to their end"
    );
    println!("by GPUs (down) and usable NICs (across), from none: {most_gpus:?}");
    assert!(tried > 0 || count < 2, "no machine has so few assignments: raise QPAIR_ASSIGNMENTS");
}
