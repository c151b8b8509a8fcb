//! Links between GPUs, which hwloc keeps as matrices of bandwidth (version 2 and later, where it was
//! built with NVML or ROCm SMI).

use super::super::parts::push;
use super::super::xml::Element;
use super::read::Reader;
use crate::{Bandwidth, GpuLink, GpuLinkKind, GpuPeer, PciAddress, limits};

/// True of elements whose text is needed.
pub(super) fn is_list(name: &str) -> bool {
    matches!(name, "indexes" | "u64values")
}

/// Adds the links of all matrices of bandwidth.
pub(super) fn read(root: &Element<'_>, reader: &mut Reader) {
    for matrix in &root.children {
        let kind = match matrix.get("name") {
            Some("NVLinkBandwidth") => GpuLinkKind::NvLink,
            Some("XGMIBandwidth") => GpuLinkKind::Xgmi,
            _ => continue,
        };
        let list = |name: &str| -> Vec<u64> {
            let numbers = matrix.named(name).flat_map(|list| list.text.split_whitespace());
            // With several kinds of objects each is `PCIDev:12`.
            let numbers = numbers.map(|number| number.rsplit(':').next().unwrap_or(number).parse().unwrap_or(0));
            numbers.take(limits::LINKS).collect()
        };
        let (objects, values) = (list("indexes"), list("u64values"));
        if objects.is_empty() || values.len() != objects.len() * objects.len() {
            reader.warn(matrix, "it is not square; the links of GPUs in it were left out");
            continue;
        }
        let ends: Vec<Option<GpuPeer>> = objects.iter().map(|index| end(reader, *index)).collect();
        for (row, from) in values.chunks(objects.len()).zip(&ends) {
            let Some(GpuPeer::Gpu(gpu)) = *from else { continue };
            for (&value, to) in row.iter().zip(&ends) {
                let Some(to) = to.filter(|&to| to != GpuPeer::Gpu(gpu) && value > 0) else { continue };
                push(&mut reader.parts.gpu_links, link(gpu, to, kind, value), limits::LINKS);
            }
        }
    }
}

fn end(reader: &Reader, index: u64) -> Option<GpuPeer> {
    let address: PciAddress = *reader.indices.get(&index)?;
    if reader.parts.gpus.iter().any(|gpu| gpu.address == address) {
        return Some(GpuPeer::Gpu(address));
    }
    let switches = reader.parts.nv_switch.as_ref()?;
    switches.addresses.contains(&address).then_some(GpuPeer::NvSwitch)
}

/// Of a nominal bandwidth in megabytes a second. NVLinks have 25 GB/s or 20; of those with 50 each
/// counts as two.
fn link(gpu: PciAddress, to: GpuPeer, kind: GpuLinkKind, value: u64) -> GpuLink {
    let (count, each) = match kind {
        GpuLinkKind::NvLink if value.is_multiple_of(25_000) => (value / 25_000, GpuLinkKind::nvlink(2)),
        GpuLinkKind::NvLink if value.is_multiple_of(20_000) => (value / 20_000, GpuLinkKind::nvlink(1)),
        _ => (1, Bandwidth::from_mb(value / 4 * 3)),
    };
    GpuLink { gpu, to, kind, count: u32::try_from(count).unwrap_or(u32::MAX).min(1024), each }
}
