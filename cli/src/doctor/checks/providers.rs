//! What libibverbs has for each device: its provider, and whether the device comes of it.

use super::super::finding::{Finding, Section};
use super::super::system::{LibraryFile, RdmaDevice, System};

/// Whether the library lists the devices there are, and if not, why.
pub fn check(system: &System, file: &LibraryFile) -> Vec<Finding> {
    let mut findings: Vec<Finding> =
        system.devices.iter().filter_map(|device| provider(system, file, device)).collect();
    findings.extend(rxe_queues(system, file));
    findings
}

/// Without its provider a device is not listed.
fn provider(system: &System, file: &LibraryFile, device: &RdmaDevice) -> Option<Finding> {
    let of = Section::Library;
    // It came of its provider, whatever the files look like; whether it opens is told elsewhere.
    let listed = system.opened.iter().any(|opened| opened.name == device.name);
    let name = device.provider();
    if listed {
        return name.map(|name| Finding::ok(of, "provider", format!("its provider {name} works")).on(&device.name));
    }
    if let Some(name) = name
        && let Some(finding) = absent(system, device, name)
    {
        return Some(finding);
    }
    if matches!(system.library.loaded, Some(Ok(_))) {
        return unlisted(system, file, device, name);
    }
    Some(match name {
        Some(name) => Finding::ok(of, "provider", format!("its provider {name} is installed")).on(&device.name),
        None => {
            let driver = driver(device);
            Finding::note(of, "provider", format!("it is not known which provider it needs ({driver})"))
                .on(&device.name)
        }
    })
}

/// The provider's file or the line that names it is missing.
fn absent(system: &System, device: &RdmaDevice, name: &str) -> Option<Finding> {
    let problem = |message: String| {
        let finding = Finding::problem(Section::Library, "provider", message).on(&device.name);
        finding.because("libibverbs does not see the device without it.")
    };
    if system.library.provider_interfaces(name).is_empty() {
        let finding = problem(format!("its provider lib{name}-rdmav*.so is not installed"));
        return Some(finding.fix("as root", [system.kernel.packages.install_verbs()]));
    }
    if !system.library.configured.iter().any(|configured| configured == name) {
        let finding = problem(format!("no file in /etc/libibverbs.d names its provider {name}"));
        return Some(finding.fix("as root", [format!("echo 'driver {name}' > /etc/libibverbs.d/{name}.driver")]));
    }
    None
}

/// The library was loaded, and has no such device. Where the kernel's part or the device's file is missing, that is told
/// instead.
fn unlisted(system: &System, file: &LibraryFile, device: &RdmaDevice, name: Option<&str>) -> Option<Finding> {
    let finding = |message: String| Finding::problem(Section::Library, "device-unlisted", message).on(&device.name);
    if !system.kernel.has_verbs {
        return None;
    }
    let Some(uverbs) = &device.uverbs else {
        let message = "the kernel has it, and lets no process use it".to_owned();
        let finding =
            finding(message).because("Its driver has no part for processes (ib_uverbs), or that part failed.");
        return Some(finding.fix("as root: see what the driver says", ["dmesg | grep -i -e uverbs -e infiniband"]));
    };
    if system.files.iter().all(|file| file.name != *uverbs) {
        return None;
    }
    let interfaces = name.map(|name| system.library.provider_interfaces(name)).unwrap_or_default();
    let finding = match (name, file.interface.filter(|interface| !interfaces.contains(interface))) {
        (None, _) => {
            let message = format!("the kernel has it, and libibverbs does not list it ({})", driver(device));
            finding(message).because("No provider that is installed takes it.")
        }
        (Some(name), Some(has)) => {
            let built: Vec<String> = interfaces.iter().map(|built| format!("lib{name}-rdmav{built}.so")).collect();
            let message = format!("libibverbs wants lib{name}-rdmav{has}.so for it, and there is {}", built.join(", "));
            let why = "The number is that of the private interface between the library and its providers: the two are of \
                       different releases of rdma-core.";
            finding(message).because(why)
        }
        (Some(name), None) => {
            let message = format!("libibverbs does not list it, although its provider {name} is installed");
            let why = "The provider can not be loaded (of another architecture, or without a library that it needs), or \
                       does not know the device.";
            finding(message).because(why)
        }
    };
    Some(
        finding
            .fix("as root: have both of one release", [system.kernel.packages.reinstall_verbs()])
            .fix("see what the library says", ["IBV_SHOW_WARNINGS=1 ibv_devinfo"]),
    )
}

