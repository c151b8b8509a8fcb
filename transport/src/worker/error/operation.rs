//! Messages and one-sided operations: why one was not begun, or did not come about.

use qpair_verbs::calc::Calc;
use qpair_verbs::{Local, MemoryError, PostError};
use thiserror::Error;

use super::ResourceError;
use crate::worker::endpoint::Unposted;
use crate::worker::ids::EndpointId;
use crate::worker::memory::Payload;

/// Sending failed; the payload is handed back.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct SendError {
    /// Why.
    #[source]
    pub error: SendFailure,
    /// What was to be sent; no bytes in place of a buffer that a device keeps for ever.
    pub payload: Payload,
}

/// Why a message was not taken.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SendFailure {
    /// No such connection.
    #[error("endpoint {0} is closed; connect again")]
    Unknown(EndpointId),
    /// The connection is ending.
    #[error("endpoint {0} is closing and takes no more messages; connect again")]
    Closing(EndpointId),
    /// Too many messages wait.
    #[error("{limit} messages wait for the peer already; poll, and send when some are sent")]
    QueueFull {
        /// The limit.
        limit: usize,
    },
    /// The message is too long for the device.
    #[error("{len} bytes exceed the longest message of {limit} bytes; send it in parts")]
    TooLong {
        /// Length.
        len: u64,
        /// Greatest length.
        limit: u64,
    },
    /// Nobody posts a receive for a message of this kind, and the peer has not so much memory of its own.
    #[error(
        "the peer takes {limit} bytes of a message that is not tagged, not {len}; raise its pool limit, or send parts"
    )]
    TooLongForPeer {
        /// Length.
        len: u64,
        /// Greatest length.
        limit: u64,
    },
    /// The connection is over datagrams, and the message is longer than one, or in memory for the peer to read.
    #[error("over datagrams go messages of at most {limit} bytes, by copy, and not {len}; use `connect` for this peer")]
    Datagrams {
        /// Length.
        len: u64,
        /// Greatest length.
        limit: u64,
    },
    /// This side of the stream is finished, or the stream's connection is closed.
    #[error("this side of the stream is over; open another")]
    StreamOver,
    /// A part of the stream was taken back before the peer had read it: what would follow is no stream any more.
    #[error("a part of the stream was cancelled, or not sent in time; the peer knows that it is broken; open another")]
    StreamBroken,
    /// No room for such a number in the message.
    #[error("the reason {reason} of a reset is not below {limit}")]
    Reason {
        /// The reason.
        reason: u16,
        /// Reasons are less.
        limit: u16,
    },
    /// Too many streams.
    #[error("{limit} streams are open already; finish some on both sides")]
    TooManyStreams {
        /// The limit.
        limit: usize,
    },
    /// The payload lies in memory that the peer could not read over the device that the connection goes on over.
    #[error(transparent)]
    NoKey(#[from] NoKey),
    /// The payload could not be exposed, or copied.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// A copy was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SendCopyError {
    /// The peer has no room now, the connection is not up yet, or there is no memory to send from now, which others wait for.
    #[error("there is no room for another message now, at the peer or here; poll and try again")]
    WouldBlock,
    /// The data is above the eager limit.
    #[error("{len} bytes exceed the eager limit of {limit}; use `send`")]
    TooLong {
        /// Length.
        len: usize,
        /// Eager limit of this connection.
        limit: usize,
    },
    /// There is no registered memory to copy the data to, and none is to come back.
    #[error("no memory for a copy of {len} bytes; raise Config::pool_limit and `ulimit -l`")]
    NoMemory {
        /// Length asked for.
        len: usize,
    },
    /// No such connection, or it is ending.
    #[error("endpoint {0} is closed or closing; connect again")]
    Closed(EndpointId),
}

/// A one-sided operation was not posted; the memory is handed back.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct OneSidedError {
    /// Why.
    #[source]
    pub error: OneSidedFailure,
    /// The local memory.
    pub memory: Local,
}

/// Why a one-sided operation was not posted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OneSidedFailure {
    /// No room for another request now, or the connection is not up yet.
    #[error("there is no room for another request now; poll and try again")]
    WouldBlock,
    /// No such connection, or it is ending.
    #[error("endpoint {0} is closed or closing; connect again")]
    Closed(EndpointId),
    /// The device does not take the request.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The connection goes on over another device of the peer's.
    #[error(transparent)]
    NoKey(#[from] NoKey),
    /// The counter was removed.
    #[error("this counter was removed; make another")]
    UnknownCounter,
    /// Too many counters.
    #[error("a worker has {limit} counters at most; remove some")]
    TooManyCounters {
        /// The limit.
        limit: usize,
    },
    /// There is no memory of the worker's own for it: for what comes back of an atomic, or on a device that can not combine by itself;
    /// or to tell the peer of a put.
    #[error("no memory of the worker's own for the request: {0}; raise Config::pool_limit and `ulimit -l`")]
    Memory(std::sync::Arc<str>),
}

