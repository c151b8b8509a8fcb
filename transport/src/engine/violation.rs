//! What no correct peer does.

use thiserror::Error;

use super::wire::WireError;

/// Something that no correct peer does. The connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Violation {
    /// Not a message of this protocol.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// Another session.
    #[error("a message of session {got:#010x} in session {expected:#010x}")]
    Epoch {
        /// This session's epoch of the peer.
        expected: u32,
        /// The message's.
        got: u32,
    },
    /// A message is missing or came twice.
    #[error("message {got} came where {expected} was due")]
    Sequence {
        /// The number that was due.
        expected: u32,
        /// The number that came.
        got: u32,
    },
    /// A credit count that can not be.
    #[error("the peer says that it gave {said} slots when {used} are used")]
    Credits {
        /// Slots given, as the peer says.
        said: u32,
        /// Slots used.
        used: u32,
    },
    /// A message without a credit for it.
    #[error("a message came for which no credit was given")]
    NoCredit,
    /// A rendezvous was reported as finished that was not, or not of that length.
    #[error("the peer finished message {id:#x}, which was not offered in that length")]
    Finished {
        /// Message id.
        id: u64,
    },
    /// A payload was asked for that does not come in parts, or was asked for before.
    #[error("the peer wants the parts of message {id:#x}, which has none, or which it wanted before")]
    Wanted {
        /// Message id.
        id: u64,
    },
    /// Part of a payload that is not as long as it should be, or no offer.
    #[error("the peer offers {len} bytes as part of message {id:#x}, of which {left} are left")]
    Part {
        /// Message id.
        id: u64,
        /// Length that it offers.
        len: u64,
        /// Bytes that no part had yet.
        left: u64,
    },
    /// An offer that no device can read.
    #[error("the peer offers {len} bytes; no message is longer than {limit}")]
    TooLong {
        /// Length that it offers.
        len: u64,
        /// Greatest length.
        limit: u64,
    },
    /// More offers at once than there can be.
    #[error("the peer offers more than {limit} payloads at once")]
    TooManyOffers {
        /// Greatest number.
        limit: usize,
    },
    /// Part of a stream that is over, that this side never opened, or that is one too many.
    #[error("the peer sent part of stream {number}, which is not open")]
    Stream {
        /// The stream, as the peer numbers it.
        number: u64,
    },
    /// An acknowledgment of packets that were not sent.
    #[error("the peer says that it has {said} packets when {sent} were sent")]
    Acknowledged {
        /// Packets, as the peer says, modulo 2^31.
        said: u32,
        /// Packets sent, modulo 2^31.
        sent: u32,
    },
    /// An offer over datagrams, by which nothing can be read.
    #[error("the peer offers a payload for reading over datagrams")]
    OfferByDatagram,
    /// A count of messages received, after a queue pair was lost, that can not be.
    #[error("the peer says that it received {said} messages when {sent} were sent")]
    Received {
        /// Messages received, as the peer says, modulo 2^32.
        said: u32,
        /// Messages sent, modulo 2^32.
        sent: u32,
    },
    /// A count of messages sent, after a queue pair was lost, that can not be.
    #[error("the peer says that it sent {said} messages when {received} had come")]
    Sent {
        /// Messages sent, as the peer says, modulo 2^32.
        said: u32,
        /// Messages received, modulo 2^32.
        received: u32,
    },
    /// The peer gives room for more and more messages, and never says that it has those that came.
    #[error("the peer gave room for more messages, and said of none of {limit} that it came")]
    Unconfirmed {
        /// Messages of which it must say so.
        limit: usize,
    },
    /// Data after the peer had closed.
    #[error("a message came after the peer had closed")]
    AfterClose,
}
