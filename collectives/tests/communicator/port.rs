//! Ports that nobody else takes.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;

use rustix::net::{self, AddressFamily, SocketAddrAny, SocketFlags, SocketType};

/// A port of 127.0.0.1 that is kept as long as this lives: bound, so that the system gives it to nobody, and not listened
/// at, so that rank 0 can.
pub struct Port {
    _socket: OwnedFd,
    pub number: u16,
}

impl Port {
    pub fn keep() -> Port {
        Port::keep_at(Ipv4Addr::LOCALHOST)
    }

    /// The same for all addresses.
    #[allow(dead_code, reason = "some programs that have this file meet at loopback only")]
    pub fn keep_everywhere() -> Port {
        Port::keep_at(Ipv4Addr::UNSPECIFIED)
    }

    fn keep_at(address: Ipv4Addr) -> Port {
        let socket = net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        net::sockopt::set_socket_reuseaddr(&socket, true).unwrap();
        net::bind(&socket, &SocketAddrV4::new(address, 0)).unwrap();
        let address: SocketAddrAny = net::getsockname(&socket).unwrap();
        let number = SocketAddrV4::try_from(address).unwrap().port();
        Port { _socket: socket, number }
    }
}
