//! Connecting: what the connection manager's messages mean for endpoints and queue pairs.

use std::mem;
use std::net::SocketAddr;

use qpair_verbs::{Inquiry, PostError, Prepared, QpState, QueuePair};

use super::Worker;
use super::endpoint::{Carried, Endpoint, Stage};
use super::error::{CloseReason, ConnectError, ConnectFailure, Lost, ResourceError};
use super::event::Event;
use super::ids::{EndpointId, ListenerId};
use super::recovery::Renewed;
use super::seen::Note;
use super::setup::{epoch, terms};
use crate::cm::{CallError, Features, HandshakeError, Hello, Message, Notice, PeerAddress, SocketId, StreamEnd};
use crate::engine::{Link, Threshold};

/// Whose a stream is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Party {
    /// Someone connected and has not said hello.
    Stranger(Stranger),
    /// A connection's.
    Endpoint(EndpointId),
}

/// A peer that connected and has not said hello.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stranger {
    socket: SocketId,
    listener: ListenerId,
    peer: SocketAddr,
}

impl Worker {
    /// Begins to connect.
    pub(super) fn call(
        &mut self,
        peer: PeerAddress,
        threshold: Threshold,
        window: u32,
    ) -> Result<EndpointId, ConnectError> {
        let link = self.link(epoch().map_err(ConnectError::System)?, window);
        let (host, address) = match peer.clone().split().1 {
            PeerAddress::Addresses(addresses) => (None, addresses.first().copied()),
            PeerAddress::Name { host, port } => (Some(host.into()), Some(SocketAddr::from(([0, 0, 0, 0], port)))),
            PeerAddress::RdmaCm(_) => (None, None),
        };
        let address = address.ok_or_else(|| ConnectError::Address(super::no_address()))?;
        let now = self.now();
        let socket = self.sockets.call(peer, now);
        let make = |id| Endpoint::new(id, link, threshold, address, socket, Stage::Dialing { host });
        let id = self.endpoints.insert(make);
        self.parties.insert(socket, Party::Endpoint(id));
        Ok(id)
    }

    /// Something that the sockets noticed.
    pub(super) fn notice(&mut self, notice: Notice) {
        let Some(notice) = self.held.pass(notice) else { return };
        match notice {
            Notice::Incoming { socket, listener, peer } => {
                let stranger = Stranger { socket, listener: ListenerId(listener), peer };
                self.parties.insert(socket, Party::Stranger(stranger));
            }
            Notice::Greeted { socket, peer } => self.greet(socket, peer),
            Notice::Message { socket, message } => self.hear(socket, message),
            Notice::Ended { socket, end } => self.ended(socket, end),
            Notice::TimedOut { socket } => self.timed_out(socket),
        }
    }

    /// A message that is due: the sockets let no other through. Those whose queue pairs it names have answered.
    pub(super) fn message(&mut self, socket: SocketId, message: Message, inquiry: Inquiry) {
        let ep = match (self.parties.get(socket), &message) {
            (Some(&Party::Stranger(stranger)), Message::Hello(hello)) => return self.accept(stranger, hello, &inquiry),
            (Some(&Party::Endpoint(ep)), _) => ep,
            _ => return,
        };
        let index = ep.index as usize;
        let Some(endpoint) = self.endpoints.get_mut(ep) else { return };
        let address = endpoint.peer;
        match (&endpoint.stage, message) {
            (Stage::Greeting(_), Message::Accept(hello)) => self.connected(index, &hello, &inquiry),
            (Stage::Greeting(_), Message::Reject(reason)) => {
                let failure = ConnectFailure::Rejected { address, reason: reason.into() };
                self.fail(index, failure.into());
            }
            (Stage::HalfOpen, Message::Ready) => {
                self.announce(index);
                self.advance(index);
            }
            (Stage::Recovering(_), Message::Ready) => self.recovered(index),
            (Stage::Up | Stage::HalfOpen | Stage::Recovering(_), Message::Renew(renewal)) => {
                self.peer_renews(index, Renewed::new(*renewal, inquiry));
            }
            (Stage::Up | Stage::HalfOpen | Stage::Recovering(_), Message::Rail(word)) => {
                self.heard_of_rail(index, word, &inquiry);
            }
            // It hangs up now, and that breaks nothing.
            (Stage::Up | Stage::Recovering(_), Message::Farewell) => endpoint.parted = true,
            // The peer's first message, over the queue pair, was faster; or the connection ends already.
            _ => {}
        }
    }

