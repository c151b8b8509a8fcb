use super::*;
use crate::{Bandwidth, PciAddress, PcieGeneration, PcieLink};

fn at(text: &str) -> PciAddress {
    text.parse().unwrap()
}

const X16: PcieLink = PcieLink::new(PcieGeneration::Gen4, 16);
const ROOT: Parent = Parent::HostBridge { domain: 0, bus: 0x10 };

/// A host bridge, a root port, a switch with two ports, a GPU and a card with two functions.
fn parts() -> Description {
    let root = at("0000:10:01.0");
    let up = at("0000:11:00.0");
    let (left, right) = (at("0000:12:00.0"), at("0000:12:01.0"));
    let bridge = |address, parent| Bridge { pcie: X16, numa: Some(1), ..Bridge::at(address, parent) };
    let nic = |name: &str, address| Nic {
        ports: vec![Port::active(1, 100_000, LinkLayer::InfiniBand)],
        ..Nic::at(name, at(address), Parent::Bridge(right))
    };
    Description {
        cpus: vec![Cpu::numa(0), Cpu::numa(1)],
        bridges: vec![
            bridge(root, ROOT),
            bridge(up, Parent::Bridge(root)),
            bridge(left, Parent::Bridge(up)),
            bridge(right, Parent::Bridge(up)),
        ],
        gpus: vec![Gpu { pcie: X16, ..Gpu::at(at("0000:13:00.0"), Parent::Bridge(left)) }],
        nics: vec![nic("mlx5_0", "0000:14:00.0"), nic("mlx5_1", "0000:14:00.1")],
        ..Description::default()
    }
}

fn bandwidth(machine: &Machine, a: NodeId, b: NodeId) -> Bandwidth {
    machine.links_of(a).find(|link| link.other(a) == b).unwrap().bandwidth
}

#[test]
fn roles_follow_from_where_bridges_stand() {
    let machine = parts().build();
    let roles: Vec<_> = machine.bridges().iter().map(|bridge| bridge.role).collect();
    use BridgeRole::{DownstreamPort, RootPort, Switch};
    assert_eq!(roles, [RootPort, Switch, DownstreamPort, DownstreamPort]);
    assert_eq!(machine.warnings(), []);
}

#[test]
fn a_device_is_at_the_numa_node_that_parts_above_name() {
    let machine = parts().build();
    assert_eq!(machine.cpu_of(GpuId(0)), machine.cpu_numa(1));
    assert_eq!(machine.cpu_of(NicId(1)), machine.cpu_numa(1));
    assert_eq!(machine.host_bridges(), [HostBridge { domain: 0, bus: 0x10, numa: Some(1) }]);
}

#[test]
fn functions_of_a_card_share_its_link_and_not_its_ports() {
    let machine = parts().build();
    let lanes = |nic: u16, towards_host: bool| {
        machine.links_of(NicId(nic)).find(|link| link.is_towards_host() == towards_host).unwrap().lanes
    };
    assert_eq!(lanes(0, true), lanes(1, true));
    assert_ne!(lanes(0, false), lanes(1, false));
}

#[test]
fn a_virtual_function_shares_the_ports_and_knows_its_link_from_the_physical_one() {
    let mut parts = parts();
    parts.nics[0].pcie = X16;
    parts.nics[1].physfn = parts.nics[0].address;
    let machine = parts.build();
    let lanes: Vec<_> = machine.links_of(NodeId::Network).map(|link| link.lanes).collect();
    assert_eq!(lanes[0], lanes[1]);
    let parent = machine.parent(NicId(1)).unwrap();
    assert_eq!(bandwidth(&machine, NicId(1).into(), parent), Bandwidth::from_gb(24));
}

#[test]
fn without_numa_nodes_devices_hang_under_the_only_one_or_one_of_their_own() {
    for (cpus, expected) in [(vec![], None), (vec![Cpu::numa(0)], Some(0)), (vec![Cpu::numa(0), Cpu::numa(1)], None)] {
        let mut parts = parts();
        parts.bridges.iter_mut().for_each(|bridge| bridge.numa = None);
        parts.cpus = cpus;
        let machine = parts.build();
        let cpu = machine.cpu_of(GpuId(0)).unwrap();
        assert_eq!(machine.cpu(cpu).unwrap().numa, expected);
        assert_eq!(machine.warnings(), []);
    }
}

#[test]
fn what_hangs_under_nothing_or_itself_is_told_and_kept() {
    let mut parts = parts();
    parts.bridges[0].parent = Parent::Bridge(at("0000:12:00.0"));
    parts.gpus[0].parent = Parent::Bridge(at("0000:ff:00.0"));
    let machine = parts.build();
    assert_eq!(machine.gpus().len(), 1);
    assert!(machine.cpu_of(GpuId(0)).is_some() && machine.cpu_of(NicId(0)).is_some());
    let warnings: Vec<_> = machine.warnings().iter().map(ToString::to_string).collect();
    assert!(warnings.iter().any(|w| w.contains("0000:13:00.0") && w.contains("no bridge")), "{warnings:?}");
    assert!(warnings.iter().any(|w| w.contains("itself") || w.contains("too many")), "{warnings:?}");
}

#[test]
fn what_is_described_twice_is_told_and_kept_once() {
    let mut parts = parts();
    parts.gpus.push(Gpu::at(at("0000:13:00.0"), ROOT));
    parts.nics.push(Nic::at("mlx5_0", at("0000:15:00.0"), ROOT));
    parts.cpus.extend([Cpu::numa(0), Cpu::default(), Cpu::default()]);
    let machine = parts.build();
    assert_eq!((machine.gpus().len(), machine.nics().len(), machine.cpus().len()), (1, 2, 3));
    let about: Vec<_> = machine.warnings().iter().map(|warning| warning.about.as_str()).collect();
    assert_eq!(about, ["0000:13:00.0", "NUMA 0", "NUMA ?", "mlx5_0"]);
}