fn driver(device: &RdmaDevice) -> &str {
    device.driver.as_deref().unwrap_or("no driver that /sys names")
}

/// rxe's provider counted completions of extended queues twice.
fn rxe_queues(system: &System, file: &LibraryFile) -> Option<Finding> {
    let release = file.rdma_core.filter(|release| *release < RXE_EXTENDED_CQ)?;
    let device = system.devices.iter().find(|device| device.is_rxe())?;
    let message = format!("rdma-core {release} has an rxe provider without usable extended completion queues");
    Some(
        Finding::note(Section::Library, "rxe-extended-cq", message).on(&device.name).because(format!(
            "They skip entries before release {RXE_EXTENDED_CQ}: programs must use plain ones there."
        )),
    )
}

/// The release that mended the extended completion queues of rxe.
const RXE_EXTENDED_CQ: u32 = 55;

#[cfg(test)]
mod tests {
    use super::super::super::finding::Severity;
    use super::super::super::fixture::Fixture;
    use super::super::super::system::{LoadedLibrary, OpenedDevice};
    use super::super::{fixes, library, only};
    use super::*;

    /// What is found once the library was loaded, which lists no device.
    fn loaded(fixture: &Fixture) -> System {
        let mut system = fixture.system();
        let file = system.library.found[0].clone();
        system.library.loaded = Some(Ok(LoadedLibrary { file, missing: Vec::new() }));
        system
    }

    #[test]
    fn a_missing_provider_and_a_missing_line_are_told_apart() {
        let fixture = Fixture::rxe_host();
        let findings = library::check(&fixture.remove("etc/libibverbs.d").system());
        let finding = only(&findings, "provider");
        assert_eq!((finding.severity, finding.subject.as_deref()), (Severity::Problem, Some("rxe0")));
        assert!(fixes(finding).contains("echo 'driver rxe' > /etc/libibverbs.d/rxe.driver"), "{finding:?}");
        let mut system = fixture.remove("usr/lib64/libibverbs").system();
        let findings = library::check(&system);
        assert!(only(&findings, "provider").message.contains("librxe-rdmav*.so is not installed"));
        assert!(fixes(only(&findings, "provider")).contains("ibverbs-providers"));
        system.opened = vec![OpenedDevice { name: "rxe0".to_owned(), ports: Ok(Vec::new()) }];
        assert_eq!(only(&library::check(&system), "provider").severity, Severity::Ok);
        system.opened[0].ports = Err("no memory".to_owned());
        assert_eq!(only(&library::check(&system), "provider").severity, Severity::Ok);
    }

    #[test]
    fn a_device_that_the_library_does_not_list_is_a_problem() {
        let mut system = loaded(&Fixture::rxe_host());
        let findings = library::check(&system);
        let finding = only(&findings, "device-unlisted");
        assert_eq!((finding.severity, finding.subject.as_deref()), (Severity::Problem, Some("rxe0")));
        assert_eq!(finding.message, "libibverbs does not list it, although its provider rxe is installed");
        let text = fixes(finding);
        assert!(text.contains("| apt install --reinstall libibverbs1 ibverbs-providers\n"), "{text}");
        assert!(text.ends_with("| IBV_SHOW_WARNINGS=1 ibv_devinfo\n"), "{text}");
        assert!(findings.iter().all(|finding| finding.check != "provider"), "{findings:#?}");
        system.opened = vec![OpenedDevice { name: "rxe0".to_owned(), ports: Err("no memory".to_owned()) }];
        assert!(library::check(&system).iter().all(|finding| finding.check != "device-unlisted"));
    }

