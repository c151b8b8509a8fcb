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

/// Max-min fair rates: raise all together, and freeze those that pass what is full.
pub fn rates(flows: &[&Way]) -> Vec<u64> {
    let mut left: BTreeMap<(u32, bool), u64> = BTreeMap::new();
    flows.iter().for_each(|flow| left.extend(flow.over.iter().map(|(&r, &c)| (r, c))));
    let mut rate: Vec<Option<u64>> = vec![None; flows.len()];
    while rate.contains(&None) {
        let open = |r: &(u32, bool), rate: &[Option<u64>]| {
            flows.iter().zip(rate).filter(|(flow, rate)| rate.is_none() && flow.over.contains_key(r)).count() as u64
        };
        let shares = left.iter().map(|(r, &c)| (open(r, &rate), c, *r)).filter(|(count, ..)| *count > 0);
        let (share, full) = shares.map(|(count, c, r)| (c / count, r)).min().expect("every flow passes something");
        for (flow, rate) in flows.iter().zip(&mut rate) {
            if rate.is_none() && flow.over.contains_key(&full) {
                *rate = Some(share);
                flow.over.keys().for_each(|r| *left.get_mut(r).expect("all are there") -= share);
            }
        }
    }
    rate.into_iter().flatten().collect()
}

/// What each GPU has when each uses the NIC it was given; nothing if it was given none.
pub fn bandwidths(machine: &Machine, gpus: &[GpuId], nics: &[Option<NicId>]) -> Vec<u64> {
    let ways: Vec<Option<Way>> =
        gpus.iter().zip(nics).map(|(&gpu, nic)| nic.and_then(|nic| way(machine, gpu, None, nic))).collect();
    let flows: Vec<&Way> = ways.iter().flatten().collect();
    let mut rates = rates(&flows).into_iter();
    ways.iter().map(|way| way.as_ref().map_or(0, |_| rates.next().expect("one for each"))).collect()
}
