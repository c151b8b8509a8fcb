//! The ways that a GPU or NUMA node has to NICs, and which of them may be chosen.

use std::collections::BTreeMap;
use std::fmt;

use super::consumer::Consumer;
use super::problem::Way;
use crate::Bandwidth;
use crate::model::{GpuId, Link, Machine, Nic, NicId, NodeId};
use crate::path::{Path, PathClass};

/// A way to a NIC, and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The NIC.
    pub nic: NicId,
    /// The GPU whose NIC it is, if data first goes there over links of GPUs.
    pub via: Option<GpuId>,
    /// The path to the NIC.
    pub path: Path,
    /// What it carries alone in one direction, with the NIC's ports, and with the detour over the
    /// host's memory if GPUDirect can not be used.
    pub limit: Bandwidth,
    /// True if the NIC reads and writes the memory of the GPU itself. For processors always true.
    pub gpu_direct: bool,
    /// What became of it.
    pub verdict: Verdict,
}

/// What became of a candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// It was chosen.
    Chosen,
    /// It may be chosen, and was not: another is better, or as good and comes first.
    NotChosen(String),
    /// The user said not to use it.
    Excluded,
    /// The user said which NICs to use, and this is none of them.
    NotAmongThose,
    /// The ports of the NIC are down, or it has none.
    Down,
    /// It is a virtual function, and the physical one is there too.
    VirtualFunctionOf(NicId),
    /// It is the software device, and there is a NIC.
    Software,
    /// Nothing tells how fast it is, and of another NIC it is known.
    RateUnknown,
    /// GPUDirect can not be used on this way, and can on others.
    NotDirect,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chosen => f.write_str("chosen"),
            Self::NotChosen(why) => f.write_str(why),
            Self::Excluded => f.write_str("excluded"),
            Self::NotAmongThose => f.write_str("not among those to be used"),
            Self::Down => f.write_str("no port is active"),
            Self::VirtualFunctionOf(nic) => write!(f, "a virtual function of NIC {}, which is here too", nic.0),
            Self::Software => f.write_str("software, and there is a NIC"),
            Self::RateUnknown => f.write_str("its rate is not known, and that of another is"),
            Self::NotDirect => f.write_str("no GPUDirect on this way, and others have it"),
        }
    }
}

/// Which NICs the user allows. `None` in `only` is all.
#[derive(Clone, Debug)]
pub(super) struct Allowed {
    pub(super) exclude: Vec<NicId>,
    pub(super) only: Option<Vec<NicId>>,
    /// Farther than this there is no GPUDirect.
    pub(super) farthest: PathClass,
}

/// All candidates of all consumers, in their order; each list by NIC, of one NIC the best first.
/// Those that may be chosen have the verdict `NotChosen`.
pub(super) fn candidates(
    machine: &Machine,
    consumers: &[Consumer],
    pins: &[Option<Vec<NicId>>],
    allowed: &Allowed,
) -> Vec<Vec<Candidate>> {
    let direct: Vec<Vec<Candidate>> =
        consumers.iter().map(|&consumer| direct(machine, consumer, allowed.farthest)).collect();
    let near = nearest(machine, consumers, &direct);
    let all = consumers.iter().zip(&direct).zip(pins);
    all.map(|((&consumer, own), pins)| {
        let mut list = own.clone();
        if let Consumer::Gpu(gpu) = consumer {
            list.extend(over_neighbours(machine, gpu, &near));
        }
        judge(machine, &mut list, pins.as_deref(), allowed);
        list.sort_by_key(|candidate| (candidate.nic, cost(candidate), candidate.via));
        list
    })
    .collect()
}

/// How far a candidate is: first those without GPUDirect are farther than all with it, then the
/// class counts, then the number of links.
pub(super) fn cost(candidate: &Candidate) -> u64 {
    let staged = u64::from(!candidate.gpu_direct);
    staged << 20 | (candidate.path.class as u64) << 8 | (candidate.path.hops.len() as u64).min(255)
}

