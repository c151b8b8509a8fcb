//! Discovery from manifests, each with what a machine of a kind shows.

use std::fmt::Write;

use super::*;
use crate::{
    Bandwidth, BridgeRole, Gpu, GpuId, GpuLinkKind, GpuVendor, LinkKind, LinkLayer, Machine, Nic, NicId, NodeId,
    Parent, PathClass, PciAddress, PcieGeneration, PcieLink, PortState, limits,
};

mod broken;
mod capture;
mod fabric;
mod folder;

/// Writes the lines of a manifest.
#[derive(Clone, Default)]
struct Lines(String);

impl Lines {
    /// Two NUMA nodes of four processors each.
    fn two_nodes() -> Self {
        let mut lines = Self::default();
        for node in 0..2 {
            let (first, last) = (node * 4, node * 4 + 3);
            lines.set(&format!("devices/system/node/node{node}"), &[("cpulist", &format!("{first}-{last}"))]);
            lines
                .set(&format!("devices/system/cpu/cpu{first}/topology"), &[("physical_package_id", &node.to_string())]);
        }
        lines.set("devices/system/cpu", &[("modalias", "cpu:type:x86,ven0000fam0006mod008F:feature:,0000")]);
        lines
    }

    fn set(&mut self, path: &str, attributes: &[(&str, &str)]) -> &mut Self {
        for (name, value) in attributes {
            writeln!(self.0, "{path}|{name}={value}").unwrap();
        }
        self
    }

    fn pci(&mut self, path: &str, class: &str, vendor: &str, numa: &str) -> &mut Self {
        self.set(path, &[("class", class), ("vendor", vendor), ("numa_node", numa)]);
        self.link(path, "16.0 GT/s PCIe", "16")
    }

    fn link(&mut self, path: &str, speed: &str, width: &str) -> &mut Self {
        self.set(path, &[("current_link_speed", speed), ("max_link_speed", "16.0 GT/s PCIe")]);
        self.set(path, &[("current_link_width", width), ("max_link_width", "16")])
    }

    /// A root port, a switch with two ports, a GPU and a NIC below them. Gives their paths.
    fn switch(&mut self, bus: u8, numa: &str, nic: &str) -> (String, String) {
        let root = format!("devices/pci0000:{bus:02x}/0000:{bus:02x}:01.0");
        let up = format!("{root}/0000:{:02x}:00.0", bus + 1);
        let ports = [0, 1].map(|port| format!("{up}/0000:{:02x}:{port:02x}.0", bus + 2));
        for bridge in [&root, &up, &ports[0], &ports[1]] {
            self.pci(bridge, "0x060400", "0x1000", numa);
        }
        let gpu = format!("{}/0000:{:02x}:00.0", ports[0], bus + 3);
        self.pci(&gpu, "0x030200", "0x10de", numa);
        let card = format!("{}/0000:{:02x}:00.0", ports[1], bus + 4);
        self.pci(&card, "0x020700", "0x15b3", numa);
        self.nic(&card, nic, "200 Gb/sec (4X HDR)", "4: ACTIVE");
        (gpu, card)
    }

    fn nic(&mut self, card: &str, name: &str, rate: &str, state: &str) -> &mut Self {
        let device = format!("{card}/infiniband/{name}");
        self.set(&device, &[("node_type", "1: CA"), ("node_guid", "b8ce:f603:00a1:b2c3")]);
        let port = format!("{device}/ports/1");
        self.set(&port, &[("rate", rate), ("state", state), ("link_layer", "InfiniBand")])
    }

    fn sysfs(&self) -> Sysfs {
        Sysfs::from_manifest(&self.0).unwrap().software_device(false)
    }

    fn machine(&self) -> Machine {
        Machine::discover(&self.sysfs())
    }
}

fn at(text: &str) -> PciAddress {
    text.parse().unwrap()
}

fn warnings(machine: &Machine) -> Vec<String> {
    machine.warnings().iter().map(ToString::to_string).collect()
}

const X16: PcieLink = PcieLink::new(PcieGeneration::Gen4, 16);

