//! What a buffer stands on: a block of an arena, or memory that the caller gave.

use std::any::Any;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use bytes::Bytes;

use super::arena::Arena;
use crate::aside;
use crate::error::MemoryError;
use crate::gpu::{Allocation, GpuBuffer, Place};
use crate::ibv::{self, NotRegistered, Registered};
use crate::soft::Home;

/// One block of registered memory. It is freed when the last holder is gone.
pub(crate) struct Backing {
    base: NonNull<u8>,
    len: usize,
    domain: u64,
    lkey: u32,
    place: Place,
    /// The same on further devices, where the domain spans several.
    further: Option<Arc<[FurtherKey]>>,
    reach: Reach,
    kind: Kind,
}

/// The key of memory in work requests to a further device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FurtherKey {
    /// The domain of its queue pairs.
    pub(crate) domain: u64,
    pub(crate) lkey: u32,
}

/// Whose device reaches a block.
#[derive(Clone, Debug)]
pub(crate) enum Reach {
    /// The software device's.
    Soft(Arc<Home>),
    /// That of a protection domain of libibverbs.
    Ibv(Arc<ibv::Pd>),
    /// Nobody's.
    #[cfg(test)]
    Nowhere,
}

enum Kind {
    /// A block of an arena of ours, which peers can map.
    Arena { arena: Arc<Arena>, offset: usize, reserved: usize },
    /// A vector that the caller handed over.
    Vector { capacity: usize, registered: Option<Registered> },
    /// Memory that `owner` keeps alive.
    Foreign { owner: Box<dyn Any + Send + Sync>, registered: Option<Registered> },
    /// Shared bytes, which nobody writes; registered for peers only.
    Bytes { owner: Bytes },
    /// Memory of a GPU. No slice of it may be made.
    Gpu { buffer: GpuBuffer, arena: Option<u32>, registered: Option<Registered> },
    /// Given back, or to nobody.
    Gone,
}

// SAFETY: the block is owned memory; the types built on `Backing` decide who may touch it, and the arena's allocator
// is behind a lock.
unsafe impl Send for Backing {}
// SAFETY: as above; `Backing` itself reads and writes nothing through `base`.
unsafe impl Sync for Backing {}

impl Backing {
    /// A block of `arena`: `len` usable bytes within `reserved` bytes at `offset`.
    pub(crate) fn in_arena(
        domain: u64,
        reach: Reach,
        arena: Arc<Arena>,
        offset: usize,
        len: usize,
        reserved: usize,
    ) -> Arc<Self> {
        debug_assert!(len <= reserved && offset + reserved <= arena.len());
        // SAFETY: `offset` lies within the arena's mapping; the arena's allocator gave it out.
        let base = unsafe { arena.base().add(offset) };
        let (lkey, further) = (arena.lkey(), arena.further());
        let (place, kind) = (Place::HOST, Kind::Arena { arena, offset, reserved });
        Arc::new(Backing { base, len, domain, lkey, place, further, reach, kind })
    }

    /// A vector that the caller handed over; `register` makes it known to a device that has to be told.
    ///
    /// # Errors
    /// Those of `register`; the vector is dropped then, or leaked where a device keeps it.
    pub(crate) fn from_vec(
        domain: u64,
        reach: Reach,
        mut vector: Vec<u8>,
        register: impl FnOnce(NonNull<u8>, usize) -> Result<Option<Registered>, NotRegistered>,
    ) -> Result<Arc<Self>, MemoryError> {
        let base = NonNull::new(vector.as_mut_ptr()).unwrap_or(NonNull::dangling());
        let registered = match register(base, vector.len()) {
            Ok(registered) => registered,
            Err(failed) => return Err(failed.leaving(vector).0),
        };
        let lkey = registered.as_ref().map_or(0, Registered::lkey);
        let further = registered.as_ref().and_then(Registered::further_lkeys);
        let vector = ManuallyDrop::new(vector);
        let kind = Kind::Vector { capacity: vector.capacity(), registered };
        let (len, place) = (vector.len(), Place::HOST);
        Ok(Arc::new(Backing { base, len, domain, lkey, place, further, reach, kind }))
    }

