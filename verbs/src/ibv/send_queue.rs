//! Send requests between posting and retiring: a ring that the poster fills and the poller empties. The device completes
//! them in order; a completion retires those before it that were not signaled.

use std::sync::Arc;

use super::ah::Ah;
use super::hub::Hub;
use super::mw::Mw;
use crate::aside;
use crate::memory::Local;
use crate::status::WcOpcode;
use crate::sync::{AtomicU32, Ordering, UnsafeCell};
use crate::types::Rkey;

/// One send request.
#[derive(Debug, Default)]
pub(super) struct SendSlot {
    pub(super) local: Local,
    pub(super) wr_id: u64,
    pub(super) opcode: WcOpcode,
    /// Bytes that it moves.
    pub(super) len: u32,
    pub(super) held: Held,
}

/// What a request needs besides memory until it is done.
#[derive(Debug, Default)]
pub(super) enum Held {
    #[default]
    Nothing,
    /// The address that a datagram goes to.
    Handle { _handle: Arc<Ah> },
    /// The window that it binds, and its key then.
    Bind(Arc<Mw>, Rkey),
    /// The key that it invalidates.
    Invalidate(Rkey),
}

/// The ring. `retired <= posted <= posting`, as running counts.
pub(super) struct SendQueue {
    slots: Box<[UnsafeCell<SendSlot>]>,
    mask: u32,
    depth: u32,
    /// End of what the poster has begun to hand to the device.
    posting: Counter,
    /// End of what the device has taken. Written by the poster.
    posted: Counter,
    /// Written by the poller.
    retired: Counter,
}

#[repr(align(64))]
struct Counter(AtomicU32);

/// What a count that a device gave stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meant {
    /// A request that is under way.
    UnderWay,
    /// One that the poster is handing over at this moment: it will be under way presently.
    Presently,
    /// None.
    Nothing,
}

// SAFETY: a slot belongs to the poster from `retired` on, and to the poller from its posting until it is retired; the
// counters are stored with release and loaded with acquire.
unsafe impl Sync for SendQueue {}

impl SendQueue {
    pub(super) fn new(depth: u32) -> Self {
        let count = depth.next_power_of_two();
        SendQueue {
            slots: (0..count).map(|_| UnsafeCell::new(SendSlot::default())).collect(),
            mask: count - 1,
            depth,
            posting: Counter(AtomicU32::new(0)),
            posted: Counter(AtomicU32::new(0)),
            retired: Counter(AtomicU32::new(0)),
        }
    }

    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    /// Count of the next request, for the poster; `None` if the queue is full.
    #[inline(always)]
    pub(super) fn next(&self) -> Option<u32> {
        let posted = self.posted.0.load(Ordering::Relaxed);
        let taken = posted.wrapping_sub(self.retired.0.load(Ordering::Acquire));
        (taken < self.depth).then_some(posted)
    }

    /// Puts a request into the slot of `index`. It is then handed to the device, and after that [ended](SendQueue::end) or
    /// taken [back](SendQueue::back).
    ///
    /// # Safety
    /// `index` is what [`next`](SendQueue::next) gave, and the caller the poster.
    #[inline(always)]
    pub(super) unsafe fn begin(&self, index: u32, request: SendSlot) {
        // SAFETY: beyond `posting`, so the poster's. What a free slot had was taken out of it, so there is nothing to drop.
        self.cell(index).with_mut(|slot| unsafe { slot.write(request) });
        self.posting.0.store(index.wrapping_add(1), Ordering::Release);
    }

    /// The device has taken the request of `index`. The poller does not touch it before, though the completion may be there
    /// already.
    #[inline(always)]
    pub(super) fn end(&self, index: u32) {
        self.posted.0.store(index.wrapping_add(1), Ordering::Release);
    }

    /// A request that the device did not take.
    ///
    /// # Safety
    /// The caller is the poster, which began it last and did not end it.
    pub(super) unsafe fn back(&self, index: u32) -> SendSlot {
        self.posting.0.store(index, Ordering::Release);
        // SAFETY: beyond `posting`, so the poster's.
        self.cell(index).with_mut(|slot| std::mem::take(unsafe { &mut *slot }))
    }

