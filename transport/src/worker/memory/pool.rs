//! The worker's own memory for long messages: blocks in power-of-two classes, used again and again.

use std::collections::VecDeque;

use qpair_verbs::{Buffer, HugePages, MemoryError, ProtectionDomain, Slab};

/// Free blocks by class; each block is at least as long as its class says.
#[derive(Debug)]
struct Classes<T> {
    free: [Vec<T>; CLASSES],
}

/// Whether a payload waits for a slab, or a message for a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Supply {
    /// None does.
    Enough,
    /// One does.
    Short,
    /// One does, and something has come back since.
    Relieved,
}

impl Supply {
    /// What has come back for others is still to be told to them.
    #[inline]
    fn run_short(&mut self) {
        if *self == Supply::Enough {
            *self = Supply::Short;
        }
    }

    #[inline]
    fn relieve(&mut self) {
        if *self == Supply::Short {
            *self = Supply::Relieved;
        }
    }

    #[inline]
    fn take_relief(&mut self) -> bool {
        let relieved = *self == Supply::Relieved;
        if relieved {
            *self = Supply::Enough;
        }
        relieved
    }
}

/// Buffers for copies of payloads on their way out, and slabs for payloads without a posted receive.
#[derive(Debug)]
pub(crate) struct Pool {
    pd: ProtectionDomain,
    limit: usize,
    huge: HugePages,
    buffers: Classes<Buffer>,
    buffer_bytes: usize,
    buffer_supply: Supply,
    slabs: Classes<Slab>,
    slab_bytes: usize,
    supply: Supply,
    /// Slabs of which the application has a part.
    lent: VecDeque<Slab>,
}

impl Pool {
    /// `huge`: for blocks that are no shorter than such a page.
    pub(crate) fn new(pd: &ProtectionDomain, limit: usize, huge: HugePages) -> Self {
        Pool {
            pd: pd.clone(),
            limit,
            huge,
            buffers: Classes::new(),
            buffer_bytes: 0,
            buffer_supply: Supply::Enough,
            slabs: Classes::new(),
            slab_bytes: 0,
            supply: Supply::Enough,
            lent: VecDeque::new(),
        }
    }

    /// A buffer of at least `len` bytes.
    pub(crate) fn buffer(&mut self, len: usize) -> Result<Buffer, MemoryError> {
        let (class, size) = class_of(len);
        if let Some(buffer) = self.buffers.take(class) {
            return Ok(buffer);
        }
        if self.buffer_bytes.saturating_add(size) > self.limit {
            self.buffer_bytes -= self.buffers.clear();
        }
        if self.buffer_bytes.saturating_add(size) > self.limit {
            return Err(MemoryError::Length { len, limit: self.limit - self.buffer_bytes });
        }
        let buffer = self.block(size)?;
        self.buffer_bytes += size;
        Ok(buffer)
    }

    /// Sees to it that there is a buffer of at least `len` bytes.
    #[inline]
    pub(crate) fn ensure(&mut self, len: usize) -> Result<(), MemoryError> {
        let (class, _) = class_of(len);
        if self.buffers.has(class) { Ok(()) } else { self.buffer(len).map(|buffer| self.give_buffer(buffer)) }
    }

    pub(crate) fn give_buffer(&mut self, buffer: Buffer) {
        let (class, _) = class_of(buffer.len());
        self.buffers.give(class, buffer);
        self.buffer_supply.relieve();
    }

    /// There is no buffer: when one has come back, [`has_buffers`](Pool::has_buffers) says so. False if none is out.
    #[cold]
    pub(crate) fn wait_for_buffer(&mut self) -> bool {
        self.buffer_bytes -= self.buffers.clear();
        let waits = self.buffer_bytes > 0;
        if waits {
            self.buffer_supply.run_short();
        }
        waits
    }

    /// True once after one has come back that was waited for.
    #[inline]
    pub(crate) fn has_buffers(&mut self) -> bool {
        self.buffer_supply.take_relief()
    }

    /// Buffers of so many bytes do not come back.
    pub(crate) fn lose_buffers(&mut self, bytes: usize) {
        self.buffer_bytes -= bytes;
        self.buffer_supply.relieve();
    }

