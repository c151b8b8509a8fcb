//! Machines for tests: folders with the files that the snapshot reads, removed at the end.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::system::System;

/// A folder that stands for `/`.
#[derive(Debug)]
pub struct Fixture {
    base: PathBuf,
}

impl Fixture {
    /// An empty machine.
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("doctor-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let base = std::env::temp_dir().join(name);
        fs::create_dir(&base).expect("a folder for this test alone");
        Fixture { base }
    }

    /// A host with a Soft-RoCE device on eth0, as a kernel 6.12 shows it; all is well there.
    pub fn rxe_host() -> Self {
        let fixture = Fixture::new();
        fixture.base_files().netdev("eth0", 1500).file("sys/class/net/lo/flags", "0x9\n");
        fixture.file("sys/class/net/lo/mtu", "65536\n").file("sys/class/net/lo/type", "772\n");
        fixture.soft_roce("rxe0", "eth0", "uverbs0");
        fixture.gid("rxe0", 0, "fe80:0000:0000:0000:5054:00ff:fe00:0001", "RoCE v2", "eth0");
        fixture.gid("rxe0", 1, "0000:0000:0000:0000:0000:ffff:0a4d:000b", "RoCE v2", "eth0");
        fixture.gid("rxe0", 2, "fd77:0000:0000:0000:0000:0000:0000:0011", "RoCE v2", "eth0");
        // An empty row.
        fixture.file("sys/class/infiniband/rxe0/ports/1/gids/3", "0000:0000:0000:0000:0000:0000:0000:0000\n");
        fixture
    }

    /// What every machine has; without limits, with all packages and modules.
    fn base_files(&self) -> &Self {
        self.file(
            "proc/self/limits",
            "Limit                     Soft Limit           Hard Limit           Units     \n\
             Max processes             unlimited            unlimited            processes \n\
             Max open files            65536                65536                files     \n\
             Max locked memory         unlimited            unlimited            bytes     \n",
        )
        .file(
            "proc/self/status",
            "Uid:\t1000\t1000\t1000\t1000\nGid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000000000\n",
        )
        .file("proc/self/uid_map", "         0          0 4294967295\n")
        .file("proc/sys/kernel/osrelease", "6.12.0-test\n")
        .file("etc/os-release", "ID=debian\n")
        .file("etc/libibverbs.d/rxe.driver", "driver rxe\n")
        .file("usr/lib64/libibverbs.so.1.14.44.0", "\0IBVERBS_1.14\0IBVERBS_PRIVATE_34\0")
        .link("usr/lib64/libibverbs.so.1", "libibverbs.so.1.14.44.0")
        .file("usr/lib64/libibverbs/librxe-rdmav34.so", "")
        .file("usr/bin/rdma", "")
        .file("sys/module/rdma_rxe/refcnt", "0\n")
        .file("sys/module/rdma_ucm/refcnt", "0\n")
        .file("sys/module/ib_core/parameters/netns_mode", "Y\n")
        .file("sys/class/misc/rdma_cm/dev", "10:260\n")
        .file("dev/infiniband/rdma_cm", "")
        .file("proc/net/if_inet6", V6_ADDRESSES)
        .file("proc/net/fib_trie", V4_TRIE)
        .file("proc/net/route", V4_ROUTES)
    }

    /// Writes a file, with the folders above it.
    pub fn file(&self, path: &str, text: &str) -> &Self {
        let path = self.above(path);
        fs::write(path, text).expect("a file of the test's own");
        self
    }

    /// The same of bytes.
    pub fn bytes(&self, path: &str, bytes: &[u8]) -> &Self {
        fs::write(self.above(path), bytes).expect("a file of the test's own");
        self
    }

    /// Makes a symbolic link.
    pub fn link(&self, path: &str, target: &str) -> &Self {
        symlink(target, self.above(path)).expect("a link of the test's own");
        self
    }

    /// Removes a file, or a folder with all that is in it.
    pub fn remove(&self, path: &str) -> &Self {
        let path = self.base.join(path);
        let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        removed.expect("it is there");
        self
    }

    /// An Ethernet interface that is up.
    pub fn netdev(&self, name: &str, mtu: u32) -> &Self {
        let at = format!("sys/class/net/{name}");
        self.file(&format!("{at}/mtu"), &format!("{mtu}\n"))
            .file(&format!("{at}/flags"), "0x1003\n")
            .file(&format!("{at}/carrier"), "1\n")
            .file(&format!("{at}/type"), "1\n")
            .file(&format!("{at}/device/vendor"), "0x1af4\n")
    }

