//! Receives between posting and completing. One poster; those of a shared receive queue complete in any order, at
//! several pollers.

use crate::memory::Local;
use crate::sync::{AtomicU32, Ordering, UnsafeCell};

/// One receive.
#[derive(Debug, Default)]
struct RecvSlot {
    local: Local,
    wr_id: u64,
}

/// The slots of a receive queue.
///
/// A slot belongs to the poster while it is free, and after that to whoever takes its state from posted to free. Free
/// slots go back by a list that any poller pushes to; the poster takes the whole list at once.
pub(super) struct RecvSlots {
    slots: Box<[UnsafeCell<RecvSlot>]>,
    /// Per slot: generation in the upper bits, [`POSTED`] or [`FREE`] in the lowest.
    states: Box<[AtomicU32]>,
    /// Per slot: the next in its list.
    next: Box<[AtomicU32]>,
    /// Slots that came back, as a list.
    returned: AtomicU32,
    /// Slots that the poster has at hand, as a list. Used by the poster alone.
    at_hand: UnsafeCell<u32>,
}

// SAFETY: slots pass between threads by their states, and lists by `returned`, with release and acquire; `at_hand` is the
// poster's.
unsafe impl Sync for RecvSlots {}

impl RecvSlots {
    pub(super) fn new(depth: u32) -> Self {
        let last = depth.saturating_sub(1);
        RecvSlots {
            slots: (0..depth).map(|_| UnsafeCell::new(RecvSlot::default())).collect(),
            states: (0..depth).map(|_| AtomicU32::new(FREE)).collect(),
            next: (0..depth).map(|at| AtomicU32::new(if at == last { NONE } else { at + 1 })).collect(),
            returned: AtomicU32::new(NONE),
            at_hand: UnsafeCell::new(if depth == 0 { NONE } else { 0 }),
        }
    }

