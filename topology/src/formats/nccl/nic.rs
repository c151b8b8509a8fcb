//! NICs: a `nic` holds a `net` for each port.

use std::collections::BTreeSet;

use super::super::parts::push;
use super::super::xml::Element;
use super::read::{Above, Reader, direct};
use crate::guid::guid;
use crate::{LinkLayer, Nic, PciAddress, PcieLink, Port, PortState, limits};

impl Reader {
    /// The NICs of a PCI device; without `net` one that is called by its address.
    pub(super) fn pci_nic(
        &mut self,
        element: &Element<'_>,
        address: PciAddress,
        class: u16,
        pcie: PcieLink,
        above: Above,
    ) {
        let at = Some((address, class, pcie));
        let before = self.parts.nics.len();
        let mut dropped = false;
        for nic in element.named("nic") {
            self.nic(nic, at, above);
            dropped |= nic.named("net").any(is_dropped);
        }
        if self.parts.nics.len() == before && !dropped {
            let port = Port { number: 1, mbit: None, link_layer: layer(class), state: PortState::Unknown };
            let nic = Nic::at(address.to_string(), address, above.parent);
            push(&mut self.parts.nics, Nic { numa: above.numa, ports: vec![port], pcie, ..nic }, limits::NICS);
        }
    }

    /// The NICs of a `nic`, which may stand in no PCI device.
    pub(super) fn nic(&mut self, element: &Element<'_>, at: Option<(PciAddress, u16, PcieLink)>, above: Above) {
        let (address, class, pcie) = at.unwrap_or((PciAddress::new(0, 0, 0, 0), 0, PcieLink::UNKNOWN));
        let first = self.parts.nics.len();
        for net in element.named("net").take(MOST_NETS) {
            if is_dropped(net) {
                self.warn(net, "it has `keep=\"0\"`, by which NCCL marks what it does not use; it was left out");
                continue;
            }
            let name = match (net.get("name").filter(|name| !name.is_empty()), net.get("dev")) {
                (Some(name), _) => name.to_owned(),
                (None, Some(dev)) => format!("net{dev}"),
                (None, None) => {
                    self.warn(net, "it has neither `name` nor `dev`; it was left out");
                    continue;
                }
            };
            let number = net.get("port").and_then(|text| text.trim().parse().ok()).unwrap_or(1);
            // It is -1 where a plug-in does not know it.
            let mbit = net.get("speed").and_then(|text| text.trim().parse().ok()).filter(|&mbit| mbit > 0);
            let port = Port { number, mbit, link_layer: layer(class), state: PortState::Unknown };
            if let Some(nic) = self.parts.nics[first..].iter_mut().find(|nic| nic.name == name) {
                nic.ports.push(port);
                continue;
            }
            push(
                &mut self.parts.nics,
                Nic {
                    address: at.map(|_| address),
                    numa: above.numa,
                    ports: vec![port],
                    guid: net.get("guid").and_then(guid),
                    pcie,
                    gpu_direct: direct(net),
                    ..Nic::at(name, address, above.parent)
                },
                limits::NICS,
            );
        }
    }
}

impl Reader {
    /// Leaves out NICs that NCCL made of others which are in the file too. It calls them by the names
    /// of those, `mlx5_0+mlx5_1`. Their members are what can be opened, and would count twice.
    pub(super) fn leave_out_fused_nics(&mut self) {
        let names: BTreeSet<String> = self.parts.nics.iter().map(|nic| nic.name.clone()).collect();
        let is_fused = |name: &str| name.contains('+') && name.split('+').all(|member| names.contains(member));
        let fused: Vec<String> = names.iter().filter(|name| is_fused(name)).cloned().collect();
        self.parts.nics.retain(|nic| !fused.contains(&nic.name));
        for name in fused {
            self.note(name, "it is made of NICs that are in the file too; those were kept in its place");
        }
    }
}

/// True of a `net` that NCCL leaves out: one that it fused with others, or that is not used.
fn is_dropped(net: &Element<'_>) -> bool {
    net.get("keep").is_some_and(|keep| keep.trim() == "0")
}

/// Ports of a card that are read; real ones have a handful.
const MOST_NETS: usize = 256;

fn layer(class: u16) -> LinkLayer {
    match class {
        0x0207 => LinkLayer::InfiniBand,
        0x0200 => LinkLayer::Ethernet,
        _ => LinkLayer::Unknown,
    }
}
