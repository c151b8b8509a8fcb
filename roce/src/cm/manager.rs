//! The manager: what the application asks of it.

use core::net::{IpAddr, Ipv6Addr};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::config::{Accept, CmConfig, Connect, Offered};
use super::counters::CmCounters;
use super::event::{CmState, ConnectionId, Event, OpenError, StateError, Terms, Transmit};
use super::outbox::{Outbox, reject};
use super::table::{Connection, Table};
use super::time::Timeout;
use crate::types::{Mtu, Psn, Qpn};
use crate::wire::cm::{Message, Path, Reason, Refused, Reject, Reply, Request};

/// Sets up and ends the connections of one address, both those that it asks for and those that it is asked for.
///
/// Time and random numbers come in as arguments; after each call the datagrams of
/// [`poll_transmit`](ConnectionManager::poll_transmit) and the events of [`poll_event`](ConnectionManager::poll_event) are
/// to be taken. `entropy` must be unpredictable: communication IDs drawn from it are all that keeps others than the peer
/// from ending a connection. A new request for a connected queue pair ends the connection too (IBA 12.9.8), whoever
/// can send from the peer's address and knows its GUID.
#[derive(Debug)]
pub struct ConnectionManager {
    pub(super) config: CmConfig,
    pub(super) services: BTreeSet<u64>,
    pub(super) table: Table,
    pub(super) outbox: Outbox,
}

impl ConnectionManager {
    /// One without connections.
    pub fn new(config: CmConfig) -> Self {
        let (table, outbox) = (Table::default(), Outbox::new(config.backlog));
        ConnectionManager { config, services: BTreeSet::new(), table, outbox }
    }

    /// Offers a service: requests for it become events. Others are rejected.
    ///
    /// # Errors
    /// [`OpenError::ServiceTaken`].
    pub fn listen(&mut self, service_id: u64) -> Result<(), OpenError> {
        if self.services.insert(service_id) { Ok(()) } else { Err(OpenError::ServiceTaken { service_id }) }
    }

    /// Offers a service no more; false if it was not offered. Requests that are events by then are not affected.
    pub fn unlisten(&mut self, service_id: u64) -> bool {
        self.services.remove(&service_id)
    }

    /// Asks for a connection. [`Event::Accepted`], [`Event::Rejected`], [`Event::Stale`] or [`Event::TimedOut`] follows.
    ///
    /// # Errors
    /// [`OpenError::Full`].
    pub fn connect(
        &mut self,
        now: Instant,
        connect: &Connect,
        entropy: &mut dyn FnMut() -> u64,
    ) -> Result<ConnectionId, OpenError> {
        if self.table.len() >= self.config.connections {
            return Err(OpenError::Full { limit: self.config.connections });
        }
        let id = self.table.free_id(self.config.id_tail, entropy());
        let (transaction, receive_psn) = (entropy(), Psn::new(entropy() as u32));
        let request = self.request(id, connect, receive_psn);
        let mut connection =
            Connection::new(CmState::RequestSent(false), connect.terms_before_answer(receive_psn), transaction);
        connection.qpn = connect.offered.qpn;
        connection.wait = connect.peer_answers_within.bounded();
        connection.max_retries = request.max_cm_retries;
        connection.retries = request.max_cm_retries;
        connection.sent = self.outbox.send(connect.to, transaction, Message::Request(request));
        let deadline = now + connection.wait;
        self.table.insert(id, connection);
        self.table.enter(id, CmState::RequestSent(false), Some(deadline));
        Ok(ConnectionId(id))
    }

    /// Accepts what a peer asked for: [`Event::Established`], [`Event::Rejected`], [`Event::Disconnected`] or
    /// [`Event::TimedOut`] follows. Have the queue pair ready by the terms before the next datagram is sent.
    ///
    /// # Errors
    /// [`StateError`]: it is no request, or no more.
    pub fn accept(&mut self, now: Instant, id: ConnectionId, accept: &Accept) -> Result<Terms, StateError> {
        let ConnectionId(id) = self.in_state(id, |state| matches!(state, CmState::RequestReceived(_)))?;
        let Some(connection) = self.table.get_mut(id) else { return Err(StateError { state: None }) };
        let Offered { qpn, max_reads, reads_answered, peer_rnr_retry, flow_control, shared_receives } = accept.offered;
        connection.qpn = qpn;
        let terms = &mut connection.terms;
        terms.max_reads = terms.max_reads.min(max_reads);
        terms.reads_answered = terms.reads_answered.min(reads_answered);
        let terms = *terms;
        let reply = Reply {
            ids: connection.ids(id),
            qkey: 0,
            qpn,
            starting_psn: terms.receive_psn,
            responder_resources: terms.reads_answered,
            initiator_depth: terms.max_reads,
            ack_delay: accept.ack_delay.code(),
            failover: NO_ALTERNATE,
            flow_control,
            rnr_retry_count: peer_rnr_retry.min(7),
            shared_receives,
            ca_guid: self.config.ca_guid,
            private: accept.private,
        };
        connection.sent = self.outbox.send(terms.address, connection.transaction, Message::Reply(reply));
        connection.retries = connection.max_retries;
        // How long it waits, and how often, a stranger says.
        let last = now + LONGEST_REPLY;
        connection.last = Some(last);
        let deadline = (now + connection.wait).min(last);
        self.table.enter(id, CmState::ReplySent(false), Some(deadline));
        Ok(terms)
    }

