//! Errors, one type per operation. Each message says what to do next.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use qpair_verbs::calc::Calc;
use qpair_verbs::{CompletionError, CqError, CreateError, Local, MemoryError, OpenError, PostError, WcStatus};
use thiserror::Error;

use super::ids::EndpointId;
use super::memory::Payload;
use crate::cm::{ClusterKeyError, HandshakeError};
use crate::engine::Violation;

/// A worker could not be made, or can not go on.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// The device could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A queue could not be made.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// The completion queue failed.
    #[error(transparent)]
    CompletionQueue(#[from] CqError),
    /// A setting is out of range.
    #[error("{what} of {asked} is not possible; choose {least} to {most}")]
    Config {
        /// The setting.
        what: &'static str,
        /// The value asked for.
        asked: u64,
        /// The least value.
        least: u64,
        /// The greatest value.
        most: u64,
    },
    /// There is no cluster key where there should be one.
    #[error(transparent)]
    ClusterKey(#[from] ClusterKeyError),
    /// The settings ask for more than the device has.
    #[error("{needed} {what} are needed, the device has {limit}; lower Config::endpoints, window or send_depth")]
    Device {
        /// Of what.
        what: &'static str,
        /// How many the settings need.
        needed: u64,
        /// How many the device has.
        limit: u32,
    },
    /// The system refused.
    #[error("could not {what}: {source}")]
    System {
        /// The step that failed.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}

/// Listening failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ListenError {
    /// The address could not be understood or found.
    #[error("the address to listen at could not be resolved: {0}")]
    Address(io::Error),
    /// The address could not be taken.
    #[error("can not listen at {address}: {source}; choose another port, or 0 for any free one")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
    /// Too many listeners.
    #[error("a worker listens at {limit} addresses at most; stop listening at some")]
    TooMany {
        /// The limit.
        limit: usize,
    },
}

/// Connecting could not even begin.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The address could not be understood.
    #[error("this is no address to connect to: {0}")]
    Address(io::Error),
    /// All endpoints are in use.
    #[error("all {limit} endpoints of this worker are in use; close some, or raise Config::endpoints")]
    TooManyEndpoints {
        /// The limit.
        limit: usize,
    },
    /// The system refused.
    #[error("can not begin to connect: {0}")]
    System(io::Error),
}

/// A connection that did not come up.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectFailure {
    /// Nobody listens there.
    #[error("nobody listens at {0}: start the peer first, or check host and port")]
    Refused(SocketAddr),
    /// The way there is closed.
    #[error("no connection to {address}: {source}; check the address, the network and its filters")]
    Unreachable {
        /// The address.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
    /// The host's name could not be looked up.
    #[error("no address of host {host} is known: {source}; check its spelling, /etc/hosts and the name server")]
    Name {
        /// The name.
        host: Box<str>,
        /// The system's reason.
        source: io::Error,
    },
    /// This process has no file descriptor left.
    #[error(
        "no descriptor for a connection to {address}: {source}; raise the limit with ulimit -n, or close connections"
    )]
    Descriptors {
        /// The address.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
    /// The peer had no room for it, each time it was called.
    #[error("{address} was busy with others for {limit:?}; connect less at once, or raise Config::connect_timeout")]
    Busy {
        /// The address.
        address: SocketAddr,
        /// The limit.
        limit: Duration,
    },
    /// No answer in time.
    #[error("{address} did not finish the handshake within {limit:?}: is it busy, stopped, or another kind of server?")]
    TimedOut {
        /// The address.
        address: SocketAddr,
        /// The limit.
        limit: Duration,
    },
    /// The peer does not speak this protocol, or said what makes no sense.
    #[error("{address}: {error}")]
    Handshake {
        /// The address.
        address: SocketAddr,
        /// What is wrong.
        error: HandshakeError,
    },
    /// The peer said no.
    #[error("{address} refused the connection: {reason}")]
    Rejected {
        /// The address.
        address: SocketAddr,
        /// Its words.
        reason: Box<str>,
    },
    /// The queue pairs could not be connected.
    #[error("the queue pair could not be connected: {0}")]
    QueuePair(#[from] Box<qpair_verbs::ConnectError>),
    /// No queue pair or memory for it.
    #[error(transparent)]
    Resources(#[from] Box<ResourceError>),
}

/// A queue pair, or memory for its messages, was not to be had.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ResourceError {
    /// No queue pair.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// No memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A request was refused.
    #[error(transparent)]
    Post(#[from] PostError),
    /// No endpoint left.
    #[error("all {limit} endpoints of this worker are in use; close some, or raise Config::endpoints")]
    TooManyEndpoints {
        /// The limit.
        limit: usize,
    },
}

/// Why a connection ended.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// This side closed it; everything sent before was delivered.
    #[error("closed by this side")]
    Local,
    /// The peer closed it; everything sent before was delivered.
    #[error("closed by the peer")]
    Remote,
    /// This side ended it at once, by [`abort`](crate::Worker::abort); what was under way is lost.
    #[error("ended by this side at once")]
    Aborted,
    /// It never came up.
    #[error(transparent)]
    Failed(#[from] ConnectFailure),
    /// The peer is gone, or can not be reached.
    #[error("the peer is lost: {0}; it has ended, or its host can not be reached")]
    PeerLost(Lost),
    /// The peer did not let go of the connection in time.
    #[error("the peer did not finish closing within {0:?}; what it had not read is lost")]
    CloseTimedOut(Duration),
    /// The device refused something.
    #[error("{0}; {advice}", advice = after(.0.status))]
    Completion(CompletionError),
    /// The peer broke the protocol.
    #[error("the peer broke the protocol: {0}")]
    Protocol(Violation),
    /// A request was refused, or memory ran out.
    #[error(transparent)]
    Resources(Box<ResourceError>),
}

impl CloseReason {
    /// True if nothing went wrong.
    pub(crate) fn is_orderly(&self) -> bool {
        matches!(self, CloseReason::Local | CloseReason::Remote | CloseReason::Aborted)
    }

    /// In few words.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            CloseReason::Local => "closed by this side",
            CloseReason::Remote => "closed by the peer",
            CloseReason::Aborted => "aborted",
            CloseReason::Failed(_) => "did not come up",
            CloseReason::PeerLost(Lost::HungUp) => "the peer's socket hung up",
            CloseReason::PeerLost(Lost::Completion(_)) => "the peer could not be reached",
            CloseReason::PeerLost(Lost::QueuePair) => "the queue pair failed",
            CloseReason::PeerLost(Lost::Silent(_)) => "a probe was not answered",
            CloseReason::CloseTimedOut(_) => "the peer did not finish closing",
            CloseReason::Completion(_) => "a request failed",
            CloseReason::Protocol(_) => "the peer broke the protocol",
            CloseReason::Resources(_) => "no resources",
        }
    }

    /// True if it tells more of an end than what was noted first.
    pub(crate) fn tells_more_than(&self, noted: &CloseReason) -> bool {
        match (noted, self) {
            // The peer hung up over a request of this side's, which it refused. Of a peer that is gone a device may tell
            // anything else.
            (CloseReason::PeerLost(Lost::HungUp), CloseReason::Completion(error)) => {
                error.status == WcStatus::REM_ACCESS_ERR
            }
            // What this side can not go on with ends the peer's queue pair too, so that a request to it may fail first.
            (CloseReason::PeerLost(Lost::Completion(_)), CloseReason::Protocol(_)) => true,
            (CloseReason::PeerLost(Lost::Completion(_)), CloseReason::Completion(error)) => {
                error.status == WcStatus::LOC_LEN_ERR
            }
            _ => noted.is_vague(),
        }
    }

    /// True if it tells that something went wrong, and another reason may tell what.
    pub(crate) fn is_vague(&self) -> bool {
        match self {
            CloseReason::PeerLost(Lost::QueuePair | Lost::Silent(_)) => true,
            CloseReason::PeerLost(Lost::Completion(error)) => error.status == WcStatus::WR_FLUSH_ERR,
            _ => false,
        }
    }
}

