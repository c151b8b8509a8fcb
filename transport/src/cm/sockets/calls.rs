//! Calling peers: names, turns, attempts at several addresses, and coming back to a peer that had no room.

use std::io::{self, ErrorKind};
use std::mem;
use std::net::SocketAddr;
use std::time::Duration;

use mio::net::TcpStream;
use mio::{Interest, Registry};

use super::lines::YOUNG;
use super::{Of, Role, SocketId, Sockets, State};
use crate::cm::address::{Manager, PeerAddress};
use crate::cm::carrier::Carrier;
use crate::cm::channel::{Channel, Side};
use crate::cm::dial::{CallError, Dial, Step};
use crate::cm::is_out_of_descriptors;
use crate::cm::rdma::{Opening, RdmaCmError};
use crate::cm::stream::{Stream, StreamEnd};

/// A connection that is made for a call.
#[derive(Debug)]
pub(super) struct Attempt {
    knock: Knock,
    address: SocketAddr,
    call: SocketId,
}

/// Who makes it.
#[derive(Debug)]
enum Knock {
    Tcp(TcpStream),
    RdmaCm(Box<Opening>),
}

/// Why an attempt came to nothing.
#[derive(Debug)]
enum Fault {
    System(io::Error),
    RdmaCm(RdmaCmError),
}

impl Knock {
    /// True once there is a connection.
    fn is_done(&mut self) -> Result<bool, Fault> {
        match self {
            Knock::Tcp(socket) => is_connected(socket).map_err(Fault::System),
            Knock::RdmaCm(opening) => opening.is_done().map_err(Fault::RdmaCm),
        }
    }

    /// The connection, if there is one. Events tell of the attempt no more.
    fn into_carrier(self, registry: &Registry) -> Option<Carrier> {
        match self {
            Knock::Tcp(mut socket) => registry.deregister(&mut socket).ok().map(|()| Carrier::Tcp(socket)),
            Knock::RdmaCm(opening) => opening.into_pipe().map(|pipe| Carrier::Rdma(Box::new(pipe))),
        }
    }
}

impl Sockets {
    /// Begins to call a peer. [`Notice::Greeted`](super::Notice::Greeted) or [`Notice::Ended`](super::Notice::Ended) follows,
    /// within the time that connecting may take.
    pub(crate) fn call(&mut self, peer: PeerAddress, now: Duration) -> SocketId {
        let deadline = now.saturating_add(self.settings.connect);
        let (by, peer) = peer.split();
        let (dial, host) = match peer {
            PeerAddress::Name { host, port } => (Dial::to_name(host.as_str().into(), port, deadline), Some(host)),
            PeerAddress::Addresses(addresses) => (Dial::to_addresses(addresses, deadline), None),
            PeerAddress::RdmaCm(_) => (Dial::to_addresses(Vec::new(), deadline), None),
        };
        self.handshakes += 1;
        self.brisk = now.saturating_add(YOUNG);
        let id = self.insert_line(State::Calling { attempts: Vec::new() }, Some(Box::new(dial)), by);
        match host {
            None => self.follow(id, Step::Queue, now),
            Some(host) => self.names.look_up(&host, id),
        }
        id
    }

    /// Takes another resolver than the system's.
    #[cfg(test)]
    pub(in crate::cm) fn resolve_with(&mut self, look: fn(&str) -> io::Result<Vec<SocketAddr>>) {
        self.names = crate::cm::names::Names::with(look, &self.waker);
    }

    /// Names were looked up.
    pub(super) fn take_names(&mut self, now: Duration) {
        for (id, found) in self.names.answers() {
            self.found(id, found, now);
        }
    }

    fn found(&mut self, id: SocketId, found: io::Result<Vec<SocketAddr>>, now: Duration) {
        if let Some(dial) = self.dial(id) {
            let step = dial.found(found);
            self.follow(id, step, now);
        }
    }

    /// Gives free places to the calls that wait longest.
    pub(super) fn hand_out_turns(&mut self, now: Duration) {
        while let Some(id) = self.turns.next() {
            match self.get(id) {
                Some(_) => self.go_ahead(id, now),
                // It was given up while it waited.
                None => self.turns.give_back(),
            }
        }
    }

    /// It is the turn of a call, which has a place from now on.
    fn go_ahead(&mut self, id: SocketId, now: Duration) {
        self.brisk = now.saturating_add(YOUNG);
        if let Some(line) = self.get(id) {
            line.place = Some(now.saturating_add(PLACE));
        }
        if let Some(dial) = self.dial(id) {
            let step = dial.turn(now);
            self.follow(id, step, now);
        }
    }

    pub(super) fn give_place_back(&mut self, id: SocketId) {
        if self.get(id).is_some_and(|line| line.place.take().is_some()) {
            self.turns.give_back();
            self.schedule(id);
        }
    }

    /// Does what a call says, until it waits for something.
    pub(super) fn follow(&mut self, id: SocketId, step: Step, now: Duration) {
        let mut step = step;
        loop {
            step = match step {
                Step::Wait => break,
                Step::Queue => {
                    if self.turns.ask(id) {
                        return self.go_ahead(id, now);
                    }
                    break;
                }
                Step::Try(address) => match self.attempt(id, address) {
                    Ok(()) => break,
                    Err(fault) => self.attempt_failed(id, address, fault, now),
                },
                Step::Fail(error) => return self.end(id, StreamEnd::Call(error)),
            };
        }
        self.schedule(id);
    }

