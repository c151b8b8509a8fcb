//! What stands in front of every message: 32 bytes, little-endian. A checked view, and the owned form.

use qpair_verbs::{RemoteSlice, Rkey};
use thiserror::Error;

/// Version of the header and of the connection manager's hello.
pub const PROTOCOL_VERSION: u8 = 1;
/// Bytes of a header.
pub const HEADER_BYTES: usize = 32;
/// Bytes that follow the header of a ready-to-send.
pub const OFFER_BYTES: usize = 16;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The payload follows the header.
    Eager = 1,
    /// Ready to send: an [`Offer`] follows; the payload waits in the sender's memory to be read.
    ReadyToSend = 2,
    /// The payload of a ready-to-send was read; the tag field holds its message id.
    Finished = 3,
    /// Nothing but the credits in the header.
    Credit = 4,
    /// The sender sends nothing more.
    Close = 5,
}

/// A message header.
///
/// | bytes | field |
/// |---|---|
/// | 0 | version |
/// | 1 | kind |
/// | 2..4 | flags, zero in this version |
/// | 4..8 | session epoch of the sender |
/// | 8..12 | sequence, counts all messages of a session |
/// | 12..16 | credits: receive slots given to the peer since the session began, cumulative |
/// | 16..24 | tag, or message id |
/// | 24..32 | payload length in bytes |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the message is.
    pub kind: Kind,
    /// Session epoch of the sender.
    pub epoch: u32,
    /// Running number of the message, modulo 2^32.
    pub sequence: u32,
    /// Receive slots given to the peer so far, modulo 2^32.
    pub credits: u32,
    /// Tag, or message id in [`Kind::Finished`].
    pub tag: u64,
    /// Payload length in bytes.
    pub length: u64,
}

/// The bytes of a header, known to be of this version and of a known kind.
#[derive(Clone, Copy, Debug)]
pub struct HeaderView<'a> {
    bytes: &'a [u8; HEADER_BYTES],
    kind: Kind,
}

/// What a ready-to-send offers: where the payload can be read, and under which message id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Address of the payload, in the sender's numbering.
    pub addr: u64,
    /// Key for reading it.
    pub rkey: Rkey,
    /// Message id, to be named when it was read.
    pub id: u32,
}

/// Bytes that are no message of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WireError {
    /// Shorter than it must be.
    #[error("a message of {len} bytes is too short; {needed} are needed")]
    Short {
        /// Bytes there are.
        len: usize,
        /// Bytes there must be.
        needed: usize,
    },
    /// Another protocol version.
    #[error("the peer speaks protocol version {0}, this side {PROTOCOL_VERSION}; use the same release on both sides")]
    Version(u8),
    /// A kind that this version does not know.
    #[error("a message of unknown kind {0}; use the same release on both sides")]
    Kind(u8),
    /// Flags that this version does not know.
    #[error("unknown message flags {0:#06x}; use the same release on both sides")]
    Flags(u16),
    /// The header's length differs from the bytes received.
    #[error("the header says {said} payload bytes, {got} came")]
    Length {
        /// Length in the header.
        said: u64,
        /// Bytes after the header.
        got: usize,
    },
}

impl Kind {
    /// True if such a message takes one of the slots that credits count; the others have slots of their own.
    #[inline(always)]
    pub const fn takes_credit(self) -> bool {
        matches!(self, Kind::Eager | Kind::ReadyToSend | Kind::Finished)
    }

    const fn from_code(code: u8) -> Option<Kind> {
        match code {
            1 => Some(Kind::Eager),
            2 => Some(Kind::ReadyToSend),
            3 => Some(Kind::Finished),
            4 => Some(Kind::Credit),
            5 => Some(Kind::Close),
            _ => None,
        }
    }
}

impl<'a> HeaderView<'a> {
    /// Checks length, version, flags and kind.
    ///
    /// # Errors
    /// [`WireError`] names the field that is not valid.
    #[inline(always)]
    pub fn new_checked(bytes: &'a [u8]) -> Result<Self, WireError> {
        let Some((bytes, _)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return Err(WireError::Short { len: bytes.len(), needed: HEADER_BYTES });
        };
        match Kind::from_code(bytes[1]) {
            Some(kind) if bytes[0] == PROTOCOL_VERSION && bytes[2] == 0 && bytes[3] == 0 => {
                Ok(HeaderView { bytes, kind })
            }
            _ => Err(Self::fault(bytes)),
        }
    }

    #[cold]
    fn fault(bytes: &[u8; HEADER_BYTES]) -> WireError {
        let flags = u16::from_le_bytes([bytes[2], bytes[3]]);
        match bytes[0] {
            PROTOCOL_VERSION if flags == 0 => WireError::Kind(bytes[1]),
            PROTOCOL_VERSION => WireError::Flags(flags),
            version => WireError::Version(version),
        }
    }

    #[inline(always)]
    fn word(&self, index: usize) -> u64 {
        let (words, _) = self.bytes.as_chunks::<8>();
        u64::from_le_bytes(words[index])
    }
}

impl Header {
    /// Reads a checked header.
    #[inline(always)]
    pub fn parse(view: &HeaderView<'_>) -> Header {
        let (first, second) = (view.word(0), view.word(1));
        Header {
            kind: view.kind,
            epoch: (first >> 32) as u32,
            sequence: second as u32,
            credits: (second >> 32) as u32,
            tag: view.word(2),
            length: view.word(3),
        }
    }

    /// Writes the header.
    #[inline(always)]
    pub fn emit(&self, into: &mut [u8; HEADER_BYTES]) {
        let first = u64::from(PROTOCOL_VERSION) | (self.kind as u64) << 8 | u64::from(self.epoch) << 32;
        let second = u64::from(self.sequence) | u64::from(self.credits) << 32;
        let (words, _) = into.as_chunks_mut::<8>();
        words[0] = first.to_le_bytes();
        words[1] = second.to_le_bytes();
        words[2] = self.tag.to_le_bytes();
        words[3] = self.length.to_le_bytes();
    }
}

impl Offer {
    /// Reads the bytes that follow the header of a ready-to-send.
    ///
    /// # Errors
    /// [`WireError::Short`].
    pub fn parse(bytes: &[u8]) -> Result<Offer, WireError> {
        let Some((bytes, _)) = bytes.split_first_chunk::<OFFER_BYTES>() else {
            return Err(WireError::Short { len: bytes.len(), needed: OFFER_BYTES });
        };
        let (words, _) = bytes.as_chunks::<8>();
        let second = u64::from_le_bytes(words[1]);
        Ok(Offer { addr: u64::from_le_bytes(words[0]), rkey: Rkey(second as u32), id: (second >> 32) as u32 })
    }

    /// Writes the bytes that follow the header.
    pub fn emit(&self, into: &mut [u8; OFFER_BYTES]) {
        let (words, _) = into.as_chunks_mut::<8>();
        words[0] = self.addr.to_le_bytes();
        words[1] = (u64::from(self.rkey.0) | u64::from(self.id) << 32).to_le_bytes();
    }

    /// The payload, whose length the header says, as a range to read.
    pub fn remote(&self, len: u64) -> RemoteSlice {
        RemoteSlice { addr: self.addr, len, rkey: self.rkey }
    }
}

const _: () = assert!(HEADER_BYTES == 4 * size_of::<u64>() && OFFER_BYTES == 2 * size_of::<u64>());
