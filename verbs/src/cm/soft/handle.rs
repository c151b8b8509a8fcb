//! What holds a connection of the software device's manager.

use std::net::SocketAddr;
use std::sync::Arc;

use qpair_roce::cm::{Accept, Terms};
use qpair_roce::wire::cm::Reject;

use crate::error::{CmError, ConnectError};
use crate::soft::{CmNetwork, End, Key, Node, SoftQp, Watch};
use crate::types::Mtu;
use qpair_roce::wire::cm::Reason;

/// A connection of a manager, from the request on. It ends when this is dropped: what was not accepted is refused, what was
/// asked for is taken back, what is established is disconnected.
pub(super) struct Handle {
    pub(super) watch: Arc<Watch>,
    pub(super) key: Key,
    /// The other end, as the application names it.
    pub(super) peer: SocketAddr,
    network: Arc<CmNetwork>,
    /// The device stays open with it.
    node: Arc<Node>,
}

impl Handle {
    pub(super) fn new(
        node: Arc<Node>,
        network: Arc<CmNetwork>,
        (key, watch): (Key, Arc<Watch>),
        peer: SocketAddr,
    ) -> Self {
        Handle { watch, key, peer, network, node }
    }

    /// Checks that a queue pair is of the device.
    pub(super) fn check(&self, qp: &SoftQp) -> Result<(), CmError> {
        if qp.is_of(&self.node) { Ok(()) } else { Err(CmError::ForeignObject) }
    }

    /// True while the peer waits for an answer to its request.
    pub(super) fn is_asked(&self) -> bool {
        self.network.is_asked(self.key)
    }

    pub(super) fn accept(&self, accept: &Accept) -> Result<Terms, CmError> {
        self.network.accept(self.key, accept).map_err(|_| self.why_over())
    }

    /// Says that this end is ready.
    pub(super) fn ready(&self) -> Result<(), CmError> {
        self.network.ready(self.key).map_err(|_| self.why_over())
    }

    pub(super) fn reject(&self, reason: Reason, private: &[u8; Reject::PRIVATE]) -> Result<(), CmError> {
        self.network.reject(self.key, reason, private).map_err(|_| self.why_over())
    }

    /// Ends it; it may have ended before.
    pub(super) fn disconnect(&self) {
        let _ = self.network.disconnect(self.key, &self.watch);
    }

    /// Refuses what has longer packets than this side.
    pub(super) fn check_mtu(&self, asked: Mtu, limit: Mtu) -> Result<(), CmError> {
        if asked.bytes() <= limit.bytes() {
            return Ok(());
        }
        let _ = self.reject(Reason::INVALID_MTU, &[0; Reject::PRIVATE]);
        Err(CmError::MtuTooLong { asked, limit })
    }

    /// Why nothing can be done about it any more.
    pub(super) fn why_over(&self) -> CmError {
        self.watch.end().map_or(CmError::Over, |end| self.error(end))
    }

    /// Why the queue pair could not be connected: because the connection ended meanwhile, if it has.
    pub(super) fn why_not(&self, error: ConnectError) -> CmError {
        self.watch.end().map_or_else(|| error.into(), |end| self.error(end))
    }

    /// An end that comes before the application has the connection.
    pub(super) fn error(&self, end: End) -> CmError {
        let peer = self.peer;
        match end {
            End::Rejected { reason, private } => CmError::rejected(peer, reason, private.to_vec()),
            End::Stale => CmError::Stale { peer },
            End::TimedOut => CmError::NoAnswer { peer },
            End::Disconnected => CmError::Disconnected { peer },
            End::Lost => ConnectError::DeviceFailed.into(),
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.network.let_go(self.key);
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle").field("key", &self.key).field("peer", &self.peer).finish_non_exhaustive()
    }
}

/// A port for the other end to call back at, which nobody does: rdma_cm names one.
pub(super) fn source_port(random: u32) -> u16 {
    FIRST_PORT + (random % u32::from(u16::MAX - FIRST_PORT)) as u16
}

/// Those that a system gives out by itself, by IANA.
const FIRST_PORT: u16 = 49152;
