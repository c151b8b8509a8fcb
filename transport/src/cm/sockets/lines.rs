//! Streams and calls, one by one: how far each is, when it is due, and what is done with it.

use std::io;
use std::mem;
use std::time::Duration;

use super::{Notice, Of, SocketId, Sockets};
use crate::cm::address::Manager;
use crate::cm::channel::Heard;
use crate::cm::dial::Dial;
use crate::cm::message::Message;
use crate::cm::stream::{Stream, StreamEnd};

/// A stream, or a call that becomes one.
#[derive(Debug)]
pub(super) struct Line {
    serial: u32,
    pub(super) state: State,
    /// Of a call, as long as the peer may turn out to have no room.
    pub(super) dial: Option<Box<Dial>>,
    /// Whose streams a call asks for.
    pub(super) by: Manager,
    /// Nothing is read of it: what came last is not dealt with yet.
    is_held: bool,
    /// What the timers have of it.
    due: Duration,
    /// It has one of the places of calls under way, and may keep it until then.
    pub(super) place: Option<Duration>,
}

#[derive(Debug)]
pub(super) enum State {
    /// There is no stream yet. With the attempts to connect that are under way, by their keys.
    Calling { attempts: Vec<usize> },
    /// A stream. Its handshake must be over by then.
    Talking { stream: Box<Stream>, role: Role, deadline: Duration },
}

/// Which part this side's stream plays in a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// This side called.
    Caller,
    /// A peer connected, and has not said hello.
    Stranger,
    /// A peer connected and has said hello.
    Guest,
    /// None any more: the handshake is over.
    Settled,
}

impl Line {
    fn role(&self) -> Role {
        match self.state {
            State::Calling { .. } => Role::Caller,
            State::Talking { role, .. } => role,
        }
    }

    /// When something is to be done about it.
    fn when(&self) -> Duration {
        let next = match &self.state {
            State::Calling { .. } => self.dial.as_ref().map_or(Duration::MAX, |dial| dial.due()),
            State::Talking { role: Role::Settled, .. } => Duration::MAX,
            State::Talking { deadline, .. } => *deadline,
        };
        next.min(self.place.unwrap_or(Duration::MAX))
    }
}

impl Sockets {
    /// Sends a message. If that fails, [`Notice::Ended`] follows, after what the peer had said.
    pub(crate) fn send(&mut self, id: SocketId, message: &Message) {
        let Some(stream) = self.stream(id) else { return };
        let Err(end) = stream.send(message) else { return };
        let mut said = Vec::new();
        // How it ended is known.
        let _ = stream.progress(|heard| match heard {
            Heard::Message(message) => said.push(Notice::Message { socket: id, message }),
            Heard::Busy(_) | Heard::Agreed => {}
        });
        self.notices.append(&mut said);
        self.end(id, end);
    }

    /// The peer that connected has said hello: it has its time for the rest.
    pub(crate) fn greeted(&mut self, id: SocketId, now: Duration) {
        let limit = now.saturating_add(self.settings.guest);
        if let Some(State::Talking { role, deadline, .. }) = self.get(id).map(|line| &mut line.state)
            && *role == Role::Stranger
        {
            (*role, *deadline) = (Role::Guest, limit);
            self.strangers -= 1;
            self.handshakes += 1;
            self.brisk = now.saturating_add(YOUNG);
            self.schedule(id);
        }
    }

    /// The handshake is over: the stream stays, without a deadline, until the peer hangs up.
    pub(crate) fn settle(&mut self, id: SocketId) {
        self.give_place_back(id);
        if let Some(State::Talking { stream, role, .. }) = self.get(id).map(|line| &mut line.state) {
            stream.settle();
            let before = mem::replace(role, Role::Settled);
            self.discount(before);
            self.schedule(id);
        }
    }

    /// Reads nothing more of a stream until it is [released](Sockets::release), so that what its peer says waits with the peer. A
    /// handshake has a while for that, however late this side came to hear of it.
    pub(crate) fn hold(&mut self, id: SocketId, now: Duration) {
        let Some(line) = self.get(id).filter(|line| !line.is_held) else { return };
        line.is_held = true;
        if let State::Talking { deadline, .. } = &mut line.state {
            *deadline = now.saturating_add(GRACE).max(*deadline);
        }
        self.held += 1;
        self.brisk = now.saturating_add(YOUNG);
        self.schedule(id);
    }

    /// Reads on.
    pub(crate) fn release(&mut self, id: SocketId, now: Duration) {
        if self.get(id).is_some_and(|line| mem::take(&mut line.is_held)) {
            self.held -= 1;
            self.ready(id.key, now);
        }
    }

    /// Says farewell, and closes a stream without a notice.
    pub(crate) fn part(&mut self, id: SocketId) {
        if let Some(stream) = self.stream(id) {
            // It is closed anyway.
            let _ = stream.send(&Message::Farewell);
            stream.leave();
        }
        self.close(id);
    }

    /// Closes a stream, or ends a call, without a notice.
    pub(crate) fn close(&mut self, id: SocketId) {
        self.give_place_back(id);
        if self.get(id).is_none() {
            return;
        }
        let Some(line) = self.lines.try_remove(id.key) else { return };
        self.timers.set(id.key, line.due, Duration::MAX);
        self.discount(line.role());
        self.held -= usize::from(line.is_held);
        match line.state {
            State::Calling { attempts } => self.drop_attempts(attempts),
            State::Talking { stream, .. } => self.drop_stream(*stream),
        }
    }

    pub(super) fn insert_stranger(&mut self, mut stream: Box<Stream>, now: Duration) -> io::Result<SocketId> {
        let key = self.lines.vacant_key();
        stream.carrier.register(self.poll.registry(), Of::Line(key).token())?;
        self.watch(&stream);
        let deadline = now.saturating_add(self.settings.hello);
        self.strangers += 1;
        Ok(self.insert_line(State::Talking { stream, role: Role::Stranger, deadline }, None, Manager::Tcp))
    }

