//! Each finding on two machines, with its message and fix.

use super::super::super::fixture::Fixture;
use super::super::super::system::GidKind;
use super::*;

/// A machine with one Soft-RoCE port, and another beside it in the same network.
fn pair() -> (Summary, Summary) {
    let ours = Summary::new(&Fixture::rxe_host().system());
    let mut theirs = ours.clone();
    for (gid, address) in theirs.ports[0].gids.iter_mut().zip(["fe80::5054:ff:fe00:2", "::ffff:10.77.0.12", "fd77::12"])
    {
        gid.gid = address.parse().expect("an address");
    }
    (ours, theirs)
}

fn only(findings: &[Finding], check: &str) -> Finding {
    let of_check: Vec<&Finding> = findings.iter().filter(|finding| finding.check == check).collect();
    let [finding] = of_check.as_slice() else { panic!("{check}: {findings:#?}") };
    (*finding).clone()
}

fn fixes(finding: &Finding) -> String {
    finding.fixes.iter().flat_map(|fix| fix.lines.clone()).collect::<Vec<_>>().join("\n")
}

/// The finding of that check after a change to the other machine.
fn after(check: &str, change: impl FnOnce(&mut Summary)) -> Finding {
    let (ours, mut theirs) = pair();
    change(&mut theirs);
    only(&compare(&ours, &theirs, "far"), check)
}

#[test]
fn two_hosts_of_one_network_are_well() {
    let (ours, theirs) = pair();
    let findings = compare(&ours, &theirs, "far");
    assert!(findings.iter().all(|finding| finding.severity == Severity::Ok), "{findings:#?}");
    let finding = only(&findings, "peer-gids");
    assert_eq!(finding.subject.as_deref(), Some("far, rxe0 port 1"));
    assert_eq!(finding.message, "in one network: GID 1 (10.77.0.11) here, rxe0 port 1 GID 1 (10.77.0.12) there");
}

#[test]
fn releases_that_differ_are_told() {
    let finding = after("peer-release", |theirs| theirs.release = "9.9.9".to_owned());
    assert_eq!((finding.severity, finding.subject.as_deref()), (Severity::Warning, Some("far")));
    assert!(finding.message.starts_with("it has release 9.9.9 of qpair"), "{finding:?}");
    let ours = env!("CARGO_PKG_VERSION");
    let expected = [format!("there, in a checkout of qpair {ours}"), "here, in a checkout of qpair 9.9.9".to_owned()];
    assert_eq!(finding.fixes.iter().map(|fix| fix.place.as_str()).collect::<Vec<_>>(), expected);
    assert_eq!(fixes(&finding), "cargo install --path cli\ncargo install --path cli");
    let finding = after("peer-rdma-core", |theirs| theirs.rdma_core = Some(50));
    assert_eq!(finding.message, "it has rdma-core 50, this machine 44");
    let finding = after("peer-architecture", |theirs| theirs.architecture = "pdp11".to_owned());
    assert_eq!(finding.severity, Severity::Note);
}

#[test]
fn one_machine_is_known_as_such() {
    let (mut ours, mut theirs) = pair();
    (ours.boot, theirs.boot) = (Some("same".to_owned()), Some("same".to_owned()));
    let finding = || only(&compare(&ours, &theirs, "far"), "same-machine");
    assert_eq!((finding().severity, finding().message.as_str()), (Severity::Note, "it is this machine"));
}

#[test]
fn another_network_namespace_of_this_machine_is_told() {
    let (mut ours, mut theirs) = pair();
    (ours.namespace, theirs.namespace) = (Some(7), Some(8));
    let found = |ours: &Summary, theirs: &Summary| compare(ours, theirs, "far");
    assert!(found(&ours, &theirs).iter().all(|finding| finding.check != "same-machine"));
    (ours.boot, theirs.boot) = (Some("same".to_owned()), Some("same".to_owned()));
    let finding = only(&found(&ours, &theirs), "same-machine");
    assert_eq!((finding.severity, finding.subject.as_deref()), (Severity::Warning, Some("far")));
    assert_eq!(finding.message, "it is this machine, in another network namespace");
    assert!(fixes(&finding).starts_with("--network=host"), "{finding:?}");
    for known in [Some(7), None] {
        theirs.namespace = known;
        assert_eq!(only(&found(&ours, &theirs), "same-machine").severity, Severity::Note);
    }
}

