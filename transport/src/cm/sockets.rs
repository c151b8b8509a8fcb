//! All sockets of a worker under one mio poll: listeners, streams, and the completion channel to sleep upon.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

use mio::event::Source;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use slab::Slab;

use super::hello::Message;
use super::stream::{Stream, StreamEnd};

/// A stream of the connection manager.
pub(crate) type SocketId = usize;

/// Listeners, streams and what they have to say.
#[derive(Debug)]
pub(crate) struct Sockets {
    poll: Poll,
    events: Events,
    /// What the events are of; empty between polls.
    tokens: Vec<Token>,
    listeners: Slab<TcpListener>,
    streams: Slab<Stream>,
    notices: Vec<Notice>,
    /// Streams with a handshake under way.
    pending: usize,
    /// How long a peer may take to say all that the handshake needs.
    limit: Duration,
}

/// Something that a socket has to say.
#[derive(Debug)]
pub(crate) enum Notice {
    /// Someone connected to a listener.
    Incoming { socket: SocketId, listener: usize, peer: SocketAddr },
    /// An outgoing stream is connected.
    Connected { socket: SocketId },
    /// A message of the handshake.
    Message { socket: SocketId, message: Message },
    /// A stream ended, and is closed.
    Ended { socket: SocketId, end: StreamEnd },
    /// A handshake took too long; its stream is closed.
    TimedOut { socket: SocketId },
}

/// The token of the completion channel.
const CHANNEL: Token = Token(0);

impl Sockets {
    pub(crate) fn new(limit: Duration) -> io::Result<Self> {
        Ok(Sockets {
            poll: Poll::new()?,
            events: Events::with_capacity(EVENTS),
            tokens: Vec::with_capacity(EVENTS),
            listeners: Slab::new(),
            streams: Slab::new(),
            notices: Vec::new(),
            pending: 0,
            limit,
        })
    }

    /// Lets readiness of `source` end a sleep.
    pub(crate) fn register(&mut self, source: &mut impl Source) -> io::Result<()> {
        self.poll.registry().register(source, CHANNEL, Interest::READABLE)
    }

    pub(crate) fn listeners(&self) -> usize {
        self.listeners.len()
    }

    /// Handshakes under way.
    pub(crate) fn pending(&self) -> usize {
        self.pending
    }

    pub(crate) fn listen(&mut self, address: SocketAddr) -> io::Result<(usize, SocketAddr)> {
        let mut listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let entry = self.listeners.vacant_entry();
        let key = entry.key();
        self.poll.registry().register(&mut listener, Token(1 + 2 * key), Interest::READABLE)?;
        entry.insert(listener);
        Ok((key, address))
    }

    pub(crate) fn stop_listening(&mut self, key: usize) {
        if let Some(mut listener) = self.listeners.try_remove(key) {
            // The descriptor is closed right after, which deregisters it as well.
            let _ = self.poll.registry().deregister(&mut listener);
        }
    }

    /// Begins to connect; [`Notice::Connected`] or [`Notice::Ended`] follows.
    pub(crate) fn connect(&mut self, address: SocketAddr, now: Duration) -> io::Result<SocketId> {
        let socket = TcpStream::connect(address)?;
        self.insert(Stream::new(socket, true, now + self.limit))
    }

    /// Sends a message of the handshake. If that fails, [`Notice::Ended`] follows.
    pub(crate) fn send(&mut self, socket: SocketId, message: &Message) {
        if let Some(stream) = self.streams.get_mut(socket)
            && let Err(end) = stream.send(message)
        {
            self.end(socket, end);
        }
    }

    /// The handshake is over: the stream stays, without a deadline, until the peer hangs up.
    pub(crate) fn settle(&mut self, socket: SocketId) {
        if let Some(stream) = self.streams.get_mut(socket)
            && stream.deadline.take().is_some()
        {
            self.pending -= 1;
        }
    }

    /// Closes a stream, without a notice.
    pub(crate) fn close(&mut self, socket: SocketId) {
        if let Some(mut stream) = self.streams.try_remove(socket) {
            self.pending -= usize::from(stream.deadline.is_some());
            // As above.
            let _ = self.poll.registry().deregister(&mut stream.socket);
        }
    }

    /// Sees what the sockets have to say, sleeping up to `limit` for it (`None`: as long as it takes).
    pub(crate) fn poll(&mut self, limit: Option<Duration>, now: Duration) -> io::Result<&mut Vec<Notice>> {
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
                odd if odd % 2 == 1 => self.accept(odd / 2, now),
                even => self.ready(even / 2 - 1),
            }
        }
        self.tokens = tokens;
        Ok(&mut self.notices)
    }

    /// Ends handshakes whose time is over.
    pub(crate) fn expire(&mut self, now: Duration) {
        if self.pending == 0 {
            return;
        }
        let late = |stream: &Stream| stream.deadline.is_some_and(|deadline| now >= deadline);
        let over: Vec<_> = self.streams.iter().filter(|(_, stream)| late(stream)).map(|(key, _)| key).collect();
        for socket in over {
            self.close(socket);
            self.notices.push(Notice::TimedOut { socket });
        }
    }

    /// What was noticed outside of [`poll`](Sockets::poll).
    pub(crate) fn notices(&mut self) -> &mut Vec<Notice> {
        &mut self.notices
    }

    fn accept(&mut self, key: usize, now: Duration) {
        loop {
            let Some(listener) = self.listeners.get(key) else { return };
            match listener.accept() {
                // Turned away, so that a flood of connections costs no memory.
                Ok(_) if self.pending >= PENDING_LIMIT => {}
                Ok((socket, peer)) => {
                    let deadline = now + self.limit;
                    match self.insert(Stream::new(socket, false, deadline)) {
                        Ok(socket) => self.notices.push(Notice::Incoming { socket, listener: key, peer }),
                        Err(error) => tracing::warn!(%peer, %error, "could not watch an incoming connection"),
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::warn!(%error, "could not accept a connection");
                    return;
                }
            }
        }
    }

    fn ready(&mut self, socket: SocketId) {
        let Some(stream) = self.streams.get_mut(socket) else { return };
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

    fn insert(&mut self, mut stream: Stream) -> io::Result<SocketId> {
        let entry = self.streams.vacant_entry();
        let key = entry.key();
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(&mut stream.socket, Token(2 + 2 * key), interest)?;
        entry.insert(stream);
        self.pending += 1;
        Ok(key)
    }

    fn end(&mut self, socket: SocketId, end: StreamEnd) {
        self.close(socket);
        self.notices.push(Notice::Ended { socket, end });
    }
}

/// Events that one poll takes.
const EVENTS: usize = 64;
/// Handshakes under way at once.
const PENDING_LIMIT: usize = 256;
