//! A peer's arenas as they are mapped here: asked for at first use, unmapped when their owner says that they are gone.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use crate::aside;
use crate::gpu::{Gpu, Imported, Place};
use crate::memory::Segment;
use crate::sync::lock;

/// The arenas of one peer.
#[derive(Debug)]
pub(super) struct PeerArenas {
    /// Mapped ones, by the low bits of their number.
    mapped: Box<[AtomicPtr<Mapped>]>,
    /// Asked for and not mapped; `true` once it is known that they are reached without mapping.
    asked: Mutex<HashMap<u32, bool>>,
    /// Bytes that may be made present still. The control thread's own.
    left: AtomicUsize,
}

/// How to reach a range of the peer's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reach {
    /// At this address of our own, of the processor's memory or a GPU's.
    Mapped(NonNull<u8>, Place),
    /// Soon: the arena was asked for.
    Pending,
    /// Not by mapping.
    Unmapped,
}

/// A mapped arena.
#[derive(Debug)]
pub(super) struct Mapped {
    id: u32,
    place: Place,
    base: NonNull<u8>,
    len: usize,
    /// Bytes that were made present when it was mapped.
    populated: usize,
    memory: Memory,
}

/// What is unmapped on drop, or when it was pinned if that is under way.
#[derive(Debug)]
enum Memory {
    Host(Arc<Segment>),
    Gpu(Imported),
}

/// An arena that is out of the table, freed on drop. Whoever has it drops it once nobody of this device may be at it.
#[derive(Debug)]
pub(super) struct Forgotten(Option<NonNull<Mapped>>);

// SAFETY: the arena is this value's; those who may be at it look, as in the table.
unsafe impl Send for Forgotten {}

impl Forgotten {
    /// Frees it, since nobody is at it any more. Where a driver has to close it, that is done on another thread: the result
    /// dangles once it was.
    pub(super) fn close(&mut self) -> Option<Weak<()>> {
        // SAFETY: made by `Box::into_raw` in `install_with`, and out of the table; by the caller's word nobody is at it.
        let mapped = unsafe { Box::from_raw(self.0.take()?.as_ptr()) };
        let Memory::Gpu(imported) = mapped.memory else { return None };
        let open = Arc::new(());
        let closing = Arc::downgrade(&open);
        // Dropped in this order.
        aside::give((imported, open));
        Some(closing)
    }
}

impl Drop for Forgotten {
    fn drop(&mut self) {
        // Somebody may be at it where a panic drops it.
        if !std::thread::panicking() {
            drop(self.close());
        }
    }
}

impl Mapped {
    /// Makes its first pages present, `limit` bytes at most.
    fn of_host(id: u32, segment: Segment, limit: usize) -> Self {
        let (base, len, populated) = (segment.base(), segment.len(), segment.populate_present(limit));
        Mapped { id, place: Place::HOST, base, len, populated, memory: Memory::Host(Arc::new(segment)) }
    }

    pub(super) fn of_gpu(id: u32, imported: Imported) -> Self {
        let base = std::ptr::without_provenance_mut(imported.address() as usize);
        let (base, len, place) = (NonNull::new(base).unwrap_or(NonNull::dangling()), imported.len(), imported.place());
        Mapped { id, place, base, len, populated: 0, memory: Memory::Gpu(imported) }
    }
}

impl PeerArenas {
    pub(super) fn new() -> Self {
        PeerArenas {
            mapped: (0..SLOTS).map(|_| AtomicPtr::new(std::ptr::null_mut())).collect(),
            asked: Mutex::default(),
            left: AtomicUsize::new(POPULATE_ALL),
        }
    }

    /// Where `len` bytes at `offset` of an arena lie; `None` if it is not mapped. The caller is inside its hazard.
    #[inline(always)]
    pub(super) fn find(&self, arena: u32, offset: u64, len: u64) -> Option<Reach> {
        // SAFETY: a mapped arena is freed only after it was taken out of the table (`forget`) and every initiator of this device
        // was seen outside its hazard (`Departures`); the caller is inside.
        let mapped =
            unsafe { self.place(arena).load(Ordering::Acquire).as_ref() }.filter(|mapped| mapped.id == arena)?;
        Some(match offset.checked_add(len) {
            Some(end) if end <= mapped.len as u64 => {
                // SAFETY: `offset` was just found to lie within the mapping, so that the sum is no null pointer.
                let at = unsafe { NonNull::new_unchecked(mapped.base.as_ptr().wrapping_add(offset as usize)) };
                Reach::Mapped(at, mapped.place)
            }
            _ => Reach::Unmapped,
        })
    }

