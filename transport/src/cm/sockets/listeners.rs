//! Listening, and who comes.

use std::io::{self, ErrorKind, Write};
use std::net::SocketAddr;
use std::time::Duration;

use mio::Interest;
use mio::net::{TcpListener, TcpStream};
use qpair_verbs::{CmError, Listener as RdmaListener};

use super::{Notice, Of, SocketId, Sockets};
use crate::cm::carrier::Carrier;
use crate::cm::channel::{Channel, Side};
use crate::cm::is_out_of_descriptors;
use crate::cm::preface::Preface;
use crate::cm::rdma::RdmaCmError;
use crate::cm::stream::Stream;

#[derive(Debug)]
pub(super) struct Listener {
    pub(super) id: u32,
    door: Door,
    /// Peers may wait that were not accepted, though nothing more will tell of them.
    pub(super) again: bool,
    /// It was said that there are no descriptors for them.
    starved: bool,
}

/// Where peers come to.
#[derive(Debug)]
enum Door {
    Tcp(TcpListener),
    RdmaCm(RdmaListener),
}

impl Listener {
    /// Requests of peers by rdma_cm, if it is for these.
    pub(super) fn requests(&self) -> Option<&RdmaListener> {
        match &self.door {
            Door::Tcp(_) => None,
            Door::RdmaCm(listener) => Some(listener),
        }
    }
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
        self.listeners.push(Listener { id, door: Door::Tcp(socket), again: false, starved: false });
        Ok((id, address))
    }

    /// Listens by rdma_cm, at a port or at 0 for one that is free, which it returns.
    pub(crate) fn listen_rdma_cm(&mut self, port: u16) -> Result<(u32, u16), RdmaCmError> {
        let mut listener = self.rdma.listen(port)?;
        let id = self.next_serial();
        let watched = self.poll.registry().register(&mut listener, Of::Listener(id).token(), Interest::READABLE);
        watched.map_err(|source| CmError::System { what: "watch a listener", source })?;
        let port = listener.port();
        self.listeners.push(Listener { id, door: Door::RdmaCm(listener), again: false, starved: false });
        Ok((id, port))
    }

    pub(crate) fn stop_listening(&mut self, id: u32) {
        if let Some(place) = self.listeners.iter().position(|listener| listener.id == id) {
            let mut listener = self.listeners.swap_remove(place);
            // The descriptor is closed right after, which deregisters it as well.
            let _ = match &mut listener.door {
                Door::Tcp(socket) => self.poll.registry().deregister(socket),
                Door::RdmaCm(requests) => self.poll.registry().deregister(requests),
            };
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
            let Listener { id: listener, door, again, starved } = &mut self.listeners[place];
            let Door::Tcp(socket) = door else { return self.accept_requests(place, now) };
            match socket.accept() {
                Ok((socket, _)) if self.strangers >= STRANGERS => self.turn_away(socket),
                Ok((socket, peer)) => {
                    *starved = false;
                    let listener = *listener;
                    match self.take_in(Carrier::Tcp(socket), listener, peer, now) {
                        Ok(_) => {}
                        Err(error) => tracing::warn!(%peer, %error, "could not watch an incoming connection"),
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

    /// Someone came.
    pub(super) fn take_in(
        &mut self,
        carrier: Carrier,
        listener: u32,
        peer: SocketAddr,
        now: Duration,
    ) -> io::Result<SocketId> {
        let channel = Channel::new(Side::Listener, self.secret()?);
        let socket = self.insert_stranger(Box::new(Stream::new(carrier, channel)), now)?;
        self.notices.push(Notice::Incoming { socket, listener, peer });
        Ok(socket)
    }

    /// Says that there is no room now, and keeps nothing of the caller, so that a flood of connections costs no memory.
    fn turn_away(&mut self, mut socket: TcpStream) {
        let preface = Preface::busy(self.settings.key.is_some(), COME_BACK);
        // A new stream has room for so little.
        let _ = socket.write(&preface.encode());
        Carrier::Tcp(socket).leave();
    }
}

/// Peers that may wait to be accepted.
const BACKLOG: i32 = 4096;
/// Connections that one poll accepts at most from a listener.
const ACCEPTS: usize = 64;
/// Peers that connected and have not said hello, at once.
pub(super) const STRANGERS: usize = 256;
/// When a caller for whom there is no room may come back: some handshakes are over by then.
const COME_BACK: Duration = Duration::from_millis(50);
