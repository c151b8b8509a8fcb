//! qpair's own allocator: memfd-backed arenas, which peers of the software device map on first use, and which are
//! registered whole with other devices.

use std::collections::HashMap;
use std::io;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use super::backing::{Backing, FurtherKey, Reach};
use super::buffer::HugePages;
use super::ranges::Ranges;
use super::segment::{Segment, Writers};
use crate::error::MemoryError;
use crate::gpu::{ARENA_MASK, Allocation, Gpu, Place};
use crate::ibv::{NotRegistered, Registered};
use crate::sync::lock;

/// One memfd-backed arena.
#[derive(Debug)]
pub(crate) struct Arena {
    id: u32,
    /// Dropped with the arena, unless the device keeps it registered.
    segment: ManuallyDrop<Segment>,
    /// On a device that has to be told of memory.
    registered: Option<Registered>,
    /// The keys of further devices.
    further: Option<Arc<[FurtherKey]>>,
    free: Mutex<Ranges>,
    /// Told when the arena goes, so that peers unmap it.
    pool: Weak<ArenaPool>,
}

/// The arenas of one opened software device, or of one protection domain elsewhere.
pub(crate) struct ArenaPool {
    state: Mutex<PoolState>,
    me: Weak<ArenaPool>,
    alarm: OnceLock<Alarm>,
    keeper: OnceLock<Keeper>,
    registrar: Option<Registrar>,
    /// Size of an arena for small blocks.
    shared_size: usize,
}

/// Registers a whole arena with a device.
pub(crate) struct Registrar(
    pub(crate) Box<dyn Fn(NonNull<u8>, usize) -> Result<Registered, NotRegistered> + Send + Sync>,
);

impl std::fmt::Debug for Registrar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Registrar")
    }
}

/// On which pages an arena stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pages {
    pub(crate) huge: HugePages,
    /// Pinned for GPUs, by that one's context.
    pub(crate) pinned: Option<Gpu>,
}

impl From<HugePages> for Pages {
    fn from(huge: HugePages) -> Self {
        Pages { huge, pinned: None }
    }
}

/// Keeps the device open that the pool is of, until it is dropped; `None` if that is closing.
struct Keeper(Box<dyn Fn() -> Option<Device> + Send + Sync>);

/// Called when there are arenas that are gone and of which peers were not told.
struct Alarm(Box<dyn Fn() + Send + Sync>);

impl std::fmt::Debug for ArenaPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ArenaPool")
    }
}

#[derive(Default)]
struct PoolState {
    next_id: u32,
    /// All that are alive, for peers that ask.
    by_id: HashMap<u32, Weak<Arena>>,
    /// The same of GPUs' memory, by their numbers without the place.
    gpus: HashMap<u32, Weak<Allocation>>,
    /// The ones that small blocks come from; kept for the life of the device.
    shared: Vec<(Pages, Arc<Arena>)>,
    /// Numbers of arenas that are gone, until peers were told.
    gone: Vec<u32>,
    /// What is given back once they were.
    left: Vec<Left>,
}

/// Memory of a GPU as the peers of one device know it. They are told when it is dropped, with the memory.
pub(crate) struct GpuArena {
    id: u32,
    pool: Weak<ArenaPool>,
    /// The memory, and the device that tells peers when it goes, once they may have opened it by a handle.
    lent: Option<Left>,
}

/// What is given back once no peer has it any more, when dropped: memory, then the device that was kept open for it.
pub(crate) struct Left {
    /// The number that peers have it by.
    arena: u32,
    memory: Box<dyn Send>,
    device: Device,
}

/// Arenas that went.
pub(crate) struct Gone {
    /// Their numbers.
    pub(crate) arenas: Vec<u32>,
    /// What went with them, to be dropped once peers have unmapped them.
    pub(crate) left: Vec<Left>,
}

/// Keeps a device open until it is dropped.
pub(crate) type Device = Box<dyn Send>;

impl Left {
    pub(crate) fn new(arena: u32, memory: impl Send + 'static, device: Device) -> Self {
        Left { arena, memory: Box::new(memory), device }
    }

    pub(crate) fn arena(&self) -> u32 {
        self.arena
    }

