//! All sockets of a worker under one mio poll: listeners, calls, streams, and the completion channel to sleep upon. Each
//! step costs as much with ten thousand streams as with ten. Streams by rdma_cm are sockets like others.

mod calls;
mod lines;
mod listeners;
mod rdma;

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::task::Waker;
use std::time::Duration;

use mio::event::Source;
use mio::{Events, Interest, Poll, Token};
use qpair_verbs::Context;
use slab::Slab;
use zeroize::Zeroizing;

use super::alarm::alarm;
use super::channel::Secret;
use super::keepalive::Keepalive;
use super::key::ClusterKey;
use super::message::Message;
use super::names::Names;
use super::stream::StreamEnd;
use super::timers::Timers;
use super::turns::Turns;
use calls::Attempt;
use lines::{Line, Role, State};
use listeners::Listener;
use rdma::RdmaStreams;

/// A stream of the connection manager, or a call that becomes one. Never given twice: what is said of one that ended is meant
/// for no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SocketId {
    key: usize,
    serial: u32,
}

impl SocketId {
    /// A small number, of no other stream at the same time.
    pub(super) fn key(self) -> usize {
        self.key
    }
}

/// How the connection manager is set up.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// From a call to the end of its handshake.
    pub(crate) connect: Duration,
    /// From a peer's hello to the end of the handshake.
    pub(crate) guest: Duration,
    /// Until a peer that connected says hello.
    pub(crate) hello: Duration,
    /// Peers must have the same.
    pub(crate) key: Option<ClusterKey>,
    /// Of each stream.
    pub(crate) keepalive: Option<Keepalive>,
    /// Where random numbers begin that need not be secret.
    pub(crate) seed: u64,
}

/// Listeners, streams and what they have to say.
#[derive(Debug)]
pub(crate) struct Sockets {
    poll: Poll,
    events: Events,
    /// What the events are of; empty between polls.
    tokens: Vec<Token>,
    listeners: Vec<Listener>,
    lines: Slab<Line>,
    /// Connections that the system makes for calls.
    attempts: Slab<Attempt>,
    rdma: RdmaStreams,
    timers: Timers,
    turns: Turns<SocketId>,
    names: Names<SocketId>,
    /// Ends a sleep: what was asked elsewhere is answered.
    waker: Waker,
    notices: Vec<Notice>,
    /// Peers that connected and have not said hello.
    strangers: usize,
    /// Other handshakes under way.
    handshakes: usize,
    /// Streams of which nothing is read now.
    held: usize,
    /// Until then, handshakes under way are young.
    brisk: Duration,
    settings: Settings,
    /// Numbers given to listeners and streams.
    serial: u32,
}

/// Something that a socket has to say.
#[derive(Debug)]
pub(crate) enum Notice {
    /// Someone connected to a listener.
    Incoming { socket: SocketId, listener: u32, peer: SocketAddr },
    /// The peer that was called at that address takes the call: a hello is due.
    Greeted { socket: SocketId, peer: SocketAddr },
    /// A message of the peer that was due.
    Message { socket: SocketId, message: Message },
    /// A stream ended, and is closed.
    Ended { socket: SocketId, end: StreamEnd },
    /// A handshake took too long; its stream is closed.
    TimedOut { socket: SocketId },
}

/// The token of the completion channel, and of what other threads have found out. Of the others, see [`Of`].
const CHANNEL: Token = Token(0);
const ANSWERS: Token = Token(1);

/// What an event is about.
enum Of {
    Nothing,
    Answers,
    /// A listener by its number.
    Listener(u32),
    /// A stream by its key.
    Line(usize),
    /// An attempt by its key.
    Attempt(usize),
}

impl Notice {
    /// Of which stream it is.
    pub(crate) fn socket(&self) -> SocketId {
        match *self {
            Notice::Incoming { socket, .. }
            | Notice::Greeted { socket, .. }
            | Notice::Message { socket, .. }
            | Notice::Ended { socket, .. }
            | Notice::TimedOut { socket } => socket,
        }
    }
}

impl Of {
    fn token(&self) -> Token {
        match *self {
            Of::Nothing => CHANNEL,
            Of::Answers => ANSWERS,
            Of::Listener(id) => Token(2 + 3 * id as usize),
            Of::Line(key) => Token(3 + 3 * key),
            Of::Attempt(key) => Token(4 + 3 * key),
        }
    }

    fn from_token(token: Token) -> Of {
        let Some(number) = token.0.checked_sub(2) else {
            return if token == ANSWERS { Of::Answers } else { Of::Nothing };
        };
        match number % 3 {
            0 => Of::Listener((number / 3) as u32),
            1 => Of::Line(number / 3),
            _ => Of::Attempt(number / 3),
        }
    }
}

