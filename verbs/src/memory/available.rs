//! How much memory there is to be had: of the machine, and of the control groups that this process is in.

use std::fs::read_to_string;
use std::io;
use std::path::Path;

/// Refuses `len` bytes where the system would kill somebody to find them.
pub(crate) fn check(len: usize) -> io::Result<()> {
    // Where the system says nothing, the allocation itself has to tell.
    match available() {
        Some(available) if len >= CHECKED && len as u64 > available - available / RESERVE => {
            Err(io::Error::new(io::ErrorKind::OutOfMemory, format!("only {available} bytes are available")))
        }
        _ => Ok(()),
    }
}

/// Bytes that this process may still take.
pub(crate) fn available() -> Option<u64> {
    let machine = field(&read_to_string("/proc/meminfo").ok()?, "MemAvailable:")? << 10;
    let groups = read_to_string("/proc/self/cgroup").unwrap_or_default();
    Some(groups.lines().filter_map(room_of_group).fold(machine, u64::min))
}

/// What the control group of a line of /proc/self/cgroup, and those above it, have left.
fn room_of_group(line: &str) -> Option<u64> {
    let (_, rest) = line.split_once(':')?;
    let (root, [limit, used, idle]) = match rest.split_once(':')?.0 {
        "" => ("/sys/fs/cgroup", ["memory.max", "memory.current", "inactive_file"]),
        kinds if kinds.split(',').any(|kind| kind == "memory") => {
            ("/sys/fs/cgroup/memory", ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"])
        }
        _ => return None,
    };
    let path = rest.split_once(':')?.1.trim_start_matches('/');
    let room = |group: &Path| {
        let number = |file| read_to_string(Path::new(root).join(group).join(file)).ok()?.trim().parse::<u64>().ok();
        // Cached files give way.
        let stat = read_to_string(Path::new(root).join(group).join("memory.stat")).unwrap_or_default();
        Some(number(limit)?.saturating_sub(number(used)?.saturating_sub(field(&stat, idle).unwrap_or(0))))
    };
    Path::new(path).ancestors().filter_map(room).min()
}

/// The number behind `name` in a table of names and numbers.
fn field(table: &str, name: &str) -> Option<u64> {
    table.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        if words.next()? == name { words.next()?.parse().ok() } else { None }
    })
}

/// Shortest length that is looked at: finding out costs a tenth of providing that much.
const CHECKED: usize = 4 << 20;
/// One part in so many is left to others.
const RESERVE: u64 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_has_some_and_not_all_of_it() {
        let total = field(&read_to_string("/proc/meminfo").unwrap(), "MemTotal:").unwrap() << 10;
        let available = available().unwrap();
        assert!(available > 0 && available < total, "{available} of {total}");
        assert!(check(4096).is_ok() && check(CHECKED).is_ok());
        assert!(check(total as usize).is_err());
    }

    #[test]
    fn tables_are_read_by_name() {
        let table = "a 1\nMemAvailable:   17 kB\ninactive_file 4096\n";
        assert_eq!(field(table, "MemAvailable:"), Some(17));
        assert_eq!(field(table, "inactive_file"), Some(4096));
        assert_eq!(field(table, "inactive"), None);
    }

    #[test]
    fn groups_that_are_not_there_limit_nothing() {
        for line in ["", "3:cpuset:/", "0::/no/such/group/at/all", "4:memory:/no/such/group", "nonsense"] {
            assert_ne!(room_of_group(line), Some(0), "{line:?}");
        }
    }
}