    /// Leaves the memory to peers for good, since they can not be asked, and lets the device close.
    pub(crate) fn leak(self) {
        let Left { memory, device, .. } = self;
        std::mem::forget(memory);
        drop(device);
    }
}

impl GpuArena {
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Whether its device is open.
    pub(crate) fn is_known(&self) -> bool {
        self.pool.strong_count() > 0
    }

    /// Keeps the memory until peers have closed it, and the device open until then; false if that is closing.
    pub(crate) fn lend<M: Send + 'static>(&mut self, memory: impl FnOnce() -> M) -> bool {
        if self.lent.is_none() {
            let device = self.pool.upgrade().and_then(|pool| pool.keeper.get().and_then(|Keeper(keep)| keep()));
            self.lent = device.map(|device| Left::new(self.id, memory(), device));
        }
        self.lent.is_some()
    }

    pub(crate) fn is_of(&self, pool: &Weak<ArenaPool>) -> bool {
        self.pool.ptr_eq(pool)
    }
}

impl Drop for GpuArena {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.forget(self.id, self.lent.take());
        }
    }
}

impl std::fmt::Debug for GpuArena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GpuArena({})", self.id)
    }
}

impl PoolState {
    /// A number that no arena has.
    fn number(&mut self) -> u32 {
        loop {
            self.next_id = (self.next_id + 1) & ARENA_MASK;
            let id = self.next_id;
            if id != 0 && !self.by_id.contains_key(&id) && !self.gpus.contains_key(&id) {
                return id;
            }
        }
    }
}

impl Arena {
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.segment.base()
    }

    pub(crate) fn len(&self) -> usize {
        self.segment.len()
    }

    pub(crate) fn segment(&self) -> &Segment {
        &self.segment
    }

    /// The key by which the device knows the memory in work requests; 0 where it needs none.
    pub(crate) fn lkey(&self) -> u32 {
        self.registered.as_ref().map_or(0, Registered::lkey)
    }

    /// The same of further devices.
    pub(crate) fn further(&self) -> Option<Arc<[FurtherKey]>> {
        self.further.clone()
    }

    /// Takes a block back.
    pub(crate) fn release(&self, offset: usize, reserved: usize) {
        lock(&self.free).give(offset, reserved);
    }

    fn take(&self, len: usize, align: usize) -> Option<usize> {
        lock(&self.free).take(len, align)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.forget(self.id, None);
        }
        if let Some(Err(error)) = self.registered.take().map(Registered::close) {
            tracing::error!(%error, len = self.len(), "the device keeps memory registered; it is leaked");
            return;
        }
        // SAFETY: dropped once, here; no block of the arena is left, since each holds the arena.
        unsafe { ManuallyDrop::drop(&mut self.segment) };
    }
}

impl ArenaPool {
    pub(crate) fn new() -> Arc<Self> {
        Self::with(None, SHARED_ARENA)
    }

    /// Arenas that are registered whole. The smaller ones are for small blocks, since what is registered is locked in
    /// memory, and most systems allow little of that.
    pub(crate) fn registering(registrar: Registrar) -> Arc<Self> {
        Self::with(Some(registrar), REGISTERED_ARENA)
    }

    fn with(registrar: Option<Registrar>, shared_size: usize) -> Arc<Self> {
        Arc::new_cyclic(|me| ArenaPool {
            state: Mutex::default(),
            me: me.clone(),
            alarm: OnceLock::new(),
            keeper: OnceLock::new(),
            registrar,
            shared_size,
        })
    }

    /// Says whom to call when an arena is gone, so that [`take_gone`](ArenaPool::take_gone) finds it; once.
    pub(crate) fn set_alarm(&self, alarm: impl Fn() + Send + Sync + 'static) {
        let _ = self.alarm.set(Alarm(Box::new(alarm)));
    }

    /// Says what keeps the device open; once.
    pub(crate) fn set_keeper(&self, keep: impl Fn() -> Option<Device> + Send + Sync + 'static) {
        let _ = self.keeper.set(Keeper(Box::new(keep)));
    }

