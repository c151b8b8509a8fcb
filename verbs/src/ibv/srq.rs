//! Shared receive queues.

use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Mutex, Weak};

use qpair_verbs_sys as sys;

use super::cq_shared::{Completing, CqShared, Member};
use super::handle::{made, outcome};
use super::memlock;
use super::numbers::{QueueId, Tag};
use super::pd::Pd;
use super::port::longest;
use super::quirks;
use super::receive::{Takes, with_route};
use super::recv_slots::{MOST_SLOTS, RecvSlots};
use crate::error::{CreateError, Rejected};
use crate::memory::{Local, MAX_SGE};
use crate::sync::lock;

/// A shared receive queue. Queue pairs that receive from it keep it.
#[derive(Debug)]
pub(crate) struct Srq {
    srq: NonNull<sys::ibv_srq>,
    id: QueueId,
    /// Tags of its receives, but for their slots.
    tags: u64,
    receives: Arc<RecvSlots>,
    takes: Takes,
    /// Where its receives complete.
    queues: Mutex<Vec<Weak<CqShared>>>,
    pd: Arc<Pd>,
}

// SAFETY: the library's functions on the queue may be called from any thread; posting is by the one owner.
unsafe impl Send for Srq {}
// SAFETY: as above.
unsafe impl Sync for Srq {}

impl Srq {
    pub(crate) fn create(pd: &Arc<Pd>, depth: u32) -> Result<Arc<Self>, CreateError> {
        let attributes = pd.device().attributes();
        let limit = attributes.max_srq_wr.min(MOST_SLOTS);
        if depth == 0 || depth > limit {
            let (asked, limit) = (depth.into(), limit.into());
            return Err(CreateError::OutOfRange { what: "a shared receive queue", asked, limit });
        }
        let max_sge = attributes.max_srq_sge.clamp(1, MAX_SGE as u32);
        let mut asked = sys::ibv_srq_init_attr {
            srq_context: null_mut(),
            attr: sys::ibv_srq_attr { max_wr: depth, max_sge, srq_limit: 0 },
        };
        let library = pd.device().handle().library;
        // SAFETY: the domain is alive.
        let srq = made(unsafe { (library.ibv_create_srq)(pd.handle().pd(), &raw mut asked) }).map_err(|source| {
            let limited = memlock::explain_queue("shared receive queue", &source);
            limited.unwrap_or(CreateError::System { what: "create a shared receive queue", source })
        })?;
        let id = lock(&pd.device().hub().numbers).take();
        let id = id.ok_or(CreateError::Exhausted { what: "shared receive queue" }).inspect_err(|_| {
            // SAFETY: just made, and nobody knows of it.
            unsafe { (library.ibv_destroy_srq)(srq.as_ptr()) };
        })?;
        let receives = Arc::new(RecvSlots::new(depth));
        let queues = Mutex::default();
        let tags = Tag { queue: id, receive: true, own: 0 }.encode();
        let max_message = with_route(longest(attributes.max_message));
        let copied = quirks::copies_received(attributes, false);
        let takes = Takes { domain: pd.id(), max_sge: max_sge as usize, max_message, copied };
        Ok(Arc::new(Srq { srq, id, tags, receives, takes, queues, pd: pd.clone() }))
    }

    /// Posts a receive. For the one owner, which has `&mut` of the queue.
    pub(crate) fn post(&self, memory: Local, wr_id: u64) -> Result<(), Rejected> {
        let post = self.pd.device().handle().ops.post_srq_recv;
        // SAFETY: the owner is the only poster; the queue is alive.
        unsafe { self.receives.post(self.tags, self.takes, memory, wr_id, |wr, bad| post(self.raw(), wr, bad)) }
    }

    /// Asks for an event once fewer than `limit` receives are left.
    pub(crate) fn arm_limit(&self, limit: u32) {
        let mut attributes = sys::ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: limit };
        let library = self.pd.device().handle().library;
        let mask = sys::IBV_SRQ_LIMIT.cast_signed();
        // SAFETY: the queue is alive.
        if let Err(error) = outcome(unsafe { (library.ibv_modify_srq)(self.raw(), &raw mut attributes, mask) }) {
            tracing::error!(%error, limit, "the device takes no limit of a shared receive queue");
        }
    }

    pub(crate) fn available(&self) -> u32 {
        self.receives.count()
    }

    /// Enters it where receives of a queue pair complete. It stays there as long as it lives: a receive may be polled for
    /// after its queue pair has gone.
    pub(super) fn completes_at(&self, cq: &Arc<CqShared>) {
        let mut queues = lock(&self.queues);
        queues.retain(|queue| queue.strong_count() > 0);
        if !queues.iter().any(|queue| queue.as_ptr() == Arc::as_ptr(cq)) {
            cq.join(Member { id: self.id, queue: Completing::Shared(self.receives.clone()) });
            queues.push(Arc::downgrade(cq));
        }
    }

    pub(super) fn raw(&self) -> *mut sys::ibv_srq {
        self.srq.as_ptr()
    }

    pub(super) fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        let hub = self.pd.device().hub();
        let handle = self.pd.device().handle();
        // SAFETY: alive until now; the queue pairs that receive from it held it and are gone.
        let gone = handle.given_back(unsafe { (handle.library.ibv_destroy_srq)(self.raw()) });
        if gone.is_err() {
            // Before anything is logged, which may panic: the device may be writing into what was posted, for ever.
            std::mem::forget((self.receives.clone(), self.pd.clone()));
        }
        for queue in lock(&self.queues).drain(..).filter_map(|queue| queue.upgrade()) {
            queue.leave(self.id);
        }
        match gone {
            Ok(()) => lock(&hub.numbers).give(self.id),
            Err(error) => {
                tracing::error!(%error, "a shared receive queue is not given back; what was posted is leaked")
            }
        }
    }
}