/// A receive could not be posted; the memory is handed back.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct RecvError {
    /// Why.
    #[source]
    pub error: RecvFailure,
    /// What was to be received into.
    pub memory: Local,
}

/// Why a receive was not posted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RecvFailure {
    /// No such connection, or it is ending.
    #[error("endpoint {0} is closed; connect again")]
    Closed(EndpointId),
    /// The memory has not the form that is needed: a reduction goes into one piece, a message into memory of this program.
    #[error("this can not be received into {0}; give a buffer, a slab or part of an exposed region")]
    Form(&'static str),
    /// There is no memory for the slots by which messages go into memory of a GPU.
    #[error("no memory for messages into memory of this GPU: {0}")]
    NoSlots(std::sync::Arc<str>),
    /// A slab that is shared.
    #[error("`Bytes` of this slab are still alive; drop them before receiving into it")]
    StillShared,
    /// The message that is there does not fit.
    #[error(transparent)]
    Misfit(#[from] Misfit),
}

/// A message and a receive that do not go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Misfit {
    /// The message is longer than the memory.
    #[error("a message of {len} bytes came for a receive of {room}; give more memory")]
    TooLong {
        /// Length of the message.
        len: u64,
        /// Length of the memory.
        room: u64,
    },
    /// The message ends within an element.
    #[error("a message of {len} bytes is no whole number of elements for a {calc}")]
    Partial {
        /// Length of the message.
        len: u64,
        /// The reduction.
        calc: Calc,
    },
}

/// Memory can not be named over the device that a connection goes on over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "the memory has no key for rail {rail}, which the connection is on; have its owner expose it from Worker::domain and name \
     it by Worker::remote"
)]
pub struct NoKey {
    /// The rail.
    pub rail: usize,
}

/// Why an operation did not come about.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OpError {
    /// The connection ended before; its `Closed` event, which follows, says why.
    #[error("the connection ended before; see its Closed event")]
    Closed,
    /// The connection ended while an atomic was under way, of which nobody can tell whether it was carried out.
    #[error("the connection ended, and whether the peer's memory was changed is not known; see its Closed event")]
    Unknown,
    /// The application cancelled it.
    #[error("cancelled")]
    Cancelled,
    /// The time that the application set for it is over.
    #[error("not over in time; it may still be carried out")]
    TimedOut,
    /// The peer did not answer the request, for a reason in the application's own numbering.
    #[error("the peer declined the request with {0}")]
    Declined(u16),
    /// The message went to [`Event::Received`](crate::Event::Received) instead.
    #[error(transparent)]
    Misfit(#[from] Misfit),
    /// The device does not take the request.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The connection goes on over another device of the peer's.
    #[error(transparent)]
    NoKey(#[from] NoKey),
    /// Nobody posts a receive for a message of this kind, and the peer, when it connected, had not so much memory of its own.
    #[error("the peer takes {limit} bytes of a message that is not tagged; raise its pool limit, or send parts")]
    TooLongForPeer {
        /// Greatest length.
        limit: u64,
    },
    /// The connection is over datagrams, and the message longer than one of those that the peer takes.
    #[error("over these datagrams go messages of at most {limit} bytes; use `connect` for this peer")]
    Datagrams {
        /// Greatest length.
        limit: u64,
    },
    /// There was nothing to send the message with; the connection ends.
    #[error("the message could not be sent: {0}")]
    Resources(Box<str>),
    /// The memory could not be written.
    #[error("the memory could not take the message: {0}")]
    Memory(Box<str>),
}

impl From<Unposted> for OneSidedFailure {
    fn from(refused: Unposted) -> Self {
        match refused {
            Unposted::Post(error) => OneSidedFailure::Post(error),
            Unposted::NoKey(error) => OneSidedFailure::NoKey(error),
        }
    }
}

impl From<Unposted> for OpError {
    fn from(refused: Unposted) -> Self {
        match refused {
            Unposted::Post(error) => OpError::Post(error),
            Unposted::NoKey(error) => OpError::NoKey(error),
        }
    }
}

impl OpError {
    /// Of a message that could not be posted.
    pub(crate) fn not_posted(error: &ResourceError) -> Self {
        match error {
            ResourceError::Post(error) => OpError::Post(*error),
            other => OpError::Resources(other.to_string().into()),
        }
    }
}
