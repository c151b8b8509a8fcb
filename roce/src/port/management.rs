//! Queue pair 1, where the connection manager's datagrams go. IBA 10.2.5, 12.

use std::collections::VecDeque;

use super::slot::Route;
use crate::types::{Psn, Qpn};
use crate::wire::cm::{LEN, QKEY};
use crate::wire::{Addresses, Bth, Deth, Extension, Headers, Opcode, Packet};

/// Datagrams that came, and that shall go.
#[derive(Debug, Default)]
pub(super) struct Management {
    came: VecDeque<(Addresses, [u8; LEN])>,
    going: VecDeque<(Route, [u8; LEN])>,
    psn: u32,
}

impl Management {
    /// Takes a datagram in, from the sender's addresses; false if it is none, or too many wait.
    pub(super) fn take(&mut self, from: Addresses, packet: &Packet<'_>) -> bool {
        let Extension::Datagram(Deth { qkey: QKEY, source: Qpn(1) }) = packet.headers.extension else { return false };
        let Ok(bytes) = packet.payload.try_into() else { return false };
        let has_room = self.came.len() < WAITING;
        if has_room {
            self.came.push_back((from, bytes));
        }
        has_room
    }

    pub(super) fn next(&mut self) -> Option<(Addresses, [u8; LEN])> {
        self.came.pop_front()
    }

    pub(super) fn send(&mut self, route: Route, bytes: [u8; LEN]) -> bool {
        let has_room = self.going.len() < WAITING;
        if has_room {
            self.going.push_back((route, bytes));
        }
        has_room
    }

    /// True if no datagram is to go.
    pub(super) fn is_quiet(&self) -> bool {
        self.going.is_empty()
    }

    /// Makes the next packet in `to`, but for its CRC; its length, and where it goes.
    pub(super) fn make(&mut self, to: &mut [u8]) -> Option<(usize, Route)> {
        let (route, bytes) = self.going.pop_front()?;
        let bth = Bth::new(Opcode::UD_SEND_ONLY, Qpn(1), Psn::new(self.psn));
        let extension = Extension::Datagram(Deth { qkey: QKEY, source: Qpn(1) });
        let headers = Headers { bth, extension }.emit(LEN).ok()?;
        let whole = headers.len() + LEN;
        let (head, rest) = to.get_mut(..whole)?.split_at_mut(headers.len());
        head.copy_from_slice(&headers);
        rest.copy_from_slice(&bytes);
        self.psn = self.psn.wrapping_add(1);
        Some((whole, route))
    }
}

/// Datagrams that wait, in each direction. A sender repeats those that are dropped.
const WAITING: usize = 256;
