//! Requests of peers, and what is answered.

use std::net::{IpAddr, SocketAddr};

use qpair_roce::cm::{Accept, Offer, Terms};
use qpair_roce::wire::cm::{IP_HEADER_LEN, Reason, Transport};

use super::connecting::Connecting;
use super::handle::Handle;
use super::padded;
use crate::error::CmError;
use crate::qp::Prepared;
use crate::types::{Mtu, QpType, Qpn};

/// A peer asks for a connection: accept it with a queue pair, or reject it. Dropped, it is rejected.
#[derive(Debug)]
pub struct ConnectionRequest {
    handle: Handle,
    terms: Terms,
    private: Vec<u8>,
    shared_receives: bool,
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
    pub(super) fn new(handle: Handle, offer: &Offer) -> Self {
        let private = offer.private[IP_HEADER_LEN..].to_vec();
        ConnectionRequest { handle, terms: offer.terms, private, shared_receives: offer.shared_receives }
    }

    /// Who asks: the address that the request came from, and the port that its application names.
    pub fn peer(&self) -> SocketAddr {
        self.handle.peer
    }

    /// The own address that was asked.
    pub fn local(&self) -> IpAddr {
        self.handle.key.address
    }

    /// What the peer's application said: 56 bytes, those that it did not give zero.
    pub fn private_data(&self) -> &[u8] {
        &self.private
    }

    /// What the peer offers.
    pub fn offer(&self) -> PeerOffer {
        let Terms { transport, peer, mtu, retry_count, rnr_retry, max_reads, reads_answered, .. } = self.terms;
        PeerOffer {
            qp_type: if transport == Transport::Uc { QpType::Uc } else { QpType::Rc },
            qpn: peer,
            // What this end answers is what the peer has under way, and the other way round.
            max_reads: reads_answered,
            reads_answered: max_reads,
            mtu,
            retry_count,
            rnr_retry,
            shared_receives: self.shared_receives,
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
        let private = padded(private)?;
        let qp = prepared.soft().ok_or(CmError::ForeignObject)?;
        self.handle.check(qp)?;
        qp.transport()?;
        let place = qp.place_at(self.local())?;
        self.handle.check_mtu(self.terms.mtu, qp.mtu_at(&place))?;
        let offered = qp.offered();
        let terms = Terms {
            max_reads: self.terms.max_reads.min(offered.max_reads),
            reads_answered: self.terms.reads_answered.min(offered.reads_answered),
            ..self.terms
        };
        if !self.handle.is_asked() {
            return Err(self.handle.why_over());
        }
        // Before the peer is told, since it may send at once then.
        let queue_pair =
            prepared.connect_by_terms(&terms, place, &self.handle.watch).map_err(|error| self.handle.why_not(error))?;
        let agreed = self.handle.accept(&Accept { private, ..Accept::new(offered) })?;
        debug_assert_eq!(agreed, terms);
        Ok(Connecting::accepted(self.handle, queue_pair, self.private))
    }

    /// Refuses, and tells the peer's application `private`, 148 bytes at most.
    ///
    /// # Errors
    /// [`CmError`] if the private data is too long (the peer is refused without), or the peer gave up.
    pub fn reject(self, private: &[u8]) -> Result<(), CmError> {
        self.handle.reject(Reason::CONSUMER, &padded(private)?)
    }
}