    fn block(&self, size: usize) -> Result<Buffer, MemoryError> {
        self.pd.alloc_on(size, if size < HUGE_PAGE { HugePages::No } else { self.huge })
    }

    /// Longest payload that there is a slab for once all are free.
    pub(crate) fn longest(&self) -> u64 {
        self.limit as u64
    }

    /// A slab of at least `len` bytes, no more than [`longest`](Pool::longest). `None`: wait until
    /// [`is_relieved`](Pool::is_relieved).
    ///
    /// # Errors
    /// [`MemoryError`] if no waiting helps.
    pub(crate) fn slab(&mut self, len: usize) -> Result<Option<Slab>, MemoryError> {
        let (class, size) = class_of(len);
        if let Some(slab) = self.slabs.take(class) {
            return Ok(Some(slab));
        }
        let mut made = self.make_slab(size)?;
        if made.is_none() {
            // Those of other lengths that nobody uses stand in its way, or in that of the system.
            let freed = self.slabs.clear();
            self.slab_bytes -= freed;
            if freed > 0 {
                made = self.make_slab(size)?;
            }
        }
        match made {
            Some(_) => self.slab_bytes += size,
            None => self.supply.run_short(),
        }
        Ok(made.map(Buffer::into_slab))
    }

    fn make_slab(&self, size: usize) -> Result<Option<Buffer>, MemoryError> {
        // The first is always given: rounded up, it may be above the limit.
        match self.slab_bytes {
            0 => self.block(size).map(Some),
            used if used.saturating_add(size) > self.limit => Ok(None),
            _ => Ok(self.block(size).ok()),
        }
    }

    pub(crate) fn give_slab(&mut self, slab: Slab) {
        let (class, _) = class_of(slab.len());
        self.slabs.give(class, slab);
        self.relieve();
    }

    /// Slabs of so many bytes do not come back.
    pub(crate) fn lose_slabs(&mut self, bytes: usize) {
        self.slab_bytes -= bytes;
        self.relieve();
    }

    /// True, once, if there may be a slab now for what waits.
    #[inline]
    pub(crate) fn is_relieved(&mut self) -> bool {
        self.supply.take_relief()
    }

    fn relieve(&mut self) {
        self.supply.relieve();
    }

    /// Keeps a slab of which the application has a part.
    pub(crate) fn lend(&mut self, slab: Slab) {
        self.lent.push_back(slab);
    }

    pub(crate) fn lent(&self) -> usize {
        self.lent.len()
    }

    /// Looks at the slab lent first, and takes it back if it is free again.
    #[inline]
    pub(crate) fn reclaim(&mut self) {
        match self.lent.pop_front() {
            Some(slab) if slab.is_unique() => self.give_slab(slab),
            Some(slab) => self.lent.push_back(slab),
            None => {}
        }
    }
}

impl<T: std::ops::Deref<Target = [u8]>> Classes<T> {
    fn new() -> Self {
        Classes { free: std::array::from_fn(|_| Vec::new()) }
    }

    fn take(&mut self, class: usize) -> Option<T> {
        self.free.get_mut(class)?.pop()
    }

    fn has(&self, class: usize) -> bool {
        self.free.get(class).is_some_and(|free| !free.is_empty())
    }

    fn give(&mut self, class: usize, block: T) {
        if let Some(free) = self.free.get_mut(class) {
            free.push(block);
        }
    }

    /// Frees all; the number of bytes.
    fn clear(&mut self) -> usize {
        let blocks = self.free.iter_mut().flat_map(|free| free.drain(..));
        blocks.map(|block| block.len()).sum()
    }
}

/// Class and size of a block for `len` bytes.
fn class_of(len: usize) -> (usize, usize) {
    let size = len.clamp(LEAST, 1 << 62).next_power_of_two();
    (size.trailing_zeros().saturating_sub(LEAST.trailing_zeros()) as usize, size)
}

