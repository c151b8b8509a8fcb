//! Rails by machines that are described here, without asking the system.

use std::sync::Arc;

use qpair_topology::{
    Assignment, Bandwidth, Bridge, BridgeRole, Consumer, Cpu, Gpu, GpuId, GpuLink, GpuLinkKind, GpuPeer, LinkLayer,
    Machine, Nic, NicId, NicKind, Parent, PciAddress, Port, PortState, Rail as TopologyRail,
};

use super::choose::{choose, placement, sound_selection};
use super::here::Here;
use super::nics::Nics;
use super::{Near, NearError, Placement};
use crate::worker::rails::Rail;

/// Two sockets of four processors; on each two NICs and two GPUs, each GPU under one switch with a NIC.
fn machine() -> Machine {
    let mut machine = Machine::builder();
    for numa in 0..2_u32 {
        machine.cpu(Cpu { cpus: (numa * 4..numa * 4 + 4).collect(), package: Some(numa), ..Cpu::numa(numa) });
        machine.nic(Nic::software(format!("soft{numa}"), numa));
        for card in 0..2_u8 {
            let bus = 0x10 + 0x40 * numa as u8 + 0x10 * card;
            let above = Parent::HostBridge { domain: 0, bus };
            let at = |device| PciAddress::new(0, bus, device, 0);
            machine.gpu(Gpu { numa: Some(numa), ..Gpu::at(at(1), above) });
            machine.nic(Nic {
                numa: Some(numa),
                ports: vec![Port::active(1, 200_000, LinkLayer::InfiniBand)],
                ..Nic::at(format!("mlx5_{}", numa * 2 + u32::from(card)), at(2), above)
            });
        }
    }
    machine.build()
}

const NICS: [&str; 4] = ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"];

/// All NICs can be opened; the thread may run on the second node alone.
fn here(machine: &Machine) -> Here<'_> {
    let devices = NICS.map(str::to_owned).to_vec();
    Here { machine, devices, nics: Nics::default(), cpus: (4..8).collect(), cpu: 5 }
}

fn devices(placement: &Placement) -> Vec<&str> {
    placement.rails.iter().filter_map(Rail::device_name).collect()
}

#[test]
fn a_thread_has_the_nics_of_the_node_that_it_may_run_on() {
    let machine = machine();
    let found = choose(&Near::thread(), &here(&machine)).unwrap();
    assert_eq!(devices(&found), ["mlx5_2", "mlx5_3"]);
    assert!(found.reason.starts_with("NUMA 1: mlx5_2 (PHB) and mlx5_3 (PHB)"), "{}", found.reason);
    assert_eq!(found.device, "mlx5_2");
}

#[test]
fn a_thread_that_may_run_on_several_nodes_has_those_of_the_one_that_it_is_on() {
    let machine = machine();
    let anywhere = |cpu| Here { cpus: (0..8).collect(), cpu, ..here(&machine) };
    assert_eq!(devices(&choose(&Near::thread(), &anywhere(2)).unwrap()), ["mlx5_0", "mlx5_1"]);
    assert_eq!(devices(&choose(&Near::thread(), &anywhere(6)).unwrap()), ["mlx5_2", "mlx5_3"]);
    // Of a processor that no node has, nothing is known; all serve as well.
    let lost = Here { cpus: (90..92).collect(), cpu: 91, ..here(&machine) };
    assert_eq!(devices(&choose(&Near::thread(), &lost).unwrap()), NICS);
}

#[test]
fn workers_for_the_same_node_begin_with_different_nics() {
    let machine = machine();
    let near = |turn| choose(&Near::numa(0).turn(turn).at_most(1), &here(&machine)).unwrap();
    let first: Vec<_> = (0..4).map(|turn| devices(&near(turn)).join(" ")).collect();
    assert_eq!(first, ["mlx5_0", "mlx5_1", "mlx5_0", "mlx5_1"]);
    assert!(near(3).reason.ends_with("1 of 2 rails, from mlx5_1, port 1 on"), "{}", near(3).reason);
    assert_eq!(devices(&choose(&Near::numa(0).turn(1), &here(&machine)).unwrap()), ["mlx5_1", "mlx5_0"]);
}

