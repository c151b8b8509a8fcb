//! What stands in front of every message: 32 bytes, little-endian. A checked view, and the owned form.

use qpair_verbs::{RemoteSlice, Rkey};
use thiserror::Error;

use super::rail_keys::{KEYS_BYTES, RailKeys, RemoteMemory};

/// Version of the header, of what messages mean, and of the connection manager's hello: that is what its preface tells.
pub const PROTOCOL_VERSION: u8 = 3;
/// Bytes of a header.
pub const HEADER_BYTES: usize = 32;
/// Bytes that follow the header of a ready-to-send at least.
pub const OFFER_BYTES: usize = 16;
/// Bytes that follow the header of one whose payload comes in parts.
pub const PARTS_BYTES: usize = 4;
/// Bytes that follow the header of a ready-to-send at most: with a key for each of eight rails.
pub const OFFER_LIMIT: usize = OFFER_BYTES + KEYS_BYTES;

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
    /// The sender of a ready-to-send takes it back, if it is not being read yet; the tag field holds its message id.
    Cancel = 6,
    /// The answer to a cancel: the payload will not be read; the tag field holds its message id.
    Withdrawn = 7,
    /// The payload of a ready-to-send that comes in parts is wanted: these may be offered; the tag field holds its message id.
    Want = 8,
}

/// What the contents of an eager message or a ready-to-send are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Class {
    /// A tagged message, which a posted receive may take.
    Tagged = 0,
    /// An active message: the port field names its handler, the tag field is the handler's to use.
    Active = 1,
    /// A request: the port field names its handler, the tag field the call.
    Request = 2,
    /// The answer to a request: the tag field names the call, the port field is 0 or says that it was declined.
    Response = 3,
    /// Part of a stream: the tag field names the stream, the port field says whether it is the last.
    Stream = 4,
    /// A notification: the port field says what the tag field holds, a value or a counter and what to add to it.
    Notice = 5,
    /// Part of a payload that comes in parts: the tag field holds its message id, the port field is 0, or 1 of a part that takes no
    /// credit. Parts are offered in order.
    Part = 6,
}

/// What a message is about, beside its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// What the contents are.
    pub class: Class,
    /// A small number, by class.
    pub port: u16,
    /// A tag or another number, by class.
    pub tag: u64,
}

/// A message header.
///
/// | bytes | field |
/// |---|---|
/// | 0 | version |
/// | 1 | kind in the low half, class in the high half |
/// | 2..4 | port |
/// | 4..8 | session epoch of the sender |
/// | 8..12 | sequence, counts the messages of a session but those that carry credits alone |
/// | 12..16 | credits: receive slots given to the peer since the session began, cumulative |
/// | 16..24 | tag, or message id |
/// | 24..30 | payload length in bytes |
/// | 30..32 | acknowledged: messages of the peer that came so far, modulo 2^16 |
///
/// Kinds other than eager and ready-to-send have class and port 0, but for a finished or want that takes no credit: its port is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the message is.
    pub kind: Kind,
    /// What it is about; in kinds other than eager and ready-to-send, the tag is a message id or nothing.
    pub envelope: Envelope,
    /// Session epoch of the sender.
    pub epoch: u32,
    /// Running number of the message, modulo 2^32.
    pub sequence: u32,
    /// Receive slots given to the peer so far, modulo 2^32.
    pub credits: u32,
    /// Payload length in bytes, below 2^48.
    pub length: u64,
    /// Messages of the peer that came so far, modulo 2^16.
    pub acknowledged: u16,
}

/// The bytes of a header, known to be of this version and of a known kind.
#[derive(Clone, Copy, Debug)]
pub struct HeaderView<'a> {
    bytes: &'a [u8; HEADER_BYTES],
    kind: Kind,
    class: Class,
}

/// What a ready-to-send offers: where the payload can be read, and under which message id. Of one that comes in parts the
/// message id alone follows the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Address of the payload, in the sender's numbering.
    pub addr: u64,
    /// Key for reading it.
    pub rkey: Rkey,
    /// Message id, to be named when it was read.
    pub id: u32,
    /// Keys for reading it over other rails.
    pub rails: RailKeys,
    /// It can not be read yet: parts of it are offered once the peer wants it, and nothing else says where.
    pub in_parts: bool,
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
    /// A class that this version does not know, or one where there may be none.
    #[error("a message of unknown class {0}; use the same release on both sides")]
    Class(u8),
    /// A port where there may be none.
    #[error("a message of this kind has no port, this one has {0:#06x}; use the same release on both sides")]
    Port(u16),
    /// The header's length differs from the bytes received.
    #[error("the header says {said} payload bytes, {got} came")]
    Length {
        /// Length in the header.
        said: u64,
        /// Bytes after the header.
        got: usize,
    },
    /// A payload that can not be read over its first rail, or over one that is none.
    #[error("a payload is offered over rails {0:#b}")]
    Rails(u32),
}

