//! Packets that come in: what each is, and whether it may be taken.

use std::time::Instant;

use super::{Port, QueuePair, Route};
use crate::host::Host;
use crate::qp::Grh;
use crate::types::Qpn;
use crate::wire::cm::LEN;
use crate::wire::{Addresses, Flow, Identifier, Opcode, PORT, Packet, Part};

/// A UDP datagram for port 4791.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// The sender's address, and the own one.
    pub addresses: Addresses,
    /// The sender's UDP port.
    pub source_port: u16,
    /// Identification and flags of an IPv4 header, if they are known. A UDP socket does not show them.
    pub part: Option<Part>,
    /// Traffic class, or type of service.
    pub traffic_class: u8,
    /// Hop limit, or time to live.
    pub hop_limit: u8,
    /// What it carries.
    pub bytes: &'a [u8],
}

impl<L: Copy> Port<L> {
    /// Takes in a datagram. What is no packet for a queue pair of this port, from its peer and undamaged, is dropped and
    /// counted.
    pub fn receive<H: Host<Local = L>>(&mut self, now: Instant, arrival: &Arrival<'_>, host: &mut H) {
        let Ok(packet) = Packet::parse(arrival.bytes) else {
            self.counters.malformed_packets += 1;
            return;
        };
        let qpn = packet.headers.bth.destination;
        if qpn == MANAGEMENT {
            let is_taken = arrival.part_of(&packet, &mut self.identifier).is_some()
                && self.management.take(arrival.addresses, &packet);
            self.counters.management_dropped += u64::from(!is_taken);
            return;
        }
        let Some(slot) = self.queue_pairs.get_mut(qpn) else {
            self.counters.unknown_qp += 1;
            return;
        };
        if !is_of_partition(slot.queue_pair.pkey(), packet.headers.bth.pkey) {
            self.counters.bad_pkey_cntr += 1;
            return;
        }
        if slot.queue_pair.peer().is_some_and(|(_, route)| route.addresses != arrival.addresses.reversed()) {
            self.counters.wrong_address += 1;
            return;
        }
        let Some(part) = arrival.part_of(&packet, &mut self.identifier) else {
            self.counters.rx_icrc_encapsulated += 1;
            return;
        };
        let counters = &mut self.counters;
        match (&mut slot.control, &mut slot.queue_pair) {
            (Some(control), _) if packet.headers.bth.opcode == Opcode::CNP => control.handle_cnp(now, counters),
            (control, queue_pair) => {
                if let Some(control) = control.as_mut().filter(|_| arrival.is_marked()) {
                    control.notification.handle_marked(now, counters);
                }
                match queue_pair {
                    QueuePair::Reliable(rc, _) => rc.handle(now, &packet, host, counters),
                    QueuePair::Unreliable(uc, _) => uc.handle(&packet, host, counters),
                    QueuePair::Datagrams(ud) => ud.handle(&packet, &arrival.grh(part), host, counters),
                }
            }
        }
        self.turns.enqueue(qpn, slot);
    }

    /// The next datagram for the connection manager: the sender's and the own address, and its bytes.
    pub fn next_management(&mut self) -> Option<(Addresses, [u8; LEN])> {
        self.management.next()
    }

    /// Sends a datagram of the connection manager; false if too many wait. Who sends it repeats it anyway.
    pub fn send_management(&mut self, route: Route, bytes: [u8; LEN]) -> bool {
        self.management.send(route, bytes)
    }
}

impl Arrival<'_> {
    /// Identification and flags of its IPv4 header, if the packet's CRC is right. Where they are not known, those with which
    /// it is.
    fn part_of(&self, packet: &Packet<'_>, identifier: &mut Identifier) -> Option<Part> {
        let Arrival { addresses, source_port, .. } = *self;
        let flow = Flow { addresses, source_port, destination_port: PORT };
        let known = if let Addresses::V6(..) = addresses { Some(Part::WHOLE) } else { self.part };
        known.map_or_else(|| identifier.find(&flow, packet), |part| flow.verifies(part, packet).then_some(part))
    }

    /// True if it met congestion.
    fn is_marked(&self) -> bool {
        self.traffic_class & MARKED == MARKED
    }

    /// The IP header.
    fn grh(&self, part: Part) -> Grh {
        let udp_len = (UDP_LEN + self.bytes.len()) as u16;
        match self.addresses {
            Addresses::V4(source, destination) => {
                let mut header = [0; 20];
                header[0] = 0x45;
                header[1] = self.traffic_class;
                header[2..4].copy_from_slice(&(20 + udp_len).to_be_bytes());
                header[4..6].copy_from_slice(&part.id.to_be_bytes());
                header[6..8].copy_from_slice(&part.fragment.to_be_bytes());
                (header[8], header[9]) = (self.hop_limit, UDP);
                header[12..16].copy_from_slice(&source.octets());
                header[16..].copy_from_slice(&destination.octets());
                let checksum = checksum(&header);
                header[10..12].copy_from_slice(&checksum.to_be_bytes());
                Grh::v4(&header)
            }
            Addresses::V6(source, destination) => {
                let mut header = [0; Grh::LEN];
                header[..4].copy_from_slice(&(6 << 28 | u32::from(self.traffic_class) << 20).to_be_bytes());
                header[4..6].copy_from_slice(&udp_len.to_be_bytes());
                (header[6], header[7]) = (UDP, self.hop_limit);
                header[8..24].copy_from_slice(&source.octets());
                header[24..].copy_from_slice(&destination.octets());
                Grh::v6(&header)
            }
        }
    }
}

/// The checksum of an IPv4 header. RFC 791.
fn checksum(header: &[u8; 20]) -> u16 {
    let words = header.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum = words.sum::<u32>();
    // The carry, and what it carries over itself. RFC 1071.
    let folded = (sum & 0xffff) + (sum >> 16);
    !(folded + (folded >> 16)) as u16
}

/// True if two keys are of one partition, and not both of limited members. IBA 10.9.3.
const fn is_of_partition(own: u16, other: u16) -> bool {
    (own ^ other) & 0x7fff == 0 && (own | other) & FULL_MEMBER != 0
}

const MANAGEMENT: Qpn = Qpn(1);
const FULL_MEMBER: u16 = 0x8000;
/// What a switch sets in a traffic class: congestion experienced (CE of RFC 3168).
const MARKED: u8 = 3;
const UDP_LEN: usize = 8;
const UDP: u8 = 17;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limited_members_do_not_meet() {
        let pairs = [(0xffff, 0xffff, true), (0xffff, 0x7fff, true), (0x7fff, 0x7fff, false), (0xffff, 0x8001, false)];
        for (own, other, meet) in pairs {
            assert_eq!((is_of_partition(own, other), is_of_partition(other, own)), (meet, meet), "{own:x} {other:x}");
        }
    }

    #[test]
    fn the_checksum_is_that_of_the_rfc() {
        // RFC 1071's method on a header whose checksum is known.
        let mut header = [0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7];
        assert_eq!(checksum(&header), 0xb861);
        header[10..12].copy_from_slice(&0xb861u16.to_be_bytes());
        assert_eq!(checksum(&header), 0);
        // Of this the carry carries over again.
        header = [0x45, 0, 2, 0xfd, 0x96, 0x27, 0x40, 0, 0x40, 0x11, 0, 0, 0x8f, 7, 0x25, 0xfe, 0xcf, 0xc, 0x1d, 0xb9];
        assert_eq!(checksum(&header), 0xfffd);
        header[10..12].copy_from_slice(&0xfffdu16.to_be_bytes());
        assert_eq!(checksum(&header), 0);
    }
}
