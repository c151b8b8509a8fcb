//! The limit on locked memory, which stands in the way of registering most of all.

use std::fs::read_to_string;
use std::io;

use rustix::process::{Resource, getrlimit};

use crate::error::MemoryError;

/// Why `len` bytes were not registered.
pub(super) fn explain(len: usize, source: io::Error) -> MemoryError {
    let no_memory = matches!(source.raw_os_error(), Some(libc::ENOMEM | libc::EAGAIN | libc::EPERM));
    match getrlimit(Resource::Memlock).current {
        Some(limit) if no_memory && locked().saturating_add(len as u64) > limit => {
            MemoryError::Memlock { len, needed: locked().saturating_add(len as u64), limit }
        }
        _ => MemoryError::Refused { len, source },
    }
}

/// Bytes that this process has locked or registered.
fn locked() -> u64 {
    let status = read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    // In KiB; registered memory is pinned, mlock(2) locks.
    (field("VmPin:").unwrap_or(0) + field("VmLck:").unwrap_or(0)) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_the_limit_is_told_with_both_numbers() {
        let Some(limit) = getrlimit(Resource::Memlock).current else { return eprintln!("skipped: there is no limit") };
        let len = usize::try_from(limit).unwrap() + 1;
        let error = explain(len, io::Error::from_raw_os_error(libc::ENOMEM));
        let MemoryError::Memlock { needed, limit: told, .. } = error else { panic!("{error}") };
        assert_eq!((needed, told), (locked() + len as u64, limit));
    }

    #[test]
    fn other_refusals_keep_their_reason() {
        let error = explain(4096, io::Error::from_raw_os_error(libc::EFAULT));
        let MemoryError::Refused { source, .. } = error else { panic!("{error}") };
        assert_eq!(source.raw_os_error(), Some(libc::EFAULT));
    }
}
