//! Connections by the connection manager.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use qpair_roce::wire::cm::Reason;
use thiserror::Error;

use super::{ConnectError, LOOK, NetworkError};
use crate::types::Mtu;

/// A connection that the connection manager (rdma_cm) was to make, or to be asked for, failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CmError {
    /// The system's connection manager is not to be had, or the device is of a kind that it connects otherwise (iWARP).
    #[error("{device} makes no connections by rdma_cm here: {source}; {}", advice_without(source))]
    NotSupported {
        /// The device.
        device: String,
        /// What is missing.
        source: io::Error,
    },
    /// The way to the peer begins at another device.
    #[error("the way to {peer} begins at {device}, not at {own}: open that device, or change the route")]
    OtherDevice {
        /// The peer.
        peer: SocketAddr,
        /// Where the way begins.
        device: String,
        /// The device of the queue pair.
        own: String,
    },
    /// Queue pairs for datagrams are not connected.
    #[error("a UD queue pair is not connected to a peer: build it with rc or uc")]
    NotConnected,
    /// Linux' connection manager connects reliable queue pairs alone.
    #[error("{device} connects no UC queue pair by rdma_cm: build it with rc, or connect it with Prepared::connect")]
    NotReliable {
        /// The device.
        device: String,
    },
    /// An object of another context.
    #[error("the queue pair belongs to another context; build it from the same `Context`")]
    ForeignObject,
    /// Another listener of this host has the port.
    #[error(
        "port {port} has a listener on this host: drop that one, or listen at another port (0 picks one that is free)"
    )]
    AddressInUse {
        /// The port.
        port: u16,
    },
    /// Longer than a message has room for.
    #[error("private data of {len} bytes does not fit, {limit} bytes do: send the rest over the connection")]
    PrivateTooLong {
        /// Its length.
        len: usize,
        /// Bytes that fit.
        limit: usize,
    },
    /// The system has no way to the peer.
    #[error("no way to {peer}: {source}; look at addresses and routes (ip route get {})", peer.ip())]
    Unreachable {
        /// The peer.
        peer: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The peer refused.
    #[error("{peer} refused: {reason}; {}", advice(*reason))]
    Rejected {
        /// The peer.
        peer: SocketAddr,
        /// Why.
        reason: Reason,
        /// What its application said, with zeros behind.
        private: Vec<u8>,
    },
    /// The peer's address leads to another device than the one whose listener has the port.
    #[error(
        "{peer} is an address of another device there than the one whose program listens at that port: connect to an address \
         of that device, or have the program listen on this one"
    )]
    ListensElsewhere {
        /// The peer.
        peer: SocketAddr,
    },
    /// The peer did not answer, however often it was asked.
    #[error(
        "{peer} does not answer: see that its program runs, and that no firewall keeps UDP port 4791 (`qpair doctor {}`)",
        peer.ip()
    )]
    NoAnswer {
        /// The peer.
        peer: SocketAddr,
    },
    /// Nothing happened in time.
    #[error("nothing came within {limit:?}: wait once more, or drop what was waited for to give it up")]
    TimedOut {
        /// How long was waited.
        limit: Duration,
    },
    /// The peer ended the connection before this side had it.
    #[error("{peer} ended the connection while it was made: connect again, or look there for the reason")]
    Disconnected {
        /// The peer.
        peer: SocketAddr,
    },
    /// The peer named a queue pair that is connected to this host still.
    #[error("{peer} accepted with a queue pair that has an older connection, which ends now: connect again")]
    Stale {
        /// The peer.
        peer: SocketAddr,
    },
    /// It is over already: it failed, or gave what it had.
    #[error("this has ended before, or the peer gave up: connect again, or wait for the next request")]
    Over,
    /// The peer asked at another address than the queue pair's, or the way to it begins at another.
    #[error(
        "the connection is at {asked}, and the queue pair at {own}: build it without gid_index, or with that address's"
    )]
    OtherAddress {
        /// Where the connection is.
        asked: IpAddr,
        /// Where the queue pair is.
        own: IpAddr,
    },
    /// The connection manager takes another row of the GID table, of the same address, than the queue pair's builder chose: one of
    /// RoCE v2 rather than v1, say.
    #[error(
        "the connection is by row {row} of the GID table, and the queue pair by row {chosen}: build it without gid_index, or with that row"
    )]
    OtherRow {
        /// The row of the connection.
        row: u32,
        /// That of the queue pair.
        chosen: u32,
    },
    /// The peer asked for longer packets than the queue pair sends, or the way to it has such.
    #[error(
        "packets of {} bytes were asked for, and the queue pair takes {} at most: build it for longer ones, or have less asked for",
        asked.bytes(), limit.bytes()
    )]
    MtuTooLong {
        /// What was asked for.
        asked: Mtu,
        /// What the queue pair takes.
        limit: Mtu,
    },
    /// The device has as many connections as there can be.
    #[error("{limit} connections of this address are open, or ended a moment ago: drop some, and try again")]
    Full {
        /// That many.
        limit: usize,
    },
    /// The device was removed from this host.
    #[error("{device} was removed from this host: open it again once it is back, or open another device")]
    DeviceGone {
        /// The device.
        device: String,
    },
    /// Events of the system's connection manager can not be read any more, so that all its connections of the device ended.
    #[error(
        "the connection manager tells nothing of {device} any more, so its connections ended: see that the module rdma_ucm is \
         loaded, and what the kernel's log (dmesg) says, then open the device again"
    )]
    ManagerGone {
        /// The device.
        device: String,
    },
    /// The device can not use the network.
    #[error("no connection over the network: {0}")]
    Network(#[from] NetworkError),
    /// The queue pair could not be connected by what both ends agreed on.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The system refused.
    #[error("could not {what}: {source}; {LOOK}")]
    System {
        /// The step that failed.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}

impl CmError {
    /// A refusal, by what came with it.
    pub(crate) fn rejected(peer: SocketAddr, reason: Reason, private: Vec<u8>) -> Self {
        if reason == Reason::CONSUMER && private.starts_with(OTHER_DEVICE) {
            return CmError::ListensElsewhere { peer };
        }
        CmError::Rejected { peer, reason, private }
    }
}

/// What to do about a refusal.
fn advice(reason: Reason) -> &'static str {
    match reason {
        Reason::INVALID_SERVICE_ID => "nobody listens at that port there; start its program, or look at the port",
        Reason::INVALID_MTU => "its packets are shorter; build the queue pair with a smaller mtu",
        Reason::INVALID_TRANSPORT => "it wants another service; build the queue pair with rc",
        Reason::STALE_CONNECTION => "an older connection of the queue pair ends there; build another and try again",
        Reason::CONSUMER => "its application did not want this connection; look there for the reason",
        _ => "look at the peer's log for the reason",
    }
}

/// What to do where there are no connections.
fn advice_without(source: &io::Error) -> &'static str {
    match source.kind() {
        // Not by the system, and an iWARP queue pair is not connected by addresses either.
        io::ErrorKind::Unsupported if source.raw_os_error().is_none() => {
            "open a device of InfiniBand or RoCE, or soft0"
        }
        _ => {
            "see that librdmacm is installed and the module rdma_ucm loaded, or exchange addresses by other means and connect \
             with Prepared::connect"
        }
    }
}

/// What comes with the refusal of a request that came by another device than the listener's. No reason of rdma_cm says that,
/// and without it such a refusal looks like one for want of room, after which a peer tries again. It says so to people who
/// look at what other programs got.
pub(crate) const OTHER_DEVICE: &[u8] = b"qpair: the listener is on another device";
