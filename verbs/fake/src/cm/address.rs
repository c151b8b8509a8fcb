//! Socket addresses as C has them.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};

/// Reads an address; `None` for one of another family.
///
/// # Safety
/// It is as long as its family says.
pub(crate) unsafe fn read(at: *const sockaddr) -> Option<SocketAddr> {
    // SAFETY: as the caller says; it need not be aligned for the longer ones.
    unsafe {
        match i32::from((*at).sa_family) {
            libc::AF_INET => {
                let in4 = at.cast::<sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from(in4.sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddr::new(ip.into(), u16::from_be(in4.sin_port)))
            }
            libc::AF_INET6 => {
                let in6 = at.cast::<sockaddr_in6>().read_unaligned();
                let ip = Ipv6Addr::from(in6.sin6_addr.s6_addr).to_canonical();
                Some(SocketAddr::new(ip, u16::from_be(in6.sin6_port)))
            }
            _ => None,
        }
    }
}

/// An address in the longest structure.
pub(super) fn storage(address: SocketAddr) -> sockaddr_storage {
    // SAFETY: integers, for which zero is a value.
    let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
    let at = &raw mut storage;
    // SAFETY: the storage has room for both, and is aligned for each.
    unsafe {
        match address {
            SocketAddr::V4(address) => {
                let in4 = &mut *at.cast::<sockaddr_in>();
                in4.sin_family = libc::AF_INET as libc::sa_family_t;
                in4.sin_port = address.port().to_be();
                in4.sin_addr.s_addr = u32::from_ne_bytes(address.ip().octets());
            }
            SocketAddr::V6(address) => {
                let in6 = &mut *at.cast::<sockaddr_in6>();
                in6.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                in6.sin6_port = address.port().to_be();
                in6.sin6_addr.s6_addr = address.ip().octets();
            }
        }
    }
    storage
}
