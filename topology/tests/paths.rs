//! How near parts of machines are, and how much passes between them.

mod support;

use qpair_topology::{Bandwidth, CpuId, GpuId, Island, LinkKind, Machine, NicId, NodeId, PathClass};
use support::machines;

fn class(machine: &Machine, a: impl Into<NodeId>, b: impl Into<NodeId>) -> PathClass {
    machine.path(a, b).expect("they are joined").class
}

#[test]
fn nvlink_is_direct_or_over_switches_and_does_not_pass_other_gpus() {
    let dgx1 = machines::dgx1_v100();
    assert_eq!(class(&dgx1, GpuId(0), GpuId(3)), PathClass::Nvl);
    assert_eq!(dgx1.path(GpuId(0), GpuId(3)).unwrap().bandwidth, Bandwidth::from_gb(42));
    assert_eq!(class(&dgx1, GpuId(0), GpuId(7)), PathClass::Sys);
    let path = machines::dgx_h100().path(GpuId(0), GpuId(7)).unwrap();
    assert_eq!((path.class, path.hops.len()), (PathClass::Nvl, 2));
    assert_eq!(path.bandwidth, Bandwidth::from_gb(18 * 21));
}

#[test]
fn classes_follow_switches_host_bridges_and_sockets() {
    let p4d = machines::p4d();
    assert_eq!(class(&p4d, GpuId(0), GpuId(0)), PathClass::Loc);
    assert_eq!(class(&p4d, GpuId(0), NicId(0)), PathClass::Pix);
    assert_eq!(class(&p4d, GpuId(0), NicId(1)), PathClass::Phb);
    assert_eq!(class(&p4d, GpuId(0), NicId(2)), PathClass::Sys);
    assert_eq!(class(&p4d, GpuId(0), CpuId(0)), PathClass::Phb);
    assert_eq!(class(&p4d, CpuId(0), CpuId(1)), PathClass::Sys);
    assert_eq!(class(&machines::dgx_h100(), GpuId(0), NicId(1)), PathClass::Node);
    assert_eq!(class(&machines::dgx_a100(), GpuId(0), NicId(2)), PathClass::Node);
}

#[test]
fn a_path_is_the_same_backwards() {
    for machine in machines::all() {
        let nodes: Vec<NodeId> = machine.nodes().collect();
        for (a, b) in nodes.iter().flat_map(|&a| nodes.iter().map(move |&b| (a, b))) {
            let (there, back) = (machine.path(a, b), machine.path(b, a));
            let worth = |path: &qpair_topology::Path| (path.class, path.bandwidth, path.hops.len());
            assert_eq!(there.as_ref().map(worth), back.as_ref().map(worth), "{:?} {a:?} {b:?}", machine.name());
            if let Some(path) = there {
                assert_eq!((path.from, path.to()), (a, b));
                let joined = path.nodes().zip(path.nodes().skip(1)).zip(&path.hops);
                assert!(joined.into_iter().all(|((a, b), hop)| hop.link.other(a) == b));
            }
        }
    }
}

#[test]
fn grace_goes_over_c2c() {
    let machine = machines::grace_hopper();
    assert_eq!(class(&machine, GpuId(1), CpuId(1)), PathClass::Nvl);
    let path = machine.path(GpuId(1), NicId(1)).unwrap();
    assert_eq!(path.class, PathClass::Phb);
    assert!(path.is_coherent());
    assert_eq!(class(&machine, GpuId(1), NicId(2)), PathClass::Sys);
}

#[test]
fn a_neighbours_nic_is_pxn() {
    let machine = machines::neighbours();
    assert_eq!(class(&machine, GpuId(1), NicId(0)), PathClass::Node);
    assert_eq!(machine.path_through(GpuId(1), GpuId(0), NicId(0)).unwrap().class, PathClass::Pxn);
    assert_eq!(machine.path_through(GpuId(1), GpuId(2), NicId(0)), None);
}

#[test]
fn the_bottleneck_is_the_slowest_link() {
    let machine = machines::two_sockets();
    let path = machine.path(GpuId(3), NicId(0)).unwrap();
    assert_eq!(path.bottleneck().unwrap().kind, LinkKind::Socket);
    assert_eq!(path.bandwidth, Bandwidth::from_gb(16));
}

#[test]
fn to_the_network_it_is_net_over_the_nearest_nic() {
    let machine = machines::p4d();
    let path = machine.path(GpuId(3), NodeId::Network).unwrap();
    assert_eq!(path.class, PathClass::Net);
    assert!(path.nodes().any(|node| node == NicId(1).into()));
}

#[test]
fn parts_that_are_not_there_have_no_path() {
    let machine = machines::two_sockets();
    assert_eq!(machine.path(GpuId(9), NicId(0)), None);
    assert_eq!(machine.path(GpuId(0), NodeId::NvSwitch), None);
}

/// The members of each island, their class and what passes to others in GB/s.
fn islands(machine: &Machine) -> Vec<(Vec<u16>, PathClass, f64)> {
    let of = |island: &Island<GpuId>| island.members.iter().map(|gpu| gpu.0).collect();
    let islands = machine.gpu_islands();
    islands.iter().map(|island| (of(island), island.class, island.outside.as_gb())).collect()
}

#[test]
fn gpus_are_on_one_island_with_those_that_they_reach_best() {
    // Two quads, with NVLinks between them that do not join all with all: two double ones and two single ones.
    let quads = vec![(vec![0, 1, 2, 3], PathClass::Nvl, 126.0), (vec![4, 5, 6, 7], PathClass::Nvl, 126.0)];
    assert_eq!(islands(&machines::dgx1_v100()), quads);
    // Switches join all.
    let whole = machines::dgx_h100().gpu_islands();
    assert_eq!((whole.len(), whole[0].members.len(), whole[0].class), (1, 8, PathClass::Nvl));
    assert!(whole[0].outside.is_unlimited());
    // Without NVLink it goes by sockets, between which the link of the processors carries what there is.
    let halves = islands(&machines::two_sockets());
    assert!(halves.len() == 2 && halves.iter().all(|half| half.1 < PathClass::Sys && half.2 == 16.0), "{halves:?}");
    // One alone.
    assert_eq!(machines::one_gpu().gpu_islands().len(), 1);
    assert_eq!(machines::nics_only().gpu_islands(), []);
}

#[test]
fn numa_nodes_are_on_one_island_with_those_of_their_socket() {
    let p4d = machines::p4d().cpu_islands();
    assert_eq!(p4d.iter().map(|island| &island.members[..]).collect::<Vec<_>>(), [[CpuId(0)], [CpuId(1)]]);
    // Each socket of this one has two nodes.
    let a100 = machines::dgx_a100().cpu_islands();
    assert_eq!(
        a100.iter().map(|island| (island.members.len(), island.class)).collect::<Vec<_>>(),
        [(2, PathClass::Node); 2]
    );
}

#[test]
fn islands_part_all() {
    for machine in machines::all() {
        let (gpus, cpus) = (machine.gpu_islands(), machine.cpu_islands());
        let mut members: Vec<GpuId> = gpus.iter().flat_map(|island| island.members.clone()).collect();
        members.sort_unstable();
        assert!(members.into_iter().eq(machine.gpu_ids()), "{:?}", machine.name());
        let known = machine.cpus().iter().filter(|cpu| cpu.numa.is_some() && !cpu.cpus.is_empty()).count();
        assert_eq!(cpus.iter().map(|island| island.members.len()).sum::<usize>(), known);
    }
}