    /// A zeroed block of `len` bytes for `domain`, 64-byte aligned, page-aligned from a page on.
    ///
    /// # Errors
    /// [`MemoryError`] if the system has no memory, or a device does not take it.
    pub(crate) fn alloc(
        &self,
        domain: u64,
        reach: Reach,
        len: usize,
        pages: impl Into<Pages>,
    ) -> Result<Arc<Backing>, MemoryError> {
        let pages = pages.into();
        let align = if len >= PAGE { PAGE } else { LINE };
        let reserved = len.next_multiple_of(align);
        if reserved > LARGEST_SHARED {
            let arena = self.create(reserved, pages)?;
            let offset = arena.take(reserved, align).ok_or_else(|| no_room(len))?;
            return Ok(Backing::in_arena(domain, reach, arena, offset, len, reserved));
        }
        let (arena, offset) = self.small(reserved, align, pages)?;
        let backing = Backing::in_arena(domain, reach, arena, offset, len, reserved);
        // SAFETY: the block was just taken from the arena and nobody else has it; it spans `len` bytes.
        unsafe { backing.base().as_ptr().write_bytes(0, len) };
        Ok(backing)
    }

    fn small(&self, reserved: usize, align: usize, wanted: Pages) -> Result<(Arc<Arena>, usize), MemoryError> {
        let found = self.lock().shared.iter().filter(|(pages, _)| *pages == wanted).find_map(|(_, arena)| {
            let offset = arena.take(reserved, align)?;
            Some((arena.clone(), offset))
        });
        if let Some(found) = found {
            return Ok(found);
        }
        let arena = self.create(self.shared_size, wanted)?;
        let offset = arena.take(reserved, align).ok_or_else(|| no_room(reserved))?;
        self.lock().shared.push((wanted, arena.clone()));
        Ok((arena, offset))
    }

    fn create(&self, len: usize, Pages { huge, pinned }: Pages) -> Result<Arc<Arena>, MemoryError> {
        let len = if huge == HugePages::No { len } else { len.next_multiple_of(HUGE_PAGE) };
        let segment =
            Segment::create_present("qpair-arena", len, Writers::Peers, huge).map_err(|source| match huge {
                HugePages::Require => MemoryError::NoHugePages { len, source },
                HugePages::No | HugePages::Try => MemoryError::NoMemory { len, source },
            })?;
        if let Some(gpu) = pinned {
            segment.pin(gpu)?;
        }
        let registered = self.registrar.as_ref().map(|Registrar(register)| register(segment.base(), len));
        let registered = match registered.transpose() {
            Ok(registered) => registered,
            Err(failed) => return Err(failed.leaving(segment).0),
        };
        let further = registered.as_ref().and_then(Registered::further_lkeys);
        let mut state = self.lock();
        let id = state.number();
        let free = Mutex::new(Ranges::new(0, len));
        let arena = Arc::new(Arena {
            id,
            segment: ManuallyDrop::new(segment),
            registered,
            further,
            free,
            pool: self.me.clone(),
        });
        state.by_id.insert(id, Arc::downgrade(&arena));
        Ok(arena)
    }

    /// The arena of that number, if it is alive.
    pub(crate) fn get(&self, id: u32) -> Option<Arc<Arena>> {
        self.lock().by_id.get(&id).and_then(Weak::upgrade)
    }

    /// The number by which peers ask for memory of a GPU, from its first registration here until it is freed: so they map it
    /// once, however often it is registered.
    pub(crate) fn gpu(&self, allocation: &Arc<Allocation>) -> u32 {
        allocation.arena_in(&self.me, || {
            let mut state = self.lock();
            let number = state.number();
            state.gpus.insert(number, Arc::downgrade(allocation));
            GpuArena { id: allocation.place().arena(number), pool: self.me.clone(), lent: None }
        })
    }

    /// The memory of a GPU of that number, if it is alive.
    pub(crate) fn get_gpu(&self, id: u32) -> Option<Arc<Allocation>> {
        let found = self.lock().gpus.get(&(id & ARENA_MASK)).and_then(Weak::upgrade);
        found.filter(|allocation| allocation.place() == Place::of_arena(id))
    }

    /// Notes that an arena is gone; `left` is to be given back once peers have unmapped it.
    fn forget(&self, id: u32, left: Option<Left>) {
        let mut state = self.lock();
        state.by_id.remove(&id);
        state.gpus.remove(&(id & ARENA_MASK));
        state.gone.push(id);
        let first = state.gone.len() == 1 || left.is_some();
        state.left.extend(left);
        drop(state);
        if first && let Some(Alarm(alarm)) = self.alarm.get() {
            alarm();
        }
    }