    fn attempt(&mut self, call: SocketId, address: SocketAddr) -> Result<(), Fault> {
        let Some(by) = self.get(call).map(|line| line.by) else { return Ok(()) };
        let key = self.attempts.vacant_key();
        let knock = match by {
            Manager::Tcp => {
                let mut socket = TcpStream::connect(address).map_err(Fault::System)?;
                let (token, interest) = (Of::Attempt(key).token(), Interest::READABLE | Interest::WRITABLE);
                self.poll.registry().register(&mut socket, token, interest).map_err(Fault::System)?;
                Knock::Tcp(socket)
            }
            Manager::RdmaCm => {
                let opening = self.rdma.connect(address).map_err(Fault::RdmaCm)?;
                self.rdma.asked.push(key);
                Knock::RdmaCm(Box::new(opening))
            }
        };
        self.attempts.insert(Attempt { knock, address, call });
        if let Some(State::Calling { attempts, .. }) = self.get(call).map(|line| &mut line.state) {
            attempts.push(key);
        }
        Ok(())
    }

    /// There may be something new of an attempt.
    pub(super) fn attempted(&mut self, key: usize, now: Duration) {
        let Some(attempt) = self.attempts.get_mut(key) else { return };
        let done = attempt.knock.is_done();
        if matches!(done, Ok(false)) {
            return;
        }
        let Attempt { knock, address, call } = self.attempts.remove(key);
        self.rdma.asked.retain(|&other| other != key);
        if let Some(State::Calling { attempts }) = self.get(call).map(|line| &mut line.state) {
            attempts.retain(|&other| other != key);
        }
        let talks = done.and_then(|_| match knock.into_carrier(self.poll.registry()) {
            Some(carrier) => self.begin_to_talk(call, carrier).map_err(Fault::System),
            None => Err(Fault::System(ErrorKind::NotConnected.into())),
        });
        match talks {
            Ok(()) => self.connected(call, address, now),
            Err(fault) => {
                let step = self.attempt_failed(call, address, fault, now);
                self.follow(call, step, now);
            }
        }
    }

    /// The first attempt of a call is connected: its stream is the call's, and the others are closed.
    fn begin_to_talk(&mut self, call: SocketId, mut carrier: Carrier) -> io::Result<()> {
        let secret = self.secret()?;
        carrier.register(self.poll.registry(), Of::Line(call.key).token())?;
        let stream = Box::new(Stream::new(carrier, Channel::new(Side::Caller, secret)));
        self.watch(&stream);
        let Some(line) = self.get(call) else { return Ok(()) };
        let deadline = line.dial.as_ref().map_or(Duration::MAX, |dial| dial.deadline());
        let talking = State::Talking { stream, role: Role::Caller, deadline };
        if let State::Calling { attempts } = mem::replace(&mut line.state, talking) {
            self.drop_attempts(attempts);
        }
        Ok(())
    }

    fn connected(&mut self, call: SocketId, address: SocketAddr, now: Duration) {
        if let Some(dial) = self.dial(call) {
            dial.connected(address);
        }
        self.schedule(call);
        self.ready(call.key, now);
    }

    /// The peer has no room: it is called again later, and others have their turn.
    pub(super) fn call_again(&mut self, id: SocketId, asked: Option<Duration>, now: Duration) {
        let dice = self.dice();
        self.give_place_back(id);
        let Some(line) = self.get(id) else { return };
        let calling = State::Calling { attempts: Vec::new() };
        if let State::Talking { stream, .. } = mem::replace(&mut line.state, calling) {
            self.drop_stream(*stream);
        }
        let step = self.dial(id).map_or(Step::Wait, |dial| dial.turned_away(asked, now, dice));
        self.follow(id, step, now);
    }

    /// Time has passed for a call.
    pub(super) fn tick(&mut self, id: SocketId, now: Duration) {
        let step = self.dial(id).map_or(Step::Wait, |dial| dial.tick(now));
        self.follow(id, step, now);
    }

    pub(super) fn drop_attempts(&mut self, keys: Vec<usize>) {
        for key in keys {
            match self.attempts.try_remove(key).map(|attempt| attempt.knock) {
                // The descriptor is closed right after, which deregisters it as well.
                Some(Knock::Tcp(mut socket)) => drop(self.poll.registry().deregister(&mut socket)),
                Some(Knock::RdmaCm(_)) => self.rdma.asked.retain(|&other| other != key),
                None => {}
            }
        }
    }

    fn attempt_failed(&mut self, id: SocketId, address: SocketAddr, fault: Fault, now: Duration) -> Step {
        let dice = self.dice();
        let error = match fault {
            Fault::System(source) => match source.kind() {
                _ if is_out_of_descriptors(&source) => CallError::Descriptors { address, source },
                ErrorKind::ConnectionRefused => CallError::Refused(address),
                ErrorKind::ConnectionReset => CallError::HungUp(address),
                _ => CallError::Unreachable { address, source },
            },
            Fault::RdmaCm(source) if source.is_refused() => CallError::Refused(address),
            Fault::RdmaCm(source) if source.is_of_the_moment() => CallError::HungUp(address),
            Fault::RdmaCm(source) => CallError::RdmaCm { address, source },
        };
        let step = self.dial(id).map_or(Step::Wait, |dial| dial.failed(error, now, dice));
        if self.dial(id).is_some_and(|dial| dial.is_resting()) {
            self.give_place_back(id);
        }
        step
    }

    pub(super) fn dial(&mut self, id: SocketId) -> Option<&mut Dial> {
        self.get(id)?.dial.as_deref_mut()
    }
}

/// True once the system has connected, an error if it could not.
fn is_connected(socket: &TcpStream) -> io::Result<bool> {
    if let Some(error) = socket.take_error()? {
        return Err(error);
    }
    match socket.peer_addr() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotConnected => Ok(false),
        Err(error) => Err(error),
    }
}

/// How long a call keeps its place: one whose peer answers late, or never, keeps others waiting no longer. A handshake takes
/// less than a millisecond where both sides poll.
const PLACE: Duration = Duration::from_millis(250);
