//! The packets of a SEND or WRITE. IBA 9.7.3.1, and 9.8.2.1 for unreliable connections.

use crate::types::Mtu;
use crate::wire::{Action, Extension, Opcode, Position, Reth, Service, With};
use crate::work::{Extra, Op};

/// Packets that `len` bytes take.
pub(super) const fn packets(len: u32, mtu: Mtu) -> u32 {
    let packets = len.div_ceil(mtu.bytes());
    if packets == 0 { 1 } else { packets }
}

/// Where the bytes of packet `packet` begin, and how many they are. It is one of those that the message takes.
pub(super) fn part(len: u32, packet: u32, mtu: Mtu) -> (u32, u32) {
    let offset = packet * mtu.bytes();
    (offset, (len - offset).min(mtu.bytes()))
}

/// Operation and headers of the packet that has that place in a SEND or WRITE of `len` bytes; `None` where the service has
/// no such packet.
pub(super) fn headers(service: Service, op: Op, len: u32, position: Position) -> Option<(Opcode, Extension)> {
    let (action, remote, extra) = match op {
        Op::Send(extra) => (Action::Send, None, extra),
        Op::Write(remote, immediate) => {
            (Action::Write, Some(remote), immediate.map_or(Extra::Nothing, Extra::Immediate))
        }
        Op::Read(_) | Op::CompareSwap { .. } | Op::FetchAdd { .. } => return None,
    };
    let extra = if position.is_last() { extra } else { Extra::Nothing };
    let with = match extra {
        Extra::Nothing => With::Nothing,
        Extra::Immediate(_) => With::Immediate,
        Extra::Invalidate(_) => With::Invalidate,
    };
    let reth = remote.filter(|_| position.is_first()).map(|remote| Reth { va: remote.va, rkey: remote.rkey, len });
    let extension = match (reth, extra) {
        (None, Extra::Nothing) => Extension::None,
        (None, Extra::Immediate(immediate)) => Extension::Immediate(immediate),
        (None, Extra::Invalidate(rkey)) => Extension::Invalidate(rkey),
        (Some(reth), Extra::Nothing) => Extension::Remote(reth),
        (Some(reth), Extra::Immediate(immediate)) => Extension::RemoteImmediate(reth, immediate),
        (Some(_), Extra::Invalidate(_)) => return None,
    };
    Opcode::of_message(service, action, position, with).map(|opcode| (opcode, extension))
}
