//! How the ports of two machines reach each other: by which GIDs, or why not.

use super::super::finding::{Finding, Section};
use super::super::system::GidKind;
use super::summary::{PeerGid, PeerPort};

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

/// The best route from this port to one of those, and to which.
fn best<'a>(port: &'a PeerPort, alike: &[&'a PeerPort]) -> Option<(Route<'a>, &'a PeerPort)> {
    alike.iter().filter_map(|other| Some((route(port, other)?, *other))).min_by_key(|(route, _)| route.rank())
}

/// That of those ports which this one reaches, if it can be told.
pub fn met<'a>(port: &'a PeerPort, alike: &[&'a PeerPort]) -> Option<&'a PeerPort> {
    match port.transport() {
        ROCE => best(port, alike).map(|(_, other)| other),
        INFINIBAND => alike.iter().find(|other| subnet(port).is_some() && subnet(other) == subnet(port)).copied(),
        _ => None,
    }
}

/// The prefix of an InfiniBand port's subnet.
fn subnet(port: &PeerPort) -> Option<[u8; 8]> {
    port.gids.first()?.gid.octets().first_chunk().copied()
}

/// Whether this port reaches one of those.
pub fn reach(port: &PeerPort, alike: &[&PeerPort]) -> Finding {
    match port.transport() {
        ROCE => reach_by_gid(port, alike),
        INFINIBAND => reach_in_fabric(port, alike),
        _ => Finding::ok(Section::Peer, "peer-link-layer", format!("both have {}", port.transport())).on(port.name()),
    }
}

fn reach_by_gid(port: &PeerPort, alike: &[&PeerPort]) -> Finding {
    let of = Section::Peer;
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
    let finding = match best(port, alike) {
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
    if subnet(port).is_none() {
        let finding = Finding::problem(of, "peer-gids", "this machine's port has no GID").on(port.name());
        return finding.fix("see whether a subnet manager runs", ["sminfo"]);
    }
    if let Some(other) = met(port, alike) {
        return Finding::ok(of, "peer-gids", format!("in one InfiniBand subnet with {}", other.name())).on(port.name());
    }
    Finding::problem(of, "peer-gids", "in different InfiniBand subnets")
        .on(port.name())
        .because("Their subnet prefixes differ: they are two fabrics, or two subnet managers run.")
        .fix("see which subnet manager each host has", ["sminfo"])
}

impl PeerPort {
    /// What it speaks.
    pub fn transport(&self) -> &str {
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
