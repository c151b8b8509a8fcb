//! REQ, REP and RTU: how connections begin. IBA 12.9.5, 12.9.6, 12.9.7.

use core::net::IpAddr;
use std::time::Instant;

use super::event::{CmState, ConnectionId, Event, Offer, Terms};
use super::manager::{ConnectionManager, mtu_code};
use super::outbox::reject;
use super::table::{Connection, RequestKey};
use super::time::Timeout;
use crate::types::{Mtu, Psn};
use crate::wire::cm::{Message, Pair, Reason, Refused, Reply, Request, Transport};

impl ConnectionManager {
    /// REQ.
    pub(super) fn requested(
        &mut self,
        now: Instant,
        from: IpAddr,
        transaction: u64,
        request: &Request,
        entropy: &mut dyn FnMut() -> u64,
    ) {
        let key: RequestKey = (from, request.ca_guid, request.local_id);
        if let Some(id) = self.table.requested(&key) {
            return self.requested_again(id, transaction);
        }
        let ids = Pair { local: 0, remote: request.local_id };
        if let Some(older) = self.table.connected(&(from, request.ca_guid, request.qpn)) {
            self.outbox.refuse(from, transaction, ids, Refused::Request, Reason::STALE_CONNECTION);
            return self.is_stale(now, older);
        }
        let mtu = match acceptable(request, self.services.contains(&request.service_id), self.config.largest_mtu) {
            Ok(mtu) => mtu,
            Err((reason, more)) => {
                let reject = reject(ids, Refused::Request, reason, more.as_slice());
                self.outbox.send(from, transaction, Message::Reject(reject));
                return;
            }
        };
        let config = &self.config;
        let is_full = self.table.pending() >= config.pending || self.table.len() >= config.connections;
        if is_full || self.outbox.is_full() {
            // It comes again, and there may be room then.
            self.outbox.counters.refused_pending += 1;
            return;
        }
        let id = self.table.free_id(config.id_tail, entropy());
        let terms = offered_terms(from, request, mtu, Psn::new(entropy() as u32));
        let mut connection = Connection::new(CmState::RequestReceived(false), terms, transaction);
        connection.remote = Some(request.local_id);
        connection.guid = request.ca_guid;
        connection.wait = Timeout::from_code(request.local_response_timeout).bounded();
        connection.max_retries = request.max_cm_retries;
        self.table.insert(id, connection);
        let Request { service_id, primary: path, shared_receives, private, .. } = *request;
        let offer = Offer { service_id, terms, path, shared_receives, private };
        self.outbox.tell(Event::Requested { id: ConnectionId(id), offer });
    }

    /// A REQ that had come before.
    fn requested_again(&mut self, id: u32, transaction: u64) {
        self.outbox.counters.duplicate += 1;
        let Some(connection) = self.table.get(id) else { return };
        let to = connection.terms.address;
        match connection.state() {
            // What was sent is MRA, or REP.
            CmState::RequestReceived(true) | CmState::ReplySent(_) => self.outbox.send_again(to, connection.sent),
            CmState::TimeWait => {
                let ids = connection.ids(id);
                self.outbox.refuse(to, transaction, ids, Refused::Request, Reason::STALE_CONNECTION);
            }
            // The application has not answered yet; or the peer has its answer.
            _ => {}
        }
    }

    /// REP.
    pub(super) fn replied(&mut self, now: Instant, from: IpAddr, transaction: u64, reply: &Reply) {
        let Some(connection) = self.table.named(from, reply.ids) else {
            // The peer would send it again and again, until it gives up.
            self.outbox.counters.unknown += 1;
            let ids = Pair { local: reply.ids.remote, remote: reply.ids.local };
            return self.outbox.refuse(from, transaction, ids, Refused::Reply, Reason::INVALID_COMMUNICATION_ID);
        };
        match connection.state() {
            CmState::RequestSent(_) => self.accepted(now, from, transaction, reply),
            // What was sent is MRA, or RTU.
            CmState::ReplyReceived(true) | CmState::Established if connection.is_active => {
                self.outbox.counters.duplicate += 1;
                self.outbox.send_again(from, connection.sent);
            }
            CmState::ReplyReceived(false) | CmState::DisconnectSent | CmState::TimeWait if connection.is_active => {
                self.outbox.counters.duplicate += 1;
            }
            _ => self.outbox.counters.unexpected += 1,
        }
    }

