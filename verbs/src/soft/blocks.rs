//! The blocks of one mapping of a device. Memory that was never used is zero, and no page of it is there yet: an inbound ring
//! of which few lines are in use takes few pages.

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
        // SAFETY: the block lies within the segment and was free: nobody of this device uses it, and peers leave a block
        // before it is given back (gates and hazards).
        unsafe { segment.base().add(offset).write_bytes(0, used) };
        Some(offset)
    }

    pub(crate) fn give(&self, offset: usize, len: usize) {
        self.free().ranges.give(offset, block_len(len));
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        lock(&self.0)
    }
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
}
