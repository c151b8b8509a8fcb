//! Shared receive queues: one pool of receives for many queue pairs.

use crate::error::Rejected;
use crate::memory::Local;
use crate::qp::SrqHandle;
use crate::wc::Completion;

/// A shared receive queue. The queue pairs made with it take their receives from here.
#[derive(Debug)]
pub struct SharedReceiveQueue {
    srq: SrqHandle,
}

impl SharedReceiveQueue {
    pub(crate) fn new(srq: SrqHandle) -> Self {
        SharedReceiveQueue { srq }
    }

    /// Posts a receive into `memory`; `wr_id` comes back with its completion.
    ///
    /// # Errors
    /// [`Rejected`] with the memory, if the queue is full or the memory does not fit the domain.
    #[inline]
    pub fn post(&mut self, memory: impl Into<Local>, wr_id: u64) -> Result<(), Rejected> {
        match &self.srq {
            SrqHandle::Soft(srq) => srq.post(memory.into(), wr_id),
            SrqHandle::Ibv(srq) => srq.post(memory.into(), wr_id),
        }
    }

    /// Posts the receive again that completed as `done`, as [`QueuePair::repost`](crate::QueuePair::repost).
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn repost(&mut self, done: Completion<'_>) -> Result<(), Rejected> {
        let (memory, wr_id) = done.into_receive()?;
        self.post(memory, wr_id)
    }

    /// Raises [`SrqLimitReached`](crate::AsyncEvent::SrqLimitReached) once, when fewer than `limit` receives are left;
    /// 0 turns it off. Where fewer are left already, at once, but by devices that look only when a receive is taken, as Soft-RoCE.
    pub fn arm_limit(&mut self, limit: u32) {
        match &self.srq {
            SrqHandle::Soft(srq) => srq.arm_limit(limit),
            SrqHandle::Ibv(srq) => srq.arm_limit(limit),
        }
    }

    /// Receives that are posted and not taken by a message yet. On hardware: whose completion was not polled yet, counted by
    /// a look at each place of the queue.
    pub fn available(&self) -> u32 {
        match &self.srq {
            SrqHandle::Soft(srq) => srq.available(),
            SrqHandle::Ibv(srq) => srq.available(),
        }
    }

    pub(crate) fn handle(&self) -> SrqHandle {
        self.srq.clone()
    }
}