    /// The arenas that went since the last call. Both of one at once: who has it is known until peers are told that it is gone.
    pub(crate) fn take_gone(&self) -> Gone {
        let mut state = self.lock();
        Gone { arenas: std::mem::take(&mut state.gone), left: std::mem::take(&mut state.left) }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, PoolState> {
        lock(&self.state)
    }
}

fn no_room(len: usize) -> MemoryError {
    MemoryError::NoMemory { len, source: io::Error::other("a new arena has no room") }
}

const LINE: usize = 64;
const PAGE: usize = 4096;
const HUGE_PAGE: usize = 2 << 20;
/// Blocks up to this size share an arena; larger ones get one of their own, so that their memory goes back at once.
const LARGEST_SHARED: usize = 256 << 10;
/// Size of a shared arena: some dozens of the largest blocks, and few enough mappings at the peers.
const SHARED_ARENA: usize = 8 << 20;
/// The same where it is locked in memory: some of the largest blocks.
const REGISTERED_ARENA: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::memory::available;

    #[test]
    fn small_blocks_share_an_arena_and_are_zeroed_again() {
        let pool = ArenaPool::new();
        let a = pool.alloc(1, Reach::Nowhere, 100, HugePages::No).unwrap();
        let b = pool.alloc(1, Reach::Nowhere, 5000, HugePages::No).unwrap();
        assert_eq!(a.arena().unwrap().0, b.arena().unwrap().0);
        assert_eq!(b.base().as_ptr() as usize % PAGE, 0);
        // SAFETY: the block is ours and 100 bytes long.
        unsafe { a.base().as_ptr().write_bytes(9, 100) };
        drop(a);
        let a = pool.alloc(1, Reach::Nowhere, 100, HugePages::No).unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { a.base().as_ptr().read() }, 0);
    }

    #[test]
    fn blocks_that_are_dropped_are_given_out_again() {
        let pool = ArenaPool::new();
        for turn in 0..3 * SHARED_ARENA / LARGEST_SHARED {
            let block = pool.alloc(1, Reach::Nowhere, LARGEST_SHARED, HugePages::No).unwrap();
            assert_eq!(block.arena().unwrap(), (1, 0), "in turn {turn}");
        }
    }

    #[test]
    fn what_the_machine_does_not_have_is_refused() {
        let len = 1 << 40;
        match available::available() {
            Some(available) if available < len as u64 => {
                let error = ArenaPool::new().alloc(1, Reach::Nowhere, len, HugePages::No).unwrap_err();
                let MemoryError::NoMemory { source, .. } = error else { panic!("{error}") };
                assert_eq!(source.kind(), io::ErrorKind::OutOfMemory);
            }
            other => eprintln!("skipped: the machine may have that much: {other:?}"),
        }
    }

    #[test]
    fn an_arena_that_goes_rings_the_alarm_once_until_it_is_heard() {
        let pool = ArenaPool::new();
        let rings = Arc::new(AtomicU32::new(0));
        let counter = rings.clone();
        pool.set_alarm(move || _ = counter.fetch_add(1, Ordering::Relaxed));
        let blocks: Vec<_> = (0..3).map(|_| pool.alloc(1, Reach::Nowhere, 1 << 20, HugePages::No).unwrap()).collect();
        drop(blocks);
        assert_eq!((rings.load(Ordering::Relaxed), pool.take_gone().arenas.len()), (1, 3));
        drop(pool.alloc(1, Reach::Nowhere, 1 << 20, HugePages::No).unwrap());
        assert_eq!((rings.load(Ordering::Relaxed), pool.take_gone().arenas.len()), (2, 1));
    }

    #[test]
    fn large_blocks_return_their_memory() {
        let pool = ArenaPool::new();
        let block = pool.alloc(1, Reach::Nowhere, 4 << 20, HugePages::Try).unwrap();
        let (id, _) = block.arena().unwrap();
        assert!(pool.get(id).is_some());
        drop(block);
        assert!(pool.get(id).is_none());
        assert_eq!(pool.take_gone().arenas, [id]);
    }
}
