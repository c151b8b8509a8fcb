//! Failing and closing: nobody else is inside our memory before it is given back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::core::{Leaving, SoftQp};
use crate::events::AsyncEvent;
use crate::soft::barrier;
use crate::soft::withdrawal::PeerSighting;
use crate::sync::{Ordering, lock};
use crate::types::QpState;

impl SoftQp {
    /// Moves the queue pair to the error state.
    #[cold]
    pub(crate) fn fail(&self) {
        if self.state.swap(QpState::Err.code(), Ordering::AcqRel) == QpState::Err.code() {
            return;
        }
        self.public().gate.store(self.who.gate(QpState::Err.code()), Ordering::SeqCst);
        if let Some(table) = &self.claims {
            table.claims.close();
        }
        barrier::heavy();
        *lock(&self.leaving) = Leaving::Seen(self.sight_peer(), self.home().sight_engine());
        if let Some(network) = self.network() {
            network.failed(self.qpn());
        }
        if !(0..LEAVE_SPINS).any(|_| self.try_settle()) {
            self.home().attend();
        }
        self.seats.send.notify(true);
        self.seats.recv.notify(true);
    }

    /// Notes that nobody is in the memory of a failed queue pair any more; true once that is so.
    pub(crate) fn try_settle(&self) -> bool {
        let mut leaving = lock(&self.leaving);
        let over = match &*leaving {
            Leaving::Inside => false,
            Leaving::Seen(peer, engine) => {
                peer.as_ref().is_none_or(PeerSighting::is_over)
                    && self.home().engine_left(*engine)
                    && self.has_left_network()
                    && self.claims.as_ref().is_none_or(|table| self.receiver.is_filled(table))
            }
            Leaving::Left => true,
        };
        if !over {
            std::hint::spin_loop();
            return false;
        }
        *leaving = Leaving::Left;
        drop(leaving);
        if !self.settled.swap(true, Ordering::AcqRel) {
            if self.spec.srq.is_some() {
                self.home().events().raise(AsyncEvent::LastWqeReached(self.qpn()));
            }
            self.seats.recv.notify(true);
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
        let inside = match &*lock(&self.leaving) {
            Leaving::Seen(peer, _) => peer.clone(),
            Leaving::Left => None,
            // Whoever has it fail does not get on: the peer is seen from here.
            Leaving::Inside => {
                self.public().gate.store(self.who.gate(QpState::Err.code()), Ordering::SeqCst);
                barrier::heavy();
                self.sight_peer()
            }
        };
        if let Some(peer) = inside {
            self.home().linger(peer);
        }
        // What it carries out at this moment is over before it is forgotten: memory of peers is unmapped, and of closed queue
        // pairs used again, once the hazards of all that are known are even. Who waits for it sees by the gate that it is gone.
        drop(lock(&self.progress));
        self.public().gate.store(0, Ordering::SeqCst);
        self.leave_network();
        self.home().remove(self.who.qpn, self);
        self.home().wait_for_visits(&self.visits);
        self.spec.send_cq.leave(&self.seats.send);
        if !Arc::ptr_eq(&self.seats.send, &self.seats.recv) {
            self.spec.recv_cq.leave(&self.seats.recv);
        }
    }
}

/// Some tens of microseconds, the time of a small copy; longer accesses are waited for by the control thread.
const LEAVE_SPINS: u32 = 2000;
/// Longest wait of a closing queue pair for its peer to leave.
const CLOSE: Duration = Duration::from_secs(3);