    /// The peer takes the call: makes a queue pair and says hello.
    fn greet(&mut self, socket: SocketId, peer: SocketAddr) {
        let Some(&Party::Endpoint(ep)) = self.parties.get(socket) else { return };
        let index = ep.index as usize;
        if !self.endpoints.get(ep).is_some_and(|endpoint| matches!(endpoint.stage, Stage::Dialing { .. })) {
            return;
        }
        let over_datagrams = self.endpoints.get(ep).is_some_and(Endpoint::is_of_datagrams);
        let prepared = if over_datagrams { Ok(None) } else { self.prepare(ep, 0).map(Some) };
        let prepared = match prepared {
            Ok(prepared) => prepared,
            Err(error) => return self.fail(index, ConnectFailure::Resources(Box::new(error)).into()),
        };
        let lanes = match prepared {
            Some(_) => self.prepare_rails(usize::MAX, true),
            None => {
                self.expect_datagrams();
                None
            }
        };
        let Some(endpoint) = self.endpoints.get_mut(ep) else { return };
        (endpoint.peer, endpoint.reserved) = (peer, true);
        endpoint.span.record("peer", tracing::field::display(peer));
        if let Stage::Dialing { host: Some(host) } = &endpoint.stage {
            tracing::debug!(parent: &endpoint.span, %host, "an address of the host takes the call");
        }
        let epoch = endpoint.link.epoch();
        let Some(mut hello) = self.own_hello(ep, prepared.as_ref(), epoch) else { return };
        hello.rails = lanes.as_ref().map(|lanes| lanes.addresses()).unwrap_or_default();
        if let Some(endpoint) = self.endpoints.get_mut(ep) {
            endpoint.lanes = lanes;
            endpoint.stage = Stage::Greeting(prepared);
            endpoint.note(self.pace.now(), Note::new("the peer took the call, said hello"));
        }
        self.sockets.send(socket, &Message::Hello(hello));
    }

    /// What the peer of an endpoint is told, of its queue pair or of what it has instead.
    fn own_hello(&self, ep: EndpointId, prepared: Option<&Prepared>, epoch: u32) -> Option<Hello> {
        match prepared {
            Some(prepared) => Some(self.hello(prepared.address(), epoch, self.shares.own())),
            None => self.datagram_hello(ep, self.endpoints.get(ep)?.line.as_deref()?, epoch),
        }
    }

    /// A peer said hello: connects to it and answers.
    fn accept(&mut self, stranger: Stranger, theirs: &Hello, inquiry: &Inquiry) {
        match self.half_open(stranger, theirs, inquiry) {
            Ok(answer) => self.sockets.send(stranger.socket, &Message::Accept(answer)),
            Err(failure) => {
                let error = match failure {
                    ConnectFailure::Handshake { error, .. } => error,
                    other => HandshakeError::Resources(other.to_string().into()),
                };
                let reason = match &error {
                    HandshakeError::Resources(why) => why.to_string(),
                    other => other.to_string(),
                };
                self.sockets.send(stranger.socket, &Message::Reject(reason));
                self.sockets.close(stranger.socket);
                self.turned_away(stranger, error);
            }
        }
    }

    fn half_open(&mut self, stranger: Stranger, theirs: &Hello, inquiry: &Inquiry) -> Result<Hello, ConnectFailure> {
        if theirs.datagram.is_some() {
            return self.half_open_line(stranger, theirs, inquiry);
        }
        let resources = |error| ConnectFailure::Resources(Box::new(error));
        if self.endpoints.len() - self.lines >= self.config.endpoints {
            return Err(resources(ResourceError::TooManyEndpoints { limit: self.config.endpoints }));
        }
        let peer = stranger.peer;
        let system = |source| ConnectFailure::Unreachable { address: peer, source };
        let epoch = epoch().map_err(system)?;
        let prepared = self.prepare(self.endpoints.upcoming(), 0).map_err(resources)?;
        let mut answer = self.hello(prepared.address(), epoch, self.shares.own());
        answer.path_mtu = Some(answer.address.mtu.min(theirs.address.mtu));
        let checked = answer.check_fabric(theirs).map_err(|error| ConnectFailure::Handshake { address: peer, error });
        let connected = checked.and_then(|()| {
            inquiry.connect(prepared, &theirs.address).map_err(|error| ConnectFailure::QueuePair(Box::new(error)))
        });
        let qp = connected.inspect_err(|_| self.unprepare())?;
        let mut lanes = self.prepare_rails(theirs.rails.len(), false);
        if let Some(lanes) = &mut lanes {
            answer.rails = lanes.addresses();
            lanes.agree((answer.message_rails, answer.home_rails), (theirs.message_rails, theirs.home()));
            self.connect_rails(lanes, &theirs.rails, inquiry);
            lanes.keep_made(&mut answer.rails);
        }
        let recovers = answer.features.has(Features::RECOVERY) && theirs.features.has(Features::RECOVERY);
        let id = self.take_in(stranger, theirs, self.link(epoch, self.shares.own()), self.threshold());
        if let Some(endpoint) = self.endpoints.get_mut(id) {
            if recovers {
                endpoint.link.retain();
            }
            endpoint.lanes = lanes;
        }
        self.endpoints.attach(id.index as usize, qp, &terms(theirs), self.now());
        Ok(answer)
    }

