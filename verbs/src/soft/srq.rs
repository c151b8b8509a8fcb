//! Shared receive queues: receives that several queue pairs take by claim.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard};

use super::MAX_SRQ_WR;
use super::block::Block;
use super::claims::{Claims, Taker};
use super::filler::Filler;
use super::home::Home;
use super::layout::{ClaimHead, ClaimInfo, Receives, ordered, slot_of};
use super::peer::Receive;
use super::recv_queue::{RecvSlot, RecvSlots, Taken, WqeRing};
use crate::error::{CreateError, PostError, Rejected};
use crate::events::AsyncEvent;
use crate::memory::{Local, MAX_SGE};
use crate::sync::{AtomicU32, AtomicU64, Ordering, lock};

/// A shared receive queue. One poster; each queue pair's poller takes what its messages claimed.
///
/// Receives are claimed in the order of their running numbers and complete in any order. A receive lives in a slot; the
/// order says which slot a number stands for. A place of the order is used again once its number is claimed; should that
/// receive still be under way then, it is noted among the displaced.
#[derive(Debug)]
pub(crate) struct SoftSrq {
    home: Arc<Home>,
    domain: u64,
    depth: u32,
    wqes: WqeRing,
    receives: Block<Receives>,
    order: Block<AtomicU64>,
    table: ClaimTable,
    slots: RecvSlots,
    lives: Arc<Lives>,
    /// A bit per slot: 1 while it is free.
    free: Box<[AtomicU64]>,
    displaced: Mutex<HashMap<u32, Displaced>>,
    posted: AtomicU32,
    limit: AtomicU32,
}

/// A receive under way whose place in the order tells of a later one.
#[derive(Clone, Copy, Debug)]
struct Displaced {
    slot: u32,
    taker: u32,
}

/// What becomes of the receives in the slots, in memory of this process alone.
#[derive(Debug)]
pub(crate) struct Lives {
    /// Per slot: `LIVE` while a receive is posted there and not taken by a completion, or `FILLING`.
    live: Box<[AtomicU32]>,
    /// Per slot: running number of its receive.
    number: Box<[AtomicU32]>,
}

const FREE: u32 = 0;
const LIVE: u32 = 1;
const TAKEN: u32 = 2;
/// Somebody in this process is at it, who marked it as [`Filler`] says.
const FILLING: u32 = 3;

/// A claim table of ours.
#[derive(Debug)]
pub(crate) struct ClaimTable {
    pub(crate) claims: Claims,
    pub(crate) info: ClaimInfo,
    _head: Block<ClaimHead>,
    _takers: Block<Taker>,
}

impl ClaimTable {
    pub(crate) fn new(home: &Arc<Home>, count: u32) -> Result<Self, CreateError> {
        let full = || CreateError::Exhausted { what: "claim table" };
        // SAFETY: the types are made of atomics.
        let (head, takers) = unsafe { (Block::<ClaimHead>::shared(home, 1), Block::<Taker>::shared(home, count)) };
        let (head, takers) = (head.ok_or_else(full)?, takers.ok_or_else(full)?);
        // SAFETY: the blocks live as long as the table, which whoever uses its claims holds.
        let claims = unsafe { Claims::new(NonNull::from(&head.get().word), takers.first(), count) };
        let info = ClaimInfo { head: head.offset(), takers: takers.offset(), count };
        Ok(ClaimTable { claims, info, _head: head, _takers: takers })
    }
}

