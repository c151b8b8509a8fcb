//! Requests of peers, and what is answered.

use std::net::{IpAddr, SocketAddr};

use qpair_roce::cm::{Accept, Offer, Terms};
use qpair_roce::wire::cm::{IP_HEADER_LEN, Reason, Transport};

use super::connecting::Connecting;
use super::handle::Handle;
use crate::cm::{PeerOffer, padded};
use crate::error::CmError;
use crate::qp::Prepared;
use crate::types::QpType;

/// A peer asks for a connection. Dropped, it is rejected.
#[derive(Debug)]
pub(crate) struct Request {
    handle: Handle,
    terms: Terms,
    private: Vec<u8>,
    shared_receives: bool,
}

impl Request {
    pub(super) fn new(handle: Handle, offer: &Offer) -> Self {
        let private = offer.private[IP_HEADER_LEN..].to_vec();
        Request { handle, terms: offer.terms, private, shared_receives: offer.shared_receives }
    }

    pub(crate) fn peer(&self) -> SocketAddr {
        self.handle.peer
    }

    pub(crate) fn local(&self) -> IpAddr {
        self.handle.key.address
    }

    pub(crate) fn private_data(&self) -> &[u8] {
        &self.private
    }

    pub(crate) fn offer(&self) -> PeerOffer {
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

    pub(crate) fn accept(self, prepared: Prepared, private: &[u8]) -> Result<Connecting, CmError> {
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

    pub(crate) fn reject(self, private: &[u8]) -> Result<(), CmError> {
        self.handle.reject(Reason::CONSUMER, &padded(private)?)
    }
}
