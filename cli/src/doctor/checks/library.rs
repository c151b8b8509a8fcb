//! libibverbs: whether it is there, and recent enough. What it has for each device, [`providers`] tells.

use super::super::finding::{Finding, Section};
use super::super::system::{Library, LibraryFile, RDMA_CORE_FEATURES, System};
use super::providers;

/// Whether libibverbs can drive the devices there are.
pub fn check(system: &System) -> Vec<Finding> {
    let Some(file) = system.library.used().filter(|_| !matches!(system.library.loaded, Some(Err(_)))) else {
        return vec![unusable(system)];
    };
    let mut findings = vec![release(system, file)];
    findings.extend(several(&system.library));
    findings.extend(providers::check(system, file));
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
    let LibraryFile { path, rdma_core, .. } = file;
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

/// The oldest release that is of use.
const OLDEST: u32 = 17;

#[cfg(test)]
mod tests {
    use super::super::super::finding::Severity;
    use super::super::super::fixture::Fixture;
    use super::super::super::system::LoadedLibrary;
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
        let file = LibraryFile { path: "/opt/libibverbs.so.1".to_owned(), ..LibraryFile::default() };
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
}
