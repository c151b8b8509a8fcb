//! A request between posting and completing, and the packets that it takes.

use crate::host::Remote;
use crate::types::{Mtu, Psn};
use crate::wire::{Action, AtomicEth, Extension, Opcode, Position, Reth, Service, With};
use crate::work::{Extra, Op, Send};

/// A request of the send queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<L> {
    pub(super) work: Send<L>,
    /// Sequence number of its first packet.
    pub(super) psn: Psn,
    /// Sequence numbers that it takes: one a packet, and for a READ one for each packet of the answer.
    pub(super) packets: u32,
    /// Number of the message among all, for credits.
    pub(super) ssn: u32,
    /// Packets of the answer to a READ that came.
    pub(super) answered: u32,
}

impl<L: Copy> Request<L> {
    pub(super) fn new(work: Send<L>, psn: Psn, ssn: u32, mtu: Mtu) -> Self {
        let packets = match work.op {
            Op::CompareSwap { .. } | Op::FetchAdd { .. } => 1,
            Op::Send(_) | Op::Write(..) | Op::Read(_) => work.len.div_ceil(mtu.bytes()).max(1),
        };
        Request { work, psn, packets, ssn, answered: 0 }
    }

    /// True if it is done only once the peer has answered it: a READ or an atomic.
    pub(super) fn wants_answer(&self) -> bool {
        matches!(self.work.op, Op::Read(_) | Op::CompareSwap { .. } | Op::FetchAdd { .. })
    }

    /// True if it takes a receive of the peer.
    pub(super) fn takes_receive(&self) -> bool {
        matches!(self.work.op, Op::Send(_) | Op::Write(_, Some(_)))
    }

    /// Bytes of packet `packet`, and where they begin.
    pub(super) fn part(&self, packet: u32, mtu: Mtu) -> (u32, u32) {
        let offset = packet * mtu.bytes();
        (offset, (self.work.len - offset).min(mtu.bytes()))
    }

    /// Operation and headers of packet `packet`, and the bytes that it carries.
    pub(super) fn packet(&self, packet: u32, mtu: Mtu) -> (Opcode, Extension, (u32, u32)) {
        let position = Position::new(packet == 0, packet + 1 == self.packets);
        let part = self.part(packet, mtu);
        let message =
            |action, with| Opcode::of_message(Service::Rc, action, position, with).unwrap_or(Opcode::RC_SEND_ONLY);
        let at_end = position.is_last();
        match self.work.op {
            Op::Send(Extra::Immediate(immediate)) if at_end => {
                (message(Action::Send, With::Immediate), Extension::Immediate(immediate), part)
            }
            Op::Send(Extra::Invalidate(rkey)) if at_end => {
                (message(Action::Send, With::Invalidate), Extension::Invalidate(rkey), part)
            }
            Op::Send(_) => (message(Action::Send, With::Nothing), Extension::None, part),
            Op::Write(remote, immediate) => {
                let reth = reth(remote, self.work.len);
                match (position.is_first(), immediate.filter(|_| at_end)) {
                    (true, Some(immediate)) => {
                        (message(Action::Write, With::Immediate), Extension::RemoteImmediate(reth, immediate), part)
                    }
                    (false, Some(immediate)) => {
                        (message(Action::Write, With::Immediate), Extension::Immediate(immediate), part)
                    }
                    (true, None) => (message(Action::Write, With::Nothing), Extension::Remote(reth), part),
                    (false, None) => (message(Action::Write, With::Nothing), Extension::None, part),
                }
            }
            Op::Read(remote) => {
                let (offset, _) = part;
                let rest = reth(remote.advance(offset.into()), self.work.len - offset);
                (Opcode::RC_READ_REQUEST, Extension::Remote(rest), (0, 0))
            }
            Op::CompareSwap { remote, compare, swap } => {
                let Remote { va, rkey } = remote;
                let atomic = AtomicEth { va, rkey, swap_or_add: swap, compare };
                (Opcode::RC_COMPARE_SWAP, Extension::Atomic(atomic), (0, 0))
            }
            Op::FetchAdd { remote: Remote { va, rkey }, add } => {
                let atomic = AtomicEth { va, rkey, swap_or_add: add, compare: 0 };
                (Opcode::RC_FETCH_ADD, Extension::Atomic(atomic), (0, 0))
            }
        }
    }
}

fn reth(Remote { va, rkey }: Remote, len: u32) -> Reth {
    Reth { va, rkey, len }
}
