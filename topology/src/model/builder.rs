//! The builder: takes parts in any order, and never fails.

use serde::{Deserialize, Serialize};

use super::assemble::assemble;
use super::names::clean;
use super::node::Warning;
use super::parts::{Bridge, Cpu, Gpu, GpuLink, HostBridge, Nic, NvSwitch, SocketLink};
use super::{Machine, limits};

/// A machine as a list of parts: plain data, which formats write and read.
///
/// Parts name each other by address and number, so their order means nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Description {
    /// What the machine is called, if anything.
    pub name: Option<String>,
    /// Its NUMA nodes.
    pub cpus: Vec<Cpu>,
    /// Its PCI host bridges; those that a part names as its parent need not be here.
    pub host_bridges: Vec<HostBridge>,
    /// Its PCI bridges.
    pub bridges: Vec<Bridge>,
    /// Its GPUs.
    pub gpus: Vec<Gpu>,
    /// Its RDMA devices.
    pub nics: Vec<Nic>,
    /// Its NVSwitches, if it has any.
    #[serde(rename = "nvswitch")]
    pub nv_switch: Option<NvSwitch>,
    /// Links of GPUs that are not PCIe.
    pub gpu_links: Vec<GpuLink>,
    /// Links between NUMA nodes. Those that are not here are estimated from the processors.
    pub socket_links: Vec<SocketLink>,
    /// True if an IOMMU translates for devices, where known. It slows traffic between devices
    /// through the host.
    pub iommu: Option<bool>,
}

impl Description {
    /// Makes the machine. What does not fit becomes a [`Warning`] of the machine.
    pub fn build(self) -> Machine {
        MachineBuilder::from(self).build()
    }
}

impl From<Description> for MachineBuilder {
    /// A builder that has these parts, without those beyond the limits.
    fn from(mut parts: Description) -> Self {
        fn cut<T>(list: &mut Vec<T>, limit: usize) -> bool {
            let over = list.len() > limit;
            list.truncate(limit);
            over
        }
        let switches = parts.nv_switch.as_mut().is_some_and(|switch| cut(&mut switch.addresses, limits::GPUS));
        let over_limit = [
            cut(&mut parts.cpus, limits::CPUS),
            cut(&mut parts.host_bridges, limits::BRIDGES),
            cut(&mut parts.bridges, limits::BRIDGES),
            cut(&mut parts.gpus, limits::GPUS),
            cut(&mut parts.nics, limits::NICS),
            cut(&mut parts.gpu_links, limits::LINKS),
            cut(&mut parts.socket_links, limits::LINKS),
            switches,
        ];
        Self { parts, warnings: Vec::new(), over_limit: over_limit.contains(&true) }
    }
}

/// Collects the parts of a machine, in any order, and makes the graph.
///
/// It never fails. What is there twice, hangs under nothing, or exceeds a limit is passed over and
/// becomes a [`Warning`] of the machine: half a machine is of more use than none. Names are cut to
/// [`limits`], and what can not be printed in them becomes a question mark; NICs keep different names.
///
/// ```
/// use qpair_topology::{Bridge, BridgeRole, Cpu, Gpu, LinkLayer, Machine, Nic, Parent, PcieGeneration, PcieLink, Port};
///
/// let switch = "0000:05:00.0".parse()?;
/// let x16 = PcieLink::new(PcieGeneration::Gen3, 16);
/// let mut machine = Machine::builder();
/// machine
///     .cpu(Cpu::numa(0))
///     .bridge(Bridge { role: BridgeRole::Switch, pcie: x16, ..Bridge::at(switch, Parent::Numa(0)) })
///     .gpu(Gpu { pcie: x16, ..Gpu::at("0000:06:00.0".parse()?, Parent::Bridge(switch)) })
///     .nic(Nic {
///         pcie: x16,
///         ports: vec![Port::active(1, 100_000, LinkLayer::InfiniBand)],
///         ..Nic::at("mlx5_0", "0000:07:00.0".parse()?, Parent::Bridge(switch))
///     });
/// let machine = machine.build();
/// assert_eq!((machine.gpus().len(), machine.nics().len()), (1, 1));
/// assert!(machine.warnings().is_empty());
/// # Ok::<(), qpair_topology::ParsePciAddressError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct MachineBuilder {
    parts: Description,
    warnings: Vec<Warning>,
    over_limit: bool,
}