    /// A Soft-RoCE device with one active port and no GIDs.
    pub fn soft_roce(&self, name: &str, parent: &str, uverbs: &str) -> &Self {
        let at = format!("sys/class/infiniband/{name}");
        self.file(&format!("{at}/parent"), &format!("{parent}\n"))
            .file(&format!("{at}/node_desc"), "rxe\n")
            .file(&format!("{at}/node_type"), "1: CA\n")
            .file(&format!("{at}/fw_ver"), "\n")
            .file(&format!("sys/class/infiniband_verbs/{uverbs}/ibdev"), &format!("{name}\n"))
            .file(&format!("dev/infiniband/{uverbs}"), "")
            .port(name, 1, "4: ACTIVE", "Ethernet")
    }

    /// A device of hardware at that PCI address, without ports.
    pub fn hardware(&self, name: &str, driver: &str, pci: &str) -> &Self {
        let hardware = format!("sys/devices/pci0000:00/{pci}");
        self.file(&format!("{hardware}/class"), "0x020700\n")
            .link(&format!("{hardware}/driver"), &format!("../../../bus/pci/drivers/{driver}"))
            .file(&format!("sys/class/infiniband/{name}/node_type"), "1: CA\n")
            .link(&format!("sys/class/infiniband/{name}/device"), &format!("../../../devices/pci0000:00/{pci}"))
            .link(&format!("sys/bus/pci/devices/{pci}"), &format!("../../../devices/pci0000:00/{pci}"))
            .file(&format!("sys/class/infiniband_verbs/uverbs-{name}/ibdev"), &format!("{name}\n"))
            .file(&format!("dev/infiniband/uverbs-{name}"), "")
    }

    /// A port without GIDs.
    pub fn port(&self, device: &str, number: u32, state: &str, layer: &str) -> &Self {
        let at = format!("sys/class/infiniband/{device}/ports/{number}");
        let physical = if state.starts_with('4') { "5: LinkUp" } else { "3: Disabled" };
        self.file(&format!("{at}/state"), &format!("{state}\n"))
            .file(&format!("{at}/phys_state"), &format!("{physical}\n"))
            .file(&format!("{at}/link_layer"), &format!("{layer}\n"))
            .file(&format!("{at}/sm_lid"), "0x0\n")
            .file(&format!("{at}/rate"), "2.5 Gb/sec (1X SDR)\n")
    }

    /// A GID of a device's first port.
    pub fn gid(&self, device: &str, index: u32, gid: &str, kind: &str, netdev: &str) -> &Self {
        let at = format!("sys/class/infiniband/{device}/ports/1");
        self.file(&format!("{at}/gids/{index}"), &format!("{gid}\n"))
            .file(&format!("{at}/gid_attrs/types/{index}"), &format!("{kind}\n"))
            .file(&format!("{at}/gid_attrs/ndevs/{index}"), &format!("{netdev}\n"))
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.base
    }

    /// What the snapshot makes of it.
    pub fn system(&self) -> System {
        System::read(&self.base)
    }

    fn above(&self, path: &str) -> PathBuf {
        let path = self.base.join(path);
        fs::create_dir_all(path.parent().expect("within the folder")).expect("a folder of the test's own");
        path
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        // What can not be removed is no reason to fail a test that passed.
        let _ = fs::remove_dir_all(&self.base);
    }
}

const V6_ADDRESSES: &str = "fe80000000000000505400fffe000001 02 40 20 80     eth0
00000000000000000000000000000001 01 80 10 80       lo
fd770000000000000000000000000011 02 40 00 80     eth0
";
const V4_TRIE: &str = "Main:
  +-- 0.0.0.0/1 2 0 2
     +-- 10.77.0.0/24 2 0 2
           |-- 10.77.0.0
              /24 link UNICAST
           |-- 10.77.0.11
              /32 host LOCAL
        |-- 10.77.0.255
           /32 link BROADCAST
     +-- 127.0.0.0/8 2 0 2
           |-- 127.0.0.1
              /32 host LOCAL
Local:
           |-- 10.77.0.11
              /32 host LOCAL
";
const V4_ROUTES: &str = "Iface	Destination	Gateway 	Flags	RefCnt	Use	Metric	Mask		MTU	Window	IRTT
eth0	00000000	01004D0A	0003	0	0	0	00000000	0	0	0
eth0	00004D0A	00000000	0001	0	0	0	00FFFFFF	0	0	0
";