impl Sockets {
    /// Streams by rdma_cm are on the device of `context`.
    pub(crate) fn new(settings: Settings, context: &Context) -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = alarm(poll.registry(), ANSWERS)?;
        Ok(Sockets {
            poll,
            events: Events::with_capacity(EVENTS),
            tokens: Vec::with_capacity(EVENTS),
            listeners: Vec::new(),
            lines: Slab::new(),
            attempts: Slab::new(),
            rdma: RdmaStreams::new(context),
            timers: Timers::default(),
            turns: Turns::new(CALLS),
            names: Names::new(&waker),
            waker,
            notices: Vec::new(),
            strangers: 0,
            handshakes: 0,
            held: 0,
            brisk: Duration::ZERO,
            settings,
            serial: 0,
        })
    }

    /// Ends a sleep, for whoever is asked by this thread.
    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Readable while there is something to poll for.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.poll.registry().as_fd()
    }

    /// Lets readiness of `source` end a sleep.
    pub(crate) fn register(&mut self, source: &mut impl Source) -> io::Result<()> {
        self.poll.registry().register(source, CHANNEL, Interest::READABLE)
    }

    /// True while a handshake is under way that began not long ago: its next step is worth looking for often.
    #[inline]
    pub(crate) fn is_brisk(&self, now: Duration) -> bool {
        self.handshakes + self.held > 0 && now < self.brisk
    }

    /// True if [`see_to_events`](Sockets::see_to_events) has something to do that no event tells of. So may it be where the last look
    /// took as many events as it can: of the others this descriptor does not tell a program anew that has heard of it.
    pub(crate) fn has_chores(&self) -> bool {
        let is_full = self.events.iter().count() == EVENTS;
        is_full
            || self.turns.has_next()
            || self.rdma.has_chores()
            || self.listeners.iter().any(|listener| listener.again)
    }

    /// When [`expire`](Sockets::expire) has something to do.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.timers.first()
    }

    /// Sleeps up to `limit` until the sockets have something to say (`None`: as long as it takes).
    pub(crate) fn sleep(&mut self, limit: Option<Duration>) -> io::Result<()> {
        match self.poll.poll(&mut self.events, limit) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {
                self.events.clear();
                Ok(())
            }
            polled => polled,
        }
    }

    /// Sees what the sockets had to say when [`sleep`](Sockets::sleep) ended, and what no event tells of.
    pub(crate) fn see_to_events(&mut self, now: Duration) {
        let mut tokens = std::mem::take(&mut self.tokens);
        tokens.extend(self.events.iter().map(|event| event.token()));
        for token in tokens.drain(..) {
            match Of::from_token(token) {
                Of::Nothing => {}
                Of::Answers => self.take_names(now),
                Of::Listener(id) => {
                    let ready = self.listeners.iter_mut().find(|listener| listener.id == id);
                    ready.into_iter().for_each(|listener| listener.again = true);
                }
                Of::Line(key) => self.ready(key, now),
                Of::Attempt(key) => self.attempted(key, now),
            }
        }
        self.tokens = tokens;
        for place in 0..self.listeners.len() {
            if self.listeners[place].again {
                self.accept(place, now);
            }
        }
        self.look_at_rdma(now);
        self.hand_out_turns(now);
    }

    /// Does what is due: goes on with calls, and ends handshakes whose time is over, unless the peer has said more since it
    /// was looked at last.
    pub(crate) fn expire(&mut self, now: Duration) {
        if self.timers.first().is_none_or(|first| now < first) {
            return;
        }
        for key in self.timers.due(now) {
            self.line_due(key, now);
        }
        self.hand_out_turns(now);
    }

    /// What was noticed, in order; streams that ended are closed already.
    pub(crate) fn notices(&mut self) -> &mut Vec<Notice> {
        &mut self.notices
    }

    /// A random number that is no secret (SplitMix64).
    fn dice(&mut self) -> u64 {
        self.settings.seed = self.settings.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.settings.seed;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// What one stream needs to keep strangers out, if there is a key.
    fn secret(&self) -> io::Result<Option<Secret>> {
        let Some(key) = self.settings.key.clone() else { return Ok(None) };
        let mut entropy = Zeroizing::new([0; 32]);
        getrandom::fill(&mut entropy[..])?;
        Ok(Some(Secret { key, entropy }))
    }

    fn next_serial(&mut self) -> u32 {
        self.serial = self.serial.wrapping_add(1);
        self.serial
    }
}

/// Events that one poll takes.
const EVENTS: usize = 256;
/// Calls under way at once: enough that the round trips of some hide the work of others, and few enough that a listener with
/// the usual backlog takes in those of several workers.
const CALLS: usize = 128;
