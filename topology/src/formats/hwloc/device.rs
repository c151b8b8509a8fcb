//! PCI devices, and the RDMA devices that the system makes of them.

use super::super::parts::{number, push};
use super::super::xml::Element;
use super::object::{address, info, link};
use super::read::{Above, Reader};
use crate::guid::guid;
use crate::sysfs::is_superchip;
use crate::{
    Gpu, GpuLink, GpuLinkKind, GpuPeer, GpuVendor, LinkLayer, Nic, Parent, PciAddress, Port, PortState, limits,
};

impl Reader {
    pub(super) fn device(&mut self, object: &Element<'_>, above: Above) {
        let Some(address) = address(object) else {
            return self.warn(object, "it has no address; the device was left out");
        };
        let Some((class, maker, model)) = object.get("pci_type").and_then(kind) else {
            return self.warn(object, "its `pci_type` can not be read; the device was left out");
        };
        if let Some(index) = index(object) {
            self.indices.insert(index, address);
        }
        for child in object.named("object") {
            self.indices.extend(index(child).map(|index| (index, address)));
        }
        if let Some(vendor) = GpuVendor::of(maker, class) {
            self.gpu(object, address, vendor, model, above);
        } else if (maker, class) == (0x10de, 0x0680) {
            push(&mut self.parts.nv_switch.get_or_insert_default().addresses, address, limits::GPUS);
        } else {
            self.nics(object, address, class, maker, model, above);
        }
    }

    fn gpu(&mut self, object: &Element<'_>, address: PciAddress, vendor: GpuVendor, model: u32, above: Above) {
        let systems = || object.named("object").filter(|child| child.get("type") == Some("OSDev"));
        let name = info(object, "PCIDevice").or_else(|| systems().find_map(|device| info(device, "GPUModel")));
        // Of the libraries that number GPUs, those whose numbers the drivers' tools show.
        let number = |prefix: &str| systems().find_map(|device| device.get("name")?.strip_prefix(prefix)?.parse().ok());
        if let Some(numa) = above.numa
            && vendor == GpuVendor::Nvidia
            && is_superchip(name.as_deref(), Some(model))
        {
            let (to, kind) = (GpuPeer::Cpu(numa), GpuLinkKind::C2c);
            push(
                &mut self.parts.gpu_links,
                GpuLink { gpu: address, to, kind, count: 1, each: GpuLinkKind::c2c() },
                limits::LINKS,
            );
        }
        push(
            &mut self.parts.gpus,
            Gpu {
                numa: above.numa,
                vendor,
                model: name,
                device: number("nvml").or_else(|| number("rsmi")),
                pcie: link(object, true),
                ..Gpu::at(address, above.parent())
            },
            limits::GPUS,
        );
    }

    fn nics(&mut self, object: &Element<'_>, at: PciAddress, class: u16, maker: u32, model: u32, above: Above) {
        const AMAZON: u32 = 0x1d0f;
        let pcie = link(object, false);
        let layer = match class {
            0x0207 => LinkLayer::InfiniBand,
            0x0200 if maker != AMAZON => LinkLayer::Ethernet,
            _ => LinkLayer::Unknown,
        };
        let before = self.parts.nics.len();
        let mut found = false;
        for device in object.named("object") {
            if self.is_rdma(device) {
                found = true;
                let name = device.get("name").map_or_else(|| at.to_string(), str::to_owned);
                let nic = Nic::at(name, at, above.parent());
                let guid = info(device, "NodeGUID").and_then(|text| guid(&text));
                push(
                    &mut self.parts.nics,
                    Nic { numa: above.numa, ports: ports(device, layer), guid, pcie, ..nic },
                    limits::NICS,
                );
            }
        }
        // A file written where no driver was loaded: InfiniBand by its class, EFA by its number.
        if !found && (class == 0x0207 || maker == AMAZON && model & 0xfff0 == 0xefa0) {
            let nic = Nic::at(at.to_string(), at, above.parent());
            let port = Port { number: 1, mbit: None, link_layer: layer, state: PortState::Unknown };
            push(&mut self.parts.nics, Nic { numa: above.numa, ports: vec![port], pcie, ..nic }, limits::NICS);
        }
        if self.parts.nics.len() > before {
            let is_virtual = info(object, "PCIDevice").is_some_and(|name| name.contains("Virtual Function"));
            let function = Function { address: at, maker, parent: above.parent(), is_virtual };
            self.functions.push((function, object.line));
        }
    }

