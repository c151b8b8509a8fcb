//! Receives between posting and completing. One poster; those of a shared receive queue complete in any order, at
//! several pollers.

use crate::memory::Local;
use crate::sync::{AtomicU32, Ordering, UnsafeCell};

/// One receive, while it is posted.
#[derive(Debug, Default)]
pub(super) struct Receive {
    pub(super) local: Local,
    pub(super) wr_id: u64,
    /// Bytes of the memory.
    pub(super) len: u32,
}

/// A slot belongs to the poster while it is in a list; once posted, to whoever takes its state from posted to free, until it
/// is in a list again. One cache line, so that the poster and pollers of other slots do not slow each other.
#[repr(align(64))]
struct Slot {
    /// Generation in the upper bits, [`POSTED`] or [`FREE`] in the lowest.
    state: AtomicU32,
    /// The next in its list.
    next: AtomicU32,
    receive: UnsafeCell<Receive>,
}

/// The slots of a receive queue.
///
/// Free slots go back by a list that any poller pushes to; the poster takes the whole list at once.
pub(super) struct RecvSlots {
    slots: Box<[Slot]>,
    /// Slots that came back, as a list.
    returned: AtomicU32,
    /// Slots that the poster has at hand, as a list. Used by the poster alone.
    at_hand: UnsafeCell<u32>,
}

// SAFETY: slots go to pollers by their states, and come back by `returned`, with release and acquire; `at_hand` is the
// poster's.
unsafe impl Sync for RecvSlots {}

impl RecvSlots {
    pub(super) fn new(depth: u32) -> Self {
        let slot = |at| Slot {
            state: AtomicU32::new(FREE),
            next: AtomicU32::new(if at + 1 == depth { NONE } else { at + 1 }),
            receive: UnsafeCell::new(Receive::default()),
        };
        RecvSlots {
            slots: (0..depth).map(slot).collect(),
            returned: AtomicU32::new(NONE),
            at_hand: UnsafeCell::new(if depth == 0 { NONE } else { 0 }),
        }
    }

