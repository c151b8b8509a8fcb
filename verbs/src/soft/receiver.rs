//! The receiving side of a queue pair: its posted receives and the inbound ring's reading end.

use std::cell::UnsafeCell;
use std::collections::HashSet;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use super::entry::{Entry, MAX_LINES};
use super::filler::Filler;
use super::filling::Filling;
use super::layout::Receives;
use super::recv_queue::{RecvSlot, RecvSlots, WqeRing};
use super::ring::{Consumer, Lines};
use super::spec::QpSpec;
use super::srq::{ClaimTable, SoftSrq};
use crate::error::{CreateError, PostError, Rejected};
use crate::memory::{Local, Sge};
use crate::sync::{AtomicU32, Ordering, lock};
use crate::types::QpType;

/// Posted receives and the inbound ring's reading end.
pub(crate) struct Receiver {
    pub(super) own: Option<OwnQueue>,
    pub(super) srq: Option<Arc<SoftSrq>>,
    /// Lines of the inbound ring, and the fewest that do.
    lines: u32,
    least_lines: u32,
    /// The inbound ring, once there is one.
    ring: Option<Lines>,
    /// The poller's.
    pub(super) poller: UnsafeCell<Option<Poller>>,
    /// Claims of senders that died before they could fill them (UD).
    void: Mutex<HashSet<u32>>,
    some_void: AtomicBool,
}

// SAFETY: `poller` is used by the owner of the receive completion queue alone; posting by the one poster. The slots'
// contract is `RecvSlots`'.
unsafe impl Sync for Receiver {}
// SAFETY: as above.
unsafe impl Send for Receiver {}

pub(super) struct OwnQueue {
    ring: WqeRing,
    pub(super) slots: RecvSlots,
    depth: u32,
    /// Written by the poster.
    pub(super) posted: AtomicU32,
    /// What the poller has taken, and who fills what it has not.
    pub(super) filling: Arc<Filling>,
}

/// The place of the next receive of a queue that is not full.
pub(crate) struct Room<'a> {
    own: &'a OwnQueue,
    index: u32,
}

pub(super) struct Poller {
    pub(super) consumer: Consumer,
    /// The peer's device wrote what can not be: nothing is read of its ring any more.
    pub(super) broken: bool,
    /// Claims on the shared receive queue to be flushed, once known.
    pub(super) unfinished: Option<Vec<u32>>,
}

impl Receiver {
    pub(crate) fn new(spec: &QpSpec) -> Result<Self, CreateError> {
        let (own, lines, least_lines) = match &spec.srq {
            Some(srq) => {
                let (receives, unpolled) = (srq.wqes().count(), spec.options.asked_recv_depth);
                let lines = lines_of_shared(receives, unpolled);
                // What was asked for is had, or nothing.
                (None, lines, if unpolled.is_none() { ample_lines(receives) } else { lines })
            }
            None => {
                let count = spec.options.recv_depth().next_power_of_two();
                let own = OwnQueue {
                    ring: WqeRing::new(spec.node.home(), count)?,
                    slots: RecvSlots::new(count),
                    depth: spec.options.recv_depth(),
                    posted: AtomicU32::new(0),
                    filling: Arc::new(Filling::new(count)),
                };
                // Datagrams have one line for each receive.
                let lines =
                    if spec.options.qp_type == QpType::Ud { count } else { (count * LINES_PER_RECEIVE).max(MIN_LINES) };
                (Some(own), lines, lines)
            }
        };
        Ok(Receiver {
            own,
            srq: spec.srq.clone(),
            lines,
            least_lines,
            ring: None,
            poller: UnsafeCell::new(None),
            void: Mutex::default(),
            some_void: AtomicBool::new(false),
        })
    }

    pub(crate) fn ring_lines(&self) -> u32 {
        self.lines
    }

    /// Lines that the inbound ring may have, the most first: [as many as it is to have](Receiver::ring_lines), and fewer for when the
    /// device has no memory for those, with which fewer messages may wait.
    pub(crate) fn ring_lengths(&self) -> impl Iterator<Item = u32> {
        let least = self.least_lines;
        std::iter::successors(Some(self.lines), move |lines| Some(lines / 2).filter(|&fewer| fewer >= least))
    }

