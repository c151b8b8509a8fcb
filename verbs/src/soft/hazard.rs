//! Access guards: how the owner of memory learns that an initiator has left it.
//!
//! An initiator makes its word odd, then checks the key or gate, then touches the memory, then makes the word even. The
//! owner withdraws the key or gate, then waits until the word is even or has moved on. Each side's store is ordered
//! before its load ([`barrier`](super::barrier), or a fence), so one of them sees the other.

use crate::sync::{AtomicU32, Ordering, fence};

/// The initiator's end. One per queue pair; used by one thread at a time.
#[derive(Debug)]
pub(crate) struct Hazard {
    count: u32,
}

impl Hazard {
    pub(crate) const fn new() -> Self {
        Hazard { count: 0 }
    }

    /// Enters, with a full fence: for accesses whose owner does not pay for a heavy barrier.
    #[inline(always)]
    pub(crate) fn enter(&mut self, word: &AtomicU32) {
        self.step();
        if cfg!(all(target_arch = "x86_64", not(loom))) {
            // A locked instruction is a fence here, and costs less than a store and a fence.
            word.swap(self.count, Ordering::SeqCst);
        } else {
            word.store(self.count, Ordering::Relaxed);
            fence(Ordering::SeqCst);
        }
    }

    /// Enters without a fence; the caller orders with [`barrier::light`](super::barrier::light).
    #[inline(always)]
    pub(crate) fn enter_light(&mut self, word: &AtomicU32) {
        self.step();
        word.store(self.count, Ordering::Relaxed);
    }

    /// The next odd number: also after an access that a panic ended.
    #[inline(always)]
    fn step(&mut self) {
        self.count = self.count.wrapping_add(1 + (self.count & 1));
    }

    /// Leaves.
    #[inline(always)]
    pub(crate) fn leave(&mut self, word: &AtomicU32) {
        self.count = self.count.wrapping_add(1);
        word.store(self.count, Ordering::Release);
    }
}

/// A glance at an initiator's word: is it still inside the access it was in at first sight?
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sighting(u32);

impl Sighting {
    pub(crate) fn take(word: &AtomicU32) -> Self {
        Sighting(word.load(Ordering::Acquire))
    }

    /// True once the access seen is over.
    pub(crate) fn is_over(self, word: &AtomicU32) -> bool {
        self.0 & 1 == 0 || word.load(Ordering::Acquire) != self.0
    }
}

#[cfg(all(test, loom))]
mod model {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::sync::UnsafeCell;

    /// After withdrawing and waiting, the owner touches the memory alone.
    #[test]
    fn owner_and_initiator_never_meet() {
        loom::model(|| {
            let shared = Arc::new((AtomicU32::new(0), AtomicU32::new(1), UnsafeCell::new(0u32)));
            let theirs = shared.clone();
            let initiator = thread::spawn(move || {
                let (word, key, memory) = &*theirs;
                let mut hazard = Hazard::new();
                hazard.enter(word);
                if key.load(Ordering::Acquire) == 1 {
                    // SAFETY: the key is live and the hazard set, so the owner waits.
                    memory.with_mut(|m| unsafe { *m += 1 });
                }
                hazard.leave(word);
            });
            let (word, key, memory) = &*shared;
            key.store(0, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            let seen = Sighting::take(word);
            while !seen.is_over(word) {
                thread::yield_now();
            }
            // SAFETY: the key is withdrawn and no access is under way.
            memory.with_mut(|m| unsafe { *m += 1 });
            initiator.join().unwrap();
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn who_enters_after_a_panic_inside_is_seen_inside() {
        let (mut hazard, word) = (Hazard::new(), AtomicU32::new(0));
        hazard.enter(&word);
        let first = Sighting::take(&word);
        hazard.enter_light(&word);
        let second = Sighting::take(&word);
        assert!(first.is_over(&word) && !second.is_over(&word));
        hazard.leave(&word);
        assert!(second.is_over(&word) && Sighting::take(&word).is_over(&word));
    }
}
