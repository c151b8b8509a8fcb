//! Connecting: what the connection manager's messages mean for endpoints and queue pairs.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use qpair_verbs::Prepared;

use super::endpoint::{Carried, Endpoint, Stage};
use super::error::{CloseReason, ConnectError, ConnectFailure, Lost, ResourceError};
use super::event::Event;
use super::ids::{EndpointId, ListenerId};
use super::seen::{History, Note, Traffic};
use super::{Incoming, Worker, no_address};
use crate::cm::{HandshakeError, Hello, Message, Notice, SocketId, StreamEnd};
use crate::engine::{Link, LinkConfig, PeerTerms, RESERVED_SLOTS};

impl Worker {
    /// Begins to connect to the first of `addresses` that can be tried.
    pub(super) fn dial(&mut self, addresses: VecDeque<SocketAddr>) -> Result<EndpointId, ConnectError> {
        if self.endpoints.len() >= self.config.endpoints {
            return Err(ConnectError::TooManyEndpoints { limit: self.config.endpoints });
        }
        let (socket, peer, others) = self.next_address(addresses)?;
        let link = self.link(epoch().map_err(|source| ConnectError::System { address: peer, source })?);
        let eager_limit = self.config.eager_limit;
        let id = self.endpoints.insert(|id| endpoint(id, link, eager_limit, peer, socket, Stage::Dialing { others }));
        Ok(id)
    }

    /// Something that the sockets noticed.
    pub(super) fn notice(&mut self, notice: Notice) {
        match notice {
            Notice::Incoming { socket, listener, peer } => {
                self.incoming.push(Incoming { socket, listener: ListenerId(listener), peer });
            }
            Notice::Connected { socket } => self.greet(socket),
            Notice::Message { socket, message } => self.message(socket, message),
            Notice::Ended { socket, end } => self.ended(socket, end),
            Notice::TimedOut { socket } => self.timed_out(socket),
        }
    }

    fn message(&mut self, socket: SocketId, message: Message) {
        if let Some(place) = self.incoming.iter().position(|incoming| incoming.socket == socket) {
            let incoming = self.incoming.swap_remove(place);
            return match message {
                Message::Hello(hello) => self.accept(&incoming, &hello),
                other => self.turn_away(&incoming, HandshakeError::Unexpected(other.code())),
            };
        }
        let Some(index) = self.endpoints.by_socket(socket) else { return };
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let address = endpoint.peer;
        match (&endpoint.stage, message) {
            (Stage::Greeting(_), Message::Accept(hello)) => self.connected(index, &hello),
            (Stage::Greeting(_), Message::Reject(reason)) => {
                let failure = ConnectFailure::Rejected { address, reason: reason.into() };
                self.fail(index, failure.into());
            }
            (Stage::HalfOpen, Message::Ready) => {
                self.announce(index);
                self.advance(index);
            }
            // The peer's first message, over the queue pair, was faster.
            (Stage::Up, Message::Ready) => {}
            // It hangs up now, and that breaks nothing.
            (Stage::Up, Message::Farewell) => endpoint.parted = true,
            (_, other) => {
                let error = HandshakeError::Unexpected(other.code());
                self.break_off(index, ConnectFailure::Handshake { address, error }.into());
            }
        }
    }

    /// TCP is connected: makes a queue pair and says hello.
    fn greet(&mut self, socket: SocketId) {
        let Some(index) = self.endpoints.by_socket(socket) else { return };
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let ep = endpoint.id;
        let prepared = match self.prepare(ep) {
            Ok(prepared) => prepared,
            Err(error) => return self.fail(index, ConnectFailure::Resources(Box::new(error)).into()),
        };
        let now = self.now();
        let Some(endpoint) = self.endpoints.at(index) else { return };
        endpoint.reserved = true;
        let hello = hello(&prepared, endpoint.link.epoch(), self.shares.own(), self.config.eager_limit);
        endpoint.stage = Stage::Greeting(prepared);
        endpoint.note(now, Note::new("TCP connected, said hello"));
        self.sockets.send(socket, &Message::Hello(hello));
    }

    /// A peer said hello: connects to it and answers.
    fn accept(&mut self, incoming: &Incoming, theirs: &Hello) {
        match self.half_open(incoming, theirs) {
            Ok(answer) => self.sockets.send(incoming.socket, &Message::Accept(answer)),
            Err(failure) => {
                self.sockets.send(incoming.socket, &Message::Reject(failure.to_string()));
                self.turn_away(incoming, HandshakeError::Resources(failure.to_string().into()));
            }
        }
    }

