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
    let seen = devices.all().iter();
    let seen = seen.filter_map(|(&at, device)| Some((at, GpuVendor::of(device.vendor, device.class)?, device.clone())));
    let seen: Vec<(PciAddress, GpuVendor, Device)> = seen.collect();
    let asked = seen.iter().any(|(_, vendor, _)| *vendor == GpuVendor::Nvidia);
    let listed = asked.then(|| ask(probe.tree, driver)).flatten();
    let listed: Option<BTreeMap<PciAddress, DriverGpu>> =
        listed.map(|gpus| gpus.into_iter().map(|gpu| (gpu.address, gpu)).collect());
    let driver = |address| listed.as_ref().and_then(|listed| listed.get(&address));
    let refusal = |address, vendor, device: &Device| refusal(probe, vendor, device, listed.is_some(), driver(address));
    let usable = |physical| {
        let place = seen.binary_search_by_key(&physical, |(address, ..)| *address);
        place.is_ok_and(|place| refusal(physical, seen[place].1, &seen[place].2).is_none())
    };
    let mut found = Vec::new();
    let mut parts = 0;
    for (address, vendor, device) in &seen {
        let (address, vendor) = (*address, *vendor);
        // Parts of a card that can be used whole, made for virtual machines.
        if devices.physfn(&device.path).is_some_and(usable) {
            parts += 1;
            continue;
        }
        if let Some(problem) = refusal(address, vendor, device) {
            machine.warn(Warning::new(address, problem + "; it was passed over"));
            continue;
        }
        let driver = driver(address);
        let place = devices.place(&device.path, Speed::Highest);
        let product = || probe.tree.read(&device.path, "product_name").filter(|name| !name.is_empty());
        machine.gpu(Gpu {
            numa: place.numa,
            vendor,
            model: driver.and_then(|gpu| gpu.name.clone()).or_else(product),
            device: driver.and_then(|gpu| gpu.index),
            pcie: place.pcie,
            physfn: place.physfn,
            ..Gpu::at(address, place.parent)
        });
        let device = probe.tree.hex(&device.path, "device");
        found.push(Found { address, vendor, device, numa: place.numa, driver: driver.cloned() });
        // One more than there may be, which the builder tells.
        if found.len() > limits::GPUS {
            break;
        }
    }
    if parts > 0 {
        let problem = format!("{parts} of them were left out, since the GPUs that they are parts of are there");
        machine.warn(Warning::new("virtual functions of GPUs", problem));
    }
    found
}

/// Why a GPU is passed over, if it is: this process can not use it, or there is no use. NVIDIA's driver
/// lists those that it can; where the driver does not answer, it can use none without the device by which
/// it is reached. AMD's are used by a render node each.
fn refusal(
    probe: &Probe<'_>,
    vendor: GpuVendor,
    device: &Device,
    answered: bool,
    driver: Option<&DriverGpu>,
) -> Option<String> {
    const CONTROL: &str = "nvidiactl";
    match vendor {
        GpuVendor::Nvidia if driver.is_some() => None,
        GpuVendor::Nvidia if answered => Some("its driver does not give this process the GPU".to_owned()),
        GpuVendor::Nvidia => (probe.checks() && !probe.can_open(CONTROL)).then(|| {
            format!("/dev/{CONTROL} can not be opened, by which its driver is reached (give the container the GPU)")
        }),
        GpuVendor::Amd if is_integrated(probe, device) => {
            Some("it has little memory of its own: it is graphics within a processor".to_owned())
        }
        GpuVendor::Amd => {
            let nodes = render_nodes(probe, device);
            match nodes.first() {
                None => probe.checks().then(|| {
                    "it has no render node (/dev/dri/renderD*): amdgpu is not loaded, or the GPU is given to a \
                     virtual machine"
                        .to_owned()
                }),
                Some(_) if nodes.iter().any(|node| probe.can_open(node)) => None,
                Some(first) => Some(format!("/dev/{first} can not be opened, which the GPU needs")),
            }
        }
        GpuVendor::Intel | GpuVendor::Other => None,
    }
}

/// True of a display controller of AMD that is part of a processor, by its memory: firmware sets aside 64
/// MiB to 2 GiB for such, and cards that compute have 4 GiB and more. Where the user has it set aside as
/// much, as on processors that are made for it, it is there to compute too. That it showed the console as
/// the machine came up says nothing, since a card does as well; nor does its link, which is made up.
/// Without amdgpu the size is not known, and it is taken for a card.
fn is_integrated(probe: &Probe<'_>, device: &Device) -> bool {
    const LEAST: u64 = 4 << 30;
    let draws = matches!(device.class, 0x0300 | 0x0380);
    draws && probe.tree.number::<u64>(&device.path, "mem_info_vram_total").is_some_and(|bytes| bytes < LEAST)
}

/// The devices by which an AMD GPU is used.
fn render_nodes(probe: &Probe<'_>, device: &Device) -> Vec<String> {
    let nodes = probe.tree.entries(&join(&device.path, "drm")).into_iter();
    let nodes = nodes.filter(|(name, _)| name.starts_with("renderD"));
    nodes.filter_map(|(name, path)| probe.tree.read(&path?, "dev").map(|_| format!("dri/{name}"))).collect()
}
