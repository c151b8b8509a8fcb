//! What two machines say of themselves, beside each other.

use super::super::finding::{Finding, Section, Severity};
use super::super::system::GidKind;
use super::summary::{PeerGid, PeerPort, Summary};

/// What is different, and whether connections can come about.
pub fn compare(ours: &Summary, theirs: &Summary, host: &str) -> Vec<Finding> {
    let mut findings = programs(ours, theirs);
    if ours.boot.is_some() && ours.boot == theirs.boot {
        let finding = Finding::note(Section::Peer, "same-machine", "it is this machine");
        findings.push(finding.because("soft0 connects its processes."));
    }
    findings.extend(ports(ours, theirs));
    findings.into_iter().map(|finding| about(finding, host)).collect()
}

/// Names the peer, where a finding names nothing.
fn about(finding: Finding, host: &str) -> Finding {
    match &finding.subject {
        None => finding.on(host),
        Some(subject) => {
            let both = format!("{host}, {subject}");
            finding.on(both)
        }
    }
}

/// Releases and machines.
fn programs(ours: &Summary, theirs: &Summary) -> Vec<Finding> {
    let of = Section::Peer;
    let mut findings = Vec::new();
    if ours.release != theirs.release {
        let message = format!("it has release {} of qpair, this machine {}", theirs.release, ours.release);
        findings.push(
            Finding::warning(of, "peer-release", message)
                .because("What processes say to each other may differ between releases.")
                .fix(
                    "on one of both: install the release of the other",
                    [format!("cargo install qpair-cli --version {}", ours.release)],
                ),
        );
    } else {
        findings.push(Finding::ok(of, "peer-release", format!("both have release {}", ours.release)));
    }
    if let (Some(here), Some(there)) = (ours.rdma_core, theirs.rdma_core)
        && here != there
    {
        let message = format!("it has rdma-core {there}, this machine {here}");
        let why = "They work together; what only the newer one can do is not used.";
        findings.push(Finding::note(of, "peer-rdma-core", message).because(why));
    }
    if ours.architecture != theirs.architecture {
        let message = format!("its processor is {}, this machine's {}", theirs.architecture, ours.architecture);
        findings.push(Finding::note(of, "peer-architecture", message));
    }
    findings
}

/// The ports of both, and how they reach each other.
fn ports(ours: &Summary, theirs: &Summary) -> Vec<Finding> {
    let of = Section::Peer;
    for (summary, whose) in [(ours, "this machine has"), (theirs, "it has")] {
        if summary.ports.is_empty() {
            let message = format!("{whose} no active RDMA port");
            let finding = Finding::problem(of, "peer-ports", message);
            return vec![
                finding.because("There is nothing to connect.").fix("on that machine: see why", ["qpair doctor"]),
            ];
        }
    }
    let mut findings = Vec::new();
    for port in &ours.ports {
        let alike: Vec<&PeerPort> = theirs.ports.iter().filter(|other| other.transport() == port.transport()).collect();
        findings.push(if alike.is_empty() { other_layers(port, theirs) } else { reach(port, &alike) });
        let across = alike.iter().find(|other| route(port, other).is_some_and(|route| route.is_near()));
        findings.extend(across.or(alike.first()).into_iter().flat_map(|other| mtus(port, other)));
    }
    findings
}

/// No port of the other side speaks what this one speaks.
fn other_layers(port: &PeerPort, theirs: &Summary) -> Finding {
    let mut layers: Vec<&str> = theirs.ports.iter().map(PeerPort::transport).collect();
    layers.sort_unstable();
    layers.dedup();
    let message = format!("this one is {}, its ports are {}", port.transport(), layers.join(", "));
    Finding::problem(Section::Peer, "peer-link-layer", message)
        .on(port.name())
        .because("These do not speak with each other.")
        .fix("use ports of one sort; see which there are", ["qpair devices"])
}

