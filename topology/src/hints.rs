//! What slows devices down and can be set otherwise.

use std::fmt;

use crate::PciAddress;
use crate::model::{BridgeRole, Machine, NodeId};

/// A setting of the machine that slows traffic between GPUs and NICs.
///
/// ```
/// use qpair_topology::{Gpu, Hint, Machine, Nic, Parent};
///
/// let mut machine = Machine::builder();
/// machine.gpu(Gpu::at("0000:17:00.0".parse()?, Parent::Unknown));
/// machine.nic(Nic::at("mlx5_0", "0000:18:00.0".parse()?, Parent::Unknown));
/// machine.iommu(true);
/// assert_eq!(machine.build().hints(), [Hint::Iommu]);
/// # Ok::<(), qpair_topology::ParsePciAddressError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hint {
    /// An IOMMU translates what devices do.
    Iommu,
    /// Access control (ACS request redirect) has these bridges send what passes between devices below them up to the host
    /// first.
    AccessControl(Vec<PciAddress>),
}

impl Machine {
    /// Settings that slow GPUDirect down, as far as the system tells them; none on a machine without GPUs that NICs could read.
    /// Access control is told to root alone.
    pub fn hints(&self) -> Vec<Hint> {
        let reads_gpus = self.nics().iter().any(|nic| !nic.software && nic.gpu_direct != Some(false));
        if !reads_gpus || self.gpus().is_empty() {
            return Vec::new();
        }
        let iommu = (self.description().iommu == Some(true)).then_some(Hint::Iommu);
        let bridges = self.redirecting();
        let control = (!bridges.is_empty()).then_some(Hint::AccessControl(bridges));
        iommu.into_iter().chain(control).collect()
    }

    /// Ports of switches that redirect, with a GPU or NIC below. A root port's has nothing beside it to be kept from.
    fn redirecting(&self) -> Vec<PciAddress> {
        let gpus = self.gpu_ids().map(NodeId::from);
        let devices = gpus.chain(self.nic_ids().map(NodeId::from));
        let mut found = Vec::new();
        for device in devices {
            let mut node = device;
            while let Some(parent) = self.parent(node) {
                node = parent;
                let NodeId::Bridge(place) = node else { continue };
                let bridge = &self.bridges()[usize::from(place)];
                if bridge.acs_redirect == Some(true) && bridge.role != BridgeRole::RootPort {
                    found.push(bridge.address);
                }
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }
}

/// A sentence, and what to do.
impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Iommu => f.write_str(
                "the IOMMU translates what devices do, which slows GPUDirect; let it pass by iommu.passthrough=1 in the \
                 kernel's command line, unless virtual machines need it",
            ),
            Self::AccessControl(bridges) => {
                let names: Vec<String> = bridges.iter().map(ToString::to_string).collect();
                write!(
                    f,
                    "access control (ACS) sends what passes between devices below a switch up to the host first, which slows \
                     GPUDirect, at {}; turn it off in the firmware, or as root by {}",
                    names.join(", "),
                    names.iter().map(|name| format!("setpci -s {name} ECAP_ACS+6.w=0000")).collect::<Vec<_>>().join("; ")
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bridge, Gpu, Nic, Parent};

    /// A GPU and a NIC below ports of a switch, which redirect as said; the root port above does.
    fn machine(redirect: [bool; 2], iommu: bool) -> Machine {
        let at = |bus, device| PciAddress::new(0, bus, device, 0);
        let mut machine = Machine::builder();
        let port = |address, parent, redirect| Bridge { acs_redirect: Some(redirect), ..Bridge::at(address, parent) };
        machine.bridge(port(at(0, 1), Parent::HostBridge { domain: 0, bus: 0 }, true));
        machine.bridge(port(at(1, 0), Parent::Bridge(at(0, 1)), false));
        for (place, redirect) in (0..2).zip(redirect) {
            machine.bridge(port(at(2, place), Parent::Bridge(at(1, 0)), redirect));
        }
        machine.gpu(Gpu::at(at(3, 0), Parent::Bridge(at(2, 0))));
        machine.nic(Nic::at("mlx5_0", at(4, 0), Parent::Bridge(at(2, 1))));
        machine.iommu(iommu);
        machine.build()
    }

    #[test]
    fn what_slows_gpudirect_is_told_with_what_to_do() {
        assert_eq!(machine([false, false], false).hints(), []);
        let hints = machine([true, true], true).hints();
        let ports = ["0000:02:00.0", "0000:02:01.0"].map(|address| address.parse().unwrap());
        assert_eq!(hints, [Hint::Iommu, Hint::AccessControl(ports.to_vec())]);
        assert!(hints[0].to_string().contains("iommu.passthrough=1"));
        let text = hints[1].to_string();
        assert!(
            text.contains("at 0000:02:00.0, 0000:02:01.0; ") && text.matches("setpci -s 0000:02:0").count() == 2,
            "{text}"
        );
    }

    #[test]
    fn nothing_is_told_where_nothing_would_be_gained() {
        let mut parts = machine([true, true], true).description().clone();
        parts.nics[0].gpu_direct = Some(false);
        assert_eq!(parts.clone().build().hints(), []);
        parts.nics[0].gpu_direct = None;
        parts.gpus.clear();
        assert_eq!(parts.build().hints(), []);
    }
}