    /// Memory that `owner` keeps alive.
    ///
    /// # Safety
    /// `base..base + len` stays valid for reads and writes, and is touched by nobody else, until `owner` is dropped.
    pub(crate) unsafe fn foreign(
        domain: u64,
        reach: Reach,
        (base, len): (NonNull<u8>, usize),
        owner: Box<dyn Any + Send + Sync>,
        registered: Option<Registered>,
    ) -> Arc<Self> {
        let lkey = registered.as_ref().map_or(0, Registered::lkey);
        let further = registered.as_ref().and_then(Registered::further_lkeys);
        let (place, kind) = (Place::HOST, Kind::Foreign { owner, registered });
        Arc::new(Backing { base, len, domain, lkey, place, further, reach, kind })
    }

    /// Shared bytes, to be read only.
    pub(crate) fn from_bytes(domain: u64, reach: Reach, bytes: Bytes) -> Self {
        let base = NonNull::new(bytes.as_ptr().cast_mut()).unwrap_or(NonNull::dangling());
        let kind = Kind::Bytes { owner: bytes.clone() };
        Backing { base, len: bytes.len(), domain, lkey: 0, place: Place::HOST, further: None, reach, kind }
    }

    /// Memory of a GPU. Whoever makes a [`Buffer`](super::Buffer) of it does not hand that out: it would yield slices.
    pub(crate) fn of_gpu(
        domain: u64,
        reach: Reach,
        buffer: GpuBuffer,
        arena: Option<u32>,
        registered: Option<Registered>,
    ) -> Arc<Self> {
        let base = std::ptr::without_provenance_mut(buffer.address() as usize);
        let base = NonNull::new(base).unwrap_or(NonNull::dangling());
        let (len, place) = (buffer.len(), buffer.allocation().place());
        let lkey = registered.as_ref().map_or(0, Registered::lkey);
        let further = registered.as_ref().and_then(Registered::further_lkeys);
        let kind = Kind::Gpu { buffer, arena, registered };
        Arc::new(Backing { base, len, domain, lkey, place, further, reach, kind })
    }

    /// The GPU's memory, if it is some.
    pub(crate) fn gpu(&self) -> Option<&Arc<Allocation>> {
        match &self.kind {
            Kind::Gpu { buffer, .. } => Some(buffer.allocation()),
            _ => None,
        }
    }

