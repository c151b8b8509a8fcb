//! What single objects say: processors, addresses, links.

use super::super::xml::Element;
use crate::{Cpu, CpuSet, PciAddress, PcieGeneration, PcieLink};

/// What kind of processors there are, and no more of them, from the first that says it: the root (version 3), the
/// machine, or a package.
pub(super) fn make(root: &Element<'_>) -> Cpu {
    let machine = root.named("object").next();
    let objects = machine.into_iter().flat_map(|machine| {
        std::iter::once(machine)
            .chain(machine.named("object").flat_map(|child| std::iter::once(child).chain(child.named("object"))))
    });
    let mut make = Cpu::default();
    let small = |object, name| info(object, name)?.trim().parse().ok();
    for object in std::iter::once(root).chain(objects).take(4096) {
        make.arch = make.arch.or_else(|| info(object, "Architecture")).map(|arch| match &*arch {
            "aarch64" => "arm64".to_owned(),
            _ => arch,
        });
        make.vendor = make.vendor.or_else(|| info(object, "CPUVendor"));
        make.family = make.family.or_else(|| small(object, "CPUFamilyNumber"));
        make.model = make.model.or_else(|| small(object, "CPUModelNumber"));
    }
    make
}

/// The value of an `info` of an object.
pub(super) fn info(object: &Element<'_>, name: &str) -> Option<String> {
    let info = object.named("info").find(|info| info.get("name") == Some(name))?;
    info.get("value").filter(|value| !value.is_empty()).map(|value| value.chars().take(200).collect())
}

pub(super) fn address(object: &Element<'_>) -> Option<PciAddress> {
    object.get("pci_busid")?.parse().ok()
}

/// The node of a mask that has one only.
pub(super) fn only(mask: &str) -> Option<u32> {
    let set = CpuSet::from_mask(mask).ok()?;
    let first = set.iter().next()?;
    (set.len() == 1).then_some(first)
}

/// The link of which an object has the bandwidth, in gigabytes a second without line code.
pub(super) fn link(object: &Element<'_>, idles: bool) -> PcieLink {
    let Some(speed) = object.get("pci_link_speed").and_then(|text| text.trim().parse::<f64>().ok()) else {
        return PcieLink::UNKNOWN;
    };
    for width in [16, 8, 4, 2, 1] {
        for generation in PcieGeneration::ALL {
            // Line codes: 8 of 10 bits, 128 of 130, and 242 of 256 bytes of a flit.
            let code = match generation {
                PcieGeneration::Gen1 | PcieGeneration::Gen2 => 8.0 / 10.0,
                PcieGeneration::Gen6 => 242.0 / 256.0,
                _ => 128.0 / 130.0,
            };
            let nominal = f64::from(generation.rate()) / 80.0 * code * f64::from(width);
            if (speed / nominal - 1.0).abs() < 0.005 {
                let known = !(idles && generation == PcieGeneration::Gen1);
                return PcieLink { generation: known.then_some(generation), width: Some(width as u8) };
            }
        }
    }
    PcieLink::UNKNOWN
}
