//! What an engine asks of those around it: memory, receives, and to take note of what is done.

use std::time::Duration;

use crate::types::{Qpn, Rkey};
use crate::wire::Credits;
use crate::work::{Completion, Outcome, Receive, Remote};

/// The device around an engine. Its methods are called while packets are handled and made; none of them blocks.
pub trait Host {
    /// Local memory of a request, as the engine passes it on.
    type Local: Copy;

    /// Reads bytes of a request's local memory, from `offset` on, into `to`. The engine stays within the request's length.
    ///
    /// # Errors
    /// [`AccessError`]: the memory is not there any more, or does not do it.
    fn gather(&self, from: Self::Local, offset: u32, to: &mut [u8]) -> Result<(), AccessError>;

    /// Writes bytes to a request's local memory, from `offset` on. The engine stays within the request's length.
    ///
    /// # Errors
    /// As [`gather`](Host::gather).
    fn scatter(&mut self, to: Self::Local, offset: u32, bytes: &[u8]) -> Result<(), AccessError>;

    /// The oldest receive of the queue that this queue pair receives from; `None` if there is none, or it has no room for
    /// `room` bytes: a datagram is counted as without a receive (`out_of_buffer`) in both cases. Where a message is dropped
    /// that it was taken for, an unreliable connection keeps it for the next one, and flushes it when it is closed.
    fn take_receive(&mut self, qpn: Qpn, room: u32) -> Option<Receive<Self::Local>>;

    /// Messages that there are receives for, to be told to the peer.
    fn credits(&self, _qpn: Qpn) -> Credits {
        Credits::UNLIMITED
    }

    /// How long an acknowledgment of a SEND may wait for a request to its peer that it goes with. Zero, not at all, is right where
    /// the application does not look at what comes.
    fn patience(&self) -> Duration {
        Duration::ZERO
    }

    /// Whether the peer of this queue pair may do that with `len` bytes. With none, no key is asked for.
    ///
    /// # Errors
    /// [`AccessError`]: it may not.
    fn check(&self, qpn: Qpn, at: Remote, len: u32, right: Right) -> Result<(), AccessError>;

    /// Writes what the peer sent.
    ///
    /// # Errors
    /// [`AccessError`]: the key was withdrawn, or never allowed that, or the memory does not do it.
    fn write(&mut self, qpn: Qpn, at: Remote, bytes: &[u8]) -> Result<(), AccessError>;

    /// Reads what the peer wants.
    ///
    /// # Errors
    /// As [`write`](Host::write).
    fn read(&self, qpn: Qpn, at: Remote, to: &mut [u8]) -> Result<(), AccessError>;

    /// Takes note that an answer of `len` bytes begins, or begins again: they are read in order from now on, and until the
    /// next answer of this queue pair begins none beyond. The device may read them ahead.
    fn begin_read(&mut self, _qpn: Qpn, _at: Remote, _len: u32) {}

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

    /// Takes note that a queue pair has failed, once. Receives of its own are the device's to flush.
    fn failed(&mut self, qpn: Qpn, cause: Cause);
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

/// Why memory can not be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// The queue pair does not allow its peer that at all. The peer learns that its request was none to be made.
    #[error("the queue pair does not allow that")]
    QueuePair,
    /// The key, the range or the key's right is wrong.
    #[error("the key, the range or the right is wrong")]
    Key,
    /// It may be, and the memory does not do it. The peer learns that its request can not be carried out; one of this side's ends
    /// with [`Outcome::LocalOperation`].
    #[error("the memory does not do that")]
    Operation,
}

impl AccessError {
    /// What becomes of a request whose own memory it is.
    pub(crate) const fn outcome(self) -> Outcome {
        match self {
            AccessError::QueuePair | AccessError::Key => Outcome::LocalProtection,
            AccessError::Operation => Outcome::LocalOperation,
        }
    }
}

/// Why a queue pair has failed. Each but the first two is an event of verbs too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// This side closed it.
    Closed,
    /// A request of this side failed; its completion says how.
    Request,
    /// The peer asked for what is no request here. `IBV_EVENT_QP_REQ_ERR`.
    PeerRequest,
    /// The peer's key, range or right was wrong. `IBV_EVENT_QP_ACCESS_ERR`.
    PeerAccess,
    /// Memory of this side was gone in the middle. `IBV_EVENT_QP_FATAL`.
    Memory,
}
