//! Names of things: tags, endpoints, operations, listeners.

use std::fmt;
use std::net::SocketAddr;

use crate::engine::Peer;

/// What a message is about, in the application's own numbering. A posted receive takes messages of its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Tag(pub u64);

/// One end of a connection, within its worker. Never given twice: a stale one is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// One operation, within its worker. Never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpId {
    pub(crate) number: u64,
    /// Its connection; [`NOBODY`] if it has none of its own.
    pub(crate) index: u32,
}

/// Which tags a receive takes. A [`Tag`] is a pattern that takes itself alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TagPattern {
    /// The bits that a tag must have.
    pub tag: Tag,
    /// Which bits count.
    pub mask: u64,
}

/// Whose messages a receive takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Anyone's.
    Any,
    /// Those of one connection.
    Endpoint(EndpointId),
}

/// What an active message or a request is for, in the application's own numbering: the receiver's
/// [`Handlers`](crate::Handlers) have a function for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HandlerId(pub u16);

/// A listening address, within its worker. Never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub(crate) u32);

/// A listening address. [`Worker::stop_listening`](crate::Worker::stop_listening) ends it; dropping this does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    pub(crate) id: ListenerId,
    pub(crate) address: SocketAddr,
}

impl OpId {
    pub(crate) fn new(number: u64, ep: Option<EndpointId>) -> Self {
        OpId { number, index: ep.map_or(NOBODY, |ep| ep.index) }
    }
}

impl TagPattern {
    /// Takes every tag.
    pub const ANY: TagPattern = TagPattern { tag: Tag(0), mask: 0 };

    /// Takes the tags that have the same bits as `tag` where `mask` has ones.
    #[must_use]
    pub const fn masked(tag: Tag, mask: u64) -> Self {
        TagPattern { tag, mask }
    }
}

impl From<Tag> for TagPattern {
    fn from(tag: Tag) -> Self {
        TagPattern { tag, mask: u64::MAX }
    }
}

impl From<EndpointId> for Source {
    fn from(ep: EndpointId) -> Self {
        Source::Endpoint(ep)
    }
}

impl EndpointId {
    /// The connection as the engine numbers it.
    #[inline(always)]
    pub(crate) fn peer(self) -> Peer {
        Peer(u64::from(self.index) | u64::from(self.generation) << 32)
    }

    /// The connection that the engine numbers so.
    pub(crate) fn of(peer: Peer) -> Self {
        EndpointId { index: peer.0 as u32, generation: (peer.0 >> 32) as u32 }
    }
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
        self.number.fmt(f)
    }
}

impl fmt::Display for HandlerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// In place of a connection's index.
const NOBODY: u32 = u32::MAX;
