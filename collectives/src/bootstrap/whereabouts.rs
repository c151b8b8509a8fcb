//! Where this process runs.

use std::fs;
use std::sync::OnceLock;

use qpair_topology::CpuSet;
use qpair_verbs::shared_memory_domain;

use super::message::Whereabouts;

/// Where this process runs.
pub(crate) fn whereabouts() -> Whereabouts {
    let read = |path| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    Whereabouts {
        host: read("/proc/sys/kernel/hostname"),
        machine: read("/proc/sys/kernel/random/boot_id"),
        node: shared_memory_domain().unwrap_or_else(|| own_node().to_owned()),
        cores: cores(&read("/proc/self/status")),
        gpu: None,
        cpu_island: None,
        gpu_island: None,
    }
}

/// What names a node of this process alone. Its number would not: containers number theirs alike.
fn own_node() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let random = fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default();
        format!("process {}-{}", std::process::id(), random.trim())
    })
}

/// The cores that a `/proc/*/status` allows, or as many as the system says there are.
fn cores(status: &str) -> CpuSet {
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let parsed = list.and_then(|list| list.trim().parse().ok());
    parsed.unwrap_or_else(|| (0..std::thread::available_parallelism().map_or(1, |count| count.get() as u32)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cores_are_understood() {
        assert_eq!(cores("Name:\tx\nCpus_allowed:\t13\nCpus_allowed_list:\t0-1,4\n").to_string(), "0-1,4");
        assert!(!cores("Cpus_allowed_list:\t0-x\n").is_empty());
        assert!(!whereabouts().cores.is_empty());
        // All ranks of a process say the same.
        assert_eq!(whereabouts(), whereabouts());
        assert_eq!(own_node(), own_node());
    }
}