impl Kind {
    /// True if such a message has contents of the application's, and a class.
    #[inline(always)]
    pub const fn has_contents(self) -> bool {
        matches!(self, Kind::Eager | Kind::ReadyToSend)
    }

    /// True if such a message is counted by the sequence.
    #[inline(always)]
    pub const fn is_sequenced(self) -> bool {
        !matches!(self, Kind::Credit)
    }

    const fn from_code(code: u8) -> Option<Kind> {
        match code {
            1 => Some(Kind::Eager),
            2 => Some(Kind::ReadyToSend),
            3 => Some(Kind::Finished),
            4 => Some(Kind::Credit),
            5 => Some(Kind::Close),
            6 => Some(Kind::Cancel),
            7 => Some(Kind::Withdrawn),
            8 => Some(Kind::Want),
            _ => None,
        }
    }
}

impl Class {
    const fn from_code(code: u8) -> Option<Class> {
        match code {
            0 => Some(Class::Tagged),
            1 => Some(Class::Active),
            2 => Some(Class::Request),
            3 => Some(Class::Response),
            4 => Some(Class::Stream),
            5 => Some(Class::Notice),
            6 => Some(Class::Part),
            _ => None,
        }
    }
}

impl Envelope {
    /// Of a message without class and port.
    pub const fn bare(tag: u64) -> Self {
        Envelope { class: Class::Tagged, port: 0, tag }
    }

    /// Of part of the payload of that message id.
    pub(crate) const fn part(id: u32) -> Self {
        Envelope { class: Class::Part, port: 0, tag: id as u64 }
    }

    /// The same of a part, a finished or a want that takes no credit.
    pub(crate) const fn uncredited(self) -> Self {
        Envelope { port: 1, ..self }
    }

    /// True of a part that takes no credit: at most one is under way, so that what the peer wants comes to it even while it gives
    /// none, because of other messages that it does not want yet.
    #[inline(always)]
    pub(crate) const fn is_uncredited(self) -> bool {
        matches!(self.class, Class::Part) && self.port != 0
    }

    /// True if the message is no operation of the application's: it stands for one, or is part of one.
    pub(crate) fn is_own(self) -> bool {
        self.is_stand_in() || self.class == Class::Part
    }

    /// What the messages have in common that are delivered in the order in which they are sent: a tag, a handler, a stream.
    pub(crate) const fn channel(self) -> Envelope {
        let Envelope { class, port, tag } = self;
        match class {
            Class::Tagged | Class::Response | Class::Stream | Class::Part => Envelope { class, port: 0, tag },
            Class::Active | Class::Request => Envelope { class, port, tag: 0 },
            Class::Notice => Envelope { class, port: 0, tag: 0 },
        }
    }
}

/// True if class and port are as those of a message without contents are.
#[inline(always)]
fn plain(bytes: &[u8; HEADER_BYTES], kind: Kind) -> bool {
    let port = u16::from_le_bytes([bytes[2], bytes[3]]);
    bytes[1] >> 4 == 0 && port <= u16::from(matches!(kind, Kind::Finished | Kind::Want))
}

impl<'a> HeaderView<'a> {
    /// Checks length, version, kind, class and port.
    ///
    /// # Errors
    /// [`WireError`] names the field that is not valid.
    #[inline(always)]
    pub fn new_checked(bytes: &'a [u8]) -> Result<Self, WireError> {
        let Some((bytes, _)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return Err(WireError::Short { len: bytes.len(), needed: HEADER_BYTES });
        };
        match (Kind::from_code(bytes[1] & 0xf), Class::from_code(bytes[1] >> 4)) {
            (Some(kind), Some(class))
                if bytes[0] == PROTOCOL_VERSION && (kind.has_contents() || plain(bytes, kind)) =>
            {
                Ok(HeaderView { bytes, kind, class })
            }
            _ => Err(Self::fault(bytes)),
        }
    }

    #[cold]
    fn fault(bytes: &[u8; HEADER_BYTES]) -> WireError {
        if bytes[0] != PROTOCOL_VERSION {
            return WireError::Version(bytes[0]);
        }
        let (code, class) = (bytes[1] & 0xf, bytes[1] >> 4);
        match Kind::from_code(code) {
            None => WireError::Kind(code),
            Some(kind) if class != 0 && !kind.has_contents() => WireError::Class(class),
            Some(_) if Class::from_code(class).is_none() => WireError::Class(class),
            Some(_) => WireError::Port(u16::from_le_bytes([bytes[2], bytes[3]])),
        }
    }

