//! Who runs this, and what they may use.

use super::root::Root;

/// The user of this process.
#[derive(Clone, Debug, Default)]
pub struct User {
    /// Effective user number.
    pub uid: u32,
    /// Effective group, and the others.
    pub groups: Vec<u32>,
    /// Effective capabilities, a bit each.
    pub capabilities: u64,
    /// True inside a user namespace, where capabilities count for less.
    pub in_user_namespace: bool,
}

/// A soft limit and the hard one above it; `None` is without limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    /// What binds now.
    pub soft: Option<u64>,
    /// To what it can be raised by oneself.
    pub hard: Option<u64>,
}

/// Limits of this process; `None` where the system does not tell.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// Bytes that may be locked in memory.
    pub memlock: Option<Limit>,
    /// Open files.
    pub files: Option<Limit>,
    /// Processes and threads of the user.
    pub processes: Option<Limit>,
}

impl User {
    pub(super) fn read(root: &Root) -> Self {
        let status = root.text("/proc/self/status").unwrap_or_default();
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let numbers = |name| field(name).unwrap_or_default().split_whitespace().filter_map(|word| word.parse().ok());
        // Real, effective, saved, of the file system.
        let effective = |name| numbers(name).nth(1);
        User {
            uid: effective("Uid").unwrap_or(NOBODY),
            groups: effective("Gid").into_iter().chain(numbers("Groups")).collect(),
            capabilities: field("CapEff").and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0),
            in_user_namespace: in_user_namespace(root),
        }
    }

    /// Whether the kernel grants it this right.
    pub fn is_capable(&self, capability: u32) -> bool {
        !self.in_user_namespace && self.capabilities >> capability & 1 == 1
    }
}

impl Limits {
    pub(super) fn read(root: &Root) -> Self {
        let text = root.text("/proc/self/limits").unwrap_or_default();
        Limits {
            memlock: limit(&text, "Max locked memory"),
            files: limit(&text, "Max open files"),
            processes: limit(&text, "Max processes"),
        }
    }
}

/// The limit in a table like that of /proc/self/limits.
fn limit(table: &str, name: &str) -> Option<Limit> {
    let mut values = table.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace();
    let mut next = || match values.next()? {
        "unlimited" => Some(None),
        number => number.parse().ok().map(Some),
    };
    Some(Limit { soft: next()?, hard: next()? })
}

/// The first user namespace maps all users to themselves.
fn in_user_namespace(root: &Root) -> bool {
    let Some(map) = root.line("/proc/self/uid_map") else { return false };
    map.split_whitespace().ne(["0", "0", "4294967295"])
}

/// May lock memory without limit.
pub const CAP_IPC_LOCK: u32 = 14;
/// May reach into processes of others.
pub const CAP_SYS_PTRACE: u32 = 19;
const NOBODY: u32 = 65534;

#[cfg(test)]
mod tests {
    use super::super::super::fixture::Fixture;
    use super::*;

    #[test]
    fn users_are_read_from_their_process() {
        let fixture = Fixture::new();
        fixture.file(
            "proc/self/status",
            "Name:\tcat\nUid:\t1\t1000\t1\t1\nGid:\t5\t100\t5\t5\nGroups:\t4 27 \nCapEff:\t4000\n",
        );
        let user = User::read(&Root::new(fixture.path()));
        assert_eq!((user.uid, user.groups.as_slice()), (1000, &[100, 4, 27][..]));
        assert!(user.is_capable(CAP_IPC_LOCK) && !user.is_capable(CAP_SYS_PTRACE));
        fixture.file("proc/self/uid_map", "         0       1000          1\n");
        let user = User::read(&Root::new(fixture.path()));
        assert!(user.in_user_namespace && !user.is_capable(CAP_IPC_LOCK));
        fixture.file("proc/self/uid_map", "         0          0 4294967295\n");
        assert!(!User::read(&Root::new(fixture.path())).in_user_namespace);
    }

    #[test]
    fn limits_are_read_by_name_and_may_be_absent_or_nonsense() {
        let text = "Limit                     Soft Limit           Hard Limit           Units\n\
                    Max processes             96365                unlimited            processes\n\
                    Max locked memory         8388608              16777216             bytes\n";
        assert_eq!(limit(text, "Max locked memory"), Some(Limit { soft: Some(8 << 20), hard: Some(16 << 20) }));
        assert_eq!(limit(text, "Max processes"), Some(Limit { soft: Some(96365), hard: None }));
        assert_eq!(limit(text, "Max open files"), None);
        assert_eq!(limit("Max open files  many  more\n", "Max open files"), None);
    }
}