    /// True if `index` is the oldest request that the device has taken and not completed. For the poller.
    #[inline(always)]
    pub(super) fn is_oldest(&self, index: u32) -> bool {
        index == self.retired.0.load(Ordering::Relaxed) && index != self.posted.0.load(Ordering::Acquire)
    }

    /// Takes the [oldest](SendQueue::is_oldest) request out into `to`, whose memory is none; its number, operation and
    /// length. `None` if it holds more than memory.
    ///
    /// # Safety
    /// The caller is the poller, and `index` the oldest one.
    #[inline(always)]
    pub(super) unsafe fn take_oldest(&self, index: u32, to: &mut Local) -> Option<(u64, WcOpcode, u32)> {
        // SAFETY: between `retired` and `posted`, so the poller's. The memory moves: the slot keeps none, and `to` had none
        // that would have to be dropped.
        let taken = self.cell(index).with_mut(|slot| unsafe {
            if !matches!((*slot).held, Held::Nothing) {
                return None;
            }
            (&raw const (*slot).local).copy_to_nonoverlapping(to, 1);
            std::ptr::write(&raw mut (*slot).local, Local::None);
            Some(((*slot).wr_id, (*slot).opcode, (*slot).len))
        })?;
        self.retired.0.store(index.wrapping_add(1), Ordering::Release);
        Some(taken)
    }

    /// What the count of a completion stands for. For the poller.
    #[inline(always)]
    pub(super) fn meaning(&self, index: u32) -> Meant {
        let retired = self.retired.0.load(Ordering::Relaxed);
        let place = index.wrapping_sub(retired);
        if place < self.posted.0.load(Ordering::Acquire).wrapping_sub(retired) {
            return Meant::UnderWay;
        }
        if place < self.posting.0.load(Ordering::Acquire).wrapping_sub(retired) {
            return Meant::Presently;
        }
        // It may have been taken between the two looks.
        if place < self.posted.0.load(Ordering::Acquire).wrapping_sub(retired) {
            Meant::UnderWay
        } else {
            Meant::Nothing
        }
    }

    /// Gives `f` the slot of a request that is under way.
    ///
    /// # Safety
    /// The caller is the poller, `index` lies between `retired` and `posted`, and `f` does not come here again.
    #[inline(always)]
    unsafe fn with_slot<R>(&self, index: u32, f: impl FnOnce(&mut SendSlot) -> R) -> R {
        // SAFETY: exclusive by the contract.
        self.cell(index).with_mut(|slot| f(unsafe { &mut *slot }))
    }

    #[inline(always)]
    fn cell(&self, index: u32) -> &UnsafeCell<SendSlot> {
        // SAFETY: the mask keeps the index within the slots.
        unsafe { self.slots.get_unchecked((index & self.mask) as usize) }
    }
}

impl std::fmt::Debug for SendQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SendQueue").field("depth", &self.depth).finish_non_exhaustive()
    }
}

/// The request that completes, taken out of its queue.
pub(super) struct Taken {
    pub(super) local: Local,
    pub(super) wr_id: u64,
    pub(super) opcode: WcOpcode,
    pub(super) len: u32,
    /// Those before it, where some hold memory.
    pub(super) unsignaled: Option<Retired>,
}

