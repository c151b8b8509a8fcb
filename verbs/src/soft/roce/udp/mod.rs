//! RoCE's UDP port, shared by the processes of a host: packets out, and the packets in that are for queue pairs here.
//! The number of a queue pair says whose it is: its lowest bits are a slot, and a process claims one for each device.
//!
//! [`SLOTS`] UDP sockets and one more, for queue pair 1 (connection management), are bound to the port. A program in the
//! kernel gives each packet to the socket of its slot (SO_REUSEPORT, SO_ATTACH_REUSEPORT_CBPF). Each process has all these
//! sockets, got from one that had them before, so that none is closed while any process lives, and each keeps its place.
//! What says who has which slot are abstract names of Unix sockets: exclusive in a network namespace, and gone with the
//! process, however it ends.

mod address;
mod ask;
mod backlog;
mod control;
mod counters;
mod datagram;
mod group;
mod io;
mod management;
mod options;
mod outbox;
mod place;
mod sender;
mod serving;
mod slot;
mod sockets;
#[cfg(test)]
mod tests;
mod wire;

pub(crate) use backlog::HeldUp;
pub(crate) use counters::NetworkCounters;
pub(crate) use outbox::Outbox;
pub(crate) use slot::Slot;
pub(crate) use wire::Wire;

/// Bytes that go at once: what the length in an IPv6 header leaves; IPv4 would take 20 more.
const LONGEST_SEND: usize = 65535 - 40 - 8;
/// Devices of a host that can use the network at a time. A queue pair's number modulo this is its device's slot.
pub(crate) const SLOTS: u32 = 64;
/// Place of the socket for connection management, after those of the slots.
const MANAGEMENT: u32 = SLOTS;
/// Sockets bound to the port.
const SOCKETS: usize = SLOTS as usize + 1;

/// The place of the socket that a packet is for; `None` if it is too short to say.
#[inline]
fn place_of(packet: &[u8]) -> Option<u32> {
    let [_, high, middle, low] = *packet.get(4..8)?.first_chunk()?;
    let qpn = u32::from_be_bytes([0, high, middle, low]);
    Some(if qpn == MANAGEMENT_QPN { MANAGEMENT } else { qpn % SLOTS })
}

/// The queue pair of connection management.
const MANAGEMENT_QPN: u32 = 1;
