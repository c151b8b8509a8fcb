//! What NCCL and RCCL call the models of GPUs.

use super::gpu::nvlink;
use crate::{Gpu, GpuLink, GpuLinkKind, GpuVendor};

/// The compute capability of an NVIDIA GPU: from its model, or where links are of an uncommon
/// generation, from those.
pub(super) fn capability(gpu: &Gpu, links: &[GpuLink]) -> Option<String> {
    const NAMES: [(&str, &str); 12] = [
        ("P100", "60"),
        ("V100", "70"),
        ("A100", "80"),
        ("A800", "80"),
        ("H100", "90"),
        ("H200", "90"),
        ("H800", "90"),
        ("GH200", "90"),
        ("B200", "100"),
        ("GB200", "100"),
        ("B300", "103"),
        ("GB300", "103"),
    ];
    if gpu.vendor == GpuVendor::Amd {
        return None;
    }
    let model = gpu.model.as_deref().unwrap_or_default();
    let by_name = || NAMES.iter().find(|(name, _)| names(model, name)).map(|(_, sm)| (*sm).to_owned());
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
    let named = || NAMES.iter().find(|(name, _)| names(model, name)).map(|(_, set)| (*set).to_owned());
    if model.starts_with("gfx") { Some(model.to_owned()) } else { named() }
}

/// Whether the words of a model have this number. Letters may follow it, as in `V100S` and `MI300X`; `A1000` is another one.
fn names(model: &str, name: &str) -> bool {
    model
        .split(|c: char| !c.is_ascii_alphanumeric())
        .any(|word| word.strip_prefix(name).is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Parent;

    /// A GPU of that vendor, as its driver or the list of PCI devices calls it.
    fn gpu(vendor: GpuVendor, model: &str) -> Gpu {
        let address = "0000:17:00.0".parse().expect("an address");
        Gpu { vendor, model: Some(model.to_owned()), ..Gpu::at(address, Parent::Unknown) }
    }

    #[test]
    fn a_model_is_known_by_whole_words() {
        let sm = |model| capability(&gpu(GpuVendor::Nvidia, model), &[]);
        for (model, expected) in [
            ("NVIDIA A100-SXM4-80GB", "80"),
            ("GA100 [A100 PCIe 40GB]", "80"),
            ("Tesla V100S-PCIE-32GB", "70"),
            ("NVIDIA GH200 480GB", "90"),
            ("NVIDIA GB200", "100"),
        ] {
            assert_eq!(sm(model).as_deref(), Some(expected), "{model}");
        }
        for model in ["NVIDIA RTX A1000", "Quadro P1000"] {
            assert_eq!(sm(model), None, "{model}");
        }
        let set = |model| instruction_set(&gpu(GpuVendor::Amd, model));
        assert_eq!(set("AMD Instinct MI300X OAM").as_deref(), Some("gfx942"));
        assert_eq!(set("AMD MI5000"), None);
    }
}
