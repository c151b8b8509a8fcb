//! How near parts of machines are, and how much passes between them.

mod support;

use qpair_topology::{Bandwidth, CpuId, GpuId, LinkKind, Machine, NicId, NodeId, PathClass};
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
