//! Which device and port a run goes over, and by what GID and MTU.

use std::net::{IpAddr, Ipv6Addr};

use qpair::verbs::{Context, Device, Gid, GidEntry, GidKind, LinkLayer, Mtu, PortState};

use super::error::ExchangeError;
use super::options::{PerftestOptions, mtu_of};
use crate::perf::error::PerfError;

/// The port of a device.
#[derive(Clone, Debug)]
pub struct Port {
    /// The device's name.
    pub device: String,
    /// The port's number, counted from 1.
    pub number: u8,
    /// What it is made of.
    pub link_layer: LinkLayer,
    /// Local identifier.
    pub lid: u16,
    /// Greatest MTU to agree to.
    pub mtu: Mtu,
    gids: Vec<GidEntry>,
    gid_index: Option<u32>,
}

/// What matters of a port's state.
struct Facts {
    state: PortState,
    link_layer: LinkLayer,
    active_mtu: Mtu,
    lid: u16,
    gids: Vec<GidEntry>,
}

/// The software device.
pub const SOFT: &str = "soft0";

/// The device to measure where none is named: the first RDMA device with a port that is up, else the software device.
pub fn default_device() -> String {
    let up = |device: &Device| {
        let Ok(context) = device.open() else { return false };
        let ports = context.attributes().ports;
        (1..=ports).any(|number| context.port(number).is_some_and(|port| port.state == PortState::Active))
    };
    let devices = Device::list();
    let hardware = devices.iter().filter(|device| device.name() != SOFT);
    hardware.into_iter().find(|device| up(device)).map_or(SOFT, Device::name).to_owned()
}

impl Port {
    /// The port that the options name.
    ///
    /// # Errors
    /// [`PerfError::NoPort`], [`PerfError::PortDown`], [`PerfError::Mtu`], [`PerfError::NoGid`].
    pub fn choose(context: &Context, options: &PerftestOptions) -> Result<Self, PerfError> {
        let number = options.ib_port.unwrap_or(1);
        let ports = context.attributes().ports;
        let port = context.port(number).ok_or_else(|| PerfError::NoPort {
            device: context.name().to_owned(),
            port: number,
            ports,
        })?;
        let facts = Facts {
            state: port.state,
            link_layer: port.link_layer,
            active_mtu: port.active_mtu,
            lid: port.lid,
            gids: port.gids,
        };
        Port::check(context.name(), number, facts, options)
    }

    fn check(device: &str, number: u8, facts: Facts, options: &PerftestOptions) -> Result<Self, PerfError> {
        let Facts { state, link_layer, active_mtu, lid, gids } = facts;
        let device = device.to_owned();
        if state != PortState::Active {
            return Err(PerfError::PortDown { device, port: number, state });
        }
        if let Some(mtu) = options.mtu.filter(|mtu| *mtu > active_mtu) {
            return Err(PerfError::Mtu { device, asked: mtu.bytes(), active: active_mtu.bytes() });
        }
        if let Some(index) = options.gid_index.filter(|index| !gids.iter().any(|entry| entry.index == *index)) {
            return Err(PerfError::NoGid { device, port: number, index });
        }
        let mtu = options.mtu.unwrap_or(active_mtu);
        Ok(Port { device, number, link_layer, lid, mtu, gids, gid_index: options.gid_index })
    }

    /// The GID to use over a TCP connection from `local`, and its row; none on InfiniBand unless asked for.
    ///
    /// RoCEv2 before others, the connection's own address before others of its family, those before the rest.
    pub fn gid(&self, local: IpAddr) -> Option<(u32, Gid)> {
        let row = |entry: &GidEntry| (entry.index, entry.gid);
        if let Some(index) = self.gid_index {
            return self.gids.iter().find(|entry| entry.index == index).map(row);
        }
        if self.link_layer == LinkLayer::InfiniBand {
            return None;
        }
        let worth = |entry: &&GidEntry| {
            let address = address(entry.gid);
            let same_family = address.is_ipv4() == local.is_ipv4() || local.is_loopback() && address.is_ipv4();
            (entry.kind == GidKind::RoceV2, address == local, same_family && !is_link_local(address), same_family)
        };
        // Of equals the last counts for `max_by_key`; here the first shall.
        self.gids.iter().rev().max_by_key(worth).map(row)
    }

    /// The MTU of a path whose other end takes `theirs` bytes.
    pub fn path_mtu(&self, theirs: u32) -> Mtu {
        self.mtu.min(mtu_of(theirs))
    }
}