    /// Pins an arena of the processor's memory, if it is mapped and that was not tried before. The caller is inside its hazard.
    #[cold]
    pub(super) fn pin(&self, arena: u32, gpu: Gpu) {
        // SAFETY: as in `find`.
        let mapped = unsafe { self.place(arena).load(Ordering::Acquire).as_ref() };
        if let Some(Mapped { id, memory: Memory::Host(segment), .. }) = mapped
            && *id == arena
        {
            segment.pin_aside(gpu);
        }
    }

    /// Asks for an arena that is not mapped, once; `ask` is false if the question could not be sent.
    #[cold]
    pub(super) fn ask(&self, arena: u32, ask: impl FnOnce() -> bool) -> Reach {
        let mut asked = self.asked();
        match asked.get(&arena) {
            Some(true) => Reach::Unmapped,
            Some(false) => Reach::Pending,
            // One that lies asks for no more than it has room for.
            None if asked.len() >= MOST_ASKED => Reach::Unmapped,
            None => {
                if ask() {
                    asked.insert(arena, false);
                }
                Reach::Pending
            }
        }
    }

    /// Maps an arena that the peer sent.
    pub(super) fn install(&self, arena: u32, len: u64, fd: Option<OwnedFd>) {
        self.install_with(arena, || {
            let segment = Segment::map_peer_arena(fd?, usize::try_from(len).ok()?, true).ok()?;
            let mapped = Mapped::of_host(arena, segment, POPULATE.min(self.left.load(Ordering::Relaxed)));
            self.left.fetch_sub(mapped.populated, Ordering::Relaxed);
            Some(mapped)
        });
    }

    /// The same as `map` does it, which is called only for an arena that was asked for.
    pub(super) fn install_with(&self, arena: u32, map: impl FnOnce() -> Option<Mapped>) {
        if self.asked().get(&arena) != Some(&false) {
            return;
        }
        // Not under the lock, which those who ask for others take inside of their hazards. Nobody else installs or forgets.
        let is_free = self.place(arena).load(Ordering::Acquire).is_null();
        let mapped = is_free.then(map).flatten();
        let mut asked = self.asked();
        match mapped {
            Some(mapped) => {
                self.place(arena).store(Box::into_raw(Box::new(mapped)), Ordering::Release);
                asked.remove(&arena);
            }
            // Not to be mapped, or its place in the table is taken: it is reached without mapping.
            _ => drop(asked.insert(arena, true)),
        }
    }

    /// Takes an arena out of the table; it is to be freed once all initiators of this device have left that are inside an
    /// access from now on.
    pub(super) fn forget(&self, arena: u32) -> Option<Forgotten> {
        self.asked().remove(&arena);
        let mapped = self.place(arena).load(Ordering::Acquire);
        // SAFETY: only this thread, the device's control thread, frees mapped arenas.
        let known = unsafe { mapped.as_ref() }.filter(|mapped| mapped.id == arena)?;
        self.left.fetch_add(known.populated, Ordering::Relaxed);
        self.place(arena).store(std::ptr::null_mut(), Ordering::Release);
        std::sync::atomic::fence(Ordering::SeqCst);
        Some(Forgotten(NonNull::new(mapped)))
    }

    #[inline(always)]
    fn place(&self, arena: u32) -> &AtomicPtr<Mapped> {
        &self.mapped[arena as usize % SLOTS]
    }

    fn asked(&self) -> MutexGuard<'_, HashMap<u32, bool>> {
        lock(&self.asked)
    }
}