/// Takes the request that completes and retires those before it. For the poller; `index` is one that is
/// [under way](Meant::UnderWay).
#[inline(always)]
pub(super) fn take(queue: &Arc<SendQueue>, hub: &Hub, index: u32, success: bool) -> Taken {
    let start = queue.retired.0.load(Ordering::Relaxed);
    let mut at = start;
    let mut has_memory = false;
    while at != index {
        // SAFETY: between `retired` and `index`, which is below `posted`, so the poller's.
        has_memory |= unsafe {
            queue.with_slot(at, |slot| {
                if !matches!(slot.held, Held::Nothing) {
                    // A later request that failed does not tell of this one; those in order before it were carried out.
                    release(std::mem::take(&mut slot.held), hub, true);
                }
                !matches!(slot.local, Local::None)
            })
        };
        at = at.wrapping_add(1);
    }
    // SAFETY: as above.
    let (local, wr_id, opcode, len) = unsafe {
        queue.with_slot(index, |slot| {
            if !matches!(slot.held, Held::Nothing) {
                release(std::mem::take(&mut slot.held), hub, success);
            }
            (std::mem::take(&mut slot.local), slot.wr_id, slot.opcode, slot.len)
        })
    };
    let next = index.wrapping_add(1);
    let unsignaled = if has_memory {
        Some(Retired { queue: queue.clone(), next: start, end: index, retire: next })
    } else {
        queue.retired.0.store(next, Ordering::Release);
        None
    };
    Taken { local, wr_id, opcode, len, unsignaled }
}

#[cold]
fn release(held: Held, hub: &Hub, success: bool) {
    match held {
        Held::Bind(window, rkey) => window.bind_ended(rkey, success),
        Held::Invalidate(rkey) if success => hub.window_gone(rkey),
        Held::Nothing | Held::Handle { .. } | Held::Invalidate(_) => {}
    }
}

/// Memory of unsignaled requests that a completion retires.
#[derive(Debug)]
pub(crate) struct Retired {
    queue: Arc<SendQueue>,
    next: u32,
    end: u32,
    retire: u32,
}

impl Retired {
    /// The oldest that was not taken yet.
    pub(crate) fn next_memory(&mut self) -> Option<Local> {
        while self.next != self.end {
            // SAFETY: `retired` has not moved past these slots, so they are the poller's; the completion borrows the
            // completion queue, so there is one `Retired` at a time.
            let memory = unsafe { self.queue.with_slot(self.next, |slot| std::mem::take(&mut slot.local)) };
            self.next = self.next.wrapping_add(1);
            match memory {
                Local::None => {}
                memory => return Some(memory),
            }
        }
        None
    }
}

impl Drop for Retired {
    fn drop(&mut self) {
        aside::drop_each(self, Self::next_memory, |all| all.queue.retired.0.store(all.retire, Ordering::Release));
    }
}

#[cfg(all(test, loom))]
mod model {
    use loom::sync::Arc as Shared;
    use loom::thread;

    use super::*;

    fn a_queue(depth: u32) -> Arc<SendQueue> {
        Arc::new(SendQueue::new(depth))
    }

    fn request(wr_id: u64) -> SendSlot {
        SendSlot { local: Local::Memory(wr_id), wr_id, ..SendSlot::default() }
    }

    /// Posts a request; its count, if there is room. `device` runs between its beginning and its end.
    fn post(queue: &SendQueue, wr_id: u64, device: impl FnOnce(u32)) -> Option<u32> {
        let index = queue.next()?;
        // SAFETY: the next one, and each model has one poster.
        unsafe { queue.begin(index, request(wr_id)) };
        device(index);
        queue.end(index);
        Some(index)
    }

    /// Takes the request of a completion as a completion queue does: by the short way, else by the long one, and then with
    /// the memory of those before it. What was taken, in order.
    fn poll(queue: &Arc<SendQueue>, index: u32) -> Result<Vec<u64>, Meant> {
        let number = |memory| if let Local::Memory(number) = memory { number } else { panic!("no memory") };
        let mut memory = Local::None;
        // SAFETY: the oldest one, and each model has one poller.
        if queue.is_oldest(index)
            && let Some((wr_id, ..)) = unsafe { queue.take_oldest(index, &mut memory) }
        {
            assert_eq!(number(memory), wr_id);
            return Ok(vec![wr_id]);
        }
        match queue.meaning(index) {
            Meant::UnderWay => {}
            other => return Err(other),
        }
        let taken = take(queue, &Hub, index, true);
        assert_eq!(number(taken.local), taken.wr_id);
        let mut all = Vec::new();
        if let Some(mut before) = taken.unsignaled {
            while let Some(memory) = before.next_memory() {
                all.push(number(memory));
            }
        }
        all.push(taken.wr_id);
        Ok(all)
    }

