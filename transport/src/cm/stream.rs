//! One TCP connection of the connection manager: bytes in, messages out, and the other way round; never blocks.

use std::io::{self, ErrorKind, Read, Write};
use std::time::Duration;

use mio::net::TcpStream;

use super::hello::{HandshakeError, Message};

/// A stream with what was read and not understood yet, and what is still to be written.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) socket: TcpStream,
    pub(super) serial: u32,
    /// The system is still connecting.
    pub(super) connecting: bool,
    role: Role,
    /// The handshake must be over by then.
    deadline: Duration,
    /// Messages that the peer may still send.
    due: u8,
    input: Vec<u8>,
    output: Vec<u8>,
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

/// How a stream ended.
#[derive(Debug)]
pub(crate) enum StreamEnd {
    /// The connection could not be made, or broke.
    System(io::Error),
    /// The peer closed it.
    HungUp,
    /// The peer said what it may not.
    Handshake(HandshakeError),
}

impl Stream {
    pub(super) fn new(socket: TcpStream, serial: u32, role: Role, deadline: Duration) -> Self {
        // Only latency is at stake: without it, the handshake's last message may wait for an acknowledgement.
        let _ = socket.set_nodelay(true);
        let called = role == Role::Caller;
        // An answer; a hello and that it is ready. And a farewell.
        let due = if called { 2 } else { 3 };
        Stream { socket, serial, connecting: called, role, deadline, due, input: Vec::new(), output: Vec::new() }
    }

    /// When the handshake must be over, if it is not.
    pub(super) fn deadline(&self) -> Option<Duration> {
        (self.role != Role::Settled).then_some(self.deadline)
    }

    /// The peer has said hello. False if it had before, or nobody asked.
    pub(super) fn greeted(&mut self, deadline: Duration) -> bool {
        let first = self.role == Role::Stranger;
        if first {
            (self.role, self.deadline) = (Role::Guest, deadline);
        }
        first
    }

    /// The handshake is over. Gives the part that the stream played.
    pub(super) fn settle(&mut self) -> Role {
        std::mem::replace(&mut self.role, Role::Settled)
    }

    /// True once the system has connected, an error if it could not.
    pub(super) fn connected(&mut self) -> io::Result<bool> {
        if let Some(error) = self.socket.take_error()? {
            return Err(error);
        }
        match self.socket.peer_addr() {
            Ok(_) => {
                self.connecting = false;
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Sends a message, now or when there is room.
    pub(super) fn send(&mut self, message: &Message) -> Result<(), StreamEnd> {
        self.output.extend_from_slice(&message.encode());
        self.flush()
    }

    /// Says farewell, as the last of all. What has come is read, though it is of no use: with something unread the system would
    /// cut the stream off, and drop what it has not sent yet.
    pub(super) fn part(&mut self) {
        let _ = self.send(&Message::Farewell);
        let mut part = [0; 1024];
        for _ in 0..PARTING_READS {
            if !matches!(self.socket.read(&mut part), Ok(count) if count > 0) {
                return;
            }
        }
    }

    /// Writes what waits.
    pub(super) fn flush(&mut self) -> Result<(), StreamEnd> {
        while !self.output.is_empty() {
            match self.socket.write(&self.output) {
                Ok(0) => return Err(StreamEnd::HungUp),
                Ok(count) => drop(self.output.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(StreamEnd::System(error)),
            }
        }
        Ok(())
    }

    /// Reads what is there, and hands each message to `f`. No peer makes this long: more messages than a connection has
    /// are not taken, and each has a greatest length.
    pub(super) fn receive(&mut self, mut f: impl FnMut(Message)) -> Result<(), StreamEnd> {
        let mut part = [0; 1024];
        loop {
            match self.socket.read(&mut part) {
                Ok(0) => return Err(StreamEnd::HungUp),
                Ok(count) => self.input.extend_from_slice(&part[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(StreamEnd::System(error)),
            }
            while let Some((message, used)) = Message::decode(&self.input).map_err(StreamEnd::Handshake)? {
                self.input.drain(..used);
                let Some(due) = self.due.checked_sub(1) else {
                    return Err(StreamEnd::Handshake(HandshakeError::Unexpected(message.code())));
                };
                self.due = due;
                f(message);
            }
        }
    }
}

/// Reads before a stream is closed: more than any peer that obeys has to say.
const PARTING_READS: u32 = 8;
