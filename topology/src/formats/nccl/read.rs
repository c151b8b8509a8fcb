//! Reading: each element becomes a part, and what can not be one a warning.

use std::collections::BTreeMap;

use thiserror::Error;

use super::super::parts::{self, number, push};
use super::super::xml::{self, Element, XmlError};
use crate::{
    Bandwidth, Bridge, BridgeRole, Cpu, CpuSet, Description, GpuLink, GpuLinkKind, GpuPeer, Machine, NvSwitch, Parent,
    PciAddress, PcieGeneration, PcieLink, Warning, limits,
};

/// A topology file of NCCL that can not be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NcclError {
    /// It is no XML that can be read.
    #[error(transparent)]
    Xml(#[from] XmlError),
    /// It is XML of something else.
    #[error("the first element is `{name}`, and a topology file of NCCL begins with `system`")]
    Root {
        /// The element.
        name: String,
    },
}

impl Machine {
    /// Reads a topology file of NCCL (`NCCL_TOPO_DUMP_FILE`, or what `NCCL_TOPO_FILE` names) or RCCL.
    ///
    /// Such files leave out host bridges and ports: each bridge in one is a switch. A `pci` that is a
    /// network device by its class is a NIC even without `net`, as in files that clouds ship; its name
    /// is then its address, and its rate is not known. The model of a GPU is `sm_80`, or `gfx942`.
    ///
    /// # Errors
    ///
    /// It is no such file, or no sound XML. What is wrong within is passed over and becomes a
    /// [`Warning`] of the machine, with its line.
    pub fn from_nccl_xml(text: &str) -> Result<Self, NcclError> {
        let root = xml::parse(xml::text(text.as_bytes())?, |_| false)?;
        if root.name != "system" {
            return Err(NcclError::Root { name: root.name.chars().take(40).collect() });
        }
        let mut reader = Reader::default();
        if let Some(version) = root.get("version").filter(|version| !matches!(*version, "1" | "2")) {
            reader.warn(&root, format!("version {version} is not known; it was read as version 1"));
        }
        let host = root.named("cpu").next().and_then(|cpu| cpu.get("host_hash"));
        for element in &root.children {
            match element.name {
                "cpu" if element.get("host_hash") != host => {
                    reader.warn(element, "it is of another host; only the first is read");
                }
                "cpu" => reader.cpu(element),
                _ => reader.warn_unknown(element),
            }
        }
        Ok(reader.finish())
    }
}

/// What was read so far.
#[derive(Default)]
pub(super) struct Reader {
    pub(super) parts: Description,
    warnings: Vec<Warning>,
    links: BTreeMap<(PciAddress, GpuPeer, GpuLinkKind, Bandwidth), u32>,
}

/// Where an element stands.
#[derive(Clone, Copy)]
pub(super) struct Above {
    pub(super) parent: Parent,
    pub(super) numa: Option<u32>,
}

impl Reader {
    pub(super) fn warn(&mut self, element: &Element<'_>, problem: impl std::fmt::Display) {
        let name: String = element.name.chars().take(40).collect();
        self.note(format!("line {}, {name}", element.line), problem);
    }

    pub(super) fn note(&mut self, about: impl std::fmt::Display, problem: impl std::fmt::Display) {
        if self.warnings.len() < limits::WARNINGS {
            self.warnings.push(Warning::new(about, problem));
        }
    }

    pub(super) fn warn_unknown(&mut self, element: &Element<'_>) {
        self.warn(element, "this element is not known here; it was passed over");
    }

    /// Counts links; elements of the same ends add up.
    pub(super) fn link(&mut self, gpu: PciAddress, to: GpuPeer, kind: GpuLinkKind, each: Bandwidth, count: u32) {
        let sum = self.links.entry((gpu, to, kind, each)).or_default();
        *sum = sum.saturating_add(count);
    }