impl SoftSrq {
    pub(crate) fn new(home: &Arc<Home>, domain: u64, depth: u32) -> Result<Arc<Self>, CreateError> {
        if depth == 0 || depth > MAX_SRQ_WR {
            let limit = MAX_SRQ_WR.into();
            return Err(CreateError::OutOfRange { what: "a shared receive queue", asked: depth.into(), limit });
        }
        let full = || CreateError::Exhausted { what: "shared receive queue" };
        let count = depth.next_power_of_two();
        let wqes = WqeRing::new(home, count)?;
        // SAFETY: the types are made of atomics.
        let (receives, order) = unsafe { (Block::public(home, 1), Block::public(home, count)) };
        let (receives, order) = (receives.ok_or_else(full)?, order.ok_or_else(full)?);
        let table = ClaimTable::new(home, count)?;
        let free = (0..depth.div_ceil(64)).map(|word| match depth - word * 64 {
            rest @ 0..64 => AtomicU64::new((1 << rest) - 1),
            _ => AtomicU64::new(u64::MAX),
        });
        Ok(Arc::new(SoftSrq {
            home: home.clone(),
            domain,
            depth,
            wqes,
            receives,
            order,
            table,
            slots: RecvSlots::new(count),
            lives: Arc::new(Lives::new(count)),
            free: free.collect(),
            displaced: Mutex::default(),
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
        self.receives.offset()
    }

    pub(crate) fn order_offset(&self) -> usize {
        self.order.offset()
    }

    pub(crate) fn claim_info(&self) -> ClaimInfo {
        self.table.info
    }

    /// For who fills receives within this process.
    pub(crate) fn filler(&self) -> Filler {
        Filler::Shared(self.lives.clone())
    }

    /// Posts a receive. For one poster at a time: `SharedReceiveQueue` is not shared and takes `&mut self`.
    #[inline]
    pub(crate) fn post(&self, memory: Local, wr_id: u64) -> Result<(), Rejected> {
        if let Err(error) = memory.check(self.domain, None, MAX_SGE) {
            return Err(Rejected { error, memory });
        }
        let Some(slot) = self.take_free() else {
            return Err(Rejected { error: PostError::ReceiveQueueFull { depth: self.depth }, memory });
        };
        let index = self.posted.load(Ordering::Relaxed);
        self.make_room(index);
        let receives = self.receives.get();
        let len = self.wqes.describe(slot, &memory, receives);
        // SAFETY: the slot is free, so it is the poster's.
        *unsafe { self.slots.slot(slot) } = RecvSlot { memory, wr_id, len };
        self.lives.begin_life(slot, index);
        self.order(index).store(ordered(index, slot), Ordering::Release);
        let next = index.wrapping_add(1);
        self.posted.store(next, Ordering::Relaxed);
        receives.posted.store(next, Ordering::Release);
        Ok(())
    }

    /// Takes the receive that a message claimed, its memory into `memory`, which is empty; `None` if no such receive is
    /// outstanding.
    #[inline]
    pub(crate) fn take(&self, index: u32, memory: &mut Local) -> Option<Taken> {
        let slot = self.slot(index)?;
        if !self.lives.turn(Receive { index, slot }, TAKEN) {
            return None;
        }
        // SAFETY: only one taker wins the slot's word, and the poster waits until the slot is free.
        let taken = unsafe { self.slots.slot(slot) }.take(memory);
        self.lives.live[slot as usize].store(FREE, Ordering::Release);
        self.free[slot as usize / 64].fetch_or(1 << (slot % 64), Ordering::Release);
        self.look_at_limit();
        Some(taken)
    }

    /// Tells, once, that fewer are left than the limit that was set.
    #[inline]
    fn look_at_limit(&self) {
        let limit = self.limit.load(Ordering::Relaxed);
        if limit != 0 && self.available() < limit && self.limit.swap(0, Ordering::Relaxed) != 0 {
            self.home.events().raise(AsyncEvent::SrqLimitReached);
        }
    }

    /// A queue pair is gone: what messages to it took, and nobody polled, is free again.
    pub(crate) fn take_back(&self, qpn: u32) {
        for index in self.unfinished(qpn) {
            let mut memory = Local::default();
            self.take(index, &mut memory);
        }
    }

    /// Slot of a receive that is posted and not taken.
    pub(crate) fn outstanding(&self, index: u32) -> Option<u32> {
        let slot = slot_of(self.order(index).load(Ordering::Acquire), index)
            .or_else(|| self.displaced().get(&index).map(|displaced| displaced.slot))?;
        self.holds(slot, index).then_some(slot)
    }

    /// Receives that messages to queue pair `qpn` claimed and that never completed.
    pub(crate) fn unfinished(&self, qpn: u32) -> Vec<u32> {
        let claimed = self.table.claims.count();
        let numbers = self.lives.number.iter().map(|number| number.load(Ordering::Acquire));
        let mut found: Vec<u32> = numbers
            .zip(0..)
            .filter(|&(index, slot)| {
                let behind = claimed.wrapping_sub(index).wrapping_sub(1);
                let is_claimed = behind < u32::MAX / 2;
                is_claimed && self.holds(slot, index) && self.taker(index, behind) == qpn
            })
            .map(|(index, _)| index)
            .collect();
        // Handed out from the end: the oldest last.
        found.sort_unstable_by_key(|index| claimed.wrapping_sub(*index));
        found
    }

    /// Who claimed receive `index`, `behind` claims ago.
    fn taker(&self, index: u32, behind: u32) -> u32 {
        match self.displaced().get(&index) {
            Some(displaced) => displaced.taker,
            None if behind < self.wqes.count() => self.table.claims.taker_of(index),
            None => 0,
        }
    }

    /// Slot of the receive with running number `index`, for its one taker.
    #[inline]
    fn slot(&self, index: u32) -> Option<u32> {
        let entry = self.order(index).load(Ordering::Acquire);
        slot_of(entry, index).or_else(|| self.displaced().remove(&index).map(|displaced| displaced.slot))
    }

    /// Before the place of `index` is used again: the receive it tells of is claimed, and may still be under way.
    #[inline]
    fn make_room(&self, index: u32) {
        let before = index.wrapping_sub(self.wqes.count());
        let Some(slot) = slot_of(self.order(index).load(Ordering::Relaxed), before) else { return };
        if self.holds(slot, before) {
            self.displace(slot, before);
        }
    }

    #[cold]
    fn displace(&self, slot: u32, index: u32) {
        let taker = self.table.claims.taker_of(index);
        let mut displaced = self.displaced();
        displaced.retain(|&index, displaced| self.holds(displaced.slot, index));
        displaced.insert(index, Displaced { slot, taker });
    }

    fn holds(&self, slot: u32, index: u32) -> bool {
        self.lives.hold(slot, index)
    }

    fn take_free(&self) -> Option<u32> {
        self.free.iter().zip(0u32..).find_map(|(word, place)| {
            let bits = word.load(Ordering::Acquire);
            let bit = bits.trailing_zeros();
            (bits != 0).then(|| {
                word.fetch_and(!(1 << bit), Ordering::Relaxed);
                place * 64 + bit
            })
        })
    }

    fn order(&self, index: u32) -> &AtomicU64 {
        self.order.at(index)
    }

    fn displaced(&self) -> MutexGuard<'_, HashMap<u32, Displaced>> {
        lock(&self.displaced)
    }

    pub(crate) fn arm_limit(&self, limit: u32) {
        self.limit.store(limit, Ordering::Relaxed);
        self.look_at_limit();
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    pub(crate) fn available(&self) -> u32 {
        self.posted.load(Ordering::Acquire).wrapping_sub(self.table.claims.count())
    }
}

impl Lives {
    fn new(count: u32) -> Self {
        let words = || (0..count).map(|_| AtomicU32::new(0)).collect();
        Lives { live: words(), number: words() }
    }

    fn begin_life(&self, slot: u32, index: u32) {
        self.number[slot as usize].store(index, Ordering::Relaxed);
        self.live[slot as usize].store(LIVE, Ordering::Release);
    }

    fn hold(&self, slot: u32, index: u32) -> bool {
        matches!(self.live[slot as usize].load(Ordering::Acquire), LIVE | FILLING)
            && self.number[slot as usize].load(Ordering::Relaxed) == index
    }

    /// Turns a receive that lives into what is `to` be. False if it does not.
    #[inline]
    fn turn(&self, Receive { index, slot }: Receive, to: u32) -> bool {
        let live = &self.live[slot as usize];
        if live.compare_exchange(LIVE, to, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return false;
        }
        if self.number[slot as usize].load(Ordering::Relaxed) == index {
            return true;
        }
        // Two takers of one number, which only a peer that lies brings about: the slot has a new life already.
        live.store(LIVE, Ordering::Release);
        false
    }

    /// As [`Filler::begin`].
    #[inline]
    pub(super) fn begin(&self, receive: Receive) -> bool {
        self.turn(receive, FILLING)
    }

    /// As [`Filler::end`].
    #[inline]
    pub(super) fn end(&self, receive: Receive) {
        self.live[receive.slot as usize].store(LIVE, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soft::layout::RecvWqe;

    #[test]
    fn what_could_not_be_made_leaves_nothing_behind() {
        let home = Home::new().unwrap();
        let depth = 8192;
        let len = depth as usize * size_of::<RecvWqe>();
        // Nothing is left but the block for the receives, none for what comes after it.
        let last = std::iter::from_fn(|| home.take_public(len)).last().unwrap();
        while home.take_public(size_of::<Receives>()).is_some() {}
        home.give_public(last, len);
        for _ in 0..3 {
            let error = SoftSrq::new(&home, 1, depth).unwrap_err();
            assert!(matches!(error, CreateError::Exhausted { .. }), "{error}");
        }
        assert_eq!(home.take_public(len), Some(last));
    }
}
