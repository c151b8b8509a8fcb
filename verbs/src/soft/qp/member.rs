//! A queue pair as its home and the control thread know it.

use std::sync::Arc;

use super::core::{PROGRESS, SoftQp};
use crate::address::NodeId;
use crate::events::AsyncEvent;
use crate::soft::bell::Rope;
use crate::soft::control::Link;
use crate::soft::exec::taker;
use crate::soft::filler::{Filled, Filler};
use crate::soft::layout::{FaultKind, QpInfo, QpPublic};
use crate::soft::peer::Receive;
use crate::soft::visited::Member;
use crate::soft::withdrawal::PeerSighting;
use crate::sync::{AtomicU32, Ordering};
use crate::types::Access;

impl Member for SoftQp {
    fn visits(&self) -> &Arc<AtomicU32> {
        &self.visits
    }

    fn info(&self) -> QpInfo {
        let (receives, wqes, wqe_count) = match &self.spec.srq {
            Some(srq) => (srq.receives_offset(), srq.wqes().offset(), srq.wqes().count()),
            None => {
                let own = self.public.offset() + std::mem::offset_of!(QpPublic, receives);
                let (offset, count) = self.receiver.wqe_ring().map_or((0, 1), |ring| (ring.offset(), ring.count()));
                (own, offset, count)
            }
        };
        let claims = match &self.spec.srq {
            Some(srq) => Some(srq.claim_info()),
            None => self.claims.as_ref().map(|table| table.info),
        };
        QpInfo {
            who: self.who,
            qp_type: self.spec.options.qp_type,
            public: self.public.offset(),
            ring: self.ring.offset(),
            ring_lines: self.ring.count(),
            receives,
            wqes,
            wqe_count,
            order: self.spec.srq.as_ref().map(|srq| srq.order_offset()),
            claims,
            cq: self.spec.recv_cq.offset(),
            bell: self.spec.recv_cq.bell_number(),
            place: self.seats.recv.place(),
        }
    }

    fn note_asker(&self, link: &Link) {
        if self.claims.is_some() {
            self.askers.note(link);
        }
    }

    fn rope(&self) -> &Rope {
        self.recv_rope()
    }

    fn domain(&self) -> u64 {
        self.spec.domain
    }

    fn access(&self) -> Access {
        self.spec.options.access
    }

    fn is_peer(&self, node: NodeId) -> bool {
        self.peer.get().is_some_and(|peer| peer.node == node)
    }

    fn hazard(&self) -> &AtomicU32 {
        self.hazard_word()
    }

    fn sight_peer(&self) -> Option<PeerSighting> {
        SoftQp::sight_peer(self)
    }

    fn filler(&self) -> Option<Filler> {
        self.receiver.filler()
    }

    fn fill(&self, receive: u32, piece: u32) -> Option<(Filled, (u64, u64, u32))> {
        // The caller is inside the engine's hazard, which a queue pair that fails waits for.
        if self.has_failed() {
            return None;
        }
        let srq = self.spec.srq.as_ref();
        let slot = srq.map_or(Some(receive), |srq| srq.outstanding(receive))?;
        let filled = self.filler()?.fill(Receive { index: receive, slot })?;
        let piece = match srq {
            Some(srq) => srq.wqes().piece(slot, piece),
            None => self.receiver.wqe_ring().filter(|_| self.receiver.is_outstanding(receive))?.piece(receive, piece),
        };
        Some((filled, piece?))
    }

    fn fault(&self, from: NodeId, from_qpn: u32, kind: FaultKind) {
        if !self.peer.get().is_some_and(|peer| peer.node == from && peer.who.qpn == from_qpn) || self.has_failed() {
            return;
        }
        self.home().events().raise(match kind {
            FaultKind::Access => AsyncEvent::QpAccessError(self.qpn()),
            FaultKind::Request => AsyncEvent::QpRequestError(self.qpn()),
            FaultKind::Operation => AsyncEvent::QpFatal(self.qpn()),
        });
        self.fail();
    }

    fn link_lost(&self, link: u64, peer: NodeId, gone: bool) {
        if let Some(table) = self.claims.as_ref().filter(|_| gone) {
            self.receiver.void_claims(table, taker(peer));
            self.seats.recv.notify(true);
        }
        if self.peer.get().is_some_and(|peer| peer.link.number() == link) {
            let failed_before = self.has_failed();
            self.fail();
            self.try_settle();
            if !failed_before {
                self.home().events().raise(AsyncEvent::PeerLost(self.qpn()));
            }
        }
    }

    fn is_failed(&self) -> bool {
        self.has_failed()
    }

    fn device_failed(&self) {
        if !self.has_failed() {
            self.fail();
            self.home().events().raise(AsyncEvent::QpFatal(self.qpn()));
        }
    }

    fn tick(&self) -> bool {
        self.progress();
        let unsettled = self.has_failed() && !self.is_settled() && !self.try_settle();
        unsettled || self.carrier.load(Ordering::Relaxed) == PROGRESS
    }
}