#[test]
fn ports_that_are_not_there_or_of_another_sort_are_a_problem() {
    let finding = after("peer-ports", |theirs| theirs.ports.clear());
    assert_eq!((finding.severity, finding.message.as_str()), (Severity::Problem, "it has no active RDMA port"));
    let (mut ours, theirs) = pair();
    ours.ports.clear();
    assert_eq!(only(&compare(&ours, &theirs, "far"), "peer-ports").message, "this machine has no active RDMA port");
    assert_eq!(only(&compare(&ours, &theirs, "far"), "peer-ports").fixes[0].place, "here: see why");
    // Within one machine there is soft0.
    (ours.boot, ours.namespace) = (Some("same".to_owned()), Some(7));
    let mut theirs = ours.clone();
    assert_eq!(only(&compare(&ours, &theirs, "far"), "peer-ports").severity, Severity::Note);
    theirs.namespace = Some(8);
    assert_eq!(only(&compare(&ours, &theirs, "far"), "peer-ports").severity, Severity::Problem);
    let finding = after("peer-link-layer", |theirs| theirs.ports[0].link_layer = "InfiniBand".to_owned());
    assert_eq!(finding.message, "this one is RoCE, its ports are InfiniBand");
    assert!(fixes(&finding).contains("qpair devices"));
    let finding = after("peer-link-layer", |theirs| theirs.ports[0].iwarp = true);
    assert_eq!(finding.message, "this one is RoCE, its ports are iWARP");
}

#[test]
fn kinds_of_gids_that_differ_are_a_problem() {
    let version_1 = |summary: &mut Summary| {
        summary.ports[0].gids.iter_mut().for_each(|gid| gid.kind = GidKind::IbOrRoceV1);
    };
    let finding = after("peer-gids", version_1);
    assert_eq!(finding.severity, Severity::Problem);
    assert_eq!(finding.message, "it has no RoCE v2 GID, this machine has");
    let (mut ours, theirs) = pair();
    version_1(&mut ours);
    let finding = only(&compare(&ours, &theirs, "far"), "peer-gids");
    assert_eq!(finding.message, "this machine has no RoCE v2 GID, it has");
    let (mut ours, mut theirs) = pair();
    ours.ports[0].gids.retain(|gid| gid.ip().is_ipv4());
    theirs.ports[0].gids.retain(|gid| gid.ip().is_ipv6());
    let finding = only(&compare(&ours, &theirs, "far"), "peer-gids");
    assert!(finding.message.starts_with("no GIDs of both fit: one side has IPv4"), "{finding:?}");
}

#[test]
fn networks_that_differ_are_told_with_the_best_pair() {
    let only_v4 = |address: &'static str, prefix| {
        move |theirs: &mut Summary| {
            theirs.ports[0].gids.retain(|gid| gid.ip().is_ipv4());
            theirs.ports[0].gids[0].gid = address.parse().expect("an address");
            theirs.ports[0].gids[0].prefix = prefix;
        }
    };
    let finding = after("peer-gids", only_v4("::ffff:10.78.0.12", Some(24)));
    assert_eq!(finding.severity, Severity::Warning);
    assert!(finding.message.starts_with("in different networks: GID 1 (10.77.0.11)"), "{finding:?}");
    assert_eq!(fixes(&finding), "ip route get 10.78.0.12");
    let finding = after("peer-gids", only_v4("::ffff:10.78.0.12", Some(8)));
    assert!(finding.message.starts_with("only one side takes both for one network"), "{finding:?}");
    let finding = after("peer-gids", only_v4("::ffff:10.77.0.12", None));
    assert!(finding.message.starts_with("in different networks"), "{finding:?}");
    let finding = after("peer-gids", |theirs| theirs.ports[0].gids.truncate(1));
    assert!(finding.message.starts_with("only link-local GIDs fit"), "{finding:?}");
}

