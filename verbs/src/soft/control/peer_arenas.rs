//! A peer's arenas as they are mapped here: asked for at first use, unmapped when their owner says that they are gone.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};
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
        drop(self.close());
    }
}

impl Mapped {
    fn of_host(id: u32, segment: Segment) -> Self {
        let (base, len) = (segment.base(), segment.len());
        Mapped { id, place: Place::HOST, base, len, memory: Memory::Host(Arc::new(segment)) }
    }

    pub(super) fn of_gpu(id: u32, imported: Imported) -> Self {
        let base = std::ptr::without_provenance_mut(imported.address() as usize);
        let (base, len, place) = (NonNull::new(base).unwrap_or(NonNull::dangling()), imported.len(), imported.place());
        Mapped { id, place, base, len, memory: Memory::Gpu(imported) }
    }
}

impl PeerArenas {
    pub(super) fn new() -> Self {
        PeerArenas {
            mapped: (0..SLOTS).map(|_| AtomicPtr::new(std::ptr::null_mut())).collect(),
            asked: Mutex::default(),
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
            segment.populate_start(POPULATE);
            Some(Mapped::of_host(arena, segment))
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
        if unsafe { mapped.as_ref() }.is_none_or(|mapped| mapped.id != arena) {
            return None;
        }
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
/// Bytes of an arena that are made present when it is mapped: some 10 ms of the control thread. The rest comes at first use.
const POPULATE: usize = 256 << 20;
