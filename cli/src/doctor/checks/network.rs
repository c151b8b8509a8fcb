//! GIDs, addresses and MTUs of Ethernet ports.

use std::net::IpAddr;

use super::super::finding::{Finding, Section};
use super::super::system::{GidKind, GidRow, Netdev, OpenPort, Port, RdmaDevice, System};
use super::devices::name_of;

/// Whether ports can be addressed, and in packets of which size.
pub fn check(system: &System) -> Vec<Finding> {
    let mut findings = Vec::new();
    for device in &system.devices {
        for port in device.ports.iter().filter(|port| port.is_active()) {
            // iWARP devices connect by IP address; their GIDs say nothing.
            if port.is_ethernet() && !device.is_iwarp() {
                findings.push(gids(device, port));
                findings.extend(stale_gids(system, device, port));
                findings.extend(mtu(system, device, port));
            }
            findings.extend(lone_netdev(system, device, port));
        }
    }
    findings
}

/// RoCE v2 needs a GID that is made of an address of the interface.
fn gids(device: &RdmaDevice, port: &Port) -> Finding {
    let of = Section::Network;
    let subject = name_of(device, port);
    let netdev = port.netdev.as_deref().unwrap_or("INTERFACE");
    let address = (format!("as root: give {netdev} an address"), [format!("ip addr add ADDRESS/24 dev {netdev}")]);
    if port.gids.is_empty() {
        let finding = Finding::problem(of, "gids", "active, but has no GID").on(subject);
        let finding = finding.because("GIDs come from the interface's addresses; nothing can be connected without.");
        return finding.fix(address.0, address.1);
    }
    let of_version_2: Vec<&GidRow> = port.gids.iter().filter(|row| row.kind == GidKind::RoceV2).collect();
    if of_version_2.is_empty() {
        let finding = Finding::problem(of, "gids", "has no RoCE v2 GID, only version 1").on(subject);
        let finding = finding.because("RoCE v1 does not leave its network, and peers with v2 do not understand it.");
        let mode = format!("cma_roce_mode -d {} -p {} -m 2", device.name, port.number);
        return finding.fix("as root: see whether the device can do v2", [mode]).fix(address.0, address.1);
    }
    let Some(routable) = of_version_2.iter().find(|row| !row.is_link_local()) else {
        let finding = Finding::warning(of, "gids", "all of its RoCE v2 GIDs are link-local").on(subject);
        let why = format!("{netdev} has no address of its own: only hosts on the same link are reached.");
        return finding.because(why).fix(address.0, address.1);
    };
    let message = format!("RoCE v2 GID {} is {}", routable.index, address_of(routable));
    Finding::ok(of, "gids", message).on(subject)
}

/// GIDs that stand for an address which the interface does not have.
fn stale_gids(system: &System, device: &RdmaDevice, port: &Port) -> Vec<Finding> {
    let here = |row: &GidRow| row.netdev.as_deref().is_none_or(|name| system.netdev(name).is_some());
    let has = |row: &GidRow| system.addresses.iter().any(|address| address.ip == address_of(row));
    // Where nothing is known of addresses, nothing can be said.
    let known = |row: &GidRow| match row.ipv4() {
        Some(_) => system.addresses.iter().any(|address| address.ip.is_ipv4()),
        None => system.addresses.iter().any(|address| address.ip.is_ipv6()) && !row.is_link_local(),
    };
    let stale = port.gids.iter().filter(|row| row.kind == GidKind::RoceV2 && here(row) && known(row) && !has(row));
    let each = stale.map(|row| {
        let netdev = row.netdev.as_deref().or(port.netdev.as_deref()).unwrap_or("its interface");
        let message = format!("GID {} is {}, which is no address of {netdev}", row.index, address_of(row));
        Finding::warning(Section::Network, "gid-address", message)
            .on(name_of(device, port))
            .because("Packets with it are answered by nobody. It stays behind where an address was taken away.")
            .fix(
                "as root: have the GIDs made anew",
                [format!("ip link set dev {netdev} down"), format!("ip link set dev {netdev} up")],
            )
    });
    each.collect()
}

