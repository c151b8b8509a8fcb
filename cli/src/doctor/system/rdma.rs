//! RDMA devices as the kernel shows them, and their files in /dev/infiniband.

use std::fs::OpenOptions;
use std::net::Ipv6Addr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use super::root::Root;

/// A device under /sys/class/infiniband.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RdmaDevice {
    /// Its name, such as `mlx5_0`.
    pub name: String,
    /// The code of its node type: 1 for a channel adapter, 4 for an iWARP NIC.
    pub node_type: Option<u32>,
    /// The kernel driver of the hardware under it; `None` for software devices.
    pub driver: Option<String>,
    /// The hardware's PCI address.
    pub pci: Option<String>,
    /// The network interface that a software device was put on.
    pub parent: Option<String>,
    /// What it calls itself.
    pub description: Option<String>,
    /// Version of its firmware.
    pub firmware: Option<String>,
    /// The NUMA node that it hangs on.
    pub numa_node: Option<u32>,
    /// The name of its file in /dev/infiniband.
    pub uverbs: Option<String>,
    /// Its PCI link.
    pub link: PciLink,
    /// How the IOMMU treats it: `identity`, `DMA`, ...
    pub iommu: Option<String>,
    /// Its ports.
    pub ports: Vec<Port>,
}

/// Lanes and speed of a PCI link, now and at best.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PciLink {
    /// Lanes and speed now.
    pub now: Option<(u32, String)>,
    /// Lanes and speed that the device is made for.
    pub best: Option<(u32, String)>,
}

/// The number in the speed of a link, such as `16.0 GT/s PCIe`; `None` if there is none, as in `Unknown`.
pub fn gigatransfers(speed: &str) -> Option<f64> {
    speed.split_whitespace().next()?.parse().ok().filter(|rate: &f64| rate.is_finite())
}

/// A port of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Port {
    /// Its number, from 1.
    pub number: u32,
    /// The code of its state: 1 down, 2 init, 3 armed, 4 active.
    pub state: Option<u32>,
    /// The code of its physical state: 2 polling, 3 disabled, 5 link up.
    pub physical_state: Option<u32>,
    /// `InfiniBand` or `Ethernet`.
    pub link_layer: Option<String>,
    /// Rate, as the kernel words it.
    pub rate: Option<String>,
    /// Local identifier of the subnet manager.
    pub sm_lid: Option<u64>,
    /// The network interface beside it, for Ethernet.
    pub netdev: Option<String>,
    /// GIDs that are set.
    pub gids: Vec<GidRow>,
}

/// A row of a port's GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidRow {
    /// Its position.
    pub index: u32,
    /// The identifier.
    pub gid: Ipv6Addr,
    /// Its kind.
    pub kind: GidKind,
    /// The interface that it belongs to.
    pub netdev: Option<String>,
}

/// The kind of a GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GidKind {
    /// InfiniBand or RoCE version 1: the kernel's word is the same.
    #[serde(rename = "ib_or_roce_v1")]
    IbOrRoceV1,
    /// RoCE version 2.
    #[serde(rename = "roce_v2")]
    RoceV2,
    /// Anything else.
    #[serde(rename = "other", other)]
    Other,
}

/// A file in /dev/infiniband.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFile {
    /// Its name.
    pub name: String,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The name of the group, if it has one.
    pub group: Option<String>,
    /// The error number that opening it gave, if it failed.
    pub refused: Option<i32>,
}

impl RdmaDevice {
    /// The name of the provider that libibverbs needs for it, if that is known here.
    pub fn provider(&self) -> Option<&'static str> {
        let driver = self.driver.as_deref();
        let by_driver = PROVIDERS.iter().find(|(name, _)| driver == Some(name)).map(|(_, provider)| *provider);
        by_driver.or_else(|| match self.description.as_deref() {
            _ if driver.is_some() => None,
            Some("rxe") => Some("rxe"),
            Some(text) if text.contains("siw") || text.contains("iWARP") => Some("siw"),
            _ => None,
        })
    }

    /// What drives it: the driver of its hardware, or the software that it is, and where that is put on.
    pub fn driver_name(&self) -> Option<String> {
        match (&self.driver, self.provider(), &self.parent) {
            (Some(driver), ..) => Some(driver.clone()),
            (None, Some(software), Some(parent)) => Some(format!("{software} on {parent}")),
            (None, software, _) => software.map(str::to_owned),
        }
    }

    /// True for Soft-RoCE.
    pub fn is_rxe(&self) -> bool {
        self.provider() == Some("rxe")
    }

    /// True for iWARP, whose GIDs are made of MAC addresses.
    pub fn is_iwarp(&self) -> bool {
        self.node_type == Some(4)
    }
}

