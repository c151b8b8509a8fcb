//! What a connection is made with.

use std::time::Duration;

use crate::qp::outgoing::{SEND_DEPTH, longest_packet};
use crate::types::{Mtu, Psn, Qpn};
use crate::wire::{Bth, DEFAULT_PKEY, Extension, Headers, RnrTimer};

/// What both ends agreed on, and what this one was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReliableConfig {
    /// This end's queue pair.
    pub qpn: Qpn,
    /// The peer's.
    pub peer: Qpn,
    /// Partition key.
    pub pkey: u16,
    /// Path MTU.
    pub mtu: Mtu,
    /// First sequence number of this end's requests.
    pub send_psn: Psn,
    /// First sequence number of the peer's.
    pub receive_psn: Psn,
    /// How long an answer is waited for; `None`: without end.
    pub ack_timeout: Option<Duration>,
    /// Times that a request is sent again without an answer; `None`: without end, as Linux' rdma_rxe takes 7.
    pub retry_count: Option<u8>,
    /// Times that a request is sent again where the peer had no receive; `None`: without end, which is 7 in verbs.
    pub rnr_retry: Option<u8>,
    /// How long the peer is to wait where this end had no receive.
    pub rnr_timer: RnrTimer,
    /// READs and atomics that this end has under way at most; with 0, none are taken.
    pub max_reads: u8,
    /// Those of the peer that this end can answer again.
    pub reads_answered: u8,
    /// Requests in the send queue at most.
    pub send_depth: u32,
    /// Packets under way at most, 1 to 2^22. More than 128 are only where for some time none was lost.
    pub window: u32,
}

impl ReliableConfig {
    /// A connection with the values that verbs applications are used to: MTU 1024, 7 retries, 16 READs.
    pub const fn new(qpn: Qpn, peer: Qpn, send_psn: Psn, receive_psn: Psn) -> Self {
        ReliableConfig {
            qpn,
            peer,
            pkey: DEFAULT_PKEY,
            mtu: Mtu::B1024,
            send_psn,
            receive_psn,
            ack_timeout: Some(Duration::from_micros(67_109)),
            retry_count: Some(7),
            rnr_retry: None,
            rnr_timer: RnrTimer::from_code(12),
            max_reads: 16,
            reads_answered: 16,
            send_depth: SEND_DEPTH,
            window: WINDOW,
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

/// As Linux' rdma_rxe: packets under way before the first is acknowledged.
pub(super) const WINDOW: u32 = 128;
