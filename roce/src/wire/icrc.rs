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
    ways: [WayBack; WAYS],
}

/// What goes back some bytes in a CRC's register, which is a linear function: its value for each half of each byte.
#[derive(Clone, Copy, Debug, Default)]
struct WayBack {
    bytes: u32,
    of: [[u32; 16]; 8],
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
        if difference == 0 {
            return Some(Part::WHOLE);
        }
        let after = (IPV4_LEN - ID_END + UDP_LEN + packet.covered.len()) as u32;
        // What differs in the four bytes of identification, flags and offset, the first in the lowest bits: what the
        // register has where they enter it. Nearly all senders forbid fragments; some NICs do not.
        let [id0, id1, flags, offset] = self.way(after + 2).apply(difference).to_le_bytes();
        let fragment = Part::WHOLE.fragment ^ u16::from_be_bytes([flags, offset]);
        let is_whole = fragment & !DONT_FRAGMENT == 0;
        is_whole.then_some(Part { id: u16::from_be_bytes([id0, id1]), fragment })
    }

    #[inline]
    fn way(&mut self, bytes: u32) -> &WayBack {
        let way = &mut self.ways[bytes as usize / 4 % WAYS];
        if way.bytes != bytes {
            *way = WayBack::new(bytes);
        }
        way
    }
}

impl WayBack {
    fn new(bytes: u32) -> Self {
        let (mut of, mut value) = ([[0; 16]; 8], bytes_back(bytes));
        for bit in (0..32).rev() {
            of[bit / 4][1 << (bit % 4)] = value;
            value = times_x(value);
        }
        for values in &mut of {
            for value in 1..16_usize {
                let lowest = value & value.wrapping_neg();
                values[value] = values[lowest] ^ values[value ^ lowest];
            }
        }
        WayBack { bytes, of }
    }

    #[inline]
    fn apply(&self, register: u32) -> u32 {
        let halves = self.of.iter().enumerate();
        halves.fold(0, |sum, (place, values)| sum ^ values[(register >> (4 * place) & 15) as usize])
    }
}

/// x^-8n modulo the CRC's polynomial, which goes n bytes back; bit 31 stands for x^0.
fn bytes_back(bytes: u32) -> u32 {
    let powers = BACK.iter().enumerate().filter(|(bit, _)| bytes >> bit & 1 == 1);
    powers.fold(ONE, |product, (_, &power)| multiply(product, power))
}

/// What goes 1, 2, 4, ... bytes back.
const BACK: [u32; 16] = {
    let (mut powers, mut power) = ([0; 16], ONE);
    let mut bit = 0;
    while bit < 8 {
        power = if power & ONE == 0 { power << 1 } else { (power ^ POLYNOMIAL) << 1 | 1 };
        bit += 1;
    }
    let mut place = 0;
    while place < powers.len() {
        powers[place] = power;
        power = multiply(power, power);
        place += 1;
    }
    powers
};

const fn times_x(value: u32) -> u32 {
    value >> 1 ^ POLYNOMIAL & (value & 1).wrapping_neg()
}

/// The product modulo the polynomial.
const fn multiply(a: u32, mut b: u32) -> u32 {
    let (mut product, mut power) = (0, 32);
    while power > 0 {
        power -= 1;
        product ^= b & (a >> power & 1).wrapping_neg();
        b = times_x(b);
    }
    product
}

const ONE: u32 = 1 << 31;
/// That of Ethernet and zlib, without its highest term; bit 31 stands for x^0.
const POLYNOMIAL: u32 = 0xedb8_8320;
/// Lengths whose ways back are kept: a flow has few.
const WAYS: usize = 16;
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
                forth = times_x(forth);
            }
            assert_eq!(WayBack::new(bytes).apply(forth), value);
        }
    }
}