#[test]
fn a_gpu_has_its_own_nic_by_number_and_by_address() {
    let machine = machine();
    for (gpu, nic) in NICS.iter().enumerate() {
        let found = choose(&Near::gpu(GpuId(gpu as u16)), &here(&machine)).unwrap();
        assert_eq!(devices(&found), [*nic], "{}", found.reason);
        let same = Near::gpu_at(machine.gpus()[gpu].address);
        assert_eq!(choose(&same, &here(&machine)).unwrap(), found);
    }
}

#[test]
fn a_gpu_whose_nic_is_a_neighbours_is_told_by_which() {
    let (near, far, machine) = neighbours(PortState::Down);
    let through = |gpu| choose(&Near::gpu_at(gpu), &here(&machine)).unwrap().through;
    assert_eq!((through(near), through(far)), (None, Some(near)));
    assert_eq!(choose(&Near::numa(0), &here(&machine)).unwrap().through, None);
}

#[test]
fn rails_by_another_gpu_and_own_ones_do_not_go_together() {
    let (near, _, machine) = neighbours(PortState::Active);
    let rail = |nic: u16, via, gbits: u64| {
        let path = machine.path(GpuId(1), NicId(nic)).unwrap();
        TopologyRail { nic: NicId(nic), via, path, gpu_direct: true, bandwidth: Bandwidth::from_mbit(gbits * 1000) }
    };
    for (by_neighbour, own, expected) in [(400, 100, "mlx5_0"), (100, 400, "mlx5_1"), (100, 100, "mlx5_1")] {
        let assignment = Assignment {
            consumer: Consumer::gpu(&machine, GpuId(1)).unwrap(),
            rails: vec![rail(0, Some(GpuId(0)), by_neighbour), rail(1, None, own)],
            bandwidth: Bandwidth::UNLIMITED,
            candidates: Vec::new(),
            reason: String::new(),
        };
        let found = placement(&Near::gpu(GpuId(1)), &machine, &[&assignment], &[]);
        assert_eq!(devices(&found), [expected], "{}", found.reason);
        assert_eq!(found.through, (expected == "mlx5_0").then_some(near));
        assert!(found.reason.contains("which are reached by the memory of another GPU"), "{}", found.reason);
    }
}

/// A GPU and a NIC under a switch, another GPU that has links to it, and a NIC in that state behind the processor.
fn neighbours(other: PortState) -> (PciAddress, PciAddress, Machine) {
    let mut machine = Machine::builder();
    machine.cpu(Cpu { cpus: (0..4).collect(), ..Cpu::numa(0) });
    let (switch, root) = (PciAddress::new(0, 0x20, 0, 0), Parent::HostBridge { domain: 0, bus: 0x10 });
    machine.bridge(Bridge { role: BridgeRole::Switch, ..Bridge::at(switch, root) });
    let (near, far) = (PciAddress::new(0, 0x21, 0, 0), PciAddress::new(0, 0x31, 0, 0));
    machine.gpu(Gpu { numa: Some(0), ..Gpu::at(near, Parent::Bridge(switch)) });
    machine.gpu(Gpu { numa: Some(0), ..Gpu::at(far, Parent::HostBridge { domain: 0, bus: 0x30 }) });
    let ports = vec![Port::active(1, 200_000, LinkLayer::InfiniBand)];
    let nic = Nic::at("mlx5_0", PciAddress::new(0, 0x22, 0, 0), Parent::Bridge(switch));
    machine.nic(Nic { numa: Some(0), ports, ..nic });
    let (kind, each) = (GpuLinkKind::NvLink, GpuLinkKind::nvlink(3));
    machine.gpu_link(GpuLink { gpu: near, to: GpuPeer::Gpu(far), kind, count: 4, each });
    let ports = vec![Port { state: other, ..Port::active(1, 200_000, LinkLayer::InfiniBand) }];
    let beyond = Nic::at("mlx5_1", PciAddress::new(0, 0x41, 0, 0), Parent::HostBridge { domain: 0, bus: 0x40 });
    machine.nic(Nic { numa: Some(0), ports, ..beyond });
    (near, far, machine.build())
}