    pub(super) fn depth(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Receives that are posted and whose completion was not taken: counted now, so that the data path need not.
    pub(super) fn count(&self) -> u32 {
        self.states.iter().filter(|state| state.load(Ordering::Relaxed) & POSTED == POSTED).count() as u32
    }

    /// Puts a receive into a free slot and hands it to the device by `post`, which gets the slot's tag and says whether the
    /// device took it. The memory is out of the caller's hands meanwhile: it may complete before `post` returns.
    ///
    /// # Errors
    /// The memory, with `None` if the queue is full, or what `post` says.
    ///
    /// # Safety
    /// The caller is the only poster.
    #[inline(always)]
    pub(super) unsafe fn hand_over<E>(
        &self,
        local: Local,
        wr_id: u64,
        post: impl FnOnce(u32) -> Result<(), E>,
    ) -> Result<(), (Option<E>, Local)> {
        // SAFETY: the poster's own.
        let index = self.at_hand.with_mut(|at_hand| unsafe {
            if *at_hand == NONE {
                *at_hand = self.returned.swap(NONE, Ordering::Acquire);
            }
            *at_hand
        });
        let (Some(cell), Some(state), Some(next)) =
            (self.slots.get(index as usize), self.states.get(index as usize), self.next.get(index as usize))
        else {
            return Err((None, local));
        };
        let after = next.load(Ordering::Relaxed);
        let generation = state.load(Ordering::Relaxed) >> 1;
        // SAFETY: free, so the poster's.
        cell.with_mut(|slot| unsafe { *slot = RecvSlot { local, wr_id } });
        state.store(generation << 1 | POSTED, Ordering::Release);
        let tag = generation << INDEX_BITS | index;
        let refused = post(tag).err();
        // A device may refuse a receive and complete it nevertheless: it was taken then.
        let (left, refused) = match refused {
            Some(error) if self.claim(tag).is_some() => (index, Some(error)),
            _ => (after, None),
        };
        // SAFETY: as above.
        self.at_hand.with_mut(|at_hand| unsafe { *at_hand = left });
        match refused {
            // SAFETY: claimed, so the poster's again.
            Some(error) => Err((Some(error), cell.with_mut(|slot| unsafe { std::mem::take(&mut (*slot).local) }))),
            None => Ok(()),
        }
    }

    /// Takes the receive that a tag names; `None` if it names none that is posted, whatever a device may say.
    #[inline(always)]
    pub(super) fn take(&self, tag: u32) -> Option<(Local, u64)> {
        let index = self.claim(tag)?;
        // SAFETY: claimed just now, so nobody else's.
        let taken = self.slots.get(index as usize)?.with_mut(|slot| unsafe {
            let slot = &mut *slot;
            (std::mem::take(&mut slot.local), slot.wr_id)
        });
        let next = self.next.get(index as usize)?;
        let mut head = self.returned.load(Ordering::Relaxed);
        loop {
            next.store(head, Ordering::Relaxed);
            match self.returned.compare_exchange_weak(head, index, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return Some(taken),
                Err(now) => head = now,
            }
        }
    }

    /// Makes a posted slot the caller's.
    #[inline(always)]
    fn claim(&self, tag: u32) -> Option<u32> {
        let (index, generation) = (tag & INDEX_MASK, tag >> INDEX_BITS);
        let state = self.states.get(index as usize)?;
        let before = generation << 1 | POSTED;
        let after = ((generation + 1) & GENERATION_MASK) << 1 | FREE;
        state.compare_exchange(before, after, Ordering::Acquire, Ordering::Relaxed).ok()?;
        Some(index)
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
        let mut given = None;
        // SAFETY: one poster.
        let posted = unsafe {
            slots.hand_over(Local::None, wr_id, |tag| {
                given = Some(tag);
                Ok::<_, ()>(())
            })
        };
        posted.ok()?;
        given
    }

    #[test]
    fn each_is_taken_once() {
        let slots = RecvSlots::new(3);
        let tags: Vec<_> = (0..3).map(|wr_id| post(&slots, wr_id).unwrap()).collect();
        assert_eq!((post(&slots, 9), slots.count()), (None, 3));
        assert_eq!(slots.take(tags[1]).unwrap().1, 1);
        assert!(slots.take(tags[1]).is_none(), "taken already");
        let again = post(&slots, 4).unwrap();
        assert_ne!(again, tags[1], "another generation");
        assert!(slots.take(tags[1]).is_none(), "stale");
        assert_eq!(slots.take(again).unwrap().1, 4);
    }

    #[test]
    fn nonsense_takes_nothing() {
        let slots = RecvSlots::new(2);
        let tag = post(&slots, 1).unwrap();
        for other in [tag ^ 1, tag ^ 1 << 16, u32::MAX, tag + 2] {
            assert!(slots.take(other).is_none(), "{other:x}");
        }
        assert!(slots.take(tag).is_some());
    }

    #[test]
    fn what_is_refused_comes_back() {
        let slots = RecvSlots::new(1);
        // SAFETY: one poster.
        let refused = unsafe { slots.hand_over(Local::None, 1, |_| Err("no")) };
        assert_eq!(refused.unwrap_err().0, Some("no"));
        assert_eq!(slots.count(), 0);
        assert!(post(&slots, 2).is_some());
    }

    #[test]
    fn a_generation_comes_round() {
        let slots = RecvSlots::new(1);
        for _ in 0..=GENERATION_MASK + 1 {
            let tag = post(&slots, 1).unwrap();
            assert!(slots.take(tag).is_some());
        }
    }
}

#[cfg(all(test, loom))]
mod model {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// Receives complete at two pollers while the poster posts on: each is taken once, with what was posted, and its slot is
    /// used again.
    #[test]
    fn each_receive_is_taken_once_and_its_slot_comes_back() {
        loom::model(|| {
            let slots = Arc::new(RecvSlots::new(2));
            let post = |wr_id| {
                let mut given = None;
                // SAFETY: this thread is the only poster.
                let posted = unsafe {
                    slots.hand_over(Local::default(), wr_id, |tag| {
                        given = Some(tag);
                        Ok::<_, ()>(())
                    })
                };
                posted.ok().and(given)
            };
            let tags = [post(10).unwrap(), post(11).unwrap()];
            let pollers = [(tags[0], 10), (tags[1], 11)].map(|(tag, wr_id)| {
                let slots = slots.clone();
                thread::spawn(move || {
                    assert_eq!(slots.take(tag).map(|(_, wr_id)| wr_id), Some(wr_id));
                    assert!(slots.take(tag).is_none(), "twice");
                })
            });
            let early = post(12);
            pollers.into_iter().for_each(|poller| poller.join().unwrap());
            let late = [post(13), post(14)];
            let open = early.into_iter().chain(late.into_iter().flatten());
            assert_eq!(open.filter(|&tag| slots.take(tag).is_some()).count(), 2);
        });
    }
}
