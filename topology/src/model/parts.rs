//! The parts of a machine as they are described: plain data, before it becomes a graph.

use serde::{Deserialize, Serialize};

use crate::{Bandwidth, CpuSet, PciAddress, PcieLink};

/// What a part hangs under.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Parent {
    /// A PCI bridge or switch, by its address.
    Bridge(PciAddress),
    /// A PCI host bridge, by domain and root bus. It need not be described: one that is named here
    /// and nowhere else is made, at the NUMA node of the part that names it.
    HostBridge {
        /// The domain.
        domain: u32,
        /// The root bus.
        bus: u8,
    },
    /// A NUMA node, with no PCI in between that is known: files that leave host bridges out, and
    /// devices that are software.
    Numa(u32),
    /// Nothing is known. It is then taken to hang under the machine's only NUMA node, or, if there
    /// are several, under a node of its own that is far from all.
    #[default]
    Unknown,
}

/// A NUMA node: its processors and the memory beside them.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct Cpu {
    /// The number of the NUMA node. `None` is the node for what has no known place; at most one.
    pub numa: Option<u32>,
    /// The socket. Nodes of one socket are nearer to each other than nodes of two.
    pub package: Option<u32>,
    /// Its processors.
    pub cpus: CpuSet,
    /// The architecture: `x86_64`, `arm64`, `ppc64`.
    pub arch: Option<String>,
    /// The maker, as the processor names itself: `GenuineIntel`, `AuthenticAMD`.
    pub vendor: Option<String>,
    /// The family, as the processor numbers it.
    pub family: Option<u32>,
    /// The model, as the processor numbers it.
    pub model: Option<u32>,
}

/// A PCI host bridge: where a tree of PCI devices meets a NUMA node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HostBridge {
    /// The domain.
    pub domain: u32,
    /// The root bus.
    pub bus: u8,
    /// The NUMA node. `None` is what Linux gives as -1.
    pub numa: Option<u32>,
}

/// What a PCI bridge is to those below it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BridgeRole {
    /// A port of the host bridge: one link hangs below, and `pcie` is that link.
    RootPort,
    /// A switch, or its port towards the host; `pcie` is the link above.
    Switch,
    /// A port of a switch away from the host: one link hangs below, and `pcie` is that link.
    DownstreamPort,
    /// Found from where it stands: a bridge under a host bridge is a root port, under a port it is a
    /// switch, under a switch it is a port.
    #[default]
    Unknown,
}

/// A PCI bridge: a root port, a switch, a port of a switch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Bridge {
    /// Its address.
    pub address: PciAddress,
    /// What it hangs under.
    #[serde(default)]
    pub parent: Parent,
    /// Its NUMA node, where known.
    #[serde(default)]
    pub numa: Option<u32>,
    /// What it is.
    #[serde(default)]
    pub role: BridgeRole,
    /// Its link; [`BridgeRole`] says which one.
    #[serde(default)]
    pub pcie: PcieLink,
    /// True if access control sends traffic between its children up to the host first (ACS request
    /// redirect), where known. It makes GPUDirect slow under a switch.
    #[serde(default)]
    pub acs_redirect: Option<bool>,
}

/// A maker of GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuVendor {
    /// NVIDIA, 0x10de.
    Nvidia,
    /// AMD, 0x1002.
    Amd,
    /// Intel, 0x8086.
    Intel,
    /// Another, or not known.
    #[default]
    Other,
}

impl GpuVendor {
    /// The maker of a PCI function by its vendor's number and its class (base class and subclass, 16 bits), if it is a GPU that
    /// computes: display and 3D controllers, and for AMD display controllers of no kind and processing accelerators, which its
    /// Instinct cards are. Others' display controllers draw consoles.
    ///
    /// ```
    /// use qpair_topology::GpuVendor;
    ///
    /// assert_eq!(GpuVendor::of(0x10de, 0x0302), Some(GpuVendor::Nvidia));
    /// assert_eq!(GpuVendor::of(0x1a03, 0x0300), None, "of a board's controller");
    /// ```
    pub fn of(vendor: u32, class: u16) -> Option<Self> {
        match (vendor, class) {
            (0x10de, 0x0300 | 0x0302) => Some(Self::Nvidia),
            (0x1002, 0x0300 | 0x0302 | 0x0380 | 0x1200) => Some(Self::Amd),
            _ => None,
        }
    }
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Gpu {
    /// Its address.
    pub address: PciAddress,
    /// What it hangs under.
    #[serde(default)]
    pub parent: Parent,
    /// Its NUMA node, where known.
    #[serde(default)]
    pub numa: Option<u32>,
    /// Its maker.
    #[serde(default)]
    pub vendor: GpuVendor,
    /// Its model, where known.
    #[serde(default)]
    pub model: Option<String>,
    /// The number that its driver gives it, where known. Nothing is decided by it: drivers number in
    /// different orders.
    #[serde(default)]
    pub device: Option<u32>,
    /// Its link to what is above.
    #[serde(default)]
    pub pcie: PcieLink,
    /// The physical function, if this is a virtual one.
    #[serde(default)]
    pub physfn: Option<PciAddress>,
    /// False if a NIC can not read its memory whatever the path; `None` where that is not known,
    /// which is taken as true.
    #[serde(default)]
    pub gpu_direct: Option<bool>,
}

/// What a port speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkLayer {
    /// InfiniBand.
    #[serde(rename = "infiniband")]
    InfiniBand,
    /// Ethernet: RoCE, iWARP.
    Ethernet,
    /// Not known.
    #[default]
    Unknown,
}

