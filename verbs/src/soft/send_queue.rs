//! Send requests between posting and retiring: a ring that the poster fills and the poller empties.

use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::Arc;

use crate::aside;
use crate::memory::{Local, RegionShared, Window};
use crate::qp::{Borrowed, Op, Target};
use crate::status::{WcOpcode, WcStatus};
use crate::sync::{AtomicU32, Ordering};
use crate::types::{Qpn, Rkey};
use crate::wc::{Current, Unsignaled, WorkCompletion};

/// One send request.
#[derive(Debug)]
pub(crate) struct SendSlot {
    pub(crate) local: Local,
    pub(crate) wr_id: u64,
    pub(crate) opcode: WcOpcode,
    pub(crate) status: WcStatus,
    pub(crate) byte_len: u32,
    /// Whether it completes: it was signaled, or failed.
    pub(crate) completes: bool,
    /// What is left to do, of a request that could not be carried out when posted.
    pub(crate) stalled: Option<Stalled>,
}

/// A request that waits.
#[derive(Debug)]
pub(crate) struct Stalled {
    pub(crate) op: Op,
    pub(crate) range: Option<Range<usize>>,
    pub(crate) inline: Option<Inline>,
    /// Where a datagram goes.
    pub(crate) to: Option<Target>,
    /// The window that is bound, and the region that it is bound to.
    pub(crate) bind: Option<(Window, Arc<RegionShared>)>,
    pub(crate) imm: Option<u32>,
    pub(crate) invalidate: Option<Rkey>,
    pub(crate) solicited: bool,
    pub(crate) fenced: bool,
}

/// A copy of inline data; short data is in the request itself, so that nothing is allocated for it.
#[derive(Debug)]
pub(crate) enum Inline {
    Short { len: u8, bytes: [u8; SHORT] },
    Long(Box<[u8]>),
}

/// The ring. `retired <= ready <= posted`, as running counts.
#[derive(Debug)]
pub(crate) struct SendQueue {
    slots: Box<[UnsafeCell<SendSlot>]>,
    mask: u32,
    depth: u32,
    /// Written by the poster.
    posted: Counter,
    /// End of the last request that completes. Written by whoever carries requests out.
    ready: Counter,
    /// Written by the poller.
    retired: Counter,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Counter(AtomicU32);

// SAFETY: a slot belongs to the poster from `retired` on, to whoever carries it out from `posted` on (poster or holder of
// the progress lock), and to the poller from `ready` on; the counters are stored with release and loaded with acquire.
unsafe impl Sync for SendQueue {}

impl SendQueue {
    pub(crate) fn new(depth: u32) -> Self {
        let count = depth.next_power_of_two();
        SendQueue {
            slots: (0..count).map(|_| UnsafeCell::new(SendSlot::empty())).collect(),
            mask: count - 1,
            depth,
            posted: Counter::default(),
            ready: Counter::default(),
            retired: Counter::default(),
        }
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    #[inline(always)]
    pub(crate) fn posted(&self) -> u32 {
        self.posted.0.load(Ordering::Acquire)
    }

    /// Requests that are retired, as a running count. Before anything is posted it tells where the counts begin.
    pub(crate) fn retired(&self) -> u32 {
        self.retired.0.load(Ordering::Acquire)
    }

    /// True if there is no slot for another request. For the poster.
    #[inline(always)]
    pub(crate) fn is_full(&self, posted: u32) -> bool {
        posted.wrapping_sub(self.retired.0.load(Ordering::Acquire)) >= self.depth
    }

    #[inline(always)]
    pub(crate) fn publish(&self, posted: u32) {
        self.posted.0.store(posted, Ordering::Release);
    }

    /// Makes everything before `end` visible to the poller.
    #[inline(always)]
    pub(crate) fn complete(&self, end: u32) {
        self.ready.0.store(end, Ordering::Release);
    }

    /// True if a completion waits. For the poller.
    #[inline(always)]
    pub(crate) fn has_completion(&self) -> bool {
        self.ready.0.load(Ordering::Acquire) != self.retired.0.load(Ordering::Relaxed)
    }

    /// Number of completions that wait, counted up to `limit`. For the poller.
    pub(crate) fn waiting(&self, limit: u32) -> u32 {
        let (mut index, end) = (self.retired.0.load(Ordering::Relaxed), self.ready.0.load(Ordering::Acquire));
        let mut count = 0;
        while index != end && count < limit {
            // SAFETY: the poller's own, between `retired` and `ready`.
            count += u32::from(unsafe { self.slot(index) }.completes);
            index = index.wrapping_add(1);
        }
        count
    }

    /// The slot of `index`.
    ///
    /// # Safety
    /// The caller is the one to whom the index belongs: see the comment on `Sync`.
    #[inline(always)]
    #[allow(clippy::mut_from_ref, reason = "the contract above makes the access exclusive")]
    pub(crate) unsafe fn slot(&self, index: u32) -> &mut SendSlot {
        // SAFETY: exclusive by the contract; the mask keeps the index within the slots.
        unsafe { &mut *self.slots.get_unchecked((index & self.mask) as usize).get() }
    }

    /// Takes the next completion, if there is one. For the poller, one at a time.
    #[inline]
    pub(crate) fn poll(self: &Arc<Self>, qpn: Qpn, into: &mut Current) -> bool {
        let end = self.ready.0.load(Ordering::Acquire);
        let start = self.retired.0.load(Ordering::Relaxed);
        if start == end {
            return false;
        }
        let mut index = start;
        let mut has_memory = false;
        loop {
            // SAFETY: between `retired` and `ready`, so the poller's.
            let slot = unsafe { self.slot(index) };
            if slot.completes || index.wrapping_add(1) == end {
                break;
            }
            has_memory |= !matches!(slot.local, Local::None);
            index = index.wrapping_add(1);
        }
        // SAFETY: as above.
        let slot = unsafe { self.slot(index) };
        into.wc = slot.completion(qpn);
        into.memory = std::mem::take(&mut slot.local);
        let next = index.wrapping_add(1);
        if has_memory {
            let retired = Retired { queue: self.clone(), next: start, end: index, retire: next };
            into.unsignaled = Some(Unsignaled::Soft(retired));
        } else {
            self.retired.0.store(next, Ordering::Release);
        }
        true
    }
}

impl Stalled {
    /// What the request borrowed when it was posted, kept here since.
    pub(crate) fn borrowed(&self) -> Borrowed<'_> {
        Borrowed {
            inline: self.inline.as_ref().map(Inline::bytes),
            to: self.to.as_ref(),
            bind: self.bind.as_ref().map(|(window, region)| (window, region)),
        }
    }
}

impl Inline {
    pub(crate) fn copy(data: &[u8]) -> Self {
        if data.len() > SHORT {
            return Inline::Long(data.into());
        }
        let mut bytes = [0; SHORT];
        bytes[..data.len()].copy_from_slice(data);
        Inline::Short { len: data.len() as u8, bytes }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Inline::Short { len, bytes } => &bytes[..usize::from(*len)],
            Inline::Long(bytes) => bytes,
        }
    }
}

