//! Which device a rank's connections go over, by where all ranks run.

use std::env;

use qpair_topology::{GpuId, Machine, PciAddress};
use qpair_transport::{Near, NearError, WorkerError};

use super::message::Whereabouts;
use crate::error::BootstrapError;

/// What a rank's connections are near to: memory, if all ranks are on one host; else its GPU, unless it is bound to another
/// NUMA node than that; else its part of the NUMA node that it is bound to, or dealt to.
pub(super) fn seating(rank: u32, all: &[Whereabouts]) -> Result<Near, BootstrapError> {
    if all.iter().all(|other| other.machine == all[0].machine) {
        return Ok(Near::software());
    }
    let has_gpus = all.iter().any(|rank| rank.gpu.is_some());
    let machine = if has_gpus { Machine::this() } else { Machine::this_without_driver() };
    let machine = machine.map_err(|error| WorkerError::from(NearError::from(error)))?;
    Ok(seat(rank as usize, all, &machine))
}

/// The GPU that a process uses which torchrun or another launcher gave that number on its host, as programs take it: of those
/// that it may use, the one of its number, or the only one. Without a number, the only one.
pub(super) fn own_gpu(local_rank: Option<u32>) -> Option<PciAddress> {
    let has_some = Machine::this_without_driver().is_ok_and(|machine| !machine.gpus().is_empty());
    if !has_some {
        return None;
    }
    gpu_of(local_rank.map(|rank| rank as usize), all_gpus()?, |name| env::var(name).ok())
}

/// True if a rank of the same node has a GPU that this process does not see, as far as the environment tells: it can not map that
/// one's memory.
pub(super) fn misses_gpus(rank: u32, all: &[Whereabouts]) -> bool {
    let Some(own) = all.get(rank as usize) else { return false };
    let others = all.iter().filter(|other| other.node == own.node).filter_map(|other| other.gpu);
    let mut others = others.filter(|&gpu| own.gpu.is_some_and(|own| own != gpu)).peekable();
    // Not asked for nothing.
    let seen = others.peek().and_then(|_| seen_of(all_gpus()?, |name| env::var(name).ok()));
    seen.is_some_and(|seen| others.any(|gpu| !seen.contains(&gpu)))
}

/// The GPUs of this machine, in the order in which they are numbered.
fn all_gpus() -> Option<Vec<PciAddress>> {
    Some(Machine::this().ok()?.gpus().iter().map(|gpu| gpu.address).collect())
}

