//! REJ, DREQ and DREP: how connections end, or do not begin. IBA 12.9.7, 12.9.8.

use core::net::IpAddr;
use std::time::Instant;

use super::event::{CmState, ConnectionId, Event};
use super::manager::ConnectionManager;
use super::table::Connection;
use crate::types::Qpn;
use crate::wire::cm::{Message, Pair, Reason, Reject};

impl ConnectionManager {
    /// REJ. It is never answered.
    pub(super) fn rejected(&mut self, now: Instant, from: IpAddr, reject: &Reject) {
        let Some(id) = self.named_by_reject(from, reject) else {
            self.outbox.counters.unknown += 1;
            return;
        };
        let Some(connection) = self.table.get(id) else { return };
        let is_sure = connection.remote == Some(reject.ids.local) && reject.ids.remote == id;
        let lingers = match connection.state() {
            CmState::RequestSent(_) | CmState::RequestReceived(_) | CmState::ReplySent(_) => {
                reject.reason == Reason::STALE_CONNECTION
            }
            CmState::ReplyReceived(_) => true,
            // The peer gave up before it heard RTU, or forgot the connection. Linux leaves it to the queue pair to notice.
            CmState::Established if is_sure => true,
            CmState::DisconnectSent => {
                self.linger(now, id);
                return self.outbox.tell(Event::Disconnected { id: ConnectionId(id) });
            }
            CmState::Established => {
                self.outbox.counters.unexpected += 1;
                return;
            }
            CmState::TimeWait => {
                self.outbox.counters.duplicate += 1;
                return;
            }
        };
        if lingers {
            self.linger(now, id);
        } else {
            self.table.remove(id);
        }
        let (reason, private) = (reject.reason, reject.private);
        self.outbox.tell(Event::Rejected { id: ConnectionId(id), reason, private });
    }

    /// The connection of a REJ. A peer that waited too long may never have learned this end's ID; its GUID goes along.
    fn named_by_reject(&self, from: IpAddr, reject: &Reject) -> Option<u32> {
        let by_guid = || {
            let is_complete = reject.reason == Reason::TIMEOUT && reject.info_len >= 8;
            let guid = reject.info.first_chunk().filter(|_| is_complete)?;
            self.table.requested(&(from, u64::from_be_bytes(*guid), reject.ids.local))
        };
        by_guid().or_else(|| self.table.named(from, reject.ids).map(|_| reject.ids.remote))
    }

    /// Begins to end an established connection.
    pub(super) fn begin_end(&mut self, now: Instant, id: u32, private: &[u8; 220]) {
        let Some(connection) = self.table.get_mut(id) else { return };
        let message = Message::Disconnect { ids: connection.ids(id), qpn: connection.terms.peer, private: *private };
        connection.sent = self.outbox.send(connection.terms.address, connection.transaction, message);
        (connection.retries, connection.last) = (connection.max_retries, None);
        let deadline = now + connection.wait;
        self.table.enter(id, CmState::DisconnectSent, Some(deadline));
    }

    /// DREQ.
    pub(super) fn peer_ends(&mut self, now: Instant, from: IpAddr, transaction: u64, ids: Pair, qpn: Qpn) {
        let answer = Message::Disconnected { ids: Pair { local: ids.remote, remote: ids.local }, private: [0; 224] };
        let is_same = |connection: &&Connection| connection.remote == Some(ids.local);
        let Some(connection) = self.table.named(from, ids).filter(is_same) else {
            // Forgotten by this end; the peer would ask again and again. As Linux does.
            self.outbox.counters.unknown += 1;
            self.outbox.send(from, transaction, answer);
            return;
        };
        match connection.state() {
            _ if connection.qpn != qpn => self.outbox.counters.unexpected += 1,
            CmState::ReplySent(_) | CmState::ReplyReceived(_) | CmState::Established | CmState::DisconnectSent => {
                self.outbox.send(from, transaction, answer);
                self.linger(now, ids.remote);
                self.outbox.tell(Event::Disconnected { id: ConnectionId(ids.remote) });
            }
            CmState::TimeWait => {
                self.outbox.counters.duplicate += 1;
                self.outbox.send(from, transaction, answer);
            }
            CmState::RequestSent(_) | CmState::RequestReceived(_) => self.outbox.counters.unexpected += 1,
        }
    }

    /// DREP.
    pub(super) fn peer_ended(&mut self, now: Instant, from: IpAddr, ids: Pair) {
        match self.table.named(from, ids).map(Connection::state) {
            Some(CmState::DisconnectSent) => {
                self.linger(now, ids.remote);
                self.outbox.tell(Event::Disconnected { id: ConnectionId(ids.remote) });
            }
            Some(CmState::TimeWait) => self.outbox.counters.duplicate += 1,
            Some(_) => self.outbox.counters.unexpected += 1,
            None => self.outbox.counters.unknown += 1,
        }
    }

    /// The peer uses a connection's queue pair for a new one: the older is dead on its side, and ends on this one. IBA
    /// 12.9.8.
    pub(super) fn is_stale(&mut self, now: Instant, older: u32) {
        self.outbox.counters.stale += 1;
        if self.table.get(older).map(Connection::state) == Some(CmState::Established) {
            self.begin_end(now, older, &[0; 220]);
        }
    }
}
