//! All sockets of a worker under one mio poll: listeners, streams, and the completion channel to sleep upon.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

use mio::event::Source;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use slab::Slab;

use super::hello::Message;
use super::stream::{Role, Stream, StreamEnd};

/// A stream of the connection manager. Never given twice: what is said of one that ended is meant for no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SocketId {
    key: usize,
    serial: u32,
}

/// How long a handshake may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// From the beginning to the end, with a peer that this side calls or that has said hello.
    pub(crate) connect: Duration,
    /// Until a peer that connected says hello.
    pub(crate) hello: Duration,
}

/// Listeners, streams and what they have to say.
#[derive(Debug)]
pub(crate) struct Sockets {
    poll: Poll,
    events: Events,
    /// What the events are of; empty between polls.
    tokens: Vec<Token>,
    listeners: Vec<Listener>,
    streams: Slab<Stream>,
    notices: Vec<Notice>,
    /// Peers that connected and have not said hello.
    strangers: usize,
    /// Other handshakes under way.
    handshakes: usize,
    /// Until then, handshakes under way are young.
    brisk: Duration,
    limits: Limits,
    /// Numbers given to listeners and streams.
    serial: u32,
}

#[derive(Debug)]
struct Listener {
    id: u32,
    socket: TcpListener,
    /// Peers may wait that were not accepted, though nothing more will tell of them.
    again: bool,
}

/// Something that a socket has to say.
#[derive(Debug)]
pub(crate) enum Notice {
    /// Someone connected to a listener.
    Incoming { socket: SocketId, listener: u32, peer: SocketAddr },
    /// An outgoing stream is connected.
    Connected { socket: SocketId },
    /// A message of the peer.
    Message { socket: SocketId, message: Message },
    /// A stream ended, and is closed.
    Ended { socket: SocketId, end: StreamEnd },
    /// A handshake took too long; its stream is closed.
    TimedOut { socket: SocketId },
}

/// The token of the completion channel. Listeners have odd ones, streams even ones.
const CHANNEL: Token = Token(0);

impl Sockets {
    pub(crate) fn new(limits: Limits) -> io::Result<Self> {
        Ok(Sockets {
            poll: Poll::new()?,
            events: Events::with_capacity(EVENTS),
            tokens: Vec::with_capacity(EVENTS),
            listeners: Vec::new(),
            streams: Slab::new(),
            notices: Vec::new(),
            strangers: 0,
            handshakes: 0,
            brisk: Duration::ZERO,
            limits,
            serial: 0,
        })
    }

    /// Lets readiness of `source` end a sleep.
    pub(crate) fn register(&mut self, source: &mut impl Source) -> io::Result<()> {
        self.poll.registry().register(source, CHANNEL, Interest::READABLE)
    }

    pub(crate) fn listeners(&self) -> usize {
        self.listeners.len()
    }

    /// True while a handshake is under way that began not long ago: its next step is worth looking for often.
    #[inline]
    pub(crate) fn is_brisk(&self, now: Duration) -> bool {
        self.handshakes > 0 && now < self.brisk
    }

    /// True if [`poll`](Sockets::poll) has something to do that no event tells of.
    pub(crate) fn has_chores(&self) -> bool {
        self.listeners.iter().any(|listener| listener.again)
    }