fn gpu_of(
    local_rank: Option<usize>,
    gpus: Vec<PciAddress>,
    variable: impl Fn(&'static str) -> Option<String>,
) -> Option<PciAddress> {
    let gpus = seen_of(gpus, variable)?;
    match gpus[..] {
        [only] => Some(only),
        _ => gpus.get(local_rank?).copied(),
    }
}

/// Those of all GPUs that a process with these variables sees; `None` if they are not understood.
fn seen_of(mut gpus: Vec<PciAddress>, variable: impl Fn(&'static str) -> Option<String>) -> Option<Vec<PciAddress>> {
    // Each counts within what the one before leaves.
    for list in VISIBLE.iter().filter_map(|names| names.iter().find_map(|&name| variable(name))) {
        let numbers: Result<Vec<usize>, _> = list.split(',').map(|number| number.trim().parse::<usize>()).collect();
        // By their UUIDs, for instance, which are not known here.
        gpus = numbers.ok()?.into_iter().map(|number| gpus.get(number).copied()).collect::<Option<_>>()?;
    }
    Some(gpus)
}

/// What tells the GPUs that a process may use; of each line the first that is set.
const VISIBLE: [&[&str]; 2] = [&["ROCR_VISIBLE_DEVICES"], &["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"]];

fn seat(rank: usize, all: &[Whereabouts], machine: &Machine) -> Near {
    let beside: Vec<usize> = (0..all.len()).filter(|&other| all[other].machine == all[rank].machine).collect();
    let gpu = |other: usize| all[other].gpu.filter(|&gpu| uses_gpu(&all[other], gpu, machine));
    let share = |near: Near, sharing: Vec<usize>| {
        near.share(sharing.iter().position(|&other| other == rank).unwrap_or(0), sharing.len())
    };
    if let Some(own) = gpu(rank) {
        let sharing = beside.iter().copied().filter(|&other| gpu(other) == Some(own)).collect();
        let at_work: Vec<GpuId> = beside.iter().filter_map(|&other| machine.gpu_at(gpu(other)?)).collect();
        return share(Near::gpu_at(own).among(at_work), sharing);
    }
    let others: Vec<usize> = beside.into_iter().filter(|&other| gpu(other).is_none()).collect();
    let dealt = deal(&others, all, machine);
    let own = dealt.iter().find(|(other, _)| *other == rank).and_then(|(_, node)| *node);
    let sharing = dealt.iter().filter(|(_, node)| *node == own).map(|(other, _)| *other).collect();
    let mut nodes: Vec<u32> = dealt.iter().filter_map(|(_, node)| *node).collect();
    nodes.sort_unstable();
    nodes.dedup();
    share(own.map_or_else(Near::thread, |node| Near::numa(node).among_nodes(nodes)), sharing)
}

/// True if a rank's NICs are to be those of that GPU: its data, which is in the memory of the host, is near it.
fn uses_gpu(rank: &Whereabouts, gpu: PciAddress, machine: &Machine) -> bool {
    let Some(id) = machine.gpu_at(gpu) else { return false };
    let node = machine.cpu_of(id).and_then(|cpu| machine.cpu(cpu)).and_then(|cpu| cpu.numa);
    let touched = touched(rank, machine);
    touched.is_empty() || node.is_none_or(|node| touched.contains(&node))
}

/// A NUMA node for each rank: one whose cores it may run on, of several the one with fewest ranks, first for those that have
/// no choice. `None` where no node is known.
fn deal(ranks: &[usize], all: &[Whereabouts], machine: &Machine) -> Vec<(usize, Option<u32>)> {
    let known: Vec<u32> = machine.cpus().iter().filter_map(|cpu| cpu.numa).collect();
    let choices = |rank: usize| Some(touched(&all[rank], machine)).filter(|touched| !touched.is_empty());
    let mut dealt: Vec<(usize, Option<u32>)> = ranks.iter().map(|&rank| (rank, None)).collect();
    let mut order: Vec<(usize, Vec<u32>)> =
        ranks.iter().enumerate().map(|(at, &rank)| (at, choices(rank).unwrap_or_else(|| known.clone()))).collect();
    order.sort_by_key(|(at, nodes)| (nodes.len(), *at));
    for (at, nodes) in order {
        let load = |node: u32| dealt.iter().filter(|(_, dealt)| *dealt == Some(node)).count();
        dealt[at].1 = nodes.into_iter().min_by_key(|&node| (load(node), node));
    }
    dealt
}

/// The NUMA nodes that a rank may run on.
pub(super) fn touched(rank: &Whereabouts, machine: &Machine) -> Vec<u32> {
    let touched = machine.cpus().iter().filter(|node| node.cpus.iter().any(|cpu| rank.cores.contains(cpu)));
    touched.filter_map(|node| node.numa).collect()
}

#[cfg(test)]
mod tests {
    use qpair_topology::{Cpu, Gpu, Parent};

    use super::super::whereabouts;
    use super::*;

    /// Four nodes of four cores; GPUs on the first.
    fn machine(gpus: u8) -> Machine {
        let mut machine = Machine::builder();
        for numa in 0..4_u32 {
            machine.cpu(Cpu { cpus: (numa * 4..numa * 4 + 4).collect(), ..Cpu::numa(numa) });
        }
        for gpu in 0..gpus {
            machine.gpu(Gpu::at(at(gpu), Parent::Numa(0)));
        }
        machine.build()
    }

    fn at(gpu: u8) -> PciAddress {
        PciAddress::new(0, 1, gpu, 0)
    }

    fn rank(machine: &str, cores: &str) -> Whereabouts {
        let cores = cores.parse().unwrap();
        Whereabouts { host: machine.into(), machine: machine.into(), node: machine.into(), cores, ..whereabouts() }
    }

    fn numa(node: u32, nodes: &[u32], number: usize, ranks: usize) -> Near {
        Near::numa(node).among_nodes(nodes.iter().copied()).share(number, ranks)
    }

    #[test]
    fn ranks_of_one_host_go_over_its_memory() {
        let all = vec![rank("a", "0-3"); 3];
        assert_eq!(seating(1, &all).unwrap(), Near::software());
    }

    #[test]
    fn ranks_divide_the_nics_of_the_node_that_they_are_bound_to() {
        let machine = machine(0);
        // Two hosts; on the second, two ranks at each of two nodes, and not in the order of nodes.
        let all = [rank("a", "0-15"), rank("b", "0"), rank("b", "5-6"), rank("b", "2-3"), rank("b", "7")];
        let seats = [1, 2, 3, 4].map(|of| seat(of, &all, &machine));
        assert_eq!(seats, [(0, 0), (1, 0), (0, 1), (1, 1)].map(|(node, number)| numa(node, &[0, 1], number, 2)));
    }

    #[test]
    fn ranks_that_may_run_on_several_nodes_are_dealt_out_to_those() {
        let machine = machine(0);
        // Bound to sockets of two nodes each: neither gets a node of the other socket.
        let all = [rank("a", "0"), rank("b", "0-7"), rank("b", "8-15")];
        assert_eq!([1, 2].map(|of| seat(of, &all, &machine)), [numa(0, &[0, 2], 0, 1), numa(2, &[0, 2], 0, 1)]);
        // One that is bound to a node goes first, and the others to where fewer are.
        let all = [rank("a", "0"), rank("b", "0-7"), rank("b", "0-7"), rank("b", "1")];
        let seats = [1, 2, 3].map(|of| seat(of, &all, &machine));
        assert_eq!(seats, [numa(1, &[0, 1], 0, 1), numa(0, &[0, 1], 0, 2), numa(0, &[0, 1], 1, 2)]);
        // Nothing is known of the host's nodes.
        let unknown = seat(1, &all, &Machine::builder().build());
        assert_eq!(unknown, Near::thread().share(0, 3));
    }

    #[test]
    fn a_rank_has_the_nics_of_its_gpu_unless_it_is_bound_elsewhere() {
        let machine = machine(4);
        let with = |cores: &str, gpu: u8| Whereabouts { gpu: Some(at(gpu)), ..rank("b", cores) };
        let gpu = |own: u8, among: &[u16], number, ranks| {
            Near::gpu_at(at(own)).among(among.iter().map(|&id| GpuId(id))).share(number, ranks)
        };
        let all = [with("0-15", 1), rank("a", "0"), with("0-3", 3)];
        assert_eq!([seat(0, &all, &machine), seat(2, &all, &machine)], [gpu(1, &[1, 3], 0, 1), gpu(3, &[1, 3], 0, 1)]);
        // Two share one, and divide its NICs.
        let all = [with("0-15", 1), rank("a", "0"), with("0-3", 1)];
        assert_eq!(seat(2, &all, &machine), gpu(1, &[1, 1], 1, 2));
        // One runs on another node, whose memory its data is in; one has a GPU that is not seen here.
        let all = [with("4-7", 1), rank("a", "0"), Whereabouts { gpu: Some(at(9)), ..rank("b", "0") }];
        assert_eq!(
            [seat(0, &all, &machine), seat(2, &all, &machine)],
            [numa(1, &[0, 1], 0, 1), numa(0, &[0, 1], 0, 1)]
        );
    }

    #[test]
    fn a_process_has_the_gpu_that_its_variables_say() {
        let of = |local_rank, gpus: u8, variables: &'static [(&str, &str)]| {
            let gpus = (0..gpus).map(at).collect();
            gpu_of(Some(local_rank), gpus, |name| {
                variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(of(1, 4, &[]), Some(at(1)));
        assert_eq!(of(0, 4, &[("CUDA_VISIBLE_DEVICES", "2, 3")]), Some(at(2)));
        // Each process sees its own alone, whatever its number.
        assert_eq!(of(3, 4, &[("CUDA_VISIBLE_DEVICES", "3")]), Some(at(3)));
        assert_eq!(of(3, 1, &[]), Some(at(0)));
        let both = &[("HIP_VISIBLE_DEVICES", "1"), ("ROCR_VISIBLE_DEVICES", "2,3")];
        assert_eq!(of(0, 4, both), Some(at(3)));
        for list in ["", "GPU-5a1b", "0,4", "-1"] {
            let of =
                gpu_of(Some(0), (0..4).map(at).collect(), |name| (name == "CUDA_VISIBLE_DEVICES").then(|| list.into()));
            assert_eq!(of, None, "{list}");
        }
        assert_eq!(of(4, 4, &[]), None);
        // Its number is not known.
        assert_eq!(gpu_of(None, vec![at(0), at(1)], |_| None), None);
    }
}
