//! libibverbs: whether it is there, recent enough, and has the providers that the devices need.

use super::super::finding::{Finding, Section};
use super::super::system::{Library, LibraryFile, RDMA_CORE_FEATURES, RdmaDevice, System};

/// Whether libibverbs can drive the devices there are.
pub fn check(system: &System) -> Vec<Finding> {
    let Some(file) = system.library.used().filter(|_| !matches!(system.library.loaded, Some(Err(_)))) else {
        return vec![unusable(system)];
    };
    let mut findings = vec![release(system, file)];
    findings.extend(several(&system.library));
    findings.extend(system.devices.iter().filter_map(|device| provider(system, device)));
    findings.extend(rxe_queues(system, file));
    findings
}

/// There is none, or it can not be loaded.
fn unusable(system: &System) -> Finding {
    let of = Section::Library;
    let message = match &system.library.loaded {
        Some(Err(error)) if !system.library.found.is_empty() => format!("libibverbs can not be loaded: {error}"),
        _ => "libibverbs.so.1 is not installed".to_owned(),
    };
    let finding = if system.devices.is_empty() {
        Finding::note(of, "libibverbs", message).because("RDMA devices are driven through it; soft0 works without.")
    } else {
        Finding::problem(of, "libibverbs", message).because("No RDMA device can be used without it.")
    };
    finding.fix("as root", [system.kernel.packages.install_verbs()])
}

/// The release of rdma-core, and what it lacks.
fn release(system: &System, file: &LibraryFile) -> Finding {
    let of = Section::Library;
    let LibraryFile { path, rdma_core } = file;
    let found = match rdma_core {
        Some(release) => format!("{path} is of rdma-core {release}"),
        None => format!("{path} does not tell which release of rdma-core it is of"),
    };
    let missing: Vec<&str> = match (&system.library.loaded, rdma_core) {
        (Some(Ok(loaded)), _) => loaded.missing.iter().map(|function| purpose(function)).collect(),
        (_, Some(release)) => {
            RDMA_CORE_FEATURES.iter().filter(|(since, ..)| release < since).map(|(.., purpose)| *purpose).collect()
        }
        _ => return Finding::note(of, "libibverbs", found).because("What it lacks is found out when it is used."),
    };
    let finding = match rdma_core {
        Some(0..OLDEST) => {
            Finding::problem(of, "libibverbs", found).because(format!("Releases before {OLDEST} are not supported."))
        }
        _ if missing.is_empty() => return Finding::ok(of, "libibverbs", found),
        _ => Finding::warning(of, "libibverbs", found).because(format!("It has no {}.", missing.join(", no "))),
    };
    finding.fix("as root: a release from 34 on", [system.kernel.packages.install_verbs()])
}

