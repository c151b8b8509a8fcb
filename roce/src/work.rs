//! Work requests, and what becomes of them.

use crate::types::{Qpn, Rkey};

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

/// A request to send a datagram.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<L, P> {
    /// A number that comes back with the completion.
    pub id: u64,
    /// Local memory: what is sent.
    pub local: L,
    /// Its bytes.
    pub len: u32,
    /// Immediate data, if it brings some.
    pub immediate: Option<u32>,
    /// Asks the receiver for an event.
    pub solicited: bool,
    /// Who gets it.
    pub target: Target<P>,
}

/// Who gets a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target<P> {
    /// The queue pair.
    pub qpn: Qpn,
    /// Its key; one with the highest bit set stands for that of the sending queue pair. IBA 10.2.5.
    pub qkey: u32,
    /// How it gets to the queue pair's host (in verbs, the address handle).
    pub path: P,
}

/// Why a request is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The send queue is full.
    #[error("the send queue is full; post again once a request has completed")]
    SendQueueFull,
    /// The queue pair has no such operation: by its service, or because it was made without READs and atomics.
    #[error("the queue pair has no such operation; unreliable connections take SEND and WRITE alone")]
    Unsupported,
    /// It is longer than any message of the service: 2^31 bytes, or for a datagram the MTU.
    #[error("{len} bytes are more than the {limit} of a message")]
    TooLong {
        /// Its bytes.
        len: u32,
        /// Most bytes.
        limit: u32,
    },
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
    /// Its own memory did not do what was asked of it.
    LocalOperation,
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
