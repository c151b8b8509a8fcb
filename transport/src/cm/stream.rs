//! One stream of the connection manager: what the channel says is written, and what comes is heard; never blocks.

use std::io::{self, ErrorKind, Read, Write};

use super::carrier::Carrier;
use super::channel::{Channel, Heard};
use super::dial::CallError;
use super::error::HandshakeError;
use super::message::Message;

/// What carries it, and what is said over it.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) carrier: Carrier,
    channel: Channel,
}

/// How a stream or a call ended.
#[derive(Debug)]
pub(crate) enum StreamEnd {
    /// The connection broke.
    System(io::Error),
    /// The peer closed it.
    HungUp,
    /// The peer said what it may not.
    Handshake(HandshakeError),
    /// It never came to a connection.
    Call(CallError),
}

impl Stream {
    pub(super) fn new(carrier: Carrier, channel: Channel) -> Self {
        carrier.hurry();
        Stream { carrier, channel }
    }

    /// Sends a message, now or when there is room.
    pub(super) fn send(&mut self, message: &Message) -> Result<(), StreamEnd> {
        if !self.channel.say(message) {
            tracing::debug!(kind = ?message.kind(), "a message is not due any more, and not sent");
        }
        self.flush()?;
        // Whoever makes this side answer without end has to read the answers.
        if self.channel.output().len() > UNREAD {
            return Err(StreamEnd::Handshake(HandshakeError::Flood));
        }
        Ok(())
    }

    /// Sends what waits, and leaves.
    pub(super) fn leave(&mut self) {
        let _ = self.flush();
        self.carrier.leave();
    }

    /// The handshake is over: not much is said from now on.
    pub(super) fn settle(&mut self) {
        self.channel.shrink();
    }

    /// Writes what waits. That it can not is found out when something is read next.
    pub(super) fn write_on(&mut self) {
        let _ = self.flush();
    }

    /// Writes what waits, reads what is there, and hands to `f` what the peer has said by it. What came before the peer hung
    /// up counts, whether or not this side could write. No peer makes this long: more than is due is not taken, each message
    /// has a greatest length, and of those that are always due only so many are heard at once. Of a peer that has no room
    /// nothing is read any more.
    pub(super) fn progress(&mut self, mut f: impl FnMut(Heard)) -> Result<(), StreamEnd> {
        let flushed = self.flush();
        self.receive(&mut f)?;
        flushed?;
        // The channel may have answered by itself.
        self.flush()
    }

    fn receive(&mut self, f: &mut impl FnMut(Heard)) -> Result<(), StreamEnd> {
        let mut part = [0; 1024];
        let mut count = 0;
        loop {
            match self.carrier.read(&mut part) {
                Ok(0) => return Err(StreamEnd::HungUp),
                Ok(read) => self.channel.take_in(&part[..read]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(StreamEnd::System(error)),
            }
            while let Some(heard) = self.channel.hear().map_err(StreamEnd::Handshake)? {
                let is_last = matches!(heard, Heard::Busy(_));
                f(heard);
                if is_last {
                    return Ok(());
                }
                count += 1;
                if count > AT_ONCE {
                    return Err(StreamEnd::Handshake(HandshakeError::Flood));
                }
            }
        }
    }

    fn flush(&mut self) -> Result<(), StreamEnd> {
        let output = self.channel.output();
        while !output.is_empty() {
            match self.carrier.write(output) {
                Ok(0) => return Err(StreamEnd::HungUp),
                Ok(count) => drop(output.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(StreamEnd::System(error)),
            }
        }
        Ok(())
    }
}

/// Messages that are heard at once: more than a peer that obeys says in minutes.
const AT_ONCE: u32 = 1000;
/// Bytes that a peer leaves unread at most, beside what the system keeps for it.
const UNREAD: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use super::*;
    use crate::cm::channel::Side;
    use crate::cm::preface::Preface;

    #[test]
    fn a_peer_that_has_no_room_is_not_listened_to_any_more() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, _) = listener.accept().unwrap();
        // Less than the system keeps, and so all of it is there.
        let flood = vec![0; 30_000];
        peer.write_all(&Preface::busy(false, Duration::from_millis(7)).encode()).unwrap();
        peer.write_all(&flood).unwrap();
        let mut first = [0];
        assert_eq!(socket.peek(&mut first).unwrap(), 1);
        socket.set_nonblocking(true).unwrap();
        let carrier = Carrier::Tcp(mio::net::TcpStream::from_std(socket));
        let mut stream = Stream::new(carrier, Channel::new(Side::Caller, None));
        let mut heard = Vec::new();
        while heard.is_empty() {
            stream.progress(|what| heard.push(what)).unwrap();
        }
        assert!(matches!(heard[..], [Heard::Busy(wait)] if wait == Duration::from_millis(7)), "{heard:?}");
        let mut rest = vec![0; flood.len()];
        assert!(stream.carrier.read(&mut rest).unwrap() > flood.len() / 2, "most of it is still there");
    }
}
