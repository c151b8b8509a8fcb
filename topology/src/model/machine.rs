//! The graph that a description becomes.

use super::builder::{Description, MachineBuilder};
use super::node::{CpuId, GpuId, Link, NicId, NodeId, Warning};
use super::parts::{Bridge, BridgeRole, Cpu, Gpu, GpuVendor, HostBridge, Nic, NvSwitch};
use crate::PciAddress;

/// A machine: a graph of NUMA nodes, PCI bridges, GPUs, NICs and what joins them.
///
/// Everything in it stands in one order, by address, number and name. Two processes that read the
/// same machine, in whatever order, have the same graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    pub(super) parts: Description,
    pub(super) cpus: Vec<Cpu>,
    pub(super) host_bridges: Vec<HostBridge>,
    pub(super) bridges: Vec<Bridge>,
    pub(super) gpus: Vec<Gpu>,
    pub(super) nics: Vec<Nic>,
    pub(super) nv_switch: Option<NvSwitch>,
    pub(super) links: Vec<Link>,
    /// For each node, by [`Machine::index`], the links it has.
    pub(super) adjacent: Vec<Vec<u32>>,
    pub(super) warnings: Vec<Warning>,
}

impl Machine {
    /// A builder with nothing in it.
    pub fn builder() -> MachineBuilder {
        MachineBuilder::default()
    }

    /// The parts that it was made of, in order, without those that were passed over.
    pub fn description(&self) -> &Description {
        &self.parts
    }

    /// What it is called, if anything.
    pub fn name(&self) -> Option<&str> {
        self.parts.name.as_deref()
    }

    /// What was passed over when it was read and built.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// The NUMA nodes; [`CpuId`] numbers them.
    pub fn cpus(&self) -> &[Cpu] {
        &self.cpus
    }

    /// The host bridges, each with the NUMA node that was found for it.
    pub fn host_bridges(&self) -> &[HostBridge] {
        &self.host_bridges
    }

    /// The bridges, each with the role that was found for it.
    pub fn bridges(&self) -> &[Bridge] {
        &self.bridges
    }

    /// The GPUs; [`GpuId`] numbers them.
    pub fn gpus(&self) -> &[Gpu] {
        &self.gpus
    }

    /// The RDMA devices; [`NicId`] numbers them. Software devices come last.
    pub fn nics(&self) -> &[Nic] {
        &self.nics
    }

    /// The NVSwitches, if there are any.
    pub fn nv_switch(&self) -> Option<&NvSwitch> {
        self.nv_switch.as_ref()
    }

