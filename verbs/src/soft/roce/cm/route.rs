//! Which of the host's addresses a connection is of.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use crate::soft::home::Home;
use crate::soft::roce::gids::NetworkGid;

/// The address that the system sends from towards a peer.
///
/// # Errors
/// The system knows no way there.
pub(crate) fn address_towards(peer: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr = if peer.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    // Nothing is sent, so any port does.
    let mut peer = peer;
    peer.set_port(peer.port().max(1));
    socket.connect(peer)?;
    Ok(socket.local_addr()?.ip())
}

/// The row of the GID table for an address of this host. All of the loopback's addresses are the interface's.
pub(crate) fn address_at(home: &Home, address: IpAddr) -> Option<NetworkGid> {
    let rows = home.network_gids();
    let is_like = |other: IpAddr| other.is_loopback() && other.is_ipv4() == address.is_ipv4();
    let exact = rows.iter().find(|row| row.interface.address == address);
    let found =
        exact.or_else(|| rows.iter().find(|row| address.is_loopback() && is_like(row.interface.address)))?.clone();
    Some(found.at(address))
}