    pub(super) fn depth(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Receives that are posted and whose completion was not taken: counted now, so that the data path need not.
    pub(super) fn count(&self) -> u32 {
        self.slots.iter().filter(|slot| slot.state.load(Ordering::Relaxed) & POSTED == POSTED).count() as u32
    }

    /// Puts a receive into a free slot, and returns the tag by which it is then handed to the device: the memory is out of
    /// the caller's hands, for the receive may complete before the device's function returns.
    ///
    /// # Errors
    /// The receive, if no slot is free.
    ///
    /// # Safety
    /// The caller is the only poster.
    #[inline(always)]
    pub(super) unsafe fn begin(&self, receive: Receive) -> Result<u32, Receive> {
        // SAFETY: the poster's own.
        let mut index = self.at_hand.with(|at_hand| unsafe { *at_hand });
        if index == NONE {
            index = self.returned.swap(NONE, Ordering::Acquire);
        }
        // The list's end is beyond all slots.
        let Some(slot) = self.slots.get(index as usize) else { return Err(receive) };
        let (after, generation) = (slot.next.load(Ordering::Relaxed), slot.state.load(Ordering::Relaxed) >> 1);
        // SAFETY: as above.
        self.at_hand.with_mut(|at_hand| unsafe { *at_hand = after });
        // SAFETY: it was in the poster's list, so it is the poster's. What it had was taken out before it came there, so
        // there is nothing to drop.
        slot.receive.with_mut(|place| unsafe { place.write(receive) });
        slot.state.store(generation << 1 | POSTED, Ordering::Release);
        Ok(generation << INDEX_BITS | index)
    }

    /// Takes the last receive back, which the device refused; `None` if it has completed: a device may refuse one and take
    /// it nevertheless.
    ///
    /// # Safety
    /// The caller is the only poster, and has begun this one last.
    #[cold]
    pub(super) unsafe fn back(&self, tag: u32) -> Option<Local> {
        let slot = self.claim(tag)?;
        // SAFETY: claimed, so the poster's again.
        let local = slot.receive.with_mut(|receive| std::mem::take(unsafe { &mut (*receive).local }));
        // SAFETY: the poster's own.
        self.at_hand.with_mut(|at_hand| unsafe {
            slot.next.store(*at_hand, Ordering::Relaxed);
            *at_hand = tag & INDEX_MASK;
        });
        Some(local)
    }

    /// Takes the receive that a tag names out into `to`, whose memory is none, and returns its number and the bytes of its
    /// memory; `None` if it names none that is posted, whatever a device may say.
    #[inline(always)]
    pub(super) fn take(&self, tag: u32, to: &mut Local) -> Option<(u64, u32)> {
        let slot = self.claim(tag)?;
        // SAFETY: claimed just now, so nobody else's. The memory moves; `to` had none that would have to be dropped.
        let taken = slot.receive.with_mut(|receive| unsafe {
            (&raw const (*receive).local).copy_to_nonoverlapping(to, 1);
            std::ptr::write(&raw mut (*receive).local, Local::None);
            ((*receive).wr_id, (*receive).len)
        });
        let index = tag & INDEX_MASK;
        let mut head = self.returned.load(Ordering::Relaxed);
        loop {
            slot.next.store(head, Ordering::Relaxed);
            match self.returned.compare_exchange_weak(head, index, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return Some(taken),
                Err(now) => head = now,
            }
        }
    }

    /// Makes a posted slot the caller's.
    #[inline(always)]
    fn claim(&self, tag: u32) -> Option<&Slot> {
        let (index, generation) = (tag & INDEX_MASK, tag >> INDEX_BITS);
        let slot = self.slots.get(index as usize)?;
        let before = generation << 1 | POSTED;
        let after = ((generation + 1) & GENERATION_MASK) << 1 | FREE;
        slot.state.compare_exchange(before, after, Ordering::Acquire, Ordering::Relaxed).ok()?;
        Some(slot)
    }
}

impl std::fmt::Debug for RecvSlots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecvSlots").field("depth", &self.depth()).field("posted", &self.count()).finish_non_exhaustive()
    }
}

const FREE: u32 = 0;
const POSTED: u32 = 1;
/// End of a list.
const NONE: u32 = u32::MAX;
/// Slots have numbers of so many bits; the rest of a tag is their generation.
const INDEX_BITS: u32 = 20;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;
const GENERATION_MASK: u32 = (1 << (32 - INDEX_BITS)) - 1;
/// Deepest receive queue.
pub(super) const MOST_SLOTS: u32 = 1 << INDEX_BITS;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn post(slots: &RecvSlots, wr_id: u64) -> Option<u32> {
        // SAFETY: one poster.
        unsafe { slots.begin(Receive { wr_id, ..Receive::default() }) }.ok()
    }

    fn take(slots: &RecvSlots, tag: u32) -> Option<u64> {
        slots.take(tag, &mut Local::None).map(|(wr_id, _)| wr_id)
    }

    #[test]
    fn each_is_taken_once() {
        let slots = RecvSlots::new(3);
        let tags: Vec<_> = (0..3).map(|wr_id| post(&slots, wr_id).unwrap()).collect();
        assert_eq!((post(&slots, 9), slots.count()), (None, 3));
        assert_eq!(take(&slots, tags[1]).unwrap(), 1);
        assert!(take(&slots, tags[1]).is_none(), "taken already");
        let again = post(&slots, 4).unwrap();
        assert_ne!(again, tags[1], "another generation");
        assert!(take(&slots, tags[1]).is_none(), "stale");
        assert_eq!(take(&slots, again).unwrap(), 4);
    }

    #[test]
    fn nonsense_takes_nothing() {
        let slots = RecvSlots::new(2);
        let tag = post(&slots, 1).unwrap();
        for other in [tag ^ 1, tag ^ 1 << 16, u32::MAX, tag + 2] {
            assert!(take(&slots, other).is_none(), "{other:x}");
        }
        assert!(take(&slots, tag).is_some());
    }

    #[test]
    fn what_is_refused_comes_back() {
        let slots = RecvSlots::new(2);
        let refused = post(&slots, 1).unwrap();
        // SAFETY: one poster, and the last receive.
        assert!(unsafe { slots.back(refused) }.is_some());
        assert_eq!((slots.count(), take(&slots, refused)), (0, None));
        let posted = [2, 3].map(|wr_id| post(&slots, wr_id).unwrap());
        assert_eq!(post(&slots, 4), None);
        assert_eq!(posted.map(|tag| take(&slots, tag)), [Some(2), Some(3)]);
    }

    #[test]
    fn what_is_refused_and_completes_stays_taken() {
        let slots = RecvSlots::new(1);
        let tag = post(&slots, 1).unwrap();
        assert_eq!(take(&slots, tag), Some(1));
        // SAFETY: one poster, and the last receive.
        assert!(unsafe { slots.back(tag) }.is_none());
        assert!(post(&slots, 2).is_some());
    }

    #[test]
    fn a_generation_comes_round() {
        let slots = RecvSlots::new(1);
        for _ in 0..=GENERATION_MASK + 1 {
            let tag = post(&slots, 1).unwrap();
            assert!(take(&slots, tag).is_some());
        }
    }
}

