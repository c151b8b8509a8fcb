//! What a worker tells the application.

use std::net::SocketAddr;

use qpair_verbs::Local;

use super::error::{CloseReason, OpError};
use super::ids::{EndpointId, HandlerId, ListenerId, OpId, Tag};
use super::memory::{Message, Payload};
use super::ops::{Counter, Request, StreamEnd, StreamId};
use crate::cm::HandshakeError;

/// Something that happened.
///
/// Each operation that was taken, whatever has an [`OpId`], ends with exactly one event: a send with `Sent`, a posted receive
/// with `ReceivedInto` or `Matched`, a request with `Response`, a get with `Got`, a put with `Put`, an atomic with `Fetched`, a
/// flush with `Flushed`, a wait for a counter with `Counted`; each with `Failed` instead. Only where that withholds memory,
/// `Released` follows later, if the memory ever comes back.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A connection that this worker asked for is up, on both sides.
    Connected {
        /// The connection.
        ep: EndpointId,
    },
    /// A peer connected, on both sides.
    Accepted {
        /// The connection.
        ep: EndpointId,
        /// Where it came in.
        listener: ListenerId,
    },
    /// A message for which no receive was posted.
    ///
    /// It is a view of the memory that it landed in: no copy was made. See [`Message`].
    Received {
        /// The connection.
        ep: EndpointId,
        /// Its tag.
        tag: Tag,
        /// Its contents.
        message: Message,
    },
    /// A posted receive without memory of its own took a message, which is handed out as it is.
    Matched {
        /// The receive.
        op: OpId,
        /// The connection.
        ep: EndpointId,
        /// The message's tag.
        tag: Tag,
        /// Its contents.
        message: Message,
    },
    /// An active message: see [`Handlers`](crate::Handlers).
    Active {
        /// The connection.
        ep: EndpointId,
        /// What it is for.
        handler: HandlerId,
        /// A number that came with it.
        argument: u64,
        /// Its contents.
        message: Message,
    },
    /// A request of a peer: see [`Handlers`](crate::Handlers).
    Request(Request),
    /// The answer to a [`request`](crate::Worker::request).
    Response {
        /// The request.
        op: OpId,
        /// The connection.
        ep: EndpointId,
        /// The answer.
        message: Message,
        /// What was sent with the request.
        returned: Returned,
    },
    /// A peer opened a stream.
    StreamOpened {
        /// The stream.
        stream: StreamId,
    },
    /// The next part of a stream.
    StreamData {
        /// The stream.
        stream: StreamId,
        /// Its contents.
        message: Message,
    },
    /// The peer's half of a stream is over. This side's goes on until it is finished too.
    StreamEnded {
        /// The stream.
        stream: StreamId,
        /// How.
        end: StreamEnd,
    },
    /// A peer tells that its puts so far are in place, or anything else: [`Notice::Value`](crate::Notice::Value).
    Notified {
        /// The connection.
        ep: EndpointId,
        /// The peer's number for it.
        value: u64,
    },
    /// A counter has come to the value that [`when_counted`](crate::Worker::when_counted) asked for.
    Counted {
        /// The wait for it.
        op: OpId,
        /// The counter.
        counter: Counter,
        /// Its value now.
        value: u64,
    },
    /// A long message waits for a receive ([`Config::unmatched`](crate::Config::unmatched), or longer than
    /// [`Config::pool_limit`](crate::Config::pool_limit)).
    /// [`Worker::recv_into`](crate::Worker::recv_into) with its tag begins to read it at once.
    Offered {
        /// The connection.
        ep: EndpointId,
        /// Its tag.
        tag: Tag,
        /// Its length in bytes.
        len: u64,
    },
    /// A posted receive took a message.
    ReceivedInto {
        /// The receive.
        op: OpId,
        /// The connection.
        ep: EndpointId,
        /// The message's tag.
        tag: Tag,
        /// The memory that was posted; its first `len` bytes are the message, or were combined with it.
        memory: Local,
        /// Length of the message in bytes.
        len: usize,
    },
    /// A [`get`](crate::Worker::get) is done.
    Got {
        /// The operation.
        op: OpId,
        /// The connection.
        ep: EndpointId,
        /// The memory that was read into.
        memory: Local,
    },
    /// A [`put`](crate::Worker::put) is done: the data is in the peer's memory.
    Put {
        /// The operation.
        op: OpId,
        /// The connection.
        ep: EndpointId,
        /// The memory that was written from.
        memory: Local,
    },
    /// A [`fetch_add`](crate::Worker::fetch_add) or [`compare_swap`](crate::Worker::compare_swap) is done.
    Fetched {
        /// The operation.
        op: OpId,
        /// The connection.
        ep: EndpointId,
        /// What was there before.
        value: u64,
    },
    /// A payload may be reused: it was copied, or the peer has read it.
    Sent {
        /// The send.
        op: OpId,
        /// What was sent.
        payload: Payload,
    },
    /// All that was begun before a [`flush`](crate::Worker::flush) has come to the peer.
    Flushed {
        /// The flush.
        op: OpId,
        /// The connection.
        ep: EndpointId,
    },
    /// An operation did not come about.
    Failed {
        /// The operation.
        op: OpId,
        /// The connection, if it has one.
        ep: Option<EndpointId>,
        /// Why.
        error: OpError,
        /// What belonged to it.
        returned: Returned,
    },
    /// Memory of an operation that failed and withheld it.
    Released {
        /// The operation.
        op: OpId,
        /// What belonged to it.
        returned: Returned,
    },
    /// A connection ended; its id is not valid any more.
    Closed {
        /// The connection.
        ep: EndpointId,
        /// Why.
        reason: CloseReason,
    },
    /// Someone connected to a listening port and did not get through the handshake.
    Rejected {
        /// Where.
        listener: ListenerId,
        /// Who.
        peer: SocketAddr,
        /// Why.
        error: HandshakeError,
    },
}

