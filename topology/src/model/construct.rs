//! Making parts of little, and what they are called.

use super::parts::{Bridge, Cpu, Gpu, GpuLinkKind, Nic, NicKind, Parent, Port, PortState};
use super::{BridgeRole, GpuVendor, LinkLayer};
use crate::{PciAddress, PcieLink};

impl Cpu {
    /// The NUMA node with this number, of which nothing more is known.
    pub fn numa(number: u32) -> Self {
        Self { numa: Some(number), ..Self::default() }
    }

    /// A short name for people: `NUMA 1`, and `NUMA ?` of the node for what has no known place.
    pub(super) fn label(&self) -> String {
        self.numa.map_or("NUMA ?".to_owned(), |numa| format!("NUMA {numa}"))
    }
}

impl Bridge {
    /// A bridge of which no more is known than where it is.
    pub fn at(address: PciAddress, parent: Parent) -> Self {
        Self { address, parent, numa: None, role: BridgeRole::Unknown, pcie: PcieLink::UNKNOWN, acs_redirect: None }
    }
}

impl Gpu {
    /// A GPU of which no more is known than where it is.
    pub fn at(address: PciAddress, parent: Parent) -> Self {
        Self {
            address,
            parent,
            numa: None,
            vendor: GpuVendor::Other,
            model: None,
            device: None,
            pcie: PcieLink::UNKNOWN,
            physfn: None,
            gpu_direct: None,
        }
    }
}

impl Port {
    /// A port that is active, at a rate in Mbit/s.
    pub fn active(number: u32, mbit: u64, link_layer: LinkLayer) -> Self {
        Self { number, mbit: Some(mbit), link_layer, state: PortState::Active }
    }
}

impl Nic {
    /// A PCI device without ports yet: add what it has to `ports`, or it can not be chosen.
    pub fn at(name: impl Into<String>, address: PciAddress, parent: Parent) -> Self {
        Self { address: Some(address), parent, ..Self::named(name.into()) }
    }

    /// The software device of a NUMA node. Its rate is what one core copies, some 10 GB/s; it is a
    /// figure to choose by, not a promise.
    pub fn software(name: impl Into<String>, numa: u32) -> Self {
        let port = Port { number: 1, mbit: Some(80_000), link_layer: LinkLayer::Ethernet, state: PortState::Active };
        Self {
            parent: Parent::Numa(numa),
            numa: Some(numa),
            ports: vec![port],
            gpu_direct: Some(false),
            software: true,
            ..Self::named(name.into())
        }
    }

    fn named(name: String) -> Self {
        Self {
            name,
            address: None,
            parent: Parent::Unknown,
            numa: None,
            ports: Vec::new(),
            bond: Vec::new(),
            guid: None,
            pcie: PcieLink::UNKNOWN,
            physfn: None,
            gpu_direct: None,
            software: false,
            kind: NicKind::default(),
        }
    }
}

impl GpuLinkKind {
    /// The name that people know.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NvLink => "NVLink",
            Self::Xgmi => "xGMI",
            Self::C2c => "C2C",
        }
    }
}
