//! What a machine says of itself to another.

use std::net::{IpAddr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use super::super::system::{GidKind, Port, RdmaDevice, System};

/// A machine, in what matters for connections with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Version of this exchange.
    pub protocol: u32,
    /// Release of this command.
    pub release: String,
    /// Processor architecture.
    pub architecture: String,
    /// Kernel release.
    pub kernel: Option<String>,
    /// Release of rdma-core.
    pub rdma_core: Option<u32>,
    /// Random number of the running system: the same on two sides that are one machine.
    pub boot: Option<String>,
    /// Number of the network namespace, which tells apart those of one machine.
    pub namespace: Option<u64>,
    /// Ports that carry data.
    pub ports: Vec<PeerPort>,
}

/// A port that carries data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerPort {
    /// Device.
    pub device: String,
    /// Number of the port.
    pub port: u32,
    /// `Ethernet` or `InfiniBand`.
    pub link_layer: String,
    /// True for iWARP.
    pub iwarp: bool,
    /// Present MTU in bytes, where it is known.
    pub active_mtu: Option<u32>,
    /// MTU of the interface, for Ethernet.
    pub netdev_mtu: Option<u32>,
    /// Its GIDs.
    pub gids: Vec<PeerGid>,
}

/// A GID, and the network that it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerGid {
    /// Position in the port's table.
    pub index: u32,
    /// The identifier.
    pub gid: Ipv6Addr,
    /// Its kind.
    pub kind: GidKind,
    /// Bits of its network, where they are known.
    pub prefix: Option<u8>,
}

impl Summary {
    /// What to say of this machine. Of very many ports and GIDs the first are told.
    pub fn new(system: &System) -> Self {
        let ports = system.devices.iter().flat_map(|device| {
            device.ports.iter().filter(|port| port.is_active()).map(move |port| PeerPort::new(system, device, port))
        });
        Summary {
            protocol: PROTOCOL,
            release: env!("CARGO_PKG_VERSION").to_owned(),
            architecture: std::env::consts::ARCH.to_owned(),
            kernel: system.kernel.release.clone(),
            rdma_core: system.library.used().and_then(|file| file.rdma_core),
            boot: system.machine.boot.clone(),
            namespace: system.machine.namespace,
            ports: ports.take(MOST_PORTS).collect(),
        }
    }
}

impl Summary {
    /// The same with no more of anything than [`Summary::new`] gives: others may claim what they like.
    #[must_use]
    pub fn clipped(mut self) -> Self {
        self.ports.truncate(MOST_PORTS);
        for port in &mut self.ports {
            port.gids.truncate(MOST_GIDS);
            clip(&mut port.device);
            clip(&mut port.link_layer);
        }
        clip(&mut self.release);
        clip(&mut self.architecture);
        self.kernel.iter_mut().for_each(clip);
        self
    }
}

fn clip(text: &mut String) {
    if let Some((end, _)) = text.char_indices().nth(LONGEST_NAME) {
        text.truncate(end);
    }
}

impl PeerPort {
    fn new(system: &System, device: &RdmaDevice, port: &Port) -> Self {
        let gids = port.gids.iter().map(|row| {
            let ip = row.ipv4().map_or(IpAddr::V6(row.gid), IpAddr::V4);
            let address = system.addresses.iter().find(|address| address.ip == ip);
            PeerGid { index: row.index, gid: row.gid, kind: row.kind, prefix: address.map(|address| address.prefix) }
        });
        PeerPort {
            device: device.name.clone(),
            port: port.number,
            link_layer: port.link_layer.clone().unwrap_or_default(),
            iwarp: device.is_iwarp(),
            active_mtu: system.open_port(&device.name, port.number).map(|open| open.active_mtu),
            netdev_mtu: port.netdev.as_deref().and_then(|name| system.netdev(name)?.mtu),
            gids: gids.take(MOST_GIDS).collect(),
        }
    }

    /// `rxe0 port 1`.
    pub fn name(&self) -> String {
        format!("{} port {}", self.device, self.port)
    }
}

