//! Shared receive queues: receives that several queue pairs take by claim.

use std::ptr::NonNull;
use std::sync::Arc;

use super::MAX_WR;
use super::claims::Claims;
use super::home::Home;
use super::layout::{ClaimHead, ClaimInfo, Receives};
use super::recv_queue::{RecvSlot, RecvSlots, WqeRing};
use crate::error::{CreateError, PostError, Rejected};
use crate::events::AsyncEvent;
use crate::memory::Local;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// A shared receive queue. One poster; each queue pair's poller takes what its messages claimed.
#[derive(Debug)]
pub(crate) struct SoftSrq {
    home: Arc<Home>,
    domain: u64,
    depth: u32,
    wqes: WqeRing,
    receives: NonNull<Receives>,
    receives_offset: usize,
    table: ClaimTable,
    slots: RecvSlots,
    /// Per slot of the ring: `LIVE` while a receive is posted there and not taken by a completion.
    live: Box<[AtomicU32]>,
    posted: AtomicU32,
    limit: AtomicU32,
}

// SAFETY: the pointer names atomics in a mapping that `home` keeps; the slots follow `RecvSlots`' contract: the poster
// fills a slot while it is not live, whoever wins its `live` word empties it.
unsafe impl Send for SoftSrq {}
// SAFETY: as above.
unsafe impl Sync for SoftSrq {}

const FREE: u32 = 0;
const LIVE: u32 = 1;
const TAKEN: u32 = 2;

/// A claim table of ours.
#[derive(Debug)]
pub(crate) struct ClaimTable {
    pub(crate) claims: Claims,
    pub(crate) info: ClaimInfo,
}

impl ClaimTable {
    pub(crate) fn new(home: &Arc<Home>, count: u32) -> Result<Self, CreateError> {
        let full = || CreateError::Exhausted { what: "claim table" };
        let head_offset = home.take_shared(size_of::<ClaimHead>()).ok_or_else(full)?;
        let takers_offset = home.take_shared(count as usize * size_of::<AtomicU32>()).ok_or_else(full)?;
        // SAFETY: the types are atomics, and the blocks are ours.
        let (head, takers) = unsafe {
            (
                home.shared().at::<AtomicU64>(head_offset).ok_or_else(full)?,
                home.shared().array::<AtomicU32>(takers_offset, count as usize).ok_or_else(full)?,
            )
        };
        // SAFETY: the mapping lives as long as `home`, which whoever holds the table holds too; the count is a power of
        // two, as the rings it belongs to.
        let claims = unsafe { Claims::new(head, takers, count) };
        Ok(ClaimTable { claims, info: ClaimInfo { head: head_offset, takers: takers_offset, count } })
    }

    pub(crate) fn free(&self, home: &Home) {
        home.give_shared(self.info.head, size_of::<ClaimHead>());
        home.give_shared(self.info.takers, self.info.count as usize * size_of::<AtomicU32>());
    }
}

impl SoftSrq {
    pub(crate) fn new(home: &Arc<Home>, domain: u64, depth: u32) -> Result<Arc<Self>, CreateError> {
        if depth == 0 || depth > MAX_WR {
            let limit = MAX_WR.into();
            return Err(CreateError::OutOfRange { what: "a shared receive queue", asked: depth.into(), limit });
        }
        let full = || CreateError::Exhausted { what: "shared receive queue" };
        let count = depth.next_power_of_two();
        let wqes = WqeRing::new(home, count)?;
        let receives_offset = home.take_public(size_of::<Receives>()).ok_or_else(full)?;
        // SAFETY: the type is made of atomics, and the block is ours.
        let receives = unsafe { home.public().at::<Receives>(receives_offset) }.ok_or_else(full)?;
        let table = ClaimTable::new(home, count)?;
        Ok(Arc::new(SoftSrq {
            home: home.clone(),
            domain,
            depth,
            wqes,
            receives,
            receives_offset,
            table,
            slots: RecvSlots::new(count),
            live: (0..count).map(|_| AtomicU32::new(0)).collect(),
            posted: AtomicU32::new(0),
            limit: AtomicU32::new(0),
        }))
    }