    /// As [`half_open`](Worker::half_open), over datagrams.
    fn half_open_line(
        &mut self,
        stranger: Stranger,
        theirs: &Hello,
        inquiry: &Inquiry,
    ) -> Result<Hello, ConnectFailure> {
        let resources = |error| ConnectFailure::Resources(Box::new(error));
        if !self.has_room_for_line() {
            let limit = self.config.datagram_endpoints;
            return Err(resources(ResourceError::TooManyDatagramEndpoints { limit }));
        }
        let peer = stranger.peer;
        let epoch = epoch().map_err(|source| ConnectFailure::Unreachable { address: peer, source })?;
        let (line, mut threshold) = self.line().map_err(resources)?;
        let ep = self.endpoints.upcoming();
        let gone = || resources(PostError::State(QpState::Err).into());
        let mut answer = self.datagram_hello(ep, &line, epoch).ok_or_else(gone)?;
        answer.path_mtu = Some(answer.address.mtu.min(theirs.address.mtu));
        answer.check_fabric(theirs).map_err(|error| ConnectFailure::Handshake { address: peer, error })?;
        let (way, limit) = self.way_of_line(peer, theirs, inquiry)?;
        threshold.lower_limit(limit);
        let id = self.take_in(stranger, theirs, self.link(epoch, self.config.window), threshold);
        self.lines += 1;
        self.expect_datagrams();
        if let Some(endpoint) = self.endpoints.get_mut(id) {
            endpoint.line = Some(line.to(way));
        }
        self.endpoints.open(id.index as usize, &terms(theirs), self.now());
        Ok(answer)
    }

    /// A peer's connection that is to be, on this side.
    fn take_in(
        &mut self,
        stranger: Stranger,
        theirs: &Hello,
        link: Link<Carried>,
        mut threshold: Threshold,
    ) -> EndpointId {
        let Stranger { socket, listener, peer } = stranger;
        threshold.lower_limit(theirs.eager_limit as usize);
        let make = |id| Endpoint::new(id, link, threshold, peer, socket, Stage::HalfOpen);
        let id = self.endpoints.insert(make);
        self.parties.insert(socket, Party::Endpoint(id));
        let now = self.now();
        self.sockets.greeted(socket, now);
        if let Some(endpoint) = self.endpoints.get_mut(id) {
            (endpoint.longest, endpoint.peer_home) = (theirs.longest, theirs.home());
            endpoint.reserved = true;
            endpoint.listener = Some(listener);
        }
        id
    }

