//! What a worker tells the application.

use std::net::SocketAddr;

use qpair_verbs::Local;

use super::error::{CloseReason, OpError};
use super::ids::{EndpointId, ListenerId, OpId, Tag};
use super::message::Message;
use super::payload::Payload;
use crate::cm::HandshakeError;

/// Something that happened. Each operation that was taken ends with exactly one event: a send with `Sent`, a posted receive
/// with `ReceivedInto`, a get with `Got`, a put with `Put`, an atomic with `Fetched`, each with `Failed` instead.
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
    /// A long message waits for a receive ([`Config::hold_unmatched`](crate::Config::hold_unmatched), or longer than
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
    /// An operation did not come about.
    Failed {
        /// The operation.
        op: OpId,
        /// The connection.
        ep: EndpointId,
        /// Why.
        error: OpError,
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
    /// Nothing: a peer that does not answer is in the middle of reading the memory, or the device did not give it back in
    /// time, so that it is withheld.
    Withheld,
}

/// What [`Worker::run`](crate::Worker::run) does after an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Goes on.
    Continue,
    /// Returns.
    Stop,
}