    /// The first REP to a request of this end.
    fn accepted(&mut self, now: Instant, from: IpAddr, transaction: u64, reply: &Reply) {
        let id = reply.ids.remote;
        if let Some(older) = self.table.connected(&(from, reply.ca_guid, reply.qpn)) {
            let ids = Pair { local: id, remote: reply.ids.local };
            self.outbox.refuse(from, transaction, ids, Refused::Reply, Reason::STALE_CONNECTION);
            self.table.remove(id);
            self.outbox.tell(Event::Stale { id: ConnectionId(id) });
            return self.is_stale(now, older);
        }
        let Some(connection) = self.table.get_mut(id) else { return };
        connection.remote = Some(reply.ids.local);
        connection.guid = reply.ca_guid;
        let terms = &mut connection.terms;
        terms.peer = reply.qpn;
        // What the peer tells is what this end, the receiver, sends from.
        terms.send_psn = reply.starting_psn;
        terms.max_reads = terms.max_reads.min(reply.responder_resources);
        terms.reads_answered = terms.reads_answered.min(reply.initiator_depth);
        terms.rnr_retry = reply.rnr_retry_count;
        terms.ack_timeout = terms.ack_timeout.with_delay(Timeout::from_code(reply.ack_delay));
        terms.flow_control = reply.flow_control;
        let terms = *terms;
        self.table.index_queue_pair(id);
        self.table.enter(id, CmState::ReplyReceived(false), None);
        self.outbox.tell(Event::Accepted { id: ConnectionId(id), terms, private: reply.private });
    }

    /// RTU.
    pub(super) fn peer_ready(&mut self, from: IpAddr, ids: Pair) {
        let Some(connection) = self.table.named(from, ids).filter(|connection| !connection.is_active) else {
            self.outbox.counters.unknown += 1;
            return;
        };
        match connection.state() {
            CmState::ReplySent(_) => self.confirmed(ids.remote),
            CmState::Established | CmState::DisconnectSent | CmState::TimeWait => self.outbox.counters.duplicate += 1,
            _ => self.outbox.counters.unexpected += 1,
        }
    }

    /// The peer knows that this end accepted.
    pub(super) fn confirmed(&mut self, id: u32) {
        if let Some(CmState::ReplySent(_)) = self.table.get(id).map(Connection::state) {
            self.table.enter(id, CmState::Established, None);
            self.outbox.tell(Event::Established { id: ConnectionId(id) });
        }
    }
}

/// Whether a request can be taken, and with which MTU; else the reason, and the code of what would have been.
fn acceptable(request: &Request, is_offered: bool, largest: Mtu) -> Result<Mtu, (Reason, Option<u8>)> {
    if !is_offered {
        return Err((Reason::INVALID_SERVICE_ID, None));
    }
    if let Transport::Other(..) = request.transport {
        return Err((Reason::INVALID_TRANSPORT, None));
    }
    let mtus = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096];
    let found = mtus.into_iter().find(|mtu| mtu_code(*mtu) == request.mtu && mtu.bytes() <= largest.bytes());
    found.ok_or((Reason::INVALID_MTU, Some(mtu_code(largest))))
}

/// The terms as the receiver of a request has them.
fn offered_terms(from: IpAddr, request: &Request, mtu: Mtu, receive_psn: Psn) -> Terms {
    Terms {
        address: from,
        transport: request.transport,
        peer: request.qpn,
        // What the peer tells is what this end, the receiver, sends from.
        send_psn: request.starting_psn,
        receive_psn,
        mtu,
        pkey: request.pkey,
        max_reads: request.responder_resources,
        reads_answered: request.initiator_depth,
        retry_count: request.retry_count,
        rnr_retry: request.rnr_retry_count,
        ack_timeout: Timeout::from_code(request.primary.ack_timeout),
        flow_control: request.flow_control,
    }
}