    /// A stream is there and closed: what was said last may still be on its way.
    pub(super) fn drop_stream(&mut self, mut stream: Stream) {
        stream.carrier.deregister(self.poll.registry());
        self.rdma.close(stream.carrier);
    }

    pub(super) fn insert_line(&mut self, state: State, dial: Option<Box<Dial>>, by: Manager) -> SocketId {
        let serial = self.next_serial();
        let key = self.lines.insert(Line { serial, state, dial, by, is_held: false, due: Duration::MAX, place: None });
        let id = SocketId { key, serial };
        self.schedule(id);
        id
    }

    /// Without it, a host that is gone is noticed by the queue pair alone.
    pub(super) fn watch(&self, stream: &Stream) {
        if let Some(keepalive) = self.settings.keepalive
            && let Err(error) = stream.carrier.watch(&keepalive)
        {
            tracing::debug!(%error, "the system does not watch a connection");
        }
    }

    /// The socket of a stream.
    #[cfg(test)]
    pub(in crate::cm) fn socket(&mut self, id: SocketId) -> &mio::net::TcpStream {
        match &self.stream(id).expect("it is open").carrier {
            crate::cm::carrier::Carrier::Tcp(socket) => socket,
            other => panic!("{other:?}"),
        }
    }

    /// A stream may have something to say, or room for more.
    pub(super) fn ready(&mut self, key: usize, now: Duration) {
        let Some(socket) = self.id_of(key) else { return };
        let (lines, notices) = (&mut self.lines, &mut self.notices);
        let Some(Line { state: State::Talking { stream, role, .. }, dial, is_held, .. }) = lines.get_mut(key) else {
            return;
        };
        if *is_held {
            return stream.write_on();
        }
        let mut busy = None;
        let progress = stream.progress(|heard| match heard {
            Heard::Message(message) => notices.push(Notice::Message { socket, message }),
            Heard::Busy(wait) => busy = Some(wait),
            Heard::Agreed if *role == Role::Caller => {
                // The peer takes the call: what goes wrong now is not for another try.
                if let Some(peer) = dial.take().and_then(|dial| dial.connected_to()) {
                    notices.push(Notice::Greeted { socket, peer });
                }
            }
            Heard::Agreed => {}
        });
        let is_call = dial.is_some();
        match progress {
            _ if busy.is_some() => self.call_again(socket, busy, now),
            Ok(()) => {}
            Err(StreamEnd::HungUp | StreamEnd::System(_)) if is_call => self.call_again(socket, None, now),
            Err(end) => self.end(socket, end),
        }
    }

    /// The time of a line has come.
    pub(super) fn line_due(&mut self, key: usize, now: Duration) {
        let Some(id) = self.id_of(key) else { return };
        let Some(line) = self.lines.get_mut(key) else { return };
        if line.place.is_some_and(|until| now >= until) {
            self.give_place_back(id);
        }
        let Some(line) = self.lines.get_mut(key) else { return };
        match &line.state {
            State::Calling { .. } => self.tick(id, now),
            State::Talking { role, deadline, .. } if *role != Role::Settled && now >= *deadline => {
                let before = self.notices.len();
                self.ready(key, now);
                if self.notices.len() == before {
                    self.too_late(id, now);
                }
            }
            State::Talking { .. } => {}
        }
    }

    /// A handshake took too long. Of a call that nobody took so far, there may be more to tell.
    fn too_late(&mut self, id: SocketId, now: Duration) {
        if self.dial(id).is_some() {
            return self.tick(id, now);
        }
        self.close(id);
        self.notices.push(Notice::TimedOut { socket: id });
    }

    /// Closes a stream with a notice. What the channel says to that is sent.
    pub(super) fn end(&mut self, socket: SocketId, end: StreamEnd) {
        match (&end, self.stream(socket)) {
            (StreamEnd::Handshake(_), Some(stream)) => stream.leave(),
            (StreamEnd::System(error), _) => tracing::debug!(%error, "a connection broke"),
            _ => {}
        }
        self.close(socket);
        self.notices.push(Notice::Ended { socket, end });
    }

    /// Tells the timers what was changed about a line.
    pub(super) fn schedule(&mut self, id: SocketId) {
        if let Some(line) = self.lines.get_mut(id.key) {
            let when = line.when();
            self.timers.set(id.key, mem::replace(&mut line.due, when), when);
        }
    }

    pub(super) fn get(&mut self, id: SocketId) -> Option<&mut Line> {
        self.lines.get_mut(id.key).filter(|line| line.serial == id.serial)
    }

    fn stream(&mut self, id: SocketId) -> Option<&mut Stream> {
        match &mut self.get(id)?.state {
            State::Talking { stream, .. } => Some(stream),
            State::Calling { .. } => None,
        }
    }

    fn id_of(&self, key: usize) -> Option<SocketId> {
        self.lines.get(key).map(|line| SocketId { key, serial: line.serial })
    }

    /// A stream that played `role` in a handshake does so no more.
    fn discount(&mut self, role: Role) {
        match role {
            Role::Stranger => self.strangers -= 1,
            Role::Caller | Role::Guest => self.handshakes -= 1,
            Role::Settled => {}
        }
    }
}

/// How long it takes at most until what a handshake waits for is there, if it comes: a thread's answer, on a host with much to do.
const GRACE: Duration = Duration::from_secs(1);
/// How long a handshake counts as young. It takes a few steps of some tens of microseconds; what takes longer waits for
/// the peer's program.
pub(super) const YOUNG: Duration = Duration::from_millis(100);
