//! Work requests, and what becomes of them.

use crate::host::Remote;
use crate::types::{Qpn, Rkey};

/// A request to send, write, read or change something.
#[derive(Clone, Copy, Debug)]
pub struct Send<L> {
    /// A number that comes back with the completion.
    pub id: u64,
    /// What shall be done.
    pub op: Op,
    /// Local memory: what is sent, or where comes what is read.
    pub local: L,
    /// Its bytes.
    pub len: u32,
    /// Asks the receiver for an event.
    pub solicited: bool,
    /// Begins only once all READs and atomics before are done.
    pub fence: bool,
}

/// Why a request is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The send queue is full.
    #[error("the send queue is full")]
    Full,
    /// It is longer than any message.
    #[error("{len} bytes are more than a message has, {MAX_MESSAGE}")]
    TooLong {
        /// Its bytes.
        len: u32,
    },
    /// The connection was made without READs and atomics.
    #[error("the connection has no READs and atomics")]
    NoReads,
    /// What an atomic brings has 8 bytes.
    #[error("an atomic brings 8 bytes, not {len}")]
    AtomicLength {
        /// Its bytes.
        len: u32,
    },
}

/// What a request shall do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// A message for a receive.
    Send(Extra),
    /// A message for memory of the peer, with immediate data for a receive if there is some.
    Write(Remote, Option<u32>),
    /// Reads memory of the peer.
    Read(Remote),
    /// Swaps 8 bytes of the peer if they are as expected; those that were there come back.
    CompareSwap {
        /// The 8 bytes.
        remote: Remote,
        /// What must be there.
        compare: u64,
        /// What comes there.
        swap: u64,
    },
    /// Adds to 8 bytes of the peer; those that were there come back.
    FetchAdd {
        /// The 8 bytes.
        remote: Remote,
        /// What is added, modulo 2^64.
        add: u64,
    },
}

/// What a message brings beside its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Extra {
    /// Nothing.
    #[default]
    Nothing,
    /// Immediate data.
    Immediate(u32),
    /// A key of the receiver that is withdrawn.
    Invalidate(Rkey),
}

/// Memory that a message goes to.
#[derive(Clone, Copy, Debug)]
pub struct Receive<L> {
    /// A number that comes back with the completion.
    pub id: u64,
    /// The memory.
    pub local: L,
    /// Its bytes.
    pub len: u32,
}

/// A request that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion<L> {
    /// One that was posted to the send queue.
    Sent {
        /// Its number.
        id: u64,
        /// What became of it.
        outcome: Outcome,
        /// Its local memory.
        local: L,
    },
    /// A receive.
    Received {
        /// Its number.
        id: u64,
        /// What became of it.
        outcome: Outcome,
        /// Its memory.
        local: L,
        /// What came.
        message: Incoming,
    },
}

/// A message that came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Incoming {
    /// Bytes.
    pub len: u32,
    /// What it brought beside them.
    pub extra: Extra,
    /// It was an RDMA WRITE: the bytes went elsewhere.
    pub is_write: bool,
    /// The sender asks for an event.
    pub solicited: bool,
    /// Who sent it, for datagrams.
    pub source: Option<Qpn>,
}

/// Bytes of the longest message. IBA 9.7.7.1.
pub const MAX_MESSAGE: u32 = 1 << 31;

/// What became of a request. Each has its status in `enum ibv_wc_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is done.
    Success,
    /// The message did not fit the receive.
    LocalLength,
    /// Its own memory was not there any more.
    LocalProtection,
    /// The queue pair failed for another reason. So ends also a request before the one to blame whose answer was lost.
    Flushed,
    /// The peer answered what no responder may.
    BadResponse,
    /// The peer does not take such a request.
    RemoteInvalidRequest,
    /// The key, the range or the right was wrong.
    RemoteAccess,
    /// The peer could not finish it.
    RemoteOperation,
    /// No answer came, however often it was asked.
    RetriesExceeded,
    /// The peer had no receive, however often it was asked.
    RnrRetriesExceeded,
}