    /// Says that this end is ready after [`Event::Accepted`]: the connection is established.
    ///
    /// # Errors
    /// [`StateError`]: it is not accepted, or no more.
    pub fn ready(&mut self, id: ConnectionId, private: &[u8; 224]) -> Result<(), StateError> {
        let ConnectionId(id) = self.in_state(id, |state| matches!(state, CmState::ReplyReceived(_)))?;
        if let Some(connection) = self.table.get_mut(id) {
            let message = Message::ReadyToUse { ids: connection.ids(id), private: *private };
            connection.sent = self.outbox.send(connection.terms.address, connection.transaction, message);
        }
        self.table.enter(id, CmState::Established, None);
        Ok(())
    }

    /// A packet of the peer came to the queue pair: it is ready, even though it was not heard to say so (IBA 12.9, the
    /// event "communication established"). [`Event::Established`] follows, if that was not known.
    ///
    /// # Errors
    /// [`StateError`]: it is not accepted, or over.
    pub fn heard(&mut self, id: ConnectionId) -> Result<(), StateError> {
        let ConnectionId(id) =
            self.in_state(id, |state| matches!(state, CmState::ReplySent(_) | CmState::Established))?;
        self.confirmed(id);
        Ok(())
    }

    /// Tells the peer that an answer to its request, or to its acceptance, will take that long.
    ///
    /// # Errors
    /// [`StateError`]: the peer awaits no answer.
    pub fn ask_for_time(&mut self, id: ConnectionId, time: Timeout, private: &[u8; 222]) -> Result<(), StateError> {
        let awaits = |state| matches!(state, CmState::RequestReceived(_) | CmState::ReplyReceived(_));
        let ConnectionId(id) = self.in_state(id, awaits)?;
        let Some(connection) = self.table.get_mut(id) else { return Err(StateError { state: None }) };
        let (message, state) = match connection.state() {
            CmState::RequestReceived(_) => (Refused::Request, CmState::RequestReceived(true)),
            _ => (Refused::Reply, CmState::ReplyReceived(true)),
        };
        let message = Message::Wait { ids: connection.ids(id), message, timeout: time.code(), private: *private };
        connection.sent = self.outbox.send(connection.terms.address, connection.transaction, message);
        self.table.enter(id, state, None);
        Ok(())
    }

    /// Refuses a request or an acceptance, or takes an acceptance back. No event but [`Event::Released`] follows, and that
    /// only for an acceptance that is taken back.
    ///
    /// # Errors
    /// [`StateError`]: the connection is established, or over, or was only asked for.
    pub fn reject(
        &mut self,
        now: Instant,
        id: ConnectionId,
        reason: Reason,
        private: &[u8; Reject::PRIVATE],
    ) -> Result<(), StateError> {
        let opens =
            |state| matches!(state, CmState::RequestReceived(_) | CmState::ReplySent(_) | CmState::ReplyReceived(_));
        let ConnectionId(id) = self.in_state(id, opens)?;
        let Some(connection) = self.table.get_mut(id) else { return Err(StateError { state: None }) };
        let refused = match connection.state() {
            CmState::RequestReceived(_) => Refused::Request,
            CmState::ReplyReceived(_) => Refused::Reply,
            _ => Refused::Other,
        };
        let reject = Reject { private: *private, ..reject(connection.ids(id), refused, reason, &[]) };
        self.outbox.send(connection.terms.address, connection.transaction, Message::Reject(reject));
        if refused == Refused::Other {
            self.linger(now, id);
        } else {
            self.table.remove(id);
        }
        Ok(())
    }