fn direct(machine: &Machine, consumer: Consumer, farthest: PathClass) -> Vec<Candidate> {
    let from = NodeId::from(consumer);
    let candidate = |nic: NicId| {
        let path = machine.path(from, nic)?;
        let device = machine.nic(nic)?;
        let gpu_direct = match consumer {
            Consumer::Cpu(_) => true,
            Consumer::Gpu(gpu) => {
                let able = machine.gpu(gpu)?.gpu_direct != Some(false) && device.gpu_direct != Some(false);
                able && !device.software && (path.class <= farthest || path.is_coherent())
            }
        };
        let limit = links(machine, &path, nic, gpu_direct).iter().map(|(link, _)| link.bandwidth).min();
        let limit = limit.unwrap_or(Bandwidth::UNLIMITED);
        Some(Candidate { nic, via: None, path, limit, gpu_direct, verdict: Verdict::NotChosen(String::new()) })
    };
    machine.nic_ids().filter_map(candidate).collect()
}

/// For each NIC the GPUs that are nearest to it and use it directly; those of equal class, and at
/// most a few.
fn nearest(machine: &Machine, consumers: &[Consumer], direct: &[Vec<Candidate>]) -> Vec<Vec<GpuId>> {
    const NEIGHBOURS: usize = 4;
    let mut all = vec![(PathClass::Phb, Vec::new()); machine.nics().len()];
    for (consumer, list) in consumers.iter().zip(direct) {
        let Consumer::Gpu(gpu) = *consumer else { continue };
        for candidate in list.iter().filter(|candidate| candidate.gpu_direct) {
            let (class, gpus) = &mut all[usize::from(candidate.nic.0)];
            if candidate.path.class < *class {
                (*class, *gpus) = (candidate.path.class, Vec::new());
            }
            if candidate.path.class == *class && *class <= PathClass::Pxb && gpus.len() < NEIGHBOURS {
                gpus.push(gpu);
            }
        }
    }
    all.into_iter().map(|(_, gpus)| gpus).collect()
}

/// Ways of a GPU to the NICs of those it has links to.
fn over_neighbours(machine: &Machine, gpu: GpuId, near: &[Vec<GpuId>]) -> Vec<Candidate> {
    let mut list = Vec::new();
    for (nic, gpus) in machine.nic_ids().zip(near) {
        if gpus.contains(&gpu) {
            continue;
        }
        for &neighbour in gpus {
            let Some(path) = machine.path_through(gpu, neighbour, nic) else { continue };
            if path.class != PathClass::Pxn {
                continue;
            }
            let limit = links(machine, &path, nic, true).iter().map(|(link, _)| link.bandwidth).min();
            list.push(Candidate {
                nic,
                via: Some(neighbour),
                path,
                limit: limit.unwrap_or(Bandwidth::UNLIMITED),
                gpu_direct: true,
                verdict: Verdict::NotChosen(String::new()),
            });
        }
    }
    list
}

/// Rules out what may not be chosen.
fn judge(machine: &Machine, list: &mut [Candidate], pins: Option<&[NicId]>, allowed: &Allowed) {
    let may = |candidate: &Candidate| matches!(candidate.verdict, Verdict::NotChosen(_));
    let only = allowed.only.as_deref().or(pins);
    for candidate in list.iter_mut() {
        let nic = candidate.nic;
        let device = machine.nic(nic);
        if allowed.exclude.contains(&nic) {
            candidate.verdict = Verdict::Excluded;
        } else if only.is_some_and(|only| !only.contains(&nic)) {
            candidate.verdict = Verdict::NotAmongThose;
        } else if !device.is_some_and(Nic::is_usable) || candidate.limit == Bandwidth::ZERO {
            candidate.verdict = Verdict::Down;
        }
    }
    let left: Vec<NicId> = list.iter().filter(|c| may(c)).map(|c| c.nic).collect();
    let is_software = |nic: NicId| machine.nic(nic).is_some_and(|nic| nic.software);
    let hardware = left.iter().any(|&nic| !is_software(nic));
    for candidate in list.iter_mut().filter(|c| may(c)) {
        let physical = machine.nic(candidate.nic).and_then(|nic| nic.physfn);
        let physical =
            left.iter().find(|&&nic| physical.is_some() && machine.nic(nic).and_then(|n| n.address) == physical);
        if let Some(&physical) = physical.filter(|_| pins.is_none()) {
            candidate.verdict = Verdict::VirtualFunctionOf(physical);
        } else if hardware && is_software(candidate.nic) && pins.is_none() {
            candidate.verdict = Verdict::Software;
        }
    }
    if pins.is_none() {
        leave_unknown_rates(machine, list);
    }
    if list.iter().any(|candidate| may(candidate) && candidate.gpu_direct) && pins.is_none() {
        for candidate in list.iter_mut().filter(|c| may(c) && !c.gpu_direct) {
            candidate.verdict = Verdict::NotDirect;
        }
    }
}