    pub(crate) fn with_ring(mut self, lines: Lines) -> Self {
        self.ring = Some(lines);
        *self.poller.get_mut() = Some(Poller { consumer: Consumer::new(lines), broken: false, unfinished: None });
        self
    }

    pub(crate) fn own_depth(&self) -> u32 {
        self.own.as_ref().map_or(0, |own| own.depth)
    }

    pub(crate) fn wqe_ring(&self) -> Option<&WqeRing> {
        self.own.as_ref().map(|own| &own.ring)
    }

    /// Room for a receive in the own queue; for the one poster.
    #[inline(always)]
    pub(crate) fn room(&self) -> Option<Room<'_>> {
        let own = self.own.as_ref()?;
        let index = own.posted.load(Ordering::Relaxed);
        let is_full = index.wrapping_sub(own.filling.retired()) >= own.depth;
        (!is_full).then_some(Room { own, index })
    }

    /// Posts a receive; for the one poster.
    pub(crate) fn post(&self, memory: Local, wr_id: u64, receives: &Receives) -> Result<(), Rejected> {
        let Some(room) = self.room() else {
            let error = match &self.own {
                Some(own) => PostError::ReceiveQueueFull { depth: own.depth },
                None => PostError::UsesSharedReceiveQueue,
            };
            return Err(Rejected { error, memory });
        };
        let len = room.own.ring.describe(room.index, &memory, receives);
        room.publish(RecvSlot { memory, wr_id, len }, receives);
        Ok(())
    }

    /// For who fills receives within this process.
    pub(crate) fn filler(&self) -> Option<Filler> {
        if let Some(own) = &self.own {
            own.filling.allow();
            return Some(Filler::Own(own.filling.clone()));
        }
        self.srq.as_ref().map(|srq| srq.filler())
    }

    /// True if receive `index` is posted and not completed.
    pub(crate) fn is_outstanding(&self, index: u32) -> bool {
        self.own.as_ref().is_some_and(|own| {
            let retired = own.filling.retired();
            index.wrapping_sub(retired) < own.posted.load(Ordering::Acquire).wrapping_sub(retired)
        })
    }

    /// Notes what a dead sender claimed and did not fill.
    pub(crate) fn void_claims(&self, table: &ClaimTable, taker: u32) {
        let Some(own) = &self.own else { return };
        let claimed = self.claimed(own, table);
        let mut void = lock(&self.void);
        for index in claimed {
            let is_filled = self.ring.is_some_and(|ring| ring.has(index));
            if !is_filled && table.claims.taker_of(index) == taker {
                void.insert(index);
            }
        }
        self.some_void.store(!void.is_empty(), Ordering::Release);
    }

    /// True if each receive that was claimed has its message, or lost its sender. Nobody can claim any more.
    pub(super) fn is_filled(&self, table: &ClaimTable) -> bool {
        let (Some(own), Some(ring)) = (&self.own, &self.ring) else { return true };
        self.claimed(own, table).all(|index| ring.has(index) || self.is_void(index))
    }

    /// Receives that are claimed and not completed yet.
    fn claimed(&self, own: &OwnQueue, table: &ClaimTable) -> impl Iterator<Item = u32> + use<> {
        let retired = own.filling.retired();
        // A head that makes no sense claims no more than there is.
        let count = table.claims.count().wrapping_sub(retired).min(self.lines);
        (0..count).map(move |ahead| retired.wrapping_add(ahead))
    }

    /// True if a dead sender claimed receive `index`; forgets it.
    #[inline(always)]
    pub(super) fn take_void(&self, index: u32) -> bool {
        self.some_void.load(Ordering::Acquire) && self.take_some_void(index)
    }

    #[cold]
    fn take_some_void(&self, index: u32) -> bool {
        let mut void = lock(&self.void);
        let found = void.remove(&index);
        self.some_void.store(!void.is_empty(), Ordering::Release);
        found
    }

    /// True if a dead sender claimed receive `index`.
    pub(super) fn is_void(&self, index: u32) -> bool {
        self.some_void.load(Ordering::Acquire) && lock(&self.void).contains(&index)
    }

    /// Gives the duty to give the blocks back to another.
    pub(crate) fn hand_over(&mut self) -> Option<WqeRing> {
        self.own.as_mut().map(|own| own.ring.hand_over())
    }

    /// Never gives the blocks back: a sender may still look at them.
    pub(crate) fn keep(&mut self) {
        if let Some(own) = &mut self.own {
            own.ring.keep();
        }
    }

    /// Keeps the posted memory from ever being freed: a peer may still write it.
    pub(crate) fn leak(&mut self) {
        if let Some(srq) = &self.srq {
            std::mem::forget(srq.clone());
        }
        let Some(own) = &self.own else { return };
        let (mut index, end) = (own.filling.retired(), own.posted.load(Ordering::Acquire));
        while index != end {
            // SAFETY: `&mut self`: neither poster nor poller is left.
            std::mem::forget(std::mem::take(unsafe { own.slots.slot(index) }));
            index = index.wrapping_add(1);
        }
    }
}