impl Port {
    /// True if it carries data.
    pub fn is_active(&self) -> bool {
        // 5, ACTIVE_DEFER: the link is coming back, and requests wait (InfiniBand specification, volume 1, 7.2.7).
        matches!(self.state, Some(4 | 5))
    }

    /// True for RoCE and iWARP.
    pub fn is_ethernet(&self) -> bool {
        self.link_layer.as_deref() == Some("Ethernet")
    }
}

impl GidRow {
    /// The IPv4 address in it, if it is one.
    pub fn ipv4(&self) -> Option<std::net::Ipv4Addr> {
        self.gid.to_ipv4_mapped()
    }

    /// True for addresses that are made of a MAC address and reach no further than the link.
    pub fn is_link_local(&self) -> bool {
        self.gid.is_unicast_link_local()
    }
}

/// The devices there are.
pub fn devices(root: &Root) -> Vec<RdmaDevice> {
    let uverbs: Vec<(String, String)> = root
        .names(VERBS)
        .into_iter()
        .filter_map(|name| Some((root.line(&format!("{VERBS}/{name}/ibdev"))?, name)))
        .collect();
    let names = root.names(CLASS).into_iter().take(MOST_DEVICES);
    names.map(|name| device(root, name, &uverbs)).collect()
}

fn device(root: &Root, name: String, uverbs: &[(String, String)]) -> RdmaDevice {
    let at = |file: &str| format!("{CLASS}/{name}/{file}");
    let parent = root.line(&at("parent"));
    let numbers = root.names(&at("ports")).into_iter().filter_map(|port| port.parse().ok());
    let mut ports: Vec<Port> =
        numbers.take(MOST_PORTS).map(|number| port(root, &name, number, parent.as_deref())).collect();
    ports.sort_by_key(|port| port.number);
    let numa_node = root.number::<i32>(&at("device/numa_node"));
    RdmaDevice {
        node_type: root.code(&at("node_type")),
        driver: root.link_name(&at("device/driver")),
        pci: root.link_name(&at("device")).filter(|address| address.contains(':')),
        parent,
        description: root.line(&at("node_desc")),
        firmware: root.line(&at("fw_ver")),
        numa_node: numa_node.and_then(|node| node.try_into().ok()),
        uverbs: uverbs.iter().find(|(device, _)| *device == name).map(|(_, file)| file.clone()),
        link: PciLink { now: link(root, &at("device/current")), best: link(root, &at("device/max")) },
        iommu: root.line(&at("device/iommu_group/type")),
        ports,
        name,
    }
}

/// A link as the system tells it. Virtual functions and many devices that were passed through show no lanes, or 255, and no
/// speed: nothing is known of those.
fn link(root: &Root, prefix: &str) -> Option<(u32, String)> {
    let width = root.number(&format!("{prefix}_link_width")).filter(|width| (1..=32).contains(width))?;
    let speed = root.line(&format!("{prefix}_link_speed")).filter(|speed| gigatransfers(speed).is_some())?;
    Some((width, speed))
}

fn port(root: &Root, device: &str, number: u32, parent: Option<&str>) -> Port {
    let at = |file: &str| format!("{CLASS}/{device}/ports/{number}/{file}");
    let indices = root.names(&at("gids")).into_iter().filter_map(|index| index.parse().ok());
    let mut gids: Vec<GidRow> = indices.filter_map(|index| gid(root, &at(""), index)).collect();
    gids.sort_by_key(|row| row.index);
    let of_gids = || gids.iter().find_map(|row| row.netdev.clone());
    let netdev = parent.map(str::to_owned).or_else(of_gids).or_else(|| netdev_of_port(root, device, number));
    Port {
        number,
        state: root.code(&at("state")),
        physical_state: root.code(&at("phys_state")),
        link_layer: root.line(&at("link_layer")),
        rate: root.line(&at("rate")),
        sm_lid: root.hex(&at("sm_lid")),
        netdev,
        gids,
    }
}

