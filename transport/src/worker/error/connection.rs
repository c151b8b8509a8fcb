//! Listening, connecting, and why a connection ends.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use qpair_verbs::{CompletionError, WcStatus};
use thiserror::Error;

use super::ResourceError;
use crate::cm::{HandshakeError, RdmaCmError};
use crate::engine::Violation;

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
    /// The device can not listen by rdma_cm.
    #[error("can not listen by rdma_cm: {0}")]
    RdmaCm(#[from] Box<RdmaCmError>),
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
    /// All endpoints over datagrams are in use.
    #[error(
        "all {limit} datagram endpoints of this worker are in use; close some, or raise Config::datagram_endpoints"
    )]
    TooManyDatagramEndpoints {
        /// The limit.
        limit: usize,
    },
    /// There is no queue pair for datagrams, or no memory for it.
    #[error("no datagrams on this device: {0}")]
    Datagrams(Box<ResourceError>),
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
    /// rdma_cm makes no connection to it.
    #[error("no connection to {address} by rdma_cm: {source}")]
    RdmaCm {
        /// The address.
        address: SocketAddr,
        /// What the device or the peer said.
        source: Box<RdmaCmError>,
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
    /// The peer offered a message in parts, as from a GPU that its NIC does not reach, and offered none of them for so long, while
    /// messages of others waited for the memory that it was to go into.
    #[error(
        "no part of a message came for {0:?} that the peer had offered, and others waited for its memory; \
         have the peer poll its worker, post receives for long messages, or raise Config::pool_limit"
    )]
    PartsTimedOut(Duration),
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

    /// True if the queue pair failed, or what it reaches the peer by: another may do better.
    pub(crate) fn is_of_queue_pair(&self) -> bool {
        matches!(self, CloseReason::PeerLost(Lost::Completion(_) | Lost::QueuePair | Lost::Silent(_)))
    }

    /// True if a device took no request, or gave no answer.
    pub(crate) fn is_of_refusal(&self) -> bool {
        match self {
            CloseReason::Resources(error) => matches!(**error, ResourceError::Post(_)),
            reason => matches!(reason, CloseReason::PeerLost(Lost::Silent(_))),
        }
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
            CloseReason::PeerLost(Lost::Unacknowledged) => "packets were not acknowledged",
            CloseReason::CloseTimedOut(_) => "the peer did not finish closing",
            CloseReason::PartsTimedOut(_) => "the peer held memory up",
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
        WcStatus::REM_OP_ERR => {
            "the peer could not carry out a request, or is gone: where its memory is a GPU's, its log tells why. Connect again"
        }
        WcStatus::LOC_QP_OP_ERR => {
            "this side could not carry out a request: where its memory is a GPU's, the log tells why. Connect again"
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
    /// Packets were sent again and again, and nothing acknowledged them.
    #[error("it did not acknowledge a packet, however often that was sent")]
    Unacknowledged,
}