    /// Takes a request of this end back that was not answered. No event follows.
    ///
    /// # Errors
    /// [`StateError`]: it was answered, or is none of this end.
    pub fn cancel(&mut self, id: ConnectionId) -> Result<(), StateError> {
        let ConnectionId(id) = self.in_state(id, |state| matches!(state, CmState::RequestSent(_)))?;
        self.give_up(id, Refused::Other);
        self.table.remove(id);
        Ok(())
    }

    /// Ends an established connection: [`Event::Disconnected`] or [`Event::TimedOut`] follows, and [`Event::Released`].
    ///
    /// # Errors
    /// [`StateError`]: it is not established.
    pub fn disconnect(&mut self, now: Instant, id: ConnectionId, private: &[u8; 220]) -> Result<(), StateError> {
        let ConnectionId(id) = self.in_state(id, |state| state == CmState::Established)?;
        self.begin_end(now, id, private);
        Ok(())
    }

    /// The state of a connection; `None` if it is unknown, or forgotten.
    pub fn state(&self, id: ConnectionId) -> Option<CmState> {
        self.table.get(id.0).map(Connection::state)
    }

    /// Connections, those that linger in timewait among them.
    pub fn connections(&self) -> usize {
        self.table.len()
    }

    /// The next datagram to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.outbox.poll_transmit()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.outbox.poll_event()
    }

    /// When [`handle_timeout`](ConnectionManager::handle_timeout) is due, if nothing comes before.
    pub fn timeout(&self) -> Option<Instant> {
        self.table.timeout()
    }

    /// What happened to messages so far.
    pub fn counters(&self) -> CmCounters {
        self.outbox.counters
    }

    fn in_state(&self, id: ConnectionId, is_right: impl Fn(CmState) -> bool) -> Result<ConnectionId, StateError> {
        let state = self.state(id);
        if state.is_some_and(is_right) { Ok(id) } else { Err(StateError { state }) }
    }

    fn request(&self, local_id: u32, connect: &Connect, receive_psn: Psn) -> Request {
        let Offered { qpn, max_reads, reads_answered, peer_rnr_retry, flow_control, shared_receives } = connect.offered;
        let primary = Path {
            lids: [PERMISSIVE; 2],
            gids: [gid(self.config.address), gid(connect.to)],
            flow_label: connect.flow_label,
            traffic_class: connect.traffic_class,
            hop_limit: connect.hop_limit,
            ack_timeout: connect.ack_timeout.code(),
            ..Path::default()
        };
        Request {
            local_id,
            service_id: connect.service_id,
            ca_guid: self.config.ca_guid,
            qkey: 0,
            qpn,
            responder_resources: reads_answered,
            initiator_depth: max_reads,
            remote_response_timeout: connect.peer_answers_within.code(),
            transport: connect.transport,
            flow_control,
            // What the receiver sends from is what this end receives.
            starting_psn: receive_psn,
            local_response_timeout: connect.answers_within.code(),
            retry_count: connect.retry_count.min(7),
            pkey: connect.pkey,
            mtu: mtu_code(connect.mtu),
            rnr_retry_count: peer_rnr_retry.min(7),
            max_cm_retries: connect.max_cm_retries.min(15),
            shared_receives,
            primary,
            alternate: Path::default(),
            private: connect.private,
        }
    }
}

impl Connect {
    /// The terms as far as they are known: what the peer says of itself is still to come.
    fn terms_before_answer(&self, receive_psn: Psn) -> Terms {
        Terms {
            address: self.to,
            transport: self.transport,
            peer: Qpn(0),
            send_psn: Psn::new(0),
            receive_psn,
            mtu: self.mtu,
            pkey: self.pkey,
            max_reads: self.offered.max_reads,
            reads_answered: self.offered.reads_answered,
            retry_count: self.retry_count.min(7),
            rnr_retry: 0,
            ack_timeout: self.ack_timeout,
            flow_control: false,
        }
    }
}

/// An address as a GID. IBA A17.
fn gid(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => Ipv6Addr::octets(&address),
    }
}

/// The code of an MTU: 128 bytes x 2^n.
pub(super) fn mtu_code(mtu: Mtu) -> u8 {
    mtu.bytes().ilog2() as u8 - 7
}

/// No alternate path is refused: 0, as Linux' rdma_cm has it where there was none. IBA 12.7.
const NO_ALTERNATE: u8 = 0;
/// The local identifier where there are none, as Linux' rdma_cm has it over RoCE.
const PERMISSIVE: u16 = 0xffff;
/// How long this end waits at most until a peer that it accepted says that it is ready: as long as Linux' rdma_cm has its peers
/// wait, 16 times 4.3 s. One that asks for more would hold a place among those that are not confirmed for 18 minutes.
const LONGEST_REPLY: Duration = Duration::from_secs(70);
