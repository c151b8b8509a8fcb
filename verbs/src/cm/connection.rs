//! Connections that are made: how their end is told, and brought about.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use qpair_roce::wire::cm::Reason;

use super::deadline;
use super::handle::Handle;
use crate::error::CmError;
use crate::soft::End;

/// A connection: tells when the peer disconnects. Dropped, it disconnects.
///
/// When a connection ends, from either side, its queue pair moves to the error state, and what is posted completes as
/// flushed. A peer that vanishes does not say so: the queue pair notices when what it sends is not answered.
#[derive(Debug)]
#[must_use = "the connection ends when this is dropped"]
pub struct CmConnection {
    handle: Handle,
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
}

impl CmConnection {
    pub(super) fn new(handle: Handle) -> Self {
        CmConnection { handle }
    }

    /// The other end. Its port is the one that was connected to, or the one that the peer's application names.
    pub fn peer(&self) -> SocketAddr {
        self.handle.peer
    }

    /// The address of this end.
    pub fn local(&self) -> IpAddr {
        self.handle.key.address
    }

    /// How it ended, if it has. Never blocks.
    pub fn poll(&self) -> Option<Ended> {
        self.handle.watch.wait_for_end(Some(Instant::now())).map(Ended::from)
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// [`CmError::TimedOut`] if it has not within `limit`.
    pub fn wait(&self, limit: Duration) -> Result<Ended, CmError> {
        self.handle.watch.wait_for_end(deadline(limit)).map(Ended::from).ok_or(CmError::TimedOut { limit })
    }

    /// Ends it: the queue pair fails, and the peer is told. [`wait`](CmConnection::wait) tells when it knows. Poll for the
    /// completions of what was sent before: what is not acknowledged by then may not arrive.
    pub fn disconnect(&self) {
        self.handle.disconnect();
    }
}

impl From<End> for Ended {
    fn from(end: End) -> Self {
        match end {
            End::Disconnected | End::Stale => Ended::Disconnected,
            End::TimedOut => Ended::NoAnswer,
            End::Rejected { reason, .. } => Ended::Rejected(reason),
        }
    }
}