    /// What a device tells at any moment, before it was handed a request too, is believed once the request is handed over,
    /// and then gives what was posted; its slot is used again after that only.
    #[test]
    fn a_completion_at_any_moment_gives_what_was_posted() {
        loom::model(|| {
            let queue = a_queue(1);
            let poller = thread::spawn({
                let queue = queue.clone();
                move || poll(&queue, 0).ok()
            });
            assert_eq!(post(&queue, 10, |_| ()), Some(0));
            let early = post(&queue, 11, |_| ());
            let taken = poller.join().unwrap();
            assert!(taken.is_none() || taken == Some(vec![10]), "{taken:?}");
            assert!(early.is_none() || taken.is_some(), "a slot that was not free");
            if taken.is_none() {
                assert_eq!(poll(&queue, 0), Ok(vec![10]));
            }
            assert_eq!(early.or_else(|| post(&queue, 11, |_| ())), Some(1));
            assert_eq!(poll(&queue, 0), Err(Meant::Nothing), "twice");
            assert_eq!(poll(&queue, 1), Ok(vec![11]));
        });
    }

    /// A device completes what it was handed before the poster hears of it: the completion means that request from then on,
    /// at first one that is being posted.
    #[test]
    fn a_completion_before_the_end_is_not_lost() {
        loom::model(|| {
            let queue = a_queue(2);
            let told = Shared::new(AtomicU32::new(0));
            let poller = thread::spawn({
                let (queue, told) = (queue.clone(), told.clone());
                move || {
                    let count = told.load(Ordering::Acquire);
                    let polled = count.checked_sub(1).map(|index| poll(&queue, index));
                    assert_ne!(polled, Some(Err(Meant::Nothing)), "lost");
                    polled.and_then(Result::ok).unwrap_or_default()
                }
            });
            for wr_id in [10, 11] {
                post(&queue, wr_id, |index| told.store(index + 1, Ordering::Release));
            }
            let mut taken = poller.join().unwrap();
            if taken.len() < 2 {
                taken.extend(poll(&queue, 1).unwrap());
            }
            assert_eq!(taken, [10, 11]);
        });
    }

    /// What the device refused comes back to the poster, though the device may say that it completed; a completion never
    /// takes it, and means the request that is posted in its stead at most.
    #[test]
    fn what_is_refused_comes_back_to_the_poster_alone() {
        loom::model(|| {
            let queue = a_queue(1);
            let poller = thread::spawn({
                let queue = queue.clone();
                move || poll(&queue, 0).unwrap_or_default()
            });
            let refuse = |wr_id| {
                let index = queue.next().unwrap();
                // SAFETY: the next one; this thread is the only poster, and did not end it.
                let back = unsafe {
                    queue.begin(index, request(wr_id));
                    queue.back(index)
                };
                assert!(matches!(back.local, Local::Memory(number) if number == wr_id));
                index
            };
            let index = refuse(10);
            assert_eq!(post(&queue, 11, |_| ()), Some(index));
            let taken = poller.join().unwrap();
            let taken = if taken.is_empty() { poll(&queue, index).unwrap() } else { taken };
            assert_eq!(taken, [11]);
            let index = refuse(12);
            assert_eq!(poll(&queue, index), Err(Meant::Nothing), "not to wait for");
        });
    }

    /// Slots of requests that were not signaled are the poster's again once their memory is taken out.
    #[test]
    fn slots_come_back_with_the_memory_of_unsignaled_requests_taken() {
        loom::model(|| {
            let queue = a_queue(2);
            assert_eq!((post(&queue, 10, |_| ()), post(&queue, 11, |_| ())), (Some(0), Some(1)));
            let poller = thread::spawn({
                let queue = queue.clone();
                move || poll(&queue, 1)
            });
            for wr_id in [12, 13] {
                while post(&queue, wr_id, |_| ()).is_none() {
                    thread::yield_now();
                }
            }
            assert_eq!(poller.join().unwrap(), Ok(vec![10, 11]));
            assert_eq!(poll(&queue, 3), Ok(vec![12, 13]));
        });
    }
}
