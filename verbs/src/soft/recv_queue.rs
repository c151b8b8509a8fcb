//! Receives of one queue: what the owner keeps of each, and what senders see of it.

use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::Arc;

use super::home::Home;
use super::layout::{Receives, RecvWqe};
use super::ring::RING_INLINE;
use crate::error::CreateError;
use crate::memory::Local;
use crate::sync::Ordering;

/// Posted receives as senders see them: a ring in the public mapping.
#[derive(Debug)]
pub(crate) struct WqeRing {
    home: Arc<Home>,
    first: NonNull<RecvWqe>,
    offset: usize,
    count: u32,
}

// SAFETY: it names atomics in a mapping that `home` keeps.
unsafe impl Send for WqeRing {}
// SAFETY: as above.
unsafe impl Sync for WqeRing {}

/// What the owner keeps of a posted receive.
#[derive(Debug, Default)]
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
}

/// Slots that a poster fills and a poller empties, each index by one of them at a time.
#[derive(Debug)]
pub(crate) struct RecvSlots {
    slots: Box<[UnsafeCell<RecvSlot>]>,
}

// SAFETY: a slot is touched by the poster before its index is published as posted, and by the poller after, until it
// counts the index as retired; the queues' counters order the two.
unsafe impl Sync for RecvSlots {}

impl WqeRing {
    pub(crate) fn new(home: &Arc<Home>, count: u32) -> Result<Self, CreateError> {
        debug_assert!(count.is_power_of_two());
        let full = CreateError::Exhausted { what: "receive queue" };
        let Some(offset) = home.take_public(count as usize * size_of::<RecvWqe>()) else { return Err(full) };
        // SAFETY: `RecvWqe` is made of atomics, and the block is ours.
        let Some(first) = (unsafe { home.public().array::<RecvWqe>(offset, count as usize) }) else { return Err(full) };
        Ok(WqeRing { home: home.clone(), first, offset, count })
    }

    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Describes receive `index` to senders; the caller publishes the count afterwards.
    #[inline]
    pub(crate) fn describe(&self, index: u32, memory: &Local, receives: &Receives) -> usize {
        // SAFETY: the index is reduced to the ring's size; the block is mapped as long as `home` lives.
        let wqe = unsafe { self.first.add((index & (self.count - 1)) as usize).as_ref() };
        let mut total = 0;
        let pieces = memory.pieces();
        for (place, piece) in wqe.piece.iter().zip((0..pieces).filter_map(|i| memory.piece(i))) {
            let (arena, offset) = piece.arena.unwrap_or((0, 0));
            place.addr.store(piece.ptr as u64, Ordering::Relaxed);
            place.len.store(piece.len as u32, Ordering::Relaxed);
            place.arena.store(arena, Ordering::Relaxed);
            place.arena_offset.store(offset as u64, Ordering::Relaxed);
            total += piece.len;
        }
        wqe.pieces.store(pieces as u32, Ordering::Relaxed);
        wqe.total.store(u32::try_from(total).unwrap_or(u32::MAX), Ordering::Relaxed);
        if total < RING_INLINE {
            receives.some_short.store(1, Ordering::Relaxed);
        }
        total
    }

    /// Address and length of a piece of receive `index`, as described.
    pub(crate) fn piece(&self, index: u32, piece: u32) -> Option<(u64, u64)> {
        // SAFETY: as in `describe`.
        let wqe = unsafe { self.first.add((index & (self.count - 1)) as usize).as_ref() };
        if piece >= wqe.pieces.load(Ordering::Relaxed) {
            return None;
        }
        let place = wqe.piece.get(piece as usize)?;
        Some((place.addr.load(Ordering::Relaxed), place.len.load(Ordering::Relaxed).into()))
    }

    /// Gives the block back; only once no sender can reach it.
    pub(crate) fn free(&self) {
        self.home.give_public(self.offset, self.count as usize * size_of::<RecvWqe>());
    }
}

impl RecvSlots {
    pub(crate) fn new(count: u32) -> Self {
        RecvSlots { slots: (0..count).map(|_| UnsafeCell::default()).collect() }
    }

    /// The slot of `index`.
    ///
    /// # Safety
    /// The caller is the poster and has not published the index, or the poller and has seen it published and not
    /// retired it.
    #[inline(always)]
    #[allow(clippy::mut_from_ref, reason = "the contract above makes the access exclusive")]
    pub(crate) unsafe fn slot(&self, index: u32) -> &mut RecvSlot {
        let place = index as usize % self.slots.len();
        // SAFETY: exclusive by the contract.
        unsafe { &mut *self.slots[place].get() }
    }
}
