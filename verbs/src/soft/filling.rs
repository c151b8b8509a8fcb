//! Receives that this process itself writes into: for a queue pair of its own, for the network, or for a peer that can not.
//!
//! A receive is completed by an entry in memory that every linked process may write. One that lies could so have the owner hand
//! memory to its program while somebody here is still at it. Whoever writes a receive within this process marks it meanwhile, in
//! memory that is this process's alone, and the owner takes none that is marked.

use std::sync::atomic::AtomicBool;

use super::barrier;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// How far a queue's receives are taken, and the marks of those that are not, each at its place.
#[derive(Debug)]
pub(crate) struct Filling {
    marks: Box<[AtomicU64]>,
    /// Receives that the owner has taken, as a running count; written by it alone.
    retired: AtomicU32,
    /// Whether anybody marks: else the owner looks at none.
    is_used: AtomicBool,
    /// Whether the owner is known to have seen that.
    is_allowed: AtomicBool,
}

impl Filling {
    /// For `count` places, a power of two.
    pub(crate) fn new(count: u32) -> Self {
        let marks = (0..count).map(|_| AtomicU64::new(0)).collect();
        // Without the system's barrier the owner would have to look for each receive whether anybody has begun to mark.
        let always = !barrier::registered();
        let (is_used, is_allowed) = (AtomicBool::new(always), AtomicBool::new(always));
        Filling { marks, retired: AtomicU32::new(0), is_used, is_allowed }
    }

    /// From now on receives may be marked.
    pub(crate) fn allow(&self) {
        if !self.is_allowed.load(Ordering::Acquire) {
            self.is_used.store(true, Ordering::Relaxed);
            barrier::heavy();
            self.is_allowed.store(true, Ordering::Release);
        }
    }

    /// Marks a posted receive. False if it, or one that has its place after it, is taken or marked: then nothing may be written
    /// to it. Once that is [allowed](Filling::allow).
    #[inline]
    pub(super) fn begin(&self, index: u32) -> bool {
        let is_taken = |mark| mark & TAKEN != 0 && (mark as u32).wrapping_sub(index) < u32::MAX / 2;
        let marked = |mark| (mark & FILLING == 0 && !is_taken(mark)).then_some(FILLING | u64::from(index));
        if self.at(index).fetch_update(Ordering::SeqCst, Ordering::Relaxed, marked).is_err() {
            return false;
        }
        // The owner may have taken it before it looked at marks.
        fence(Ordering::SeqCst);
        let is_there = index.wrapping_sub(self.retired()) < u32::MAX / 2;
        if !is_there {
            self.end(index);
        }
        is_there
    }

    /// Takes the mark away: nothing is written to the receive any more.
    #[inline]
    pub(super) fn end(&self, index: u32) {
        self.at(index).store(0, Ordering::Release);
    }

    /// For the owner, before it takes a receive: false if somebody is at it.
    #[inline(always)]
    pub(crate) fn take(&self, index: u32) -> bool {
        !self.is_used.load(Ordering::Relaxed) || self.take_unmarked(index)
    }

    #[inline]
    fn take_unmarked(&self, index: u32) -> bool {
        let taken = |mark| (mark & FILLING == 0).then_some(TAKEN | u64::from(index));
        self.at(index).fetch_update(Ordering::AcqRel, Ordering::Acquire, taken).is_ok()
    }

    /// Counts a receive as retired that its owner has taken: its memory is the owner's alone once this returns. It waits for who
    /// began to mark receives meanwhile, which takes no longer than a copy.
    #[inline(always)]
    pub(crate) fn retire(&self, index: u32) {
        self.retired.store(index.wrapping_add(1), Ordering::Release);
        barrier::light(true);
        if self.is_used.load(Ordering::Relaxed) && self.at(index).load(Ordering::Relaxed) != TAKEN | u64::from(index) {
            self.wait(index);
        }
    }

    #[cold]
    fn wait(&self, index: u32) {
        fence(Ordering::SeqCst);
        while self.at(index).load(Ordering::Acquire) == FILLING | u64::from(index) {
            std::thread::yield_now();
        }
    }

    /// Receives that the owner has taken, as a running count.
    #[inline(always)]
    pub(crate) fn retired(&self) -> u32 {
        self.retired.load(Ordering::Acquire)
    }

    #[inline(always)]
    fn at(&self, index: u32) -> &AtomicU64 {
        &self.marks[index as usize & (self.marks.len() - 1)]
    }
}

/// Of a mark, above the running number of the receive: somebody is at it, or the owner has taken it.
const FILLING: u64 = 1 << 32;
const TAKEN: u64 = 1 << 33;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_marked_is_not_taken_and_what_is_taken_is_not_marked() {
        let filling = Filling::new(4);
        filling.allow();
        assert!(filling.begin(1) && !filling.begin(1) && !filling.take(1));
        assert!(filling.take(2) && !filling.begin(2));
        // What had the place before is taken too, and its claim does not take that mark away.
        assert!(!filling.begin(2_u32.wrapping_sub(4)) && !filling.begin(2));
        // Its place has another life, which began while somebody is at it only if that is a lie.
        assert!(filling.begin(2 + 4) && !filling.begin(1 + 4) && !filling.take(1 + 4));
        filling.end(1);
        assert!(filling.take(1) && filling.begin(1 + 4));
        filling.retire(1);
        assert_eq!(filling.retired(), 2);
    }

    #[test]
    fn nobody_looks_before_anybody_marks() {
        let filling = Filling::new(2);
        let used = !barrier::registered();
        assert!(filling.begin(0));
        assert_eq!(filling.take(0), !used);
        filling.allow();
        assert!(!filling.take(0));
        filling.end(0);
        // What was taken and retired before is not marked after.
        let filling = Filling::new(2);
        assert!(filling.take(0));
        filling.retire(0);
        filling.allow();
        assert!(!filling.begin(0) && filling.begin(1));
    }
}

#[cfg(all(test, loom))]
mod model {
    use std::sync::Arc;

    use loom::thread;

    use super::*;
    use crate::sync::UnsafeCell;

    /// The owner and whoever fills never meet in a receive, whatever the owner is told.
    #[test]
    fn owner_and_filler_never_meet() {
        loom::model(|| {
            let marks = Box::new([AtomicU64::new(0)]);
            let [is_used, is_allowed] = [true, true].map(AtomicBool::new);
            let filling = Arc::new(Filling { marks, retired: AtomicU32::new(0), is_used, is_allowed });
            let shared = loom::sync::Arc::new(UnsafeCell::new(0u32));
            let (theirs, memory) = (filling.clone(), shared.clone());
            let filler = thread::spawn(move || {
                if theirs.begin(0) {
                    // SAFETY: the receive is marked, so the owner does not take it.
                    memory.with_mut(|memory| unsafe { *memory += 1 });
                    theirs.end(0);
                }
            });
            if filling.take(0) {
                filling.retire(0);
                // SAFETY: it is taken, so nobody marks it.
                shared.with_mut(|memory| unsafe { *memory += 1 });
            }
            filler.join().unwrap();
        });
    }
}