    #[inline(always)]
    fn word(&self, index: usize) -> u64 {
        let (words, _) = self.bytes.as_chunks::<8>();
        u64::from_le_bytes(words[index])
    }
}

impl Header {
    /// True if such a message takes one of the slots that credits count; the others have slots of their own.
    #[inline(always)]
    pub const fn takes_credit(&self) -> bool {
        match self.kind {
            Kind::Credit | Kind::Close => false,
            Kind::ReadyToSend => !self.envelope.is_uncredited(),
            Kind::Finished | Kind::Want => self.envelope.port == 0,
            _ => true,
        }
    }

    /// Reads a checked header.
    #[inline(always)]
    pub fn parse(view: &HeaderView<'_>) -> Header {
        let (first, second, last) = (view.word(0), view.word(1), view.word(3));
        Header {
            kind: view.kind,
            envelope: Envelope { class: view.class, port: (first >> 16) as u16, tag: view.word(2) },
            epoch: (first >> 32) as u32,
            sequence: second as u32,
            credits: (second >> 32) as u32,
            length: last & LENGTH_MASK,
            acknowledged: (last >> LENGTH_BITS) as u16,
        }
    }

    /// Writes the header.
    #[inline(always)]
    pub fn emit(&self, into: &mut [u8; HEADER_BYTES]) {
        debug_assert!(self.length <= LENGTH_MASK);
        let Envelope { class, port, tag } = self.envelope;
        let code = self.kind as u64 | (class as u64) << 4;
        let first = u64::from(PROTOCOL_VERSION) | code << 8 | u64::from(port) << 16 | u64::from(self.epoch) << 32;
        let second = u64::from(self.sequence) | u64::from(self.credits) << 32;
        let (words, _) = into.as_chunks_mut::<8>();
        words[0] = first.to_le_bytes();
        words[1] = second.to_le_bytes();
        words[2] = tag.to_le_bytes();
        words[3] = (self.length | u64::from(self.acknowledged) << LENGTH_BITS).to_le_bytes();
    }
}

impl Offer {
    /// Of a payload that comes in parts.
    pub(crate) fn in_parts(id: u32) -> Offer {
        Offer { addr: 0, rkey: Rkey(0), id, rails: RailKeys::default(), in_parts: true }
    }

    /// Reads the bytes that follow the header of a ready-to-send.
    ///
    /// # Errors
    /// [`WireError::Short`], [`WireError::Rails`].
    pub fn parse(bytes: &[u8]) -> Result<Offer, WireError> {
        if let Ok(id) = <[u8; PARTS_BYTES]>::try_from(bytes) {
            return Ok(Offer::in_parts(u32::from_le_bytes(id)));
        }
        let Some((bytes, rest)) = bytes.split_first_chunk::<OFFER_BYTES>() else {
            return Err(WireError::Short { len: bytes.len(), needed: OFFER_BYTES });
        };
        let (words, _) = bytes.as_chunks::<8>();
        let second = u64::from_le_bytes(words[1]);
        let (addr, rkey, id) = (u64::from_le_bytes(words[0]), Rkey(second as u32), (second >> 32) as u32);
        Ok(Offer { addr, rkey, id, rails: RailKeys::parse(rest)?, in_parts: false })
    }

    /// Writes the bytes that follow the header. Gives them.
    pub fn emit<'a>(&self, into: &'a mut [u8; OFFER_LIMIT]) -> &'a [u8] {
        if self.in_parts {
            into[..PARTS_BYTES].copy_from_slice(&self.id.to_le_bytes());
            return &into[..PARTS_BYTES];
        }
        let (words, _) = into.as_chunks_mut::<8>();
        words[0] = self.addr.to_le_bytes();
        words[1] = (u64::from(self.rkey.0) | u64::from(self.id) << 32).to_le_bytes();
        let keys = into.last_chunk_mut::<KEYS_BYTES>().map_or(0, |keys| self.rails.emit(keys));
        &into[..OFFER_BYTES + keys]
    }

    /// The payload, whose length the header says, as a range to read.
    pub fn remote(&self, len: u64) -> RemoteMemory {
        RemoteMemory { remote: RemoteSlice { addr: self.addr, len, rkey: self.rkey }, rails: self.rails }
    }
}

const LENGTH_BITS: u32 = 48;
const LENGTH_MASK: u64 = (1 << LENGTH_BITS) - 1;

const _: () = assert!(HEADER_BYTES == 4 * size_of::<u64>() && OFFER_BYTES == 2 * size_of::<u64>());
