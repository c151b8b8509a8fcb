//! Whole packets: headers, payload, padding, CRC.

use std::ops::Deref;

use super::bth::Bth;
use super::bytes::array;
use super::error::WireError;
use super::extension::Extension;

/// The headers of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// The base header.
    pub bth: Bth,
    /// Those that its operation has beside it.
    pub extension: Extension,
}

/// The bytes of headers.
#[derive(Clone, Copy, Debug)]
pub struct HeaderBytes {
    bytes: [u8; Headers::MAX_LEN],
    len: usize,
}

/// A packet, as the payload of a UDP datagram has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Its headers.
    pub headers: Headers,
    /// What it carries, without padding.
    pub payload: &'a [u8],
    /// All that the CRC covers of it: everything but the CRC.
    pub covered: &'a [u8],
    /// The CRC that it says it has. Nothing here checks it: that takes the headers around it.
    pub icrc: u32,
}

impl<'a> Packet<'a> {
    /// Reads a packet.
    ///
    /// # Errors
    /// [`WireError`]: it is none.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let bth = Bth::parse(bytes)?;
        let rest = &bytes[Bth::LEN..];
        let extension = Extension::parse(bth.opcode, rest)?;
        let before = Bth::LEN + extension.wire_len();
        let after = usize::from(bth.pad) + ICRC_LEN;
        let truncated = WireError::Truncated { needed: before + after, len: bytes.len() };
        let end = bytes.len().checked_sub(after).ok_or(truncated)?;
        let payload = bytes.get(before..end).ok_or(truncated)?;
        if !bytes.len().is_multiple_of(4) {
            return Err(WireError::Unaligned { len: bytes.len() });
        }
        let (covered, _) = bytes.split_at(bytes.len() - ICRC_LEN);
        let icrc = u32::from_le_bytes(array(bytes, covered.len())?);
        Ok(Packet { headers: Headers { bth, extension }, payload, covered, icrc })
    }
}

impl Headers {
    /// Length of the longest, in bytes.
    pub const MAX_LEN: usize = Bth::LEN + Extension::MAX_LEN;

    /// Bytes on the wire.
    #[inline]
    pub const fn wire_len(&self) -> usize {
        Bth::LEN + self.extension.wire_len()
    }

    /// The bytes, with the padding told that `payload_len` bytes take.
    ///
    /// # Errors
    /// [`WireError::Mismatch`]: the extension is not that of the operation.
    #[inline]
    pub fn emit(&self, payload_len: usize) -> Result<HeaderBytes, WireError> {
        if !self.extension.goes_with(self.bth.opcode) {
            return Err(WireError::Mismatch { opcode: self.bth.opcode });
        }
        let mut bytes = [0; Headers::MAX_LEN];
        let (bth, extension) = bytes.split_at_mut(Bth::LEN);
        bth.copy_from_slice(&Bth { pad: padding(payload_len) as u8, ..self.bth }.emit());
        if let Some(extension) = extension.first_chunk_mut() {
            self.extension.emit(extension);
        }
        Ok(HeaderBytes { bytes, len: self.wire_len() })
    }

    /// Appends a packet but for its CRC: the headers, the payload, its padding.
    ///
    /// # Errors
    /// As [`emit`](Headers::emit).
    pub fn emit_packet(&self, payload: &[u8], to: &mut Vec<u8>) -> Result<(), WireError> {
        to.extend_from_slice(&self.emit(payload.len())?);
        to.extend_from_slice(payload);
        to.extend_from_slice(&[0; 3][..padding(payload.len())]);
        Ok(())
    }
}

impl Deref for HeaderBytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Bytes after a payload of that length, which make it a multiple of 4.
#[inline]
pub const fn padding(payload_len: usize) -> usize {
    payload_len.wrapping_neg() & 3
}

/// Bytes of the CRC that ends each packet.
pub const ICRC_LEN: usize = 4;