impl Drop for PeerArenas {
    fn drop(&mut self) {
        for place in &self.mapped {
            let mapped = place.swap(std::ptr::null_mut(), Ordering::AcqRel);
            if !mapped.is_null() {
                // SAFETY: made by `Box::into_raw` in `install`; the link's last holder is gone, so nobody uses it.
                drop(unsafe { Box::from_raw(mapped) });
            }
        }
    }
}

/// Mapped arenas of one peer; further ones are reached without mapping.
const SLOTS: usize = 4096;
/// Arenas asked for and not mapped: beyond, they are reached without.
const MOST_ASKED: usize = 2 * SLOTS;
/// Bytes of an arena that are made present when it is mapped: some 10 ms of the control thread. The rest comes at first use.
const POPULATE: usize = 256 << 20;
/// The same of all arenas of one peer that are mapped: it may name one memory as many arenas.
const POPULATE_ALL: usize = 4 << 30;

#[cfg(test)]
mod tests {
    use rustix::fs::fstat;

    use super::*;
    use crate::memory::Writers;

    const LEN: usize = 64 << 10;

    /// Memory of a peer of which `present` bytes are there, installed as that arena.
    fn install(arenas: &PeerArenas, arena: u32, present: usize) -> Segment {
        install_from(arenas, arena, 0..present)
    }

    fn install_from(arenas: &PeerArenas, arena: u32, present: std::ops::Range<usize>) -> Segment {
        let theirs = Segment::create("t", LEN, Writers::Peers).unwrap();
        // SAFETY: the bytes are this test's, and within the segment.
        unsafe { theirs.base().add(present.start).write_bytes(7, present.len()) };
        assert!(matches!(arenas.ask(arena, || true), Reach::Pending));
        arenas.install(arena, LEN as u64, Some(theirs.fd().try_clone_to_owned().unwrap()));
        assert!(matches!(arenas.find(arena, 0, LEN as u64), Some(Reach::Mapped(..))));
        theirs
    }

    #[test]
    fn a_peer_that_names_ever_others_is_asked_for_so_many() {
        let (arenas, mut questions) = (PeerArenas::new(), 0);
        let mut ask = |arena| {
            let ask = || {
                questions += 1;
                true
            };
            arenas.ask(arena, ask)
        };
        assert!((0..MOST_ASKED as u32).all(|arena| matches!(ask(arena), Reach::Pending)));
        assert!((0..100).all(|more| matches!(ask(u32::MAX - more), Reach::Unmapped)));
        assert!(matches!(ask(3), Reach::Pending), "as before");
        assert_eq!(questions, MOST_ASKED);
        arenas.forget(3);
        assert!(matches!(arenas.ask(u32::MAX, || true), Reach::Pending), "there is room again");
    }

    #[test]
    fn no_memory_is_made_for_a_peer() {
        let arenas = PeerArenas::new();
        let sparse = install(&arenas, 1, 0);
        assert_eq!(fstat(sparse.fd()).unwrap().st_blocks, 0);
        assert_eq!(arenas.left.load(Ordering::Relaxed), POPULATE_ALL);
        let part = install(&arenas, 2, LEN / 2);
        assert_eq!(fstat(part.fd()).unwrap().st_blocks as usize * 512, LEN / 2);
        assert_eq!(arenas.left.load(Ordering::Relaxed), POPULATE_ALL - LEN / 2);
        // Pages behind a hole are left.
        let end = install_from(&arenas, 3, LEN / 2..LEN);
        assert_eq!(fstat(end.fd()).unwrap().st_blocks as usize * 512, LEN / 2);
    }

    #[test]
    fn a_peer_has_so_much_made_present_and_no_more_until_some_is_gone() {
        let arenas = PeerArenas::new();
        arenas.left.store(LEN + LEN / 2, Ordering::Relaxed);
        for (arena, left) in [(1, LEN / 2), (2, 0), (3, 0)] {
            install(&arenas, arena, LEN);
            assert_eq!(arenas.left.load(Ordering::Relaxed), left);
        }
        drop((arenas.forget(3), arenas.forget(1)));
        assert_eq!(arenas.left.load(Ordering::Relaxed), LEN);
        assert!(arenas.forget(1).is_none());
        assert_eq!(arenas.left.load(Ordering::Relaxed), LEN);
    }
}
