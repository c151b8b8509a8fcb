//! Listening, and who comes.

use std::io::{self, ErrorKind, Write};
use std::net::SocketAddr;
use std::time::Duration;

use mio::Interest;
use mio::net::{TcpListener, TcpStream};

use super::{Notice, Of, Sockets};
use crate::cm::channel::{Channel, Side};
use crate::cm::is_out_of_descriptors;
use crate::cm::preface::Preface;
use crate::cm::stream::{Stream, leave};

#[derive(Debug)]
pub(super) struct Listener {
    pub(super) id: u32,
    socket: TcpListener,
    /// Peers may wait that were not accepted, though nothing more will tell of them.
    pub(super) again: bool,
    /// It was said that there are no descriptors for them.
    starved: bool,
}

impl Sockets {
    pub(crate) fn listeners(&self) -> usize {
        self.listeners.len()
    }

    pub(crate) fn listen(&mut self, address: SocketAddr) -> io::Result<(u32, SocketAddr)> {
        let mut socket = TcpListener::bind(address)?;
        // It listens already, for fewer than a large job sends at once; the system shortens this to its own limit.
        rustix::net::listen(&socket, BACKLOG)?;
        let address = socket.local_addr()?;
        let id = self.next_serial();
        self.poll.registry().register(&mut socket, Of::Listener(id).token(), Interest::READABLE)?;
        self.listeners.push(Listener { id, socket, again: false, starved: false });
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

    /// Accepts who waits. What is left, by want of descriptors say, is tried again with the next poll.
    pub(super) fn accept(&mut self, place: usize, now: Duration) {
        for _ in 0..ACCEPTS {
            let Listener { id: listener, socket, again, starved } = &mut self.listeners[place];
            match socket.accept() {
                Ok((socket, _)) if self.strangers >= STRANGERS => self.turn_away(socket),
                Ok((socket, peer)) => {
                    *starved = false;
                    let listener = *listener;
                    if let Err(error) = self.take_in(socket, listener, peer, now) {
                        tracing::warn!(%peer, %error, "could not watch an incoming connection");
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    *again = false;
                    return;
                }
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                Err(error) if is_out_of_descriptors(&error) => {
                    if !std::mem::replace(starved, true) {
                        tracing::warn!(%error, "peers wait to be accepted; raise the limit of descriptors with ulimit -n");
                    }
                    return;
                }
                Err(error) => return tracing::debug!(%error, "could not accept a connection; it is tried again"),
            }
        }
    }

    fn take_in(&mut self, socket: TcpStream, listener: u32, peer: SocketAddr, now: Duration) -> io::Result<()> {
        let channel = Channel::new(Side::Listener, self.secret()?);
        let socket = self.insert_stranger(Box::new(Stream::new(socket, channel)), now)?;
        self.notices.push(Notice::Incoming { socket, listener, peer });
        Ok(())
    }

    /// Says that there is no room now, and keeps nothing of the caller, so that a flood of connections costs no memory.
    fn turn_away(&mut self, mut socket: TcpStream) {
        let preface = Preface::busy(self.settings.key.is_some(), COME_BACK);
        // A new stream has room for so little.
        let _ = socket.write(&preface.encode());
        leave(&mut socket);
    }
}

/// Peers that may wait to be accepted.
const BACKLOG: i32 = 4096;
/// Connections that one poll accepts at most from a listener.
const ACCEPTS: usize = 64;
/// Peers that connected and have not said hello, at once.
const STRANGERS: usize = 256;
/// When a caller for whom there is no room may come back: some handshakes are over by then.
const COME_BACK: Duration = Duration::from_millis(50);
