//! Receives of one queue: what the owner keeps of each, and what senders see of it.

use std::cell::UnsafeCell;
use std::sync::Arc;

use super::block::Block;
use super::entry::RING_INLINE;
use super::home::Home;
use super::layout::{Receives, RecvPiece, RecvWqe};
use crate::error::CreateError;
use crate::memory::{Local, Sge};
use crate::sync::{AtomicU32, Ordering};

/// Posted receives as senders see them: a ring in the public mapping.
#[derive(Debug)]
pub(crate) struct WqeRing(Block<RecvWqe>);

/// What the owner keeps of a posted receive. One cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct RecvSlot {
    pub(crate) memory: Local,
    pub(crate) wr_id: u64,
    pub(crate) len: usize,
}

/// What goes with the memory of a receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) wr_id: u64,
    pub(crate) len: usize,
}

impl RecvSlot {
    /// Moves the memory to where it is wanted, once.
    #[inline(always)]
    pub(crate) fn take(&mut self, memory: &mut Local) -> Taken {
        std::mem::swap(memory, &mut self.memory);
        Taken { wr_id: self.wr_id, len: self.len }
    }

    /// Moves the memory to where it is wanted and none is, which need not be looked at.
    ///
    /// # Safety
    /// `memory` holds nothing that would have to be dropped.
    #[inline(always)]
    pub(crate) unsafe fn take_into_empty(&mut self, memory: &mut Local) {
        // SAFETY: the memory moves: what is left here is none, and what was there needs no drop, by the caller's word.
        unsafe {
            std::ptr::from_ref(&self.memory).copy_to_nonoverlapping(memory, 1);
            std::ptr::write(&raw mut self.memory, Local::None);
        }
    }
}

/// Slots that a poster fills and a poller empties, each index by one of them at a time.
#[derive(Debug)]
pub(crate) struct RecvSlots {
    slots: Box<[UnsafeCell<RecvSlot>]>,
    mask: u32,
}

// SAFETY: a slot is touched by the poster before its index is published as posted, and by the poller after, until it
// counts the index as retired; the queues' counters order the two.
unsafe impl Sync for RecvSlots {}

impl WqeRing {
    pub(crate) fn new(home: &Arc<Home>, count: u32) -> Result<Self, CreateError> {
        // SAFETY: `RecvWqe` is made of atomics.
        let block = unsafe { Block::public(home, count) };
        Ok(WqeRing(block.ok_or(CreateError::Exhausted { what: "receive queue" })?))
    }

    pub(crate) fn offset(&self) -> usize {
        self.0.offset()
    }

    pub(crate) fn count(&self) -> u32 {
        self.0.count()
    }

    /// Describes receive `index` to senders; the caller publishes the count afterwards.
    pub(crate) fn describe(&self, index: u32, memory: &Local, receives: &Receives) -> usize {
        let wqe = self.0.at(index);
        let mut total = 0;
        let pieces = memory.pieces();
        for (place, piece) in wqe.piece.iter().zip((0..pieces).filter_map(|i| memory.piece(i))) {
            place.describe(&piece);
            total += piece.len;
        }
        wqe.describe(pieces as u32, total, receives);
        if memory.is_on_gpu() {
            // What travels inside the ring is copied by the processor.
            tell_short(receives, RING_INLINE as u32);
        }
        total
    }

    /// The same for memory of one piece.
    #[inline(always)]
    pub(crate) fn describe_one(&self, index: u32, piece: &Sge, receives: &Receives) {
        let wqe = self.0.at(index);
        wqe.piece[0].describe(piece);
        wqe.describe(1, piece.len, receives);
    }

    /// Describes receive `index` as `before` was, which is one piece and described still.
    #[inline(always)]
    pub(crate) fn describe_again(&self, index: u32, before: u32) {
        let (to, from) = (self.0.at(index), self.0.at(before));
        let copy = |to: &AtomicU32, from: &AtomicU32| to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        copy(&to.total, &from.total);
        copy(&to.pieces, &from.pieces);
        let (to, from) = (&to.piece[0], &from.piece[0]);
        to.addr.store(from.addr.load(Ordering::Relaxed), Ordering::Relaxed);
        to.arena_offset.store(from.arena_offset.load(Ordering::Relaxed), Ordering::Relaxed);
        copy(&to.arena, &from.arena);
        copy(&to.len, &from.len);
    }