    /// Finds the physical functions of virtual ones, which hwloc does not say: the only one of the same
    /// maker under the same bridge. Without any, as in a virtual machine, a virtual function is all there is.
    pub(super) fn find_physical_functions(&mut self) {
        let functions = std::mem::take(&mut self.functions);
        for (function, line) in functions.iter().filter(|(function, _)| function.is_virtual) {
            let near = functions
                .iter()
                .map(|(other, _)| other)
                .filter(|other| !other.is_virtual && (other.maker, other.parent) == (function.maker, function.parent));
            let near: Vec<PciAddress> = near.map(|other| other.address).collect();
            if let [physical] = near[..] {
                let nics = self.parts.nics.iter_mut().filter(|nic| nic.address == Some(function.address));
                nics.for_each(|nic| nic.physfn = Some(physical));
            } else if !near.is_empty() {
                let problem = "it is a virtual function, and of several physical ones it is not said which; it is \
                    taken to have ports of its own";
                self.note(format!("line {line}, PCIDev"), problem);
            }
        }
    }

    /// A device of the system that is no PCI device: an RDMA device in software.
    pub(super) fn loose(&mut self, object: &Element<'_>, above: Above) {
        let Some(name) = object.get("name").filter(|_| self.is_rdma(object)) else { return };
        let nic = Nic::at(name, PciAddress::new(0, 0, 0, 0), Parent::Unknown);
        let guid = info(object, "NodeGUID").and_then(|text| guid(&text));
        let ports = ports(object, LinkLayer::Unknown);
        let parent = above.parent();
        push(
            &mut self.parts.nics,
            Nic { address: None, parent, numa: above.numa, ports, guid, gpu_direct: Some(false), ..nic },
            limits::NICS,
        );
    }

    /// Versions 1 and 2 number the kinds of devices, with 3 for OpenFabrics; version 3 has a bit for
    /// each, with the sixth for it.
    fn is_rdma(&self, object: &Element<'_>) -> bool {
        let kind = object.get("osdev_types").or(object.get("osdev_type")).and_then(number);
        let by_kind = kind.is_some_and(|kind| if self.major < 3 { kind == 3 } else { kind & 1 << 5 != 0 });
        let by_name = object.get("subtype") == Some("OpenFabrics") || info(object, "NodeGUID").is_some();
        object.get("type") == Some("OSDev") && (by_kind || by_name)
    }
}

/// A function of a PCI device that is a NIC.
pub(super) struct Function {
    address: PciAddress,
    maker: u32,
    parent: Parent,
    /// As the list of PCI identifiers calls it.
    is_virtual: bool,
}

/// Class, maker and model of `0302 [10de:20b0] [10de:134f] a1`.
fn kind(text: &str) -> Option<(u16, u32, u32)> {
    let (class, rest) = text.trim().split_once(' ')?;
    let number = u32::from_str_radix(class, 16).ok()?;
    let class = if class.len() > 4 { number >> 8 } else { number };
    let (maker, rest) = rest.trim_start().strip_prefix('[')?.split_once(':')?;
    let model = rest.split(']').next()?;
    let hex = |text| u32::from_str_radix(text, 16).ok();
    Some((u16::try_from(class).ok()?, hex(maker)?, hex(model)?))
}

/// Ports are told by `Port1State` and so on; if none is, there is one.
fn ports(device: &Element<'_>, link_layer: LinkLayer) -> Vec<Port> {
    let told = (1..=32).filter_map(|number| {
        let state = info(device, &format!("Port{number}State"))?;
        let state = match state.trim() {
            "4" | "5" => PortState::Active,
            "1" => PortState::Down,
            "2" | "3" => PortState::Init,
            _ => PortState::Unknown,
        };
        Some(Port { number, mbit: None, link_layer, state })
    });
    let ports: Vec<Port> = told.collect();
    if ports.is_empty() {
        return vec![Port { number: 1, mbit: None, link_layer, state: PortState::Unknown }];
    }
    ports
}

fn index(object: &Element<'_>) -> Option<u64> {
    object.get("gp_index")?.trim().parse().ok()
}
