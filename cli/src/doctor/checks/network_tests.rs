//! Each finding on GIDs and MTUs, with its message and fix.

use super::super::super::finding::Severity;
use super::super::super::fixture::Fixture;
use super::super::super::system::OpenedDevice;
use super::super::{fixes, only};
use super::*;

const PORT: &str = "sys/class/infiniband/rxe0/ports/1";

#[test]
fn an_active_port_without_gids_needs_an_address() {
    let fixture = Fixture::rxe_host();
    let findings = check(&fixture.remove(&format!("{PORT}/gids")).system());
    let finding = only(&findings, "gids");
    assert_eq!((finding.severity, finding.subject.as_deref()), (Severity::Problem, Some("rxe0 port 1")));
    assert_eq!(finding.message, "active, but has no GID");
    assert_eq!(fixes(finding), "as root: give eth0 an address| ip addr add ADDRESS/24 dev eth0\n");
}

#[test]
fn version_1_alone_is_a_problem() {
    let fixture = Fixture::rxe_host();
    fixture.remove(&format!("{PORT}/gids"));
    fixture.gid("rxe0", 0, "fe80::1", "IB/RoCE v1", "eth0");
    let findings = check(&fixture.system());
    assert_eq!(only(&findings, "gids").message, "has no RoCE v2 GID, only version 1");
    assert!(fixes(only(&findings, "gids")).contains("cma_roce_mode -d rxe0 -p 1 -m 2"));
}

#[test]
fn link_local_gids_alone_are_a_warning() {
    let fixture = Fixture::rxe_host();
    fixture.remove(&format!("{PORT}/gids/1")).remove(&format!("{PORT}/gids/2"));
    let findings = check(&fixture.system());
    let finding = only(&findings, "gids");
    assert_eq!(finding.severity, Severity::Warning);
    assert!(fixes(finding).contains("ip addr add ADDRESS/24 dev eth0"), "{finding:?}");
}

#[test]
fn gids_of_addresses_that_are_gone_are_told() {
    let fixture = Fixture::rxe_host();
    fixture.gid("rxe0", 4, "::ffff:10.99.0.1", "RoCE v2", "eth0").gid("rxe0", 5, "fd99::1", "RoCE v2", "eth0");
    let mut system = fixture.system();
    let findings = check(&system);
    let stale: Vec<&Finding> = findings.iter().filter(|finding| finding.check == "gid-address").collect();
    assert_eq!(stale.len(), 2, "{stale:#?}");
    assert_eq!(stale[0].message, "GID 4 is 10.99.0.1, which is no address of eth0");
    assert!(fixes(stale[0]).contains("ip link set dev eth0 down"));
    system.addresses.clear();
    assert!(check(&system).iter().all(|finding| finding.check != "gid-address"), "nothing is known");
}

#[test]
fn an_interface_in_another_namespace_is_told() {
    let fixture = Fixture::rxe_host();
    fixture.hardware("mlx5_0", "mlx5_core", "0000:01:00.0").port("mlx5_0", 1, "4: ACTIVE", "Ethernet");
    fixture.gid("mlx5_0", 0, "::ffff:10.1.0.1", "RoCE v2", "ens9");
    let mut system = fixture.system();
    let findings = check(&system);
    let finding = only(&findings, "netdev-namespace");
    assert_eq!(finding.message, "its interface ens9 is not in this network namespace");
    assert!(fixes(finding).contains("ip link set dev ens9 netns"), "{finding:?}");
    system.machine.container = Some("docker".to_owned());
    assert!(fixes(only(&check(&system), "netdev-namespace")).contains("--network=host"));
}

/// The finding on MTUs with that of the interface, and those of the device if it was opened.
fn mtus(outer: u32, device: Option<(u32, u32)>) -> Finding {
    let mut system = Fixture::rxe_host().system();
    system.netdevs[0].mtu = Some(outer);
    if let Some((active_mtu, max_mtu)) = device {
        let ports = Ok(vec![OpenPort { number: 1, active_mtu, max_mtu }]);
        system.opened = vec![OpenedDevice { name: "rxe0".to_owned(), ports }];
    }
    only(&check(&system), "mtu").clone()
}

#[test]
fn small_frames_are_noted_and_large_ones_are_well() {
    let finding = mtus(1500, Some((1024, 4096)));
    assert_eq!((finding.severity, finding.message.as_str()), (Severity::Note, "MTU 1024 B on eth0 with 1500 B"));
    assert!(finding.why.as_deref().is_some_and(|why| why.contains("4096 B need 4192 B")), "{finding:?}");
    assert!(fixes(&finding).ends_with("| ip link set dev eth0 mtu 9000\n"), "{finding:?}");
    assert_eq!(mtus(9000, Some((4096, 4096))).severity, Severity::Ok);
    assert_eq!(mtus(9000, None).severity, Severity::Ok);
}

#[test]
fn a_device_that_lags_behind_its_interface_is_told() {
    let finding = mtus(9000, Some((1024, 4096)));
    assert_eq!(finding.severity, Severity::Warning);
    assert_eq!(finding.message, "active MTU is 1024 B; eth0 with 9000 B takes 4096 B");
    assert!(fixes(&finding).contains("rdma link add rxe0 type rxe netdev eth0"), "{finding:?}");
    assert_eq!(mtus(9000, Some((2048, 2048))).severity, Severity::Ok, "the device can no more");
}

#[test]
fn a_device_that_exceeds_its_interface_is_a_problem() {
    let finding = mtus(1500, Some((4096, 4096)));
    assert_eq!(finding.severity, Severity::Problem);
    assert!(fixes(&finding).contains("ip link set dev eth0 mtu 4192"), "{finding:?}");
    let finding = mtus(300, None);
    assert_eq!(finding.message, "eth0 has an MTU of 300 B, too little for RoCE");
    assert!(fixes(&finding).contains("mtu 1500"));
}

#[test]
fn payloads_follow_from_frames() {
    for (outer, payload) in [(0, None), (351, None), (352, Some(256)), (1500, Some(1024)), (4191, Some(2048))] {
        assert_eq!(payload_of(outer), payload, "{outer}");
    }
    assert_eq!((payload_of(4192), payload_of(u32::MAX)), (Some(4096), Some(4096)));
}