#[test]
fn gpus_nics_and_the_bridges_above_them_are_found() {
    let mut lines = Lines::two_nodes();
    lines.switch(0x10, "0", "mlx5_0");
    lines.switch(0x40, "1", "mlx5_1");
    // Disks and consoles do not matter, nor the bridges to them.
    lines.pci("devices/pci0000:00/0000:00:01.0", "0x060400", "0x8086", "0");
    lines.pci("devices/pci0000:00/0000:00:01.0/0000:01:00.0", "0x010802", "0x144d", "0");
    lines.pci("devices/pci0000:00/0000:00:02.0", "0x030000", "0x1a03", "0");
    let machine = lines.machine();
    assert_eq!(machine.warnings(), []);
    let gpu = Gpu {
        numa: Some(0),
        vendor: GpuVendor::Nvidia,
        pcie: X16,
        ..Gpu::at(at("0000:13:00.0"), Parent::Bridge(at("0000:12:00.0")))
    };
    assert_eq!(machine.gpus()[0], gpu);
    let nic = machine.nic(NicId(0)).unwrap();
    assert_eq!((nic.name.as_str(), nic.address), ("mlx5_0", Some(at("0000:14:00.0"))));
    assert_eq!((nic.ports[0].mbit, nic.ports[0].link_layer), (Some(200_000), LinkLayer::InfiniBand));
    assert_eq!((nic.ports[0].state, nic.guid), (PortState::Active, Some(0xb8ce_f603_00a1_b2c3)));
    use BridgeRole::{DownstreamPort, RootPort, Switch};
    let roles: Vec<_> = machine.bridges().iter().map(|bridge| bridge.role).collect();
    assert_eq!(roles, [RootPort, Switch, DownstreamPort, DownstreamPort].repeat(2));
    assert_eq!(machine.path(GpuId(0), NicId(0)).unwrap().class, PathClass::Pix);
    assert_eq!(machine.path(GpuId(0), NicId(1)).unwrap().class, PathClass::Sys);
}

#[test]
fn numa_nodes_have_processors_sockets_and_make() {
    let machine = Lines::two_nodes().machine();
    let cpu = &machine.cpus()[1];
    assert_eq!((cpu.numa, cpu.package, cpu.cpus.to_string().as_str()), (Some(1), Some(1), "4-7"));
    assert_eq!((cpu.arch.as_deref(), cpu.vendor.as_deref()), (Some("x86_64"), Some("GenuineIntel")));
    assert_eq!((cpu.family, cpu.model), (Some(6), Some(0x8f)));
}

#[test]
fn nodes_of_memory_alone_are_left_out_and_a_kernel_without_numa_has_one_node() {
    let mut lines = Lines::two_nodes();
    lines.set("devices/system/node/node2", &[("cpulist", "")]);
    assert_eq!(lines.machine().cpus().len(), 2);
    let mut lines = Lines::default();
    lines.set("devices/system/cpu", &[("online", "0-7")]);
    assert_eq!(lines.machine().cpus()[0].cpus.len(), 8);
}

#[test]
fn the_software_device_is_at_each_numa_node() {
    let lines = Lines::two_nodes();
    let machine = Machine::discover(&Sysfs::from_manifest(&lines.0).unwrap());
    assert_eq!(machine.nics(), [Nic::software("soft0", 0), Nic::software("soft1", 1)]);
    assert_eq!(lines.machine().nics(), []);
}

#[test]
fn nothing_is_an_empty_machine_without_warnings() {
    let machine = Machine::discover(&Sysfs::from_manifest("").unwrap());
    assert_eq!(machine, Machine::builder().build());
}

#[test]
fn an_idle_gpu_has_its_full_speed_and_a_nic_what_it_runs_at() {
    let mut lines = Lines::two_nodes();
    let (gpu, nic) = lines.switch(0x10, "0", "mlx5_0");
    lines.link(&gpu, "2.5 GT/s PCIe", "8").link(&nic, "8.0 GT/s PCIe", "4");
    let machine = lines.machine();
    assert_eq!(machine.gpus()[0].pcie, PcieLink::new(PcieGeneration::Gen4, 8));
    assert_eq!(machine.nics()[0].pcie, PcieLink::new(PcieGeneration::Gen3, 4));
}

#[test]
fn a_link_is_limited_by_the_port_above_it() {
    let mut lines = Lines::two_nodes();
    lines.switch(0x10, "0", "mlx5_0");
    let port = "devices/pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:01.0";
    lines.set(port, &[("max_link_speed", "8.0 GT/s PCIe")]);
    let machine = lines.machine();
    let link = machine.links_of(NicId(0)).find(|link| link.is_towards_host()).unwrap();
    assert_eq!(link.kind, LinkKind::Pcie(PcieLink::new(PcieGeneration::Gen3, 16)));
}

