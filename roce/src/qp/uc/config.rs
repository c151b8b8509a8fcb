//! What a connection is made with.

use crate::qp::outgoing::{SEND_DEPTH, longest_packet};
use crate::types::{Mtu, Psn, Qpn};
use crate::wire::{Bth, DEFAULT_PKEY, Extension, Headers};

/// What both ends agreed on, and what this one was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnreliableConfig {
    /// This end's queue pair.
    pub qpn: Qpn,
    /// The peer's.
    pub peer: Qpn,
    /// Partition key.
    pub pkey: u16,
    /// Path MTU.
    pub mtu: Mtu,
    /// First sequence number of this end's packets.
    pub send_psn: Psn,
    /// First sequence number of the peer's.
    pub receive_psn: Psn,
    /// Requests in the send queue at most.
    pub send_depth: u32,
}

impl UnreliableConfig {
    /// A connection with the values that verbs applications are used to: MTU 1024, 128 requests.
    pub const fn new(qpn: Qpn, peer: Qpn, send_psn: Psn, receive_psn: Psn) -> Self {
        UnreliableConfig {
            qpn,
            peer,
            pkey: DEFAULT_PKEY,
            mtu: Mtu::B1024,
            send_psn,
            receive_psn,
            send_depth: SEND_DEPTH,
        }
    }

    /// Bytes of the longest packet of this connection, with its CRC.
    pub const fn longest_packet(&self) -> usize {
        longest_packet(self.mtu)
    }

    pub(super) fn headers(&self, bth: Bth, extension: Extension) -> Headers {
        Headers { bth: Bth { pkey: self.pkey, ..bth }, extension }
    }
}
