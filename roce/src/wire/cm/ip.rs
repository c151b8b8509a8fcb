//! The header by which an application's addresses travel in a request: private data's first bytes. IBA A11.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Addresses of the two ends, as the application named them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpHeader {
    /// Who asks, and from which port.
    pub source: SocketAddr,
    /// Who is asked.
    pub destination: IpAddr,
}

impl IpHeader {
    /// From the first bytes of private data; `None` if they are no such header.
    pub fn parse(private: &[u8]) -> Option<Self> {
        let bytes: &[u8; IP_HEADER_LEN] = private.first_chunk()?;
        let [0, version, port0, port1, addresses @ ..] = bytes else { return None };
        let (source, destination) = addresses.split_at(16);
        let (source, destination) = match version >> 4 {
            4 => (IpAddr::V4(mapped(source)?), IpAddr::V4(mapped(destination)?)),
            6 => (IpAddr::V6(whole(source)?), IpAddr::V6(whole(destination)?)),
            _ => return None,
        };
        Some(IpHeader { source: SocketAddr::new(source, u16::from_be_bytes([*port0, *port1])), destination })
    }

    /// Its bytes. Both addresses are to be of one family; the source's counts.
    pub fn emit(&self) -> [u8; IP_HEADER_LEN] {
        let mut bytes = [0; IP_HEADER_LEN];
        bytes[1] = if self.source.is_ipv4() { 4 << 4 } else { 6 << 4 };
        bytes[2..4].copy_from_slice(&self.source.port().to_be_bytes());
        for (at, address) in [(4, self.source.ip()), (20, self.destination)] {
            match address {
                IpAddr::V4(address) => bytes[at + 12..at + 16].copy_from_slice(&address.octets()),
                IpAddr::V6(address) => bytes[at..at + 16].copy_from_slice(&address.octets()),
            }
        }
        bytes
    }
}

/// An IPv4 address stands in the last 4 of 16 bytes.
fn mapped(bytes: &[u8]) -> Option<Ipv4Addr> {
    bytes.last_chunk::<4>().copied().map(Ipv4Addr::from)
}

fn whole(bytes: &[u8]) -> Option<Ipv6Addr> {
    bytes.first_chunk::<16>().copied().map(Ipv6Addr::from)
}

/// Bytes of the header.
pub const IP_HEADER_LEN: usize = 36;
/// Service that stands for port 0 of TCP; add the port. Linux' rdma_cm names what listens so (RDMA_PS_TCP).
pub const SERVICE_TCP: u64 = 0x0106_0000;