/// The usual size of a huge page.
const HUGE_PAGE: usize = 2 << 20;
const LEAST: usize = 16 << 10;
/// 16 KiB to 1 TiB.
const CLASSES: usize = 27;

#[cfg(test)]
mod tests {
    use qpair_verbs::Context;

    use super::*;

    #[test]
    fn classes_are_powers_of_two() {
        assert_eq!(class_of(1), (0, 16 << 10));
        assert_eq!(class_of(16 << 10), (0, 16 << 10));
        assert_eq!(class_of((16 << 10) + 1), (1, 32 << 10));
        assert_eq!(class_of(1 << 40), (26, 1 << 40));
    }

    #[test]
    fn long_blocks_stand_on_huge_pages_where_they_must() {
        let pd = Context::open("soft0").unwrap().alloc_pd().unwrap();
        let mut pool = Pool::new(&pd, 1 << 30, HugePages::Require);
        assert!(pool.buffer(HUGE_PAGE / 2).is_ok(), "too short for one");
        match pool.buffer(HUGE_PAGE) {
            Ok(buffer) => assert_eq!(buffer.len(), HUGE_PAGE),
            Err(error) => assert!(matches!(error, MemoryError::NoHugePages { .. }), "{error}"),
        }
    }

    #[test]
    fn whoever_waits_for_a_slab_is_told_whichever_way_room_comes_back() {
        let pd = Context::open("soft0").unwrap().alloc_pd().unwrap();
        let mut pool = Pool::new(&pd, 64 << 10, HugePages::No);
        let first = pool.slab(40_000).unwrap().unwrap();
        pool.give_slab(first);
        assert!(!pool.is_relieved(), "nobody waits");
        let first = pool.slab(40_000).unwrap().unwrap();
        assert!(pool.slab(10_000).unwrap().is_none());
        assert!(!pool.is_relieved());
        pool.give_slab(first);
        assert!(pool.is_relieved() && !pool.is_relieved());
        let first = pool.slab(60_000).unwrap().unwrap();
        assert!(pool.slab(60_000).unwrap().is_none());
        let bytes = first.len();
        drop(first);
        pool.lose_slabs(bytes);
        assert!(pool.is_relieved());
        assert!(pool.slab(60_000).unwrap().is_some());
    }

    /// One that finds none after something came back, which would do for another.
    #[test]
    fn who_finds_none_takes_no_relief_from_others() {
        let pd = Context::open("soft0").unwrap().alloc_pd().unwrap();
        let mut pool = Pool::new(&pd, 64 << 10, HugePages::No);
        let _kept = (pool.slab(30_000).unwrap().unwrap(), pool.slab(10_000).unwrap().unwrap());
        let last = pool.slab(10_000).unwrap().unwrap();
        assert!(pool.slab(10_000).unwrap().is_none());
        pool.give_slab(last);
        assert!(pool.slab(40_000).unwrap().is_none());
        assert!(pool.is_relieved());
        assert!(pool.slab(10_000).unwrap().is_some());
        // The same of buffers.
        let _kept = (pool.buffer(30_000).unwrap(), pool.buffer(10_000).unwrap());
        let last = pool.buffer(10_000).unwrap();
        assert!(pool.ensure(10_000).is_err() && pool.wait_for_buffer());
        pool.give_buffer(last);
        assert!(pool.ensure(40_000).is_err() && pool.wait_for_buffer());
        assert!(pool.has_buffers());
    }

    #[test]
    fn it_is_not_short_while_slabs_of_other_lengths_are_free() {
        let pd = Context::open("soft0").unwrap().alloc_pd().unwrap();
        let mut pool = Pool::new(&pd, 1 << 62, HugePages::No);
        for len in [10_000, 40_000] {
            let slab = pool.slab(len).unwrap().unwrap();
            pool.give_slab(slab);
        }
        // More than any system has: no waiting helps, since nothing is in use.
        assert!(pool.slab(1 << 60).is_err());
        let kept = pool.slab(10_000).unwrap().unwrap();
        assert!(pool.slab(1 << 60).unwrap().is_none(), "one is in use");
        pool.give_slab(kept);
        assert!(pool.is_relieved());
    }
}
