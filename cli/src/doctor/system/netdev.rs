//! Network interfaces and their addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::root::Root;

/// A network interface of this network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Netdev {
    /// Its name.
    pub name: String,
    /// Its MTU in bytes.
    pub mtu: Option<u32>,
    /// True if it was brought up.
    pub up: bool,
    /// Whether it has a link; `None` if it does not tell.
    pub carrier: Option<bool>,
    /// The code of its hardware: 1 for Ethernet, 32 for InfiniBand, 772 for loopback.
    pub hardware: Option<u32>,
    /// True if there is a device under it, and not the kernel alone.
    pub physical: bool,
}

/// An address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The interface, where the system tells.
    pub netdev: Option<String>,
    /// The address.
    pub ip: IpAddr,
    /// Bits of its network.
    pub prefix: u8,
}

impl Netdev {
    /// True for Ethernet.
    pub fn is_ethernet(&self) -> bool {
        self.hardware == Some(1)
    }
}

/// The interfaces there are.
pub fn netdevs(root: &Root) -> Vec<Netdev> {
    let names = root.names(CLASS).into_iter().take(MOST_NETDEVS);
    // Beside the interfaces there are files, such as that of bonding.
    names.filter(|name| root.has(&format!("{CLASS}/{name}/flags"))).map(|name| netdev(root, name)).collect()
}

fn netdev(root: &Root, name: String) -> Netdev {
    let at = |file: &str| format!("{CLASS}/{name}/{file}");
    Netdev {
        mtu: root.number(&at("mtu")),
        up: root.hex(&at("flags")).is_some_and(|flags| flags & 1 == 1),
        carrier: root.number::<u8>(&at("carrier")).map(|carrier| carrier == 1),
        hardware: root.number(&at("type")),
        physical: root.has(&at("device")),
        name,
    }
}

/// Their addresses, without loopback.
pub fn addresses(root: &Root) -> Vec<Address> {
    let mut all = v4_addresses(root);
    all.extend(v6_addresses(root));
    all
}

/// Local addresses stand in the routing trie, their interfaces and networks in the table of routes.
fn v4_addresses(root: &Root) -> Vec<Address> {
    let trie = root.long_text("/proc/net/fib_trie", LONGEST_TABLE).unwrap_or_default();
    let routes = root.long_text("/proc/net/route", LONGEST_TABLE).unwrap_or_default();
    let routes: Vec<Route> = routes.lines().skip(1).filter_map(Route::parse).collect();
    let mut found: Vec<Ipv4Addr> = Vec::new();
    let mut last = None;
    for line in trie.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            last = address.parse().ok();
        } else if line.ends_with("host LOCAL") && found.len() < MOST_ADDRESSES {
            found.extend(last.filter(|ip: &Ipv4Addr| !ip.is_loopback()));
        }
    }
    // Each stands in the main table and in the local one.
    found.sort_unstable();
    found.dedup();
    found.into_iter().map(|ip| v4_address(ip, &routes)).collect()
}

fn v4_address(ip: Ipv4Addr, routes: &[Route]) -> Address {
    let holding = routes.iter().filter(|route| u32::from(ip) & route.mask == route.network);
    let route = holding.max_by_key(|route| route.mask.leading_ones());
    let prefix = route.map_or(32, |route| route.mask.leading_ones() as u8);
    Address { netdev: route.map(|route| route.netdev.clone()), ip: ip.into(), prefix }
}

/// A network that an interface reaches without a gateway.
struct Route {
    netdev: String,
    network: u32,
    mask: u32,
}

impl Route {
    fn parse(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let hex = |index: usize| u32::from_str_radix(fields.get(index)?, 16).ok();
        let through_gateway = hex(3)? & 2 == 2;
        // The kernel prints the bytes of an address as they lie in memory.
        let (network, mask) = (u32::from_be(hex(1)?), u32::from_be(hex(7)?));
        (!through_gateway && mask != 0).then(|| Route { netdev: fields[0].to_owned(), network, mask })
    }
}

fn v6_addresses(root: &Root) -> Vec<Address> {
    let text = root.long_text("/proc/net/if_inet6", LONGEST_TABLE).unwrap_or_default();
    text.lines().filter_map(v6_address).take(MOST_ADDRESSES).collect()
}

fn v6_address(line: &str) -> Option<Address> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [ip, _, prefix, _, _, netdev] = fields.as_slice() else { return None };
    let ip = Ipv6Addr::from(u128::from_str_radix(ip, 16).ok()?);
    let prefix = u8::from_str_radix(prefix, 16).ok().filter(|prefix| *prefix <= 128)?;
    (!ip.is_loopback()).then(|| Address { netdev: Some((*netdev).to_owned()), ip: ip.into(), prefix })
}

const CLASS: &str = "/sys/class/net";
/// A table of routes can have a line for each network of the internet.
const LONGEST_TABLE: u64 = 4 << 20;
const MOST_NETDEVS: usize = 4096;
const MOST_ADDRESSES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::super::super::fixture::Fixture;
    use super::*;

    #[test]
    fn addresses_are_read_with_their_interfaces_and_networks() {
        let fixture = Fixture::rxe_host();
        let found = addresses(&Root::new(fixture.path()));
        let texts: Vec<String> = found
            .iter()
            .map(|found| format!("{} {}/{}", found.netdev.as_deref().unwrap_or("?"), found.ip, found.prefix))
            .collect();
        assert_eq!(texts, ["eth0 10.77.0.11/24", "eth0 fe80::5054:ff:fe00:1/64", "eth0 fd77::11/64"]);
    }

    #[test]
    fn interfaces_are_read_with_what_they_do() {
        let fixture = Fixture::rxe_host();
        fixture.file("sys/class/net/bonding_masters", "\n");
        let found = netdevs(&Root::new(fixture.path()));
        let names: Vec<&str> = found.iter().map(|netdev| netdev.name.as_str()).collect();
        assert_eq!(names, ["eth0", "lo"]);
        assert_eq!((found[0].mtu, found[0].up, found[0].carrier), (Some(1500), true, Some(true)));
        assert!(found[0].is_ethernet() && !found[1].is_ethernet());
    }

    #[test]
    fn lines_that_make_no_sense_are_left_out() {
        assert_eq!(v6_address("fe80 02 40 20 80 eth0 more"), None);
        assert_eq!(v6_address("fd770000000000000000000000000011 02 ff 00 80 eth0"), None);
        assert!(Route::parse("eth0 zz 0 1").is_none());
        let fixture = Fixture::new();
        fixture.file("proc/net/fib_trie", "|-- 10.0.0.999\n /32 host LOCAL\n|-- 10.0.0.9\n /32 host LOCAL\n");
        let found = addresses(&Root::new(fixture.path()));
        assert_eq!(found, [Address { netdev: None, ip: IpAddr::from([10, 0, 0, 9]), prefix: 32 }]);
    }
}
