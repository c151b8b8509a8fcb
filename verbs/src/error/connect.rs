//! Connecting, and the transitions below it.

use std::io;

use thiserror::Error;

use super::{LOOK, NetworkError, untaken};
use crate::address::NodeId;
use crate::types::{Gid, QpState, QpType, Qpn};

/// Connecting a queue pair failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The two sides are of different kinds.
    #[error("the peer's queue pair is {theirs:?}, this one {ours:?}; both sides must be of one kind")]
    TypeMismatch {
        /// This side.
        ours: QpType,
        /// The other side.
        theirs: QpType,
    },
    /// No wire leads there.
    #[error("no wire leads to that queue pair: {why}")]
    NoRoute {
        /// The reason.
        why: &'static str,
    },
    /// Nobody answers at that address.
    #[error(
        "nothing listens at device {node}: its process has ended, or the address is stale; ask the peer for its address again"
    )]
    PeerGone {
        /// The device asked for.
        node: NodeId,
    },
    /// The device is there, the queue pair is not.
    #[error("the peer has no queue pair {qpn}: it was closed, or the address is stale")]
    NoSuchQueuePair {
        /// The number asked for.
        qpn: Qpn,
    },
    /// The process there belongs to another user.
    #[error("the peer runs as user {theirs}, this process as {ours}; shared memory is for one user only")]
    OtherUser {
        /// This user.
        ours: u32,
        /// That user.
        theirs: u32,
    },
    /// The peer speaks another version.
    #[error("the peer speaks version {theirs} of the shared-memory protocol, this side {ours}; use the same release")]
    Version {
        /// This side.
        ours: u32,
        /// The other side.
        theirs: u32,
    },
    /// No answer in time.
    #[error("the peer did not answer within {seconds} s; is its process stopped?")]
    TimedOut {
        /// The limit.
        seconds: u64,
    },
    /// Nobody on the network of this device's port answers for the peer's.
    #[error(
        "no port {gid} on this network: {source}; is the peer's link up, and is its address one of a subnet that this port has \
         a route to? Try to ping it"
    )]
    Unreachable {
        /// The peer's port.
        gid: Gid,
        /// The system's reason.
        source: io::Error,
    },
    /// The peer's answer makes no sense.
    #[error("the peer's answer is not valid: {why}")]
    BadAnswer {
        /// What is wrong.
        why: &'static str,
    },
    /// The device hears no peers any more: a thread that listened for it panicked, or the system refused it.
    #[error("the device has failed, as its log and AsyncEvent::DeviceFatal say; open it again")]
    DeviceFailed,
    /// The peer is on another host, and this device can not use the network.
    #[error("no way to a queue pair that is not on this host: {0}")]
    Network(#[from] NetworkError),
    /// The transition is not legal.
    #[error(transparent)]
    Modify(#[from] ModifyError),
    /// The device refused a transition.
    #[error(
        "the device does not bring the queue pair from {from:?} to {to:?}{}: {source}; {LOOK}",
        untaken(attribute.as_deref())
    )]
    Refused {
        /// State before.
        from: QpState,
        /// Wanted state.
        to: QpState,
        /// The attribute that it does not take, with its value, if that was found out.
        attribute: Option<String>,
        /// The system's reason.
        source: io::Error,
    },
    /// The system refused.
    #[error("could not {what}: {source}; {LOOK}")]
    System {
        /// The step that failed.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}

/// A state transition that the table does not have, or attributes that it does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a {qp_type:?} queue pair can not go from {from:?} to {to:?}{detail}")]
pub struct ModifyError {
    /// Service.
    pub qp_type: QpType,
    /// Present state.
    pub from: QpState,
    /// Wanted state.
    pub to: QpState,
    /// Missing or forbidden attributes, as text that starts with ": ", or empty.
    pub detail: &'static str,
}