/// What a failed operation hands back.
#[derive(Debug)]
pub enum Returned {
    /// The payload of a send.
    Payload(Payload),
    /// The memory of a receive. Its contents are not specified.
    Memory(Local),
    /// Nothing, though there was something: a peer or a device still has the memory. [`Event::Released`] hands it out when it
    /// is free; of a connection that ended without the device giving it back, never.
    Withheld,
    /// There was nothing.
    Nothing,
}

impl Event {
    /// The operation that it ends, if it ends one.
    pub fn op(&self) -> Option<OpId> {
        match self {
            Event::Matched { op, .. }
            | Event::ReceivedInto { op, .. }
            | Event::Response { op, .. }
            | Event::Got { op, .. }
            | Event::Put { op, .. }
            | Event::Fetched { op, .. }
            | Event::Sent { op, .. }
            | Event::Flushed { op, .. }
            | Event::Counted { op, .. }
            | Event::Failed { op, .. } => Some(*op),
            _ => None,
        }
    }

    /// True if a message of its own came that it does not hand out.
    pub(crate) fn is_notice(&self) -> bool {
        matches!(self, Event::Notified { .. } | Event::StreamEnded { .. })
    }

    /// True if memory of the operation that it ends is to come back later.
    pub(crate) fn withholds(&self) -> bool {
        let (Event::Failed { returned, .. } | Event::Response { returned, .. }) = self else { return false };
        matches!(returned, Returned::Withheld)
    }

    /// The event of an operation that nobody waits for any more: its memory comes back.
    pub(crate) fn released(self, op: OpId) -> Event {
        let returned = match self {
            Event::Got { memory, .. } | Event::Put { memory, .. } => Returned::Memory(memory),
            Event::Failed { returned, .. } => returned,
            _ => Returned::Nothing,
        };
        Event::Released { op, returned }
    }
}

/// What [`Worker::run`](crate::Worker::run) does after an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Goes on.
    Continue,
    /// Returns.
    Stop,
}
