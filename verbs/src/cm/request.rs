//! Requests of peers, and what is answered.

use std::net::{IpAddr, SocketAddr};

use super::connecting::Connecting;
use super::soft;
use crate::error::CmError;
use crate::ibv::cm as ibv;
use crate::qp::Prepared;
use crate::types::{Mtu, QpType, Qpn};

/// A peer asks for a connection: accept it with a queue pair, or reject it. Dropped, it is rejected.
#[derive(Debug)]
pub struct ConnectionRequest {
    request: Inner,
}

#[derive(Debug)]
enum Inner {
    Soft(soft::Request),
    Ibv(ibv::Request),
}

/// What a peer offers with its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerOffer {
    /// Service that it wants.
    pub qp_type: QpType,
    /// Its queue pair.
    pub qpn: Qpn,
    /// READs and atomics that it wants to have under way at most.
    pub max_reads: u8,
    /// Those that it answers at once.
    pub reads_answered: u8,
    /// Path MTU.
    pub mtu: Mtu,
    /// Times that a packet is sent again without an answer.
    pub retry_count: u8,
    /// The same where the receiver had no receive posted; 7: without end.
    pub rnr_retry: u8,
    /// It takes receives from a shared queue.
    pub shared_receives: bool,
}

impl ConnectionRequest {
    pub(super) fn soft(request: soft::Request) -> Self {
        ConnectionRequest { request: Inner::Soft(request) }
    }

    pub(super) fn ibv(request: ibv::Request) -> Self {
        ConnectionRequest { request: Inner::Ibv(request) }
    }

    /// Who asks: the address that the request came from, and the port that its application names.
    pub fn peer(&self) -> SocketAddr {
        match &self.request {
            Inner::Soft(request) => request.peer(),
            Inner::Ibv(request) => request.peer(),
        }
    }

    /// The own address that was asked.
    pub fn local(&self) -> IpAddr {
        match &self.request {
            Inner::Soft(request) => request.local(),
            Inner::Ibv(request) => request.local(),
        }
    }

    /// What the peer's application said: 56 bytes, those that it did not give zero.
    pub fn private_data(&self) -> &[u8] {
        match &self.request {
            Inner::Soft(request) => request.private_data(),
            Inner::Ibv(request) => request.private_data(),
        }
    }

    /// What the peer offers.
    pub fn offer(&self) -> PeerOffer {
        match &self.request {
            Inner::Soft(request) => request.offer(),
            Inner::Ibv(request) => request.offer(),
        }
    }

    /// Accepts with a queue pair, and tells the peer's application `private`, 196 bytes at most. Receives are to be posted to
    /// the queue pair before: the peer may send at once. What is given here is dropped on an error, and the peer refused.
    ///
    /// The queue pair is connected by what both ends want: the peer's retry counts and time limit, the smaller number of
    /// READs, and the peer's MTU, which must not be above the queue pair's own.
    ///
    /// # Errors
    /// [`CmError`] if the peer gave up, or the queue pair can not be connected so.
    pub fn accept(self, prepared: Prepared, private: &[u8]) -> Result<Connecting, CmError> {
        match self.request {
            Inner::Soft(request) => request.accept(prepared, private).map(Connecting::soft),
            Inner::Ibv(request) => request.accept(prepared, private).map(Connecting::ibv),
        }
    }

    /// Refuses, and tells the peer's application `private`, 148 bytes at most.
    ///
    /// # Errors
    /// [`CmError`] if the private data is too long (the peer is refused without), or the peer gave up.
    pub fn reject(self, private: &[u8]) -> Result<(), CmError> {
        match self.request {
            Inner::Soft(request) => request.reject(private),
            Inner::Ibv(request) => request.reject(private),
        }
    }
}