#[cfg(all(test, loom))]
mod model {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// Posts a receive; its tag, if there is room.
    fn post(slots: &RecvSlots, wr_id: u64) -> Option<u32> {
        // SAFETY: each model has one poster.
        unsafe { slots.begin(Receive { local: Local::Memory(wr_id), wr_id, len: 0 }) }.ok()
    }

    /// Takes a receive, with its own memory.
    fn take(slots: &RecvSlots, tag: u32) -> Option<u64> {
        let mut memory = Local::None;
        let (wr_id, _) = slots.take(tag, &mut memory)?;
        assert!(matches!(memory, Local::Memory(number) if number == wr_id), "memory of another");
        Some(wr_id)
    }

    /// Receives complete at two pollers while the poster posts on: each is taken once, with what was posted, and its slot is
    /// used again.
    #[test]
    fn each_receive_is_taken_once_and_its_slot_comes_back() {
        loom::model(|| {
            let slots = Arc::new(RecvSlots::new(2));
            let tags = [post(&slots, 10).unwrap(), post(&slots, 11).unwrap()];
            let pollers = [(tags[0], 10), (tags[1], 11)].map(|(tag, wr_id)| {
                let slots = slots.clone();
                thread::spawn(move || {
                    assert_eq!(take(&slots, tag), Some(wr_id));
                    assert!(take(&slots, tag).is_none(), "twice");
                })
            });
            let early = post(&slots, 12);
            pollers.into_iter().for_each(|poller| poller.join().unwrap());
            let late = [post(&slots, 13), post(&slots, 14)];
            let open = early.into_iter().chain(late.into_iter().flatten());
            assert_eq!(open.filter(|&tag| take(&slots, tag).is_some()).count(), 2);
        });
    }

    /// A receive is refused and completes nevertheless: its memory goes one way only, and its slot is used again.
    #[test]
    fn a_refused_receive_comes_back_or_completes() {
        loom::model(|| {
            let slots = Arc::new(RecvSlots::new(1));
            let tag = post(&slots, 10).unwrap();
            let poller = thread::spawn({
                let slots = slots.clone();
                move || take(&slots, tag)
            });
            // SAFETY: this thread is the only poster, and that was the last receive.
            let back = unsafe { slots.back(tag) };
            let taken = poller.join().unwrap();
            assert!(matches!((back, taken), (Some(Local::Memory(10)), None) | (None, Some(10))));
            let again = post(&slots, 11).unwrap();
            assert_eq!(take(&slots, again), Some(11));
        });
    }
}
