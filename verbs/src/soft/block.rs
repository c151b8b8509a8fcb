//! Blocks of a device's two mappings: typed, and given back when dropped.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use super::home::Home;

/// `count` values of `T` in a mapping of a device, zeroed when taken; a power of two of them.
pub(crate) struct Block<T> {
    home: Arc<Home>,
    mapping: Mapping,
    offset: usize,
    count: u32,
    first: NonNull<T>,
    kept: bool,
}

#[derive(Clone, Copy, Debug)]
enum Mapping {
    Public,
    Shared,
}

// SAFETY: it gives out `&T` only, and keeps the mapping.
unsafe impl<T: Sync> Send for Block<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Block<T> {}

impl<T> Block<T> {
    /// A block of the public mapping; `None` if there is no room.
    ///
    /// # Safety
    /// As [`Segment::array`](crate::memory::Segment::array).
    pub(crate) unsafe fn public(home: &Arc<Home>, count: u32) -> Option<Self> {
        // SAFETY: passed on to the caller.
        unsafe { Self::take(home, Mapping::Public, count) }
    }

    /// A block of the shared mapping; `None` if there is no room.
    ///
    /// # Safety
    /// As [`Segment::array`](crate::memory::Segment::array).
    pub(crate) unsafe fn shared(home: &Arc<Home>, count: u32) -> Option<Self> {
        // SAFETY: passed on to the caller.
        unsafe { Self::take(home, Mapping::Shared, count) }
    }

    unsafe fn take(home: &Arc<Home>, mapping: Mapping, count: u32) -> Option<Self> {
        debug_assert!(count.is_power_of_two());
        let len = count as usize * size_of::<T>();
        let (segment, offset) = match mapping {
            Mapping::Public => (home.public(), home.take_public(len)?),
            Mapping::Shared => (home.shared(), home.take_shared(len)?),
        };
        // SAFETY: the block is ours; the rest is passed on to the caller.
        let first = unsafe { segment.array::<T>(offset, count as usize) }?;
        Some(Block { home: home.clone(), mapping, offset, count, first, kept: false })
    }

    /// Where it lies in its mapping.
    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    pub(crate) fn first(&self) -> NonNull<T> {
        self.first
    }

    /// The value in front.
    #[inline(always)]
    pub(crate) fn get(&self) -> &T {
        // SAFETY: mapped as long as `home` lives.
        unsafe { self.first.as_ref() }
    }

    /// The value that the running number `index` stands for.
    #[inline(always)]
    pub(crate) fn at(&self, index: u32) -> &T {
        // SAFETY: the mask keeps the index below the number of values; mapped as long as `home` lives.
        unsafe { self.first.add((index & (self.count - 1)) as usize).as_ref() }
    }

    /// Gives the duty to give it back to another.
    pub(crate) fn hand_over(&mut self) -> Self {
        let kept = std::mem::replace(&mut self.kept, true);
        let Block { mapping, offset, count, first, .. } = *self;
        Block { home: self.home.clone(), mapping, offset, count, first, kept }
    }

    /// Never gives it back: somebody may still look at it.
    pub(crate) fn keep(&mut self) {
        self.kept = true;
    }
}

impl<T> Drop for Block<T> {
    fn drop(&mut self) {
        let len = self.count as usize * size_of::<T>();
        match self.mapping {
            _ if self.kept => {}
            Mapping::Public => self.home.give_public(self.offset, len),
            Mapping::Shared => self.home.give_shared(self.offset, len),
        }
    }
}

impl<T> fmt::Debug for Block<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({}..{})", self.mapping, self.offset, self.offset + self.count as usize * size_of::<T>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::{AtomicU64, Ordering};

    #[test]
    fn a_block_comes_back_zeroed_unless_it_is_kept() {
        let home = Home::new().unwrap();
        // SAFETY: `AtomicU64` has no invalid pattern, and these blocks are used by this test alone.
        let take = || unsafe { Block::<AtomicU64>::shared(&home, 64) }.unwrap();
        let first = take();
        first.at(63 + 64).store(9, Ordering::Relaxed);
        let offset = first.offset();
        drop(first);
        let mut again = take();
        assert_eq!((again.offset(), again.at(63).load(Ordering::Relaxed)), (offset, 0));
        let mut heir = again.hand_over();
        drop(again);
        let other = take();
        assert_ne!(other.offset(), offset);
        drop((heir.hand_over(), other));
        drop(heir);
        let mut again = take();
        assert_eq!(again.offset(), offset);
        again.keep();
        drop(again);
        assert_ne!(take().offset(), offset);
    }
}
