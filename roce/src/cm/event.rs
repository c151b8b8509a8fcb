//! What a manager tells.

use core::net::IpAddr;

use thiserror::Error;

use super::time::Timeout;
use crate::qp::ReliableConfig;
use crate::types::{Mtu, Psn, Qpn};
use crate::wire::cm::{LEN, Path, Reason, Reject, Reply, Request, Transport};

/// A connection of one manager: its communication ID, which the manager drew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub(super) u32);

/// A datagram to send to queue pair 1 of a host, with [`QKEY`](crate::wire::cm::QKEY).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The host.
    pub to: IpAddr,
    /// The message.
    pub bytes: [u8; LEN],
}

/// What happened to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "there are a handful per connection, and most carry private data")]
pub enum Event {
    /// A peer asks for a connection: accept, reject, or have it wait.
    Requested {
        /// The connection.
        id: ConnectionId,
        /// What is asked for.
        offer: Offer,
    },
    /// The peer accepted. Have the queue pair ready by the terms, then say so; or reject.
    Accepted {
        /// The connection.
        id: ConnectionId,
        /// What the queue pair is to be made with.
        terms: Terms,
        /// What the peer's application says.
        private: [u8; Reply::PRIVATE],
    },
    /// The peer is ready: it learned that its request was accepted.
    Established {
        /// The connection.
        id: ConnectionId,
    },
    /// The peer refused, or gave up.
    Rejected {
        /// The connection.
        id: ConnectionId,
        /// Why.
        reason: Reason,
        /// What the peer's application says.
        private: [u8; Reject::PRIVATE],
    },
    /// The peer accepted with a queue pair that this end is connected to. It was refused, and the older connection ends.
    Stale {
        /// The newer connection.
        id: ConnectionId,
    },
    /// It ended: the peer said so, or agreed.
    Disconnected {
        /// The connection.
        id: ConnectionId,
    },
    /// The peer did not answer, however often it was told.
    TimedOut {
        /// The connection.
        id: ConnectionId,
        /// What did not come.
        awaited: Awaited,
    },
    /// It is forgotten after timewait: its queue pair may be connected again.
    Released {
        /// The connection.
        id: ConnectionId,
    },
}

/// What a peer asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The service.
    pub service_id: u64,
    /// What the queue pair is to be made with; less READs, if less are accepted.
    pub terms: Terms,
    /// The path, as the peer sees it: from it to this end.
    pub path: Path,
    /// The peer's queue pair takes receives from a shared queue.
    pub shared_receives: bool,
    /// What its application says. Linux' rdma_cm begins with an [`IpHeader`](crate::wire::cm::IpHeader).
    pub private: [u8; Request::PRIVATE],
}

/// What both ends agreed on, as this end's queue pair is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The peer's address.
    pub address: IpAddr,
    /// Service of the connection.
    pub transport: Transport,
    /// The peer's queue pair.
    pub peer: Qpn,
    /// First sequence number of this end's requests. The peer drew it, and told it: the Starting PSN of a message is that of
    /// its receiver's requests.
    pub send_psn: Psn,
    /// First sequence number of the peer's requests. This end drew it, and tells it.
    pub receive_psn: Psn,
    /// Path MTU.
    pub mtu: Mtu,
    /// Partition key.
    pub pkey: u16,
    /// READs and atomics that this end may have under way.
    pub max_reads: u8,
    /// Those of the peer that this end answers again.
    pub reads_answered: u8,
    /// Times that a packet is sent again without an answer, 0 to 7.
    pub retry_count: u8,
    /// Times that this end sends again where the peer had no receive, 0 to 7; 7: without end.
    pub rnr_retry: u8,
    /// How long an acknowledgment may take; code 0 is without end.
    pub ack_timeout: Timeout,
    /// The peer uses the credits of acknowledgments.
    pub flow_control: bool,
}

/// A message that is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// The answer to a request.
    Reply,
    /// The confirmation of an acceptance.
    ReadyToUse,
    /// The answer to the end of a connection. It is over nevertheless.
    Disconnected,
}

/// Where a connection stands. IBA 12.9.5 to 12.9.7 name the states so, but for MRA, which is no state of its own here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmState {
    /// REQ sent. True: the peer asked for time.
    RequestSent(bool),
    /// REQ received. True: the peer was asked for time.
    RequestReceived(bool),
    /// REP sent. True: the peer asked for time.
    ReplySent(bool),
    /// REP received. True: the peer was asked for time.
    ReplyReceived(bool),
    /// Both ends are ready, as far as this one knows.
    Established,
    /// DREQ sent.
    DisconnectSent,
    /// It is over; late messages are still answered.
    TimeWait,
}

/// Why a connection is not asked for, or a service not offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum OpenError {
    /// There are as many connections as the manager takes.
    #[error("as many connections as {limit} are open or linger; close some, or raise the limit")]
    Full {
        /// That many.
        limit: usize,
    },
    /// The service is offered already.
    #[error("service {service_id:#x} is offered already")]
    ServiceTaken {
        /// The service.
        service_id: u64,
    },
}

/// The connection is in no state to do that; the peer may have been faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the connection is in no state to do that: {state:?}")]
pub struct StateError {
    /// Its state; `None`: it is unknown, or forgotten.
    pub state: Option<CmState>,
}

impl Terms {
    /// A reliable connection of this end's queue pair `qpn` by these terms; what they do not say is as
    /// [`ReliableConfig::new`] has it.
    pub fn reliable(&self, qpn: Qpn) -> ReliableConfig {
        ReliableConfig {
            pkey: self.pkey,
            mtu: self.mtu,
            ack_timeout: (self.ack_timeout.code() > 0).then(|| self.ack_timeout.duration()),
            retry_count: Some(self.retry_count),
            rnr_retry: (self.rnr_retry != RNR_WITHOUT_END).then_some(self.rnr_retry),
            max_reads: self.max_reads,
            reads_answered: self.reads_answered,
            ..ReliableConfig::new(qpn, self.peer, self.send_psn, self.receive_psn)
        }
    }
}

/// RNR retries that do not end. IBA 9.7.5.2.8.
const RNR_WITHOUT_END: u8 = 7;
