//! Islands: parts of a machine that reach each other better than they reach others.

use std::ops::RangeInclusive;

use super::{Path, PathClass};
use crate::Bandwidth;
use crate::model::{CpuId, GpuId, Link, Machine, NodeId};

/// Parts that reach each other better than others of their kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Island<T> {
    /// Its members, in order.
    pub members: Vec<T>,
    /// The farthest way between two of them; [`PathClass::Loc`] of one alone.
    pub class: PathClass,
    /// What passes in one direction from all its members at once to the island that they reach worst, a way for each;
    /// unlimited where there is no other.
    pub outside: Bandwidth,
}

impl Machine {
    /// The GPUs, parted into islands whose members all reach each other best: over links of GPUs where there are any, else
    /// below the same PCIe switches, else the same host bridge, else the same socket. Where that makes no difference, they are
    /// one island.
    ///
    /// ```
    /// use qpair_topology::{Cpu, Gpu, GpuId, Machine, Parent};
    ///
    /// let mut machine = Machine::builder();
    /// machine.cpu(Cpu { package: Some(0), ..Cpu::numa(0) }).cpu(Cpu { package: Some(1), ..Cpu::numa(1) });
    /// for (bus, numa) in [(1, 0), (2, 1), (3, 0), (4, 1)] {
    ///     machine.gpu(Gpu::at(format!("0000:{bus:02x}:00.0").parse()?, Parent::Numa(numa)));
    /// }
    /// let islands = machine.build().gpu_islands();
    /// assert_eq!(islands[1].members, [GpuId(1), GpuId(3)]);
    /// # Ok::<(), qpair_topology::ParsePciAddressError>(())
    /// ```
    pub fn gpu_islands(&self) -> Vec<Island<GpuId>> {
        self.islands(self.gpu_ids().collect(), PathClass::Nvl..=PathClass::Sys)
    }

    /// The NUMA nodes that have processors, parted by sockets. One whose socket is not known is an island by itself; the node for
    /// what has no known place is none.
    ///
    /// ```
    /// use qpair_topology::{Cpu, CpuId, Machine};
    ///
    /// let mut machine = Machine::builder();
    /// for numa in 0..4 {
    ///     machine.cpu(Cpu { cpus: [numa].into_iter().collect(), package: Some(numa / 2), ..Cpu::numa(numa) });
    /// }
    /// let islands = machine.build().cpu_islands();
    /// assert_eq!(islands[1].members, [CpuId(2), CpuId(3)]);
    /// ```
    pub fn cpu_islands(&self) -> Vec<Island<CpuId>> {
        let has_processors = |id| self.cpu(id).is_some_and(|cpu| cpu.numa.is_some() && !cpu.cpus.is_empty());
        let known = self.cpu_ids().filter(|&id| has_processors(id));
        self.islands(known.collect(), PathClass::Node..=PathClass::Node)
    }

    /// By the nearest of `classes` at which any two reach each other; each alone where none do.
    fn islands<T: Copy + Into<NodeId>>(&self, parts: Vec<T>, classes: RangeInclusive<PathClass>) -> Vec<Island<T>> {
        let paths: Vec<Vec<Option<Path>>> =
            parts.iter().map(|&from| parts.iter().map(|&to| self.path(from, to)).collect()).collect();
        let within =
            |class: PathClass, a: usize, b: usize| paths[a][b].as_ref().is_some_and(|path| path.class <= class);
        let any = |class: PathClass| (0..parts.len()).any(|a| (0..a).any(|b| within(class, a, b)));
        let class = PathClass::ALL.into_iter().filter(|class| classes.contains(class)).find(|&class| any(class));
        // Each goes to the first whose members all are so near.
        let mut islands: Vec<Vec<usize>> = Vec::new();
        for part in 0..parts.len() {
            let fits =
                |island: &&mut Vec<usize>| island.iter().all(|&other| class.is_some_and(|c| within(c, part, other)));
            match islands.iter_mut().find(fits) {
                Some(island) => island.push(part),
                None => islands.push(vec![part]),
            }
        }
        let farthest = |island: &[usize]| {
            let pairs = island.iter().flat_map(|&a| island.iter().map(move |&b| (a, b)));
            pairs.filter_map(|(a, b)| paths[a][b].as_ref()).map(|path| path.class).max().unwrap_or(PathClass::Loc)
        };
        let outside = |island: &Vec<usize>| {
            let others = islands.iter().filter(|&other| other != island);
            others.map(|other| carried(&paths, island, other)).min().unwrap_or(Bandwidth::UNLIMITED)
        };
        let made = islands.iter().map(|island| Island {
            members: island.iter().map(|&part| parts[part]).collect(),
            class: farthest(island),
            outside: outside(island),
        });
        made.collect()
    }
}

/// What passes from all members of an island to another, each by the way that has most left of what those before it took.
fn carried(paths: &[Vec<Option<Path>>], island: &[usize], other: &[usize]) -> Bandwidth {
    let mut taken: Vec<(Link, Bandwidth)> = Vec::new();
    let mut total = Bandwidth::ZERO;
    for &member in island {
        let left =
            |path: &Path| path.hops.iter().map(|hop| left_of(&hop.link, &taken)).min().unwrap_or(Bandwidth::ZERO);
        let ways = other.iter().filter_map(|&to| paths[member][to].as_ref());
        let Some((flow, path)) = ways.map(|path| (left(path), path)).max_by_key(|(flow, _)| *flow) else { continue };
        taken.extend(path.hops.iter().map(|hop| (hop.link, flow)));
        total = total + flow;
    }
    total
}

/// What is left of a link: what passes over any with its lanes counts, as they are one in metal.
fn left_of(link: &Link, taken: &[(Link, Bandwidth)]) -> Bandwidth {
    taken.iter().filter(|(other, _)| other.lanes == link.lanes).fold(link.bandwidth, |left, (_, flow)| left - *flow)
}
