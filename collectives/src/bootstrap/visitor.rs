//! A connection to the store, which carries lines and blocks nobody.

use std::io::{self, ErrorKind, Read, Write};

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};

use super::message::{LINE_LIMIT, Listening, Whereabouts};

/// A connection to the store: a rank's, or a stranger's.
pub(super) struct Visitor {
    stream: TcpStream,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Who it is, once it has said so and was let in.
    pub(super) joined: Option<(u32, Whereabouts)>,
    /// How it is reached, once it has said so.
    pub(super) listening: Option<Listening>,
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
    /// Nothing more for now.
    Nothing,
    /// It hung up.
    End,
}

impl Visitor {
    pub(super) fn new(mut stream: TcpStream, registry: &Registry, token: Token) -> io::Result<Visitor> {
        // Only latency is at stake.
        let _ = stream.set_nodelay(true);
        registry.register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
        Ok(Visitor {
            stream,
            input: Vec::new(),
            output: Vec::new(),
            joined: None,
            listening: None,
            closing: false,
            lines: LINES,
        })
    }

    pub(super) fn is(&self, rank: u32) -> bool {
        self.joined.as_ref().is_some_and(|(joined, _)| *joined == rank)
    }

    /// The next line, if it has come.
    pub(super) fn hear(&mut self) -> Heard {
        let mut part = [0; 4096];
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
            if self.input.len() > LINE_LIMIT {
                return Heard::TooMuch;
            }
            match self.stream.read(&mut part) {
                Ok(0) => return Heard::End,
                Ok(read) => self.input.extend_from_slice(&part[..read]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Heard::Nothing,
                Err(_) => return Heard::End,
            }
        }
    }

    /// Tells it something, once [`flush`](Self::flush) can write it.
    pub(super) fn tell(&mut self, line: &[u8]) {
        self.output.extend_from_slice(line);
    }

    /// Lets it go once it was told all.
    pub(super) fn dismiss(&mut self) {
        self.closing = true;
    }

    /// Writes what is possible. False if the connection is over.
    pub(super) fn flush(&mut self) -> bool {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(0) => return false,
                Ok(written) => drop(self.output.drain(..written)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        }
        !self.closing
    }

    /// Whether something is left to write.
    pub(super) fn is_behind(&self) -> bool {
        !self.output.is_empty()
    }
}

/// A rank joins, listens, reports a fault, and leaves. One that says more than this keeps the store from the others.
const LINES: u32 = 16;
