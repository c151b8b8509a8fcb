//! The headers that follow the base one: which, is the operation's business.

use super::aeth::Aeth;
use super::bytes::{array, be24, be32, be64};
use super::error::WireError;
use super::opcode::{Action, Meaning, Opcode, Position, Service, With};
use crate::types::{Qpn, Rkey};

/// The headers between the base one and the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extension {
    /// None.
    None,
    /// Immediate data (ImmDt).
    Immediate(u32),
    /// The key that the message invalidates (IETH).
    Invalidate(Rkey),
    /// Memory of the receiver (RETH).
    Remote(Reth),
    /// The same, with immediate data.
    RemoteImmediate(Reth, u32),
    /// An acknowledgment (AETH).
    Acknowledge(Aeth),
    /// An acknowledgment, and the value before an atomic (AtomicAckETH).
    AtomicAcknowledge(Aeth, u64),
    /// What an atomic shall do (AtomicETH).
    Atomic(AtomicEth),
    /// Where a datagram is from (DETH).
    Datagram(Deth),
    /// The same, with immediate data.
    DatagramImmediate(Deth, u32),
    /// 16 reserved bytes, of a congestion notification. A17.9.3.
    Congestion,
}

/// The RDMA extended header: memory of the receiver. IBA 9.3.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// Address there.
    pub va: u64,
    /// Key of the memory.
    pub rkey: Rkey,
    /// Bytes of the whole message.
    pub len: u32,
}

/// The atomic extended header: 8 bytes of the receiver's memory, and what becomes of them. IBA 9.3.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth {
    /// Address there.
    pub va: u64,
    /// Key of the memory.
    pub rkey: Rkey,
    /// The value to swap in, or to add.
    pub swap_or_add: u64,
    /// The value that must be there for a swap; 0 in a fetch-and-add.
    pub compare: u64,
}

/// The datagram extended header: where a datagram is from. IBA 9.3.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// The receiver's key.
    pub qkey: u32,
    /// The sender's queue pair.
    pub source: Qpn,
}

/// Which headers an operation has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    None,
    Immediate,
    Invalidate,
    Remote,
    RemoteImmediate,
    Acknowledge,
    AtomicAcknowledge,
    Atomic,
    Datagram,
    DatagramImmediate,
    Congestion,
}

impl Extension {
    /// Length of the longest, in bytes.
    pub const MAX_LEN: usize = AtomicEth::LEN;

    /// Reads those that an operation has from what follows the base header.
    ///
    /// # Errors
    /// [`WireError::Opcode`], [`WireError::Truncated`].
    #[inline]
    pub fn parse(opcode: Opcode, bytes: &[u8]) -> Result<Self, WireError> {
        let shape = Shape::of(opcode).ok_or(WireError::Opcode { opcode })?;
        Ok(match shape {
            Shape::None => Extension::None,
            Shape::Immediate => Extension::Immediate(u32::from_be_bytes(array(bytes, 0)?)),
            Shape::Invalidate => Extension::Invalidate(Rkey(u32::from_be_bytes(array(bytes, 0)?))),
            Shape::Remote => Extension::Remote(Reth::parse(array(bytes, 0)?)),
            Shape::RemoteImmediate => {
                let immediate = u32::from_be_bytes(array(bytes, Reth::LEN)?);
                Extension::RemoteImmediate(Reth::parse(array(bytes, 0)?), immediate)
            }
            Shape::Acknowledge => Extension::Acknowledge(Aeth::parse(array(bytes, 0)?)),
            Shape::AtomicAcknowledge => {
                let original = u64::from_be_bytes(array(bytes, Aeth::LEN)?);
                Extension::AtomicAcknowledge(Aeth::parse(array(bytes, 0)?), original)
            }
            Shape::Atomic => Extension::Atomic(AtomicEth::parse(array(bytes, 0)?)),
            Shape::Datagram => Extension::Datagram(Deth::parse(array(bytes, 0)?)),
            Shape::DatagramImmediate => {
                let immediate = u32::from_be_bytes(array(bytes, Deth::LEN)?);
                Extension::DatagramImmediate(Deth::parse(array(bytes, 0)?), immediate)
            }
            Shape::Congestion => array::<CONGESTION_LEN>(bytes, 0).map(|_reserved| Extension::Congestion)?,
        })
    }

