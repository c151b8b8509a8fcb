//! Why a handshake failed.

use core::fmt;

use thiserror::Error;

/// Why a handshake failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// Another protocol.
    #[error("it does not speak this protocol; is it another kind of server or client?")]
    Magic,
    /// No version that both speak.
    #[error("it speaks {theirs} of this protocol, this side {ours}; take releases that have a version in common")]
    NoCommonVersion {
        /// What this side speaks.
        ours: Versions,
        /// What the peer speaks.
        theirs: Versions,
    },
    /// This side has a cluster key, the peer has none.
    #[error(
        "it has no cluster key, and this side asks for one; give it the file of this side's key by Config::cluster_key or \
         QPAIR_CLUSTER_KEY_FILE"
    )]
    PeerHasNoKey,
    /// The peer has a cluster key, this side has none.
    #[error(
        "it asks for a cluster key, and this side has none; give this side the file of its key by Config::cluster_key or \
         QPAIR_CLUSTER_KEY_FILE"
    )]
    PeerWantsKey,
    /// The cluster keys differ.
    #[error("its cluster key is not that of this side; give both sides the same file")]
    WrongKey,
    /// A message after the exchange of keys is not the peer's.
    #[error(
        "what came in its name was changed on the way, or is not from it; look for what stands between the two sides"
    )]
    Tampered,
    /// An unknown or unexpected message.
    #[error("it sent handshake message {0} where another was due")]
    Unexpected(u8),
    /// Too long.
    #[error("its handshake message of {len} bytes exceeds the limit of {limit}")]
    TooLong {
        /// Length that it announced.
        len: usize,
        /// Limit.
        limit: usize,
    },
    /// More than is ever due, or it does not read what is said to it.
    #[error("it says more than a peer has to say, or does not read the answers")]
    Flood,
    /// The body makes no sense.
    #[error("its handshake message can not be read: {0}")]
    Body(Box<str>),
    /// Values out of range.
    #[error("it offers {what} of {value}, which is not possible")]
    Value {
        /// The value's name.
        what: &'static str,
        /// The value.
        value: u64,
    },
    /// The devices of both sides can not reach each other.
    #[error(
        "a device on {ours} and one on {theirs} do not reach each other; choose devices of one kind by Config::device or \
         QPAIR_DEVICE"
    )]
    Fabrics {
        /// What this side's device is on.
        ours: &'static str,
        /// What the peer's is on.
        theirs: &'static str,
    },
    /// It answers a connection over datagrams with another.
    #[error("it takes no connections over datagrams; use `connect`, or a release there that has them")]
    NoDatagrams,
    /// A queue pair of another service than its terms are for.
    #[error("its queue pair and what it says of it do not go together")]
    Service,
    /// It hung up too early.
    #[error("it hung up before the handshake was over")]
    HungUp,
    /// It took too long.
    #[error("it did not finish the handshake in time")]
    TimedOut,
    /// This side could not go on.
    #[error("this side could not go on: {0}")]
    Resources(Box<str>),
}

/// Versions of the connection protocol that a side speaks, from the lowest to the highest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// The lowest.
    pub lowest: u8,
    /// The highest.
    pub highest: u8,
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Versions { lowest, highest } = self;
        if lowest == highest { write!(f, "version {lowest}") } else { write!(f, "versions {lowest} to {highest}") }
    }
}