#[test]
fn gpus_that_work_at_once_share_no_nic_while_another_is_idle() {
    let mut machine = Machine::builder();
    machine.cpu(Cpu { cpus: (0..4).collect(), ..Cpu::numa(0) });
    for card in 0..4_u8 {
        machine.gpu(Gpu::at(PciAddress::new(0, 1, card, 0), Parent::Numa(0)));
        let ports = vec![Port::active(1, 200_000, LinkLayer::InfiniBand)];
        machine.nic(Nic { ports, ..Nic::at(NICS[usize::from(card)], PciAddress::new(0, 2, card, 0), Parent::Numa(0)) });
    }
    let machine = machine.build();
    // Two NICs are left for four GPUs, and for any two that work.
    let devices_left = ["mlx5_1", "mlx5_3"].map(str::to_owned).to_vec();
    let with = |near: Near| choose(&near, &Here { devices: devices_left.clone(), ..here(&machine) }).unwrap();
    for pair in [[0, 1], [0, 2], [1, 3]].map(|pair| pair.map(GpuId)) {
        let [a, b] = pair.map(|gpu| with(Near::gpu(gpu).among(pair)));
        assert_ne!(devices(&a), devices(&b), "{} and {}", a.reason, b.reason);
        assert!(a.reason.ends_with("without mlx5_0, mlx5_2, which libibverbs does not list"), "{}", a.reason);
        // One that is not named takes part all the same.
        assert_eq!(with(Near::gpu(pair[0]).among([pair[1]])), a);
    }
    let all: Vec<_> = (0..4).map(|gpu| devices(&with(Near::gpu(GpuId(gpu)))).join(" ")).collect();
    assert_eq!(all.iter().filter(|nic| *nic == "mlx5_1").count(), 2, "{all:?}");
}

#[test]
fn each_port_that_carries_data_is_a_rail_and_there_are_no_more_than_eight() {
    let mut machine = Machine::builder();
    machine.cpu(Cpu { cpus: (0..4).collect(), ..Cpu::numa(0) });
    for card in 0..3_u8 {
        let port = |number| Port::active(number, 100_000, LinkLayer::Ethernet);
        let down = Port { state: PortState::Down, ..port(1) };
        machine.nic(Nic {
            ports: vec![down, port(2), port(3), port(4), port(300)],
            ..Nic::at(format!("card{card}"), PciAddress::new(0, 1, card, 0), Parent::Numa(0))
        });
    }
    let machine = machine.build();
    let devices = (0..3).map(|card| format!("card{card}")).collect();
    let found = choose(&Near::numa(0), &Here { devices, ..here(&machine) }).unwrap();
    let rail = |card: usize, port| Rail::device(format!("card{card}")).on_port(port);
    let all = [(0, 2), (0, 3), (0, 4), (1, 2), (1, 3), (1, 4), (2, 2), (2, 3)];
    assert_eq!(found.rails, all.map(|(card, port)| rail(card, port)));
    assert!(found.reason.ends_with("8 of 9 rails, from card0, port 2 on"), "{}", found.reason);
    // Workers that divide them have all of them, and none twice.
    let devices = || (0..3).map(|card| format!("card{card}")).collect();
    let part = |number, of| {
        let near = Near::numa(0).share(number, of);
        choose(&near, &Here { devices: devices(), ..here(&machine) }).unwrap().rails
    };
    let mut all: Vec<_> = (0..3).flat_map(|number| part(number, 3)).collect();
    all.sort_by_key(ToString::to_string);
    all.dedup();
    assert_eq!(all.len(), 9);
    // Of more workers than rails each has one, and those beyond begin again.
    assert_eq!((part(11, 12), part(2, 12).len()), (part(2, 12), 1));
    assert_eq!(part(0, 1).len(), 8);
}

/// A node with a NIC of each of these rates in Gbit/s and link layers.
fn with_nics(nics: &[(u64, LinkLayer)]) -> Machine {
    let mut machine = Machine::builder();
    machine.cpu(Cpu { cpus: (0..8).collect(), ..Cpu::numa(0) });
    for (place, &(rate, layer)) in nics.iter().enumerate() {
        let ports = vec![Port::active(1, rate * 1000, layer)];
        machine.nic(Nic { ports, ..Nic::at(NICS[place], PciAddress::new(0, place as u8, 0, 0), Parent::Numa(0)) });
    }
    machine.build()
}

