//! Claims on receives that several senders share (shared receive queues, datagrams).
//!
//! A sender takes the next receive by one compare-and-swap of the head, which carries who took the last. Before taking
//! the next one it writes down who took the one before, so that every claim has a name even if its taker died at once:
//! the owner can always tell what a dead peer left unfinished. A name stands with the number it is for, and only an older
//! one is replaced: a sender that was held up between its look at the head and its writing changes nothing.

use std::ptr::NonNull;

use crate::sync::{AtomicU64, Ordering};

/// A claim table in the shared mapping: the head and, per receive, the last claimer with the number of the claim.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claims {
    head: NonNull<AtomicU64>,
    takers: NonNull<Taker>,
    mask: u32,
}

// SAFETY: it names atomics.
unsafe impl Send for Claims {}
// SAFETY: as above.
unsafe impl Sync for Claims {}

/// Who claimed a receive: the claim's number in the high half, the claimer in the low half; 0 while there was no claim.
pub(crate) type Taker = AtomicU64;

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
    pub(crate) unsafe fn new(head: NonNull<AtomicU64>, takers: NonNull<Taker>, count: u32) -> Self {
        debug_assert!(count.is_power_of_two());
        Claims { head, takers, mask: count - 1 }
    }

    fn head(&self) -> &AtomicU64 {
        // SAFETY: mapped, see `new`.
        unsafe { self.head.as_ref() }
    }

    fn taker(&self, index: u32) -> &Taker {
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
                // Its taker may have died before anybody could.
                self.name(index.wrapping_sub(1), last);
            }
            let next = u64::from(index.wrapping_add(1)) | u64::from(me) << 32;
            match self.head().compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok((index, receive)),
                Err(now) => word = now,
            }
        }
    }

    /// Writes down who claimed receive `index`, unless that or more is written already.
    fn name(&self, index: u32, taker: u32) {
        let place = self.taker(index);
        let there = place.load(Ordering::Relaxed);
        let is_older = there as u32 == 0 || index.wrapping_sub((there >> 32) as u32).wrapping_sub(1) < u32::MAX / 2;
        if is_older {
            // Where another was faster it wrote the same, or what stands for a later claim: before the head moves past
            // the next claim the name is there, and before it has moved on by the table's size nothing replaces it.
            let named = u64::from(index) << 32 | u64::from(taker);
            let _ = place.compare_exchange(there, named, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Number of claims so far.
    pub(crate) fn count(&self) -> u32 {
        self.head().load(Ordering::Acquire) as u32
    }

    /// Who claimed receive `index`, which must be below [`count`](Claims::count); 0 if that was more claims ago than the
    /// table has places.
    pub(crate) fn taker_of(&self, index: u32) -> u32 {
        let word = self.head().load(Ordering::Acquire);
        if word as u32 == index.wrapping_add(1) {
            return (word >> 32) as u32 & !CLOSED;
        }
        let there = self.taker(index).load(Ordering::Acquire);
        if (there >> 32) as u32 == index { there as u32 } else { 0 }
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
            let shared = Arc::new((AtomicU64::new(0), [Taker::new(0), Taker::new(0), Taker::new(0), Taker::new(0)]));
            let view = |shared: &(AtomicU64, [Taker; 4])| {
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

    /// A table of two places goes round while a sender is held up anywhere: the last two claims keep their names, and an
    /// older one has none but its own.
    #[test]
    fn a_sender_that_was_held_up_renames_no_later_claim() {
        loom::model(|| {
            let shared = Arc::new((AtomicU64::new(0), [Taker::new(0), Taker::new(0)]));
            let view = |shared: &(AtomicU64, [Taker; 2])| {
                // SAFETY: the `Arc` keeps the words; 2 is a power of two.
                unsafe { Claims::new(NonNull::from(&shared.0), NonNull::from(&shared.1[0]), 2) }
            };
            let claim = |claims: &Claims, me| claims.claim(me, |i| (i < 4).then_some(())).map(|(index, ())| index);
            assert_eq!(claim(&view(&shared), 3), Ok(0));
            let theirs = shared.clone();
            let late = thread::spawn(move || claim(&view(&theirs), 7));
            let claims = view(&shared);
            let mut takers = [3, 9, 9, 9];
            for _ in 1..4 {
                let _ = claim(&claims, 9);
            }
            if let Ok(index) = late.join().unwrap() {
                takers[index as usize] = 7;
            }
            assert_eq!(claims.count(), 4);
            for index in 0..4_u32 {
                let found = claims.taker_of(index);
                assert!(found == takers[index as usize] || found == 0 && index < 2, "{index}: {found}");
            }
        });
    }

    /// The owner asks for takers while a sender claims: every receive that it counts has the right name.
    #[test]
    fn the_owner_knows_each_taker_at_once() {
        loom::model(|| {
            let shared = Arc::new((AtomicU64::new(0), [Taker::new(0), Taker::new(0)]));
            let view = |shared: &(AtomicU64, [Taker; 2])| {
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