    pub(crate) fn home(&self) -> &Arc<Home> {
        &self.home
    }

    pub(crate) fn domain(&self) -> u64 {
        self.domain
    }

    pub(crate) fn wqes(&self) -> &WqeRing {
        &self.wqes
    }

    pub(crate) fn receives_offset(&self) -> usize {
        self.receives_offset
    }

    pub(crate) fn claim_info(&self) -> ClaimInfo {
        self.table.info
    }

    /// Posts a receive. For one poster at a time: `SharedReceiveQueue` is not shared and takes `&mut self`.
    #[inline]
    pub(crate) fn post(&self, memory: Local, wr_id: u64) -> Result<(), Rejected> {
        if let Err(error) = memory.check(self.domain, None) {
            return Err(Rejected { error, memory });
        }
        let index = self.posted.load(Ordering::Relaxed);
        let live = self.live_word(index);
        if live.load(Ordering::Acquire) != FREE {
            return Err(Rejected { error: PostError::ReceiveQueueFull { depth: self.depth }, memory });
        }
        // SAFETY: mapped as long as `home` lives.
        let receives = unsafe { self.receives.as_ref() };
        let len = self.wqes.describe(index, &memory, receives);
        // SAFETY: the slot is not live, so it is the poster's.
        *unsafe { self.slots.slot(index) } = RecvSlot { memory, wr_id, len };
        live.store(LIVE, Ordering::Release);
        let next = index.wrapping_add(1);
        self.posted.store(next, Ordering::Relaxed);
        receives.posted.store(next, Ordering::Release);
        Ok(())
    }

    /// Takes the receive that a message claimed; `None` if no such receive is outstanding.
    #[inline]
    pub(crate) fn take(&self, index: u32) -> Option<RecvSlot> {
        if !self.is_outstanding(index) {
            return None;
        }
        let live = self.live_word(index);
        live.compare_exchange(LIVE, TAKEN, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        // SAFETY: only one taker wins the slot's word, and the poster waits until it is 0.
        let slot = std::mem::take(unsafe { self.slots.slot(index) });
        live.store(FREE, Ordering::Release);
        let limit = self.limit.load(Ordering::Relaxed);
        if limit != 0 && self.available() < limit && self.limit.swap(0, Ordering::Relaxed) != 0 {
            self.home.events().raise(AsyncEvent::SrqLimitReached);
        }
        Some(slot)
    }

    /// True if receive `index` is posted and not taken.
    pub(crate) fn is_outstanding(&self, index: u32) -> bool {
        let behind = self.posted.load(Ordering::Acquire).wrapping_sub(index).wrapping_sub(1);
        behind < self.wqes.count() && self.live_word(index).load(Ordering::Acquire) == LIVE
    }

    /// Receives that messages to queue pair `qpn` claimed and that never completed.
    pub(crate) fn unfinished(&self, qpn: u32) -> Vec<u32> {
        let end = self.table.claims.count();
        let window = self.wqes.count().min(end);
        (1..=window)
            .rev()
            .map(|back| end.wrapping_sub(back))
            .filter(|&index| self.is_outstanding(index) && self.table.claims.taker_of(index) == qpn)
            .collect()
    }

    pub(crate) fn arm_limit(&self, limit: u32) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    pub(crate) fn available(&self) -> u32 {
        self.posted.load(Ordering::Acquire).wrapping_sub(self.table.claims.count())
    }

    fn live_word(&self, index: u32) -> &AtomicU32 {
        &self.live[(index & (self.wqes.count() - 1)) as usize]
    }
}

impl Drop for SoftSrq {
    fn drop(&mut self) {
        // Every queue pair that used it is gone, and each of them made sure that its peer has left.
        self.wqes.free();
        self.home.give_public(self.receives_offset, size_of::<Receives>());
        self.table.free(&self.home);
    }
}