/// What to do about a connection that ended with this status.
fn after(status: WcStatus) -> &'static str {
    match status {
        WcStatus::RNR_RETRY_EXC_ERR => {
            "the peer gave room for a message and has no receive for it: is it short of memory? If not, connect again"
        }
        WcStatus::REM_ACCESS_ERR => {
            "the peer's memory was not to be reached so: see that it is exposed, and long enough, and connect again"
        }
        _ => "connect again",
    }
}

/// How the loss of a peer was noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Lost {
    /// Its socket hung up.
    #[error("its socket hung up")]
    HungUp,
    /// The queue pair could not reach it.
    #[error("{0}")]
    Completion(CompletionError),
    /// The device put the queue pair into the error state.
    #[error("the device put the queue pair into the error state")]
    QueuePair,
    /// It did not answer a probe.
    #[error("it did not answer a probe within {0:?}")]
    Silent(Duration),
}

/// Sending failed; the payload is handed back.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct SendError {
    /// Why.
    #[source]
    pub error: SendFailure,
    /// What was to be sent.
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
    /// The payload could not be exposed, or copied.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// A copy was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SendCopyError {
    /// The peer has no room now, or the connection is not up yet.
    #[error("the peer has no room for another message now; poll and try again")]
    WouldBlock,
    /// The data is above the eager limit.
    #[error("{len} bytes exceed the eager limit of {limit}; use `send`")]
    TooLong {
        /// Length.
        len: usize,
        /// Eager limit of this connection.
        limit: usize,
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
    /// The counter was removed.
    #[error("this counter was removed; make another")]
    UnknownCounter,
    /// Too many counters.
    #[error("a worker has {limit} counters at most; remove some")]
    TooManyCounters {
        /// The limit.
        limit: usize,
    },
    /// There is no memory for what comes back: of an atomic, or on a device that can not combine by itself.
    #[error("no memory for what comes back: {0}")]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RecvFailure {
    /// No such connection, or it is ending.
    #[error("endpoint {0} is closed; connect again")]
    Closed(EndpointId),
    /// The memory has not the form that is needed: a reduction goes into one piece, a message into memory of this program.
    #[error("this can not be received into {0}; give a buffer, a slab or part of an exposed region")]
    Form(&'static str),
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
    /// Nobody posts a receive for a message of this kind, and the peer, when it connected, had not so much memory of its own.
    #[error("the peer takes {limit} bytes of a message that is not tagged; raise its pool limit, or send parts")]
    TooLongForPeer {
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

impl OpError {
    /// Of a message that could not be posted.
    pub(crate) fn not_posted(error: &ResourceError) -> Self {
        match error {
            ResourceError::Post(error) => OpError::Post(*error),
            other => OpError::Resources(other.to_string().into()),
        }
    }
}
