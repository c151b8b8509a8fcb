//! The invariant CRC, which ends each packet: of all that does not change on the way, from the IP header on. A17.3.3, with
//! IBA 7.8.1; the form is that of zlib's CRC-32.
//!
//! An IPv4 header has an identification and flags, which the CRC covers and a UDP socket hides. [`Flow::icrc`] takes them as
//! an argument. A receiver that does not know them finds them by [`Identifier`], at the price of 17 of the 32 bits that the
//! check has.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::bth::Bth;
use super::packet::{ICRC_LEN, Packet};

/// What does not change between the two ends of a flow of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// The addresses.
    pub addresses: Addresses,
    /// UDP port of the sender.
    pub source_port: u16,
    /// UDP port of the receiver.
    pub destination_port: u16,
}

/// Source and destination, of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Addresses {
    /// IPv4.
    V4(Ipv4Addr, Ipv4Addr),
    /// IPv6.
    V6(Ipv6Addr, Ipv6Addr),
}

/// What an IPv4 header says of its part in a datagram. IPv6 has no such thing, and ignores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    /// The identification.
    pub id: u16,
    /// Flags and offset, as they are in the header.
    pub fragment: u16,
}

/// Finds identification and flags of IPv4 headers that a socket does not show.
///
/// A CRC is affine: what is between the CRC of a packet and that with other bytes in one place is a linear function of the
/// bytes alone, and can be solved for. Of the 32 bits 17 go into that; a packet of random damage passes once in 32768 times.
#[derive(Clone, Debug, Default)]
pub struct Identifier {
    /// By length of what follows, what goes that far back.
    factors: [(u32, u32); FACTORS],
}

impl Addresses {
    /// Of two addresses; `None` if they are of two families.
    pub const fn new(source: IpAddr, destination: IpAddr) -> Option<Self> {
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => Some(Addresses::V4(source, destination)),
            (IpAddr::V6(source), IpAddr::V6(destination)) => Some(Addresses::V6(source, destination)),
            _ => None,
        }
    }

    /// The way back.
    #[must_use]
    pub const fn reversed(self) -> Self {
        match self {
            Addresses::V4(source, destination) => Addresses::V4(destination, source),
            Addresses::V6(source, destination) => Addresses::V6(destination, source),
        }
    }
}

impl Part {
    /// Identification 0, and the flag against fragments: what Linux sends from a UDP socket that is not connected, with
    /// IP_PMTUDISC_DO.
    pub const WHOLE: Part = Part::segment(0);

    /// Segment `index` of several that Linux cuts one send into (UDP_SEGMENT), with the flag against fragments.
    pub const fn segment(index: u16) -> Self {
        Part { id: index, fragment: DONT_FRAGMENT }
    }
}

