//! Socket addresses as the kernel has them: to bytes, and back.
//! Where a socket of IPv6 serves IPv4 too, the kernel's mapped addresses are IPv4 here.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A socket address in the kernel's form.
#[derive(Clone, Copy)]
pub(super) struct Name {
    bytes: [u8; LONGEST],
    len: usize,
}

impl Name {
    /// Of an address, a UDP port, and the interface that a link-local address is to be used with, or 0.
    pub(super) fn udp(address: IpAddr, port: u16, scope: u32) -> Self {
        let mut name = Name { bytes: [0; LONGEST], len: 0 };
        match address {
            IpAddr::V4(address) => {
                name.push(&(libc::AF_INET as u16).to_ne_bytes());
                name.push(&port.to_be_bytes());
                name.push(&address.octets());
                name.push(&[0; 8]);
            }
            IpAddr::V6(address) => {
                name.push(&(libc::AF_INET6 as u16).to_ne_bytes());
                name.push(&port.to_be_bytes());
                name.push(&[0; 4]);
                name.push(&address.octets());
                name.push(&scope.to_ne_bytes());
            }
        }
        name
    }

    /// Of an abstract name of a Unix socket, which is short.
    pub(super) fn abstract_unix(text: &str) -> Self {
        let mut name = Name { bytes: [0; LONGEST], len: 0 };
        name.push(&(libc::AF_UNIX as u16).to_ne_bytes());
        name.push(&[0]);
        name.push(text.as_bytes());
        name
    }

    /// As the kernel takes it.
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

/// Address and port in a socket address that the kernel gave; `None` if it is of another family.
#[inline]
pub(super) fn parse(name: &[u8]) -> Option<(IpAddr, u16)> {
    let family = u16::from_ne_bytes(*name.first_chunk()?);
    let port = u16::from_be_bytes(*name.get(2..)?.first_chunk()?);
    match i32::from(family) {
        libc::AF_INET => Some((Ipv4Addr::from(*name.get(4..)?.first_chunk::<4>()?).into(), port)),
        libc::AF_INET6 => Some((Ipv6Addr::from(*name.get(8..)?.first_chunk::<16>()?).to_canonical(), port)),
        _ => None,
    }
}

/// Of the names here; a Unix socket may have a longer one.
const LONGEST: usize = 64;