fn gid(root: &Root, port: &str, index: u32) -> Option<GidRow> {
    let path = format!("{port}gids/{index}");
    let text = root.line(&path)?;
    let Ok(gid) = text.parse::<Ipv6Addr>() else {
        root.odd(&path, format!("`{text}` is no GID"));
        return None;
    };
    if gid.is_unspecified() {
        return None;
    }
    let kind = match root.line(&format!("{port}gid_attrs/types/{index}")).as_deref() {
        Some("IB/RoCE v1") => GidKind::IbOrRoceV1,
        Some("RoCE v2") => GidKind::RoceV2,
        _ => GidKind::Other,
    };
    Some(GidRow { index, gid, kind, netdev: root.line(&format!("{port}gid_attrs/ndevs/{index}")) })
}

/// The interface of the same hardware that has the same port, or the only one.
fn netdev_of_port(root: &Root, device: &str, number: u32) -> Option<String> {
    let folder = format!("{CLASS}/{device}/device/net");
    let names = root.names(&folder);
    if let [only] = names.as_slice() {
        return Some(only.clone());
    }
    let port = |name: &str| root.number::<u32>(&format!("{folder}/{name}/dev_port"));
    names.iter().find(|name| port(name).is_some_and(|port| port.checked_add(1) == Some(number))).cloned()
}

/// The files in /dev/infiniband. Each is opened once, and closed at once, to see whether it may be.
pub fn device_files(root: &Root) -> Vec<DeviceFile> {
    let names = root.names(FILES).into_iter().filter(|name| name.starts_with("uverbs") || name == "rdma_cm");
    names.take(MOST_DEVICES).filter_map(|name| device_file(root, name)).collect()
}

fn device_file(root: &Root, name: String) -> Option<DeviceFile> {
    let path = root.path(&format!("{FILES}/{name}"));
    let seen = path.metadata().ok()?;
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let opened = OpenOptions::new().read(true).write(true).custom_flags(flags).open(&path);
    Some(DeviceFile {
        name,
        mode: seen.mode() & 0o7777,
        uid: seen.uid(),
        gid: seen.gid(),
        group: group_name(root, seen.gid()),
        refused: opened.err().map(|error| error.raw_os_error().unwrap_or_default()),
    })
}

fn group_name(root: &Root, gid: u32) -> Option<String> {
    let groups = root.long_text("/etc/group", 1 << 20)?;
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(gid)).then(|| name.to_owned())
    })
}

const CLASS: &str = "/sys/class/infiniband";
const VERBS: &str = "/sys/class/infiniband_verbs";
const FILES: &str = "/dev/infiniband";
/// Kernel drivers of PCI devices, and libibverbs' providers for them.
const PROVIDERS: [(&str, &str); 18] = [
    ("mlx5_core", "mlx5"),
    ("mlx4_core", "mlx4"),
    ("ib_mthca", "mthca"),
    ("bnxt_en", "bnxt_re"),
    ("ice", "irdma"),
    ("i40e", "irdma"),
    ("idpf", "irdma"),
    ("irdma", "irdma"),
    ("efa", "efa"),
    ("qede", "qedr"),
    ("cxgb4", "cxgb4"),
    ("hns3", "hns"),
    ("mana", "mana"),
    ("erdma", "erdma"),
    ("hfi1", "hfi1verbs"),
    ("ib_qib", "ipathverbs"),
    ("be2net", "ocrdma"),
    ("vmw_pvrdma", "vmw_pvrdma"),
];
/// The kernel numbers at most 256 device files the old way.
const MOST_DEVICES: usize = 256;
const MOST_PORTS: usize = 255;

#[cfg(test)]
mod tests {
    use super::super::super::fixture::Fixture;
    use super::*;

