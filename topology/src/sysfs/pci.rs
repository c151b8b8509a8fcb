//! PCI devices: where each hangs, and its link.

use std::collections::{BTreeMap, BTreeSet};

use super::tree::{Tree, join};
use crate::{
    Bridge, BridgeRole, Cpu, CpuSet, HostBridge, MachineBuilder, Parent, PciAddress, PcieGeneration, PcieLink, Warning,
    limits,
};

/// A PCI device of a kind that matters.
#[derive(Clone, Debug)]
pub(super) struct Device {
    /// Its folder, without links.
    pub(super) path: String,
    pub(super) vendor: u32,
    /// Class and subclass.
    pub(super) class: u16,
    /// The interface of the class.
    pub(super) interface: u8,
}

/// What is known of where a device hangs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) parent: Parent,
    pub(super) numa: Option<u32>,
    pub(super) pcie: PcieLink,
    pub(super) physfn: Option<PciAddress>,
}

/// All PCI devices, and the bridges above those that were asked for.
pub(super) struct Devices<'a> {
    tree: &'a Tree<'a>,
    nodes: &'a [Cpu],
    all: BTreeMap<PciAddress, Device>,
    bridges: BTreeMap<PciAddress, Bridge>,
    host_bridges: BTreeMap<(u32, u8), HostBridge>,
    /// Of each device that was asked for, how the IOMMU treats it.
    iommu: Vec<bool>,
    /// Devices below more bridges than a machine can have.
    deep: BTreeSet<PciAddress>,
}

/// Whether a link's speed is what it runs at, or what it can. GPUs and ports above them slow their
/// links while nothing is to be done, so that what they run at says little.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Speed {
    Current,
    Highest,
}

/// Finds all PCI devices.
pub(super) fn scan<'a>(tree: &'a Tree<'a>, nodes: &'a [Cpu], machine: &mut MachineBuilder) -> Devices<'a> {
    let mut all = BTreeMap::new();
    for (name, path) in tree.entries("bus/pci/devices") {
        let Ok(address) = name.parse::<PciAddress>() else {
            path.iter().for_each(|path| tree.keep(path));
            machine.warn(Warning::new(name, "it is no PCI address; the device was passed over"));
            continue;
        };
        let device = path.and_then(|path| {
            tree.keep(&path);
            let class = tree.hex(&path, "class")?;
            let (class, interface) = ((class >> 8) as u16, class as u8);
            // Others are many, and their makers are nobody's business.
            let matters = matches!(class >> 8, 0x03 | 0x12) || class == NVSWITCH;
            let vendor = if matters { tree.hex(&path, "vendor")? } else { 0 };
            Some(Device { path, vendor, class, interface })
        });
        match device {
            Some(device) => {
                all.insert(address, device);
            }
            None => {
                machine.warn(Warning::new(
                    address,
                    "its folder or class can not be read: it is broken, or went away meanwhile; it was passed over",
                ));
            }
        }
    }
    Devices {
        tree,
        nodes,
        all,
        bridges: BTreeMap::new(),
        host_bridges: BTreeMap::new(),
        iommu: Vec::new(),
        deep: BTreeSet::new(),
    }
}

/// The class of NVSwitches and of the processor's ends of NVLinks: a bridge of another kind.
pub(super) const NVSWITCH: u16 = 0x0680;

