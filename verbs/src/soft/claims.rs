//! Claims on receives that several senders share (shared receive queues, datagrams).
//!
//! A sender takes the next receive by one compare-and-swap of the head, which carries who took the last. Before taking
//! the next one it writes down who took the one before, so that every claim has a name even if its taker died at once:
//! the owner can always tell what a dead peer left unfinished.

use std::ptr::NonNull;

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// A claim table in the shared mapping: the head and, per receive, the last claimer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claims {
    head: NonNull<AtomicU64>,
    takers: NonNull<AtomicU32>,
    mask: u32,
}

// SAFETY: it names atomics.
unsafe impl Send for Claims {}
// SAFETY: as above.
unsafe impl Sync for Claims {}

/// Why nothing was claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoClaim {
    /// No receive is posted.
    Empty,
    /// The owner closed the queue.
    Closed,
}

impl Claims {
    /// # Safety
    /// `head` and the `count` words at `takers` stay mapped as long as this value or a copy is used. `count` is a power
    /// of two.
    pub(crate) unsafe fn new(head: NonNull<AtomicU64>, takers: NonNull<AtomicU32>, count: u32) -> Self {
        debug_assert!(count.is_power_of_two());
        Claims { head, takers, mask: count - 1 }
    }

    fn head(&self) -> &AtomicU64 {
        // SAFETY: mapped, see `new`.
        unsafe { self.head.as_ref() }
    }

    fn taker(&self, index: u32) -> &AtomicU32 {
        // SAFETY: the mask keeps the index below the number of words, which are mapped (`new`).
        unsafe { self.takers.add((index & self.mask) as usize).as_ref() }
    }

    /// Takes the next receive for `me` (not 0, below 2^31): its running number, and what `posted` said of it.
    ///
    /// `posted` says of a running number whether such a receive is posted. What it reads of the receive is right if the
    /// claim succeeds: its place is used again only after the claim.
    #[inline]
    pub(crate) fn claim<R>(&self, me: u32, mut posted: impl FnMut(u32) -> Option<R>) -> Result<(u32, R), NoClaim> {
        let mut word = self.head().load(Ordering::Acquire);
        loop {
            let (index, last) = (word as u32, (word >> 32) as u32);
            if last & CLOSED != 0 {
                return Err(NoClaim::Closed);
            }
            let Some(receive) = posted(index) else { return Err(NoClaim::Empty) };
            if last != 0 {
                // Name the one before: its taker may have died before it could. `index - 1` is written only while the
                // head still says `index`, by whoever moves on next; all write the same.
                self.taker(index.wrapping_sub(1)).store(last, Ordering::Relaxed);
            }
            let next = u64::from(index.wrapping_add(1)) | u64::from(me) << 32;
            match self.head().compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok((index, receive)),
                Err(now) => word = now,
            }
        }
    }

    /// Number of claims so far.
    pub(crate) fn count(&self) -> u32 {
        self.head().load(Ordering::Acquire) as u32
    }

    /// Who claimed receive `index`, which must be below [`count`](Claims::count).
    pub(crate) fn taker_of(&self, index: u32) -> u32 {
        let word = self.head().load(Ordering::Acquire);
        if word as u32 == index.wrapping_add(1) {
            return (word >> 32) as u32 & !CLOSED;
        }
        self.taker(index).load(Ordering::Acquire)
    }

    /// Lets nobody claim any more.
    pub(crate) fn close(&self) {
        self.head().fetch_or(u64::from(CLOSED) << 32, Ordering::AcqRel);
    }
}

const CLOSED: u32 = 1 << 31;

#[cfg(all(test, loom))]
mod model {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// Two senders share three receives: each is claimed once, and its taker is known.
    #[test]
    fn each_receive_has_one_taker_with_a_name() {
        loom::model(|| {
            let shared = Arc::new((
                AtomicU64::new(0),
                [AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0)],
            ));
            let view = |shared: &(AtomicU64, [AtomicU32; 4])| {
                // SAFETY: the `Arc` keeps the words; 4 is a power of two.
                unsafe { Claims::new(NonNull::from(&shared.0), NonNull::from(&shared.1[0]), 4) }
            };
            let theirs = shared.clone();
            let other = thread::spawn(move || {
                let claims = view(&theirs);
                [claims.claim(7, |i| (i < 3).then_some(())), claims.claim(7, |i| (i < 3).then_some(()))]
            });
            let claims = view(&shared);
            let mine = [claims.claim(9, |i| (i < 3).then_some(())), claims.claim(9, |i| (i < 3).then_some(()))];
            let theirs = other.join().unwrap();
            let taken = |list: [Result<(u32, ()), NoClaim>; 2]| {
                list.iter().filter_map(|claim| claim.ok()).map(|(index, ())| index).collect::<Vec<_>>()
            };
            let (mine, theirs) = (taken(mine), taken(theirs));
            assert_eq!(mine.len() + theirs.len(), 3);
            for index in 0..3 {
                assert_eq!(claims.taker_of(index), if mine.contains(&index) { 9 } else { 7 });
                assert!(mine.contains(&index) != theirs.contains(&index));
            }
        });
    }

    /// The owner asks for takers while a sender claims: every receive that it counts has the right name.
    #[test]
    fn the_owner_knows_each_taker_at_once() {
        loom::model(|| {
            let shared = Arc::new((AtomicU64::new(0), [AtomicU32::new(0), AtomicU32::new(0)]));
            let view = |shared: &(AtomicU64, [AtomicU32; 2])| {
                // SAFETY: the `Arc` keeps the words; 2 is a power of two.
                unsafe { Claims::new(NonNull::from(&shared.0), NonNull::from(&shared.1[0]), 2) }
            };
            let theirs = shared.clone();
            let sender = thread::spawn(move || {
                let claims = view(&theirs);
                [claims.claim(5, |_| Some(())), claims.claim(6, |_| Some(()))]
            });
            let claims = view(&shared);
            let counted = claims.count();
            for index in 0..counted {
                assert_eq!(claims.taker_of(index), 5 + index);
            }
            claims.close();
            let sealed = claims.count();
            for (index, claim) in sender.join().unwrap().into_iter().enumerate() {
                let before = index < sealed as usize;
                assert_eq!(claim, if before { Ok((index as u32, ())) } else { Err(NoClaim::Closed) });
            }
            assert_eq!(claims.count(), sealed);
        });
    }
}