impl Flow {
    /// The CRC of a packet, of which `covered` is all but the CRC.
    #[inline]
    pub fn icrc(&self, part: Part, covered: &[u8]) -> u32 {
        let mut head = [0xff; LONGEST_HEAD];
        let mut at = IB_HEADER;
        let mut put = |bytes: &[u8]| {
            head[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        let udp_len = UDP_LEN + covered.len() + ICRC_LEN;
        // What routers change is taken as ones: type of service, time to live, and the checksum.
        match self.addresses {
            Addresses::V4(source, destination) => {
                put(&[0x45, 0xff]);
                put(&((IPV4_LEN + udp_len) as u16).to_be_bytes());
                put(&part.id.to_be_bytes());
                put(&part.fragment.to_be_bytes());
                put(&[0xff, UDP, 0xff, 0xff]);
                put(&source.octets());
                put(&destination.octets());
            }
            Addresses::V6(source, destination) => {
                put(&[0x6f, 0xff, 0xff, 0xff]);
                put(&(udp_len as u16).to_be_bytes());
                put(&[UDP, 0xff]);
                put(&source.octets());
                put(&destination.octets());
            }
        }
        put(&self.source_port.to_be_bytes());
        put(&self.destination_port.to_be_bytes());
        put(&(udp_len as u16).to_be_bytes());
        put(&[0xff, 0xff]);
        let (bth, rest) = covered.split_at(covered.len().min(Bth::LEN));
        put(bth);
        if let Some(congestion) = head.get_mut(at - bth.len() + CONGESTION_AT) {
            *congestion = 0xff;
        }
        let mut crc = crc32fast::Hasher::new();
        crc.update(&head[..at]);
        crc.update(rest);
        crc.finalize()
    }

    /// Appends its CRC to a packet that is all but that.
    pub fn seal(&self, part: Part, packet: &mut Vec<u8>) {
        packet.extend_from_slice(&[0; ICRC_LEN]);
        self.seal_in_place(part, packet);
    }

    /// Puts its CRC into the last bytes of a packet.
    ///
    /// # Panics
    /// If there are fewer than a CRC has.
    #[inline]
    pub fn seal_in_place(&self, part: Part, packet: &mut [u8]) {
        let (covered, icrc) = packet.split_at_mut(packet.len() - ICRC_LEN);
        icrc.copy_from_slice(&self.icrc(part, covered).to_le_bytes());
    }

    /// True if the packet came as it was sent, in such a part of a datagram.
    #[inline]
    pub fn verifies(&self, part: Part, packet: &Packet<'_>) -> bool {
        self.icrc(part, packet.covered) == packet.icrc
    }
}

impl Identifier {
    /// None was met yet.
    pub fn new() -> Self {
        Identifier::default()
    }

    /// Identification and flags with which the packet verifies, if it is whole; `None` if there are none, and always for IPv6.
    #[inline]
    pub fn find(&mut self, flow: &Flow, packet: &Packet<'_>) -> Option<Part> {
        if let Addresses::V6(..) = flow.addresses {
            return None;
        }
        let difference = flow.icrc(Part::WHOLE, packet.covered) ^ packet.icrc;
        let after = (IPV4_LEN - ID_END + UDP_LEN + packet.covered.len()) as u32;
        // What differs in the four bytes of identification, flags and offset, the first in the lowest bits: what the
        // register has where they enter it. Nearly all senders forbid fragments; some NICs do not.
        let [id0, id1, flags, offset] = multiply(self.factor(after + 2), difference).to_le_bytes();
        let fragment = Part::WHOLE.fragment ^ u16::from_be_bytes([flags, offset]);
        let is_whole = fragment & !DONT_FRAGMENT == 0;
        is_whole.then_some(Part { id: u16::from_be_bytes([id0, id1]), fragment })
    }

    /// x^-8n, which goes n bytes back.
    #[inline]
    fn factor(&mut self, bytes: u32) -> u32 {
        let place = &mut self.factors[bytes as usize / 4 % FACTORS];
        if place.0 != bytes {
            *place = (bytes, bytes_back(bytes));
        }
        place.1
    }
}

/// x^-8n modulo the CRC's polynomial; bit 31 stands for x^0.
fn bytes_back(bytes: u32) -> u32 {
    let mut power = (0..8).fold(ONE, |value, _| divide_by_x(value));
    let (mut result, mut left) = (ONE, bytes);
    while left != 0 {
        if left & 1 == 1 {
            result = multiply(result, power);
        }
        power = multiply(power, power);
        left >>= 1;
    }
    result
}

fn divide_by_x(value: u32) -> u32 {
    if value & ONE == 0 { value << 1 } else { (value ^ POLYNOMIAL) << 1 | 1 }
}

/// The product modulo the polynomial.
#[inline]
fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    for power in (0..32).rev() {
        product ^= b & (a >> power & 1).wrapping_neg();
        b = b >> 1 ^ POLYNOMIAL & (b & 1).wrapping_neg();
    }
    product
}

const ONE: u32 = 1 << 31;
/// That of Ethernet and zlib, without its highest term; bit 31 stands for x^0.
const POLYNOMIAL: u32 = 0xedb8_8320;
/// Lengths whose factors are kept: a flow has few.
const FACTORS: usize = 16;
/// What a CRC of InfiniBand covers first, which RoCE has not: as ones.
const IB_HEADER: usize = 8;
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
/// End of the identification in an IPv4 header.
const ID_END: usize = 6;
const UDP_LEN: usize = 8;
const UDP: u8 = 17;
const DONT_FRAGMENT: u16 = 0x4000;
/// The byte of the base header that has marks of congestion, which routers may set.
const CONGESTION_AT: usize = 4;
const LONGEST_HEAD: usize = IB_HEADER + IPV6_LEN + UDP_LEN + Bth::LEN;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_go_back_as_they_went_forth() {
        for (value, bytes) in [(0x1234_5678, 1), (0xdead_beef, 100), (1, 1087), (u32::MAX, 9000)] {
            let mut forth = value;
            for _ in 0..8 * bytes {
                forth = forth >> 1 ^ POLYNOMIAL & (forth & 1).wrapping_neg();
            }
            assert_eq!(multiply(bytes_back(bytes), forth), value);
        }
    }
}