impl Devices<'_> {
    pub(super) fn all(&self) -> &BTreeMap<PciAddress, Device> {
        &self.all
    }

    /// Where a device hangs. The bridges above it become part of the machine.
    pub(super) fn place(&mut self, path: &str, speed: Speed) -> Place {
        let parent = self.above(path);
        if let Some(group) = self.tree.resolve(&join(path, "iommu_group")) {
            let kind = self.tree.read(&group, "type").unwrap_or_default();
            if kind.starts_with("DMA") {
                self.iommu.push(true);
            } else if kind == "identity" {
                self.iommu.push(false);
            }
        }
        Place { parent, numa: self.numa(path), pcie: self.link(path, speed), physfn: self.physfn(path) }
    }

    /// The physical function of a device that is a virtual one. A virtual machine does not show it.
    pub(super) fn physfn(&self, path: &str) -> Option<PciAddress> {
        self.tree.resolve_folder(&join(path, "physfn")).and_then(|path| last(&path).parse().ok())
    }

    /// The NUMA node of a folder's device. Where it is -1, the node that alone has the processors that
    /// are said to be near.
    pub(super) fn numa(&self, path: &str) -> Option<u32> {
        let numa = self.tree.number::<i64>(path, "numa_node").and_then(|numa| u32::try_from(numa).ok());
        if numa.is_some() || self.nodes.len() < 2 {
            return numa;
        }
        let near: CpuSet = self.tree.read(path, "local_cpulist")?.parse().ok()?;
        let first = near.iter().next()?;
        let node = self.nodes.iter().find(|node| node.cpus.contains(first))?;
        // Those of a node are one run or two, and of all nodes more than one has. A few tell them apart.
        let all = near.len() <= node.cpus.len() && near.iter().take(64).all(|cpu| node.cpus.contains(cpu));
        node.numa.filter(|_| all)
    }

    /// Adds bridges and host bridges to the machine.
    pub(super) fn finish(self, machine: &mut MachineBuilder) {
        for host in self.host_bridges.into_values() {
            machine.host_bridge(host);
        }
        for bridge in self.bridges.into_values() {
            machine.bridge(bridge);
        }
        for device in self.deep {
            let problem =
                format!("it is below more than {} bridges; the ones nearest to it were left out", limits::DEPTH);
            machine.warn(Warning::new(device, problem));
        }
        if !self.iommu.is_empty() {
            machine.iommu(self.iommu.contains(&true));
        }
    }

    /// What a device hangs under, by the names of the folders above it: `pci0000:16` for a host
    /// bridge, an address for a bridge.
    fn above(&mut self, path: &str) -> Parent {
        let mut parent = Parent::Unknown;
        let mut depth = 0;
        let mut end = 0;
        for name in path.split('/') {
            let folder = &path[..end + name.len()];
            end = folder.len() + 1;
            if let Some((domain, bus)) = host_bridge(name) {
                // It may stand below a device that is one to others, as a volume management device is.
                parent = Parent::HostBridge { domain, bus };
                let numa = self.numa(folder);
                self.host_bridges.entry((domain, bus)).or_insert(HostBridge { domain, bus, numa });
            } else if let Ok(address) = name.parse::<PciAddress>() {
                if folder == path {
                    break;
                }
                if depth == limits::DEPTH {
                    self.deep.extend(last(path).parse::<PciAddress>());
                    break;
                }
                depth += 1;
                if !self.bridges.contains_key(&address) {
                    let bridge = self.bridge(address, parent, folder);
                    self.bridges.insert(address, bridge);
                }
                parent = Parent::Bridge(address);
            }
        }
        parent
    }

    fn bridge(&self, address: PciAddress, parent: Parent, path: &str) -> Bridge {
        let hints = self.tree.port_hints(path);
        let role = match hints.port_type {
            Some(4) => BridgeRole::RootPort,
            Some(5) => BridgeRole::Switch,
            Some(6) => BridgeRole::DownstreamPort,
            _ => BridgeRole::Unknown,
        };
        Bridge {
            address,
            parent,
            numa: self.numa(path),
            role,
            pcie: self.link(path, Speed::Highest),
            acs_redirect: hints.redirects(),
        }
    }

    /// The link of a device. Lanes are those in use where that is known, since a card in a slot with
    /// fewer lanes, or a bad contact, has them for good.
    fn link(&self, path: &str, speed: Speed) -> PcieLink {
        let generation = |name| self.tree.read(path, name).and_then(|text| PcieGeneration::of_speed(&text));
        let width = |name| self.tree.number::<u8>(path, name).filter(|width| (1..=32).contains(width));
        let highest = generation("max_link_speed");
        let current = generation("current_link_speed");
        let generation = if speed == Speed::Current { current.or(highest) } else { highest.or(current) };
        PcieLink { generation, width: width("current_link_width").or_else(|| width("max_link_width")) }
    }
}

/// The last name of a path.
pub(super) fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The folder of the innermost PCI device that a path leads to or through.
pub(super) fn device_folder(path: &str) -> Option<(PciAddress, &str)> {
    let mut folder = path;
    loop {
        if let Ok(address) = last(folder).parse() {
            return Some((address, folder));
        }
        folder = &folder[..folder.rfind('/')?];
    }
}

/// Domain and bus of the name of a host bridge's folder.
fn host_bridge(name: &str) -> Option<(u32, u8)> {
    let (domain, bus) = name.strip_prefix("pci")?.split_once(':')?;
    let fits = domain.len() >= 4 && bus.len() == 2;
    let domain = u32::from_str_radix(domain, 16).ok()?;
    fits.then_some((domain, u8::from_str_radix(bus, 16).ok()?))
}