/// A NIC that neither its ports nor its own link bound would count as faster than all others: it is for those that have no
/// other.
fn leave_unknown_rates(machine: &Machine, list: &mut [Candidate]) {
    let may = |candidate: &Candidate| matches!(candidate.verdict, Verdict::NotChosen(_));
    let known = |nic: NicId| machine.links_of(nic).any(|link| !link.bandwidth.is_unlimited());
    if list.iter().any(|candidate| may(candidate) && known(candidate.nic)) {
        for candidate in list.iter_mut().filter(|candidate| may(candidate) && !known(candidate.nic)) {
            candidate.verdict = Verdict::RateUnknown;
        }
    }
}

/// The links that data passes to leave by a NIC, each with true for the direction from `a` to `b`.
/// Without GPUDirect data rests in the memory of the host in between.
fn links(machine: &Machine, path: &Path, nic: NicId, gpu_direct: bool) -> Vec<(Link, bool)> {
    let over_host = || {
        let host = machine.cpu_of(path.from)?;
        let up = machine.path(path.from, host)?;
        up.then(machine.path(host, nic)?)
    };
    let rests = path.nodes().any(|node| matches!(node, NodeId::Cpu(_)));
    let staged = if gpu_direct || rests { None } else { over_host() };
    let hops = &staged.as_ref().unwrap_or(path).hops;
    let mut links: Vec<_> = hops.iter().map(|hop| (hop.link, hop.link.b == hop.to)).collect();
    links.extend(machine.links_of(nic).filter(|link| link.b == NodeId::Network).map(|link| (*link, true)));
    links
}

/// What can be passed: lanes in a direction. Numbers are given as ways come.
#[derive(Debug, Default)]
pub(super) struct Resources {
    numbers: BTreeMap<(u32, bool), u16>,
    pub(super) capacity: Vec<u64>,
}

impl Resources {
    /// Capacities are at most this, 10 TB/s, so that sums do not overflow.
    const MOST: u64 = 10_000_000_000_000;

    /// The way of a candidate.
    pub(super) fn way(&mut self, machine: &Machine, candidate: &Candidate, home: Option<&[NicId]>) -> Way {
        let links = links(machine, &candidate.path, candidate.nic, candidate.gpu_direct);
        let last = links.len().saturating_sub(1);
        let limiting = links.iter().enumerate().filter(|(i, (link, _))| *i == last || !link.bandwidth.is_unlimited());
        let mut route: Vec<u16> = limiting.map(|(_, (link, forth))| self.number(machine, link, *forth)).collect();
        route.dedup();
        let mut over = route.clone();
        over.sort_unstable();
        over.dedup();
        let limit = over.iter().map(|&r| self.capacity[usize::from(r)]).min().unwrap_or(0);
        Way {
            nic: candidate.nic.0,
            limit,
            cost: cost(candidate),
            off_rail: home.is_some_and(|home| !home.contains(&candidate.nic)),
            over,
            route,
        }
    }

    fn number(&mut self, machine: &Machine, link: &Link, forth: bool) -> u16 {
        let next = self.capacity.len() as u16;
        let number = *self.numbers.entry((link.lanes, forth)).or_insert(next);
        if number == next {
            let same = machine.links().iter().filter(|other| other.lanes == link.lanes);
            let capacity = same.map(|link| link.bandwidth.bytes()).max().unwrap_or(0);
            self.capacity.push(capacity.min(Self::MOST));
        }
        number
    }
}
