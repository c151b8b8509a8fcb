//! Names of things: tags, endpoints, operations, listeners.

use std::fmt;
use std::net::SocketAddr;

/// What a message is about, in the application's own numbering. A posted receive takes messages of its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Tag(pub u64);

/// One end of a connection, within its worker. Never given twice: a stale one is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// One send, posted receive, get or put, within its worker. Never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpId(pub(crate) u64);

/// A listening address, within its worker. Never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub(crate) u32);

/// A listening address. [`Worker::stop_listening`](crate::Worker::stop_listening) ends it; dropping this does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    pub(crate) id: ListenerId,
    pub(crate) address: SocketAddr,
}

impl Listener {
    /// The number that [`Event::Accepted`](crate::Event::Accepted) carries.
    pub fn id(&self) -> ListenerId {
        self.id
    }

    /// The address that peers connect to; the port is the real one where 0 was asked for.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for EndpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

impl fmt::Display for OpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
