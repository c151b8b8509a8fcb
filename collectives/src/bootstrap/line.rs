//! A rank's end of the stream to the store, for two threads: one that says things, and one that hears.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use qpair_transport::{ClusterKey, Guarded, HandshakeError};

use super::message::{ANSWER_LIMIT, FromStore, PURPOSE};
use super::visitor::{keepalive, with_entropy};
use crate::deadline::Deadline;

/// What says things to the store. Clones say them over the same stream.
#[derive(Clone, Debug)]
pub(super) struct Mouth(Arc<Line>);

/// What hears the store.
#[derive(Debug)]
pub(super) struct Ear {
    line: Arc<Line>,
    /// Up to a line that is not whole; so much of it has no end of a line.
    heard: Vec<u8>,
    searched: usize,
}

/// One descriptor for all who use the stream: where a process has many ranks, they are scarce.
#[derive(Debug)]
struct Line {
    stream: TcpStream,
    guarded: Mutex<Guarded>,
}

/// Why nothing was heard.
pub(super) enum Hearing {
    /// The connection ended, or the time is over.
    Over(io::Error),
    /// The other side's key is not this one's, or it speaks something else.
    Handshake(HandshakeError),
    /// A line that is no message.
    Strange(String),
}

/// Both ends of a stream that was just connected.
pub(super) fn speak(stream: TcpStream, key: Option<&ClusterKey>) -> io::Result<(Mouth, Ear)> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(UNREAD))?;
    keepalive().watch(&stream)?;
    let guarded = Guarded::caller(PURPOSE, key.map(with_entropy).transpose()?);
    let line = Arc::new(Line { stream, guarded: Mutex::new(guarded) });
    Ok((Mouth(line.clone()), Ear { line, heard: Vec::new(), searched: 0 }))
}

impl Mouth {
    /// Says a line, or keeps it until the store is known to have the key.
    pub(super) fn say(&mut self, line: &[u8]) -> io::Result<()> {
        let mut guarded = self.0.lock();
        guarded.say(line);
        self.0.flush(&mut guarded)
    }

    #[cfg(test)]
    pub(super) fn stream(&self) -> &TcpStream {
        &self.0.stream
    }

    pub(super) fn hang_up(&mut self) {
        // If that fails, the connection is over already.
        let _ = self.0.stream.shutdown(Shutdown::Both);
    }
}

impl Ear {
    /// The next message, until the deadline.
    pub(super) fn message(&mut self, deadline: Option<Deadline>) -> Result<FromStore, Hearing> {
        let mut part = vec![0; PART];
        loop {
            if let Some(end) = self.heard[self.searched..].iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.heard.drain(..=self.searched + end).collect();
                self.searched = 0;
                let strange = |_| Hearing::Strange(String::from_utf8_lossy(&line).trim_end().to_owned());
                return serde_json::from_slice(&line).map_err(strange);
            }
            self.searched = self.heard.len();
            if self.heard.len() >= ANSWER_LIMIT {
                self.heard.clear();
                self.searched = 0;
                return Err(Hearing::Strange("a line too long".into()));
            }
            if let Some(more) = self.listen()? {
                self.heard.extend_from_slice(&more);
                continue;
            }
            self.wait(deadline)?;
            match (&self.line.stream).read(&mut part) {
                Ok(0) => return Err(Hearing::Over(ErrorKind::UnexpectedEof.into())),
                Ok(read) => {
                    self.line.lock().take_in(&part[..read]);
                    match self.listen() {
                        Ok(more) => self.heard.extend(more.unwrap_or_default()),
                        // What it said, for people.
                        Err(Hearing::Handshake(HandshakeError::Magic)) => {
                            return Err(Hearing::Strange(String::from_utf8_lossy(&part[..read]).trim_end().to_owned()));
                        }
                        Err(error) => return Err(error),
                    }
                }
                Err(error)
                    if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                }
                Err(error) => return Err(Hearing::Over(error)),
            }
        }
    }

    /// What was heard, after what both sides have to say before.
    fn listen(&mut self) -> Result<Option<Vec<u8>>, Hearing> {
        let mut guarded = self.line.lock();
        let heard = guarded.hear().map_err(Hearing::Handshake);
        // If that fails, so will reading.
        let _ = self.line.flush(&mut guarded);
        heard
    }

    fn wait(&self, deadline: Option<Deadline>) -> Result<(), Hearing> {
        let left = match deadline {
            Some(deadline) if deadline.is_over() => return Err(Hearing::Over(ErrorKind::TimedOut.into())),
            Some(deadline) => deadline.left().map(|left| left.max(LEAST)),
            None => None,
        };
        self.line.stream.set_read_timeout(left).map_err(Hearing::Over)
    }
}

impl Line {
    fn lock(&self) -> MutexGuard<'_, Guarded> {
        self.guarded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Under the lock, so that what two threads say does not mix. What is said is short, and the store reads all that comes: one
    /// that does not is heard no more either.
    fn flush(&self, guarded: &mut Guarded) -> io::Result<()> {
        let output = std::mem::take(guarded.output());
        if output.is_empty() {
            return Ok(());
        }
        (&self.stream).write_all(&output).inspect_err(|_| _ = self.stream.shutdown(Shutdown::Both))
    }
}

/// Bytes that are read at once.
const PART: usize = 16 << 10;

/// How long the store may leave unread what it is told, once the system keeps no more of it.
const UNREAD: Duration = Duration::from_secs(2);

/// A socket takes no shorter limit than this.
const LEAST: Duration = Duration::from_millis(1);
