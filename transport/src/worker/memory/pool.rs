//! The worker's own memory: blocks in power-of-two classes, used again and again.

use std::collections::VecDeque;
use std::ops::Deref;

use qpair_verbs::{Buffer, HugePages, MemoryError, ProtectionDomain, Slab};

use super::line::Line;

/// Memory for messages on their way out that the device does not take with the request, buffers for copies of long payloads, which
/// peers read, and slabs for payloads without a posted receive: of each up to the limit.
///
/// They are apart, since the device gives back what messages go out of, whatever peers do, and others stay until a peer or the
/// application is done: no message waits for those.
#[derive(Debug)]
pub(crate) struct Pool {
    pd: ProtectionDomain,
    limit: usize,
    huge: HugePages,
    messages: Stock<Buffer>,
    spare: Spare,
    /// Connections that wait for memory to send from.
    line: Line,
    copies: Stock<Buffer>,
    slabs: Stock<Slab>,
    supply: Supply,
    /// Slabs of which the application has a part.
    lent: VecDeque<Slab>,
}

/// One block for messages that is kept for when no other is to be had: whatever has all other memory, messages go one after the
/// other. There is none where the device takes all messages with the request.
#[derive(Debug, Default)]
struct Spare {
    block: Option<Buffer>,
    /// Its length, once it is known.
    size: usize,
    /// A message goes out of it, or did as far as is known: it comes back.
    is_out: bool,
}

/// Blocks of one use.
#[derive(Debug)]
struct Stock<T> {
    /// By class; each is at least as long as its class says.
    free: [Vec<T>; CLASSES],
    /// Bytes of all blocks, in use or not.
    bytes: usize,
}

/// Whether a payload waits for a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Supply {
    /// None does.
    Enough,
    /// One does.
    Short,
    /// One does, and something has come back since.
    Relieved,
}

impl Pool {
    /// `huge`: for blocks that are no shorter than such a page.
    pub(crate) fn new(pd: &ProtectionDomain, limit: usize, huge: HugePages) -> Self {
        Pool {
            pd: pd.clone(),
            limit,
            huge,
            messages: Stock::new(),
            spare: Spare::default(),
            line: Line::default(),
            copies: Stock::new(),
            slabs: Stock::new(),
            supply: Supply::Enough,
            lent: VecDeque::new(),
        }
    }

