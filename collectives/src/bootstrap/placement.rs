//! Which device a rank's connections go over, by where all ranks run.

use std::env;

use qpair_topology::{GpuId, Machine};
use qpair_transport::{Config, Near, NearError, WorkerError};

use super::message::Whereabouts;
use crate::error::BootstrapError;

/// What a rank's connections go over.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Place {
    /// The memory of the host, unless QPAIR_DEVICE names a device.
    Memory,
    /// The NICs that topology names.
    Near(Near),
}

impl Place {
    /// Settings of a worker there.
    pub(crate) fn config(self) -> Config {
        match self {
            Place::Memory if is_device_named() => Config::default(),
            Place::Memory => Config::default().device("soft0"),
            Place::Near(near) => Config::default().near(near),
        }
    }
}

/// Where a rank's connections go: memory, if all ranks are on one host; else the NICs of its GPU, where there is a GPU for
/// each rank of the host; else those of its NUMA node, which the ranks there divide among them.
pub(super) fn place(rank: u32, local_rank: u32, all: &[Whereabouts]) -> Result<Place, BootstrapError> {
    let failed = |error: NearError| BootstrapError::from(WorkerError::from(error));
    if is_device_named() || all.iter().all(|other| other.machine == all[0].machine) {
        return Ok(Place::Memory);
    }
    let machine = Machine::this().map_err(|error| failed(error.into()))?;
    let visible = VISIBLE.iter().find_map(|name| env::var(name).ok());
    let seat = seat(rank, local_rank, all, &machine, visible.as_deref());
    let rails = seat.near.placement().map_err(failed)?.rails.len();
    Ok(Place::Near(seat.part(rails)))
}

/// A rank's part of the NICs of something.
#[derive(Clone, Debug, PartialEq)]
struct Seat {
    near: Near,
    /// Which it is of the ranks that divide them.
    number: usize,
    ranks: usize,
}

impl Seat {
    /// Its part of so many rails: ranks beyond the rails begin again.
    fn part(self, rails: usize) -> Near {
        let each = (rails / self.ranks.max(1)).max(1);
        self.near.turn(self.number * each).at_most(each)
    }
}

fn seat(rank: u32, local_rank: u32, all: &[Whereabouts], machine: &Machine, visible: Option<&str>) -> Seat {
    let rank = rank as usize;
    let beside: Vec<usize> = (0..all.len()).filter(|&other| all[other].machine == all[rank].machine).collect();
    if let Some(near) = gpu(local_rank as usize, beside.len(), machine.gpus().len(), visible) {
        return Seat { near, number: 0, ranks: 1 };
    }
    let nodes: Vec<u32> = machine.cpus().iter().filter_map(|cpu| cpu.numa).collect();
    let bound = |other: usize| node_of(&all[other], machine);
    // Those that may run on all nodes are dealt out to them in turn.
    let free: Vec<usize> = beside.iter().copied().filter(|&other| bound(other).is_none()).collect();
    let dealt = |other| free.iter().position(|&one| one == other).and_then(|at| nodes.get(at % nodes.len().max(1)));
    let node = |other: usize| bound(other).or_else(|| dealt(other).copied());
    let own = node(rank);
    let sharing: Vec<usize> = beside.into_iter().filter(|&other| node(other) == own).collect();
    let number = sharing.iter().position(|&other| other == rank).unwrap_or(0);
    Seat { near: own.map_or_else(Near::thread, Near::numa), number, ranks: sharing.len() }
}

/// The GPU of a rank among so many on its host, if each has one: that of its number, as programs take it that torchrun
/// starts. `visible` lists the GPUs that the process may use; one alone is the rank's own.
fn gpu(local_rank: usize, ranks: usize, gpus: usize, visible: Option<&str>) -> Option<Near> {
    let listed: Option<Vec<usize>> = match visible {
        Some(list) => Some(list.split(',').map(|number| number.trim().parse()).collect::<Result<_, _>>().ok()?),
        None => None,
    };
    let is_there = |gpu: usize| (gpu < gpus).then_some(GpuId(gpu as u16));
    match listed.as_deref() {
        // The others' are not known: all take part.
        Some(&[own]) if ranks > 1 => Some(Near::gpu(is_there(own)?)),
        listed => {
            let number = |rank: usize| listed.map_or(Some(rank), |listed| listed.get(rank).copied()).and_then(is_there);
            let all: Option<Vec<GpuId>> = (0..ranks).map(number).collect();
            Some(Near::gpu(number(local_rank)?).among(all?))
        }
    }
}

