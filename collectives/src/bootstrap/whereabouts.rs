//! Where this process runs.

use std::fs;

use super::message::Whereabouts;

/// Where this process runs.
pub(crate) fn whereabouts() -> Whereabouts {
    let read = |path| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    Whereabouts {
        host: read("/proc/sys/kernel/hostname"),
        machine: read("/proc/sys/kernel/random/boot_id"),
        cores: cores(&read("/proc/self/status")),
    }
}

/// The cores that a `/proc/*/status` allows, or as many as the system says there are.
fn cores(status: &str) -> Vec<u32> {
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let parsed = list.and_then(|list| parse(list.trim()));
    parsed.unwrap_or_else(|| (0..std::thread::available_parallelism().map_or(1, |count| count.get() as u32)).collect())
}

/// A list such as `0-3,8`.
fn parse(list: &str) -> Option<Vec<u32>> {
    let mut cores = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        if last >= MOST_CORES {
            return None;
        }
        cores.extend(first..=last);
    }
    Some(cores)
}

const MOST_CORES: u32 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cores_are_understood() {
        assert_eq!(cores("Name:\tx\nCpus_allowed:\t13\nCpus_allowed_list:\t0-1,4\n"), [0, 1, 4]);
        assert_eq!(parse("0-x"), None);
        assert_eq!(parse("0-4294967295"), None);
        assert!(!whereabouts().cores.is_empty());
    }
}
