//! The sockets of a port: made, if nobody has them, and known again when they come from another process.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6, SocketFlags, SocketType, bind, getsockname,
    socket_with, sockopt,
};

use super::place::Place;
use super::{SOCKETS, options};

/// Makes the sockets of a port, of which no other program has any.
pub(super) fn make(place: Place) -> io::Result<Vec<OwnedFd>> {
    let mut sockets: Vec<OwnedFd> = Vec::with_capacity(SOCKETS);
    for index in 0..SOCKETS {
        let (socket, v6) = open()?;
        options::tell_of_packets(socket.as_fd(), v6)?;
        options::merge_packets(socket.as_fd());
        if v6 {
            options::take_unsummed(socket.as_fd())?;
        }
        // What comes for a slot that nobody has is not kept.
        options::set_receive_buffer(socket.as_fd(), 0)?;
        // The first is bound alone: whoever has the port, even one that would share it, is noticed. That decides places too:
        // the kernel counts sockets as they are bound.
        sockopt::set_socket_reuseport(&socket, index > 0)?;
        if v6 {
            bind(&socket, &SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, place.port, 0, 0))?;
        } else {
            bind(&socket, &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, place.port))?;
        }
        sockopt::set_socket_reuseport(&socket, true)?;
        sockets.push(socket);
        if index == 1 {
            options::pick_by_destination(sockets[1].as_fd())?;
        }
    }
    Ok(sockets)
}

/// True if these may be the sockets of a port.
pub(super) fn are_of(place: Place, sockets: &[OwnedFd]) -> bool {
    let is_of = |socket: BorrowedFd<'_>| -> rustix::io::Result<bool> {
        let port = match getsockname(socket)? {
            address if address.address_family() == AddressFamily::INET6 => SocketAddrV6::try_from(address)?.port(),
            address => SocketAddrV4::try_from(address)?.port(),
        };
        Ok(port == place.port
            && sockopt::socket_type(socket)? == SocketType::DGRAM
            && sockopt::socket_reuseport(socket)?)
    };
    sockets.len() == SOCKETS && sockets.iter().all(|socket| is_of(socket.as_fd()).unwrap_or(false))
}

/// A UDP socket for both families, where the system has both; whether it is one of IPv6.
fn open() -> io::Result<(OwnedFd, bool)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    match socket_with(AddressFamily::INET6, SocketType::DGRAM, flags, None) {
        Ok(socket) => {
            sockopt::set_ipv6_v6only(&socket, false)?;
            Ok((socket, true))
        }
        Err(Errno::AFNOSUPPORT) => Ok((socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?, false)),
        Err(error) => Err(error.into()),
    }
}
