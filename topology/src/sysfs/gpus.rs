//! GPUs: found by class and maker, and kept if this process can use them.

use std::collections::BTreeMap;

use super::driver::{DriverGpu, GpuDriver, ask};
use super::pci::{Device, Devices, Speed};
use super::source::Probe;
use super::tree::join;
use crate::{Gpu, GpuVendor, MachineBuilder, PciAddress, Warning, limits};

/// A GPU of the machine, with what its driver said.
pub(super) struct Found {
    pub(super) address: PciAddress,
    pub(super) vendor: GpuVendor,
    /// The number by which its maker knows the model.
    pub(super) device: Option<u32>,
    pub(super) numa: Option<u32>,
    pub(super) driver: Option<DriverGpu>,
}

/// Adds the GPUs, and gives them in the order of addresses.
pub(super) fn read(
    probe: &Probe<'_>,
    driver: &dyn GpuDriver,
    devices: &mut Devices<'_>,
    machine: &mut MachineBuilder,
) -> Vec<Found> {
    let gpus: Vec<(PciAddress, GpuVendor, Device)> = devices
        .all()
        .iter()
        .filter_map(|(&address, device)| {
            vendor(device.vendor, device.class).map(|vendor| (address, vendor, device.clone()))
        })
        .collect();
    let mut known: BTreeMap<PciAddress, DriverGpu> = BTreeMap::new();
    if gpus.iter().any(|(_, vendor, _)| *vendor == GpuVendor::Nvidia) {
        known.extend(ask(probe.tree, driver).into_iter().map(|gpu| (gpu.address, gpu)));
    }
    let lists = !known.is_empty();
    let mut found = Vec::new();
    for (address, vendor, device) in gpus {
        let driver = known.remove(&address);
        if vendor == GpuVendor::Nvidia && lists && driver.is_none() {
            machine.warn(Warning::new(address, "its driver does not give this process the GPU; it was passed over"));
            continue;
        }
        if let Some(closed) = render_node(probe, &device).filter(|name| !probe.can_open(name)) {
            let problem = format!("/dev/{closed} can not be opened, which the GPU needs; it was passed over");
            machine.warn(Warning::new(address, problem));
            continue;
        }
        let place = devices.place(&device.path, Speed::Highest);
        let product = || probe.tree.read(&device.path, "product_name").filter(|name| !name.is_empty());
        machine.gpu(Gpu {
            numa: place.numa,
            vendor,
            model: driver.as_ref().and_then(|gpu| gpu.name.clone()).or_else(product),
            device: driver.as_ref().and_then(|gpu| gpu.index),
            pcie: place.pcie,
            physfn: place.physfn,
            ..Gpu::at(address, place.parent)
        });
        let device = probe.tree.hex(&device.path, "device");
        found.push(Found { address, vendor, device, numa: place.numa, driver });
        // One more than there may be, which the builder tells.
        if found.len() > limits::GPUS {
            break;
        }
    }
    found
}

/// The maker of a GPU; `None` of what is none. Display and 3D controllers, and for AMD display
/// controllers of no kind and processing accelerators, which its Instinct cards are. Others' display
/// controllers draw consoles.
pub(crate) fn vendor(vendor: u32, class: u16) -> Option<GpuVendor> {
    match (vendor, class) {
        (0x10de, 0x0300 | 0x0302) => Some(GpuVendor::Nvidia),
        (0x1002, 0x0300 | 0x0302 | 0x0380 | 0x1200) => Some(GpuVendor::Amd),
        _ => None,
    }
}

/// The device by which AMD's GPUs are used. NVIDIA's are not used by theirs.
fn render_node(probe: &Probe<'_>, device: &Device) -> Option<String> {
    if device.vendor != 0x1002 {
        return None;
    }
    let nodes = probe.tree.entries(&join(&device.path, "drm")).into_iter();
    let mut nodes = nodes.filter(|(name, _)| name.starts_with("renderD"));
    nodes.find_map(|(name, path)| probe.tree.read(&path?, "dev").map(|_| format!("dri/{name}")))
}