/// How a pair of ports reach each other.
#[derive(Clone, Copy, Debug)]
enum Route<'a> {
    /// In one network, by these GIDs.
    Near(&'a PeerGid, &'a PeerGid),
    /// In one network for one side only.
    HalfNear(&'a PeerGid, &'a PeerGid),
    /// By routers, if at all.
    Routed(&'a PeerGid, &'a PeerGid),
}

impl Route<'_> {
    fn is_near(&self) -> bool {
        matches!(self, Route::Near(..))
    }

    fn rank(&self) -> u32 {
        match self {
            Route::Near(ours, _) if !ours.is_link_local() => 0,
            Route::HalfNear(..) => 1,
            Route::Routed(..) => 2,
            // Says little: the hosts may be on different links.
            Route::Near(..) => 3,
        }
    }
}

/// The best pair of GIDs of two ports.
fn route<'a>(port: &'a PeerPort, other: &'a PeerPort) -> Option<Route<'a>> {
    let fits = |gid: &&PeerGid| port.transport() != ROCE || gid.kind == GidKind::RoceV2;
    let pairs = port.gids.iter().filter(fits).flat_map(|ours| {
        other.gids.iter().filter(fits).filter_map(move |theirs| {
            if ours.ip().is_ipv4() != theirs.ip().is_ipv4() || ours.is_link_local() != theirs.is_link_local() {
                return None;
            }
            Some(match (ours.holds(theirs), theirs.holds(ours)) {
                (Some(true), Some(true)) => Route::Near(ours, theirs),
                (Some(true), Some(false)) | (Some(false), Some(true)) => Route::HalfNear(ours, theirs),
                _ => Route::Routed(ours, theirs),
            })
        })
    });
    pairs.min_by_key(Route::rank)
}

/// Whether this port reaches one of those.
fn reach(port: &PeerPort, alike: &[&PeerPort]) -> Finding {
    match port.transport() {
        ROCE => reach_by_gid(port, alike),
        INFINIBAND => reach_in_fabric(port, alike),
        _ => Finding::ok(Section::Peer, "peer-link-layer", format!("both have {}", port.transport())).on(port.name()),
    }
}

fn reach_by_gid(port: &PeerPort, alike: &[&PeerPort]) -> Finding {
    let of = Section::Peer;
    let best = alike.iter().filter_map(|other| Some((route(port, other)?, *other)));
    let pair = |other: &PeerPort, ours: &PeerGid, theirs: &PeerGid| {
        format!(
            "GID {} ({}) here, {} GID {} ({}) there",
            ours.index,
            ours.ip(),
            other.name(),
            theirs.index,
            theirs.ip()
        )
    };
    let finding = match best.min_by_key(|(route, _)| route.rank()) {
        None => no_pair(port, alike),
        Some((Route::Near(ours, theirs), other)) if ours.is_link_local() => {
            Finding::warning(of, "peer-gids", format!("only link-local GIDs fit: {}", pair(other, ours, theirs)))
                .because("They work if both hosts are on one link, which they do not tell.")
                .fix("as root, on both hosts: give the interfaces addresses of one network", [ADDRESS])
        }
        Some((Route::Near(ours, theirs), other)) => {
            Finding::ok(of, "peer-gids", format!("in one network: {}", pair(other, ours, theirs)))
        }
        Some((Route::HalfNear(ours, theirs), other)) => {
            let words = pair(other, ours, theirs);
            Finding::warning(of, "peer-gids", format!("only one side takes both for one network: {words}"))
                .because("The lengths of the network's prefix differ between the hosts.")
                .fix("as root, where it is wrong: set the address with the right length", [ADDRESS])
        }
        Some((Route::Routed(ours, theirs), other)) => {
            let words = pair(other, ours, theirs);
            Finding::warning(of, "peer-gids", format!("in different networks: {words}"))
                .because("RoCE v2 goes through routers, where there is a route, and UDP port 4791 is let through.")
                .fix("see whether there is a route", [format!("ip route get {}", theirs.ip())])
        }
    };
    finding.on(port.name())
}

