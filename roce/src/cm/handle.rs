//! What comes in: which connection a message belongs to, and what it does there. One match per message over the states.

use core::net::IpAddr;
use std::time::Instant;

use super::config::ACK_TIMEOUT;
use super::event::{Awaited, CmState, ConnectionId, Event};
use super::manager::ConnectionManager;
use super::outbox::reject;
use super::time::Timeout;
use crate::wire::cm::{Message, Packet, Pair, Reason, Refused};

impl ConnectionManager {
    /// Handles a datagram to queue pair 1 from a host. What is no message, or goes with no connection, is counted and
    /// dropped, or refused where the sender can learn from it.
    pub fn handle(&mut self, now: Instant, from: IpAddr, bytes: &[u8], entropy: &mut dyn FnMut() -> u64) {
        let Ok(Packet { transaction, message }) = Packet::parse(bytes) else {
            self.outbox.counters.malformed += 1;
            return;
        };
        self.outbox.counters.received += 1;
        match message {
            Message::Request(request) => self.requested(now, from, transaction, &request, entropy),
            Message::Reply(reply) => self.replied(now, from, transaction, &reply),
            Message::ReadyToUse { ids, .. } => self.peer_ready(from, ids),
            Message::Wait { ids, message, timeout, .. } => {
                self.asked_for_time(now, from, ids, message, Timeout::from_code(timeout));
            }
            Message::Reject(reject) => self.rejected(now, from, &reject),
            Message::Disconnect { ids, qpn, .. } => self.peer_ends(now, from, transaction, ids, qpn),
            Message::Disconnected { ids, .. } => self.peer_ended(now, from, ids),
        }
    }

    /// The time has come that [`timeout`](ConnectionManager::timeout) told, or a later one.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(id) = self.table.due(now) {
            self.overdue(now, id);
        }
    }

    /// No answer came in time: the message is sent again, or given up.
    fn overdue(&mut self, now: Instant, id: u32) {
        let Some(connection) = self.table.get_mut(id) else { return };
        let again = match connection.state() {
            CmState::RequestSent(_) => CmState::RequestSent(false),
            CmState::ReplySent(_) => CmState::ReplySent(false),
            CmState::DisconnectSent => CmState::DisconnectSent,
            CmState::TimeWait => {
                self.table.remove(id);
                self.outbox.tell(Event::Released { id: ConnectionId(id) });
                return;
            }
            // Nothing of the peer is awaited in the others.
            state => return self.table.enter(id, state, None),
        };
        if connection.retries > 0 && connection.last.is_none_or(|last| now < last) {
            connection.retries -= 1;
            self.outbox.counters.resent += 1;
            self.outbox.send_again(connection.terms.address, connection.sent);
            let deadline = connection.until(now + connection.wait);
            self.table.enter(id, again, Some(deadline));
            return;
        }
        let awaited = match again {
            CmState::RequestSent(_) => {
                self.give_up(id, Refused::Other);
                self.table.remove(id);
                Awaited::Reply
            }
            CmState::ReplySent(_) => {
                self.give_up(id, Refused::Reply);
                self.linger(now, id);
                Awaited::ReadyToUse
            }
            _ => {
                self.linger(now, id);
                Awaited::Disconnected
            }
        };
        self.outbox.tell(Event::TimedOut { id: ConnectionId(id), awaited });
    }

    /// Tells the peer that it is not waited for any more. It may not know this end's ID, or not have told its own: the GUID
    /// of this end goes along (IBA 12.6.7.2, reason 4).
    pub(super) fn give_up(&mut self, id: u32, refused: Refused) {
        let Some(connection) = self.table.get(id) else { return };
        let guid = self.config.ca_guid.to_be_bytes();
        let reject = reject(connection.ids(id), refused, Reason::TIMEOUT, &guid);
        self.outbox.send(connection.terms.address, connection.transaction, Message::Reject(reject));
    }

    /// MRA: the answer will take a while. Only the first one after each message counts, so that a peer can not hold this
    /// end up for longer than the retries last, and none holds up one that has accepted it for longer than that waits at most.
    fn asked_for_time(&mut self, now: Instant, from: IpAddr, ids: Pair, message: Refused, time: Timeout) {
        let Some(connection) = self.table.named(from, ids) else {
            self.outbox.counters.unknown += 1;
            return;
        };
        let state = match (connection.state(), message) {
            (CmState::RequestSent(false), Refused::Request) => CmState::RequestSent(true),
            (CmState::ReplySent(false), Refused::Reply) => CmState::ReplySent(true),
            (CmState::RequestSent(true), Refused::Request) | (CmState::ReplySent(true), Refused::Reply) => {
                self.outbox.counters.duplicate += 1;
                return;
            }
            _ => {
                self.outbox.counters.unexpected += 1;
                return;
            }
        };
        let deadline = connection.until(now + time.bounded() + connection.wait);
        self.table.enter(ids.remote, state, Some(deadline));
    }

    /// Puts a connection that is over into timewait, for as long as a packet of it may be under way. IBA 12.9.8.
    pub(super) fn linger(&mut self, now: Instant, id: u32) {
        let Some(connection) = self.table.get(id) else { return };
        let time = connection.terms.ack_timeout;
        let deadline = now + if time.code() > 0 { time } else { ACK_TIMEOUT }.bounded();
        self.table.enter(id, CmState::TimeWait, Some(deadline));
    }
}
