//! What joins NVIDIA's GPUs beside PCIe: NVLink, NVSwitch and C2C.

use std::collections::BTreeMap;

use super::gpus::Found;
use super::pci::{Devices, NVSWITCH};
use super::tree::Tree;
use super::xgmi;
use crate::{Bandwidth, GpuLink, GpuLinkKind, GpuPeer, GpuVendor, MachineBuilder, NvSwitch, PciAddress};

/// Adds the links of GPUs, and the switches that are seen.
pub(super) fn read(tree: &Tree<'_>, gpus: &[Found], devices: &Devices<'_>, machine: &mut MachineBuilder) {
    let switches = devices.all().iter().filter(|(_, d)| (d.vendor, d.class, d.interface) == (0x10de, NVSWITCH, 0));
    let addresses: Vec<PciAddress> = switches.map(|(&address, _)| address).collect();
    if !addresses.is_empty() {
        machine.nv_switch(NvSwitch { addresses });
    }
    for gpu in gpus {
        nvlinks(gpu, gpus, devices, machine);
        let name = gpu.driver.as_ref().and_then(|driver| driver.name.as_deref());
        let superchip = gpu.vendor == GpuVendor::Nvidia && is_superchip(name, gpu.device);
        if let Some(numa) = gpu.numa.filter(|_| superchip) {
            let to = GpuPeer::Cpu(numa);
            machine.gpu_link(GpuLink {
                gpu: gpu.address,
                to,
                kind: GpuLinkKind::C2c,
                count: 1,
                each: GpuLinkKind::C2C,
            });
        }
    }
    if gpus.iter().any(|gpu| gpu.vendor == GpuVendor::Amd) {
        xgmi::read(tree, gpus, machine);
    }
}

fn nvlinks(gpu: &Found, gpus: &[Found], devices: &Devices<'_>, machine: &mut MachineBuilder) {
    let mut counts: BTreeMap<(GpuPeer, Bandwidth), u32> = BTreeMap::new();
    for link in gpu.driver.iter().flat_map(|driver| &driver.links) {
        let device = link.remote.and_then(|address| devices.all().get(&address));
        let to = match (link.remote, device) {
            (Some(address), _) if gpus.iter().any(|gpu| gpu.address == address) => GpuPeer::Gpu(address),
            (_, Some(device)) if (device.class, device.interface) == (NVSWITCH, 1) => {
                let Some(numa) = devices.numa(&device.path) else { continue };
                GpuPeer::Cpu(numa)
            }
            // The GPU at the other end is not for this process.
            (_, Some(device)) if device.class != NVSWITCH => continue,
            _ => GpuPeer::NvSwitch,
        };
        *counts.entry((to, GpuLinkKind::nvlink(link.generation))).or_default() += 1;
    }
    for ((to, each), count) in counts {
        machine.gpu_link(GpuLink { gpu: gpu.address, to, kind: GpuLinkKind::NvLink, count, each });
    }
}

/// True of NVIDIA's GPUs that are one package with a Grace processor, by name, or by the numbers of
/// GH200, GB200 and GB300 in the list of PCI identifiers.
pub(crate) fn is_superchip(name: Option<&str>, device: Option<u32>) -> bool {
    let named = ["GH200", "GB200", "GB300"].iter().any(|chip| name.is_some_and(|name| name.contains(chip)));
    named || matches!(device, Some(0x2342 | 0x2345 | 0x2348 | 0x2941 | 0x31c2))
}
