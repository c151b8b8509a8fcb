//! No assignment is better than the one chosen: all of them are tried.
//!
//! `QPAIR_MACHINES` sets how many random machines, `QPAIR_SEED` the first of them, and
//! `QPAIR_ASSIGNMENTS` up to how many assignments a machine may have; beyond, GPUs are taken away
//! from it until it has fewer.

mod support;

use std::cmp::Reverse;

use qpair_topology::{GpuId, Machine, NicId, PathClass, Selection};
use support::model::{self, Way};
use support::random::{self, Random};

/// What an assignment is worth: the least, the sum, both in MB/s, and how near.
type Worth = (u64, u64, Reverse<u64>);

/// The ways that a GPU may choose of: those with GPUDirect if there are any; a neighbour's NIC only
/// from the GPUs that are nearest to it.
fn ways(machine: &Machine, gpu: GpuId) -> Vec<Way> {
    let usable = |nic: &NicId| machine.nic(*nic).is_some_and(|nic| nic.is_usable() && !nic.software);
    let mut all = Vec::new();
    for nic in machine.nic_ids().filter(usable) {
        all.extend(model::way(machine, gpu, None, nic));
        let near = machine.gpu_ids().filter_map(|gpu| model::way(machine, gpu, None, nic).map(|way| (gpu, way)));
        let near: Vec<_> = near.filter(|(_, way)| way.direct && way.class <= PathClass::Pxb).collect();
        let best = near.iter().map(|(_, way)| way.class).min();
        let nearest = near.iter().filter(|(_, way)| Some(way.class) == best).take(4);
        let nearest: Vec<GpuId> = nearest.map(|(gpu, _)| *gpu).collect();
        if !nearest.contains(&gpu) {
            all.extend(nearest.iter().filter_map(|&via| model::way(machine, gpu, Some(via), nic)));
        }
    }
    if all.iter().any(|way| way.direct) {
        all.retain(|way| way.direct);
    }
    all.sort_by_key(|way| (way.nic, far(way), way.via));
    all
}

fn far(way: &Way) -> u64 {
    u64::from(!way.direct) << 20 | (way.class as u64) << 8 | way.hops as u64
}

/// What each GPU may choose, in the order of NICs: each way, and where there are more NICs than GPUs,
/// each set of NICs by the best way to each.
fn options(machine: &Machine) -> Vec<Vec<Vec<Way>>> {
    let ways: Vec<Vec<Way>> = machine.gpu_ids().map(|gpu| ways(machine, gpu)).collect();
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

/// Tries everything; of equals keeps the first.
struct BruteForce<'a> {
    options: &'a [Vec<Vec<Way>>],
    chosen: Vec<&'a Vec<Way>>,
    best: Option<(Worth, Vec<Vec<NicId>>)>,
}

impl<'a> BruteForce<'a> {
    fn run(&mut self) {
        let Some(options) = self.options.get(self.chosen.len()) else { return self.judge() };
        for set in options {
            let taken = |own: &&Vec<Way>| {
                let common = own.iter().any(|a| set.iter().any(|b| a.nic == b.nic));
                common && (own.len() > 1 || set.len() > 1)
            };
            if !self.chosen.iter().any(|own| taken(own)) {
                self.chosen.push(set);
                self.run();
                self.chosen.pop();
            }
        }
    }

    fn judge(&mut self) {
        let flows: Vec<&Way> = self.chosen.iter().flat_map(|set| set.iter()).collect();
        let mut rates = model::rates(&flows).into_iter();
        let own = self.chosen.iter().map(|set| rates.by_ref().take(set.len()).sum::<u64>());
        let own: Vec<u64> = own.collect();
        let megabytes = |bytes: u64| (bytes + 500_000) / 1_000_000;
        let least = megabytes(own.iter().copied().min().unwrap_or(0));
        let worth = (least, megabytes(own.iter().sum()), Reverse(flows.iter().map(|way| far(way)).sum()));
        if self.best.as_ref().is_none_or(|(best, _)| worth > *best) {
            let nics = self.chosen.iter().map(|set| set.iter().map(|way| way.nic).collect());
            self.best = Some((worth, nics.collect()));
        }
    }
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

fn assignments(options: &[Vec<Vec<Way>>]) -> u64 {
    options.iter().fold(1, |product: u64, sets| product.saturating_mul(sets.len() as u64))
}

#[test]
fn no_assignment_of_a_random_machine_is_better() {
    let (count, seed, most) =
        (number("QPAIR_MACHINES", 10_000), number("QPAIR_SEED", 6), number("QPAIR_ASSIGNMENTS", 200));
    let mut sizes = std::collections::BTreeMap::new();
    for seed in seed..seed + count {
        let mut machine = random::machine(&mut Random(seed), 8, 8);
        let mut all = options(&machine);
        while assignments(&all) > most {
            let Some(fewer) = random::fewer_gpus(&machine) else { break };
            machine = fewer;
            all = options(&machine);
        }
        if assignments(&all) > most {
            continue;
        }
        let mut brute = BruteForce { options: &all, chosen: Vec::new(), best: None };
        brute.run();
        let choice = Selection::of(&machine).cpus([]).choose().expect("nothing was asked for");
        let nics: Vec<Vec<NicId>> =
            machine.gpu_ids().map(|gpu| choice.nics(gpu)).filter(|nics| !nics.is_empty()).collect();
        let (worth, best) = brute.best.unwrap_or_default();
        assert_eq!(nics, best, "seed {seed}: {worth:?}\n{:#?}\n{}", machine.description(), choice.explain());
        *sizes.entry((machine.gpus().len(), machine.nics().len())).or_insert(0) += 1;
    }
    eprintln!("{sizes:?}");
}
