//! The kernel's part: modules, who sees devices, and the IOMMU.

use qpair::topology::Hint;

use super::super::finding::{Finding, Section};
use super::super::system::{RdmaDevice, System};

/// What the kernel lets processes do.
pub fn check(system: &System) -> Vec<Finding> {
    [verbs_module(system), exclusive_namespaces(system), iommu(system)].into_iter().flatten().collect()
}

/// Without ib_uverbs devices are there, and no process can open them.
fn verbs_module(system: &System) -> Option<Finding> {
    let of = Section::Kernel;
    if system.devices.is_empty() {
        return None;
    }
    if system.kernel.has_verbs {
        return Some(Finding::ok(of, "ib-uverbs", "the kernel lets processes use RDMA devices (ib_uverbs)"));
    }
    let finding = Finding::problem(of, "ib-uverbs", "the module ib_uverbs is not loaded")
        .because("Without it no process can open an RDMA device.");
    Some(if system.kernel.ships("ib_uverbs") == Some(false) {
        let release = system.kernel.release.as_deref().unwrap_or_default();
        finding
            .fix("the kernel's modules lack it: install the rest of them", [format!("# modules of kernel {release}")])
    } else {
        finding
            .fix("as root", ["modprobe ib_uverbs"])
            .fix("in /etc/modules-load.d/rdma.conf, for the next start", ["ib_uverbs", "rdma_ucm"])
    })
}

/// In exclusive mode each device is seen in one network namespace alone.
fn exclusive_namespaces(system: &System) -> Option<Finding> {
    let of = Section::Kernel;
    match (system.kernel.shares_devices?, system.devices.is_empty()) {
        (true, _) => Some(Finding::ok(of, "namespaces", "RDMA devices are seen in all network namespaces")),
        (false, false) => Some(
            Finding::note(of, "namespaces", "each RDMA device belongs to one network namespace (exclusive mode)")
                .because("Processes in other namespaces, such as containers, do not see the devices of this one.")
                .fix("as root: give a device to a namespace", ["rdma dev set DEVICE netns NAMESPACE"]),
        ),
        (false, true) => Some(
            Finding::warning(
                of,
                "namespaces",
                "each RDMA device belongs to one network namespace, and this one has none",
            )
            .because("There may be devices that this network namespace does not see.")
            .fix("as root, outside: give a device to this namespace", ["rdma dev set DEVICE netns NAMESPACE"])
            .fix(
                "as root, outside, while no other namespace exists: share all devices",
                ["rdma system set netns shared"],
            ),
        ),
    }
}

/// A device whose addresses are translated pays for it at each registration and transfer. That of an RDMA device is told, and
/// where there is none that of GPUs: one setting mends both.
fn iommu(system: &System) -> Option<Finding> {
    let of = Section::Kernel;
    let mode_of = |device: &RdmaDevice| device.iommu.clone().filter(|mode| mode.starts_with("DMA"));
    let translated = system.devices.iter().find_map(|device| Some((device, mode_of(device)?)));
    let finding = match translated {
        Some((device, mode)) => Finding::note(of, "iommu", format!("its addresses go through the IOMMU ({mode})"))
            .on(&device.name)
            .because("Registering memory and transfers to GPUs are slower than with pass-through."),
        None if system.hints.contains(&Hint::Iommu) => {
            Finding::note(of, "iommu", "an IOMMU translates what devices do")
                .because("Transfers between NICs and GPUs pass the processor, and are slower.")
        }
        None => return None,
    };
    Some(if asks_for_pass_through(&system.kernel.command_line, IS_X86) {
        finding.fix("the command line asks for pass-through; see why it was refused", ["dmesg | grep -i iommu"])
    } else {
        let place = "on the kernel's command line (GRUB_CMDLINE_LINUX), unless virtual machines need it";
        finding.fix(place, [PASS_THROUGH])
    })
}

/// Other processors do not know the word `iommu=pt`, and pass over it.
fn asks_for_pass_through(command_line: &str, is_x86: bool) -> bool {
    command_line.split_whitespace().any(|word| word == PASS_THROUGH || is_x86 && word == "iommu=pt")
}

const PASS_THROUGH: &str = "iommu.passthrough=1";
const IS_X86: bool = cfg!(any(target_arch = "x86", target_arch = "x86_64"));

#[cfg(test)]
mod tests {
    use super::super::super::finding::Severity;
    use super::super::super::fixture::Fixture;
    use super::super::{fixes, only};
    use super::*;

    #[test]
    fn a_missing_ib_uverbs_is_loaded_or_installed() {
        let fixture = Fixture::rxe_host();
        let mut system = fixture.remove("sys/class/infiniband_verbs").system();
        let findings = check(&system);
        let finding = only(&findings, "ib-uverbs");
        assert_eq!(finding.severity, Severity::Problem);
        let text = fixes(finding);
        assert!(text.contains("modprobe ib_uverbs") && text.contains("modules-load.d/rdma.conf"), "{text}");
        system.kernel.shipped = Some([].into());
        assert!(fixes(only(&check(&system), "ib-uverbs")).contains("# modules of kernel 6.12.0-test"));
    }

    #[test]
    fn exclusive_namespaces_are_told_and_worse_without_a_device() {
        let fixture = Fixture::rxe_host();
        let mut system = fixture.file("sys/module/ib_core/parameters/netns_mode", "N\n").system();
        let findings = check(&system);
        assert_eq!(only(&findings, "namespaces").severity, Severity::Note);
        system.devices.clear();
        let findings = check(&system);
        assert_eq!(only(&findings, "namespaces").severity, Severity::Warning);
        let text = fixes(only(&findings, "namespaces"));
        assert!(text.contains("rdma system set netns shared") && text.contains("rdma dev set DEVICE netns"), "{text}");
    }

    #[test]
    fn translation_by_the_iommu_is_noted() {
        let fixture = Fixture::rxe_host();
        fixture.hardware("mlx5_0", "mlx5_core", "0000:01:00.0");
        fixture.file("sys/devices/pci0000:00/0000:01:00.0/iommu_group/type", "DMA-FQ\n");
        let mut system = fixture.system();
        let findings = check(&system);
        assert_eq!(only(&findings, "iommu").subject.as_deref(), Some("mlx5_0"));
        assert!(fixes(only(&findings, "iommu")).contains("| iommu.passthrough=1"));
        system.kernel.command_line = "quiet iommu.passthrough=1".to_owned();
        assert!(fixes(only(&check(&system), "iommu")).contains("dmesg"));
    }

    #[test]
    fn pass_through_by_x86s_word_is_x86s_alone() {
        let asks = |line| [true, false].map(|is_x86| asks_for_pass_through(line, is_x86));
        assert_eq!(asks("quiet iommu=pt"), [true, false]);
        assert_eq!(asks("iommu.passthrough=1 quiet"), [true, true]);
        assert_eq!(asks("quiet iommu.passthrough=0 amd_iommu=pt"), [false, false]);
    }

    #[test]
    fn translation_is_told_once_for_nics_and_gpus() {
        let fixture = Fixture::rxe_host();
        let mut system = fixture.system();
        system.hints = vec![Hint::Iommu];
        let findings = check(&system);
        assert_eq!(only(&findings, "iommu").message, "an IOMMU translates what devices do");
        system.devices[0].iommu = Some("DMA".to_owned());
        let findings = check(&system);
        assert_eq!(only(&findings, "iommu").subject.as_deref(), Some("rxe0"));
        assert!(super::super::machine::check(&system).iter().all(|finding| finding.check != "iommu"));
    }
}