impl Room<'_> {
    /// Posts a receive into one piece of memory.
    #[inline(always)]
    pub(crate) fn post(self, receive: RecvSlot, piece: &Sge, receives: &Receives) {
        self.own.ring.describe_one(self.index, piece, receives);
        self.publish(receive, receives);
    }

    /// Posts a receive again that was number `before`, into one piece of memory, if its description is there still.
    #[inline(always)]
    pub(crate) fn post_again(self, before: u32, receive: impl FnOnce() -> RecvSlot, receives: &Receives) -> bool {
        let Room { own, index } = self;
        let (ahead, round) = (index.wrapping_sub(before), own.ring.count());
        if ahead > round {
            return false;
        }
        // A whole round ahead it has the same place.
        if ahead < round {
            own.ring.describe_again(index, before);
        }
        self.publish(receive(), receives);
        true
    }

    /// Makes a receive, which is described, the next that is posted.
    #[inline(always)]
    fn publish(self, receive: RecvSlot, receives: &Receives) {
        let Room { own, index } = self;
        // SAFETY: the index is not published yet, and retired in its former life: the memory was taken out then, so that there
        // is nothing to drop.
        unsafe { std::ptr::write(own.slots.slot(index), receive) };
        let next = index.wrapping_add(1);
        own.posted.store(next, Ordering::Release);
        receives.posted.store(next, Ordering::Release);
    }
}

impl Poller {
    /// The next message, if one is there.
    #[inline(always)]
    pub(super) fn peek(&self) -> Option<Entry> {
        self.consumer.peek().filter(|_| !self.broken)
    }

    /// Messages that wait, counted up to `limit`.
    pub(super) fn count(&self, limit: u32) -> u32 {
        if self.broken { 0 } else { self.consumer.count(limit) }
    }
}

/// Half of the ring is kept for messages placed directly, one line each: as many as there are receives, and a quarter of
/// the ring may be free without the sender knowing. So a message finds room whenever it finds a receive, polled or not.
const LINES_PER_RECEIVE: u32 = 4;
/// Room for messages on their way even of a shallow queue.
const MIN_LINES: u32 = 64;
/// Of a queue pair with a deep shared receive queue, however few messages of it may wait (32 KiB).
const AMPLE_LINES: u32 = 512;
/// Of one with a shared receive queue (256 KiB) that was not told how many messages may wait.
const MAX_SHARED_LINES: u32 = 4096;

/// Lines for a queue pair that takes from a shared queue of so many receives, of which it may be the only one, and leave so many
/// messages to wait. Half of the lines are enough for messages placed directly, and fewer are put inside the ring then. Beyond that
/// its peer waits until some are polled, or hears that there is no receive.
fn lines_of_shared(receives: u32, unpolled: Option<u32>) -> u32 {
    // The other half has messages too, however long, of which at most half are polled and not told.
    let placed = |unpolled: u32| unpolled - unpolled / (2 * MAX_LINES as u32 + 1);
    let lines = match unpolled {
        Some(unpolled) => placed(unpolled.clamp(1, receives)).next_power_of_two() * 2,
        None => (receives * 2).min(MAX_SHARED_LINES),
    };
    lines.max(ample_lines(receives))
}

/// Lines for what one polls of it as it comes.
fn ample_lines(receives: u32) -> u32 {
    (receives * LINES_PER_RECEIVE).clamp(MIN_LINES, AMPLE_LINES)
}