/// The NUMA node that all cores of a rank are of.
fn node_of(rank: &Whereabouts, machine: &Machine) -> Option<u32> {
    let of = |core: u32| machine.cpus().iter().find(|cpu| cpu.cpus.contains(core)).and_then(|cpu| cpu.numa);
    let mut nodes = rank.cores.iter().map(|&core| of(core));
    let first = nodes.next()??;
    nodes.all(|node| node == Some(first)).then_some(first)
}

fn is_device_named() -> bool {
    env::var_os("QPAIR_DEVICE").is_some_and(|name| !name.is_empty())
}

/// What tells the GPUs that a process may use, in the order in which it counts them.
const VISIBLE: [&str; 3] = ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"];

#[cfg(test)]
mod tests {
    use qpair_topology::{Cpu, Gpu, Parent, PciAddress};

    use super::*;

    /// Two nodes of four cores.
    fn machine(gpus: u8) -> Machine {
        let mut machine = Machine::builder();
        for numa in 0..2_u32 {
            machine.cpu(Cpu { cpus: (numa * 4..numa * 4 + 4).collect(), ..Cpu::numa(numa) });
        }
        for gpu in 0..gpus {
            machine.gpu(Gpu::at(PciAddress::new(0, 1, gpu, 0), Parent::Numa(0)));
        }
        machine.build()
    }

    fn rank(machine: &str, cores: impl IntoIterator<Item = u32>) -> Whereabouts {
        Whereabouts { host: machine.into(), machine: machine.into(), cores: cores.into_iter().collect() }
    }

    #[test]
    fn ranks_of_one_host_go_over_its_memory() {
        let all = vec![rank("a", 0..4); 3];
        assert_eq!(place(1, 1, &all).unwrap(), Place::Memory);
    }

    #[test]
    fn ranks_divide_the_nics_of_the_node_that_they_are_bound_to() {
        let machine = machine(0);
        // Two hosts; on the second, two ranks at each node, and not in the order of nodes.
        let all = [rank("a", 0..8), rank("b", [0]), rank("b", [5, 6]), rank("b", 2..4), rank("b", [7])];
        let seats: Vec<_> = (1..5).map(|of| seat(of, of - 1, &all, &machine, None)).collect();
        let expected = [(0, 0), (1, 0), (0, 1), (1, 1)];
        assert_eq!(seats, expected.map(|(node, number)| Seat { near: Near::numa(node), number, ranks: 2 }));
        let part = |number| Seat { near: Near::numa(0), number, ranks: 2 }.part(4);
        assert_eq!([part(0), part(1)], [0, 2].map(|turn| Near::numa(0).turn(turn).at_most(2)));
        // Three that share two rails have one each, and the third begins again.
        let part = |number| Seat { near: Near::numa(0), number, ranks: 3 }.part(2);
        assert_eq!([part(0), part(1), part(2)], [0, 1, 2].map(|turn| Near::numa(0).turn(turn).at_most(1)));
    }

    #[test]
    fn ranks_that_are_bound_to_nothing_are_dealt_out_to_the_nodes() {
        let machine = machine(0);
        let all = [rank("b", 0..8), rank("b", 0..8), rank("b", 0..8), rank("b", 4..6), rank("a", 0..8)];
        let seats: Vec<_> = (0..4).map(|of| seat(of, of, &all, &machine, None)).collect();
        let expected = [(0, 0, 2), (1, 0, 2), (0, 1, 2), (1, 1, 2)];
        assert_eq!(seats, expected.map(|(node, number, ranks)| Seat { near: Near::numa(node), number, ranks }));
        // Nothing is known of the host's nodes.
        let unknown = seat(1, 1, &all, &Machine::builder().build(), None);
        assert_eq!(unknown, Seat { near: Near::thread(), number: 1, ranks: 4 });
    }

    #[test]
    fn a_rank_has_the_gpu_of_its_number_where_there_are_enough() {
        let all = [rank("a", 0..8), rank("b", 0..8), rank("b", 0..8)];
        let near = |gpus, local_rank, visible| seat(local_rank + 1, local_rank, &all, &machine(gpus), visible).near;
        let pair = [GpuId(0), GpuId(1)];
        assert_eq!(near(4, 1, None), Near::gpu(GpuId(1)).among(pair));
        assert_eq!(near(4, 0, Some("2, 3")), Near::gpu(GpuId(2)).among([GpuId(2), GpuId(3)]));
        // Each process sees its own alone.
        assert_eq!(near(4, 1, Some("3")), Near::gpu(GpuId(3)));
        for (gpus, visible) in [(1, None), (4, Some("")), (4, Some("GPU-5a1b")), (4, Some("0,4")), (0, Some("0"))] {
            assert_eq!(near(gpus, 1, visible), Near::numa(1), "{gpus} {visible:?}");
        }
    }
}