/// Whether a port can carry data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PortState {
    /// It carries data.
    Active,
    /// It does not: no cable, or nothing at its other end.
    Down,
    /// It has a link and does not carry data yet: on InfiniBand no subnet manager has configured it.
    Init,
    /// It is not known, which is taken as active: a file that names a port means it to be used.
    #[default]
    Unknown,
}

/// A port of a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Port {
    /// Its number, from 1.
    pub number: u32,
    /// Its rate in Mbit/s. `None` where it is not known: it then limits nothing.
    #[serde(default)]
    pub mbit: Option<u64>,
    /// What it speaks.
    #[serde(default)]
    pub link_layer: LinkLayer,
    /// Whether it carries data.
    #[serde(default)]
    pub state: PortState,
}

/// A network interface that a bonded port is made of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BondMember {
    /// Its name.
    pub name: String,
    /// Its rate in Mbit/s. `None` where it is not known: while it is down, or where another network
    /// namespace has it.
    #[serde(default)]
    pub mbit: Option<u64>,
    /// False if it adds nothing to what the others carry: one that waits until the active one fails
    /// (active-backup), or that sends the same again (broadcast).
    #[serde(default = "yes")]
    pub active: bool,
}

const fn yes() -> bool {
    true
}

/// An RDMA device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Nic {
    /// The name of the RDMA device: `mlx5_0`.
    pub name: String,
    /// Its address. `None` if it is no PCI device.
    #[serde(default)]
    pub address: Option<PciAddress>,
    /// What it hangs under.
    #[serde(default)]
    pub parent: Parent,
    /// Its NUMA node, where known.
    #[serde(default)]
    pub numa: Option<u32>,
    /// Its ports.
    #[serde(default)]
    pub ports: Vec<Port>,
    /// Where its port is a bond: the interfaces of it. The rates of active ones add up in place of the
    /// port's, if any is known.
    #[serde(default)]
    pub bond: Vec<BondMember>,
    /// The node GUID, where it has one.
    #[serde(default)]
    pub guid: Option<u64>,
    /// Its link to what is above.
    #[serde(default)]
    pub pcie: PcieLink,
    /// The physical function, if this is a virtual one. Functions of one physical function share its
    /// ports and its link.
    #[serde(default)]
    pub physfn: Option<PciAddress>,
    /// False if it can not read GPU memory whatever the path; `None` where that is not known, which
    /// is taken as true.
    #[serde(default)]
    pub gpu_direct: Option<bool>,
    /// True of the software device, which runs on the processors of its NUMA node. It is chosen
    /// only where no other NIC can be.
    #[serde(default)]
    pub software: bool,
    /// What kind of RDMA device it is.
    #[serde(default)]
    pub kind: NicKind,
}

/// What kind of RDMA device a NIC is, by what its driver says (`node_type`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NicKind {
    /// A channel adapter: InfiniBand or RoCE.
    ChannelAdapter,
    /// iWARP.
    Iwarp,
    /// Something with verbs of its own: Amazon's EFA, Cisco's usNIC.
    Other,
    /// It is not known, which is taken as a channel adapter.
    #[default]
    Unknown,
}

/// The NVSwitches of a machine, which together join its GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct NvSwitch {
    /// The addresses of the chips, where they are seen.
    pub addresses: Vec<PciAddress>,
}

/// The other end of a GPU's own link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuPeer {
    /// A GPU.
    Gpu(PciAddress),
    /// The NVSwitches.
    #[serde(rename = "nvswitch")]
    NvSwitch,
    /// The processors of a NUMA node.
    Cpu(u32),
}

/// What kind of link leads from GPU to GPU, or from GPU to processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuLinkKind {
    /// NVLink, of NVIDIA.
    #[serde(rename = "nvlink")]
    NvLink,
    /// xGMI, of AMD.
    Xgmi,
    /// NVLink-C2C, between a Grace processor and its GPU.
    C2c,
}

/// Links of a GPU that are not PCIe. Descriptions of the same two ends in the same order add up
/// (NVML gives links one by one); of both orders the greater counts (each end may describe it).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GpuLink {
    /// The GPU.
    pub gpu: PciAddress,
    /// The other end.
    pub to: GpuPeer,
    /// The kind.
    pub kind: GpuLinkKind,
    /// How many links.
    pub count: u32,
    /// What each carries in one direction.
    pub each: Bandwidth,
}

/// The link between two NUMA nodes, where more is known than the builder would assume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SocketLink {
    /// One node.
    pub a: u32,
    /// The other.
    pub b: u32,
    /// What it carries in one direction.
    pub bandwidth: Bandwidth,
}
