//! Shared receive queues: one pool of receives for many queue pairs.

use std::sync::Arc;

use crate::error::{CreateError, Rejected};
use crate::memory::Local;
use crate::soft::{Home, SoftSrq};

/// A shared receive queue. The queue pairs made with it take their receives from here.
#[derive(Debug)]
pub struct SharedReceiveQueue {
    soft: Arc<SoftSrq>,
}

impl SharedReceiveQueue {
    pub(crate) fn new(home: &Arc<Home>, domain: u64, depth: u32) -> Result<Self, CreateError> {
        Ok(SharedReceiveQueue { soft: SoftSrq::new(home, domain, depth)? })
    }

    /// Posts a receive into `memory`; `wr_id` comes back with its completion.
    ///
    /// # Errors
    /// [`Rejected`] with the memory, if the queue is full or the memory does not fit the domain.
    #[inline]
    pub fn post(&mut self, memory: impl Into<Local>, wr_id: u64) -> Result<(), Rejected> {
        self.soft.post(memory.into(), wr_id)
    }

    /// Raises [`SrqLimitReached`](crate::AsyncEvent::SrqLimitReached) once, when fewer than `limit` receives are left;
    /// 0 turns it off.
    pub fn arm_limit(&mut self, limit: u32) {
        self.soft.arm_limit(limit);
    }

    /// Receives that are posted and not taken by a message yet.
    pub fn available(&self) -> u32 {
        self.soft.available()
    }

    pub(crate) fn soft(&self) -> &Arc<SoftSrq> {
        &self.soft
    }
}