    /// Whose memory it is.
    #[inline(always)]
    pub(crate) fn place(&self) -> Place {
        self.place
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn domain(&self) -> u64 {
        self.domain
    }

    /// True if queue pairs of that domain reach it.
    #[inline(always)]
    pub(crate) fn is_of(&self, domain: u64) -> bool {
        self.domain == domain || self.further_lkey(domain).is_some()
    }

    /// Its key in work requests of a further domain.
    #[cold]
    pub(crate) fn further_lkey(&self, domain: u64) -> Option<u32> {
        self.further.as_ref()?.iter().find(|key| key.domain == domain).map(|key| key.lkey)
    }

    /// The key by which the device knows the block in work requests; 0 on the software device, which needs none.
    #[inline(always)]
    pub(crate) fn lkey(&self) -> u32 {
        self.lkey
    }

    /// True if it is registered without being locked.
    pub(crate) fn is_on_demand(&self) -> bool {
        match &self.kind {
            Kind::Vector { registered, .. } | Kind::Foreign { registered, .. } => {
                registered.as_ref().is_some_and(Registered::is_on_demand)
            }
            Kind::Arena { .. } | Kind::Bytes { .. } | Kind::Gpu { .. } | Kind::Gone => false,
        }
    }

    /// True if it is pinned for GPUs.
    pub(crate) fn is_pinned(&self) -> bool {
        matches!(&self.kind, Kind::Arena { arena, .. } if arena.segment().is_pinned())
    }

    /// True if no device may write it.
    pub(crate) fn is_read_only(&self) -> bool {
        matches!(self.kind, Kind::Bytes { .. })
    }

    /// Whose device reaches the block.
    pub(crate) fn reach(&self) -> &Reach {
        &self.reach
    }

    /// The arena's number and the block's offset in it, if peers can map it.
    pub(crate) fn arena(&self) -> Option<(u32, usize)> {
        match &self.kind {
            Kind::Arena { arena, offset, .. } => Some((arena.id(), *offset)),
            Kind::Gpu { arena, .. } => arena.map(|arena| (arena, 0)),
            Kind::Vector { .. } | Kind::Foreign { .. } | Kind::Bytes { .. } | Kind::Gone => None,
        }
    }

    /// The caller's vector, if this is one and nobody else holds it. A device that does not let go of it keeps it: an empty
    /// vector comes back then.
    pub(crate) fn into_vec(self: Arc<Self>) -> Result<Vec<u8>, Arc<Self>> {
        if !matches!(self.kind, Kind::Vector { .. }) {
            return Err(self);
        }
        let mut backing = Arc::try_unwrap(self)?;
        let kind = std::mem::replace(&mut backing.kind, Kind::Gone);
        let Kind::Vector { capacity, registered } = kind else { return Ok(Vec::new()) };
        Ok(backing.take_vec(capacity, registered).unwrap_or_default())
    }

    /// The GPU's memory, if it is some and nobody else holds it. A device that does not let go of it keeps it.
    pub(crate) fn into_gpu(self: Arc<Self>) -> Option<GpuBuffer> {
        let mut backing = Arc::into_inner(self)?;
        let kind = std::mem::replace(&mut backing.kind, Kind::Gone);
        let Kind::Gpu { buffer, registered, .. } = kind else { return None };
        let_go(registered, backing.len, buffer)
    }

    /// The vector, once the device has let go of it.
    fn take_vec(&self, capacity: usize, registered: Option<Registered>) -> Option<Vec<u8>> {
        let_go(registered, self.len, ())?;
        // SAFETY: pointer, length and capacity come from a vector that `from_vec` took over; whoever has the capacity took
        // it out of the kind, so that this is the only release, and no device reaches the memory any more.
        Some(unsafe { Vec::from_raw_parts(self.base.as_ptr(), self.len, capacity) })
    }
}

/// Has the device forget memory, and gives back what owns it; that is leaked where the device does not, also where what
/// logs it for the program panics.
fn let_go<T>(registered: Option<Registered>, len: usize, owner: T) -> Option<T> {
    let owner = ManuallyDrop::new(owner);
    match registered.map(Registered::close) {
        None | Some(Ok(())) => Some(ManuallyDrop::into_inner(owner)),
        Some(Err(error)) => {
            tracing::error!(%error, len, "the device keeps memory registered; it is leaked");
            None
        }
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.kind, Kind::Gone) {
            Kind::Arena { arena, offset, reserved } => arena.release(offset, reserved),
            Kind::Vector { capacity, registered } => drop(self.take_vec(capacity, registered)),
            Kind::Foreign { owner, registered } => {
                // It is the program's, and so is what its drop does.
                if let Some(owner) = let_go(registered, self.len, owner) {
                    aside::drop(owner);
                }
            }
            Kind::Gpu { buffer, registered, .. } => drop(let_go(registered, self.len, buffer)),
            Kind::Bytes { owner } => aside::drop(owner),
            Kind::Gone => {}
        }
    }
}

impl std::fmt::Debug for Backing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.kind {
            Kind::Arena { .. } => "arena",
            Kind::Vector { .. } => "vector",
            Kind::Foreign { .. } => "foreign",
            Kind::Bytes { .. } => "bytes",
            Kind::Gpu { .. } => "gpu",
            Kind::Gone => "gone",
        };
        f.debug_struct("Backing").field("len", &self.len).field("kind", &kind).finish()
    }
}