    /// Address, length and arena of a piece of receive `index`, as described.
    pub(crate) fn piece(&self, index: u32, piece: u32) -> Option<(u64, u64, u32)> {
        let wqe = self.0.at(index);
        if piece >= wqe.pieces.load(Ordering::Relaxed) {
            return None;
        }
        let place = wqe.piece.get(piece as usize)?;
        let len = place.len.load(Ordering::Relaxed).into();
        Some((place.addr.load(Ordering::Relaxed), len, place.arena.load(Ordering::Relaxed)))
    }

    /// Gives the duty to give the ring back to another.
    pub(crate) fn hand_over(&mut self) -> Self {
        WqeRing(self.0.hand_over())
    }

    /// Never gives the ring back: a sender may still look at it.
    pub(crate) fn keep(&mut self) {
        self.0.keep();
    }
}

impl RecvPiece {
    #[inline(always)]
    fn describe(&self, piece: &Sge) {
        let (arena, offset) = piece.arena.unwrap_or((0, 0));
        self.addr.store(piece.ptr as u64, Ordering::Relaxed);
        // A longer piece takes the longest message too.
        self.len.store(u32::try_from(piece.len).unwrap_or(u32::MAX), Ordering::Relaxed);
        self.arena.store(arena, Ordering::Relaxed);
        self.arena_offset.store(offset as u64, Ordering::Relaxed);
    }
}

impl RecvWqe {
    #[inline(always)]
    fn describe(&self, pieces: u32, total: usize, receives: &Receives) {
        self.pieces.store(pieces, Ordering::Relaxed);
        self.total.store(u32::try_from(total).unwrap_or(u32::MAX), Ordering::Relaxed);
        if total < RING_INLINE {
            tell_short(receives, (RING_INLINE - total) as u32);
        }
    }
}

/// Tells senders of a receive that is shorter than what travels inside the ring.
#[cold]
fn tell_short(receives: &Receives, by: u32) {
    if receives.short_by.load(Ordering::Relaxed) < by {
        receives.short_by.fetch_max(by, Ordering::Relaxed);
    }
}

impl RecvSlots {
    /// `count` is a power of two.
    pub(crate) fn new(count: u32) -> Self {
        assert!(count.is_power_of_two());
        RecvSlots { slots: (0..count).map(|_| UnsafeCell::default()).collect(), mask: count - 1 }
    }

    /// The slot of `index`.
    ///
    /// # Safety
    /// The caller is the poster and has not published the index, or the poller and has seen it published and not
    /// retired it.
    #[inline(always)]
    #[allow(clippy::mut_from_ref, reason = "the contract above makes the access exclusive")]
    pub(crate) unsafe fn slot(&self, index: u32) -> &mut RecvSlot {
        // SAFETY: exclusive by the contract; the mask keeps the index within the slots.
        unsafe { &mut *self.slots.get_unchecked((index & self.mask) as usize).get() }
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::NonNull;

    use super::*;
    use crate::memory::{Backing, Buffer, Reach};

    #[test]
    fn a_receive_of_more_than_the_longest_message_takes_it() {
        let home = Home::new().unwrap();
        let ring = WqeRing::new(&home, 2).unwrap();
        // SAFETY: `Receives` is made of atomics.
        let receives = unsafe { Block::<Receives>::public(&home, 1) }.unwrap();
        for len in [4 << 30, 5 << 30] {
            // SAFETY: nothing touches this memory: it is described only.
            let backing =
                unsafe { Backing::foreign(1, Reach::Nowhere, (NonNull::dangling(), len), Box::new(()), None) };
            let memory = Local::Buffer(Buffer::new(backing));
            assert_eq!(ring.describe(0, &memory, receives.get()), len);
            let (_, described, _) = ring.piece(0, 0).unwrap();
            assert!(described >= u64::from(crate::soft::MAX_MESSAGE), "{described} of {len}");
        }
        assert_eq!(ring.piece(0, 1), None);
    }
}
