//! A request between posting and completing, and the packets that it takes.

use super::ReliableConfig;
use crate::qp::message;
use crate::types::{Msn, Mtu, Psn};
use crate::wire::{AtomicEth, Extension, Opcode, Position, Reth, Service};
use crate::work::{Op, Remote, Send};

/// A request of the send queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<L> {
    pub(super) work: Send<L>,
    /// Sequence number of its first packet.
    pub(super) psn: Psn,
    /// Sequence numbers that it takes: one a packet, and for a READ one for each packet of the answer.
    pub(super) packets: u32,
    /// Number of the message among all, for credits: the one that its responder has done them with. A READ of several parts
    /// is as many messages.
    pub(super) ssn: Msn,
    /// Of a READ: packets of a part that is asked for at once.
    longest_read: u32,
    /// Packets of the answer to a READ that came.
    pub(super) answered: u32,
    /// Its first packet went without credit: the others wait until that one is answered.
    pub(super) is_limited: bool,
}

impl<L: Copy> Request<L> {
    /// Numbered from `psn` and `ssn` on; a READ is asked for in parts of so many packets.
    pub(super) fn new(work: Send<L>, psn: Psn, ssn: Msn, longest_read: u32, config: &ReliableConfig) -> Self {
        let packets = match work.op {
            Op::CompareSwap { .. } | Op::FetchAdd { .. } => 1,
            Op::Send(_) | Op::Write(..) | Op::Read(_) => message::packets(work.len, config.mtu),
        };
        let messages = if let Op::Read(_) = work.op { packets.div_ceil(longest_read) } else { 1 };
        Request { work, psn, packets, ssn: ssn.advance(messages - 1), longest_read, answered: 0, is_limited: false }
    }

    /// True if it is done only once the peer has answered it: a READ or an atomic.
    pub(super) fn wants_answer(&self) -> bool {
        matches!(self.work.op, Op::Read(_) | Op::CompareSwap { .. } | Op::FetchAdd { .. })
    }

    pub(super) fn is_atomic(&self) -> bool {
        matches!(self.work.op, Op::CompareSwap { .. } | Op::FetchAdd { .. })
    }

    /// Sequence numbers from packet `packet` on that one packet stands for: of a READ, those of the part that it asks for.
    pub(super) fn span(&self, packet: u32) -> u32 {
        match self.work.op {
            Op::Read(_) => (self.longest_read - packet % self.longest_read).min(self.packets - packet),
            _ => 1,
        }
    }

    /// True if it takes a receive of the peer.
    pub(super) fn takes_receive(&self) -> bool {
        matches!(self.work.op, Op::Send(_) | Op::Write(_, Some(_)))
    }

    /// Where the bytes of packet `packet` begin, and how many they are.
    pub(super) fn part(&self, packet: u32, mtu: Mtu) -> (u32, u32) {
        message::part(self.work.len, packet, mtu)
    }

    /// Operation and headers of packet `packet`, and the bytes that it carries; `None` where the service has no such packet.
    pub(super) fn packet(&self, packet: u32, config: &ReliableConfig) -> Option<(Opcode, Extension, (u32, u32))> {
        let part = self.part(packet, config.mtu);
        Some(match self.work.op {
            Op::Send(_) | Op::Write(..) => {
                let position = Position::new(packet == 0, packet + 1 == self.packets);
                let (opcode, extension) = message::headers(Service::Rc, self.work.op, self.work.len, position)?;
                (opcode, extension, part)
            }
            Op::Read(remote) => {
                let (offset, _) = part;
                let Remote { va, rkey } = remote.advance(offset.into());
                let end = packet + self.span(packet);
                let end = if end == self.packets { self.work.len } else { end * config.mtu.bytes() };
                let rest = Reth { va, rkey, len: end - offset };
                (Opcode::RC_READ_REQUEST, Extension::Remote(rest), (0, 0))
            }
            Op::CompareSwap { remote: Remote { va, rkey }, compare, swap } => {
                let atomic = AtomicEth { va, rkey, swap_or_add: swap, compare };
                (Opcode::RC_COMPARE_SWAP, Extension::Atomic(atomic), (0, 0))
            }
            Op::FetchAdd { remote: Remote { va, rkey }, add } => {
                let atomic = AtomicEth { va, rkey, swap_or_add: add, compare: 0 };
                (Opcode::RC_FETCH_ADD, Extension::Atomic(atomic), (0, 0))
            }
        })
    }
}
