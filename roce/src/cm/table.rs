//! The connections of a manager, by all that messages name them with, and when they are due.

use core::net::IpAddr;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::config::IdTail;
use super::event::{CmState, Terms};
use crate::types::Qpn;
use crate::wire::cm::{LEN, Pair};

/// The connections.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// By the ID that this end drew.
    connections: BTreeMap<u32, Connection>,
    /// Those that peers asked for.
    requests: BTreeMap<RequestKey, u32>,
    /// Those whose peer's queue pair is known.
    queue_pairs: BTreeMap<QueuePairKey, u32>,
    deadlines: BTreeSet<(Instant, u32)>,
    /// Connections that a peer asked for and that are not confirmed.
    pending: usize,
}

/// A request of a peer: its address, the GUID of its device, its ID. IBA 12.9.8 tells duplicates by the last two.
pub(super) type RequestKey = (IpAddr, u64, u32);
/// A queue pair of a peer: its address, the GUID of its device, its number.
pub(super) type QueuePairKey = (IpAddr, u64, Qpn);

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    state: CmState,
    deadline: Option<Instant>,
    /// This end asked for it.
    pub(super) is_active: bool,
    /// The peer's ID; none while it is not known.
    pub(super) remote: Option<u32>,
    /// GUID of the peer's device, once it is known.
    pub(super) guid: u64,
    /// Number of this end's exchanges.
    pub(super) transaction: u64,
    /// The peer's queue pair and its sequence number in them mean nothing until it is known.
    pub(super) terms: Terms,
    /// This end's queue pair, once it is known.
    pub(super) qpn: Qpn,
    /// How long the peer may take to answer.
    pub(super) wait: Duration,
    /// Times that a message is sent again.
    pub(super) max_retries: u8,
    /// Those that are left of the message under way.
    pub(super) retries: u8,
    /// When it is waited for no longer, whatever the peer asked for.
    pub(super) last: Option<Instant>,
    /// The last message sent, to be sent again.
    pub(super) sent: [u8; LEN],
}

impl Connection {
    /// One that begins in `state`, with nothing due.
    pub(super) fn new(state: CmState, terms: Terms, transaction: u64) -> Self {
        Connection {
            state,
            deadline: None,
            is_active: matches!(state, CmState::RequestSent(_)),
            remote: None,
            guid: 0,
            transaction,
            terms,
            qpn: Qpn(0),
            wait: Duration::ZERO,
            max_retries: 0,
            retries: 0,
            last: None,
            sent: [0; LEN],
        }
    }

    pub(super) fn state(&self) -> CmState {
        self.state
    }

    /// That time, or the last at which it is waited for.
    pub(super) fn until(&self, deadline: Instant) -> Instant {
        self.last.map_or(deadline, |last| deadline.min(last))
    }

    /// The IDs as a message of this end has them; `own` is its own.
    pub(super) fn ids(&self, own: u32) -> Pair {
        Pair { local: own, remote: self.remote.unwrap_or(0) }
    }

    fn request_key(&self) -> Option<RequestKey> {
        let remote = self.remote.filter(|_| !self.is_active)?;
        Some((self.terms.address, self.guid, remote))
    }

    fn queue_pair_key(&self) -> Option<QueuePairKey> {
        self.remote.map(|_| (self.terms.address, self.guid, self.terms.peer))
    }
}

impl Table {
    /// An ID that no connection has, from a drawn number.
    pub(super) fn free_id(&self, tail: IdTail, drawn: u64) -> u32 {
        let mut id = tail.id(drawn as u32);
        while self.connections.contains_key(&id) {
            id = tail.next(id);
        }
        id
    }

    pub(super) fn insert(&mut self, id: u32, connection: Connection) {
        if let Some(key) = connection.request_key() {
            self.requests.insert(key, id);
        }
        self.pending += usize::from(is_pending(connection.state));
        self.connections.insert(id, connection);
        self.index_queue_pair(id);
    }

    /// Makes a connection known by its peer's queue pair, once that is.
    pub(super) fn index_queue_pair(&mut self, id: u32) {
        if let Some(key) = self.connections.get(&id).and_then(Connection::queue_pair_key) {
            self.queue_pairs.insert(key, id);
        }
    }

    pub(super) fn get(&self, id: u32) -> Option<&Connection> {
        self.connections.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut Connection> {
        self.connections.get_mut(&id)
    }

    /// The connection that a message of `from` names: its receiver's ID is that of this end, and its sender's the peer's, if
    /// that is known.
    pub(super) fn named(&self, from: IpAddr, ids: Pair) -> Option<&Connection> {
        let connection = self.connections.get(&ids.remote)?;
        let is_same = connection.remote.is_none_or(|remote| remote == ids.local);
        (connection.terms.address == from && is_same).then_some(connection)
    }

    /// The connection that a peer asked for so.
    pub(super) fn requested(&self, key: &RequestKey) -> Option<u32> {
        self.requests.get(key).copied()
    }

    /// The connection with that queue pair of a peer.
    pub(super) fn connected(&self, key: &QueuePairKey) -> Option<u32> {
        self.queue_pairs.get(key).copied()
    }

    pub(super) fn len(&self) -> usize {
        self.connections.len()
    }

    pub(super) fn pending(&self) -> usize {
        self.pending
    }

    /// Puts a connection into a state, in which it is due at `deadline`.
    pub(super) fn enter(&mut self, id: u32, state: CmState, deadline: Option<Instant>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if let Some(old) = connection.deadline {
            self.deadlines.remove(&(old, id));
        }
        if let Some(new) = deadline {
            self.deadlines.insert((new, id));
        }
        self.pending -= usize::from(is_pending(connection.state));
        self.pending += usize::from(is_pending(state));
        (connection.state, connection.deadline) = (state, deadline);
    }

    pub(super) fn remove(&mut self, id: u32) {
        let Some(connection) = self.connections.remove(&id) else { return };
        if let Some(deadline) = connection.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        if let Some(key) = connection.request_key() {
            self.requests.remove(&key);
        }
        if let Some(key) = connection.queue_pair_key()
            && self.queue_pairs.get(&key) == Some(&id)
        {
            self.queue_pairs.remove(&key);
        }
        self.pending -= usize::from(is_pending(connection.state));
    }

    /// When the next connection is due.
    pub(super) fn timeout(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// A connection that is due by now.
    pub(super) fn due(&self, now: Instant) -> Option<u32> {
        self.deadlines.first().filter(|(at, _)| *at <= now).map(|(_, id)| *id)
    }
}

fn is_pending(state: CmState) -> bool {
    matches!(state, CmState::RequestReceived(_) | CmState::ReplySent(_))
}
