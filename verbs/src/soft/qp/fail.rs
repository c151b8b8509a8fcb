//! Failing and closing: nobody else is inside our memory before it is given back.

use std::time::{Duration, Instant};

use super::core::{SoftQp, lock};
use crate::events::AsyncEvent;
use crate::soft::barrier;
use crate::soft::layout::gate;
use crate::sync::Ordering;
use crate::types::QpState;

impl SoftQp {
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
            self.home().attend();
        }
        self.spec.send_cq.notify(true);
        self.spec.recv_cq.notify(true);
    }

    /// Notes that the peer has left the memory of a failed queue pair; true once it has.
    pub(super) fn try_settle(&self) -> bool {
        let mut leaving = lock(&self.leaving);
        if leaving.as_ref().is_some_and(|sighting| !sighting.is_over()) {
            std::hint::spin_loop();
            return false;
        }
        *leaving = None;
        drop(leaving);
        if !self.settled.swap(true, Ordering::AcqRel) {
            if self.spec.srq.is_some() {
                self.home().events().raise(AsyncEvent::LastWqeReached(self.qpn()));
            }
            self.spec.recv_cq.notify(true);
        }
        true
    }

    /// Fails the queue pair and takes it out of its completion queues. What was not polled is gone with it.
    pub(super) fn close(&self) {
        self.fail();
        let deadline = Instant::now() + CLOSE;
        while !self.try_settle() && Instant::now() < deadline {
            std::thread::yield_now();
        }
        if let Some(peer) = &*lock(&self.leaving) {
            self.home().linger(peer.clone());
        }
        self.public().gate.store(0, Ordering::SeqCst);
        self.home().remove(self.qpn);
        self.spec.send_cq.leave(self.qpn);
        self.spec.recv_cq.leave(self.qpn);
    }
}

/// Some tens of microseconds, the time of a small copy; longer accesses are waited for by the control thread.
const LEAVE_SPINS: u32 = 2000;
/// Longest wait of a closing queue pair for its peer to leave.
const CLOSE: Duration = Duration::from_secs(3);
