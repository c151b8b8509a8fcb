//! Connections that are being made.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::connection::CmConnection;
use super::options::ConnectOptions;
use super::{deadline, soft};
use crate::context::Provider;
use crate::error::CmError;
use crate::ibv::cm as ibv;
use crate::qp::{Prepared, QueuePair};

/// A connection that is being made: it was asked for, or a request was accepted. Dropped, it is given up.
#[derive(Debug)]
#[must_use = "a connection that nobody waits for is given up"]
pub struct Connecting {
    connecting: Inner,
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there are few, and they are moved twice")]
enum Inner {
    Soft(soft::Connecting),
    Ibv(ibv::Connecting),
}

/// A connection that both ends are ready for.
#[derive(Debug)]
#[must_use = "the connection ends when this is dropped"]
pub struct Established {
    /// The queue pair, connected.
    pub queue_pair: QueuePair,
    /// What the peer's application said with its request, 56 bytes, or with its answer, 196 bytes; those that it did not
    /// give are zero.
    pub private_data: Vec<u8>,
    /// Tells when the peer disconnects. The connection ends when this is dropped, and the queue pair fails.
    pub connection: CmConnection,
}

/// Asks a peer for a connection.
pub(crate) fn connect(
    provider: &Provider,
    peer: SocketAddr,
    prepared: Prepared,
    options: &ConnectOptions,
) -> Result<Connecting, CmError> {
    let peer = match peer.ip().to_canonical() {
        // Without a scope, which an IPv6 address keeps.
        ip @ std::net::IpAddr::V4(_) => SocketAddr::new(ip, peer.port()),
        std::net::IpAddr::V6(_) => peer,
    };
    if peer.ip().is_unspecified() {
        let source = std::io::ErrorKind::AddrNotAvailable.into();
        return Err(CmError::Unreachable { peer, source });
    }
    match provider {
        Provider::Soft(node) => soft::connect(node, peer, prepared, options).map(Connecting::soft),
        Provider::Ibv(device) => ibv::connect(device, peer, prepared, options).map(Connecting::ibv),
    }
}

impl Connecting {
    pub(super) fn soft(connecting: soft::Connecting) -> Self {
        Connecting { connecting: Inner::Soft(connecting) }
    }

    pub(super) fn ibv(connecting: ibv::Connecting) -> Self {
        Connecting { connecting: Inner::Ibv(connecting) }
    }

    /// The connection, if it is established by now. Never blocks. A peer's acceptance waits until this is called: call it
    /// often.
    ///
    /// # Errors
    /// [`CmError`]: there is no connection. It said so once; from then on it is [`CmError::Over`].
    pub fn poll(&mut self) -> Result<Option<Established>, CmError> {
        self.advance(Some(Instant::now()))
    }

    /// Waits until the connection is established.
    ///
    /// # Errors
    /// [`CmError::TimedOut`] if that took longer than `limit`: it can be waited for once more. Others as
    /// [`poll`](Connecting::poll).
    pub fn wait(&mut self, limit: Duration) -> Result<Established, CmError> {
        self.advance(deadline(limit))?.ok_or(CmError::TimedOut { limit })
    }

    fn advance(&mut self, deadline: Option<Instant>) -> Result<Option<Established>, CmError> {
        match &mut self.connecting {
            Inner::Soft(connecting) => connecting.advance(deadline),
            Inner::Ibv(connecting) => connecting.advance(deadline),
        }
    }
}