    /// When [`expire`](Sockets::expire) has something to do.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.streams.iter().filter_map(|(_, stream)| stream.deadline()).min()
    }

    pub(crate) fn listen(&mut self, address: SocketAddr) -> io::Result<(u32, SocketAddr)> {
        let mut socket = TcpListener::bind(address)?;
        let address = socket.local_addr()?;
        let id = self.next_serial();
        self.poll.registry().register(&mut socket, Token(1 + 2 * id as usize), Interest::READABLE)?;
        self.listeners.push(Listener { id, socket, again: false });
        Ok((id, address))
    }

    pub(crate) fn stop_listening(&mut self, id: u32) {
        if let Some(place) = self.listeners.iter().position(|listener| listener.id == id) {
            let mut listener = self.listeners.swap_remove(place);
            // The descriptor is closed right after, which deregisters it as well.
            let _ = self.poll.registry().deregister(&mut listener.socket);
        }
    }

    pub(crate) fn stop_all_listening(&mut self) {
        while let Some(listener) = self.listeners.first() {
            self.stop_listening(listener.id);
        }
    }

    /// Begins to connect; [`Notice::Connected`] or [`Notice::Ended`] follows.
    pub(crate) fn connect(&mut self, address: SocketAddr, now: Duration) -> io::Result<SocketId> {
        let socket = TcpStream::connect(address)?;
        let id = self.insert(socket, Role::Caller, now.saturating_add(self.limits.connect))?;
        self.brisk = now.saturating_add(YOUNG);
        Ok(id)
    }

    /// Sends a message. If that fails, [`Notice::Ended`] follows.
    pub(crate) fn send(&mut self, id: SocketId, message: &Message) {
        if let Some(stream) = self.get(id)
            && let Err(end) = stream.send(message)
        {
            self.end(id, end);
        }
    }

    /// The peer that connected has said hello: it has as long for the rest as one that is called.
    pub(crate) fn greeted(&mut self, id: SocketId, now: Duration) {
        let deadline = now.saturating_add(self.limits.connect);
        if let Some(stream) = self.get(id)
            && stream.greeted(deadline)
        {
            self.strangers -= 1;
            self.handshakes += 1;
            self.brisk = now.saturating_add(YOUNG);
        }
    }

    /// The handshake is over: the stream stays, without a deadline, until the peer hangs up.
    pub(crate) fn settle(&mut self, id: SocketId) {
        if let Some(stream) = self.get(id) {
            let role = stream.settle();
            self.discount(role);
        }
    }

    /// Says farewell, and closes a stream without a notice.
    pub(crate) fn part(&mut self, id: SocketId) {
        if let Some(stream) = self.get(id) {
            stream.part();
        }
        self.close(id);
    }

    /// Closes a stream, without a notice.
    pub(crate) fn close(&mut self, id: SocketId) {
        if self.get(id).is_some()
            && let Some(mut stream) = self.streams.try_remove(id.key)
        {
            let role = stream.settle();
            self.discount(role);
            // As above.
            let _ = self.poll.registry().deregister(&mut stream.socket);
        }
    }

    /// Sees what the sockets have to say, sleeping up to `limit` for it (`None`: as long as it takes).
    pub(crate) fn poll(&mut self, limit: Option<Duration>, now: Duration) -> io::Result<()> {
        match self.poll.poll(&mut self.events, limit) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        let mut tokens = std::mem::take(&mut self.tokens);
        tokens.extend(self.events.iter().map(|event| event.token()));
        for token in tokens.drain(..) {
            match token.0 {
                0 => {}
                odd if odd % 2 == 1 => {
                    let ready = self.listeners.iter_mut().find(|listener| listener.id as usize == odd / 2);
                    ready.into_iter().for_each(|listener| listener.again = true);
                }
                even => self.ready(even / 2 - 1),
            }
        }
        self.tokens = tokens;
        for place in 0..self.listeners.len() {
            if self.listeners[place].again {
                self.accept(place, now);
            }
        }
        Ok(())
    }

    /// Ends handshakes whose time is over, unless the peer has said more since it was looked at last.
    pub(crate) fn expire(&mut self, now: Duration) {
        if self.strangers + self.handshakes == 0 {
            return;
        }
        let late = |stream: &Stream| stream.deadline().is_some_and(|deadline| now >= deadline);
        let over: Vec<_> = self.streams.iter().filter(|(_, stream)| late(stream)).map(|(key, _)| key).collect();
        for key in over {
            let before = self.notices.len();
            self.ready(key);
            if self.notices.len() == before
                && let Some(socket) = self.id_of(key)
            {
                self.close(socket);
                self.notices.push(Notice::TimedOut { socket });
            }
        }
    }

    /// What was noticed, in order; streams that ended are closed already.
    pub(crate) fn notices(&mut self) -> &mut Vec<Notice> {
        &mut self.notices
    }

    /// Accepts who waits. What is left, by want of descriptors say, is tried again with the next poll.
    fn accept(&mut self, place: usize, now: Duration) {
        for _ in 0..ACCEPTS {
            let Listener { id: listener, socket, again } = &mut self.listeners[place];
            match socket.accept() {
                // Turned away, so that a flood of connections costs no memory.
                Ok(_) if self.strangers >= STRANGERS => {}
                Ok((socket, peer)) => {
                    let listener = *listener;
                    match self.insert(socket, Role::Stranger, now.saturating_add(self.limits.hello)) {
                        Ok(socket) => self.notices.push(Notice::Incoming { socket, listener, peer }),
                        Err(error) => tracing::warn!(%peer, %error, "could not watch an incoming connection"),
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    *again = false;
                    return;
                }
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                Err(error) => return tracing::debug!(%error, "could not accept a connection; it is tried again"),
            }
        }
    }

    fn ready(&mut self, key: usize) {
        let (Some(socket), Some(stream)) = (self.id_of(key), self.streams.get_mut(key)) else { return };
        if stream.connecting {
            match stream.connected() {
                Ok(true) => self.notices.push(Notice::Connected { socket }),
                Ok(false) => return,
                Err(error) => return self.end(socket, StreamEnd::System(error)),
            }
        }
        let notices = &mut self.notices;
        let result =
            stream.flush().and_then(|()| stream.receive(|message| notices.push(Notice::Message { socket, message })));
        if let Err(end) = result {
            self.end(socket, end);
        }
    }

    fn insert(&mut self, mut socket: TcpStream, role: Role, deadline: Duration) -> io::Result<SocketId> {
        let serial = self.next_serial();
        let entry = self.streams.vacant_entry();
        let key = entry.key();
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(&mut socket, Token(2 + 2 * key), interest)?;
        entry.insert(Stream::new(socket, serial, role, deadline));
        match role {
            Role::Stranger => self.strangers += 1,
            _ => self.handshakes += 1,
        }
        Ok(SocketId { key, serial })
    }

    fn end(&mut self, socket: SocketId, end: StreamEnd) {
        self.close(socket);
        self.notices.push(Notice::Ended { socket, end });
    }

    fn get(&mut self, id: SocketId) -> Option<&mut Stream> {
        self.streams.get_mut(id.key).filter(|stream| stream.serial == id.serial)
    }

    fn id_of(&self, key: usize) -> Option<SocketId> {
        self.streams.get(key).map(|stream| SocketId { key, serial: stream.serial })
    }

    /// A stream that played `role` in a handshake does so no more.
    fn discount(&mut self, role: Role) {
        match role {
            Role::Stranger => self.strangers -= 1,
            Role::Caller | Role::Guest => self.handshakes -= 1,
            Role::Settled => {}
        }
    }

    fn next_serial(&mut self) -> u32 {
        self.serial = self.serial.wrapping_add(1);
        self.serial
    }
}

/// Events that one poll takes.
const EVENTS: usize = 64;
/// Connections that one poll accepts at most from a listener.
const ACCEPTS: usize = 64;
/// Peers that connected and have not said hello, at once.
const STRANGERS: usize = 256;
/// How long a handshake counts as young. It takes a few steps of some tens of microseconds; what takes longer waits for
/// the peer's program.
const YOUNG: Duration = Duration::from_millis(100);
