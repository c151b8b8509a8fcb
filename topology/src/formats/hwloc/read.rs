//! The tree of objects: NUMA nodes and packages, and the bridges that stand in them.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use super::super::parts::{self, push};
use super::super::xml::{self, Element, XmlError};
use super::device::Function;
use super::links;
use super::object::{address, info, link, make, only};
use crate::{Bridge, Cpu, CpuSet, Description, HostBridge, Machine, Parent, PciAddress, Warning, limits};

/// A file that is no topology of hwloc.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HwlocError {
    /// It is no XML that can be read.
    #[error(transparent)]
    Xml(#[from] XmlError),
    /// It is XML of something else.
    #[error("the first element is `{name}`, and hwloc's XML begins with `topology`")]
    Root {
        /// The element.
        name: String,
    },
    /// It is of a version that is not known here.
    #[error("the file is of hwloc {version}, and versions 1 to 3 are read; export it with `lstopo` of hwloc 2")]
    Version {
        /// The version that it says.
        version: String,
    },
}

impl Machine {
    /// Reads a topology that hwloc exported as XML.
    ///
    /// The format has no rates of ports, which are then unknown. Of a PCI link it has the product of
    /// speed and lanes, of which the widest link with that product is taken; and it has what a link
    /// ran at as the file was written, so that of GPUs and bridges the slowest generation, to which
    /// idle links fall, is taken as unknown.
    ///
    /// # Errors
    ///
    /// It is no such file, or no sound XML. What is wrong within is passed over and becomes a
    /// [`Warning`] of the machine, with its line.
    pub fn from_hwloc_xml(text: &str) -> Result<Self, HwlocError> {
        let root = xml::parse(xml::text(text.as_bytes())?, links::is_list)?;
        let cut = |text: &str| text.chars().take(40).collect();
        if root.name != "topology" {
            return Err(HwlocError::Root { name: cut(root.name) });
        }
        // The first files had no version.
        let version = root.get("version").unwrap_or("1.0");
        let major = version.split('.').next().and_then(|major| major.trim().parse().ok());
        let Some(major) = major.filter(|major| (1..=3).contains(major)) else {
            return Err(HwlocError::Version { version: cut(version) });
        };
        let mut reader = Reader { major, ..Reader::default() };
        // Version 3 says of the root what those before say of the machine.
        reader.parts.name = info(&root, "HostName");
        for object in root.named("object") {
            reader.object(object, Above::default());
        }
        links::read(&root, &mut reader);
        Ok(reader.finish(&root))
    }
}

/// What was read so far.
#[derive(Default)]
pub(super) struct Reader {
    pub(super) major: u32,
    pub(super) parts: Description,
    /// Devices by the number that matrices of distances name them by.
    pub(super) indices: BTreeMap<u64, PciAddress>,
    /// What is a NIC, with its line. There are no more than NICs.
    pub(super) functions: Vec<(Function, u32)>,
    warnings: Vec<Warning>,
}

/// Where an object stands.
#[derive(Clone, Copy, Default)]
pub(super) struct Above {
    pub(super) numa: Option<u32>,
    pub(super) package: Option<u32>,
    /// The bridge or host bridge, if it is below one.
    pub(super) bridge: Option<Parent>,
}

impl Above {
    pub(super) fn parent(self) -> Parent {
        self.bridge.or(self.numa.map(Parent::Numa)).unwrap_or_default()
    }
}

impl Reader {
    pub(super) fn warn(&mut self, element: &Element<'_>, problem: impl std::fmt::Display) {
        let kind: String = element.get("type").unwrap_or(element.name).chars().take(40).collect();
        self.note(format!("line {}, {kind}", element.line), problem);
    }

    pub(super) fn note(&mut self, about: impl std::fmt::Display, problem: impl std::fmt::Display) {
        if self.warnings.len() < limits::WARNINGS {
            self.warnings.push(Warning::new(about, problem));
        }
    }

    fn object(&mut self, object: &Element<'_>, mut above: Above) {
        match object.get("type").unwrap_or_default() {
            "Bridge" => return self.bridge(object, above),
            "PCIDev" => return self.device(object, above),
            "OSDev" => return self.loose(object, above),
            "Misc" => {}
            kind => {
                let index = object.get("os_index").and_then(|text| text.trim().parse().ok());
                // Where a part stands for several nodes, what hangs there is near to none.
                if let Some(set) = object.get("nodeset") {
                    above.numa = only(set);
                }
                match kind {
                    "Package" | "Socket" => above.package = index,
                    "NUMANode" => self.numa_node(object, index, above),
                    "Machine" => self.parts.name = self.parts.name.take().or_else(|| info(object, "HostName")),
                    _ => {}
                }
            }
        }
        for child in object.named("object") {
            self.object(child, above);
        }
    }

