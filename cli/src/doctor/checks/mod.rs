//! The checks: each looks at a snapshot and says what it found, good or bad. They read nothing and change nothing.
//! A file for each section, and one for what libibverbs has for each device.

mod devices;
mod files;
mod gpus;
mod kernel;
mod library;
mod limits;
mod machine;
mod memory;
mod network;
mod providers;

use super::finding::Finding;
use super::system::System;

/// Everything that can be said of a machine by itself, in the order of the sections.
pub fn all(system: &System) -> Vec<Finding> {
    let checks: [fn(&System) -> Vec<Finding>; 9] = [
        devices::check,
        network::check,
        limits::check,
        files::check,
        library::check,
        kernel::check,
        memory::check,
        gpus::check,
        machine::check,
    ];
    checks.iter().flat_map(|check| check(system)).collect()
}

/// The finding of that check, for tests; there must be one, and only one.
#[cfg(test)]
fn only<'a>(findings: &'a [Finding], check: &str) -> &'a Finding {
    let of_check: Vec<&Finding> = findings.iter().filter(|finding| finding.check == check).collect();
    match of_check.as_slice() {
        [finding] => finding,
        other => panic!("{check}: {other:#?}"),
    }
}

/// All lines of a finding's fixes, for tests.
#[cfg(test)]
fn fixes(finding: &Finding) -> String {
    let lines = finding.fixes.iter().flat_map(|fix| fix.lines.iter().map(|line| format!("{}| {line}\n", fix.place)));
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::super::finding::Severity;
    use super::super::fixture::Fixture;
    use super::*;

    #[test]
    fn a_host_where_all_is_well_has_no_problem_and_no_warning() {
        let findings = all(&Fixture::rxe_host().system());
        let bad: Vec<_> = findings.iter().filter(|finding| finding.severity <= Severity::Warning).collect();
        assert!(bad.is_empty(), "{bad:#?}");
        assert!(findings.iter().filter(|finding| finding.severity == Severity::Ok).count() >= 8);
    }

    #[test]
    fn an_empty_machine_is_no_reason_to_panic() {
        let findings = all(&Fixture::new().system());
        assert!(findings.iter().any(|finding| finding.check == "rdma-device"), "{findings:#?}");
    }

    #[test]
    fn every_problem_and_warning_says_what_to_do() {
        let fixture = Fixture::rxe_host();
        fixture
            .file("sys/class/infiniband/rxe0/ports/1/state", "1: DOWN\n")
            .remove("usr/lib64")
            .remove("dev/infiniband");
        for finding in all(&fixture.system()).iter().filter(|finding| finding.severity <= Severity::Warning) {
            assert!(!finding.fixes.is_empty(), "{finding:#?}");
        }
    }
}