/// In a container the device may be there, and its interface not.
fn lone_netdev(system: &System, device: &RdmaDevice, port: &Port) -> Option<Finding> {
    let name = port.netdev.as_deref().filter(|name| system.netdev(name).is_none())?;
    // Told in other words.
    if device.is_rxe() {
        return None;
    }
    let finding = Finding::problem(
        Section::Network,
        "netdev-namespace",
        format!("its interface {name} is not in this network namespace"),
    )
    .on(name_of(device, port))
    .because("Its GIDs belong to that interface: connections with them are refused here.");
    Some(if system.machine.container.is_some() {
        finding.fix("when the container is started (docker, podman)", ["--network=host"])
    } else {
        finding.fix("as root, outside: move it here", [format!("ip link set dev {name} netns NAMESPACE")])
    })
}

/// What the interface's MTU leaves for the packets of RoCE.
fn mtu(system: &System, device: &RdmaDevice, port: &Port) -> Option<Finding> {
    let of = Section::Network;
    let subject = name_of(device, port);
    let netdev = system.netdev(port.netdev.as_deref()?)?;
    let outer = netdev.mtu?;
    let Some(fits) = payload_of(outer) else {
        return Some(
            Finding::problem(of, "mtu", format!("{} has an MTU of {outer} B, too little for RoCE", netdev.name))
                .on(subject)
                .because("The least payload is 256 B, with up to 96 B of headers.")
                .fix("as root", [format!("ip link set dev {} mtu 1500", netdev.name)]),
        );
    };
    let open = system.open_port(&device.name, port.number);
    if let Some(finding) = open.and_then(|open| active_mtu(device, port, netdev, (outer, fits), open)) {
        return Some(finding);
    }
    let words = format!("MTU {fits} B on {} with {outer} B", netdev.name);
    if fits >= GREATEST {
        return Some(Finding::ok(of, "mtu", words).on(subject));
    }
    Some(
        Finding::note(of, "mtu", words)
            .on(subject)
            .because(format!(
                "Larger packets cost less: {GREATEST} B need {} B there, on all hosts and switches.",
                GREATEST + HEADERS
            ))
            .fix(
                "as root, on each host, and where switches allow it",
                [format!("ip link set dev {} mtu 9000", netdev.name)],
            ),
    )
}

/// The device's own MTU against what its interface allows.
fn active_mtu(
    device: &RdmaDevice,
    port: &Port,
    netdev: &Netdev,
    allowed: (u32, u32),
    open: &OpenPort,
) -> Option<Finding> {
    let (outer, fits) = allowed;
    let active = open.active_mtu;
    let words = format!("active MTU is {active} B; {} with {outer} B takes {fits} B", netdev.name);
    let subject = name_of(device, port);
    if active.saturating_add(LEAST_HEADERS) > outer {
        return Some(
            Finding::problem(Section::Network, "mtu", words)
                .on(subject)
                .because("Packets of the device do not fit into those of the interface, and are lost.")
                .fix("as root", [format!("ip link set dev {} mtu {}", netdev.name, active.saturating_add(HEADERS))]),
        );
    }
    if active >= fits.min(open.max_mtu) {
        return None;
    }
    let finding = Finding::warning(Section::Network, "mtu", words)
        .on(subject)
        .because("The device sends smaller packets than it could.");
    Some(if device.is_rxe() {
        finding.fix(
            "as root: make it anew",
            [
                format!("rdma link delete {}", device.name),
                format!("rdma link add {} type rxe netdev {}", device.name, netdev.name),
            ],
        )
    } else {
        finding.fix(
            "as root: have the driver look again",
            [
                format!("ip link set dev {} mtu {outer}", netdev.name),
                format!("ip link set dev {0} down; ip link set dev {0} up", netdev.name),
            ],
        )
    })
}

/// The payload of a RoCE packet on an interface with that MTU, in bytes.
pub fn payload_of(netdev_mtu: u32) -> Option<u32> {
    let room = netdev_mtu.checked_sub(HEADERS)?;
    [GREATEST, 2048, 1024, 512, 256].into_iter().find(|payload| *payload <= room)
}

fn address_of(row: &GidRow) -> IpAddr {
    row.ipv4().map_or(IpAddr::V6(row.gid), IpAddr::V4)
}

/// What the kernel keeps free: GRH 40, UDP 8, BTH 12, XRC 4, atomic 28 and ICRC 4 bytes.
const HEADERS: u32 = 96;
/// What a WRITE needs in any case: IPv6 40, UDP 8, BTH 12, RETH 16 and ICRC 4 bytes.
const LEAST_HEADERS: u32 = 80;
const GREATEST: u32 = 4096;

#[cfg(test)]
#[path = "network_tests.rs"]
mod tests;
