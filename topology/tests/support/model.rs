//! What an assignment carries, worked out without the crate's own code: from paths, links and lanes.

use std::collections::BTreeMap;

use qpair_topology::{GpuId, Machine, NicId, NodeId, Path, PathClass};

/// A way of a GPU to a NIC.
#[derive(Clone, Debug)]
pub struct Way {
    pub nic: NicId,
    pub via: Option<GpuId>,
    pub class: PathClass,
    pub hops: usize,
    pub direct: bool,
    /// What it passes, with the capacity of each in bytes a second.
    pub over: BTreeMap<(u32, bool), u64>,
}

fn pass(machine: &Machine, path: &Path, over: &mut BTreeMap<(u32, bool), u64>) {
    for hop in &path.hops {
        if !hop.link.bandwidth.is_unlimited() {
            let same = machine.links().iter().filter(|link| link.lanes == hop.link.lanes);
            let capacity = same.map(|link| link.bandwidth.bytes()).max().expect("the link itself");
            over.insert((hop.link.lanes, hop.to == hop.link.b), capacity);
        }
    }
}

/// The way over a GPU's own path, or through a neighbour.
pub fn way(machine: &Machine, gpu: GpuId, via: Option<GpuId>, nic: NicId) -> Option<Way> {
    let path = match via {
        None => machine.path(gpu, nic)?,
        Some(neighbour) => machine.path_through(gpu, neighbour, nic)?,
    };
    let device = machine.nic(nic)?;
    let able = |gpu: GpuId| machine.gpu(gpu).is_some_and(|gpu| gpu.gpu_direct != Some(false));
    let near = machine.path(via.unwrap_or(gpu), nic)?;
    let direct = able(via.unwrap_or(gpu))
        && device.gpu_direct != Some(false)
        && !device.software
        && (near.class <= PathClass::Pxb || near.is_coherent());
    let mut over = BTreeMap::new();
    if direct || path.nodes().any(|node| matches!(node, NodeId::Cpu(_))) {
        pass(machine, &path, &mut over);
    } else {
        let host = machine.cpu_of(gpu)?;
        pass(machine, &machine.path(gpu, host)?, &mut over);
        pass(machine, &machine.path(host, nic)?, &mut over);
    }
    let port = machine.links_of(nic).find(|link| link.b == NodeId::Network)?;
    over.insert((port.lanes, true), port.bandwidth.bytes().min(10_000_000_000_000));
    Some(Way { nic, via, class: path.class, hops: path.hops.len(), direct, over })
}

/// Resources by number, for rates that are worked out very often.
#[derive(Debug, Default)]
pub struct Numbers {
    numbers: BTreeMap<(u32, bool), usize>,
    pub capacity: Vec<u64>,
}

impl Numbers {
    pub fn of(&mut self, way: &Way) -> Vec<usize> {
        let numbers = way.over.iter().map(|(&resource, &capacity)| {
            *self.numbers.entry(resource).or_insert_with(|| {
                self.capacity.push(capacity);
                self.capacity.len() - 1
            })
        });
        numbers.collect()
    }
}

/// Max-min fair rates: raise all together, and freeze those that pass what is full.
pub fn rates(flows: &[&[usize]], capacity: &[u64]) -> Vec<u64> {
    let mut left = capacity.to_vec();
    let mut open = vec![0_u64; capacity.len()];
    flows.iter().for_each(|over| over.iter().for_each(|&r| open[r] += 1));
    let mut rates: Vec<Option<u64>> = vec![None; flows.len()];
    let mut waiting = flows.len();
    while waiting > 0 {
        let mut full = (u64::MAX, 0);
        for r in 0..capacity.len() {
            if let Some(share) = left[r].checked_div(open[r]) {
                full = full.min((share, r));
            }
        }
        for (over, rate) in flows.iter().zip(&mut rates) {
            if rate.is_none() && over.contains(&full.1) {
                *rate = Some(full.0);
                waiting -= 1;
                for &r in *over {
                    left[r] -= full.0;
                    open[r] -= 1;
                }
            }
        }
    }
    rates.into_iter().flatten().collect()
}

/// What each GPU has when each uses the NIC it was given; nothing if it was given none.
pub fn bandwidths(machine: &Machine, gpus: &[GpuId], nics: &[Option<NicId>]) -> Vec<u64> {
    let ways: Vec<Option<Way>> =
        gpus.iter().zip(nics).map(|(&gpu, nic)| nic.and_then(|nic| way(machine, gpu, None, nic))).collect();
    let mut numbers = Numbers::default();
    let flows: Vec<Vec<usize>> = ways.iter().flatten().map(|way| numbers.of(way)).collect();
    let flows: Vec<&[usize]> = flows.iter().map(Vec::as_slice).collect();
    let mut rates = rates(&flows, &numbers.capacity).into_iter();
    ways.iter().map(|way| way.as_ref().map_or(0, |_| rates.next().expect("one for each"))).collect()
}