    #[test]
    fn a_soft_roce_device_is_read_with_its_port_and_gids() {
        let fixture = Fixture::rxe_host();
        let root = Root::new(fixture.path());
        let devices = devices(&root);
        let [rxe] = devices.as_slice() else { panic!("{devices:?}") };
        assert_eq!((rxe.name.as_str(), rxe.provider(), rxe.uverbs.as_deref()), ("rxe0", Some("rxe"), Some("uverbs0")));
        assert!(rxe.is_rxe() && !rxe.is_iwarp());
        assert_eq!(rxe.driver_name().as_deref(), Some("rxe on eth0"));
        let [port] = rxe.ports.as_slice() else { panic!("{rxe:?}") };
        assert!(port.is_active() && port.is_ethernet());
        assert_eq!((port.physical_state, port.netdev.as_deref()), (Some(5), Some("eth0")));
        let gids: Vec<_> = port.gids.iter().map(|row| (row.index, row.gid.to_string(), row.kind)).collect();
        let expected = [(0, "fe80::5054:ff:fe00:1"), (1, "::ffff:10.77.0.11"), (2, "fd77::11")];
        assert_eq!(gids, expected.map(|(index, gid)| (index, gid.to_owned(), GidKind::RoceV2)));
        assert!(root.into_oddities().is_empty());
    }

    #[test]
    fn hardware_is_read_with_its_driver_link_and_interface() {
        let fixture = Fixture::new();
        fixture.hardware("mlx5_0", "mlx5_core", "0000:c1:00.0").port("mlx5_0", 1, "4: ACTIVE", "Ethernet");
        let at = "sys/class/infiniband/mlx5_0/device";
        fixture.file(&format!("{at}/net/ens1/dev_port"), "0\n").file(&format!("{at}/numa_node"), "1\n");
        fixture
            .file(&format!("{at}/current_link_width"), "8\n")
            .file(&format!("{at}/current_link_speed"), "16.0 GT/s PCIe\n");
        let devices = devices(&Root::new(fixture.path()));
        let device = &devices[0];
        assert_eq!((device.provider(), device.pci.as_deref()), (Some("mlx5"), Some("0000:c1:00.0")));
        assert_eq!((device.numa_node, device.ports[0].netdev.as_deref()), (Some(1), Some("ens1")));
        assert_eq!(device.link, PciLink { now: Some((8, "16.0 GT/s PCIe".to_owned())), best: None });
    }

    #[test]
    fn a_link_that_is_not_told_is_not_known() {
        let link_of = |width: &str, speed: &str| {
            let fixture = Fixture::new();
            fixture.hardware("mlx5_2", "mlx5_core", "0000:c1:00.2");
            let at = "sys/class/infiniband/mlx5_2/device";
            fixture.file(&format!("{at}/current_link_width"), width).file(&format!("{at}/current_link_speed"), speed);
            devices(&Root::new(fixture.path()))[0].link.now.clone()
        };
        let speed = "32.0 GT/s PCIe";
        assert_eq!(link_of("16\n", speed), Some((16, speed.to_owned())));
        for width in ["0\n", "255\n"] {
            assert_eq!(link_of(width, speed), None, "{width}");
        }
        assert_eq!(link_of("16\n", "Unknown\n"), None);
    }

    #[test]
    fn nonsense_in_a_gid_table_is_left_out_and_kept_aside() {
        let fixture = Fixture::rxe_host();
        fixture.file("sys/class/infiniband/rxe0/ports/1/gids/1", "not-a-gid\n");
        fixture.file("sys/class/infiniband/rxe0/ports/1/state", "\u{1}\u{2}\n");
        fixture.file("sys/class/infiniband/rxe0/ports/x/state", "4: ACTIVE\n");
        let root = Root::new(fixture.path());
        let devices = devices(&root);
        assert_eq!((devices[0].ports.len(), devices[0].ports[0].gids.len()), (1, 2));
        assert_eq!(devices[0].ports[0].state, None);
        let odd = root.into_oddities();
        assert_eq!(odd.len(), 2, "{odd:?}");
    }

    #[test]
    fn device_files_tell_their_permissions() {
        let fixture = Fixture::rxe_host();
        fixture.file("etc/group", "root:x:0:\nrdma:x:4242:me\n");
        let files = device_files(&Root::new(fixture.path()));
        let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
        assert_eq!(names, ["rdma_cm", "uverbs0"]);
        assert!(files.iter().all(|file| file.refused.is_none()));
        assert_eq!(group_name(&Root::new(fixture.path()), 4242).as_deref(), Some("rdma"));
    }
}