    fn half_open(&mut self, incoming: &Incoming, theirs: &Hello) -> Result<Hello, ConnectFailure> {
        let resources = |error| ConnectFailure::Resources(Box::new(error));
        if self.endpoints.len() >= self.config.endpoints {
            return Err(resources(ResourceError::TooManyEndpoints { limit: self.config.endpoints }));
        }
        let system = |source| ConnectFailure::Unreachable { address: incoming.peer, source };
        let epoch = epoch().map_err(system)?;
        let prepared = self.prepare(self.endpoints.upcoming()).map_err(resources)?;
        let answer = hello(&prepared, epoch, self.shares.own(), self.config.eager_limit);
        let qp = match prepared.connect(&theirs.address) {
            Ok(qp) => qp,
            Err(error) => {
                self.unprepare();
                return Err(ConnectFailure::QueuePair(Box::new(error)));
            }
        };
        let link = self.link(epoch);
        let eager_limit = self.config.eager_limit.min(theirs.eager_limit as usize);
        let (peer, socket) = (incoming.peer, incoming.socket);
        let id = self.endpoints.insert(|id| endpoint(id, link, eager_limit, peer, socket, Stage::HalfOpen));
        let now = self.now();
        self.sockets.greeted(socket, now);
        if let Some(endpoint) = self.endpoints.get_mut(id) {
            endpoint.reserved = true;
            endpoint.listener = Some(incoming.listener);
        }
        self.endpoints.attach(id.index as usize, qp, &terms(theirs), now);
        Ok(answer)
    }

    /// The peer is connected to this side: connects to it, and says so.
    fn connected(&mut self, index: usize, theirs: &Hello) {
        let now = self.now();
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let (ep, socket) = (endpoint.id, endpoint.socket);
        let Stage::Greeting(prepared) = std::mem::replace(&mut endpoint.stage, Stage::Up) else { return };
        match prepared.connect(&theirs.address) {
            Ok(qp) => {
                endpoint.up = true;
                endpoint.note(now, Note::new("connected"));
                endpoint.eager_limit = endpoint.eager_limit.min(theirs.eager_limit as usize);
                tracing::info!(parent: &endpoint.span, wire = %qp.explain(), "connected");
                self.endpoints.attach(index, qp, &terms(theirs), now);
                if let Some(socket) = socket {
                    self.sockets.send(socket, &Message::Ready);
                    self.sockets.settle(socket);
                }
                self.ready.push_back(Event::Connected { ep });
                self.schedule(index, now);
                self.advance(index);
            }
            Err(error) => self.fail(index, ConnectFailure::QueuePair(Box::new(error)).into()),
        }
    }

    /// A peer that connected is connected on its side too: tells the application, once.
    pub(super) fn announce(&mut self, index: usize) {
        let now = self.pace.now();
        let Some(endpoint) = self.endpoints.at(index) else { return };
        if !matches!(endpoint.stage, Stage::HalfOpen) {
            return;
        }
        let Some(listener) = endpoint.listener.take() else { return };
        (endpoint.stage, endpoint.up) = (Stage::Up, true);
        if let Some(socket) = endpoint.socket {
            self.sockets.settle(socket);
        }
        tracing::info!(parent: &endpoint.span, "accepted");
        endpoint.note(now, Note::new("accepted"));
        self.ready.push_back(Event::Accepted { ep: endpoint.id, listener });
        self.schedule(index, Duration::ZERO);
    }

    fn ended(&mut self, socket: SocketId, end: StreamEnd) {
        let handshake = |end| match end {
            StreamEnd::Handshake(error) => error,
            StreamEnd::HungUp | StreamEnd::System(_) => HandshakeError::HungUp,
        };
        if let Some(place) = self.incoming.iter().position(|incoming| incoming.socket == socket) {
            let incoming = self.incoming.swap_remove(place);
            return self.turn_away(&incoming, handshake(end));
        }
        let Some(index) = self.endpoints.by_socket(socket) else { return };
        let Some(endpoint) = self.endpoints.at(index) else { return };
        endpoint.socket = None;
        let address = endpoint.peer;
        match (&mut endpoint.stage, end) {
            (Stage::Dialing { others }, StreamEnd::System(source)) => {
                let others = std::mem::take(others);
                self.dial_next(index, others, source);
            }
            (Stage::Up, StreamEnd::HungUp | StreamEnd::System(_)) => {
                self.break_off(index, CloseReason::PeerLost(Lost::HungUp));
            }
            (_, end) => {
                let error = handshake(end);
                self.break_off(index, ConnectFailure::Handshake { address, error }.into());
            }
        }
    }

    fn timed_out(&mut self, socket: SocketId) {
        if let Some(place) = self.incoming.iter().position(|incoming| incoming.socket == socket) {
            let incoming = self.incoming.swap_remove(place);
            return self.turn_away(&incoming, HandshakeError::TimedOut);
        }
        let Some(index) = self.endpoints.by_socket(socket) else { return };
        let Some(endpoint) = self.endpoints.at(index) else { return };
        endpoint.socket = None;
        let failure = ConnectFailure::TimedOut { address: endpoint.peer, limit: self.config.connect_timeout };
        self.fail(index, failure.into());
    }

