//! Ranks of a communicator that meet anew, as a communicator of their own.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use mio::net::TcpListener;
use qpair_transport::{ClusterKey, Near};
use serde::{Deserialize, Serialize};

use super::environment::{Arrival, Environment};
use super::meeting::{Hosting, Meeting, Settled};
use super::message::Whereabouts;
use super::overrides::Overrides;
use super::place::Place;
use crate::communicator::Communicator;
use crate::error::BootstrapError;
use crate::machine::Known;

/// Where the ranks of a group meet: its first rank listens there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Spot {
    pub(crate) address: SocketAddr,
    pub(crate) ticket: u64,
}

/// The first rank of a group, which listens where the others come to.
pub(crate) struct Host {
    listener: TcpListener,
    pub(crate) spot: Spot,
}

impl Host {
    /// Listens at any port of `ip`.
    ///
    /// # Errors
    /// [`BootstrapError::System`].
    pub(crate) fn new(ip: IpAddr) -> Result<Self, BootstrapError> {
        let refused = |source| BootstrapError::System { what: "listen for the ranks of a group", source };
        let listener = TcpListener::bind(SocketAddr::new(ip, 0)).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let ticket = getrandom::u64()
            .map_err(|error| BootstrapError::System { what: "draw a random number", source: error.into() })?;
        Ok(Self { listener, spot: Spot { address, ticket } })
    }
}

impl Spot {
    /// As numbers that collectives carry.
    pub(crate) fn encode(&self) -> [u64; SPOT] {
        let ip = match self.address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let ip = u128::from(ip);
        [(ip >> 64) as u64, ip as u64, u64::from(self.address.port()), self.ticket]
    }

    /// From such numbers; `None` where nobody listens.
    pub(crate) fn decode([high, low, port, ticket]: [u64; SPOT]) -> Option<Self> {
        let ip = Ipv6Addr::from(u128::from(high) << 64 | u128::from(low));
        let port = u16::try_from(port).ok().filter(|&port| port > 0)?;
        Some(Self { address: SocketAddr::new(IpAddr::V6(ip).to_canonical(), port), ticket })
    }
}

/// Meets the other ranks of a group, of which this one is `rank`.
///
/// # Errors
/// As [`Environment::connect`].
pub(crate) fn regroup(
    (rank, size): (u32, u32),
    spot: Spot,
    host: Option<Host>,
    whereabouts: Whereabouts,
    near: Option<Near>,
    cost: Known,
    limit: Duration,
) -> Result<Communicator, BootstrapError> {
    let (name, port) = (spot.address.ip().to_string(), spot.address.port());
    let ticket = Some(format!("{:016x}", spot.ticket));
    let key = ClusterKey::from_env()?;
    let place = Place { host: name.clone(), port, addresses: vec![spot.address], ticket, key: key.clone(), limit };
    let hosting = host.map(|host| Hosting { listener: host.listener, published: None });
    let mut environment = Environment::meeting(rank, size, Meeting::At { host: name, port });
    (environment.limit, environment.near) = (limit, near);
    let arrival = Arrival { whereabouts, cost: Ok((rank == 0).then_some(cost)) };
    environment.join(Settled { place, hosting }, key, arrival, || Ok(Overrides::default()))
}

/// Numbers of a [`Spot`].
pub(crate) const SPOT: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spots_round_trip() {
        for address in ["127.0.0.1:9", "[2001:db8::7]:65535"] {
            let spot = Spot { address: address.parse().unwrap(), ticket: 0x1234_5678_9abc_def0 };
            assert_eq!(Spot::decode(spot.encode()), Some(spot));
        }
        assert_eq!(Spot::decode([0; SPOT]), None);
        assert_eq!(Spot::decode([0, 0, 1 << 16, 0]), None);
    }
}