#[test]
fn links_of_a_virtual_machine_are_not_known() {
    let mut lines = Lines::two_nodes();
    let (gpu, _) = lines.switch(0x10, "0", "mlx5_0");
    lines.set(&gpu, &[("current_link_speed", "Unknown"), ("max_link_speed", "Unknown")]);
    lines.set(&gpu, &[("current_link_width", "0"), ("max_link_width", "255")]);
    assert_eq!(lines.machine().gpus()[0].pcie, PcieLink::UNKNOWN);
}

#[test]
fn without_a_numa_node_that_of_the_near_processors_counts_if_there_is_one() {
    let mut lines = Lines::two_nodes();
    let (gpu, nic) = lines.switch(0x10, "-1", "mlx5_0");
    lines.set(&gpu, &[("local_cpulist", "4-7")]).set(&nic, &[("local_cpulist", "0-7")]);
    let machine = lines.machine();
    assert_eq!(machine.gpus()[0].numa, Some(1));
    assert_eq!(machine.nics()[0].numa, None);
    // Both hang under one host bridge.
    assert_eq!(machine.cpu_of(NicId(0)), machine.cpu_numa(1));
}

#[test]
fn a_machine_of_which_no_place_is_known_has_its_devices_all_the_same() {
    let mut lines = Lines::two_nodes();
    lines.switch(0x10, "-1", "mlx5_0");
    let machine = lines.machine();
    assert_eq!((machine.gpus().len(), machine.nics().len()), (1, 1));
    assert_eq!(machine.warnings(), []);
}

#[test]
fn host_bridges_below_other_devices_are_found() {
    // As virtual machines on Azure show their PCI devices.
    let mut lines = Lines::two_nodes();
    let path = "devices/LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/47505500-0001/pci0001:00/0001:00:00.0";
    lines.pci(path, "0x030200", "0x10de", "1");
    let machine = lines.machine();
    assert_eq!(machine.gpus()[0].parent, Parent::HostBridge { domain: 1, bus: 0 });
    assert_eq!(machine.cpu_of(GpuId(0)), machine.cpu_numa(1));
}

#[test]
fn a_virtual_function_names_its_physical_one() {
    let mut lines = Lines::two_nodes();
    let (_, nic) = lines.switch(0x10, "0", "mlx5_0");
    let function = nic.replace("14:00.0", "14:00.2");
    lines.pci(&function, "0x020700", "0x15b3", "0");
    lines.nic(&function, "mlx5_1", "200 Gb/sec (4X HDR)", "4: ACTIVE");
    lines.set(&function, &[("physfn", "-> ../0000:14:00.0")]);
    let machine = lines.machine();
    assert_eq!(machine.nics()[1].physfn, Some(at("0000:14:00.0")));
    let lanes: Vec<_> = machine.links_of(NodeId::Network).map(|link| link.lanes).collect();
    assert_eq!(lanes[0], lanes[1]);
}

#[test]
fn iommu_and_access_control_are_told_where_they_are_known() {
    let mut lines = Lines::two_nodes();
    let (gpu, _) = lines.switch(0x10, "0", "mlx5_0");
    assert_eq!(lines.machine().description().iommu, None);
    let port = "devices/pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:00.0";
    lines.set(port, &[("qpair_port_type", "0x6"), ("qpair_acs_control", "0x1d")]);
    lines.set(&gpu, &[("iommu_group", "-> /kernel/iommu_groups/7")]);
    let identity = lines.clone().set("kernel/iommu_groups/7", &[("type", "identity")]).machine();
    assert_eq!(identity.description().iommu, Some(false));
    let machine = lines.set("kernel/iommu_groups/7", &[("type", "DMA-FQ")]).machine();
    assert_eq!(machine.description().iommu, Some(true));
    let redirects: Vec<_> = machine.bridges().iter().map(|bridge| bridge.acs_redirect).collect();
    assert_eq!(redirects, [None, None, Some(true), None]);
}