    fn cpu(&mut self, element: &Element<'_>) {
        // It is -1 where the system does not know it.
        let numa = element.get("numaid").and_then(|text| text.trim().parse().ok());
        let small = |name| element.get(name).and_then(number).and_then(|number| u32::try_from(number).ok());
        let affinity = element.get("affinity").map_or(Ok(CpuSet::new()), CpuSet::from_mask);
        let cpus = affinity.unwrap_or_else(|error| {
            self.warn(element, format!("{error}; its processors are not known"));
            CpuSet::new()
        });
        let text = |name| element.get(name).filter(|text| !text.is_empty()).map(str::to_owned);
        push(
            &mut self.parts.cpus,
            Cpu {
                numa,
                package: None,
                cpus,
                arch: text("arch"),
                vendor: text("vendor"),
                family: small("familyid"),
                model: small("modelid"),
            },
            limits::CPUS,
        );
        let above = Above { parent: numa.map_or(Parent::Unknown, Parent::Numa), numa };
        for child in &element.children {
            match child.name {
                "pci" => self.pci(child, above),
                "nic" => self.nic(child, None, above),
                _ => self.warn_unknown(child),
            }
        }
    }

    fn pci(&mut self, element: &Element<'_>, above: Above) {
        let class = element.get("class").and_then(number).map_or(0, |class| (class >> 8) as u16);
        let has = |name| element.children.iter().any(|child| child.name == name);
        let Some(address) = element.get("busid").and_then(|text| text.parse::<PciAddress>().ok()) else {
            self.warn(element, "it has no `busid` that is a PCI address; what it holds is taken to hang above");
            return self.below(element, above);
        };
        let pcie = link(element);
        // The class goes first: NCCL may hang a `nic` of no device of its own under a bridge.
        let is_bridge = class == 0x0604 && !has("gpu");
        if has("gpu") || matches!(class >> 8, 0x03 | 0x12) {
            self.gpu(element, address, class, pcie, above);
        } else if !is_bridge && has("nic") || class >> 8 == 0x02 {
            self.pci_nic(element, address, class, pcie, above);
        } else if class == 0x0680 {
            push(&mut self.parts.nv_switch.get_or_insert_default().addresses, address, limits::GPUS);
        } else if is_bridge || has("pci") {
            return self.bridge(element, address, pcie, above);
        }
        self.below(element, above);
    }

    fn bridge(&mut self, element: &Element<'_>, address: PciAddress, pcie: PcieLink, above: Above) {
        let Above { parent, numa } = above;
        push(
            &mut self.parts.bridges,
            Bridge { numa, role: BridgeRole::Switch, pcie, ..Bridge::at(address, parent) },
            limits::BRIDGES,
        );
        let inside = Above { parent: Parent::Bridge(address), numa };
        for nic in element.named("nic") {
            self.nic(nic, None, inside);
        }
        self.below(element, inside);
    }

    /// The PCI devices in an element.
    fn below(&mut self, element: &Element<'_>, above: Above) {
        for child in &element.children {
            match child.name {
                "pci" => self.pci(child, above),
                "gpu" | "nic" => {}
                _ => self.warn_unknown(child),
            }
        }
    }

    /// Adds a switch for NVLinks.
    pub(super) fn nv_switch(&mut self, address: Option<PciAddress>) {
        let all = &mut self.parts.nv_switch.get_or_insert_with(NvSwitch::default).addresses;
        if let Some(address) = address.filter(|address| !all.contains(address) && all.len() < limits::GPUS) {
            all.push(address);
        }
    }

    fn finish(mut self) -> Machine {
        let links = std::mem::take(&mut self.links).into_iter();
        let links = links.map(|((gpu, to, kind, each), count)| GpuLink { gpu, to, kind, count, each });
        self.parts.gpu_links.extend(links);
        self.leave_out_fused_nics();
        parts::machine(self.parts, self.warnings)
    }
}

fn link(element: &Element<'_>) -> PcieLink {
    let width = element.get("link_width").and_then(|text| text.trim().parse().ok());
    PcieLink { generation: element.get("link_speed").and_then(PcieGeneration::of_speed), width }.checked()
}

/// Whether an element says that NICs reach the memory of GPUs directly.
pub(super) fn direct(element: &Element<'_>) -> Option<bool> {
    element.get("gdr").and_then(number).map(|gdr| gdr != 0)
}