#[test]
fn the_fastest_nic_comes_first() {
    let machine = with_nics(&[(25, LinkLayer::Ethernet), (400, LinkLayer::Ethernet), (100, LinkLayer::Ethernet)]);
    assert_eq!(devices(&choose(&Near::numa(0), &here(&machine)).unwrap()), ["mlx5_1", "mlx5_2", "mlx5_0"]);
    assert_eq!(devices(&choose(&Near::thread().at_most(1), &here(&machine)).unwrap()), ["mlx5_1"]);
}

#[test]
fn nics_of_one_link_layer_are_taken_unless_the_user_names_others() {
    use LinkLayer::{Ethernet, InfiniBand};
    let machine = with_nics(&[(100, Ethernet), (200, InfiniBand), (50, Ethernet), (200, InfiniBand)]);
    let with =
        |nics: &str| choose(&Near::numa(0), &Here { nics: Nics::parse(nics).unwrap(), ..here(&machine) }).unwrap();
    assert_eq!(devices(&with("")), ["mlx5_1", "mlx5_3"]);
    let told = "without mlx5_0, mlx5_2, which is of another link layer than most of the host's bandwidth";
    assert!(with("").reason.ends_with(told), "{}", with("").reason);
    assert_eq!(devices(&with("mlx5_0,mlx5_1")), ["mlx5_1", "mlx5_0"]);
    assert_eq!(devices(&with("^mlx5_3")), ["mlx5_1"]);
    // Those that are not to be used do not count.
    assert_eq!(devices(&with("^mlx5_1,mlx5_3")), ["mlx5_0", "mlx5_2"]);
    // Those that can not be opened do not count.
    let some = Here { devices: [NICS[0], NICS[2]].map(str::to_owned).to_vec(), ..here(&machine) };
    assert_eq!(devices(&choose(&Near::numa(0), &some).unwrap()), ["mlx5_0", "mlx5_2"]);
}

#[test]
fn devices_without_reliable_connections_are_left_out() {
    let mut parts = with_nics(&[(100, LinkLayer::Ethernet), (25, LinkLayer::Ethernet)]).description().clone();
    for kind in [NicKind::Iwarp, NicKind::Other] {
        parts.nics[0].kind = kind;
        let machine = parts.clone().build();
        let found = choose(&Near::numa(0), &here(&machine)).unwrap();
        assert_eq!(devices(&found), ["mlx5_1"]);
        assert!(found.reason.contains("without mlx5_0, which has no reliable connections"), "{}", found.reason);
    }
}

#[test]
fn nodes_that_work_take_nics_that_idle_ones_would_have() {
    let mut parts = machine().description().clone();
    parts.nics.retain(|nic| nic.name == NICS[0] || nic.name == NICS[1]);
    let machine = parts.build();
    let [shared, alone] =
        [Near::numa(0), Near::numa(0).among_nodes([0])].map(|near| choose(&near, &here(&machine)).unwrap());
    assert_eq!(devices(&shared).len(), 1, "{}", shared.reason);
    assert_eq!(devices(&alone), ["mlx5_0", "mlx5_1"], "{}", alone.reason);
}

#[test]
fn without_a_nic_that_can_be_opened_it_is_the_software_device() {
    let machine = machine();
    let none = Here { devices: vec!["soft0".into()], ..here(&machine) };
    for near in [Near::thread(), Near::numa(1), Near::gpu(GpuId(3))] {
        let found = choose(&near, &none).unwrap();
        assert_eq!(found.rails, [Rail::device("soft0")]);
        assert!(found.reason.contains("without mlx5_0, mlx5_1, mlx5_2, mlx5_3, which"), "{}", found.reason);
    }
    // Nor where it is not to be one.
    let found = Near::software().placement().unwrap();
    assert_eq!((found.device.as_str(), found.reason.as_str()), ("soft0", "the memory of the host"));
    // Nor where nothing at all is known.
    let empty = Machine::builder().build();
    let found = choose(&Near::thread(), &here(&empty)).unwrap();
    assert_eq!(found.rails, [Rail::device("soft0")]);
    assert_eq!(found.reason, "no NIC can be used, so the software device");
}

