//! What joins GPUs beside PCIe: NVLink, NVSwitch, C2C and xGMI.

use std::collections::BTreeMap;

use super::gpus::Found;
use super::pci::{Devices, NVSWITCH};
use super::tree::{Tree, join};
use crate::{Bandwidth, GpuLink, GpuLinkKind, GpuPeer, GpuVendor, MachineBuilder, NvSwitch, PciAddress, limits};

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
        xgmi(tree, gpus, machine);
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

/// Links of AMD's GPUs, as its kernel driver lists them for the run-time library.
fn xgmi(tree: &Tree<'_>, gpus: &[Found], machine: &mut MachineBuilder) {
    const NODES: &str = "class/kfd/kfd/topology/nodes";
    const XGMI: u64 = 11;
    let mut nodes = Vec::new();
    for (name, path) in tree.entries(NODES) {
        let (Ok(number), Some(path)) = (name.parse::<u64>(), path) else { continue };
        let properties = Properties(tree.read(&path, "properties").unwrap_or_default());
        let location = properties.get("location_id").unwrap_or(0);
        let domain = properties.get("domain").and_then(|domain| u32::try_from(domain).ok()).unwrap_or(0);
        let address = PciAddress::new(domain, (location >> 8) as u8, (location >> 3 & 31) as u8, location as u8 & 7);
        if nodes.len() < limits::GPUS && gpus.iter().any(|gpu| gpu.address == address) {
            nodes.push((number, address, path, properties.get("gfx_target_version").unwrap_or(0)));
        }
    }
    for (_, gpu, path, version) in &nodes {
        for (_, link) in tree.entries(&join(path, "io_links")) {
            let Some(text) = link.and_then(|link| tree.read(&link, "properties")) else { continue };
            let link = Properties(text);
            let to = link.get("node_to").and_then(|to| nodes.iter().find(|(number, ..)| *number == to));
            let (Some(XGMI), Some((_, to, ..))) = (link.get("type"), to) else { continue };
            // The driver gives the bandwidth of one link, and of all to this neighbour.
            let one = link.get("min_bandwidth").unwrap_or(0).max(1);
            let count = (link.get("max_bandwidth").unwrap_or(0) / one).clamp(1, 16) as u32;
            let (to, kind) = (GpuPeer::Gpu(*to), GpuLinkKind::Xgmi);
            machine.gpu_link(GpuLink { gpu: *gpu, to, kind, count, each: GpuLinkKind::xgmi(cdna(*version)) });
        }
    }
}

/// The generation of CDNA, of the number of the instruction set: 90008 for gfx908, 90010 for gfx90a,
/// 90402 for gfx942.
fn cdna(version: u64) -> u32 {
    match version {
        0..90_010 => 1,
        90_010..90_400 => 2,
        _ => 3,
    }
}

/// Lines of a name and a number.
struct Properties(String);

impl Properties {
    fn get(&self, name: &str) -> Option<u64> {
        self.0.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
    }
}
