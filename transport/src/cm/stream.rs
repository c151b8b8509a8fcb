//! One TCP connection of the connection manager: bytes in, messages out, and the other way round; never blocks.

use std::io::{self, ErrorKind, Read, Write};
use std::time::Duration;

use mio::net::TcpStream;

use super::hello::{HandshakeError, MESSAGE_LIMIT, Message};

/// A stream with what was read and not understood yet, and what is still to be written.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) socket: TcpStream,
    /// The system is still connecting.
    pub(super) connecting: bool,
    /// The handshake must be over by then.
    pub(super) deadline: Option<Duration>,
    input: Vec<u8>,
    output: Vec<u8>,
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
    pub(super) fn new(socket: TcpStream, connecting: bool, deadline: Duration) -> Self {
        // Only latency is at stake: without it, the handshake's last message may wait for an acknowledgement.
        let _ = socket.set_nodelay(true);
        Stream { socket, connecting, deadline: Some(deadline), input: Vec::new(), output: Vec::new() }
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

    /// Reads what is there, and hands each message to `f`.
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
                f(message);
            }
            if self.input.len() > MESSAGE_LIMIT {
                let error = HandshakeError::TooLong { len: self.input.len(), limit: MESSAGE_LIMIT };
                return Err(StreamEnd::Handshake(error));
            }
        }
    }
}