impl PeerGid {
    /// The address in it.
    pub fn ip(&self) -> IpAddr {
        self.gid.to_ipv4_mapped().map_or(IpAddr::V6(self.gid), IpAddr::V4)
    }

    /// True if it reaches no further than the link.
    pub fn is_link_local(&self) -> bool {
        self.gid.is_unicast_link_local()
    }

    /// Whether the other's address lies in this one's network; `None` if the network is not known.
    pub fn holds(&self, other: &PeerGid) -> Option<bool> {
        let prefix = u32::from(self.prefix?);
        let (width, ours, theirs) = match (self.ip(), other.ip()) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => (32, u128::from(u32::from(ours)), u128::from(u32::from(theirs))),
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => (128, u128::from(ours), u128::from(theirs)),
            _ => return Some(false),
        };
        let outside: u32 = width - prefix.min(width);
        // All bits are outside of a network of no bits.
        Some((ours ^ theirs).checked_shr(outside).unwrap_or(0) == 0)
    }
}

/// Changes whenever the summary does.
pub const PROTOCOL: u32 = 2;
const MOST_PORTS: usize = 128;
const MOST_GIDS: usize = 64;
/// Characters; names of devices and releases have less.
const LONGEST_NAME: usize = 80;

#[cfg(test)]
mod tests {
    use super::super::super::fixture::Fixture;
    use super::*;

    fn gid(address: &str, prefix: u8) -> PeerGid {
        PeerGid { index: 0, gid: address.parse().expect("an address"), kind: GidKind::RoceV2, prefix: Some(prefix) }
    }

    #[test]
    fn a_machine_tells_its_active_ports_with_their_networks() {
        let summary = Summary::new(&Fixture::rxe_host().system());
        let [port] = summary.ports.as_slice() else { panic!("{summary:?}") };
        assert_eq!((port.name().as_str(), port.netdev_mtu), ("rxe0 port 1", Some(1500)));
        let prefixes: Vec<_> = port.gids.iter().map(|gid| gid.prefix).collect();
        assert_eq!(prefixes, [Some(64), Some(24), Some(64)]);
        assert_eq!(summary.rdma_core, Some(44));
        let text = serde_json::to_string(&summary).expect("plain data");
        assert_eq!(serde_json::from_str::<Summary>(&text).expect("as written"), summary);
    }

    #[test]
    fn claims_are_clipped() {
        let ours = Summary::new(&Fixture::rxe_host().system());
        assert_eq!(ours.clone().clipped(), ours);
        let mut absurd = ours;
        absurd.release = "é".repeat(1000);
        absurd.ports[0].gids = vec![absurd.ports[0].gids[0]; 1000];
        absurd.ports = vec![absurd.ports[0].clone(); 1000];
        let clipped = absurd.clipped();
        assert_eq!((clipped.ports.len(), clipped.ports[0].gids.len()), (MOST_PORTS, MOST_GIDS));
        assert_eq!(clipped.release, "é".repeat(LONGEST_NAME));
    }

    #[test]
    fn networks_hold_what_shares_their_bits() {
        let ours = gid("::ffff:10.0.1.1", 24);
        assert_eq!(ours.holds(&gid("::ffff:10.0.1.200", 24)), Some(true));
        assert_eq!(ours.holds(&gid("::ffff:10.0.2.1", 16)), Some(false));
        assert_eq!(gid("::ffff:10.0.1.1", 16).holds(&gid("::ffff:10.0.2.1", 16)), Some(true));
        assert_eq!(ours.holds(&gid("fd00::1", 64)), Some(false));
        assert_eq!(gid("fd00::1", 64).holds(&gid("fd00::2", 64)), Some(true));
        assert_eq!(gid("fd00::1", 0).holds(&gid("2001::2", 0)), Some(true));
        assert_eq!(gid("fd00::1", 255).holds(&gid("fd00::1", 255)), Some(true));
        assert_eq!(gid("::ffff:1.2.3.4", 200).holds(&gid("::ffff:1.2.3.5", 200)), Some(false));
        assert_eq!(PeerGid { prefix: None, ..ours }.holds(&ours), None);
    }
}