    /// Puts its bytes at the beginning of `to`.
    #[inline]
    pub fn emit(&self, to: &mut [u8; Extension::MAX_LEN]) {
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            to[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        match self {
            Extension::None => {}
            Extension::Immediate(immediate) => put(&immediate.to_be_bytes()),
            Extension::Invalidate(rkey) => put(&rkey.0.to_be_bytes()),
            Extension::Remote(reth) => put(&reth.emit()),
            Extension::RemoteImmediate(reth, immediate) => {
                put(&reth.emit());
                put(&immediate.to_be_bytes());
            }
            Extension::Acknowledge(aeth) => put(&aeth.emit()),
            Extension::AtomicAcknowledge(aeth, original) => {
                put(&aeth.emit());
                put(&original.to_be_bytes());
            }
            Extension::Atomic(atomic) => put(&atomic.emit()),
            Extension::Datagram(deth) => put(&deth.emit()),
            Extension::DatagramImmediate(deth, immediate) => {
                put(&deth.emit());
                put(&immediate.to_be_bytes());
            }
            Extension::Congestion => put(&[0; CONGESTION_LEN]),
        }
    }

    /// Bytes on the wire.
    #[inline]
    pub const fn wire_len(&self) -> usize {
        self.shape().len()
    }

    /// True if these are the headers of that operation.
    #[inline]
    pub fn goes_with(&self, opcode: Opcode) -> bool {
        Shape::of(opcode) == Some(self.shape())
    }

    #[inline]
    const fn shape(&self) -> Shape {
        match self {
            Extension::None => Shape::None,
            Extension::Immediate(_) => Shape::Immediate,
            Extension::Invalidate(_) => Shape::Invalidate,
            Extension::Remote(_) => Shape::Remote,
            Extension::RemoteImmediate(..) => Shape::RemoteImmediate,
            Extension::Acknowledge(_) => Shape::Acknowledge,
            Extension::AtomicAcknowledge(..) => Shape::AtomicAcknowledge,
            Extension::Atomic(_) => Shape::Atomic,
            Extension::Datagram(_) => Shape::Datagram,
            Extension::DatagramImmediate(..) => Shape::DatagramImmediate,
            Extension::Congestion => Shape::Congestion,
        }
    }
}

impl Shape {
    /// IBA 9.2.1, table 38, its column of headers.
    #[inline]
    const fn of(opcode: Opcode) -> Option<Self> {
        let Some(Meaning { service, action, position, with }) = opcode.meaning() else { return None };
        Some(match (action, with) {
            (Action::Send, With::Nothing) if matches!(service, Service::Ud) => Shape::Datagram,
            (Action::Send, With::Immediate) if matches!(service, Service::Ud) => Shape::DatagramImmediate,
            (Action::Write, With::Nothing) if position.is_first() => Shape::Remote,
            (Action::Write, With::Immediate) if position.is_first() => Shape::RemoteImmediate,
            (Action::Send | Action::Write, With::Nothing) => Shape::None,
            (Action::Send | Action::Write, With::Immediate) => Shape::Immediate,
            (Action::Send | Action::Write, With::Invalidate) => Shape::Invalidate,
            (Action::ReadRequest, _) => Shape::Remote,
            (Action::ReadResponse, _) if matches!(position, Position::Middle) => Shape::None,
            (Action::ReadResponse | Action::Acknowledge, _) => Shape::Acknowledge,
            (Action::AtomicAcknowledge, _) => Shape::AtomicAcknowledge,
            (Action::CompareSwap | Action::FetchAdd, _) => Shape::Atomic,
            (Action::CongestionNotification, _) => Shape::Congestion,
            // What they have goes for payload, which nobody looks at.
            (Action::Unsupported, _) => Shape::None,
        })
    }

    const fn len(self) -> usize {
        match self {
            Shape::None => 0,
            Shape::Immediate | Shape::Invalidate => 4,
            Shape::Remote => Reth::LEN,
            Shape::RemoteImmediate => Reth::LEN + 4,
            Shape::Acknowledge => Aeth::LEN,
            Shape::AtomicAcknowledge => Aeth::LEN + 8,
            Shape::Atomic => AtomicEth::LEN,
            Shape::Datagram => Deth::LEN,
            Shape::DatagramImmediate => Deth::LEN + 4,
            Shape::Congestion => CONGESTION_LEN,
        }
    }
}

impl Reth {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    /// From its bytes.
    #[inline]
    pub const fn parse(bytes: [u8; Reth::LEN]) -> Self {
        Reth { va: be64(&bytes, 0), rkey: Rkey(be32(&bytes, 8)), len: be32(&bytes, 12) }
    }

    /// Its bytes.
    #[inline]
    pub fn emit(&self) -> [u8; Reth::LEN] {
        let mut bytes = [0; Reth::LEN];
        bytes[..8].copy_from_slice(&self.va.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.0.to_be_bytes());
        bytes[12..].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }
}

impl AtomicEth {
    /// Bytes on the wire.
    pub const LEN: usize = 28;

    /// From its bytes.
    #[inline]
    pub const fn parse(bytes: [u8; AtomicEth::LEN]) -> Self {
        AtomicEth {
            va: be64(&bytes, 0),
            rkey: Rkey(be32(&bytes, 8)),
            swap_or_add: be64(&bytes, 12),
            compare: be64(&bytes, 20),
        }
    }

    /// Its bytes.
    #[inline]
    pub fn emit(&self) -> [u8; AtomicEth::LEN] {
        let mut bytes = [0; AtomicEth::LEN];
        bytes[..8].copy_from_slice(&self.va.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.0.to_be_bytes());
        bytes[12..20].copy_from_slice(&self.swap_or_add.to_be_bytes());
        bytes[20..].copy_from_slice(&self.compare.to_be_bytes());
        bytes
    }
}

impl Deth {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// From its bytes. The reserved one is ignored.
    #[inline]
    pub const fn parse(bytes: [u8; Deth::LEN]) -> Self {
        Deth { qkey: be32(&bytes, 0), source: Qpn(be24(&bytes, 5)) }
    }

    /// Its bytes.
    #[inline]
    pub fn emit(&self) -> [u8; Deth::LEN] {
        let [_, qpn0, qpn1, qpn2] = self.source.0.to_be_bytes();
        let [qkey0, qkey1, qkey2, qkey3] = self.qkey.to_be_bytes();
        [qkey0, qkey1, qkey2, qkey3, 0, qpn0, qpn1, qpn2]
    }
}

const CONGESTION_LEN: usize = 16;