impl SendSlot {
    fn empty() -> Self {
        SendSlot {
            local: Local::None,
            wr_id: 0,
            opcode: WcOpcode::SEND,
            status: WcStatus::SUCCESS,
            byte_len: 0,
            completes: false,
            stalled: None,
        }
    }

    #[inline(always)]
    fn completion(&self, qpn: Qpn) -> WorkCompletion {
        WorkCompletion {
            wr_id: self.wr_id,
            status: self.status,
            opcode: self.opcode,
            qpn,
            byte_len: self.byte_len,
            imm: None,
            invalidated: None,
            src_qpn: None,
            vendor_err: 0,
        }
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
            let slot = unsafe { self.queue.slot(self.next) };
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
        aside::drop_each(self, Self::next_memory, |all| all.queue.retired.0.store(all.retire, Ordering::Release));
    }
}

/// Inline data that is kept in place: a cache line, as much as most devices take.
const SHORT: usize = 64;

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::ptr::NonNull;
    use std::sync::mpsc::{Sender, channel};
    use std::time::Duration;

    use crate::{Access, Context};

    /// Owns memory, and panics as it is dropped unless it has whom to tell.
    struct Owner(Vec<u8>, Option<Sender<()>>);

    impl Drop for Owner {
        fn drop(&mut self) {
            self.1.as_ref().expect("as a test wants it").send(()).unwrap();
        }
    }

    #[test]
    fn a_completion_comes_once_though_an_owner_of_memory_before_it_panics() {
        let ctx = Context::open("soft0").unwrap();
        let (pd, mut cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(16).unwrap());
        let build = || pd.rc(&cq).send_depth(4).build().unwrap();
        let (a, b) = (build(), build());
        let (at_a, at_b) = (a.address(), b.address());
        let (mut a, _b) = (a.connect(&at_b).unwrap(), b.connect(&at_a).unwrap());
        let region = pd.expose(64, Access::REMOTE_WRITE).unwrap();
        let owned = |tell| {
            let mut owner = Box::new(Owner(vec![0; 64], tell));
            let base = NonNull::new(owner.0.as_mut_ptr()).unwrap();
            // SAFETY: the owner keeps its bytes, which nobody else touches.
            unsafe { pd.register_raw(base, 64, owner) }.unwrap()
        };
        let (tell, told) = channel();
        for round in 0..4 {
            a.write(owned(None), region.remote(0..64)).post().unwrap();
            a.write(owned(Some(tell.clone())), region.remote(0..64)).post().unwrap();
            a.write(pd.alloc(64).unwrap(), region.remote(0..64)).id(round).signaled().post().unwrap();
            let done = cq.poll().unwrap().expect("a completion");
            assert_eq!(done.wr_id(), round);
            assert!(catch_unwind(AssertUnwindSafe(|| drop(done))).is_err());
            assert!(cq.poll().unwrap().is_none(), "it came");
            told.recv_timeout(Duration::from_secs(20)).expect("the other owner is dropped");
        }
    }
}