#[test]
fn beyond_the_limits_parts_are_left_out_with_a_warning() {
    let mut builder = Machine::builder();
    for gpu in 0..=limits::GPUS as u32 {
        builder.gpu(Gpu::at(PciAddress::new(gpu, 0, 0, 0), Parent::Numa(u32::MAX)));
    }
    let machine = builder.build();
    assert_eq!(machine.gpus().len(), limits::GPUS);
    assert!(machine.warnings().iter().any(|w| w.about == "machine"));
}

#[test]
fn links_told_by_both_ends_count_once_and_links_told_one_by_one_add_up() {
    let (one, two) = (at("0000:13:00.0"), at("0000:16:00.0"));
    let link = |gpu, to| GpuLink { gpu, to, kind: GpuLinkKind::NvLink, count: 1, each: Bandwidth::from_gb(21) };
    let mut parts = parts();
    parts.gpus.push(Gpu::at(two, ROOT));
    for _ in 0..2 {
        parts.gpu_links.push(link(one, GpuPeer::Gpu(two)));
        parts.gpu_links.push(link(two, GpuPeer::Gpu(one)));
    }
    parts.gpu_links.push(link(one, GpuPeer::Gpu(one)));
    let machine = parts.build();
    assert_eq!(bandwidth(&machine, GpuId(0).into(), GpuId(1).into()), Bandwidth::from_gb(42));
    assert_eq!(machine.warnings().len(), 1);
}

#[test]
fn the_order_of_parts_means_nothing() {
    let machine = parts().build();
    let mut turned = parts();
    turned.bridges.reverse();
    turned.nics.reverse();
    turned.cpus.reverse();
    assert_eq!(turned.build(), machine);
}

#[test]
fn a_machine_made_of_its_own_description_is_the_same() {
    let machine = parts().build();
    assert_eq!(machine.description().clone().build(), machine);
}

#[test]
fn nothing_at_all_is_a_machine_without_nodes() {
    let machine = Machine::builder().build();
    assert_eq!(machine.nodes().count(), 0);
    assert_eq!(machine.links(), []);
}

#[test]
fn each_node_is_found_at_its_own_place() {
    let machine = parts().build();
    let nodes: Vec<_> = machine.nodes().collect();
    assert!(nodes.is_sorted());
    assert!(nodes.iter().all(|&node| machine.index(node).and_then(|index| machine.node(index)) == Some(node)));
    assert_eq!(nodes.len(), 2 + 1 + 4 + 1 + 2 + 1);
}

#[test]
fn software_devices_come_after_all_others() {
    let mut parts = parts();
    parts.nics.push(Nic::software("soft0", 0));
    let machine = parts.build();
    assert_eq!(machine.nics().iter().map(|nic| nic.name.as_str()).collect::<Vec<_>>(), ["mlx5_0", "mlx5_1", "soft0"]);
    assert_eq!(machine.parent(NicId(2)), machine.cpu_numa(0).map(NodeId::from));
}

#[test]
fn families_of_amd_are_one_in_either_way_of_writing_them() {
    let link = |family, model| {
        let (arch, vendor) = (Some("x86_64".to_owned()), Some("AuthenticAMD".to_owned()));
        Cpu { arch, vendor, family: Some(family), model: Some(model), ..Cpu::numa(0) }.socket_bandwidth()
    };
    // Zen 2, Zen 3, Zen 4 and Zen 5, as Linux numbers the family and as topology files do.
    for (plain, extended, model, expected) in [(23, 143, 49, 16), (25, 175, 1, 16), (25, 175, 17, 32), (26, 191, 2, 32)]
    {
        assert_eq!(link(plain, model), Bandwidth::from_gb(expected), "{plain}");
        assert_eq!(link(extended, model), Bandwidth::from_gb(expected), "{extended}");
    }
}

#[test]
fn names_are_cut_and_printable_and_stay_different() {
    let long = "x".repeat(100_000);
    let names = [format!("{long}1"), format!("{long}2"), "a\u{1b}[2J".to_owned(), "a\u{ffff}[2J".to_owned()];
    let mut parts = parts();
    parts.name = Some(format!("{}\u{7}", "ä".repeat(200)));
    parts.gpus[0].model = Some(long.clone());
    parts.nics = names.iter().map(|name| Nic::at(name, at("0000:14:00.0"), ROOT)).collect();
    let machine = parts.clone().build();
    assert_eq!(machine.name().map(|name| name.chars().count()), Some(limits::TEXT));
    assert_eq!(machine.gpus()[0].model.as_ref().map(String::len), Some(limits::TEXT));
    assert_eq!((machine.nics().len(), machine.warnings().len()), (4, 6));
    for nic in machine.nics() {
        assert!(nic.name.chars().count() <= limits::NAME && !nic.name.contains(['\u{1b}', '\u{ffff}']), "{nic:?}");
    }
    assert!(machine.warnings().iter().all(|warning| !warning.to_string().contains(['\u{1b}', '\u{7}'])));
    // Whatever the order was, and once more.
    parts.nics.reverse();
    assert_eq!(parts.build(), machine);
    assert_eq!(Machine::from_json(&machine.to_json()).unwrap(), machine);
}