/// What a function is for.
fn purpose(function: &'static str) -> &'static str {
    RDMA_CORE_FEATURES.iter().find(|(_, name, _)| *name == function).map_or(function, |(.., purpose)| purpose)
}

/// Which of several libraries a program gets depends on the linker's cache and on LD_LIBRARY_PATH.
fn several(library: &Library) -> Option<Finding> {
    let paths: Vec<&str> = library.found.iter().map(|file| file.path.as_str()).collect();
    (paths.len() > 1).then(|| {
        Finding::warning(Section::Library, "libibverbs-twice", format!("there is more than one: {}", paths.join(", ")))
            .because("Providers fit the library that they were built with, and are not found by the other.")
            .fix("see which one programs get, and remove the other", ["ldconfig -p | grep libibverbs"])
    })
}

/// Without its provider a device is not listed.
fn provider(system: &System, device: &RdmaDevice) -> Option<Finding> {
    let of = Section::Library;
    let install = system.kernel.packages.install_verbs();
    // Known to work, whatever the files look like.
    let opens = system.opened.iter().any(|opened| opened.name == device.name && opened.ports.is_ok());
    let Some(name) = device.provider() else {
        return (!opens).then(|| {
            let driver = device.driver.as_deref().unwrap_or("no driver that /sys names");
            Finding::note(of, "provider", format!("it is not known which provider it needs ({driver})"))
                .on(&device.name)
        });
    };
    if opens {
        return Some(Finding::ok(of, "provider", format!("its provider {name} works")).on(&device.name));
    }
    let problem = |message: String| {
        let why = "libibverbs does not see the device without it.";
        Some(Finding::problem(of, "provider", message).on(&device.name).because(why))
    };
    if !system.library.has_provider(name) {
        let message = format!("its provider lib{name}-rdmav*.so is not installed");
        return problem(message).map(|finding| finding.fix("as root", [install]));
    }
    if !system.library.configured.iter().any(|configured| configured == name) {
        let line = format!("echo 'driver {name}' > /etc/libibverbs.d/{name}.driver");
        let message = format!("no file in /etc/libibverbs.d names its provider {name}");
        return problem(message).map(|finding| finding.fix("as root", [line]));
    }
    Some(Finding::ok(of, "provider", format!("its provider {name} is installed")).on(&device.name))
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

/// The oldest release that is of use.
const OLDEST: u32 = 17;
/// The release that mended the extended completion queues of rxe.
const RXE_EXTENDED_CQ: u32 = 55;

#[cfg(test)]
mod tests {
    use super::super::super::finding::Severity;
    use super::super::super::fixture::Fixture;
    use super::super::super::system::{LoadedLibrary, OpenedDevice};
    use super::super::{fixes, only};
    use super::*;

    #[test]
    fn an_absent_library_is_a_problem_only_with_devices() {
        let fixture = Fixture::rxe_host();
        let mut system = fixture.remove("usr/lib64").system();
        let findings = check(&system);
        let finding = only(&findings, "libibverbs");
        assert_eq!(finding.severity, Severity::Problem);
        assert_eq!(fixes(finding), "as root| apt install libibverbs1 ibverbs-providers rdma-core\n");
        system.devices.clear();
        assert_eq!(only(&check(&system), "libibverbs").severity, Severity::Note);
    }

    #[test]
    fn old_libraries_lack_what_is_named() {
        let mut system = Fixture::rxe_host().system();
        system.library.found[0].rdma_core = Some(30);
        let findings = check(&system);
        let finding = only(&findings, "libibverbs");
        assert_eq!(finding.severity, Severity::Warning);
        let why = finding.why.as_deref().expect("a reason");
        assert!(why.contains("kinds of GIDs") && !why.contains("ibv_wr_"), "{why}");
        assert!(fixes(finding).contains("a release from 34 on"), "{finding:?}");
        system.library.found[0].rdma_core = Some(15);
        let findings = check(&system);
        assert_eq!(only(&findings, "libibverbs").severity, Severity::Problem);
        assert_eq!(only(&findings, "libibverbs").why.as_deref(), Some("Releases before 17 are not supported."));
        system.library.found[0].rdma_core = None;
        assert_eq!(only(&check(&system), "libibverbs").severity, Severity::Note);
    }

    #[test]
    fn a_library_that_was_loaded_tells_for_itself() {
        let mut system = Fixture::rxe_host().system();
        let file = LibraryFile { path: "/opt/libibverbs.so.1".to_owned(), rdma_core: None };
        let missing = vec!["ibv_reg_dmabuf_mr", "ibv_from_the_future"];
        system.library.loaded = Some(Ok(LoadedLibrary { file, missing }));
        let findings = check(&system);
        let finding = only(&findings, "libibverbs");
        assert!(finding.message.starts_with("/opt/libibverbs.so.1 does not tell"), "{finding:?}");
        let why = "It has no registering of DMA-buf memory, no ibv_from_the_future.";
        assert_eq!(finding.why.as_deref(), Some(why));
        system.library.loaded = Some(Err("it has no function ibv_open_device".to_owned()));
        let findings = check(&system);
        let finding = only(&findings, "libibverbs");
        assert_eq!(finding.severity, Severity::Problem);
        assert_eq!(finding.message, "libibverbs can not be loaded: it has no function ibv_open_device");
    }

    #[test]
    fn two_libraries_are_told() {
        let fixture = Fixture::rxe_host();
        let system = fixture.file("usr/local/lib/libibverbs.so.1", "").system();
        let findings = check(&system);
        let finding = only(&findings, "libibverbs-twice");
        assert!(finding.message.contains("/usr/local/lib/libibverbs.so.1"), "{finding:?}");
        assert!(fixes(finding).contains("ldconfig -p"), "{finding:?}");
    }

    #[test]
    fn a_missing_provider_and_a_missing_line_are_told_apart() {
        let fixture = Fixture::rxe_host();
        let findings = check(&fixture.remove("etc/libibverbs.d").system());
        let finding = only(&findings, "provider");
        assert_eq!((finding.severity, finding.subject.as_deref()), (Severity::Problem, Some("rxe0")));
        assert!(fixes(finding).contains("echo 'driver rxe' > /etc/libibverbs.d/rxe.driver"), "{finding:?}");
        let mut system = fixture.remove("usr/lib64/libibverbs").system();
        let findings = check(&system);
        assert!(only(&findings, "provider").message.contains("librxe-rdmav*.so is not installed"));
        assert!(fixes(only(&findings, "provider")).contains("ibverbs-providers"));
        system.opened = vec![OpenedDevice { name: "rxe0".to_owned(), ports: Ok(Vec::new()) }];
        assert_eq!(only(&check(&system), "provider").severity, Severity::Ok);
    }

    #[test]
    fn devices_of_unknown_drivers_are_noted() {
        let fixture = Fixture::rxe_host();
        let system = fixture.hardware("new_0", "new_core", "0000:01:00.0").system();
        let findings = check(&system);
        let finding = findings.iter().find(|finding| finding.subject.as_deref() == Some("new_0")).expect("a finding");
        assert_eq!(finding.severity, Severity::Note);
        assert!(finding.message.contains("new_core"), "{finding:?}");
    }

    #[test]
    fn old_rxe_providers_are_noted() {
        let mut system = Fixture::rxe_host().system();
        let findings = check(&system);
        assert_eq!(only(&findings, "rxe-extended-cq").severity, Severity::Note);
        assert!(only(&findings, "rxe-extended-cq").message.contains("rdma-core 44"));
        system.library.found[0].rdma_core = Some(55);
        assert!(check(&system).iter().all(|finding| finding.check != "rxe-extended-cq"));
    }
}
