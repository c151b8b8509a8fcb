//! What a buffer stands on: a block of an arena, or memory that the caller gave.

use std::any::Any;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::soft::Arena;

/// One block of registered memory. It is freed when the last holder is gone.
pub(crate) struct Backing {
    base: NonNull<u8>,
    len: usize,
    domain: u64,
    kind: Kind,
}

enum Kind {
    /// A block of an arena of ours, which peers can map.
    Arena { arena: Arc<Arena>, offset: usize, reserved: usize },
    /// A vector that the caller handed over.
    Vector { capacity: usize },
    /// Memory that `owner` keeps alive.
    Foreign { _owner: Box<dyn Any + Send + Sync> },
}

// SAFETY: the block is owned memory; the types built on `Backing` decide who may touch it, and the arena's allocator
// is behind a lock.
unsafe impl Send for Backing {}
// SAFETY: as above; `Backing` itself reads and writes nothing through `base`.
unsafe impl Sync for Backing {}

impl Backing {
    /// A block of `arena`: `len` usable bytes within `reserved` bytes at `offset`.
    pub(crate) fn in_arena(domain: u64, arena: Arc<Arena>, offset: usize, len: usize, reserved: usize) -> Arc<Self> {
        debug_assert!(len <= reserved && offset + reserved <= arena.len());
        // SAFETY: `offset` lies within the arena's mapping; the arena's allocator gave it out.
        let base = unsafe { arena.base().add(offset) };
        Arc::new(Backing { base, len, domain, kind: Kind::Arena { arena, offset, reserved } })
    }

    /// A vector that the caller handed over.
    pub(crate) fn from_vec(domain: u64, vector: Vec<u8>) -> Arc<Self> {
        let mut vector = ManuallyDrop::new(vector);
        let (len, capacity) = (vector.len(), vector.capacity());
        let base = NonNull::new(vector.as_mut_ptr()).unwrap_or(NonNull::dangling());
        Arc::new(Backing { base, len, domain, kind: Kind::Vector { capacity } })
    }

    /// Memory that `owner` keeps alive.
    ///
    /// # Safety
    /// `base..base + len` stays valid for reads and writes, and is touched by nobody else, until `owner` is dropped.
    pub(crate) unsafe fn foreign(
        domain: u64,
        base: NonNull<u8>,
        len: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Arc<Self> {
        Arc::new(Backing { base, len, domain, kind: Kind::Foreign { _owner: owner } })
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

    /// The arena's number and the block's offset in it, if peers can map it.
    pub(crate) fn arena(&self) -> Option<(u32, usize)> {
        match &self.kind {
            Kind::Arena { arena, offset, .. } => Some((arena.id(), *offset)),
            Kind::Vector { .. } | Kind::Foreign { .. } => None,
        }
    }

    /// The caller's vector, if this is one and nobody else holds it.
    pub(crate) fn into_vec(self: Arc<Self>) -> Result<Vec<u8>, Arc<Self>> {
        if !matches!(self.kind, Kind::Vector { .. }) {
            return Err(self);
        }
        let backing = ManuallyDrop::new(Arc::try_unwrap(self)?);
        let Kind::Vector { capacity } = backing.kind else { return Ok(Vec::new()) };
        // SAFETY: pointer, length and capacity come from a vector that `from_vec` took over; `ManuallyDrop` keeps
        // this the only release of it.
        Ok(unsafe { Vec::from_raw_parts(backing.base.as_ptr(), backing.len, capacity) })
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        match &self.kind {
            Kind::Arena { arena, offset, reserved } => arena.release(*offset, *reserved),
            Kind::Vector { capacity } => {
                // SAFETY: pointer, length and capacity come from a vector that `from_vec` took over; this is the
                // only release, since `into_vec` forgets the backing.
                drop(unsafe { Vec::from_raw_parts(self.base.as_ptr(), self.len, *capacity) });
            }
            Kind::Foreign { .. } => {}
        }
    }
}

impl std::fmt::Debug for Backing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.kind {
            Kind::Arena { .. } => "arena",
            Kind::Vector { .. } => "vector",
            Kind::Foreign { .. } => "foreign",
        };
        f.debug_struct("Backing").field("len", &self.len).field("kind", &kind).finish()
    }
}
