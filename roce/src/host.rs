//! What an engine asks of those around it: memory, receives, and to take note of what is done.

use crate::types::{Qpn, Rkey};
use crate::wire::Credits;
use crate::work::{Completion, Receive};

/// The device around an engine. Its methods are called while packets are handled and made; none of them blocks.
pub trait Host {
    /// Local memory of a request, as the engine passes it on.
    type Local: Copy;

    /// Reads bytes of a request's local memory, from `offset` on, into `to`. The engine stays within the request's length.
    fn gather(&self, from: Self::Local, offset: u32, to: &mut [u8]);

    /// Writes bytes to a request's local memory, from `offset` on. The engine stays within the request's length.
    fn scatter(&mut self, to: Self::Local, offset: u32, bytes: &[u8]);

    /// The oldest receive of the queue that this queue pair receives from; `None` if there is none.
    fn take_receive(&mut self, qpn: Qpn) -> Option<Receive<Self::Local>>;

    /// Messages that there are receives for, to be told to the peer.
    fn credits(&self, _qpn: Qpn) -> Credits {
        Credits::UNLIMITED
    }

    /// Whether the peer of this queue pair may do that with `len` bytes.
    ///
    /// # Errors
    /// [`AccessError`]: it may not.
    fn check(&self, qpn: Qpn, at: Remote, len: u32, right: Right) -> Result<(), AccessError>;

    /// Writes what the peer sent.
    ///
    /// # Errors
    /// [`AccessError`]: the key was withdrawn, or never allowed that.
    fn write(&mut self, qpn: Qpn, at: Remote, bytes: &[u8]) -> Result<(), AccessError>;

    /// Reads what the peer wants.
    ///
    /// # Errors
    /// As [`write`](Host::write).
    fn read(&self, qpn: Qpn, at: Remote, to: &mut [u8]) -> Result<(), AccessError>;

    /// Changes 8 aligned bytes for the peer, and returns what was there.
    ///
    /// # Errors
    /// As [`write`](Host::write).
    fn atomic(&mut self, qpn: Qpn, at: Remote, change: Change) -> Result<u64, AccessError>;

    /// Withdraws a key for the peer.
    ///
    /// # Errors
    /// [`AccessError`]: it is none that the peer may withdraw.
    fn invalidate(&mut self, qpn: Qpn, rkey: Rkey) -> Result<(), AccessError>;

    /// Takes note of a request that is over.
    fn complete(&mut self, qpn: Qpn, completion: Completion<Self::Local>);
}

/// Memory of the other side: an address there, and the key that opens it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The address.
    pub va: u64,
    /// The key.
    pub rkey: Rkey,
}

impl Remote {
    /// The same memory, `bytes` further on.
    #[must_use]
    pub const fn advance(self, bytes: u64) -> Self {
        Remote { va: self.va.wrapping_add(bytes), rkey: self.rkey }
    }
}

/// What a key must allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// RDMA READ.
    Read,
    /// RDMA WRITE.
    Write,
    /// Atomics.
    Atomic,
}

/// What an atomic does with 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Writes `swap` if `compare` is there.
    CompareSwap {
        /// What must be there.
        compare: u64,
        /// What comes there.
        swap: u64,
    },
    /// Adds, modulo 2^64.
    FetchAdd(u64),
}

/// The peer may not do that: the key, the range or the right is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the key, the range or the right is wrong")]
pub struct AccessError;
