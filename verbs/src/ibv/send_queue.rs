//! Send requests between posting and retiring: a ring that the poster fills and the poller empties. The device completes
//! them in order; a completion retires those before it that were not signaled.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::ah::Ah;
use super::hub::Hub;
use super::mw::Mw;
use super::qp::QpShared;
use crate::memory::Local;
use crate::status::WcOpcode;
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
#[derive(Debug)]
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

#[derive(Debug, Default)]
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
            slots: (0..count).map(|_| UnsafeCell::default()).collect(),
            mask: count - 1,
            depth,
            posting: Counter::default(),
            posted: Counter::default(),
            retired: Counter::default(),
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
        unsafe { self.cell(index).get().write(request) };
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
        std::mem::take(unsafe { &mut *self.cell(index).get() })
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
        let slot = self.cell(index).get();
        // SAFETY: between `retired` and `posted`, so the poller's. The memory moves: the slot keeps none, and `to` had none
        // that would have to be dropped.
        let taken = unsafe {
            if !matches!((*slot).held, Held::Nothing) {
                return None;
            }
            (&raw const (*slot).local).copy_to_nonoverlapping(to, 1);
            std::ptr::write(&raw mut (*slot).local, Local::None);
            ((*slot).wr_id, (*slot).opcode, (*slot).len)
        };
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

    /// The slot of a request that is under way.
    ///
    /// # Safety
    /// The caller is the poller, `index` lies between `retired` and `posted`, and no other reference to the slot is alive.
    #[inline(always)]
    #[allow(clippy::mut_from_ref, reason = "the contract above makes the access exclusive")]
    unsafe fn slot(&self, index: u32) -> &mut SendSlot {
        // SAFETY: exclusive by the contract.
        unsafe { &mut *self.cell(index).get() }
    }

    #[inline(always)]
    fn cell(&self, index: u32) -> &UnsafeCell<SendSlot> {
        // SAFETY: the mask keeps the index within the slots.
        unsafe { self.slots.get_unchecked((index & self.mask) as usize) }
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
pub(super) fn take(qp: &Arc<QpShared>, hub: &Hub, index: u32, success: bool) -> Taken {
    let queue = &qp.send;
    let start = queue.retired.0.load(Ordering::Relaxed);
    let mut at = start;
    let mut has_memory = false;
    while at != index {
        // SAFETY: between `retired` and `index`, which is below `posted`, so the poller's.
        let slot = unsafe { queue.slot(at) };
        has_memory |= !matches!(slot.local, Local::None);
        if !matches!(slot.held, Held::Nothing) {
            // A later request that failed does not tell of this one; those in order before it were carried out.
            release(std::mem::take(&mut slot.held), hub, true);
        }
        at = at.wrapping_add(1);
    }
    // SAFETY: as above.
    let slot = unsafe { queue.slot(index) };
    if !matches!(slot.held, Held::Nothing) {
        release(std::mem::take(&mut slot.held), hub, success);
    }
    let (local, wr_id, opcode, len) = (std::mem::take(&mut slot.local), slot.wr_id, slot.opcode, slot.len);
    let next = index.wrapping_add(1);
    let unsignaled = if has_memory {
        Some(Retired { qp: qp.clone(), next: start, end: index, retire: next })
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
    qp: Arc<QpShared>,
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
            let slot = unsafe { self.qp.send.slot(self.next) };
            self.next = self.next.wrapping_add(1);
            match std::mem::take(&mut slot.local) {
                Local::None => {}
                memory => return Some(memory),
            }
        }
        None
    }
}

impl Drop for Retired {
    fn drop(&mut self) {
        while self.next_memory().is_some() {}
        self.qp.send.retired.0.store(self.retire, Ordering::Release);
    }
}
