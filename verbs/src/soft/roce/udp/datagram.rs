//! A datagram of the port, which may be several packets of a flow: as the kernel gives it, and as processes hand it on.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use qpair_roce::Arrival;
use qpair_roce::wire::{Addresses, Bth, Flow, ICRC_LEN, PORT};

use super::address;
use super::control;
use super::io::Received;

/// Packets that came together, all but the last equally long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Datagram<'a> {
    addresses: Addresses,
    source_port: u16,
    traffic_class: u8,
    hop_limit: u8,
    /// Bytes of each packet but the last.
    segment: usize,
    bytes: &'a [u8],
}

impl<'a> Datagram<'a> {
    /// What a UDP socket received; `None` if it is not whole, or not all of it is told.
    #[inline]
    pub(super) fn from_kernel(received: Received<'a>) -> Option<Self> {
        let (source, source_port) = address::parse(received.name).filter(|_| !received.truncated)?;
        let (mut own, mut traffic_class, mut hop_limit, mut segment) = (None, None, None, received.bytes.len());
        for item in control::items(received.control) {
            match (item.level, item.kind) {
                (libc::SOL_IP, libc::IP_PKTINFO) => {
                    // After the interface and the address that it was taken for.
                    own = Some(IpAddr::from(Ipv4Addr::from(*item.data.get(8..)?.first_chunk::<4>()?)));
                }
                (libc::SOL_IPV6, libc::IPV6_PKTINFO) => {
                    own = own.or(Some(Ipv6Addr::from(*item.data.first_chunk::<16>()?).to_canonical()));
                }
                (libc::SOL_IP, libc::IP_TOS) => traffic_class = item.data.first().copied(),
                (libc::SOL_IP, libc::IP_TTL) => hop_limit = item.number(),
                (libc::SOL_IPV6, libc::IPV6_TCLASS) => traffic_class = item.number().map(|class| class as u8),
                (libc::SOL_IPV6, libc::IPV6_HOPLIMIT) => hop_limit = item.number(),
                (libc::SOL_UDP, libc::UDP_GRO) => segment = usize::try_from(item.number()?).ok()?,
                _ => {}
            }
        }
        Some(Datagram {
            addresses: Addresses::new(source, own?)?,
            source_port,
            traffic_class: traffic_class?,
            hop_limit: u8::try_from(hop_limit?).ok()?,
            segment,
            bytes: received.bytes,
        })
    }

    /// What another process handed on.
    pub(super) fn from_process(message: &'a [u8]) -> Option<Self> {
        let (head, bytes) = message.strip_prefix(HANDED_ON)?.split_first_chunk::<{ HEAD - HANDED_ON.len() }>()?;
        let [family, traffic_class, hop_limit, _, port0, port1, segment0, segment1, ends @ ..] = *head;
        let (source, own) = (<[u8; 16]>::try_from(&ends[..16]).ok()?, <[u8; 16]>::try_from(&ends[16..]).ok()?);
        let addresses = match family {
            4 => Addresses::V4(Ipv4Addr::from(*source.first_chunk::<4>()?), Ipv4Addr::from(*own.first_chunk::<4>()?)),
            6 => Addresses::V6(source.into(), own.into()),
            _ => return None,
        };
        let source_port = u16::from_be_bytes([port0, port1]);
        let segment = usize::from(u16::from_be_bytes([segment0, segment1]));
        if segment < SHORTEST {
            return None;
        }
        Some(Datagram { addresses, source_port, traffic_class, hop_limit, segment, bytes })
    }

    /// Writes to `to` those of its packets that `which` names, for [`from_process`](Datagram::from_process); their number.
    pub(super) fn hand_on(&self, to: &mut Vec<u8>, which: impl Fn(&[u8]) -> bool) -> u64 {
        to.clear();
        to.extend_from_slice(HANDED_ON);
        let (family, source, own) = match self.addresses {
            Addresses::V4(source, own) => (4, widen(source), widen(own)),
            Addresses::V6(source, own) => (6, source.octets(), own.octets()),
        };
        to.extend_from_slice(&[family, self.traffic_class, self.hop_limit, 0]);
        to.extend_from_slice(&self.source_port.to_be_bytes());
        to.extend_from_slice(&(self.segment as u16).to_be_bytes());
        to.extend_from_slice(&source);
        to.extend_from_slice(&own);
        let chosen = self.packets().filter(|packet| which(packet));
        chosen.inspect(|packet| to.extend_from_slice(packet)).count() as u64
    }

    /// Its packets.
    #[inline]
    pub(super) fn packets(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.bytes.chunks(self.segment.max(1))
    }

    /// The flow that it came by.
    pub(super) fn flow(&self) -> Flow {
        Flow { addresses: self.addresses, source_port: self.source_port, destination_port: PORT }
    }

    /// One of its packets, as an engine takes it.
    #[inline]
    pub(super) fn arrival(&self, packet: &'a [u8]) -> Arrival<'a> {
        // A socket shows no identification. IPv6 has none.
        let &Datagram { addresses, source_port, traffic_class, hop_limit, .. } = self;
        Arrival { addresses, source_port, part: None, traffic_class, hop_limit, bytes: packet }
    }
}

fn widen(address: Ipv4Addr) -> [u8; 16] {
    let mut wide = [0; 16];
    wide[..4].copy_from_slice(&address.octets());
    wide
}

/// Bytes of the shortest packet: a base header and a CRC.
const SHORTEST: usize = Bth::LEN + ICRC_LEN;
/// What such a message begins with: a name and the format's version.
const HANDED_ON: &[u8] = b"qpair forward 1 ";
/// Bytes before the packets: the above, four numbers of one byte, two of two, two addresses.
pub(super) const HEAD: usize = HANDED_ON.len() + 4 + 4 + 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_handed_on_is_the_same() {
        for addresses in [
            Addresses::V4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)),
            Addresses::V6(Ipv6Addr::LOCALHOST, "fe80::1".parse().unwrap()),
        ] {
            let (traffic_class, hop_limit) = (0x2e, 63);
            let bytes = [[b'a'; 16], [b'b'; 16], [b'a'; 16], [b'c'; 16]].concat();
            let (source_port, bytes) = (50_000, &bytes[..50]);
            let all = Datagram { addresses, source_port, traffic_class, hop_limit, segment: 16, bytes };
            let mut message = Vec::new();
            assert_eq!(all.hand_on(&mut message, |packet| packet[0] != b'b'), 3);
            assert_eq!(message.len(), HEAD + 34);
            let left = [&bytes[..16], &bytes[32..]].concat();
            assert_eq!(Datagram::from_process(&message), Some(Datagram { bytes: &left, ..all }));
            assert_eq!(Datagram::from_process(&message[..HEAD - 1]), None);
        }
    }

    #[test]
    fn messages_without_sense_are_none() {
        let mut message = HANDED_ON.to_vec();
        message.resize(HEAD + 8, 0);
        assert_eq!(Datagram::from_process(&message), None, "family 0");
        message[HANDED_ON.len()] = 4;
        assert_eq!(Datagram::from_process(&message), None, "packets of no length");
        message[HANDED_ON.len() + 7] = SHORTEST as u8;
        assert!(Datagram::from_process(&message).is_some());
        assert_eq!(Datagram::from_process(b"something else"), None);
    }
}
