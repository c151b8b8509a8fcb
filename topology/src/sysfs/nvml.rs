//! NVIDIA's management library, which knows NVLinks.

use std::ffi::OsStr;

use nvml_wrapper::struct_wrappers::device::PciInfo;
use nvml_wrapper::{Device, Nvml as Library};

use super::driver::{DriverGpu, DriverLink, GpuDriver};
use crate::PciAddress;

/// The driver of NVIDIA's GPUs, by its library NVML, which is looked for when it is asked. Without a
/// library or a driver it says nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nvml;

impl GpuDriver for Nvml {
    fn gpus(&self) -> Option<Vec<DriverGpu>> {
        // Systems without development packages have the name with a version alone.
        let named = || Library::builder().lib_path(OsStr::new("libnvidia-ml.so.1")).init();
        let library = named().or_else(|_| Library::init()).ok()?;
        let count = library.device_count().ok()?.min(crate::limits::GPUS as u32);
        Some((0..count).filter_map(|index| gpu(&library.device_by_index(index).ok()?, index)).collect())
    }
}

/// The links that NVML numbers, `NVML_NVLINK_MAX_LINKS`; asking for others is an error.
const LINKS: u32 = 18;

fn gpu(device: &Device<'_>, index: u32) -> Option<DriverGpu> {
    let links = (0..LINKS).filter_map(|number| {
        let link = device.link_wrapper_for(number);
        // A link that does not exist is an error, one that is down is not active.
        link.is_active().ok().filter(|&active| active)?;
        let remote = link.remote_pci_info().ok().and_then(|pci| address(&pci));
        Some(DriverLink { remote, generation: generation(link.version().unwrap_or(0)) })
    });
    let links = links.collect();
    Some(DriverGpu { address: address(&device.pci_info().ok()?)?, index: Some(index), name: device.name().ok(), links })
}

/// Of the codes of `nvmlNvlinkVersion_t`, which count half steps.
fn generation(code: u32) -> u32 {
    match code {
        0 | 1 => 1,
        2 | 3 => 2,
        4 | 5 => 3,
        6 => 4,
        _ => 5,
    }
}

fn address(pci: &PciInfo) -> Option<PciAddress> {
    let bus = u8::try_from(pci.bus).ok()?;
    let device = u8::try_from(pci.device).ok().filter(|&device| device < 32)?;
    (pci.domain <= 0xffff_fffe).then(|| PciAddress::new(pci.domain, bus, device, 0))
}