/// That both GIDs are IPv4, or neither is: no packet would arrive otherwise.
///
/// # Errors
/// [`ExchangeError::GidFamily`].
pub fn check_families(ours: [u8; 16], theirs: [u8; 16]) -> Result<(), ExchangeError> {
    let (ours, theirs) = (address(Gid(ours)), address(Gid(theirs)));
    if ours.is_ipv4() == theirs.is_ipv4() {
        return Ok(());
    }
    Err(ExchangeError::GidFamily { ours: ours.to_string(), theirs: theirs.to_string() })
}

fn address(gid: Gid) -> IpAddr {
    Ipv6Addr::from(gid.0).to_canonical()
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u32, address: &str, kind: GidKind) -> GidEntry {
        let address: IpAddr = address.parse().expect("an address");
        let gid = match address {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        GidEntry { index, gid: Gid(gid.octets()), kind }
    }

    fn facts() -> Facts {
        let gids = vec![
            entry(0, "fe80::1", GidKind::RoceV1),
            entry(1, "fe80::1", GidKind::RoceV2),
            entry(2, "10.0.0.1", GidKind::RoceV1),
            entry(3, "10.0.0.1", GidKind::RoceV2),
            entry(4, "10.0.1.1", GidKind::RoceV2),
            entry(5, "fd77::1", GidKind::RoceV2),
        ];
        let active_mtu = Mtu::B1024;
        Facts { state: PortState::Active, link_layer: LinkLayer::Ethernet, active_mtu, lid: 0, gids }
    }

    fn check(facts: Facts, options: PerftestOptions) -> Result<Port, PerfError> {
        Port::check("rxe0", 1, facts, &options)
    }

    #[test]
    fn the_gid_is_of_the_network_that_the_connection_takes() {
        let port = check(facts(), PerftestOptions::default()).expect("up");
        for (local, index) in [
            ("10.0.0.1", 3),
            ("10.0.1.1", 4),
            ("10.9.9.9", 3),
            ("fd77::1", 5),
            ("fd99::1", 5),
            ("127.0.0.1", 3),
            ("::1", 3),
        ] {
            let (row, _) = port.gid(local.parse().expect("an address")).expect("there are some");
            assert_eq!(row, index, "{local}");
        }
        let asked = PerftestOptions { gid_index: Some(0), ..Default::default() };
        let (row, _) =
            check(facts(), asked).expect("up").gid("10.0.0.1".parse().expect("an address")).expect("asked for");
        assert_eq!(row, 0);
    }

    #[test]
    fn infiniband_goes_by_lid_unless_asked() {
        let local = "10.0.0.1".parse().expect("an address");
        let infiniband = || Facts { link_layer: LinkLayer::InfiniBand, ..facts() };
        assert_eq!(check(infiniband(), PerftestOptions::default()).expect("up").gid(local), None);
        let asked = PerftestOptions { gid_index: Some(1), ..Default::default() };
        assert!(check(infiniband(), asked).expect("up").gid(local).is_some());
    }

    #[test]
    fn a_port_that_is_down_says_so() {
        let error = check(Facts { state: PortState::Down, ..facts() }, PerftestOptions::default()).expect_err("down");
        assert!(matches!(&error, PerfError::PortDown { port: 1, state: PortState::Down, .. }), "{error:?}");
        assert!(error.to_string().contains("rxe0"), "{error}");
    }

    #[test]
    fn an_mtu_or_gid_that_the_port_has_not_is_refused() {
        let mtu = PerftestOptions { mtu: Some(Mtu::B4096), ..Default::default() };
        assert!(matches!(check(facts(), mtu), Err(PerfError::Mtu { asked: 4096, active: 1024, .. })));
        let gid = PerftestOptions { gid_index: Some(6), ..Default::default() };
        assert!(matches!(check(facts(), gid), Err(PerfError::NoGid { index: 6, .. })));
        let smaller = PerftestOptions { mtu: Some(Mtu::B512), ..Default::default() };
        let port = check(facts(), smaller).expect("up");
        assert_eq!((port.path_mtu(1024), port.path_mtu(256)), (Mtu::B512, Mtu::B256));
    }

    #[test]
    fn gids_of_two_families_do_not_meet() {
        let gid = |text| entry(0, text, GidKind::RoceV2).gid.0;
        check_families(gid("10.0.0.1"), gid("10.1.0.1")).expect("both IPv4");
        check_families(gid("fd77::1"), gid("fe80::1")).expect("both IPv6");
        let error = check_families(gid("10.0.0.1"), gid("fe80::1")).expect_err("mixed");
        assert!(error.to_string().contains("10.0.0.1") && error.to_string().contains("-x"), "{error}");
    }
}
