//! Limits of the process: memory that may be locked, files, processes.

use super::super::finding::{Finding, Section, Severity};
use super::super::system::{CAP_IPC_LOCK, Limit, System};
use crate::text::amount;

/// What the limits of this process allow.
pub fn check(system: &System) -> Vec<Finding> {
    [memlock(system), files(system), processes(system)].into_iter().flatten().collect()
}

/// Devices lock the memory that is registered with them.
fn memlock(system: &System) -> Option<Finding> {
    let limit = system.limits.memlock?;
    let Some(soft) = limit.soft else {
        return Some(Finding::ok(Section::Limits, "memlock", "memory may be locked without limit"));
    };
    if soft >= ENOUGH {
        return Some(Finding::ok(Section::Limits, "memlock", format!("{} may be locked", amount(soft))));
    }
    let hard = limit.hard.map_or_else(|| "unlimited".to_owned(), amount);
    let message = format!("a process may lock {} of memory (hard limit: {hard})", amount(soft));
    let needed = format!("a worker with default settings registers up to {}", amount(ENOUGH));
    let (severity, why) = if system.devices.is_empty() {
        (Severity::Note, format!("RDMA devices lock memory that is registered: {needed}. soft0 locks none."))
    } else if system.user.is_capable(CAP_IPC_LOCK) {
        (Severity::Note, format!("The limit does not bind this user, who has CAP_IPC_LOCK; it binds others: {needed}."))
    } else {
        let severity = if soft < LEAST { Severity::Problem } else { Severity::Warning };
        (severity, format!("Devices lock memory that is registered, and refuse above the limit: {needed}."))
    };
    let finding = Finding::new(severity, Section::Limits, "memlock", message).because(why);
    Some(memlock_fixes(finding, system, limit))
}

fn memlock_fixes(finding: Finding, system: &System, limit: Limit) -> Finding {
    let finding = match limit.hard {
        None => finding.fix("in this shell", ["ulimit -l unlimited"]),
        Some(hard) if hard >= ENOUGH => finding.fix("in this shell", [format!("ulimit -l {}", hard >> 10)]),
        Some(_) => finding,
    };
    if system.machine.container.is_some() {
        return finding.fix("when the container is started (docker, podman)", ["--ulimit memlock=-1:-1"]);
    }
    finding
        .fix(LIMITS_FILE, limits_lines(system, "memlock", "unlimited"))
        .fix("for a service: in its systemd unit, under [Service]", ["LimitMEMLOCK=infinity"])
}

fn files(system: &System) -> Option<Finding> {
    let limit = system.limits.files?;
    let of = Section::Limits;
    let soft = match limit.soft {
        Some(soft) if soft < ENOUGH_FILES => soft,
        Some(soft) => return Some(Finding::ok(of, "open-files", format!("{soft} files may be open"))),
        None => return Some(Finding::ok(of, "open-files", "files may be open without limit")),
    };
    let severity = match soft {
        0..LEAST_FILES => Severity::Problem,
        LEAST_FILES..FEW_FILES => Severity::Warning,
        _ => Severity::Note,
    };
    let finding = Finding::new(severity, of, "open-files", format!("a process may open {soft} files"))
        .because(format!("Sockets and shared memory take some {FILES_A_PEER} for each connected process."));
    let possible = limit.hard.map_or(ENOUGH_FILES, |hard| hard.min(ENOUGH_FILES));
    Some(if possible > soft {
        finding.fix("in this shell", [format!("ulimit -n {possible}")])
    } else if system.machine.container.is_some() {
        finding.fix("when the container is started (docker, podman)", [format!("--ulimit nofile={ENOUGH_FILES}")])
    } else {
        finding.fix(LIMITS_FILE, limits_lines(system, "nofile", &ENOUGH_FILES.to_string()))
    })
}

/// A limit of the user, or of the group of processes, on threads and processes together.
fn processes(system: &System) -> Option<Finding> {
    let user = system.limits.processes.and_then(|limit| limit.soft);
    let group = system.machine.group_processes;
    let least = [user, group].into_iter().flatten().min();
    let of = Section::Limits;
    let Some(least) = least.filter(|least| *least < ENOUGH_PROCESSES) else {
        system.limits.processes?;
        return Some(Finding::ok(of, "processes", "there is room for processes and threads"));
    };
    let finding = Finding::warning(of, "processes", format!("{least} processes and threads are allowed at most"))
        .because("Each rank is a process with threads of its own.");
    Some(match (group == Some(least), system.machine.container.is_some()) {
        (true, true) => finding.fix("when the container is started (docker, podman)", ["--pids-limit=-1"]),
        (true, false) => finding.fix("for a service: in its systemd unit, under [Service]", ["TasksMax=infinity"]),
        (false, _) => finding
            .fix("in this shell", [format!("ulimit -u {ENOUGH_PROCESSES}")])
            .fix(LIMITS_FILE, limits_lines(system, "nproc", &ENOUGH_PROCESSES.to_string())),
    })
}

/// Lines of a file of limits. Those of `*` are for all users but root, who has to be named.
fn limits_lines(system: &System, item: &str, value: &str) -> Vec<String> {
    let root = (system.user.uid == 0).then_some("root");
    let names = std::iter::once("*").chain(root);
    names.flat_map(|name| ["soft", "hard"].map(|kind| format!("{name}  {kind}  {item}  {value}"))).collect()
}

const LIMITS_FILE: &str = "in /etc/security/limits.d/90-rdma.conf; then log in again";

