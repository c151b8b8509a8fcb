//! Islands: parts of a machine that reach each other better than they reach others.

use std::ops::RangeInclusive;

use super::{Path, PathClass};
use crate::Bandwidth;
use crate::model::{CpuId, GpuId, Machine, NodeId};

/// Parts that reach each other better than others of their kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Island<T> {
    /// Its members, in order.
    pub members: Vec<T>,
    /// The farthest way between two of them; [`PathClass::Loc`] of one alone.
    pub class: PathClass,
    /// What passes in one direction from it to the island that it reaches worst; unlimited where there is no other.
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

    /// The NUMA nodes, parted by sockets.
    pub fn cpu_islands(&self) -> Vec<Island<CpuId>> {
        let known = self.cpu_ids().filter(|&id| self.cpu(id).is_some_and(|cpu| cpu.numa.is_some()));
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
        // Of the ways to another island the widest counts.
        let widest = |one: &[usize], other: &[usize]| {
            let pairs = one.iter().flat_map(|&a| other.iter().map(move |&b| (a, b)));
            pairs.filter_map(|(a, b)| paths[a][b].as_ref()).map(|path| path.bandwidth).max().unwrap_or(Bandwidth::ZERO)
        };
        let outside = |island: &Vec<usize>| {
            let others = islands.iter().filter(|&other| other != island);
            others.map(|other| widest(island, other)).min().unwrap_or(Bandwidth::UNLIMITED)
        };
        let made = islands.iter().map(|island| Island {
            members: island.iter().map(|&part| parts[part]).collect(),
            class: farthest(island),
            outside: outside(island),
        });
        made.collect()
    }
}
