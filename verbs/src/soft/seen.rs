//! A queue pair of this host, as its device describes it to whoever connects to it.

use std::sync::Arc;
use std::task::Waker;

use super::bell::Rope;
use super::control::Link;
use super::filler::Filler;
use super::layout::QpInfo;
use super::node::Node;
use super::roce::Network;
use crate::address::QpAddress;
use crate::asking::{self, CLOSED, Ticket, Whom};
use crate::error::ConnectError;

/// The way to a queue pair, as it was found.
pub(crate) enum Found {
    /// It is on this host.
    Here(Box<Seen>),
    /// It is on another, or on no software device.
    Network(Arc<Network>),
}

impl Found {
    /// The queue pair of this host.
    pub(super) fn here(self) -> Result<Seen, ConnectError> {
        match self {
            Found::Here(seen) => Ok(*seen),
            Found::Network(_) => Err(ANOTHER_WAY),
        }
    }

    /// The network, where the way leads over it.
    pub(super) fn network(self) -> Result<Arc<Network>, ConnectError> {
        match self {
            Found::Here(_) => Err(ANOTHER_WAY),
            Found::Network(network) => Ok(network),
        }
    }
}

/// What came of asking.
pub(crate) type Answer = Result<Found, ConnectError>;

/// What connecting to a queue pair of this host rests on.
pub(crate) struct Seen {
    pub(super) link: Arc<Link>,
    pub(super) info: QpInfo,
    pub(super) rope: Rope,
    pub(super) filler: Option<Filler>,
}

impl Seen {
    /// That at `address`, as the other end of the link describes it.
    pub(super) fn by(link: Arc<Link>, address: &QpAddress) -> Result<Self, ConnectError> {
        let (info, rope, filler) = link.query(address.qpn.0)?;
        if info.who.qpn != address.qpn.0 || info.qp_type != address.qp_type {
            return Err(ConnectError::BadAnswer { why: "the peer's device speaks of another queue pair" });
        }
        Ok(Seen { link, info, rope, filler })
    }
}

impl Node {
    /// Has `whom` asked for the way to the queue pair at `address`, or for the network if none is named, and `waker` woken with
    /// the answer.
    pub(crate) fn ask(self: &Arc<Self>, whom: Whom, address: Option<QpAddress>, waker: &Waker) -> Arc<Ticket<Found>> {
        let node = Arc::downgrade(self);
        asking::ask(whom, waker, move || match (node.upgrade(), &address) {
            (Some(node), Some(address)) => node.find_apart(address),
            (Some(node), None) => Ok(Found::Network(node.network()?)),
            (None, _) => Err(CLOSED),
        })
    }
}

const ANOTHER_WAY: ConnectError =
    ConnectError::NoRoute { why: "what was asked for is another address than the one to connect to" };