#[test]
fn infiniband_subnets_are_told_by_their_prefix() {
    let fabric = |summary: &mut Summary, address: &str| {
        summary.ports[0].link_layer = "InfiniBand".to_owned();
        summary.ports[0].gids.truncate(1);
        summary.ports[0].gids[0].gid = address.parse().expect("an address");
        summary.ports[0].gids[0].kind = GidKind::IbOrRoceV1;
    };
    let (mut ours, mut theirs) = pair();
    fabric(&mut ours, "fec0::1");
    fabric(&mut theirs, "fec0::2");
    assert_eq!(only(&compare(&ours, &theirs, "far"), "peer-gids").severity, Severity::Ok);
    fabric(&mut theirs, "fec1::2");
    let finding = only(&compare(&ours, &theirs, "far"), "peer-gids");
    assert_eq!((finding.severity, finding.message.as_str()), (Severity::Problem, "in different InfiniBand subnets"));
    ours.ports[0].gids.clear();
    assert!(fixes(&only(&compare(&ours, &theirs, "far"), "peer-gids")).contains("sminfo"));
}

#[test]
fn mtus_that_differ_are_told() {
    let finding = after("peer-netdev-mtu", |theirs| theirs.ports[0].netdev_mtu = Some(9000));
    assert_eq!(finding.message, "its interface has MTU 9000 B (rxe0 port 1), this machine's 1500 B");
    assert_eq!(fixes(&finding), "ip link set dev INTERFACE mtu 9000");
    let (mut ours, mut theirs) = pair();
    (ours.ports[0].active_mtu, theirs.ports[0].active_mtu) = (Some(1024), Some(4096));
    let finding = only(&compare(&ours, &theirs, "far"), "peer-mtu");
    assert_eq!(finding.message, "its active MTU is 4096 B (rxe0 port 1), this machine's 1024 B");
    assert_eq!(finding.severity, Severity::Note);
    assert_eq!(finding.why.as_deref(), Some("Connections use the lesser, 1024 B."));
}

#[test]
fn mtus_are_compared_of_ports_that_meet() {
    let (ours, mut theirs) = pair();
    let mtus = |ours: &Summary, theirs: &Summary| {
        let findings = compare(ours, theirs, "far");
        findings.into_iter().filter(|finding| finding.check.ends_with("mtu")).collect::<Vec<_>>()
    };
    // Another port stands in front, in a network that is far: the near one counts.
    let mut far = theirs.ports[0].clone();
    far.gids.retain(|gid| gid.ip().is_ipv4());
    far.gids[0].gid = "::ffff:10.99.0.12".parse().expect("an address");
    far.netdev_mtu = Some(9000);
    theirs.ports.insert(0, far);
    assert_eq!(mtus(&ours, &theirs)[0].severity, Severity::Ok);
    // Alone it is reached by routers.
    theirs.ports.truncate(1);
    assert_eq!(only(&mtus(&ours, &theirs), "peer-netdev-mtu").severity, Severity::Warning);
    // Without a GID that fits, it is not.
    theirs.ports[0].gids.clear();
    assert!(mtus(&ours, &theirs).is_empty());
}

#[test]
fn mtus_of_two_fabrics_are_not_compared() {
    let (mut ours, mut theirs) = pair();
    for (summary, mtu) in [(&mut ours, 2048), (&mut theirs, 4096)] {
        let port = &mut summary.ports[0];
        (port.link_layer, port.netdev_mtu, port.active_mtu) = ("InfiniBand".to_owned(), None, Some(mtu));
        port.gids[0].gid = "fec0::1".parse().expect("an address");
    }
    assert_eq!(only(&compare(&ours, &theirs, "far"), "peer-mtu").severity, Severity::Note);
    theirs.ports[0].gids[0].gid = "fec1::1".parse().expect("an address");
    assert!(compare(&ours, &theirs, "far").iter().all(|finding| finding.check != "peer-mtu"));
}

#[test]
fn what_a_peer_claims_is_only_compared() {
    let absurd = |theirs: &mut Summary| {
        let port = &mut theirs.ports[0];
        port.gids.iter_mut().for_each(|gid| gid.prefix = Some(255));
        (port.active_mtu, port.netdev_mtu, port.port) = (Some(u32::MAX), Some(0), u32::MAX);
        theirs.ports = vec![theirs.ports[0].clone(); 1000];
    };
    let finding = after("peer-gids", absurd);
    assert_eq!(finding.severity, Severity::Warning);
}
