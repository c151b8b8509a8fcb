//! The blocks of one mapping of a device. Memory that was never used is zero, and no page of it is there yet: an inbound ring
//! of which few lines are in use takes few pages.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};

use crate::memory::{Ranges, Segment};
use crate::sync::lock;

/// Which blocks of a mapping are free.
#[derive(Debug)]
pub(crate) struct Blocks(Mutex<Free>);

#[derive(Debug)]
struct Free {
    ranges: Ranges,
    /// Nothing from here on was ever given out.
    fresh: usize,
}

impl Blocks {
    /// All of `0..capacity` but the first `reserved` bytes is free, and zero.
    pub(crate) fn new(reserved: usize, capacity: usize) -> Self {
        Blocks(Mutex::new(Free { ranges: Ranges::new(reserved, capacity), fresh: reserved }))
    }

    /// A zeroed block of the segment, to which these belong.
    pub(crate) fn take(&self, segment: &Segment, len: usize) -> Option<usize> {
        let len = block_len(len);
        let mut free = self.free();
        let offset = free.ranges.take(len, BLOCK)?;
        let used = free.fresh.saturating_sub(offset).min(len);
        free.fresh = free.fresh.max(offset + len);
        drop(free);
        zero(segment, offset, used)?;
        Some(offset)
    }

    pub(crate) fn give(&self, offset: usize, len: usize) {
        self.free().ranges.give(offset, block_len(len));
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        lock(&self.0)
    }
}

/// Zeroes a block that was free: whole words. Nobody of this device uses it, and peers have left it as far as they are inside
/// their hazards (gates and hazards). But late ones look at words of 32 bits outside of them still, whether somebody sleeps or
/// rests there and how far it has read, and make nothing worse of what they find than a wake-up in vain: so each is stored at
/// once. `None` if it is not of the segment.
fn zero(segment: &Segment, offset: usize, len: usize) -> Option<()> {
    // SAFETY: words have no invalid pattern, and whoever may be at these now accesses them by their atomics.
    let first = unsafe { segment.array::<AtomicU32>(offset, len / 4) }?;
    for word in 0..len / 4 {
        // SAFETY: so many were found to lie within the segment, which is mapped as long as it lives.
        unsafe { first.add(word).as_ref() }.store(0, Ordering::Relaxed);
    }
    Some(())
}

fn block_len(len: usize) -> usize {
    len.next_multiple_of(BLOCK)
}

const BLOCK: usize = 256;

#[cfg(test)]
mod tests {
    use rustix::fs::fstat;

    use super::*;
    use crate::memory::Writers;

    #[test]
    fn fresh_blocks_take_no_memory_and_used_ones_are_zeroed() {
        const LEN: usize = 1 << 20;
        let segment = Segment::create("t", LEN, Writers::Peers).unwrap();
        let pages = || fstat(segment.fd()).unwrap().st_blocks;
        let blocks = Blocks::new(0, LEN);
        let first = blocks.take(&segment, LEN / 2).unwrap();
        assert_eq!((first, pages()), (0, 0));
        // SAFETY: the block is this test's.
        let byte = unsafe { segment.base().add(LEN / 2 - 1) };
        // SAFETY: as above.
        unsafe { byte.write_volatile(7) };
        blocks.give(first, LEN / 2);
        // One that is used in part.
        let all = blocks.take(&segment, LEN).unwrap();
        assert_eq!(all, 0);
        // SAFETY: as above.
        assert_eq!(unsafe { byte.read_volatile() }, 0);
        assert!(pages() as usize * 512 <= LEN / 2 + 4096, "the fresh half was touched");
        assert!(blocks.take(&segment, 1).is_none());
    }

    /// ThreadSanitizer tells what this is about.
    #[test]
    fn a_block_is_zeroed_while_somebody_is_late_with_a_look() {
        let segment = Segment::create("t", 4096, Writers::Peers).unwrap();
        let blocks = Blocks::new(0, 4096);
        // SAFETY: words have no invalid pattern, and all access to this one is atomic.
        let word = unsafe { segment.at::<AtomicU32>(64).unwrap().as_ref() };
        std::thread::scope(|scope| {
            let late = scope.spawn(|| while word.load(Ordering::Relaxed) != u32::MAX {});
            for turn in 1..=1000 {
                let offset = blocks.take(&segment, 4096).unwrap();
                assert_eq!((offset, word.load(Ordering::Relaxed)), (0, 0));
                word.store(turn, Ordering::Relaxed);
                blocks.give(offset, 4096);
            }
            word.store(u32::MAX, Ordering::Relaxed);
            late.join().unwrap();
        });
    }
}
