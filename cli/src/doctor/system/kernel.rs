//! The kernel, its modules, and the distribution around it.

use std::collections::BTreeSet;

use super::root::Root;

/// The kernel and what it has.
#[derive(Clone, Debug, Default)]
pub struct Kernel {
    /// Its release, such as `6.1.0-18-amd64`.
    pub release: Option<String>,
    /// Modules that are loaded, and those built in that have settings.
    pub loaded: BTreeSet<String>,
    /// Those of [`WANTED`] that belong to it, loaded or not; `None` if its modules are not installed here.
    pub shipped: Option<BTreeSet<String>>,
    /// True if processes can open RDMA devices.
    pub has_verbs: bool,
    /// True if connections can be made by rdma_cm.
    pub has_rdma_cm: bool,
    /// Whether RDMA devices are seen in all network namespaces; `None` without RDMA.
    pub shares_devices: Option<bool>,
    /// What it was started with.
    pub command_line: String,
    /// How software is installed here.
    pub packages: Packages,
    /// True if the command `rdma` is installed.
    pub has_rdma_command: bool,
}

/// How software is installed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Packages {
    /// Debian, Ubuntu.
    Apt,
    /// Fedora, Red Hat and their kin.
    Dnf,
    /// SUSE.
    Zypper,
    /// Arch.
    Pacman,
    /// Alpine.
    Apk,
    /// Anything else.
    #[default]
    Unknown,
}

impl Kernel {
    pub(super) fn read(root: &Root) -> Self {
        let release = root.line("/proc/sys/kernel/osrelease");
        let shares_devices = root.line("/sys/module/ib_core/parameters/netns_mode");
        Kernel {
            loaded: root.names("/sys/module").into_iter().collect(),
            shipped: release.as_deref().and_then(|release| shipped(root, release)),
            has_verbs: root.has("/sys/class/infiniband_verbs"),
            has_rdma_cm: root.has("/sys/class/misc/rdma_cm") || root.has("/sys/module/rdma_ucm"),
            shares_devices: shares_devices.map(|mode| mode != "N" && mode != "0"),
            command_line: root.text("/proc/cmdline").unwrap_or_default(),
            packages: Packages::read(root),
            has_rdma_command: RDMA_COMMAND.iter().any(|path| root.has(path)),
            release,
        }
    }

    /// Whether the module is there to be loaded; `None` if that can not be seen here.
    pub fn ships(&self, module: &str) -> Option<bool> {
        Some(self.shipped.as_ref()?.contains(module))
    }
}

impl Packages {
    fn read(root: &Root) -> Self {
        let text = root.text("/etc/os-release").unwrap_or_default();
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        let ids = format!("{} {}", field("ID="), field("ID_LIKE=")).replace('"', "");
        let known = ids.split_whitespace().find_map(|id| DISTRIBUTIONS.iter().find(|(name, _)| *name == id));
        known.map_or(Packages::Unknown, |(_, packages)| *packages)
    }

    /// The command that installs libibverbs with its providers.
    pub fn install_verbs(self) -> &'static str {
        match self {
            Packages::Apt => "apt install libibverbs1 ibverbs-providers rdma-core",
            Packages::Dnf => "dnf install libibverbs rdma-core",
            Packages::Zypper => "zypper install libibverbs1 rdma-core",
            Packages::Pacman => "pacman -S rdma-core",
            Packages::Apk => "apk add libibverbs rdma-core",
            Packages::Unknown => "# install rdma-core with libibverbs by the means of this system",
        }
    }

    /// The command that makes libibverbs and its providers fit each other again.
    pub fn reinstall_verbs(self) -> &'static str {
        match self {
            Packages::Apt => "apt install --reinstall libibverbs1 ibverbs-providers",
            Packages::Dnf => "dnf reinstall libibverbs",
            Packages::Zypper => "zypper install --force libibverbs1 libibverbs",
            Packages::Pacman => "pacman -S rdma-core",
            Packages::Apk => "apk fix --reinstall libibverbs rdma-core",
            Packages::Unknown => "# install libibverbs and its providers anew, both of one release of rdma-core",
        }
    }

    /// The command that installs the command `rdma`.
    pub fn install_rdma_command(self) -> &'static str {
        match self {
            Packages::Apt => "apt install iproute2",
            Packages::Dnf => "dnf install iproute",
            Packages::Zypper => "zypper install iproute2",
            Packages::Pacman => "pacman -S iproute2",
            Packages::Apk => "apk add iproute2",
            Packages::Unknown => "# install iproute2 by the means of this system",
        }
    }
}

