//! The limit on pinned memory, which stands in the way of registering most of all, and of queues too where the provider pins
//! their memory.

use std::fs::read_to_string;
use std::io;

use rustix::process::{Resource, getrlimit};

use crate::error::{CreateError, MemoryError};

/// Why the `len` bytes at `base` were not registered.
pub(super) fn explain(base: usize, len: usize, source: io::Error) -> MemoryError {
    let no_memory = matches!(source.raw_os_error(), Some(libc::ENOMEM | libc::EAGAIN | libc::EPERM));
    match Limit::in_force().filter(|_| no_memory) {
        Some(limit) => limit.explain(base, len, source),
        None => MemoryError::Refused { len, source },
    }
}

/// The error for a queue that was refused for want of memory while a limit is in force; `None` for another reason. How much
/// the provider wanted to pin, nobody tells.
pub(super) fn explain_queue(what: &'static str, source: &io::Error) -> Option<CreateError> {
    let limit = if source.raw_os_error() == Some(libc::ENOMEM) { Limit::in_force()? } else { return None };
    Some(CreateError::Memlock { what, used: limit.pinned, limit: limit.most })
}

/// The kernel's limit on what this process pins, in bytes. What mlock(2) locks counts elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limit {
    most: u64,
    pinned: u64,
    page: usize,
}

impl Limit {
    /// The limit of the calling thread; `None` if there is none for it.
    fn in_force() -> Option<Self> {
        let most = getrlimit(Resource::Memlock).current?;
        let status = read_to_string("/proc/thread-self/status").unwrap_or_default();
        let users = read_to_string("/proc/self/uid_map").unwrap_or_default();
        if is_exempt(&status, &users) {
            return None;
        }
        Some(Limit { most, pinned: pinned(&status), page: rustix::param::page_size() })
    }

    fn explain(self, base: usize, len: usize, source: io::Error) -> MemoryError {
        let pages = (base % self.page).saturating_add(len).div_ceil(self.page) as u64;
        let needed = self.pinned.saturating_add(pages.saturating_mul(self.page as u64));
        if needed > self.most {
            MemoryError::Memlock { len, needed, limit: self.most }
        } else {
            MemoryError::Refused { len, source }
        }
    }
}

/// Whether no limit holds for a thread of this status: it has CAP_IPC_LOCK, and not just within a user namespace.
fn is_exempt(status: &str, users: &str) -> bool {
    let effective = field(status, "CapEff:").and_then(|bits| u64::from_str_radix(bits, 16).ok()).unwrap_or(0);
    effective & CAP_IPC_LOCK != 0 && users.split_whitespace().eq(ALL_USERS)
}

/// Bytes that the process of this status has pinned.
fn pinned(status: &str) -> u64 {
    field(status, "VmPin:").and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()
}

const CAP_IPC_LOCK: u64 = 1 << 14;
/// The map of user numbers outside all user namespaces.
const ALL_USERS: [&str; 3] = ["0", "0", "4294967295"];

#[cfg(test)]
mod tests {
    use super::*;

    const NO_MEMORY: i32 = libc::ENOMEM;

    fn needed(limit: Limit, base: usize, len: usize) -> Option<u64> {
        match limit.explain(base, len, io::Error::from_raw_os_error(NO_MEMORY)) {
            MemoryError::Memlock { needed, limit: told, .. } => {
                assert_eq!(told, limit.most);
                Some(needed)
            }
            MemoryError::Refused { .. } => None,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn whole_pages_count() {
        let limit = Limit { most: 16 << 10, pinned: 8 << 10, page: 4096 };
        assert_eq!(needed(limit, 0x10_0000, 8192), None, "as much as is allowed");
        assert_eq!(needed(limit, 0x10_0000, 8193), Some(20 << 10));
        // Two bytes on two pages each.
        assert_eq!(needed(Limit { pinned: 12 << 10, ..limit }, 0x10_0fff, 2), Some(20 << 10));
        assert_eq!(needed(limit, 0x10_0fff, 4098), Some(20 << 10));
        assert_eq!(needed(limit, 1, usize::MAX), Some(u64::MAX), "and nothing overflows");
    }

    #[test]
    fn what_is_pinned_counts_and_not_what_is_locked() {
        let status = "Name:\tx\nVmLck:\t    400 kB\nVmPin:\t      64 kB\nCapEff:\t0000000000000000\n";
        assert_eq!((pinned(status), pinned("VmLck:\t    400 kB\n")), (64 << 10, 0));
        assert!(!is_exempt(status, "0 0 4294967295"));
    }

    #[test]
    fn the_capability_lifts_the_limit_outside_user_namespaces() {
        let outside = "         0          0 4294967295\n";
        for (caps, users, exempt) in [
            ("000001ffffffffff", outside, true),
            ("0000000000004000", outside, true),
            ("0000000000003fff", outside, false),
            ("000001ffffffffff", "         0       1000          1\n", false),
            ("nonsense", outside, false),
        ] {
            assert_eq!(is_exempt(&format!("CapEff:\t{caps}\n"), users), exempt, "{caps} {users}");
        }
    }

    #[test]
    fn other_refusals_keep_their_reason() {
        let error = explain(4096, 4096, io::Error::from_raw_os_error(libc::EFAULT));
        let MemoryError::Refused { source, .. } = error else { panic!("{error}") };
        assert_eq!(source.raw_os_error(), Some(libc::EFAULT));
        assert!(explain_queue("queue pair", &io::Error::from_raw_os_error(libc::EINVAL)).is_none());
    }
}
