//! How others choose, restated as small functions: the NIC of each GPU, if any.

use std::cmp::Reverse;

use qpair_topology::{GpuId, Machine, NicId, NodeId};

pub type Method = fn(&Machine, &[GpuId]) -> Vec<Option<NicId>>;

/// All of them, by name.
pub const ALL: [(&str, Method); 4] = [("NCCL", nccl), ("UCX", ucx), ("Mooncake", mooncake), ("fabric-lib", fabric_lib)];

fn usable(machine: &Machine) -> Vec<NicId> {
    let hardware = |id: &NicId| machine.nic(*id).is_some_and(|nic| nic.is_usable() && !nic.software);
    machine.nic_ids().filter(hardware).collect()
}

/// The best bandwidth, then the nearest; GPUs take turns among equals by their number on the machine.
pub fn nccl(machine: &Machine, gpus: &[GpuId]) -> Vec<Option<NicId>> {
    let key = |gpu: GpuId, nic: NicId| {
        let path = machine.path(gpu, nic)?;
        let bandwidth = path.bandwidth.min(machine.nic(nic)?.bandwidth());
        Some((Reverse(bandwidth), path.class))
    };
    let choose = |&gpu: &GpuId| {
        let best = usable(machine).into_iter().filter_map(|nic| key(gpu, nic)).min()?;
        let equal: Vec<_> = usable(machine).into_iter().filter(|&nic| key(gpu, nic) == Some(best)).collect();
        equal.get(usize::from(gpu.0) % equal.len()).copied()
    };
    gpus.iter().map(choose).collect()
}

fn ancestors(machine: &Machine, node: impl Into<NodeId>) -> Vec<NodeId> {
    let mut list = vec![node.into()];
    while let Some(parent) = list.last().and_then(|&node| machine.parent(node)) {
        list.push(parent);
    }
    list.reverse();
    list
}

fn common(machine: &Machine, gpu: GpuId, nic: NicId) -> usize {
    let (a, b) = (ancestors(machine, gpu), ancestors(machine, nic));
    a.iter().zip(&b).take_while(|(a, b)| a == b).count()
}

/// The longest common part of the paths in sysfs; of equals the first.
pub fn ucx(machine: &Machine, gpus: &[GpuId]) -> Vec<Option<NicId>> {
    let choose =
        |&gpu: &GpuId| usable(machine).into_iter().min_by_key(|&nic| (Reverse(common(machine, gpu, nic)), nic));
    gpus.iter().map(choose).collect()
}

/// The same NUMA node, then the fewest hops; at random among equals, here by a hash of the number.
pub fn mooncake(machine: &Machine, gpus: &[GpuId]) -> Vec<Option<NicId>> {
    let key = |gpu: GpuId, nic: NicId| {
        let hops = machine.path(gpu, nic).map_or(usize::MAX, |path| path.hops.len());
        (machine.cpu_of(gpu) != machine.cpu_of(nic), hops)
    };
    let choose = |&gpu: &GpuId| {
        let best = usable(machine).into_iter().map(|nic| key(gpu, nic)).min()?;
        let equal: Vec<_> = usable(machine).into_iter().filter(|&nic| key(gpu, nic) == best).collect();
        let chance = (u64::from(gpu.0) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        equal.get(chance as usize % equal.len()).copied()
    };
    gpus.iter().map(choose).collect()
}

/// GPUs and NICs are grouped under the lowest branching ancestor that has both; in a group each GPU
/// takes the next NIC, and those for which none is left get none.
pub fn fabric_lib(machine: &Machine, gpus: &[GpuId]) -> Vec<Option<NicId>> {
    let group = |gpu: GpuId| {
        let over = ancestors(machine, gpu);
        let below = |node: &NodeId| {
            let nics = usable(machine).into_iter().filter(|&nic| ancestors(machine, nic).contains(node));
            nics.collect::<Vec<_>>()
        };
        over.iter().rev().map(|node| (*node, below(node))).find(|(_, nics)| !nics.is_empty())
    };
    let choose = |&gpu: &GpuId| {
        let (node, nics) = group(gpu)?;
        let before = gpus.iter().filter(|&&other| other < gpu && group(other).is_some_and(|g| g.0 == node)).count();
        nics.get(before).copied()
    };
    gpus.iter().map(choose).collect()
}
