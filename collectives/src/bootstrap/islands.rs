//! On which island of its machine a rank is: of sockets, and of GPUs that reach each other best.

use qpair_topology::{Bandwidth, CpuId, Island, Machine, PciAddress};
use serde::{Deserialize, Serialize};

use super::message::Whereabouts;
use super::seating::touched;

/// The one of several islands of its machine that a rank is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct OwnIsland {
    /// The PCI address of its first GPU, or the number of its first NUMA node: the same in all processes that see the whole.
    pub(crate) number: u64,
    /// Bytes per second that pass to the others, each way, as far as topology tells.
    pub(crate) outside: Option<u64>,
}

impl Whereabouts {
    /// With what topology says of its cores and its GPU.
    pub(crate) fn on_islands(self) -> Self {
        let machine = if self.gpu.is_some() { Machine::this() } else { Machine::this_without_driver() };
        match machine {
            Ok(machine) => self.on_islands_of(&machine),
            // Who needs it to find a NIC tells of the fault.
            Err(_) => self,
        }
    }

    fn on_islands_of(self, machine: &Machine) -> Self {
        let cpu_island = of_nodes(&touched(&self, machine), machine);
        let gpu_island = self.gpu.and_then(|gpu| of_gpu(gpu, machine));
        Self { cpu_island, gpu_island, ..self }
    }
}

/// The socket that those NUMA nodes are of; `None` if they are of several, or there is one alone.
fn of_nodes(nodes: &[u32], machine: &Machine) -> Option<OwnIsland> {
    let islands = machine.cpu_islands();
    let numa = |&node: &CpuId| machine.cpu(node)?.numa;
    let touched = |island: &&Island<CpuId>| island.members.iter().filter_map(numa).any(|numa| nodes.contains(&numa));
    let mut all = islands.iter().filter(touched);
    let (island, None) = (all.next()?, all.next()) else { return None };
    let first = island.members.first().and_then(numa)?;
    one_of(u64::from(first), islands.len(), island.outside)
}

/// The island of a GPU; `None` if there is one alone.
fn of_gpu(gpu: PciAddress, machine: &Machine) -> Option<OwnIsland> {
    let (gpu, islands) = (machine.gpu_at(gpu)?, machine.gpu_islands());
    let island = islands.iter().find(|island| island.members.contains(&gpu))?;
    let PciAddress { domain, bus, device, function } = machine.gpu(*island.members.first()?)?.address;
    let first = u64::from(domain) << 16 | u64::from(bus) << 8 | u64::from(device) << 3 | u64::from(function);
    one_of(first, islands.len(), island.outside)
}

fn one_of(number: u64, islands: usize, outside: Bandwidth) -> Option<OwnIsland> {
    let known = !outside.is_unlimited() && outside > Bandwidth::ZERO;
    (islands > 1).then(|| OwnIsland { number, outside: known.then(|| outside.bytes()) })
}

#[cfg(test)]
mod tests {
    use qpair_topology::{Cpu, Gpu, Parent};

    use super::super::whereabouts;
    use super::*;

    /// Two sockets of two NUMA nodes with four cores each; a GPU at each node.
    fn machine() -> Machine {
        let mut machine = Machine::builder();
        for numa in 0..4_u32 {
            let cpus = (numa * 4..numa * 4 + 4).collect();
            machine.cpu(Cpu { cpus, package: Some(numa / 2), ..Cpu::numa(numa) });
            machine.gpu(Gpu::at(PciAddress::new(0, 1 + numa as u8, 0, 0), Parent::Numa(numa)));
        }
        machine.build()
    }

    fn at(cores: &str, gpu: Option<u8>) -> [Option<u64>; 2] {
        let gpu = gpu.map(|bus| PciAddress::new(0, bus, 0, 0));
        let rank = Whereabouts { cores: cores.parse().unwrap(), gpu, ..whereabouts() }.on_islands_of(&machine());
        assert!([rank.cpu_island, rank.gpu_island].iter().flatten().all(|island| island.outside.is_some()));
        [rank.cpu_island, rank.gpu_island].map(|island| island.map(|island| island.number))
    }

    #[test]
    fn ranks_are_on_the_islands_of_their_cores_and_gpus() {
        assert_eq!(at("0-7", None), [Some(0), None]);
        assert_eq!(at("9,14", Some(1)), [Some(2), Some(0x100)]);
        assert_eq!(at("3", Some(4)), [Some(0), Some(0x300)]);
        // It may run anywhere; a GPU that is not there; cores that are none's.
        assert_eq!(at("7-8", Some(9)), [None, None]);
        assert_eq!(at("99", None), [None, None]);
    }

    #[test]
    fn one_island_is_none() {
        let mut small = Machine::builder();
        small.cpu(Cpu { cpus: (0..2).collect(), ..Cpu::numa(0) });
        small.gpu(Gpu::at(PciAddress::new(0, 1, 0, 0), Parent::Numa(0)));
        let rank =
            Whereabouts { gpu: Some(PciAddress::new(0, 1, 0, 0)), ..whereabouts() }.on_islands_of(&small.build());
        assert_eq!((rank.cpu_island, rank.gpu_island), (None, None));
    }
}
