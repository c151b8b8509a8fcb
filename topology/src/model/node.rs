//! Names of nodes and links of the graph.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::parts::GpuLinkKind;
use crate::escape::is_printable;
use crate::{Bandwidth, PcieLink};

/// A GPU of a machine: its place in the order of addresses, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GpuId(pub u16);

/// A NIC of a machine: its place in the order of addresses, from 0. It is the rail that the NIC is
/// on, where machines of a cluster are cabled alike. Software devices come last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NicId(pub u16);

/// A NUMA node of a machine: its place in the order of numbers, from 0. The node for what has no
/// known place, if there is one, comes last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CpuId(pub u16);

/// A node of the graph. Numbers are places in a canonical order: a machine that is read in another
/// order has the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeId {
    /// A NUMA node.
    Cpu(CpuId),
    /// A PCI host bridge.
    HostBridge(u16),
    /// A PCI bridge.
    Bridge(u16),
    /// A GPU.
    Gpu(GpuId),
    /// An RDMA device.
    Nic(NicId),
    /// The NVSwitches, all of them.
    #[serde(rename = "nvswitch")]
    NvSwitch,
    /// What is outside, reached through NICs.
    Network,
}

impl From<GpuId> for NodeId {
    fn from(id: GpuId) -> Self {
        Self::Gpu(id)
    }
}

impl From<NicId> for NodeId {
    fn from(id: NicId) -> Self {
        Self::Nic(id)
    }
}

impl From<CpuId> for NodeId {
    fn from(id: CpuId) -> Self {
        Self::Cpu(id)
    }
}

/// What a link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkKind {
    /// PCIe, as far as it is known.
    Pcie(PcieLink),
    /// Inside a chip, of no account: ports of a switch, root ports of a host bridge, a host bridge
    /// and its processors.
    Internal,
    /// Between NUMA nodes of one socket.
    Package,
    /// Between sockets.
    Socket,
    /// Links of GPUs, this many.
    GpuLink {
        /// The kind.
        kind: GpuLinkKind,
        /// How many.
        count: u32,
    },
    /// From a NIC outwards.
    Network,
}

impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pcie(pcie) => pcie.fmt(f),
            Self::Internal => f.write_str("inside"),
            Self::Package => f.write_str("within the socket"),
            Self::Socket => f.write_str("between sockets"),
            Self::GpuLink { kind, count: 1 } => f.write_str(kind.name()),
            Self::GpuLink { kind, count } => write!(f, "{count} x {}", kind.name()),
            Self::Network => f.write_str("network"),
        }
    }
}

/// A link of the graph. It carries its bandwidth in each direction at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Link {
    /// One end: of PCIe, the one nearer to the host.
    pub a: NodeId,
    /// The other end.
    pub b: NodeId,
    /// What it is.
    pub kind: LinkKind,
    /// What it carries in one direction.
    pub bandwidth: Bandwidth,
    /// Links with the same number are one in metal, and what passes over any counts for all: the
    /// functions of a card on their link, virtual functions on the ports of the physical one.
    pub lanes: u32,
}

impl Link {
    /// The end that is not `node`.
    pub fn other(&self, node: NodeId) -> NodeId {
        if self.a == node { self.b } else { self.a }
    }

    /// True of links by which a part hangs under another; then `a` is the one above.
    pub fn is_towards_host(&self) -> bool {
        matches!(self.kind, LinkKind::Pcie(_) | LinkKind::Internal)
    }
}

/// Something that was passed over while a machine was read or built.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Warning {
    /// What it is about: an address, a name, a file.
    pub about: String,
    /// What is wrong, and what was done about it.
    pub problem: String,
}

impl Warning {
    /// A warning. Texts are cut at 200 characters, and what can not be printed becomes a question mark,
    /// since parts of them may come from a hostile file.
    pub fn new(about: impl fmt::Display, problem: impl fmt::Display) -> Self {
        let clean = |text: String| text.chars().take(200).map(|c| if is_printable(c) { c } else { '?' }).collect();
        Self { about: clean(about.to_string()), problem: clean(problem.to_string()) }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.about, self.problem)
    }
}
