//! Which device and port a run goes over, and by what GID and MTU.

use std::net::IpAddr;

use qpair::verbs::{Context, Gid, GidEntry, LinkLayer, Mtu, PortAttributes, PortState};

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
    attributes: PortAttributes,
    gid_index: Option<u32>,
}

impl Port {
    /// The port that the options name.
    ///
    /// # Errors
    /// [`PerfError::NoPort`], [`PerfError::PortDown`], [`PerfError::Mtu`], [`PerfError::NoGid`].
    pub fn choose(context: &Context, options: &PerftestOptions) -> Result<Self, PerfError> {
        let number = options.port();
        let ports = context.attributes().ports;
        let port = context.port(number).ok_or_else(|| PerfError::NoPort {
            device: context.name().to_owned(),
            port: number,
            ports,
        })?;
        let device = context.name().to_owned();
        let rows: Vec<u32> = port.gids.iter().map(|entry| entry.index).collect();
        let mtu = check((&device, number), port.state, port.active_mtu, &rows, options)?;
        let (link_layer, lid) = (port.link_layer, port.lid);
        Ok(Port { device, number, link_layer, lid, mtu, attributes: port, gid_index: options.gid_index })
    }

    /// The GID to use over a TCP connection from `local`, and its row; none on InfiniBand unless asked for.
    pub fn gid(&self, local: IpAddr) -> Option<(u32, Gid)> {
        let row = |entry: &GidEntry| (entry.index, entry.gid);
        if let Some(index) = self.gid_index {
            return self.attributes.gids.iter().find(|entry| entry.index == index).map(row);
        }
        if self.link_layer == LinkLayer::InfiniBand {
            return None;
        }
        self.attributes.preferred_gid(Some(local.into())).map(row)
    }

    /// The MTU of a path whose other end takes `theirs` bytes.
    pub fn path_mtu(&self, theirs: u32) -> Mtu {
        self.mtu.min(mtu_of(theirs))
    }
}

/// The MTU to agree to at most, if the options go with the port's state and GID table.
fn check(
    (device, port): (&str, u8),
    state: PortState,
    active_mtu: Mtu,
    rows: &[u32],
    options: &PerftestOptions,
) -> Result<Mtu, PerfError> {
    let device = device.to_owned();
    if state != PortState::Active {
        return Err(PerfError::PortDown { device, port, state });
    }
    if let Some(index) = options.gid_index.filter(|index| !rows.contains(index)) {
        return Err(PerfError::NoGid { device, port, index });
    }
    match options.mtu {
        Some(mtu) if mtu > active_mtu => Err(PerfError::Mtu { device, asked: mtu.bytes(), active: active_mtu.bytes() }),
        mtu => Ok(mtu.unwrap_or(active_mtu)),
    }
}

/// That both GIDs are IPv4, or neither is: no packet would arrive otherwise.
///
/// # Errors
/// [`ExchangeError::GidFamily`].
pub fn check_families(ours: [u8; 16], theirs: [u8; 16]) -> Result<(), ExchangeError> {
    let (ours, theirs) = (Gid(ours).ip(), Gid(theirs).ip());
    if ours.is_ipv4() == theirs.is_ipv4() {
        return Ok(());
    }
    Err(ExchangeError::GidFamily { ours: ours.to_string(), theirs: theirs.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(state: PortState, options: PerftestOptions) -> Result<Mtu, PerfError> {
        check(("rxe0", 1), state, Mtu::B1024, &[0, 1, 4], &options)
    }

    #[test]
    fn a_port_that_is_down_says_so() {
        let error = checked(PortState::Down, PerftestOptions::default()).expect_err("down");
        assert!(matches!(&error, PerfError::PortDown { port: 1, state: PortState::Down, .. }), "{error:?}");
        assert!(error.to_string().contains("rxe0"), "{error}");
    }

    #[test]
    fn an_mtu_or_gid_that_the_port_has_not_is_refused() {
        let mtu = |mtu| PerftestOptions { mtu: Some(mtu), ..Default::default() };
        let gid = |index| PerftestOptions { gid_index: Some(index), ..Default::default() };
        let too_great = checked(PortState::Active, mtu(Mtu::B4096));
        assert!(matches!(too_great, Err(PerfError::Mtu { asked: 4096, active: 1024, .. })), "{too_great:?}");
        let unknown = checked(PortState::Active, gid(3));
        assert!(matches!(unknown, Err(PerfError::NoGid { index: 3, .. })), "{unknown:?}");
        assert_eq!(checked(PortState::Active, gid(4)).expect("there"), Mtu::B1024);
        assert_eq!(checked(PortState::Active, mtu(Mtu::B512)).expect("smaller"), Mtu::B512);
    }

    #[test]
    fn gids_of_two_families_do_not_meet() {
        let gid = |text: &str| Gid::from(text.parse::<IpAddr>().expect("an address")).0;
        check_families(gid("10.0.0.1"), gid("10.1.0.1")).expect("both IPv4");
        check_families(gid("fd77::1"), gid("fe80::1")).expect("both IPv6");
        let error = check_families(gid("10.0.0.1"), gid("fe80::1")).expect_err("mixed");
        assert!(error.to_string().contains("10.0.0.1") && error.to_string().contains("-x"), "{error}");
    }
}
