//! What the owner of a queue pair, its pollers and the event thread have in common.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::ibv::listeners::QpListener;
use crate::ibv::numbers::QueueId;
use crate::ibv::recv_slots::RecvSlots;
use crate::ibv::send_queue::SendQueue;
use crate::types::{QpState, QpType, Qpn};

/// A queue pair's queues, and its state as far as it is known.
#[derive(Debug)]
pub(in crate::ibv) struct QpShared {
    pub(in crate::ibv) id: QueueId,
    pub(in crate::ibv) qpn: Qpn,
    pub(in crate::ibv) qp_type: QpType,
    pub(in crate::ibv) send: Arc<SendQueue>,
    /// Its own receives; none with a shared queue.
    pub(in crate::ibv) receives: Option<Arc<RecvSlots>>,
    state: AtomicU32,
    /// It was ready to receive, if it is not still.
    ready: AtomicBool,
    /// The device does nothing more with receives of a shared queue for it.
    last_receive: AtomicBool,
}

impl QpShared {
    pub(super) fn new(
        id: QueueId,
        (qpn, qp_type): (Qpn, QpType),
        send: Arc<SendQueue>,
        receives: Option<Arc<RecvSlots>>,
    ) -> Self {
        let state = AtomicU32::new(QpState::Reset.code());
        let (ready, last_receive) = (AtomicBool::new(false), AtomicBool::new(false));
        QpShared { id, qpn, qp_type, send, receives, state, ready, last_receive }
    }

    #[inline(always)]
    pub(in crate::ibv) fn state(&self) -> QpState {
        QpState::from_code(self.state.load(Ordering::Acquire))
    }

    /// Notes a state that the device was brought to; an error that came meanwhile stays.
    pub(super) fn entered(&self, state: QpState) {
        self.ready.fetch_or(state == QpState::Rtr, Ordering::Relaxed);
        let from = self.state.load(Ordering::Acquire);
        if from != QpState::Err.code() {
            let _ = self.state.compare_exchange(from, state.code(), Ordering::AcqRel, Ordering::Acquire);
        }
    }

    /// Whether it has ever been ready to receive.
    pub(super) fn has_been_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    pub(in crate::ibv) fn has_reached_last_receive(&self) -> bool {
        self.last_receive.load(Ordering::Acquire)
    }

    /// Notes that the device moved it to the error state.
    #[cold]
    pub(in crate::ibv) fn fail(&self) {
        self.state.store(QpState::Err.code(), Ordering::Release);
    }
}

impl QpListener for QpShared {
    fn qpn(&self) -> Qpn {
        self.qpn
    }

    fn fail(&self) {
        QpShared::fail(self);
    }

    fn reach_last_receive(&self) {
        self.last_receive.store(true, Ordering::Release);
    }
}
