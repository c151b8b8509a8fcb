//! The addresses at which other hosts may reach this one.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

/// Those of this host, the one first that leads out of it, and its name at last.
pub(super) fn own() -> Vec<String> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let outward = outward();
    let all = outward.into_iter().chain(v4(&read("/proc/net/fib_trie"))).chain(v6(&read("/proc/net/if_inet6")));
    let mut own: Vec<String> = Vec::new();
    for address in all.map(|address| address.to_string()).chain([read("/proc/sys/kernel/hostname").trim().to_owned()]) {
        if own.len() < MOST && !address.is_empty() && !own.contains(&address) {
            own.push(address);
        }
    }
    own
}

/// The address that packets to elsewhere have. None is sent.
fn outward() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect(ELSEWHERE).ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_loopback() && !ip.is_unspecified())
}

fn v4(trie: &str) -> Vec<IpAddr> {
    let mut found: Vec<IpAddr> = Vec::new();
    let mut last = None;
    for line in trie.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            last = address.parse::<Ipv4Addr>().ok();
        } else if line == "/32 host LOCAL"
            && let Some(address) = last.filter(|address| !address.is_loopback())
            && !found.contains(&address.into())
        {
            found.push(address.into());
        }
    }
    found
}

/// Those of global scope.
fn v6(interfaces: &str) -> Vec<IpAddr> {
    let address = |line: &str| {
        let mut fields = line.split_whitespace();
        let (address, scope) = (fields.next()?, fields.nth(2)?);
        let address = u128::from_str_radix(address, 16).ok().filter(|_| scope == "00")?;
        Some(Ipv6Addr::from(address).into())
    };
    interfaces.lines().filter_map(address).collect()
}

/// As many as a process manager passes on in one value.
const MOST: usize = 16;
/// An address of the range for documentation, which is nobody's.
const ELSEWHERE: (Ipv4Addr, u16) = (Ipv4Addr::new(192, 0, 2, 1), 9);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_lists_are_understood() {
        let trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 10.1.2.0\n        /24 link UNICAST\nLocal:\n     |-- 10.1.2.3\n        \
                    /32 host LOCAL\n     |-- 10.1.2.255\n        /32 link BROADCAST\n     |-- 127.0.0.1\n        /32 host LOCAL\n     \
                    |-- 10.1.2.3\n        /32 host LOCAL\n";
        assert_eq!(v4(trie), ["10.1.2.3".parse::<IpAddr>().unwrap()]);
        let interfaces = "00000000000000000000000000000001 01 80 10 80       lo\n\
                          fd000000000000000000000000000002 02 40 00 80     eth0\n\
                          fe800000000000000000000000000002 02 40 20 80     eth0\n";
        assert_eq!(v6(interfaces), ["fd00::2".parse::<IpAddr>().unwrap()]);
        assert!(!own().is_empty());
    }
}