    /// The peer is connected to this side: connects to it, and says so.
    fn connected(&mut self, index: usize, theirs: &Hello, inquiry: &Inquiry) {
        let now = self.now();
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let (ep, socket, address, epoch) = (endpoint.id, endpoint.socket, endpoint.peer, endpoint.link.epoch());
        let Stage::Greeting(prepared) = mem::replace(&mut endpoint.stage, Stage::Up) else { return };
        let Some(ours) = self.own_hello(ep, prepared.as_ref(), epoch) else { return };
        let checked = ours.check_fabric(theirs).and_then(|()| ours.check_path_mtu(theirs));
        if let Err(error) = checked {
            return self.fail(index, ConnectFailure::Handshake { address, error }.into());
        }
        let connected = match prepared {
            Some(prepared) => {
                inquiry.connect(prepared, &theirs.address).map(Some).map_err(|error| Box::new(error).into())
            }
            None => self.connect_line(index, theirs, inquiry).map(|()| None),
        };
        match connected {
            Ok(qp) => {
                let Some(endpoint) = self.endpoints.at(index) else { return };
                endpoint.up = true;
                if ours.features.has(Features::RECOVERY) && theirs.features.has(Features::RECOVERY) {
                    endpoint.link.retain();
                }
                endpoint.note(self.pace.now(), Note::new("connected"));
                endpoint.threshold.lower_limit(theirs.eager_limit as usize);
                (endpoint.longest, endpoint.peer_home) = (theirs.longest, theirs.home());
                let wire = qp.as_ref().map_or_else(|| "datagrams".to_owned(), QueuePair::explain);
                tracing::info!(parent: &endpoint.span, wire, "connected");
                match qp {
                    Some(qp) => self.endpoints.attach(index, qp, &terms(theirs), now),
                    None => self.endpoints.open(index, &terms(theirs), now),
                }
                self.rails_answered(index, theirs, inquiry);
                if let Some(socket) = socket {
                    self.sockets.send(socket, &Message::Ready);
                    self.sockets.settle(socket);
                }
                self.ready.push_back(Event::Connected { ep });
                self.schedule(index, now);
                self.offer_what_is_too_long(index);
                self.measure(index);
                self.probe_rails(index);
                self.advance(index);
            }
            Err(failure) => self.fail(index, ConnectFailure::into(failure)),
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
        endpoint.note(self.pace.now(), Note::new("accepted"));
        self.ready.push_back(Event::Accepted { ep: endpoint.id, listener });
        self.schedule(index, now);
        self.measure(index);
        self.probe_rails(index);
    }

    fn ended(&mut self, socket: SocketId, end: StreamEnd) {
        let handshake = |end| match end {
            StreamEnd::Handshake(error) => error,
            StreamEnd::HungUp | StreamEnd::System(_) | StreamEnd::Call(_) => HandshakeError::HungUp,
        };
        let ep = match self.parties.remove(socket) {
            Some(Party::Stranger(stranger)) => return self.turned_away(stranger, handshake(end)),
            Some(Party::Endpoint(ep)) => ep,
            None => return,
        };
        let index = ep.index as usize;
        let Some(endpoint) = self.endpoints.get_mut(ep) else { return };
        endpoint.socket = None;
        let address = endpoint.peer;
        match (&endpoint.stage, end) {
            (_, StreamEnd::Call(error)) => {
                let failure = self.call_failure(error);
                self.fail(index, failure.into());
            }
            (Stage::Up, StreamEnd::HungUp | StreamEnd::System(_)) => {
                self.break_off(index, CloseReason::PeerLost(Lost::HungUp));
            }
            // It ends once what had come by its queue pair is taken.
            (Stage::Recovering(_), StreamEnd::HungUp | StreamEnd::System(_)) => {}
            (_, end) => {
                let error = handshake(end);
                self.break_off(index, ConnectFailure::Handshake { address, error }.into());
            }
        }
    }

    fn timed_out(&mut self, socket: SocketId) {
        let ep = match self.parties.remove(socket) {
            Some(Party::Stranger(stranger)) => return self.turned_away(stranger, HandshakeError::TimedOut),
            Some(Party::Endpoint(ep)) => ep,
            None => return,
        };
        let Some(endpoint) = self.endpoints.get_mut(ep) else { return };
        endpoint.socket = None;
        let is_guest = matches!(endpoint.stage, Stage::HalfOpen);
        let limit = if is_guest { self.config.guest() } else { self.config.connect_timeout };
        let failure = ConnectFailure::TimedOut { address: endpoint.peer, limit };
        self.fail(ep.index as usize, failure.into());
    }

    fn call_failure(&self, error: CallError) -> ConnectFailure {
        let limit = self.config.connect_timeout;
        match error {
            CallError::Name { host, source } => ConnectFailure::Name { host, source },
            CallError::Refused(address) => ConnectFailure::Refused(address),
            CallError::Unreachable { address, source } => ConnectFailure::Unreachable { address, source },
            CallError::Descriptors { address, source } => ConnectFailure::Descriptors { address, source },
            CallError::RdmaCm { address, source } => ConnectFailure::RdmaCm { address, source: Box::new(source) },
            CallError::Busy(address) => ConnectFailure::Busy { address, limit },
            CallError::HungUp(address) => ConnectFailure::Handshake { address, error: HandshakeError::HungUp },
            CallError::TimedOut(address) => ConnectFailure::TimedOut { address, limit },
        }
    }

    /// A peer is gone before it became a connection.
    fn turned_away(&mut self, stranger: Stranger, error: HandshakeError) {
        let Stranger { socket, listener, peer } = stranger;
        tracing::info!(%peer, %error, "handshake failed");
        self.parties.remove(socket);
        self.counters.rejected += 1;
        self.ready.push_back(Event::Rejected { listener, peer, error });
    }
}