/// Which wanted modules the kernel of that release has on disk, or built in.
fn shipped(root: &Root, release: &str) -> Option<BTreeSet<String>> {
    let folders = ["/lib/modules", "/usr/lib/modules"].map(|folder| format!("{folder}/{release}"));
    let folder = folders.into_iter().find(|folder| root.has(folder))?;
    // Built-in ones may be listed without there being others.
    let list = |name: &str| root.long_text(&format!("{folder}/{name}"), LONGEST_LIST);
    let (loadable, built_in) = (list("modules.dep"), list("modules.builtin"));
    if loadable.is_none() && built_in.is_none() {
        return None;
    }
    let lines = [loadable.unwrap_or_default(), built_in.unwrap_or_default()].concat();
    let names = lines.lines().filter_map(module_name).filter(|name| WANTED.contains(&name.as_str()));
    Some(names.collect())
}

/// `rdma_rxe` for `kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko.xz: kernel/...`.
fn module_name(line: &str) -> Option<String> {
    let path = line.split(':').next()?;
    let (name, _) = path.rsplit('/').next()?.split_once(".ko")?;
    Some(name.replace('-', "_"))
}

/// Modules that findings speak of.
const WANTED: [&str; 15] = [
    "ib_uverbs",
    "rdma_ucm",
    "rdma_rxe",
    "mlx5_ib",
    "mlx4_ib",
    "ib_mthca",
    "bnxt_re",
    "irdma",
    "efa",
    "qedr",
    "iw_cxgb4",
    "hns_roce_hw_v2",
    "mana_ib",
    "erdma",
    "ocrdma",
];
const RDMA_COMMAND: [&str; 5] = ["/usr/bin/rdma", "/usr/sbin/rdma", "/bin/rdma", "/sbin/rdma", "/usr/local/sbin/rdma"];
/// A distribution's list of modules has less than 1 MiB.
const LONGEST_LIST: u64 = 8 << 20;
const DISTRIBUTIONS: [(&str, Packages); 12] = [
    ("debian", Packages::Apt),
    ("ubuntu", Packages::Apt),
    ("fedora", Packages::Dnf),
    ("rhel", Packages::Dnf),
    ("centos", Packages::Dnf),
    ("rocky", Packages::Dnf),
    ("amzn", Packages::Dnf),
    ("suse", Packages::Zypper),
    ("opensuse", Packages::Zypper),
    ("sles", Packages::Zypper),
    ("arch", Packages::Pacman),
    ("alpine", Packages::Apk),
];

#[cfg(test)]
mod tests {
    use super::super::super::fixture::Fixture;
    use super::*;

    #[test]
    fn modules_are_found_loaded_built_in_and_on_disk() {
        let fixture = Fixture::rxe_host();
        fixture.file(
            "lib/modules/6.12.0-test/modules.dep",
            "kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko.xz: kernel/a.ko\nkernel/b.ko:\n",
        );
        fixture.file("lib/modules/6.12.0-test/modules.builtin", "kernel/drivers/infiniband/core/ib_uverbs.ko\n");
        let kernel = Kernel::read(&Root::new(fixture.path()));
        assert!(kernel.has_verbs && kernel.loaded.contains("rdma_rxe"));
        assert_eq!((kernel.ships("rdma_rxe"), kernel.ships("ib_uverbs")), (Some(true), Some(true)));
        assert_eq!((kernel.ships("mlx5_ib"), kernel.shares_devices), (Some(false), Some(true)));
    }

    #[test]
    fn without_a_folder_of_modules_nothing_is_said_of_them() {
        assert_eq!(Kernel::read(&Root::new(Fixture::rxe_host().path())).ships("rdma_rxe"), None);
    }

    #[test]
    fn distributions_are_known_by_their_kin() {
        let fixture = Fixture::new();
        let read = || Packages::read(&Root::new(fixture.path()));
        assert_eq!(read(), Packages::Unknown);
        for (text, packages) in [
            ("NAME=x\nID=debian\n", Packages::Apt),
            ("ID=\"almalinux\"\nID_LIKE=\"rhel centos fedora\"\n", Packages::Dnf),
            ("ID=opensuse-leap\nID_LIKE=\"suse opensuse\"\n", Packages::Zypper),
            ("ID=nixos\n", Packages::Unknown),
        ] {
            fixture.file("etc/os-release", text);
            assert_eq!(read(), packages, "{text}");
            let packages = read();
            let lines = [packages.install_verbs(), packages.reinstall_verbs(), packages.install_rdma_command()];
            assert!(lines.iter().all(|line| line.contains("install") || line.contains("-S ") || line.contains("add ")));
        }
    }
}
