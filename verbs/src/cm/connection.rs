//! Connections that are made: how their end is told, and brought about.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use qpair_roce::wire::cm::Reason;

use super::{deadline, soft};
use crate::error::CmError;
use crate::ibv::cm as ibv;

/// A connection: tells when the peer disconnects. Dropped, it disconnects.
///
/// When a connection ends, from either side, its queue pair moves to the error state, and what is posted completes as
/// flushed. A peer that vanishes does not say so: the queue pair notices when what it sends is not answered.
#[derive(Debug)]
#[must_use = "the connection ends when this is dropped"]
pub struct CmConnection {
    connection: Inner,
}

#[derive(Debug)]
enum Inner {
    Soft(soft::Connection),
    Ibv(ibv::Connection),
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// One side disconnected, and the other knows.
    Disconnected,
    /// This side disconnected, and the peer did not answer.
    NoAnswer,
    /// The peer does not know the connection, or takes it back.
    Rejected(Reason),
    /// This host lost it: its device was removed or has failed, or its connection manager is gone.
    Lost,
}

impl CmConnection {
    pub(super) fn soft(connection: soft::Connection) -> Self {
        CmConnection { connection: Inner::Soft(connection) }
    }

    pub(crate) fn ibv(connection: ibv::Connection) -> Self {
        CmConnection { connection: Inner::Ibv(connection) }
    }

    /// The other end. Its port is the one that was connected to, or the one that the peer's application names.
    pub fn peer(&self) -> SocketAddr {
        match &self.connection {
            Inner::Soft(connection) => connection.peer(),
            Inner::Ibv(connection) => connection.peer(),
        }
    }

    /// The address of this end.
    pub fn local(&self) -> IpAddr {
        match &self.connection {
            Inner::Soft(connection) => connection.local(),
            Inner::Ibv(connection) => connection.local(),
        }
    }

    /// How it ended, if it has. Never blocks.
    pub fn poll(&self) -> Option<Ended> {
        self.ended(Some(Instant::now()))
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// [`CmError::TimedOut`] if it has not within `limit`.
    pub fn wait(&self, limit: Duration) -> Result<Ended, CmError> {
        self.ended(deadline(limit)).ok_or(CmError::TimedOut { limit })
    }

    /// Ends it: the queue pair fails, and the peer is told. [`wait`](CmConnection::wait) tells when it knows. Poll for the
    /// completions of what was sent before: what is not acknowledged by then may not arrive.
    pub fn disconnect(&self) {
        match &self.connection {
            Inner::Soft(connection) => connection.disconnect(),
            Inner::Ibv(connection) => connection.disconnect(),
        }
    }

    fn ended(&self, deadline: Option<Instant>) -> Option<Ended> {
        match &self.connection {
            Inner::Soft(connection) => connection.ended(deadline),
            Inner::Ibv(connection) => connection.ended(deadline),
        }
    }
}
