//! The machine's network addresses: what a device of the network can be reached at, and how long its packets may be.
//! They are those of the network namespace of the calling thread.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;

use qpair_roce::Mtu;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// An address of this machine, and the interface that has it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Interface {
    /// Number of the interface, from 1; what a link-local address is to be used with.
    pub(crate) index: u32,
    /// The address.
    pub(crate) address: IpAddr,
    /// Name of the interface, without the label that an alias has.
    pub(crate) name: String,
    /// Longest IP packet in bytes.
    pub(crate) mtu: u32,
    /// True if it is switched on and has a carrier.
    pub(crate) is_up: bool,
    /// True for what never leaves the machine.
    pub(crate) is_loopback: bool,
    /// Speed of the link in Mbit/s, if the driver tells.
    pub(crate) speed: Option<u32>,
}

/// The addresses that there are, by number of the interface, IPv4 before IPv6.
pub(crate) fn interfaces() -> io::Result<Vec<Interface>> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .or_else(|_| socket_with(AddressFamily::INET6, SocketType::DGRAM, SocketFlags::CLOEXEC, None))?;
    let mut found = Vec::new();
    for (label, address, flags) in entries()? {
        let name = label.split(':').next().unwrap_or_default().to_owned();
        // It may be gone since it was listed.
        let (Ok(index), Ok(mtu)) = (rustix::net::netdevice::name_to_index(&socket, &name), mtu(&socket, &name)) else {
            continue;
        };
        let has = |flag: libc::c_int| flags & flag as libc::c_uint != 0;
        found.push(Interface {
            index,
            address,
            speed: speed(&name, index),
            name,
            mtu,
            is_up: has(libc::IFF_UP) && has(libc::IFF_RUNNING),
            is_loopback: has(libc::IFF_LOOPBACK),
        });
    }
    found.sort();
    Ok(found)
}

/// The longest payload of a packet for an interface's MTU, with the longest headers that a packet with payload has over
/// IPv6; `None` if not even the shortest fits.
pub(crate) fn path_mtu(mtu: u32) -> Option<Mtu> {
    let room = mtu.checked_sub(LONGEST_HEADERS)?;
    [Mtu::B4096, Mtu::B2048, Mtu::B1024, Mtu::B512, Mtu::B256].into_iter().find(|mtu| mtu.bytes() <= room)
}

/// Label, address and flags of each address of a family that RoCE has.
fn entries() -> io::Result<Vec<(String, IpAddr, libc::c_uint)>> {
    let mut first = ptr::null_mut();
    // SAFETY: the argument is a place for a pointer, which the call fills where it gives 0.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut next = first;
    // SAFETY: getifaddrs made a list of entries, the last of which has no next; they live until freeifaddrs below.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        // SAFETY: it is that of an entry of the list, hence null or a socket address of its family.
        if let Some(address) = unsafe { address(entry.ifa_addr) } {
            // SAFETY: each entry has a name that ends in a zero.
            let name = unsafe { CStr::from_ptr(entry.ifa_name) };
            found.push((name.to_string_lossy().into_owned(), address, entry.ifa_flags));
        }
    }
    // SAFETY: `first` came from getifaddrs, and nothing of the list is kept.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

/// The address in a socket address of IPv4 or IPv6; `None` for another family.
///
/// # Safety
/// It is null, or points to a socket address that is as long as its family has them.
unsafe fn address(of: *const libc::sockaddr) -> Option<IpAddr> {
    if of.is_null() {
        return None;
    }
    // SAFETY: any socket address begins with its family, by the caller's word.
    match i32::from(unsafe { (*of).sa_family }) {
        libc::AF_INET => {
            // SAFETY: the family says that it is one of IPv4. It may stand anywhere.
            let found = unsafe { ptr::read_unaligned(of.cast::<libc::sockaddr_in>()) };
            Some(Ipv4Addr::from_bits(u32::from_be(found.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that it is one of IPv6. It may stand anywhere.
            let found = unsafe { ptr::read_unaligned(of.cast::<libc::sockaddr_in6>()) };
            Some(Ipv6Addr::from(found.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

/// The MTU of an interface. Not from /sys: that may be of another network namespace.
fn mtu(socket: &OwnedFd, name: &str) -> io::Result<u32> {
    let mut ifr_name = [0; libc::IFNAMSIZ];
    if name.len() >= ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let mut request = libc::ifreq { ifr_name, ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_mtu: 0 } };
    // SAFETY: SIOCGIFMTU reads the name, which ends in a zero, and writes the MTU; both are in `request`.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU as _, &mut request) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call filled this field.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    u32::try_from(mtu).map_err(io::Error::other)
}

/// The speed of an interface, if /sys knows the interface and its driver a speed.
fn speed(name: &str, index: u32) -> Option<u32> {
    let read = |what| std::fs::read_to_string(format!("/sys/class/net/{name}/{what}")).ok();
    // Another network namespace may have another interface of the name.
    let is_same = read("ifindex")?.trim().parse() == Ok(index);
    let speed = read("speed")?.trim().parse::<i64>().ok()?;
    u32::try_from(speed).ok().filter(|&speed| is_same && speed > 0 && speed != u32::MAX)
}

/// Of IPv6, UDP, base header, RETH, immediate data and CRC: a write with immediate data, in one packet.
const LONGEST_HEADERS: u32 = 40 + 8 + 12 + 16 + 4 + 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_found_where_it_is_up() {
        let found = interfaces().unwrap();
        assert!(found.is_sorted());
        assert!(found.iter().all(|one| one.index > 0 && !one.name.is_empty() && !one.name.contains(':')), "{found:?}");
        let loopback = found.iter().find(|one| one.address == Ipv4Addr::LOCALHOST);
        match loopback {
            Some(one) => assert!(one.is_loopback && one.is_up && one.mtu >= 1280 && one.name == "lo", "{one:?}"),
            None => println!("skipped: this network namespace has no loopback address"),
        }
    }

    #[test]
    fn payloads_are_as_long_as_those_of_linux() {
        // What rdma_rxe gives its port: active_mtu for an interface's MTU.
        for (mtu, payload) in [(1280, 1024), (1500, 1024), (4200, 4096), (9000, 4096), (65536, 4096), (2131, 1024)] {
            assert_eq!(path_mtu(mtu).map(Mtu::bytes), Some(payload), "MTU {mtu}");
        }
        assert_eq!(path_mtu(340).map(Mtu::bytes), Some(256));
        assert_eq!(path_mtu(339), None);
        assert_eq!(path_mtu(0), None);
    }
}
