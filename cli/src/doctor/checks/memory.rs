//! Memory: what soft0 and large transfers need of the machine.

use super::super::finding::{Finding, Section, Severity};
use super::super::system::System;
use crate::text::amount;

/// Whether there is memory, and of which sort.
pub fn check(system: &System) -> Vec<Finding> {
    let found =
        [memory_files(system), group_limit(system), shared_folder(system), huge_pages(system), transparent(system)];
    found.into_iter().flatten().collect()
}

/// soft0 keeps its memory in memory files (memfd_create). They say that they hold no code, so that no setting refuses them.
fn memory_files(system: &System) -> Option<Finding> {
    let setting = system.memory.memfd_noexec?;
    let message = format!("memory files may be made: soft0's hold no code (vm.memfd_noexec is {setting})");
    Some(Finding::ok(Section::Memory, "memfd", message))
}

fn group_limit(system: &System) -> Option<Finding> {
    let limit = system.memory.group_limit.filter(|limit| *limit < LITTLE)?;
    let message = format!("this group of processes may use {} of memory", amount(limit));
    let finding = Finding::warning(Section::Memory, "memory-limit", message)
        .because("Buffers of all ranks count, whether on soft0 or registered with a device.");
    Some(if system.machine.container.is_some() {
        finding.fix("when the container is started (docker, podman)", ["--memory=16g"])
    } else {
        finding.fix("for a service: in its systemd unit, under [Service]", ["MemoryMax=infinity"])
    })
}

/// Docker gives 64 MiB where it is not told otherwise.
fn shared_folder(system: &System) -> Option<Finding> {
    let of = Section::Memory;
    let size = system.memory.shm?;
    if size >= ENOUGH_SHM {
        return Some(Finding::ok(of, "shm", format!("/dev/shm has {}", amount(size))));
    }
    let finding = Finding::note(of, "shm", format!("/dev/shm has only {}", amount(size)))
        .because("soft0 does not use it; programs beside it may (MPI, NCCL, PyTorch's loaders).");
    Some(if system.machine.container.is_some() {
        finding.fix("when the container is started (docker, podman)", ["--shm-size=8g"])
    } else {
        finding.fix("as root", ["mount -o remount,size=50% /dev/shm"])
    })
}

fn huge_pages(system: &System) -> Option<Finding> {
    let of = Section::Memory;
    let (all, free) = system.memory.huge_pages?;
    let size = amount(system.memory.huge_page_size.unwrap_or_default());
    if all > 0 {
        let severity = if free > 0 { Severity::Ok } else { Severity::Note };
        return Some(Finding::new(
            severity,
            of,
            "huge-pages",
            format!("{free} of {all} huge pages of {size} are free"),
        ));
    }
    Some(
        Finding::note(of, "huge-pages", format!("no huge pages of {size} are reserved"))
            .because("Large buffers on them take fewer entries in a device's tables. Ordinary pages work as well.")
            .fix("as root, if you want them", ["sysctl vm.nr_hugepages=512"]),
    )
}

fn transparent(system: &System) -> Option<Finding> {
    let of = Section::Memory;
    let setting = system.memory.transparent.as_deref()?;
    if setting != "never" {
        return Some(Finding::ok(of, "transparent-huge-pages", format!("transparent huge pages: {setting}")));
    }
    Some(
        Finding::note(of, "transparent-huge-pages", "transparent huge pages are off")
            .because("Large buffers of a program's own then lie on small pages, which devices reach more slowly.")
            .fix("as root", ["echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"]),
    )
}

/// Some ranks with large vectors need more.
const LITTLE: u64 = 1 << 30;
const ENOUGH_SHM: u64 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::super::super::fixture::Fixture;
    use super::super::{fixes, only};
    use super::*;

    #[test]
    fn memory_files_that_hold_no_code_are_refused_nowhere() {
        let mut system = Fixture::rxe_host().system();
        for setting in 0..3 {
            system.memory.memfd_noexec = Some(setting);
            let findings = check(&system);
            assert_eq!(only(&findings, "memfd").severity, Severity::Ok);
            assert!(only(&findings, "memfd").message.contains(&format!("vm.memfd_noexec is {setting}")));
        }
        system.memory.memfd_noexec = None;
        assert!(check(&system).iter().all(|finding| finding.check != "memfd"));
    }

    #[test]
    fn little_memory_is_told_for_containers_and_services() {
        let mut system = Fixture::rxe_host().system();
        system.memory.group_limit = Some(512 << 20);
        system.memory.shm = Some(64 << 20);
        let findings = check(&system);
        assert_eq!(only(&findings, "memory-limit").message, "this group of processes may use 512 MiB of memory");
        assert!(fixes(only(&findings, "memory-limit")).contains("MemoryMax=infinity"));
        assert_eq!(only(&findings, "shm").message, "/dev/shm has only 64 MiB");
        assert!(fixes(only(&findings, "shm")).contains("mount -o remount"));
        system.machine.container = Some("docker".to_owned());
        let findings = check(&system);
        assert!(fixes(only(&findings, "memory-limit")).contains("--memory=16g"));
        assert!(fixes(only(&findings, "shm")).contains("--shm-size=8g"));
    }

    #[test]
    fn huge_pages_are_noted() {
        let mut system = Fixture::rxe_host().system();
        system.memory.huge_page_size = Some(2 << 20);
        system.memory.huge_pages = Some((0, 0));
        system.memory.transparent = Some("never".to_owned());
        let findings = check(&system);
        assert_eq!(only(&findings, "huge-pages").message, "no huge pages of 2 MiB are reserved");
        assert!(fixes(only(&findings, "huge-pages")).contains("sysctl vm.nr_hugepages=512"));
        assert!(fixes(only(&findings, "transparent-huge-pages")).contains("echo madvise"));
        system.memory.huge_pages = Some((8, 0));
        assert_eq!(only(&check(&system), "huge-pages").message, "0 of 8 huge pages of 2 MiB are free");
        system.memory.huge_pages = Some((8, 8));
        assert_eq!(only(&check(&system), "huge-pages").severity, Severity::Ok);
    }
}