fn no_pair(port: &PeerPort, alike: &[&PeerPort]) -> Finding {
    let has = |port: &PeerPort| port.gids.iter().any(|gid| gid.kind == GidKind::RoceV2);
    let message = match (has(port), alike.iter().any(|other| has(other))) {
        (true, true) => "no GIDs of both fit: one side has IPv4 addresses only, the other IPv6 only",
        (true, false) => "it has no RoCE v2 GID, this machine has",
        (false, true) => "this machine has no RoCE v2 GID, it has",
        (false, false) => "neither side has a RoCE v2 GID",
    };
    Finding::problem(Section::Peer, "peer-gids", message)
        .because("Both ends of a connection need GIDs of one kind and one address family.")
        .fix("as root, where it is missing: give the interface an address", [ADDRESS])
}

fn reach_in_fabric(port: &PeerPort, alike: &[&PeerPort]) -> Finding {
    let of = Section::Peer;
    let subnet = |port: &PeerPort| port.gids.first().map(|gid| gid.gid.octets().first_chunk::<8>().copied());
    let Some(ours) = subnet(port) else {
        let finding = Finding::problem(of, "peer-gids", "this machine's port has no GID").on(port.name());
        return finding.fix("see whether a subnet manager runs", ["sminfo"]);
    };
    if let Some(other) = alike.iter().find(|other| subnet(other) == Some(ours)) {
        return Finding::ok(of, "peer-gids", format!("in one InfiniBand subnet with {}", other.name())).on(port.name());
    }
    Finding::problem(of, "peer-gids", "in different InfiniBand subnets")
        .on(port.name())
        .because("Their subnet prefixes differ: they are two fabrics, or two subnet managers run.")
        .fix("see which subnet manager each host has", ["sminfo"])
}

fn mtus(port: &PeerPort, other: &PeerPort) -> Vec<Finding> {
    let of = Section::Peer;
    let mut findings = Vec::new();
    let differ = |ours: Option<u32>, theirs: Option<u32>| ours.zip(theirs).filter(|(ours, theirs)| ours != theirs);
    if let Some((ours, theirs)) = differ(port.netdev_mtu, other.netdev_mtu) {
        let message = format!("its interface has MTU {theirs} B ({}), this machine's {ours} B", other.name());
        findings.push(
            Finding::warning(of, "peer-netdev-mtu", message)
                .on(port.name())
                .because("What is sent by the side with the larger one may be dropped.")
                .fix(
                    "as root, on both hosts: the same",
                    [format!("ip link set dev INTERFACE mtu {}", ours.max(theirs))],
                ),
        );
    }
    if let Some((ours, theirs)) = differ(port.active_mtu, other.active_mtu) {
        let message = format!("its active MTU is {theirs} B ({}), this machine's {ours} B", other.name());
        findings.push(
            Finding::warning(of, "peer-mtu", message)
                .on(port.name())
                .because(format!(
                    "Connections must use {} B: qpair does; programs that do not negotiate, such as perftest, fail.",
                    ours.min(theirs)
                ))
                .fix("give programs that do not negotiate the lesser", [format!("-m {}", ours.min(theirs))]),
        );
    }
    if findings.is_empty() && (port.netdev_mtu.is_some() || port.active_mtu.is_some()) {
        findings.push(Finding::new(Severity::Ok, of, "peer-mtu", "MTUs are the same").on(port.name()));
    }
    findings
}

impl PeerPort {
    /// What it speaks.
    fn transport(&self) -> &str {
        match self.link_layer.as_str() {
            _ if self.iwarp => "iWARP",
            "Ethernet" => ROCE,
            "InfiniBand" => INFINIBAND,
            other => other,
        }
    }
}

const ROCE: &str = "RoCE";
const INFINIBAND: &str = "InfiniBand";
const ADDRESS: &str = "ip addr add ADDRESS/24 dev INTERFACE";

#[cfg(test)]
#[path = "compare_tests.rs"]
mod tests;
