//! What the owner of a queue pair, its pollers and the event thread have in common.

use std::sync::atomic::{AtomicU32, Ordering};

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
    pub(in crate::ibv) send: SendQueue,
    /// Its own receives; none with a shared queue.
    pub(in crate::ibv) receives: Option<RecvSlots>,
    state: AtomicU32,
}

impl QpShared {
    pub(super) fn new(
        id: QueueId,
        (qpn, qp_type): (Qpn, QpType),
        send: SendQueue,
        receives: Option<RecvSlots>,
    ) -> Self {
        QpShared { id, qpn, qp_type, send, receives, state: AtomicU32::new(QpState::Reset.code()) }
    }

    #[inline(always)]
    pub(in crate::ibv) fn state(&self) -> QpState {
        QpState::from_code(self.state.load(Ordering::Acquire))
    }

    /// Notes a state that the device was brought to; an error that came meanwhile stays.
    pub(super) fn entered(&self, state: QpState) {
        let from = self.state.load(Ordering::Acquire);
        if from != QpState::Err.code() {
            let _ = self.state.compare_exchange(from, state.code(), Ordering::AcqRel, Ordering::Acquire);
        }
    }

    /// Notes that the device moved it to the error state.
    #[cold]
    pub(in crate::ibv) fn fail(&self) {
        self.state.store(QpState::Err.code(), Ordering::Release);
    }
}