#[test]
fn the_user_limits_what_is_chosen_of() {
    let machine = machine();
    let with = |nics: &str| {
        let nics = Nics::parse(nics).unwrap();
        choose(&Near::thread(), &Here { nics, ..here(&machine) })
    };
    assert_eq!(devices(&with(" mlx5_3 ").unwrap()), ["mlx5_3"]);
    assert_eq!(devices(&with("^mlx5_3").unwrap()), ["mlx5_2"]);
    assert_eq!(devices(&with("0000:10:02.0").unwrap()), ["mlx5_0"]);
    assert_eq!(devices(&with("soft1").unwrap()), ["soft0"]);
    assert_eq!(with("").unwrap(), choose(&Near::thread(), &here(&machine)).unwrap());
}

#[test]
fn what_the_user_says_and_is_not_so_is_told_with_what_there_is() {
    let machine = machine();
    let fails = |near: Near, nics: &str, devices: &[&str]| {
        let devices = devices.iter().map(|&name| name.to_owned()).collect();
        let here = Here { nics: Nics::parse(nics).unwrap(), devices, ..here(&machine) };
        choose(&near, &here).unwrap_err().to_string()
    };
    let error = fails(Near::thread(), "mlx5_9", &NICS);
    assert!(
        error.starts_with("QPAIR_NICS is `mlx5_9`: no NIC is called or at `mlx5_9`: there are mlx5_0 at "),
        "{error}"
    );
    let named = Here { nics: Nics::parse("mlx5_9").unwrap(), ..here(&machine) };
    assert_eq!(sound_selection(&named).unwrap_err().to_string(), error);
    let error = fails(Near::thread(), "mlx5_2,mlx5_3", &NICS[..3]);
    assert_eq!(error, "QPAIR_NICS names mlx5_3, which libibverbs does not list; `qpair doctor` tells why");
    // It is there, and carries nothing.
    let mut parts = machine.description().clone();
    parts.nics.iter_mut().for_each(|nic| nic.ports.iter_mut().for_each(|port| port.state = PortState::Down));
    let down = parts.build();
    let nics = Nics::parse("mlx5_3").unwrap();
    let error = choose(&Near::thread(), &Here { nics, ..here(&down) }).unwrap_err().to_string();
    assert_eq!(
        error,
        "QPAIR_NICS is `mlx5_3`, and none of these NICs can be used: mlx5_3: no port is active; name others, or unset it"
    );
    let error = fails(Near::numa(7), "", &NICS);
    assert_eq!(error, "there is no NUMA node 7: there are NUMA 0, NUMA 1");
    let error = fails(Near::gpu(GpuId(4)), "mlx5_0", &NICS);
    assert!(error.starts_with("there is no GPU 4: there are GPU 0 at 0000:10:01.0, "), "{error}");
    let error = fails(Near::gpu_at(PciAddress::new(0, 9, 0, 0)), "", &NICS);
    assert!(error.starts_with("there is no GPU at 0000:09:00.0: there are GPU 0 at 0000:10:01.0, "), "{error}");
    for wrong in ["mlx5_0,", "^", ",", "mlx5_0 mlx5_1", "=mlx5_0", "mlx5_0,^mlx5_1"] {
        assert!(matches!(Nics::parse(wrong), Err(NearError::Syntax { .. })), "{wrong}");
    }
}

#[test]
fn this_host_has_a_placement_and_a_machine_of_ones_own_is_used() {
    let placement = Near::thread().at_most(0).placement().unwrap();
    assert_eq!(placement.rails.len(), 1);
    let mut parts = machine().description().clone();
    parts.nics.iter_mut().for_each(|nic| nic.name.insert_str(0, "no-such-"));
    let own = Near::numa(1).on(Arc::new(parts.build())).placement().unwrap();
    // Of its NICs this host has none.
    assert_eq!(own.rails, [Rail::device("soft0")]);
}