    #[test]
    fn a_provider_of_another_release_is_named_with_both_interfaces() {
        let fixture = Fixture::rxe_host();
        fixture.remove("usr/lib64/libibverbs").file("usr/lib64/libibverbs/librxe-rdmav25.so", "");
        let findings = library::check(&loaded(&fixture));
        let finding = only(&findings, "device-unlisted");
        let message = "libibverbs wants librxe-rdmav34.so for it, and there is librxe-rdmav25.so";
        assert_eq!((finding.severity, finding.message.as_str()), (Severity::Problem, message));
        // The one that fits beside one that does not: that is not the reason.
        fixture.file("usr/lib64/libibverbs/librxe-rdmav34.so", "");
        let findings = library::check(&loaded(&fixture));
        assert!(only(&findings, "device-unlisted").message.starts_with("libibverbs does not list it"));
        let mut system = loaded(fixture.remove("usr/lib64/libibverbs/librxe-rdmav34.so"));
        if let Some(Ok(loaded)) = &mut system.library.loaded {
            loaded.file.interface = None;
        }
        let findings = library::check(&system);
        assert!(only(&findings, "device-unlisted").message.starts_with("libibverbs does not list it"));
    }

    #[test]
    fn a_device_without_a_part_for_processes_is_told_and_not_twice() {
        let fixture = Fixture::rxe_host();
        let mut system = loaded(&fixture);
        system.devices[0].uverbs = None;
        let findings = library::check(&system);
        assert_eq!(only(&findings, "device-unlisted").message, "the kernel has it, and lets no process use it");
        let told_elsewhere = |system: &System, check: &str| {
            let findings = super::super::all(system);
            assert_eq!(only(&findings, check).severity, Severity::Problem);
            assert!(findings.iter().all(|finding| finding.check != "device-unlisted"), "{findings:#?}");
        };
        system.kernel.has_verbs = false;
        told_elsewhere(&system, "ib-uverbs");
        told_elsewhere(&loaded(fixture.remove("dev/infiniband/uverbs0")), "device-file");
        told_elsewhere(&loaded(fixture.remove("usr/lib64/libibverbs")), "provider");
    }

    #[test]
    fn devices_of_unknown_drivers_are_noted_and_a_problem_where_not_listed() {
        let fixture = Fixture::rxe_host();
        fixture.hardware("new_0", "new_core", "0000:01:00.0");
        let of_device = |system: &System| {
            let findings = library::check(system);
            findings.into_iter().find(|finding| finding.subject.as_deref() == Some("new_0"))
        };
        let finding = of_device(&fixture.system()).expect("a finding");
        assert_eq!(finding.severity, Severity::Note);
        assert!(finding.message.contains("new_core"), "{finding:?}");
        let mut system = loaded(&fixture);
        let finding = of_device(&system).expect("a finding");
        assert_eq!((finding.severity, finding.check), (Severity::Problem, "device-unlisted"));
        assert!(finding.message.contains("new_core"), "{finding:?}");
        system.opened = vec![OpenedDevice { name: "new_0".to_owned(), ports: Ok(Vec::new()) }];
        assert_eq!(of_device(&system), None);
    }

    #[test]
    fn old_rxe_providers_are_noted() {
        let mut system = Fixture::rxe_host().system();
        let findings = library::check(&system);
        assert_eq!(only(&findings, "rxe-extended-cq").severity, Severity::Note);
        assert!(only(&findings, "rxe-extended-cq").message.contains("rdma-core 44"));
        system.library.found[0].rdma_core = Some(55);
        assert!(library::check(&system).iter().all(|finding| finding.check != "rxe-extended-cq"));
    }
}