impl MachineBuilder {
    /// Names the machine.
    pub fn name(&mut self, name: impl Into<String>) -> &mut Self {
        self.parts.name = Some(name.into());
        self
    }

    /// Says whether an IOMMU translates for devices.
    pub fn iommu(&mut self, translates: bool) -> &mut Self {
        self.parts.iommu = Some(translates);
        self
    }

    /// Adds a NUMA node. A node that parts name but nobody adds is made, with no processors known.
    pub fn cpu(&mut self, cpu: Cpu) -> &mut Self {
        self.over_limit |= !push(&mut self.parts.cpus, cpu, limits::CPUS);
        self
    }

    /// Adds a host bridge. It is only needed to say its NUMA node where the parts below do not.
    pub fn host_bridge(&mut self, host_bridge: HostBridge) -> &mut Self {
        self.over_limit |= !push(&mut self.parts.host_bridges, host_bridge, limits::BRIDGES);
        self
    }

    /// Adds a PCI bridge.
    pub fn bridge(&mut self, bridge: Bridge) -> &mut Self {
        self.over_limit |= !push(&mut self.parts.bridges, bridge, limits::BRIDGES);
        self
    }

    /// Adds a GPU.
    pub fn gpu(&mut self, gpu: Gpu) -> &mut Self {
        self.over_limit |= !push(&mut self.parts.gpus, gpu, limits::GPUS);
        self
    }

    /// Adds an RDMA device.
    pub fn nic(&mut self, nic: Nic) -> &mut Self {
        self.over_limit |= !push(&mut self.parts.nics, nic, limits::NICS);
        self
    }

    /// Adds NVSwitches. Called again, the addresses come together: the switches of a machine are one
    /// node of the graph, since a GPU spreads over all of them.
    pub fn nv_switch(&mut self, nv_switch: NvSwitch) -> &mut Self {
        let all = &mut self.parts.nv_switch.get_or_insert_default().addresses;
        for address in nv_switch.addresses {
            self.over_limit |= !push(all, address, limits::GPUS);
        }
        self
    }

    /// Adds links of a GPU that are not PCIe.
    pub fn gpu_link(&mut self, link: GpuLink) -> &mut Self {
        self.over_limit |= !push(&mut self.parts.gpu_links, link, limits::LINKS);
        self
    }

    /// Says what a link between NUMA nodes carries.
    pub fn socket_link(&mut self, link: SocketLink) -> &mut Self {
        self.over_limit |= !push(&mut self.parts.socket_links, link, limits::LINKS);
        self
    }

    /// Records that something was passed over. Beyond a number no more is kept.
    pub fn warn(&mut self, warning: Warning) -> &mut Self {
        // It may come from a file.
        push(&mut self.warnings, Warning::new(warning.about, warning.problem), limits::WARNINGS);
        self
    }

    /// What was added so far.
    pub fn parts(&self) -> &Description {
        &self.parts
    }

    /// Makes the machine.
    pub fn build(self) -> Machine {
        let Self { mut parts, mut warnings, over_limit } = self;
        clean(&mut parts, &mut warnings);
        if over_limit {
            let problem = "it has more parts than a machine can have here; those beyond the limit were left out";
            warnings.push(Warning::new(parts.name.as_deref().unwrap_or("machine"), problem));
        }
        assemble(parts, warnings)
    }
}

fn push<T>(list: &mut Vec<T>, part: T, limit: usize) -> bool {
    let fits = list.len() < limit;
    if fits {
        list.push(part);
    }
    fits
}
