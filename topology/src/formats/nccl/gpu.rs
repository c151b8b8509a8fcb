//! GPUs, and what their `sm` and `gcn` say of their links.

use super::super::parts::{number, push};
use super::super::xml::Element;
use super::read::{Above, Reader, direct};
use crate::{Bandwidth, Gpu, GpuLinkKind, GpuPeer, GpuVendor, PciAddress, PcieLink, limits};

/// The class of a processor's end of NVLinks; NVSwitches have 0x068000.
pub(super) const CPU_BRIDGE: u64 = 0x06_8001;

impl Reader {
    pub(super) fn gpu(&mut self, element: &Element<'_>, address: PciAddress, class: u16, pcie: PcieLink, above: Above) {
        let nothing = Element::default();
        let gpu = element.named("gpu").next().unwrap_or(&nothing);
        let vendor = vendor(element, gpu, class);
        let model = match vendor {
            GpuVendor::Amd => gpu.get("gcn").map(|gcn| format!("gfx{}", gcn.trim_start_matches("gfx"))),
            _ => gpu.get("sm").map(|sm| format!("sm_{sm}")),
        };
        let model = model.filter(|model| model.len() < 40);
        for link in &gpu.children {
            self.gpu_link(link, address, model.as_deref(), class, above);
        }
        push(
            &mut self.parts.gpus,
            Gpu {
                numa: above.numa,
                vendor,
                model,
                device: gpu.get("dev").and_then(|text| text.trim().parse().ok()),
                pcie,
                gpu_direct: direct(gpu),
                ..Gpu::at(address, above.parent)
            },
            limits::GPUS,
        );
    }

    fn gpu_link(&mut self, link: &Element<'_>, gpu: PciAddress, model: Option<&str>, class: u16, above: Above) {
        let (kind, each) = match link.name {
            "nvlink" => (GpuLinkKind::NvLink, nvlink(model)),
            "xgmi" => (GpuLinkKind::Xgmi, xgmi(model, class)),
            "c2c" => {
                // In megabytes a second, nominal; five sixths of it come across.
                let nominal = link.get("bw").and_then(number).unwrap_or(450_000);
                (GpuLinkKind::C2c, Bandwidth::from_bytes(nominal.saturating_mul(1_000_000) / 6 * 5))
            }
            _ => return self.warn_unknown(link),
        };
        let count = link.get("count").map_or(Some(1), |text| text.trim().parse::<u32>().ok());
        let Some(count) = count.filter(|&count| (1..=1024).contains(&count)) else {
            return self.warn(link, "its `count` can not be; the link was left out");
        };
        let target = link.get("target").and_then(|text| text.parse::<PciAddress>().ok());
        let class = link.get("tclass").and_then(number);
        let to = if kind == GpuLinkKind::C2c || class == Some(CPU_BRIDGE) {
            let Some(numa) = above.numa else {
                return self.warn(link, "it leads to a processor that is not known; it was left out");
            };
            GpuPeer::Cpu(numa)
        } else if class.is_some_and(|class| class >> 8 == 0x0680) || target.is_none() {
            // What is not seen from within a virtual machine is a switch.
            self.nv_switch(target);
            GpuPeer::NvSwitch
        } else {
            target.map_or(GpuPeer::NvSwitch, GpuPeer::Gpu)
        };
        self.link(gpu, to, kind, each, count);
    }
}

fn vendor(element: &Element<'_>, gpu: &Element<'_>, class: u16) -> GpuVendor {
    match element.get("vendor").and_then(number) {
        Some(0x10de) => GpuVendor::Nvidia,
        Some(0x1002) => GpuVendor::Amd,
        Some(0x8086) => GpuVendor::Intel,
        Some(_) => GpuVendor::Other,
        None if gpu.get("gcn").is_some() || matches!(class, 0x0380 | 0x1200) => GpuVendor::Amd,
        None => GpuVendor::Nvidia,
    }
}

/// The generation of NVLink follows from the compute capability: 6.0 has the first, 7.0 to 9.0 are
/// alike to a link, 10.0 has twice as much.
pub(super) fn nvlink(model: Option<&str>) -> Bandwidth {
    let capability = model.and_then(|model| model.strip_prefix("sm_")?.parse::<u32>().ok());
    GpuLinkKind::nvlink(match capability {
        Some(0..70) => 1,
        Some(100..) => 5,
        _ => 3,
    })
}

/// The generation of CDNA follows from the instruction set. RCCL has written gfx90a as 910.
pub(super) fn xgmi(model: Option<&str>, class: u16) -> Bandwidth {
    let model = model.and_then(|model| model.strip_prefix("gfx"));
    GpuLinkKind::xgmi(match model {
        Some(model) if model.starts_with("94") || model.starts_with("95") => 3,
        Some("90a" | "910") => 2,
        None if class == 0x1200 => 3,
        _ => 1,
    })
}