/// What the pool of a worker with default settings may grow to.
const ENOUGH: u64 = 1 << 30;
/// Below this, a worker's queues and slabs for a few peers do not fit.
const LEAST: u64 = 64 << 20;
/// Measured on soft0: 5 in a rank, 6 in the launcher.
const FILES_A_PEER: u64 = 6;
/// Peers of a rank on a large machine, and more.
const ENOUGH_FILES: u64 = 4096;
const FEW_FILES: u64 = 1024;
const LEAST_FILES: u64 = 128;
const ENOUGH_PROCESSES: u64 = 1024;

#[cfg(test)]
mod tests {
    use super::super::super::fixture::Fixture;
    use super::super::{fixes, only};
    use super::*;

    /// A host with a device, with these limits on memory in bytes.
    fn with_memlock(soft: Option<u64>, hard: Option<u64>) -> System {
        let mut system = Fixture::rxe_host().system();
        system.limits.memlock = Some(Limit { soft, hard });
        system
    }

    #[test]
    fn little_lockable_memory_is_a_problem_with_its_fixes() {
        let findings = check(&with_memlock(Some(8 << 20), Some(8 << 20)));
        let finding = only(&findings, "memlock");
        assert_eq!(finding.severity, Severity::Problem);
        assert_eq!(finding.message, "a process may lock 8 MiB of memory (hard limit: 8 MiB)");
        assert!(finding.why.as_ref().is_some_and(|why| why.contains("up to 1 GiB")), "{finding:?}");
        let text = fixes(finding);
        for line in ["limits.d/90-rdma.conf; then log in again| *  hard  memlock  unlimited", "LimitMEMLOCK=infinity"] {
            assert!(text.contains(line), "{text}");
        }
        assert!(!text.contains("ulimit -l"), "the hard limit is as low: {text}");
    }

    #[test]
    fn a_low_soft_limit_is_raised_in_the_shell() {
        let findings = check(&with_memlock(Some(512 << 20), None));
        let finding = only(&findings, "memlock");
        assert_eq!(finding.severity, Severity::Warning);
        assert!(fixes(finding).contains("in this shell| ulimit -l unlimited"));
        let findings = check(&with_memlock(Some(1 << 16), Some(2 << 30)));
        assert!(fixes(only(&findings, "memlock")).contains("ulimit -l 2097152"));
    }

    #[test]
    fn in_a_container_the_limit_is_raised_from_outside() {
        let mut system = with_memlock(Some(8 << 20), Some(8 << 20));
        system.machine.container = Some("docker".to_owned());
        let findings = check(&system);
        assert!(fixes(only(&findings, "memlock")).ends_with("| --ulimit memlock=-1:-1\n"));
    }

    #[test]
    fn a_limit_that_binds_nobody_here_is_a_note() {
        let mut system = with_memlock(Some(8 << 20), Some(8 << 20));
        system.user.capabilities = 1 << CAP_IPC_LOCK;
        assert_eq!(only(&check(&system), "memlock").severity, Severity::Note);
        system.user.in_user_namespace = true;
        assert_eq!(only(&check(&system), "memlock").severity, Severity::Problem);
        system.devices.clear();
        let findings = check(&system);
        assert!(only(&findings, "memlock").why.as_ref().is_some_and(|why| why.contains("soft0 locks none")));
    }

    #[test]
    fn enough_is_enough() {
        for soft in [None, Some(ENOUGH)] {
            assert_eq!(only(&check(&with_memlock(soft, None)), "memlock").severity, Severity::Ok);
        }
        let system = System::default();
        assert!(check(&system).is_empty(), "nothing is known, nothing is said");
    }

    #[test]
    fn few_files_and_few_processes_are_told() {
        let mut system = Fixture::rxe_host().system();
        system.limits.files = Some(Limit { soft: Some(64), hard: Some(1024) });
        system.limits.processes = Some(Limit { soft: Some(100), hard: Some(100) });
        let findings = check(&system);
        let files = only(&findings, "open-files");
        assert_eq!((files.severity, files.message.as_str()), (Severity::Problem, "a process may open 64 files"));
        assert_eq!(fixes(files), "in this shell| ulimit -n 1024\n");
        let processes = only(&findings, "processes");
        assert_eq!(processes.message, "100 processes and threads are allowed at most");
        assert!(fixes(processes).contains("nproc  1024"), "{processes:?}");
        system.limits.files = Some(Limit { soft: Some(1024), hard: Some(1024) });
        let findings = check(&system);
        let files = only(&findings, "open-files");
        assert_eq!(files.severity, Severity::Note);
        assert!(fixes(files).contains("*  hard  nofile  4096"), "{files:?}");
    }

    #[test]
    fn root_is_named_where_limits_are_raised() {
        let mut system = Fixture::rxe_host().system();
        system.limits.files = Some(Limit { soft: Some(1024), hard: Some(1024) });
        for (uid, lines) in [(0, 4), (1000, 2)] {
            system.user.uid = uid;
            let text = fixes(only(&check(&system), "open-files"));
            assert_eq!(text.contains("root  hard  nofile  4096"), uid == 0, "{text}");
            assert_eq!(text.matches("nofile").count(), lines, "{text}");
        }
    }

    #[test]
    fn a_group_that_may_have_few_processes_is_told() {
        let mut system = Fixture::rxe_host().system();
        system.machine.group_processes = Some(64);
        assert!(fixes(only(&check(&system), "processes")).contains("TasksMax=infinity"));
        system.machine.container = Some("podman".to_owned());
        assert!(fixes(only(&check(&system), "processes")).contains("--pids-limit=-1"));
    }
}
