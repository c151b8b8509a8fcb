//! A connection to the store, which carries lines and blocks nobody.

use std::io::{self, ErrorKind, Read, Write};
use std::net::IpAddr;
use std::time::Duration;

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use qpair_transport::{ClusterKey, Guarded, HandshakeError, Keepalive};

use super::message::{JOIN_LIMIT, LINE_LIMIT, Listening, PURPOSE, Whereabouts};
use crate::deadline::Deadline;

/// A connection to the store: a rank's, or a stranger's.
pub(super) struct Visitor {
    stream: TcpStream,
    guarded: Guarded,
    /// What it said, up to a line that is not whole.
    input: Vec<u8>,
    /// Who it is, once it has said so and was let in.
    pub(super) joined: Option<(u32, Whereabouts)>,
    /// How it is reached, once it has said so.
    pub(super) listening: Option<Listening>,
    /// Until when it has to be done: to say who it is, or to hear why it has to go. `None` of those that have joined.
    pub(super) until: Option<Deadline>,
    /// The address at which it reached this host.
    pub(super) reached: Option<IpAddr>,
    /// Nothing more is read; it is closed once all is written.
    closing: bool,
    /// Lines that it may still say.
    lines: u32,
}

/// What a visitor has said.
pub(super) enum Heard {
    /// A whole line.
    Line(Vec<u8>),
    /// More than any rank has to say.
    TooMuch,
    /// It is no rank of this job.
    Stranger(HandshakeError),
    /// Nothing more for now.
    Nothing,
    /// It hung up.
    End,
}

impl Visitor {
    pub(super) fn new(
        mut stream: TcpStream,
        key: Option<&ClusterKey>,
        registry: &Registry,
        token: Token,
    ) -> io::Result<Visitor> {
        let key = key.map(with_entropy).transpose()?;
        // Only latency is at stake.
        let _ = stream.set_nodelay(true);
        keepalive().watch(&stream)?;
        registry.register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
        let reached = stream.local_addr().ok().map(|address| address.ip().to_canonical());
        Ok(Visitor {
            stream,
            guarded: Guarded::listener(PURPOSE, key),
            input: Vec::new(),
            joined: None,
            listening: None,
            until: Some(Deadline::after(PATIENCE)),
            reached,
            closing: false,
            lines: LINES,
        })
    }

    /// The next line, if it has come.
    pub(super) fn hear(&mut self) -> Heard {
        let mut part = [0; 4096];
        let limit = if self.joined.is_some() { LINE_LIMIT } else { JOIN_LIMIT };
        loop {
            if self.closing {
                return Heard::Nothing;
            }
            if self.lines == 0 {
                return Heard::TooMuch;
            }
            if let Some(end) = self.input.iter().position(|&byte| byte == b'\n') {
                self.lines -= 1;
                return Heard::Line(self.input.drain(..=end).collect());
            }
            if self.input.len() > limit {
                return Heard::TooMuch;
            }
            match self.guarded.hear() {
                Ok(Some(more)) => {
                    self.input.extend_from_slice(&more);
                    continue;
                }
                Ok(None) => {}
                Err(error) => return Heard::Stranger(error),
            }
            match self.stream.read(&mut part) {
                Ok(0) => return Heard::End,
                Ok(read) => self.guarded.take_in(&part[..read]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Heard::Nothing,
                Err(_) => return Heard::End,
            }
        }
    }

    /// Tells it something, once [`flush`](Self::flush) can write it.
    pub(super) fn tell(&mut self, line: &[u8]) {
        self.guarded.say(line);
    }

    /// Lets it go once it was told all.
    pub(super) fn dismiss(&mut self) {
        self.closing = true;
        self.until = Some(Deadline::after(PATIENCE));
    }

    /// Writes what is possible. False if the connection is over.
    pub(super) fn flush(&mut self) -> bool {
        let output = self.guarded.output();
        let mut written = 0;
        let goes_on = loop {
            if written == output.len() {
                break true;
            }
            match self.stream.write(&output[written..]) {
                Ok(0) => break false,
                Ok(more) => written += more,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => break error.kind() == ErrorKind::WouldBlock,
            }
        };
        output.drain(..written);
        if output.is_empty() {
            output.shrink_to(KEPT);
        }
        goes_on && !(self.closing && output.is_empty())
    }

    /// Whether something is left to write.
    pub(super) fn is_behind(&mut self) -> bool {
        !self.guarded.output().is_empty()
    }
}

/// The key, and random bytes for a stream.
pub(super) fn with_entropy(key: &ClusterKey) -> io::Result<(ClusterKey, [u8; 32])> {
    let mut entropy = [0; 32];
    getrandom::fill(&mut entropy)?;
    Ok((key.clone(), entropy))
}

/// How the system finds that the other host of a stream between ranks and the store is gone: it gives up within 20 s. A process that
/// is stopped still answers: its system does.
pub(super) fn keepalive() -> Keepalive {
    Keepalive::new(IDLE, INTERVAL, Duration::ZERO).expect("neither is for ever")
}

/// Silence after which the system asks, and time between questions.
const IDLE: Duration = Duration::from_secs(4);
const INTERVAL: Duration = Duration::from_secs(2);
/// A rank joins, listens, reports a fault, asks who is left, and leaves. One that says more than this keeps the store from the others.
const LINES: u32 = 16;
/// How long somebody may stay who has not joined. A rank says who it is at once; one whose host is too slow comes again.
const PATIENCE: Duration = Duration::from_secs(10);
/// Room that is kept for what a visitor is told next.
const KEPT: usize = 1 << 10;
