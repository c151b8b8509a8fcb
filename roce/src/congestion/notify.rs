//! The notification point: tells a sender that its packets met congestion. Section 3.1 of the DCQCN paper.

use std::time::{Duration, Instant};

use crate::counters::Counters;
use crate::types::{Psn, Qpn};
use crate::wire::{Bth, Extension, Headers, Opcode};

/// The notification point of one flow: of the packets that one queue pair gets from one other.
///
/// The first marked packet is answered at once by a CNP. Then at most one follows in each
/// `min_time_between_cnps`, at its end, if a marked packet came in it.
#[derive(Clone, Copy, Debug)]
pub struct NotificationPoint {
    peer: Qpn,
    pkey: u16,
    min_time_between_cnps: Duration,
    /// No CNP is sent before.
    not_before: Option<Instant>,
    /// A CNP is owed for a marked packet, then at the earliest.
    due: Option<Instant>,
}

impl NotificationPoint {
    /// Bytes of a CNP but for its CRC: the base header, and 16 that are reserved.
    pub const CNP_LEN: usize = Bth::LEN + RESERVED_LEN;

    /// Of packets that come from queue pair `peer`, of that partition. The last one is the time between two CNPs at
    /// least: [`MIN_TIME_BETWEEN_CNPS`].
    pub const fn new(peer: Qpn, pkey: u16, min_time_between_cnps: Duration) -> Self {
        NotificationPoint { peer, pkey, min_time_between_cnps, not_before: None, due: None }
    }

    /// A packet of the peer came that a switch had marked: ECN of its IP header says "congestion experienced" (binary
    /// 11).
    pub fn handle_marked(&mut self, now: Instant, counters: &mut Counters) {
        counters.np_ecn_marked_roce_packets += 1;
        let earliest = self.not_before.map_or(now, |at| at.max(now));
        self.due.get_or_insert(earliest);
    }

    /// Makes the CNP that is due in `to`, but for its CRC; its length, `None` if none is due now. `to` takes
    /// [`CNP_LEN`](NotificationPoint::CNP_LEN) bytes; to fewer none is given, and it stays due.
    ///
    /// It goes to the address that the marked packet came from, with the highest priority that there is. A17.9.3.
    pub fn transmit(&mut self, now: Instant, to: &mut [u8], counters: &mut Counters) -> Option<usize> {
        self.due.filter(|due| *due <= now)?;
        let bth = Bth {
            pkey: self.pkey,
            backward_congestion: true,
            migration: false,
            ..Bth::new(Opcode::CNP, self.peer, Psn::new(0))
        };
        let bytes = Headers { bth, extension: Extension::Congestion }.emit(0).ok()?;
        to.get_mut(..bytes.len())?.copy_from_slice(&bytes);
        self.due = None;
        self.not_before = now.checked_add(self.min_time_between_cnps);
        counters.np_cnp_sent += 1;
        Some(bytes.len())
    }

    /// When the next CNP is due; `None` if none is.
    pub const fn timeout(&self) -> Option<Instant> {
        self.due
    }
}

/// Time between two CNPs of a flow: 50 us, as N in section 3.1 of the paper. The name is that of mlx5, whose NICs have
/// 4 us by default. Senders need K, the time after which alpha sinks, to be longer than this.
pub const MIN_TIME_BETWEEN_CNPS: Duration = Duration::from_micros(50);

const RESERVED_LEN: usize = 16;
