//! A packet about to be sent.

use crate::host::AccessError;
use crate::types::Mtu;
use crate::wire::{Headers, ICRC_LEN, padding};

/// Bytes of the longest packet with such an MTU, with its CRC.
pub(super) const fn longest_packet(mtu: Mtu) -> usize {
    Headers::MAX_LEN + mtu.bytes() as usize + ICRC_LEN
}

/// Bytes of the longest packet of any queue pair, with its CRC.
pub const LONGEST_PACKET: usize = longest_packet(Mtu::B4096);

/// Requests in a send queue, where nothing else is said: as perftest's `tx-depth`.
pub(super) const SEND_DEPTH: u32 = 128;

/// A packet about to be sent: its headers, and where its payload comes from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outgoing<P> {
    pub(super) headers: Headers,
    /// Memory, and where in it the payload begins.
    pub(super) payload: (P, u32),
    /// Bytes of the payload.
    pub(super) len: u32,
}

impl<P: Copy> Outgoing<P> {
    /// Puts the packet into `to`, which is long enough, but for its CRC, with a payload by `fill`; its length.
    ///
    /// # Errors
    /// What `fill` says.
    pub(super) fn emit(
        &self,
        to: &mut [u8],
        fill: impl FnOnce(P, u32, &mut [u8]) -> Result<(), AccessError>,
    ) -> Result<usize, AccessError> {
        let (len, (from, offset)) = (self.len as usize, self.payload);
        // The headers are made with their operation, so that they go together.
        let Ok(headers) = self.headers.emit(len) else { return Ok(0) };
        let (head, rest) = to.split_at_mut(headers.len());
        head.copy_from_slice(&headers);
        let (payload, rest) = rest.split_at_mut(len);
        if len > 0 {
            fill(from, offset, payload)?;
        }
        rest[..padding(len)].fill(0);
        Ok(headers.len() + len + padding(len))
    }
}