    /// All links.
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// All nodes, in order.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        (0..self.node_count()).filter_map(|index| self.node(index))
    }

    /// The links of a node; none of a node that the machine does not have.
    pub fn links_of(&self, node: impl Into<NodeId>) -> impl Iterator<Item = &Link> + '_ {
        let links = self.index(node.into()).map(|index| self.adjacent[index].as_slice()).unwrap_or_default();
        links.iter().map(|&link| &self.links[link as usize])
    }

    /// The GPU with this number.
    pub fn gpu(&self, id: GpuId) -> Option<&Gpu> {
        self.gpus.get(usize::from(id.0))
    }

    /// The NIC with this number.
    pub fn nic(&self, id: NicId) -> Option<&Nic> {
        self.nics.get(usize::from(id.0))
    }

    /// The NUMA node with this number in the order of nodes.
    pub fn cpu(&self, id: CpuId) -> Option<&Cpu> {
        self.cpus.get(usize::from(id.0))
    }

    /// Each GPU's number.
    pub fn gpu_ids(&self) -> impl DoubleEndedIterator<Item = GpuId> + use<> {
        (0..self.gpus.len() as u16).map(GpuId)
    }

    /// Each NIC's number.
    pub fn nic_ids(&self) -> impl DoubleEndedIterator<Item = NicId> + use<> {
        (0..self.nics.len() as u16).map(NicId)
    }

    /// Each NUMA node's place.
    pub fn cpu_ids(&self) -> impl DoubleEndedIterator<Item = CpuId> + use<> {
        (0..self.cpus.len() as u16).map(CpuId)
    }

    /// The GPU at an address. Of a GPU of AMD that is divided into partitions, run-time libraries give
    /// each another function: all of them are the GPU here.
    pub fn gpu_at(&self, address: PciAddress) -> Option<GpuId> {
        let at = |address| self.gpu_ids().find(|&id| self.gpus[usize::from(id.0)].address == address);
        let whole = || at(PciAddress { function: 0, ..address });
        at(address).or_else(|| whole().filter(|&id| self.gpu(id).is_some_and(|gpu| gpu.vendor == GpuVendor::Amd)))
    }

    /// The NIC with this name.
    pub fn nic_named(&self, name: &str) -> Option<NicId> {
        self.nic_ids().find(|&id| self.nics[usize::from(id.0)].name == name)
    }

    /// The place of the NUMA node that Linux gives this number.
    pub fn cpu_numa(&self, numa: u32) -> Option<CpuId> {
        self.cpu_ids().find(|&id| self.cpus[usize::from(id.0)].numa == Some(numa))
    }

    /// The NUMA node that a node of the graph hangs under; of a NUMA node, itself.
    pub fn cpu_of(&self, node: impl Into<NodeId>) -> Option<CpuId> {
        let mut node = node.into();
        // Bridges are trees of a limited depth, so this ends.
        loop {
            match node {
                NodeId::Cpu(id) => return self.cpu(id).map(|_| id),
                NodeId::NvSwitch | NodeId::Network => return None,
                _ => node = self.parent(node)?,
            }
        }
    }

    /// The node that a device, bridge or host bridge hangs under.
    pub fn parent(&self, node: impl Into<NodeId>) -> Option<NodeId> {
        let node = node.into();
        self.links_of(node).find(|link| link.b == node && link.is_towards_host()).map(|link| link.a)
    }

    /// A short name for people: `GPU 0`, `mlx5_0`, `NUMA 1`, `switch 0000:17:00.0`.
    pub fn label(&self, node: impl Into<NodeId>) -> String {
        let node = node.into();
        let known = match node {
            NodeId::Cpu(id) => self.cpu(id).map(Cpu::label),
            NodeId::HostBridge(i) => {
                self.host_bridges.get(usize::from(i)).map(|h| format!("pci{:04x}:{:02x}", h.domain, h.bus))
            }
            NodeId::Bridge(i) => self.bridges.get(usize::from(i)).map(|bridge| {
                let what = match bridge.role {
                    BridgeRole::RootPort => "root port",
                    BridgeRole::Switch => "switch",
                    BridgeRole::DownstreamPort => "port",
                    BridgeRole::Unknown => "bridge",
                };
                format!("{what} {}", bridge.address)
            }),
            NodeId::Gpu(id) => self.gpu(id).map(|_| format!("GPU {}", id.0)),
            NodeId::Nic(id) => self.nic(id).map(|nic| nic.name.clone()),
            NodeId::NvSwitch => Some("NVSwitch".to_owned()),
            NodeId::Network => Some("network".to_owned()),
        };
        known.unwrap_or_else(|| format!("{node:?}"))
    }

    pub(crate) fn node_count(&self) -> usize {
        self.cpus.len() + self.host_bridges.len() + self.bridges.len() + self.gpus.len() + self.nics.len() + 2
    }

    /// The place of a node among all; `None` if the machine does not have it.
    pub(crate) fn index(&self, node: NodeId) -> Option<usize> {
        let within = |place: u16, length: usize| Some(usize::from(place)).filter(|&place| place < length);
        let bridges = self.cpus.len() + self.host_bridges.len();
        let gpus = bridges + self.bridges.len();
        let nics = gpus + self.gpus.len();
        match node {
            NodeId::Cpu(id) => within(id.0, self.cpus.len()),
            NodeId::HostBridge(i) => within(i, self.host_bridges.len()).map(|i| i + self.cpus.len()),
            NodeId::Bridge(i) => within(i, self.bridges.len()).map(|i| i + bridges),
            NodeId::Gpu(id) => within(id.0, self.gpus.len()).map(|i| i + gpus),
            NodeId::Nic(id) => within(id.0, self.nics.len()).map(|i| i + nics),
            NodeId::NvSwitch => self.nv_switch.as_ref().map(|_| nics + self.nics.len()),
            NodeId::Network => (!self.nics.is_empty()).then(|| nics + self.nics.len() + 1),
        }
    }

    /// The node at a place; `None` beyond the last, and for NVSwitch and network where there are none.
    pub(crate) fn node(&self, index: usize) -> Option<NodeId> {
        let mut rest = index;
        /// How many there are of a kind, and what makes a node of a number.
        type Kind = (usize, fn(u16) -> NodeId);
        let kinds: [Kind; 5] = [
            (self.cpus.len(), |i| NodeId::Cpu(CpuId(i))),
            (self.host_bridges.len(), NodeId::HostBridge),
            (self.bridges.len(), NodeId::Bridge),
            (self.gpus.len(), |i| NodeId::Gpu(GpuId(i))),
            (self.nics.len(), |i| NodeId::Nic(NicId(i))),
        ];
        for (length, id) in kinds {
            match rest.checked_sub(length) {
                None => return Some(id(rest as u16)),
                Some(beyond) => rest = beyond,
            }
        }
        match rest {
            0 => self.nv_switch.as_ref().map(|_| NodeId::NvSwitch),
            1 => (!self.nics.is_empty()).then_some(NodeId::Network),
            _ => None,
        }
    }
}