    /// Takes memory for one message of `len` bytes, no longer than any of those to come, for when there is no other; once, and again
    /// where it was lost. Where there is none, the next that comes back is kept.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub(crate) fn keep_one(&mut self, len: usize) -> Result<(), MemoryError> {
        let (_, size) = class_of(len);
        if size > self.limit || self.spare.block.is_some() || self.spare.is_out {
            return Ok(());
        }
        self.spare.size = size;
        self.spare.block = Some(self.block_or_unused(size)?);
        self.messages.bytes += size;
        Ok(())
    }

    /// Whether there is memory for a message of `len` bytes to go out of. If not, or if others wait that came before, the connection
    /// waits in line: [`next_in_line`](Pool::next_in_line) gives it its turn. `waits`: whether it stands there.
    ///
    /// # Errors
    /// [`MemoryError`] if there is none, and none is to come back.
    pub(crate) fn has_message(&mut self, index: u32, waits: &mut bool, len: usize) -> Result<bool, MemoryError> {
        if self.line.lets(index) {
            match self.make_message(len) {
                Ok(()) => {
                    self.line.served(index);
                    return Ok(true);
                }
                Err(error) if self.is_idle() => return Err(error),
                Err(_) => {}
            }
        }
        self.line.join(index, waits);
        Ok(false)
    }

    /// The same for what does not wait; false if there is none now.
    ///
    /// # Errors
    /// As for [`has_message`](Pool::has_message).
    pub(crate) fn has_message_now(&mut self, len: usize) -> Result<bool, MemoryError> {
        if !self.line.is_empty() {
            return Ok(false);
        }
        match self.make_message(len) {
            Err(error) if self.is_idle() => Err(error),
            made => Ok(made.is_ok()),
        }
    }

    /// True if no message is on its way.
    fn is_idle(&self) -> bool {
        let kept = self.spare.block.as_ref().map_or(0, |block| block.len());
        self.messages.bytes == self.messages.free_bytes() + kept
    }

    /// Sees to it that there is a block for a message of that length.
    fn make_message(&mut self, len: usize) -> Result<(), MemoryError> {
        let (class, size) = class_of(len);
        if self.messages.has(class) {
            return Ok(());
        }
        match self.another_message(len, size) {
            Ok(block) => self.messages.give(block),
            Err(_) if self.spare.block.as_ref().is_some_and(|block| block.len() >= len) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn another_message(&mut self, len: usize, size: usize) -> Result<Buffer, MemoryError> {
        self.messages.make_room(size, self.limit).map_err(|left| MemoryError::Length { len, limit: left })?;
        let block = self.block_or_unused(size)?;
        self.messages.bytes += size;
        Ok(block)
    }

    fn block_or_unused(&mut self, size: usize) -> Result<Buffer, MemoryError> {
        match self.block(size) {
            // The system has no more: what nobody uses may do.
            Err(_) if self.free_unused() => self.block(size),
            other => other,
        }
    }

    /// Memory of at least `len` bytes for a message that goes out now. Beyond the limit only for those that have to go, and carry no
    /// data.
    pub(crate) fn message(&mut self, len: usize) -> Result<Buffer, MemoryError> {
        let (class, size) = class_of(len);
        if let Some(block) = self.messages.take(class) {
            return Ok(block);
        }
        if let Some(block) = self.spare.block.take_if(|block| block.len() >= len) {
            self.spare.is_out = true;
            return Ok(block);
        }
        let block = self.block_or_unused(size)?;
        self.messages.bytes += size;
        Ok(block)
    }

    pub(crate) fn give_message(&mut self, block: Buffer) {
        if self.spare.block.is_none() && block.len() == self.spare.size {
            (self.spare.block, self.spare.is_out) = (Some(block), false);
        } else {
            self.messages.give(block);
        }
    }

    /// Blocks of so many bytes do not come back.
    pub(crate) fn lose_messages(&mut self, bytes: usize) {
        self.messages.bytes -= bytes;
        // It may be among them.
        self.spare.is_out &= bytes == 0;
    }

    /// A connection is gone that waits for memory to send from.
    pub(crate) fn forget(&mut self, index: u32) {
        self.line.forget(index);
    }

    /// True if a connection waits for memory to send from.
    #[inline]
    pub(crate) fn has_line(&self) -> bool {
        !self.line.is_empty()
    }

    /// The connection whose turn it is to take the memory of one message.
    pub(crate) fn next_in_line(&mut self) -> Option<u32> {
        self.line.next()
    }

    /// Its turn is over; whether it waits again. True if there was no memory for it: then there is none for others either.
    pub(crate) fn end_turn(&mut self, waits: bool) -> bool {
        self.line.end_turn(waits)
    }

    /// A buffer of at least `len` bytes for a copy.
    pub(crate) fn copy(&mut self, len: usize) -> Result<Buffer, MemoryError> {
        let (class, size) = class_of(len);
        if let Some(buffer) = self.copies.take(class) {
            return Ok(buffer);
        }
        self.copies.make_room(size, self.limit).map_err(|left| MemoryError::Length { len, limit: left })?;
        let buffer = self.block(size)?;
        self.copies.bytes += size;
        Ok(buffer)
    }

    pub(crate) fn give_copy(&mut self, buffer: Buffer) {
        self.copies.give(buffer);
    }

    /// Buffers of so many bytes do not come back.
    pub(crate) fn lose_copies(&mut self, bytes: usize) {
        self.copies.bytes -= bytes;
    }

    /// Frees what nobody uses; true if there was something.
    fn free_unused(&mut self) -> bool {
        let freed = [self.messages.clear(), self.copies.clear(), self.slabs.clear()];
        freed.contains(&true)
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
        // Those of other lengths that nobody uses stand in its way, or in that of the system.
        if made.is_none() && self.slabs.clear() {
            made = self.make_slab(size)?;
        }
        match made {
            Some(_) => self.slabs.bytes += size,
            None => self.supply.run_short(),
        }
        Ok(made.map(Buffer::into_slab))
    }

    /// Whether there would be a slab of `len` bytes if slabs of `back` bytes came back.
    pub(crate) fn would_have(&self, len: usize, back: usize) -> bool {
        let used = (self.slabs.bytes - self.slabs.free_bytes()).saturating_sub(back);
        used == 0 || self.has_room_beside(used, class_of(len).1)
    }

    fn has_room_beside(&self, used: usize, size: usize) -> bool {
        used.saturating_add(size) <= self.limit
    }

    fn make_slab(&self, size: usize) -> Result<Option<Buffer>, MemoryError> {
        // The first is always given: rounded up, it may be above the limit.
        match self.slabs.bytes {
            0 => self.block(size).map(Some),
            used if !self.has_room_beside(used, size) => Ok(None),
            _ => Ok(self.block(size).ok()),
        }
    }

    pub(crate) fn give_slab(&mut self, slab: Slab) {
        self.slabs.give(slab);
        self.supply.relieve();
    }

    /// Slabs of so many bytes do not come back.
    pub(crate) fn lose_slabs(&mut self, bytes: usize) {
        self.slabs.bytes -= bytes;
        self.supply.relieve();
    }

    /// True, once, if there may be a slab now for what waits.
    #[inline]
    pub(crate) fn is_relieved(&mut self) -> bool {
        self.supply.take_relief()
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

impl<T: Deref<Target = [u8]>> Stock<T> {
    fn new() -> Self {
        Stock { free: std::array::from_fn(|_| Vec::new()), bytes: 0 }
    }

    fn take(&mut self, class: usize) -> Option<T> {
        self.free.get_mut(class)?.pop()
    }

    fn has(&self, class: usize) -> bool {
        self.free.get(class).is_some_and(|free| !free.is_empty())
    }

    fn give(&mut self, block: T) {
        let (class, _) = class_of(block.len());
        if let Some(free) = self.free.get_mut(class) {
            free.push(block);
        }
    }

    /// Frees all that are not in use; true if there were some.
    fn clear(&mut self) -> bool {
        let freed = self.free_bytes();
        self.free.iter_mut().for_each(Vec::clear);
        self.bytes -= freed;
        freed > 0
    }

    /// Bytes of those that are not in use.
    fn free_bytes(&self) -> usize {
        self.free.iter().flatten().map(|block| block.len()).sum()
    }

    /// Sees to it that one of `size` bytes more is within the limit.
    ///
    /// # Errors
    /// What is left below the limit, if it is not enough.
    fn make_room(&mut self, size: usize, limit: usize) -> Result<(), usize> {
        if self.bytes.saturating_add(size) > limit {
            self.clear();
        }
        if self.bytes.saturating_add(size) > limit { Err(limit.saturating_sub(self.bytes)) } else { Ok(()) }
    }
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
        assert!(pool.copy(HUGE_PAGE / 2).is_ok(), "too short for one");
        match pool.copy(HUGE_PAGE) {
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
    }

    /// Whatever waits for peers, messages go.
    #[test]
    fn copies_and_slabs_leave_messages_their_memory() {
        let pd = Context::open("soft0").unwrap().alloc_pd().unwrap();
        let mut pool = Pool::new(&pd, 64 << 10, HugePages::No);
        let _copies: Vec<_> = std::iter::from_fn(|| pool.copy(16 << 10).ok()).collect();
        let _slabs: Vec<_> = std::iter::from_fn(|| pool.slab(16 << 10).unwrap()).collect();
        assert!(_copies.len() == 4 && _slabs.len() == 4);
        let mut waits = false;
        for _ in 0..4 {
            assert!(pool.has_message(0, &mut waits, 100).unwrap() && pool.has_message_now(100).unwrap());
            std::mem::forget(pool.message(100).unwrap());
        }
        assert!(!pool.has_message_now(100).unwrap() && !pool.has_line());
        assert!(!pool.has_message(0, &mut waits, 100).unwrap() && waits && pool.has_line());
        // Words go all the same.
        assert!(pool.message(100).is_ok());
    }

    /// Copies and slabs have all that the system gives.
    #[test]
    fn one_message_goes_at_any_time() {
        let pd = Context::open("soft0").unwrap().alloc_pd().unwrap();
        let mut pool = Pool::new(&pd, 1 << 62, HugePages::No);
        pool.keep_one(20_000).unwrap();
        // As none: longer than there is.
        let (mut waits, long) = (false, 1 << 60);
        assert!(pool.has_message(0, &mut waits, long).is_err() && !waits, "it is none for one so long");
        let mut pool = Pool::new(&pd, 32 << 10, HugePages::No);
        pool.keep_one(20_000).unwrap();
        for _ in 0..3 {
            assert!(pool.has_message(0, &mut waits, 100).unwrap() && !waits);
            let block = pool.message(100).unwrap();
            assert!(!pool.has_message_now(100).unwrap(), "it is on its way");
            pool.give_message(block);
        }
        let block = pool.message(100).unwrap();
        pool.lose_messages(0);
        pool.keep_one(20_000).unwrap();
        pool.give_message(block);
        assert_eq!(pool.messages.bytes, 32 << 10, "one is enough, and it comes back");
        let lost = pool.message(100).unwrap();
        pool.lose_messages(lost.len());
        drop(lost);
        assert!(pool.has_message(0, &mut waits, 20_000).unwrap() && !waits);
        let again = pool.message(20_000).unwrap();
        pool.give_message(again);
        assert!(pool.spare.block.is_some() && !pool.spare.is_out, "another has its place");
        let lost = pool.message(20_000).unwrap();
        pool.lose_messages(lost.len());
        drop(lost);
        pool.keep_one(20_000).unwrap();
        assert!(pool.spare.block.is_some(), "the next connection brings another");
        assert_eq!(pool.messages.bytes, pool.messages.free_bytes() + (32 << 10));
    }

    #[test]
    fn a_message_for_which_no_memory_is_to_come_back_does_not_wait() {
        let pd = Context::open("soft0").unwrap().alloc_pd().unwrap();
        let mut pool = Pool::new(&pd, 64 << 10, HugePages::No);
        let (mut waits, _copy) = (false, pool.copy(100).unwrap());
        assert!(pool.has_message(0, &mut waits, 100_000).is_err() && pool.has_message_now(100_000).is_err() && !waits);
        // More than any system has.
        let mut pool = Pool::new(&pd, 1 << 62, HugePages::No);
        assert!(pool.has_message(0, &mut waits, 1 << 60).is_err() && !waits);
        assert!(pool.has_message(0, &mut waits, 100).unwrap());
        let taken = pool.message(100).unwrap();
        assert!(!pool.has_message(0, &mut waits, 1 << 60).unwrap() && waits, "one is in use");
        pool.give_message(taken);
        assert_eq!(pool.next_in_line(), Some(0));
        assert!(pool.has_message(0, &mut false, 1 << 60).is_err());
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