#[test]
fn a_port_that_is_down_and_a_bond_are_told() {
    let mut lines = Lines::two_nodes();
    let (_, nic) = lines.switch(0x10, "0", "mlx5_0");
    lines.set(&format!("{nic}/infiniband/mlx5_0/ports/2"), &[("state", "1: DOWN"), ("rate", "10 Gb/sec (4X SDR)")]);
    lines.set(&format!("{nic}/infiniband/mlx5_0/ports/1/gid_attrs/ndevs"), &[("0", "bond0")]);
    lines.set("class/net/bond0/bonding", &[("slaves", "eth0 eth1")]);
    lines.set("class/net/eth0", &[("speed", "100000")]).set("class/net/eth1", &[("speed", "-1")]);
    let machine = lines.machine();
    let nic = &machine.nics()[0];
    assert_eq!((nic.ports[1].number, nic.ports[1].state), (2, PortState::Down));
    assert_eq!(
        nic.bond.iter().map(|m| (m.name.as_str(), m.mbit, m.active)).collect::<Vec<_>>(),
        [("eth0", Some(100_000), true), ("eth1", None, true)]
    );
    assert_eq!(nic.bandwidth(), Bandwidth::from_mbit(100_000));
}

/// The NIC of a machine whose bond has these members, each with its speed, and these attributes.
fn bonded(members: &[(&str, &str)], attributes: &[(&str, &str)]) -> Nic {
    let mut lines = Lines::two_nodes();
    let (_, nic) = lines.switch(0x10, "0", "mlx5_0");
    lines.set(&format!("{nic}/infiniband/mlx5_0/ports/1/gid_attrs/ndevs"), &[("0", "bond0")]);
    let names: Vec<_> = members.iter().map(|(name, _)| *name).collect();
    lines.set("class/net/bond0/bonding", &[("slaves", &names.join(" "))]).set("class/net/bond0/bonding", attributes);
    for (name, speed) in members.iter().filter(|(_, speed)| !speed.is_empty()) {
        lines.set(&format!("class/net/{name}"), &[("speed", speed)]);
    }
    let machine = lines.machine();
    assert_eq!(Machine::from_json(&machine.to_json()).unwrap(), machine);
    machine.nics()[0].clone()
}

#[test]
fn a_bond_of_which_no_member_is_known_has_the_rate_of_its_port() {
    for members in [[("eth0", "-1"), ("eth1", "-1")], [("eth0", ""), ("eth1", "")], [("eth0", "0"), ("eth1", "-1")]] {
        assert_eq!(bonded(&members, &[]).bandwidth(), Bandwidth::from_mbit(200_000), "{members:?}");
    }
}

#[test]
fn of_a_bond_with_a_member_in_reserve_the_active_one_counts() {
    let members = [("eth0", "100000"), ("eth1", "200000"), ("eth2", "200000")];
    let bandwidth = |attributes: &[(&str, &str)]| bonded(&members, attributes).bandwidth();
    assert_eq!(bandwidth(&[("mode", "802.3ad 4")]), Bandwidth::from_mbit(500_000));
    let backup = ("mode", "active-backup 1");
    assert_eq!(bandwidth(&[backup, ("active_slave", "eth0")]), Bandwidth::from_mbit(100_000));
    assert_eq!(bandwidth(&[backup, ("active_slave", "")]), Bandwidth::from_mbit(200_000));
    let broadcast = bonded(&members, &[("mode", "broadcast 3")]);
    assert_eq!(broadcast.bandwidth(), Bandwidth::from_mbit(200_000));
    assert_eq!(broadcast.bond.iter().map(|member| member.active).collect::<Vec<_>>(), [false, true, false]);
}

#[test]
fn a_device_in_software_is_where_its_interface_is() {
    let mut lines = Lines::two_nodes();
    lines.pci("devices/pci0000:00/0000:00:03.0", "0x020000", "0x8086", "1");
    lines.set("class/net/eth0", &[("device", "-> /devices/pci0000:00/0000:00:03.0")]);
    lines.nic("devices/virtual", "rxe0", "2.5 Gb/sec (1X SDR)", "4: ACTIVE");
    lines.set("devices/virtual/infiniband/rxe0", &[("parent", "eth0")]);
    let machine = lines.machine();
    let nic = &machine.nics()[0];
    assert_eq!((nic.address, nic.parent, nic.gpu_direct), (None, Parent::Numa(1), Some(false)));
    assert!(!nic.software && machine.bridges().is_empty());
}
