//! Connections that are made: how their end is told, and brought about.

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use super::handle::Handle;
use crate::cm::Ended;
use crate::soft::End;

/// A connection. Dropped, it disconnects.
#[derive(Debug)]
pub(crate) struct Connection {
    handle: Handle,
}

impl Connection {
    pub(super) fn new(handle: Handle) -> Self {
        Connection { handle }
    }

    pub(crate) fn peer(&self) -> SocketAddr {
        self.handle.peer
    }

    pub(crate) fn local(&self) -> IpAddr {
        self.handle.key.address
    }

    /// How it ended, if it has until then; none: without end.
    pub(crate) fn ended(&self, deadline: Option<Instant>) -> Option<Ended> {
        self.handle.watch.wait_for_end(deadline).map(Ended::from)
    }

    pub(crate) fn disconnect(&self) {
        self.handle.disconnect();
    }
}

impl From<End> for Ended {
    fn from(end: End) -> Self {
        match end {
            End::Disconnected | End::Stale => Ended::Disconnected,
            End::TimedOut => Ended::NoAnswer,
            End::Lost => Ended::Lost,
            End::Rejected { reason, .. } => Ended::Rejected(reason),
        }
    }
}
