//! Memory, and settings of the machine that transfers feel.

use super::root::Root;

/// Memory of the machine.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// Bytes of /dev/shm.
    pub shm: Option<u64>,
    /// Huge pages reserved, and those of them that are free.
    pub huge_pages: Option<(u64, u64)>,
    /// Bytes of a huge page.
    pub huge_page_size: Option<u64>,
    /// The setting of transparent huge pages.
    pub transparent: Option<String>,
    /// Whether memory files must say that they hold no code: 2 where those are refused that do not.
    pub memfd_noexec: Option<u32>,
    /// Bytes that this group of processes may use.
    pub group_limit: Option<u64>,
}

/// Circumstances.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// What sort of container this is, if it is one.
    pub container: Option<String>,
    /// Who may reach into the memory of whose processes.
    pub ptrace_scope: Option<u32>,
    /// How the first CPU's frequency is governed.
    pub governor: Option<String>,
    /// Whether the kernel moves pages between NUMA nodes.
    pub numa_balancing: Option<bool>,
    /// Number of NUMA nodes.
    pub numa_nodes: usize,
    /// Processes and threads that this group may have.
    pub group_processes: Option<u64>,
    /// Random number of the running system.
    pub boot: Option<String>,
    /// Number of this process's network namespace, which no other of the running system has.
    pub namespace: Option<u64>,
}

impl Memory {
    pub(super) fn read(root: &Root) -> Self {
        let info = root.text("/proc/meminfo").unwrap_or_default();
        let field = |name: &str| -> Option<u64> {
            info.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
        };
        let shm = rustix::fs::statvfs(root.path("/dev/shm")).ok();
        Memory {
            shm: shm.map(|shm| shm.f_blocks.saturating_mul(shm.f_frsize)),
            huge_pages: field("HugePages_Total:").zip(field("HugePages_Free:")),
            huge_page_size: field("Hugepagesize:").map(|kib| kib.saturating_mul(1024)),
            transparent: chosen(&root.line("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default()),
            memfd_noexec: root.number("/proc/sys/vm/memfd_noexec"),
            group_limit: group_value(root, "memory.max"),
        }
    }
}

impl Machine {
    pub(super) fn read(root: &Root) -> Self {
        let nodes = root.names("/sys/devices/system/node");
        let is_node = |name: &&String| name.strip_prefix("node").is_some_and(|rest| rest.parse::<u32>().is_ok());
        Machine {
            container: container(root),
            ptrace_scope: root.number("/proc/sys/kernel/yama/ptrace_scope"),
            governor: root.line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            numa_balancing: root.number::<u32>("/proc/sys/kernel/numa_balancing").map(|value| value != 0),
            numa_nodes: nodes.iter().filter(is_node).count(),
            group_processes: group_value(root, "pids.max"),
            boot: root.line("/proc/sys/kernel/random/boot_id"),
            namespace: root.link_name("/proc/self/ns/net").and_then(|name| namespace_number(&name)),
        }
    }
}

/// The word in brackets, as in `always [madvise] never`.
fn chosen(choices: &str) -> Option<String> {
    let (_, rest) = choices.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

/// A limit of this process's group, and of those around it: the least. `max` is none.
fn group_value(root: &Root, name: &str) -> Option<u64> {
    let groups = root.text("/proc/self/cgroup")?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?.to_owned();
    let mut folder = path.trim_end_matches('/');
    let mut least: Option<u64> = None;
    for _ in 0..DEEPEST_GROUP {
        let value = root.line(&format!("/sys/fs/cgroup{folder}/{name}")).and_then(|line| line.parse().ok());
        least = [least, value].into_iter().flatten().min();
        match folder.rsplit_once('/') {
            Some((above, _)) => folder = above,
            None => break,
        }
    }
    least
}

/// 4026531840 of `net:[4026531840]`.
fn namespace_number(name: &str) -> Option<u64> {
    name.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok()
}

fn container(root: &Root) -> Option<String> {
    if let Some(name) = root.line("/run/systemd/container") {
        return Some(name);
    }
    let marks = [("/.dockerenv", "docker"), ("/run/.containerenv", "podman")];
    // A machine may have been made from a container's image: who sees the kernel's threads is in none.
    let sees_kernel = root.line("/proc/2/comm").as_deref() == Some("kthreadd");
    if let Some((_, name)) = marks.iter().find(|(path, _)| !sees_kernel && root.has(path)) {
        return Some((*name).to_owned());
    }
    let groups = root.text("/proc/1/cgroup").unwrap_or_default();
    let names = ["kubepods", "docker", "libpod", "lxc"];
    names.iter().find(|name| groups.contains(**name)).map(|name| (*name).to_owned())
}

const DEEPEST_GROUP: usize = 32;

#[cfg(test)]
mod tests {
    use super::super::super::fixture::Fixture;
    use super::*;

    #[test]
    fn memory_is_read_in_bytes() {
        let fixture = Fixture::new();
        fixture
            .file(
                "proc/meminfo",
                "MemTotal: 9 kB\nHugePages_Total:      16\nHugePages_Free:        7\nHugepagesize:       2048 kB\n",
            )
            .file("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
            .file("proc/sys/vm/memfd_noexec", "2\n")
            .file("proc/self/cgroup", "1:name=systemd:/x\n0::/a/b\n")
            .file("sys/fs/cgroup/a/b/memory.max", "max\n")
            .file("sys/fs/cgroup/a/memory.max", "1073741824\n");
        let memory = Memory::read(&Root::new(fixture.path()));
        assert_eq!((memory.huge_pages, memory.huge_page_size), (Some((16, 7)), Some(2 << 20)));
        assert_eq!((memory.transparent.as_deref(), memory.memfd_noexec), (Some("madvise"), Some(2)));
        assert_eq!((memory.group_limit, memory.shm), (Some(1 << 30), None));
    }

    #[test]
    fn containers_are_known_by_their_marks() {
        let sort = |path: &str, text: &str| {
            let fixture = Fixture::new();
            fixture.file(path, text);
            Machine::read(&Root::new(fixture.path())).container
        };
        assert_eq!(sort(".dockerenv", "").as_deref(), Some("docker"));
        assert_eq!(sort("run/systemd/container", "systemd-nspawn\n").as_deref(), Some("systemd-nspawn"));
        assert_eq!(sort("proc/1/cgroup", "0::/kubepods.slice/x\n").as_deref(), Some("kubepods"));
        assert_eq!(sort("proc/1/cgroup", "0::/init.scope\n"), None);
        let fixture = Fixture::new();
        fixture.file(".dockerenv", "").file("proc/2/comm", "kthreadd\n");
        assert_eq!(container(&Root::new(fixture.path())), None);
    }

    #[test]
    fn settings_are_read() {
        let fixture = Fixture::new();
        fixture
            .file("proc/sys/kernel/yama/ptrace_scope", "1\n")
            .file("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n")
            .file("proc/sys/kernel/numa_balancing", "1\n")
            .file("sys/devices/system/node/node0/x", "")
            .file("sys/devices/system/node/node1/x", "")
            .file("sys/devices/system/node/online", "0-1\n")
            .link("proc/self/ns/net", "net:[4026531840]");
        let machine = Machine::read(&Root::new(fixture.path()));
        assert_eq!((machine.ptrace_scope, machine.governor.as_deref()), (Some(1), Some("powersave")));
        assert_eq!((machine.numa_balancing, machine.numa_nodes), (Some(true), 2));
        assert_eq!(machine.namespace, Some(4_026_531_840));
        assert_eq!((namespace_number("net:[x]"), namespace_number("mnt:[1]")), (None, None));
    }
}