    /// The system could not connect: tries the next address of the name, or gives up.
    fn dial_next(&mut self, index: usize, others: VecDeque<SocketAddr>, source: io::Error) {
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let address = endpoint.peer;
        if let Ok((socket, peer, others)) = self.next_address(others)
            && let Some(endpoint) = self.endpoints.at(index)
        {
            (endpoint.socket, endpoint.peer) = (Some(socket), peer);
            endpoint.stage = Stage::Dialing { others };
            return;
        }
        let failure = match source.kind() {
            io::ErrorKind::ConnectionRefused => ConnectFailure::Refused(address),
            _ => ConnectFailure::Unreachable { address, source },
        };
        self.fail(index, failure.into());
    }

    fn next_address(
        &mut self,
        mut addresses: VecDeque<SocketAddr>,
    ) -> Result<(SocketId, SocketAddr, VecDeque<SocketAddr>), ConnectError> {
        let now = self.now();
        let mut last = ConnectError::Address(no_address());
        while let Some(address) = addresses.pop_front() {
            match self.sockets.connect(address, now) {
                Ok(socket) => return Ok((socket, address, addresses)),
                Err(source) => last = ConnectError::System { address, source },
            }
        }
        Err(last)
    }

    /// Drops a peer before it became a connection.
    fn turn_away(&mut self, incoming: &Incoming, error: HandshakeError) {
        tracing::info!(peer = %incoming.peer, %error, "handshake failed");
        self.sockets.close(incoming.socket);
        self.counters.rejected += 1;
        self.ready.push_back(Event::Rejected { listener: incoming.listener, peer: incoming.peer, error });
    }

    /// A queue pair for an endpoint, with receives for all that its peer may send.
    fn prepare(&mut self, ep: EndpointId) -> Result<Prepared, ResourceError> {
        let slots = self.shares.own() + RESERVED_SLOTS;
        let mut builder = self.pd.rc(&self.cq).send_depth(self.config.send_depth).recv_depth(slots);
        if let Some(shared) = self.slabs.queue() {
            builder = builder.srq(shared);
        }
        // Credits see to it that there is a receive for every message: without one, something is wrong.
        let mut prepared = builder.rnr_retry(RNR_RETRIES).build()?;
        // One limit for all endpoints, so that sending need not ask each.
        self.max_inline = self.max_inline.min(prepared.max_inline());
        self.slabs.reserve(slots, &mut prepared, ep)?;
        Ok(prepared)
    }

    fn unprepare(&mut self) {
        let slots = self.shares.own() + RESERVED_SLOTS;
        self.slabs.release(slots, slots);
    }

    fn link<P>(&self, epoch: u32) -> Link<P> {
        Link::new(&LinkConfig {
            window: self.shares.own(),
            depth: self.config.send_depth,
            epoch,
            offers: OFFERS,
            keepalive: self.config.keepalive,
            detection: self.config.detection,
        })
    }
}

/// A session's number, unpredictable.
fn epoch() -> io::Result<u32> {
    getrandom::u32().map_err(|error| io::Error::other(error.to_string()))
}

fn hello(prepared: &Prepared, epoch: u32, credits: u32, eager_limit: usize) -> Hello {
    Hello { address: prepared.address(), epoch, credits, eager_limit: eager_limit as u32 }
}

fn terms(hello: &Hello) -> PeerTerms {
    PeerTerms { epoch: hello.epoch, credits: hello.credits }
}

fn endpoint(
    id: EndpointId,
    link: Link<Carried>,
    eager_limit: usize,
    peer: SocketAddr,
    socket: SocketId,
    stage: Stage,
) -> Endpoint {
    Endpoint {
        link,
        qp: None,
        eager_limit,
        id,
        up: false,
        stage,
        reads: VecDeque::new(),
        sent: Traffic::default(),
        received: Traffic::default(),
        copied: 0,
        socket: Some(socket),
        peer,
        closed_here: false,
        parted: false,
        asked: Duration::ZERO,
        timer: None,
        deadline: None,
        broken: None,
        listener: None,
        reserved: false,
        flushed: 0,
        cut: Vec::new(),
        history: History::default(),
        span: tracing::info_span!("connection", endpoint = %id, %peer),
    }
}

/// Offers of a peer that may wait, besides those that take its window: some 100 KiB, and more than an application is
/// likely to leave unanswered.
const OFFERS: usize = 1024;
/// Attempts when the peer has no receive posted; finite, since that is a bug.
const RNR_RETRIES: u8 = 6;
