//! What a queue pair for datagrams is made with.

use super::Grh;
use crate::qp::outgoing::{SEND_DEPTH, longest_packet};
use crate::types::{Mtu, Psn, Qpn};
use crate::wire::DEFAULT_PKEY;

/// What a queue pair for datagrams is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramConfig {
    /// The queue pair.
    pub qpn: Qpn,
    /// Its key: only datagrams that have it are received. That of queue pair 1 is `0x8001_0000`.
    pub qkey: u32,
    /// Partition key of what it sends.
    pub pkey: u16,
    /// MTU of the port: bytes of a datagram that it sends, at most.
    pub mtu: Mtu,
    /// First sequence number. Receivers ignore it.
    pub send_psn: Psn,
    /// Requests in the send queue at most.
    pub send_depth: u32,
}

impl DatagramConfig {
    /// A queue pair with the values that verbs applications are used to: MTU 1024, 128 requests.
    pub const fn new(qpn: Qpn, qkey: u32) -> Self {
        DatagramConfig { qpn, qkey, pkey: DEFAULT_PKEY, mtu: Mtu::B1024, send_psn: Psn::new(0), send_depth: SEND_DEPTH }
    }

    /// Bytes of the longest packet that it sends, with its CRC.
    pub const fn longest_packet(&self) -> usize {
        longest_packet(self.mtu)
    }

    /// Bytes of a receive that any datagram of its MTU fits in.
    pub const fn longest_receive(&self) -> usize {
        Grh::LEN + self.mtu.bytes() as usize
    }
}
