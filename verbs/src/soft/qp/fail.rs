//! Failing and closing: nobody else is inside our memory before it is given back.

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{POSTER, SoftQp, lock};
use crate::address::NodeId;
use crate::events::AsyncEvent;
use crate::soft::control::FaultKind;
use crate::soft::hazard::Sighting;
use crate::soft::layout::{QpPublic, gate};
use crate::soft::link::Link;
use crate::soft::{barrier, ud};
use crate::sync::Ordering;
use crate::types::QpState;

/// A glance at a peer's hazard.
#[derive(Debug)]
pub(crate) struct PeerSighting {
    link: Arc<Link>,
    public: NonNull<QpPublic>,
    sight: Sighting,
}

// SAFETY: the pointer names atomics in a mapping that `link` keeps.
unsafe impl Send for PeerSighting {}

impl PeerSighting {
    pub(crate) fn is_over(&self) -> bool {
        // SAFETY: mapped as long as `link` lives.
        self.link.is_dead() || self.sight.is_over(unsafe { &self.public.as_ref().hazard.0 })
    }
}

/// The owner of a queue pair: closes it when dropped.
#[derive(Debug)]
pub(crate) struct OwnedQp(Arc<SoftQp>);

impl OwnedQp {
    pub(crate) fn new(qp: Arc<SoftQp>) -> Self {
        OwnedQp(qp)
    }
}

impl std::ops::Deref for OwnedQp {
    type Target = Arc<SoftQp>;

    #[inline(always)]
    fn deref(&self) -> &Arc<SoftQp> {
        &self.0
    }
}

impl Drop for OwnedQp {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl SoftQp {
    /// A glance at the peer's hazard.
    pub(crate) fn sight_peer(&self) -> Option<PeerSighting> {
        let peer = self.peer.get()?;
        // SAFETY: mapped as long as the link lives.
        let sight = Sighting::take(unsafe { &peer.public.as_ref().hazard.0 });
        Some(PeerSighting { link: peer.link.clone(), public: peer.public, sight })
    }

    /// Moves the queue pair to the error state.
    #[cold]
    pub(crate) fn fail(&self) {
        if self.state.swap(QpState::Err.code(), Ordering::AcqRel) == QpState::Err.code() {
            return;
        }
        self.public().gate.store(gate(self.qpn, QpState::Err.code()), Ordering::SeqCst);
        if let Some(table) = &self.claims {
            table.claims.close();
        }
        barrier::heavy();
        *lock(&self.leaving) = self.sight_peer();
        if !(0..LEAVE_SPINS).any(|_| self.try_settle()) {
            self.spec.node.attend();
        }
        self.spec.send_cq.notify(true);
        self.spec.recv_cq.notify(true);
    }

    /// Notes that the peer has left the memory of a failed queue pair; true once it has.
    fn try_settle(&self) -> bool {
        let mut leaving = lock(&self.leaving);
        if leaving.as_ref().is_some_and(|sighting| !sighting.is_over()) {
            std::hint::spin_loop();
            return false;
        }
        *leaving = None;
        drop(leaving);
        if !self.settled.swap(true, Ordering::AcqRel) {
            if self.spec.srq.is_some() {
                self.spec.node.events().raise(AsyncEvent::LastWqeReached(self.qpn()));
            }
            self.spec.recv_cq.notify(true);
        }
        true
    }

    /// The control thread's turn; true if there is more to do.
    pub(crate) fn tick(&self) -> bool {
        self.progress();
        let unsettled = self.has_failed() && !self.is_settled() && !self.try_settle();
        unsettled || self.carrier.load(Ordering::Relaxed) != POSTER
    }

    /// A peer says that its own request to us was not valid.
    pub(crate) fn fault(&self, from: NodeId, from_qpn: u32, kind: FaultKind) {
        if !self.peer.get().is_some_and(|peer| peer.node == from && peer.qpn == from_qpn) || self.has_failed() {
            return;
        }
        self.spec.node.events().raise(match kind {
            FaultKind::Access => AsyncEvent::QpAccessError(self.qpn()),
            FaultKind::Request => AsyncEvent::QpRequestError(self.qpn()),
            FaultKind::Operation => AsyncEvent::QpFatal(self.qpn()),
        });
        self.fail();
    }

    /// The process at the other end of `link` is gone; true if this queue pair failed for it.
    pub(crate) fn peer_lost(&self, link: &Arc<Link>) -> bool {
        if let Some(table) = &self.claims {
            self.receiver.void_claims(table, ud::taker(link.peer()));
            self.spec.recv_cq.notify(true);
        }
        let ours = self.peer.get().is_some_and(|peer| Arc::ptr_eq(&peer.link, link));
        if ours {
            let failed_before = self.has_failed();
            self.fail();
            self.try_settle();
            return !failed_before;
        }
        false
    }

    /// Fails the queue pair and takes it out of its completion queues. What was not polled is gone with it.
    fn close(&self) {
        self.fail();
        let deadline = Instant::now() + CLOSE;
        while !self.try_settle() && Instant::now() < deadline {
            std::thread::yield_now();
        }
        self.public().gate.store(0, Ordering::SeqCst);
        self.spec.node.remove_qp(self.qpn);
        self.spec.send_cq.leave(self);
        self.spec.recv_cq.leave(self);
    }
}

/// Some tens of microseconds, the time of a small copy; longer accesses are waited for by the control thread.
const LEAVE_SPINS: u32 = 2000;
/// Longest wait of a closing queue pair for its peer to leave.
const CLOSE: Duration = Duration::from_secs(3);
