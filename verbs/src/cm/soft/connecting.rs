//! Connections that are being made.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use qpair_roce::cm::{Connect, OpenError, Timeout};
use qpair_roce::wire::cm::{IP_HEADER_LEN, IpHeader, Request, SERVICE_TCP};

use super::connection::Connection;
use super::handle::{Handle, source_port};
use crate::cm::{CmConnection, ConnectOptions, Established, padded};
use crate::error::CmError;
use crate::qp::{Prepared, QueuePair};
use crate::soft::{Acceptance, NetworkGid, Node, Progress, random_u32};

/// A connection that is being made: it was asked for, or a request was accepted. Dropped, it is given up.
#[derive(Debug)]
pub(crate) struct Connecting {
    side: Side,
    handle: Option<Handle>,
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "it is moved twice")]
enum Side {
    /// This end asked, for a queue pair at that place.
    Asked(Prepared, NetworkGid),
    /// This end accepted, with a queue pair that is connected; what the peer said.
    Accepted(QueuePair, Vec<u8>),
    /// It is made, or failed.
    Over,
}

/// Asks a peer for a connection.
pub(crate) fn connect(
    node: &Arc<Node>,
    peer: SocketAddr,
    prepared: Prepared,
    options: &ConnectOptions,
) -> Result<Connecting, CmError> {
    let qp = prepared.soft().filter(|qp| qp.is_of(node)).ok_or(CmError::ForeignObject)?;
    let place = qp.place_towards(peer)?;
    let own = place.interface.address;
    let said: [u8; Request::PRIVATE - IP_HEADER_LEN] = padded(&options.private)?;
    let header = IpHeader { source: SocketAddr::new(own, source_port(random_u32())), destination: peer.ip() };
    let mut private = [0; Request::PRIVATE];
    private[..IP_HEADER_LEN].copy_from_slice(&header.emit());
    private[IP_HEADER_LEN..].copy_from_slice(&said);
    let within = Timeout::at_least(options.answer_within);
    let (traffic_class, hop_limit) = qp.header();
    let connect = Connect {
        transport: qp.transport()?,
        mtu: qp.mtu_at(&place),
        retry_count: qp.retry_count(),
        ack_timeout: qp.ack_timeout(),
        peer_answers_within: within,
        answers_within: within,
        max_cm_retries: options.attempts - 1,
        traffic_class,
        hop_limit,
        private,
        ..Connect::new(peer.ip(), SERVICE_TCP + u64::from(peer.port()), qp.offered())
    };
    node.check()?;
    let network = node.network()?;
    let asked = network.request(own, &connect).map_err(|error| match error {
        OpenError::Full { limit } => CmError::Full { limit },
        OpenError::ServiceTaken { .. } => CmError::Over,
    })?;
    let handle = Handle::new(node.clone(), network, asked, peer);
    Ok(Connecting { side: Side::Asked(prepared, place), handle: Some(handle) })
}

impl Connecting {
    pub(super) fn accepted(handle: Handle, queue_pair: QueuePair, private: Vec<u8>) -> Self {
        Connecting { side: Side::Accepted(queue_pair, private), handle: Some(handle) }
    }

    /// The connection, if it is established until then; none: without end.
    pub(crate) fn advance(&mut self, deadline: Option<Instant>) -> Result<Option<Established>, CmError> {
        let progress = match &self.handle {
            Some(handle) => handle.watch.wait_for_progress(deadline),
            None => return Err(CmError::Over),
        };
        if let Progress::Waiting = progress {
            return Ok(None);
        }
        let side = std::mem::replace(&mut self.side, Side::Over);
        // Dropped with an error, it is given up.
        let handle = self.handle.take().ok_or(CmError::Over)?;
        match (progress, side) {
            (Progress::Ended(end), _) => Err(handle.error(end)),
            (Progress::Accepted(acceptance), Side::Asked(prepared, place)) => {
                finish(handle, prepared, place, &acceptance).map(Some)
            }
            (Progress::Established, Side::Accepted(queue_pair, private_data)) => Ok(Some(Established {
                queue_pair,
                private_data,
                connection: CmConnection::soft(Connection::new(handle)),
            })),
            _ => Err(CmError::Over),
        }
    }
}

/// The peer accepted: this end's queue pair is connected, and the peer told that it is.
fn finish(
    handle: Handle,
    prepared: Prepared,
    place: NetworkGid,
    acceptance: &Acceptance,
) -> Result<Established, CmError> {
    let queue_pair =
        prepared.connect_by_terms(&acceptance.terms, place, &handle.watch).map_err(|error| handle.why_not(error))?;
    handle.ready()?;
    let private_data = acceptance.private.to_vec();
    Ok(Established { queue_pair, private_data, connection: CmConnection::soft(Connection::new(handle)) })
}
