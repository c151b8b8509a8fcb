//! What NCCL and RCCL call the models of GPUs.

use super::gpu::nvlink;
use crate::{Gpu, GpuLink, GpuLinkKind, GpuVendor};

/// The compute capability of an NVIDIA GPU: from its model, or where links are of an uncommon
/// generation, from those.
pub(super) fn capability(gpu: &Gpu, links: &[GpuLink]) -> Option<String> {
    const NAMES: [(&str, &str); 10] = [
        ("P100", "60"),
        ("V100", "70"),
        ("A100", "80"),
        ("A800", "80"),
        ("H100", "90"),
        ("H200", "90"),
        ("H800", "90"),
        ("GH200", "90"),
        ("B200", "100"),
        ("B300", "103"),
    ];
    if gpu.vendor == GpuVendor::Amd {
        return None;
    }
    let model = gpu.model.as_deref().unwrap_or_default();
    let by_name = || NAMES.iter().find(|(name, _)| model.contains(name)).map(|(_, sm)| (*sm).to_owned());
    let by_links = || {
        let link = links.iter().find(|link| link.kind == GpuLinkKind::NvLink)?;
        let common = link.each == nvlink(None);
        (!common).then(|| if link.each > nvlink(None) { "100" } else { "60" }.to_owned())
    };
    model.strip_prefix("sm_").map(str::to_owned).or_else(by_name).or_else(by_links)
}

/// The instruction set of an AMD GPU.
pub(super) fn instruction_set(gpu: &Gpu) -> Option<String> {
    const NAMES: [(&str, &str); 7] = [
        ("MI50", "gfx906"),
        ("MI60", "gfx906"),
        ("MI100", "gfx908"),
        ("MI210", "gfx90a"),
        ("MI250", "gfx90a"),
        ("MI300", "gfx942"),
        ("MI325", "gfx942"),
    ];
    let model = gpu.model.as_deref().filter(|_| gpu.vendor == GpuVendor::Amd)?;
    let named = || NAMES.iter().find(|(name, _)| model.contains(name)).map(|(_, set)| (*set).to_owned());
    if model.starts_with("gfx") { Some(model.to_owned()) } else { named() }
}
