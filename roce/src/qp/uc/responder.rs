//! Takes messages whole, or drops them. IBA 9.8.2.2, 9.9.3.
//!
//! A message of which a packet is missing or wrong is dropped without a word, and the next one begins with the next first
//! packet, even if that is the one which showed the gap. A receive that the message had is that of the next one (class D1 of
//! IBA's responder errors), also where the message was too long for it: as the kernel's qib_uc.c and hfi1's uc.c have it
//! ("rewind"), and rxe_resp.c (`RESPST_ERR_LENGTH` off a shared receive queue). Linux' rdma_rxe also drops the first packet
//! that comes behind a gap within a message, and so one message more.

use super::UnreliableConfig;
use crate::counters::Counters;
use crate::host::Host;
use crate::qp::incoming::{Assembly, Piece, Refusal};
use crate::types::{Psn, Qpn};
use crate::wire::{Meaning, Packet};
use crate::work::Outcome;

/// The receiving half of a connection.
#[derive(Debug)]
pub(super) struct Responder<L> {
    /// Sequence number of the next packet.
    expected: Psn,
    /// Where the numbers would have gone on, but for a gap that nothing has confirmed yet.
    left: Option<Left>,
    assembly: Assembly<L>,
}

/// A place in the sequence that was left behind a gap.
#[derive(Clone, Copy, Debug)]
struct Left {
    /// Sequence number of the next packet there.
    next: Psn,
    /// Packets that have gone on from there since, and none on the other side of the gap.
    went_on: u32,
}

/// The memory of a receive is gone.
pub(super) struct Gone;

impl<L: Copy> Responder<L> {
    pub(super) fn new(config: &UnreliableConfig) -> Self {
        Responder { expected: config.receive_psn, left: None, assembly: Assembly::new() }
    }

    /// True once a request was taken, though not many million ones.
    pub(super) fn has_heard(&self, config: &UnreliableConfig) -> bool {
        self.expected != config.receive_psn
    }

    /// Handles a packet of a SEND or WRITE.
    ///
    /// # Errors
    /// The memory of a receive is gone; the receive has ended so.
    pub(super) fn handle<H: Host<Local = L>>(
        &mut self,
        packet: &Packet<'_>,
        meaning: Meaning,
        config: &UnreliableConfig,
        host: &mut H,
        counters: &mut Counters,
    ) -> Result<(), Gone> {
        let bth = packet.headers.bth;
        let ahead = bth.psn.relative_to(self.expected);
        if (-LATE..0).contains(&ahead) {
            counters.duplicate_request += 1;
            self.go_back(bth.psn);
            return Ok(());
        }
        if ahead == 0 {
            self.left = None;
        } else {
            counters.out_of_sequence += 1;
            self.assembly.abandon();
            self.left.get_or_insert(Left { next: self.expected, went_on: 0 });
        }
        self.expected = bth.psn.advance(1);
        if meaning.position.is_first() {
            // Nothing is missing, and yet the message before has no end: the peer is wrong.
            counters.resp_local_length_error += u64::from(self.assembly.is_open());
            self.assembly.abandon();
        } else if !self.assembly.is_open() {
            // What is left of a message that was dropped.
            return Ok(());
        }
        let piece = Piece { extension: packet.headers.extension, payload: packet.payload, solicited: bth.solicited };
        if let Err(refusal) = self.assembly.take(meaning, piece, (config.qpn, config.mtu), host) {
            match refusal {
                Refusal::NoReceive => counters.out_of_buffer += 1,
                Refusal::Invalid => counters.resp_local_length_error += 1,
                Refusal::Access => counters.resp_remote_access_errors += 1,
                Refusal::Memory => return Err(Gone),
            }
            self.assembly.abandon();
        }
        Ok(())
    }

    /// A late packet came. Where many go on from before a gap, and none from behind it, the packet that showed the gap was no
    /// packet of the peer's, or damaged where nothing protects it: the sequence is where it was.
    fn go_back(&mut self, psn: Psn) {
        let Some(left) = self.left.as_mut().filter(|left| left.next == psn) else { return };
        *left = Left { next: psn.advance(1), went_on: left.went_on + 1 };
        if left.went_on == ENOUGH {
            self.expected = left.next;
            self.left = None;
            self.assembly.abandon();
        }
    }

    /// Flushes a receive that was taken.
    pub(super) fn flush<H: Host<Local = L>>(&mut self, qpn: Qpn, host: &mut H) {
        self.assembly.fail(Outcome::Flushed, qpn, host);
    }
}

/// Packets that a network may hold up or repeat. A packet so far behind is late, and is dropped, so that no message comes
/// twice or out of order. IBA takes any number but the expected one for a gap, since its links neither repeat nor reorder;
/// UDP may. A packet further behind is one after a gap of more than half of all numbers. At an MTU of 1024 so many packets
/// take 1.4 ms at 400 Gbit/s, and 58 ms at 10: about what the buffers of switches hold. They are a 256th of all numbers, so
/// that such a gap hardly ever ends among them; and if it does, only so many packets more are lost.
const LATE: i32 = 1 << 16;

/// Packets that a network is not taken to hold up together, all in order, while none of what was sent behind them comes. If it
/// did, the packet that overtook them would count as lost.
const ENOUGH: u32 = 16;
