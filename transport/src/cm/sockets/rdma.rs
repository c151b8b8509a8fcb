//! Streams by rdma_cm: those that are not there yet, and those that end when the peer has what was said last. No descriptor
//! tells of either, so that each poll looks.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use qpair_verbs::{CmError, Context, Listener};

use super::Sockets;
use super::listeners::STRANGERS;
use crate::cm::carrier::Carrier;
use crate::cm::rdma::{Opening, Pipe, Rdma, RdmaCmError};

/// What rdma_cm does for the sockets of a worker.
#[derive(Debug)]
pub(super) struct RdmaStreams {
    maker: Rdma,
    /// Attempts that a peer was asked for, by their keys.
    pub(super) asked: Vec<usize>,
    /// Streams that peers were given, and that are not there yet.
    guests: Vec<Guest>,
    /// Streams that are closed but for what was said last, and until when each has time, once that was looked at.
    lingering: Vec<(Box<Pipe>, Option<Duration>)>,
}

/// A peer whose request was accepted.
#[derive(Debug)]
struct Guest {
    opening: Opening,
    listener: u32,
    peer: SocketAddr,
    deadline: Duration,
}

impl RdmaStreams {
    pub(super) fn new(context: &Context) -> Self {
        RdmaStreams { maker: Rdma::new(context), asked: Vec::new(), guests: Vec::new(), lingering: Vec::new() }
    }

    /// True if there is something to look for.
    pub(super) fn has_chores(&self) -> bool {
        !(self.asked.is_empty() && self.guests.is_empty() && self.lingering.is_empty())
    }

    /// Listens at a port of all addresses of the device.
    pub(super) fn listen(&self, port: u16) -> Result<Listener, RdmaCmError> {
        self.maker.listen(port)
    }

    /// Asks a peer for a stream.
    pub(super) fn connect(&mut self, peer: SocketAddr) -> Result<Opening, RdmaCmError> {
        self.maker.connect(peer)
    }

    /// Closes a stream, now or when the peer has what was said last.
    pub(super) fn close(&mut self, carrier: Carrier) {
        if let Carrier::Rdma(mut pipe) = carrier
            && !pipe.is_flushed()
        {
            self.lingering.push((pipe, None));
        }
    }
}

impl Sockets {
    /// Looks at what no event tells of.
    pub(super) fn look_at_rdma(&mut self, now: Duration) {
        if !self.rdma.has_chores() {
            return;
        }
        for key in self.rdma.asked.clone() {
            self.attempted(key, now);
        }
        for mut guest in std::mem::take(&mut self.rdma.guests) {
            match guest.opening.is_done() {
                Ok(true) => self.take_guest_in(guest, now),
                Ok(false) if now < guest.deadline => self.rdma.guests.push(guest),
                Ok(false) => tracing::debug!(peer = %guest.peer, "it asked for a connection by rdma_cm, and went"),
                Err(error) => tracing::debug!(peer = %guest.peer, %error, "no connection by rdma_cm"),
            }
        }
        self.rdma.lingering.retain_mut(|(pipe, until)| {
            let until = *until.get_or_insert(now.saturating_add(LINGER));
            now < until && !pipe.is_flushed()
        });
    }

    /// Accepts who asked. Who finds no room is told so.
    pub(super) fn accept_requests(&mut self, place: usize, now: Duration) {
        for _ in 0..REQUESTS {
            let listener = &mut self.listeners[place];
            let id = listener.id;
            let request = match listener.requests().map(|requests| requests.wait(Duration::ZERO)) {
                Some(Ok(request)) => request,
                None | Some(Err(CmError::TimedOut { .. })) => {
                    listener.again = false;
                    return;
                }
                Some(Err(error)) => {
                    listener.again = false;
                    return tracing::error!(%error, "nobody can connect by rdma_cm any more; open the device and listen again");
                }
            };
            let peer = request.peer();
            if self.strangers + self.rdma.guests.len() + self.rdma.lingering.len() >= STRANGERS {
                // Who gave up by now need not be told.
                let _ = request.reject(&[]);
                continue;
            }
            match self.rdma.maker.accept(request) {
                Ok(opening) => {
                    let deadline = now.saturating_add(self.settings.hello);
                    self.rdma.guests.push(Guest { opening, listener: id, peer, deadline });
                }
                Err(error) => tracing::warn!(%peer, %error, "no connection by rdma_cm for a peer"),
            }
        }
    }

    fn take_guest_in(&mut self, guest: Guest, now: Duration) {
        let Guest { opening, listener, peer, .. } = guest;
        let Some(pipe) = opening.into_pipe() else { return };
        match self.take_in(Carrier::Rdma(Box::new(pipe)), listener, peer, now) {
            // It may have spoken already.
            Ok(socket) => self.ready(socket.key(), now),
            Err(error) => tracing::warn!(%peer, %error, "could not watch an incoming connection"),
        }
    }
}

impl Drop for RdmaStreams {
    /// What was said last is with the peers, or they have had their time.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let start = Instant::now();
        while !self.lingering.is_empty() && start.elapsed() < LINGER {
            self.lingering.retain_mut(|(pipe, _)| !pipe.is_flushed());
            std::thread::yield_now();
        }
    }
}

/// Requests that one poll accepts at most: each takes a queue pair, which a NIC may be a while about.
const REQUESTS: usize = 4;
/// How long a stream stays when it is closed, until the peer's device has what was said last: that takes a round trip, and if
/// it is lost some hundred milliseconds more.
const LINGER: Duration = Duration::from_secs(1);