    fn numa_node(&mut self, object: &Element<'_>, index: Option<u32>, above: Above) {
        let Some(numa) = index else {
            return self.warn(object, "it has no `os_index`; the NUMA node was left out");
        };
        // In version 1 a package may stand in its NUMA node.
        let inside = || object.named("object").find(|child| matches!(child.get("type"), Some("Socket" | "Package")));
        let package = above.package.or_else(|| inside()?.get("os_index")?.trim().parse().ok());
        let cpus = self.cpus(object);
        push(&mut self.parts.cpus, Cpu { package, cpus, ..Cpu::numa(numa) }, limits::CPUS);
    }

    fn cpus(&mut self, object: &Element<'_>) -> CpuSet {
        let read = object.get("cpuset").map_or(Ok(CpuSet::new()), CpuSet::from_mask);
        read.unwrap_or_else(|error| {
            self.warn(object, format!("{error}; its processors are not known"));
            CpuSet::new()
        })
    }

    fn bridge(&mut self, object: &Element<'_>, above: Above) {
        let mut below = above;
        if object.get("bridge_type").is_some_and(|kind| kind.starts_with('0')) {
            // From the host to PCI: `0000:[44-54]`, the domain and the buses below.
            let bus = object.get("bridge_pci").and_then(|text| {
                let (domain, buses) = text.split_once(":[")?;
                let bus = u8::from_str_radix(buses.split('-').next()?, 16).ok()?;
                Some((u32::from_str_radix(domain, 16).ok()?, bus))
            });
            match bus {
                Some((domain, bus)) => {
                    push(&mut self.parts.host_bridges, HostBridge { domain, bus, numa: above.numa }, limits::BRIDGES);
                    below.bridge = Some(Parent::HostBridge { domain, bus });
                }
                None => self.warn(object, "it does not say which buses are below; what it holds hangs above"),
            }
        } else {
            match address(object) {
                Some(address) => {
                    let pcie = link(object, true);
                    push(
                        &mut self.parts.bridges,
                        Bridge { numa: above.numa, pcie, ..Bridge::at(address, above.parent()) },
                        limits::BRIDGES,
                    );
                    below.bridge = Some(Parent::Bridge(address));
                }
                None => self.warn(object, "it has no address; what it holds is taken to hang above"),
            }
        }
        for child in object.named("object") {
            self.object(child, below);
        }
    }

    fn finish(mut self, root: &Element<'_>) -> Machine {
        let make = make(root);
        if self.parts.cpus.is_empty() {
            // A system without NUMA: all is at one node.
            let machine = root.named("object").next();
            let cpus = machine.map(|machine| self.cpus(machine)).unwrap_or_default();
            if !cpus.is_empty() {
                push(&mut self.parts.cpus, Cpu { cpus, ..Cpu::numa(0) }, limits::CPUS);
            }
        }
        for cpu in &mut self.parts.cpus {
            let Cpu { numa, package, cpus, .. } = std::mem::take(cpu);
            *cpu = Cpu { numa, package, cpus, ..make.clone() };
        }
        self.find_physical_functions();
        self.leave_out_empty_bridges();
        // Nodes of memory alone are no place for processes.
        let used: Vec<u32> = self.parts.gpus.iter().filter_map(|gpu| gpu.numa).collect();
        self.parts.cpus.retain(|cpu| !cpu.cpus.is_empty() || cpu.numa.is_some_and(|numa| used.contains(&numa)));
        parts::machine(self.parts, self.warnings)
    }
}

impl Reader {
    /// Leaves out bridges that lead to disks and other devices that do not matter here.
    fn leave_out_empty_bridges(&mut self) {
        let above: BTreeMap<PciAddress, Parent> = self.parts.bridges.iter().map(|b| (b.address, b.parent)).collect();
        let gpus = self.parts.gpus.iter().map(|gpu| gpu.parent);
        let mut used = BTreeSet::new();
        for mut parent in gpus.chain(self.parts.nics.iter().map(|nic| nic.parent)) {
            // One that is in already has those above it in too.
            while used.insert(parent)
                && let Parent::Bridge(address) = parent
            {
                parent = above.get(&address).copied().unwrap_or_default();
            }
        }
        self.parts.bridges.retain(|bridge| used.contains(&Parent::Bridge(bridge.address)));
        self.parts
            .host_bridges
            .retain(|&HostBridge { domain, bus, .. }| used.contains(&Parent::HostBridge { domain, bus }));
    }
}
