//! What joins NVIDIA's GPUs beside PCIe: NVLink, NVSwitch and C2C.

use std::collections::BTreeMap;

use super::gpus::Found;
use super::pci::{Devices, NVSWITCH};
use super::tree::Tree;
use super::xgmi;
use crate::{Bandwidth, GpuLink, GpuLinkKind, GpuPeer, GpuVendor, MachineBuilder, NvSwitch, PciAddress, Warning};

/// Adds the links of GPUs, and the switches that are seen.
pub(super) fn read(tree: &Tree<'_>, gpus: &[Found], devices: &Devices<'_>, machine: &mut MachineBuilder) {
    let switches = devices.all().iter().filter(|(_, d)| (d.vendor, d.class, d.interface) == (0x10de, NVSWITCH, 0));
    let addresses: Vec<PciAddress> = switches.map(|(&address, _)| address).collect();
    let first = addresses.first().copied();
    if first.is_some() {
        machine.nv_switch(NvSwitch { addresses });
    }
    let mut asked = gpus.iter().filter(|gpu| gpu.vendor == GpuVendor::Nvidia).peekable();
    if let Some(first) = first
        && asked.peek().is_some()
        && asked.all(|gpu| gpu.driver.is_none())
    {
        let problem = "NVSwitch is there, but NVML did not answer: NVLinks are not known. Install libnvidia-ml.so.1, \
            or give the container the driver's `utility` capability";
        machine.warn(Warning::new(first, problem));
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
                each: GpuLinkKind::c2c(),
            });
        }
    }
    if gpus.iter().any(|gpu| gpu.vendor == GpuVendor::Amd) {
        xgmi::read(tree, gpus, machine);
    }
}

fn nvlinks(gpu: &Found, gpus: &[Found], devices: &Devices<'_>, machine: &mut MachineBuilder) {
    let mut counts: BTreeMap<(GpuPeer, Bandwidth), u32> = BTreeMap::new();
    let mut lost: BTreeMap<(PciAddress, &str), u32> = BTreeMap::new();
    for link in gpu.driver.iter().flat_map(|driver| &driver.links) {
        let end = link.remote.map_or(Ok(Some(GpuPeer::NvSwitch)), |address| end(address, gpus, devices));
        match (end, link.remote) {
            (Ok(Some(to)), _) => *counts.entry((to, GpuLinkKind::nvlink(link.generation))).or_default() += 1,
            (Err(what), Some(address)) => *lost.entry((address, what)).or_default() += 1,
            _ => {}
        }
    }
    for ((to, each), count) in counts {
        machine.gpu_link(GpuLink { gpu: gpu.address, to, kind: GpuLinkKind::NvLink, count, each });
    }
    for ((address, what), count) in lost {
        let problem = format!("NVLinks to {address}, {what}: {count}; they were left out");
        machine.warn(Warning::new(gpu.address, problem));
    }
}

/// What stands at the other end of an NVLink. `None` is a GPU that this process does not have, whose
/// links are nothing to it; an error is what no NVLink should lead to.
fn end(address: PciAddress, gpus: &[Found], devices: &Devices<'_>) -> Result<Option<GpuPeer>, &'static str> {
    if gpus.iter().any(|gpu| gpu.address == address) {
        return Ok(Some(GpuPeer::Gpu(address)));
    }
    match devices.all().get(&address) {
        Some(device) if (device.class, device.interface) == (NVSWITCH, 1) => match devices.numa(&device.path) {
            Some(numa) => Ok(Some(GpuPeer::Cpu(numa))),
            None => Err("a processor of which the NUMA node is not known"),
        },
        Some(device) if GpuVendor::of(device.vendor, device.class).is_some() => Ok(None),
        Some(device) if device.class != NVSWITCH => Err("which is neither a GPU nor an NVSwitch"),
        // Virtual machines do not show switches.
        _ => Ok(Some(GpuPeer::NvSwitch)),
    }
}

/// True of NVIDIA's GPUs that are one package with a Grace processor, by name, or by the numbers of
/// GH200, GB200 and GB300 in the list of PCI identifiers.
pub(crate) fn is_superchip(name: Option<&str>, device: Option<u32>) -> bool {
    let named = ["GH200", "GB200", "GB300"].iter().any(|chip| name.is_some_and(|name| name.contains(chip)));
    named || matches!(device, Some(0x2342 | 0x2345 | 0x2348 | 0x2941 | 0x31c2))
}
