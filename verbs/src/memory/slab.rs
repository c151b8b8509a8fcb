//! A receive buffer whose contents are handed out as `Bytes` without copying.

use std::ops::{Deref, Range};
use std::sync::Arc;

use bytes::Bytes;

use crate::memory::{Backing, Buffer};

/// Registered memory for receives, of which shared views can be handed out.
///
/// [`share`](Slab::share) gives `Bytes` of a range: no copy and no allocation. While any of them is alive the slab can
/// be read but not posted; once they are dropped, [`is_unique`](Slab::is_unique) turns true and it can be posted again.
#[derive(Debug)]
pub struct Slab {
    /// Keeps the block and hands out views; the count of its clones tells whether any view is alive.
    whole: Bytes,
    buffer: Buffer,
}

/// Owner of the block behind a slab's `Bytes`.
struct View(Arc<Backing>);

impl AsRef<[u8]> for View {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the block is initialised and lives as long as the `Arc`. Nobody writes it while a view other than the
        // slab's own exists: the slab has no mutable access then and refuses to be posted (`is_unique`).
        unsafe { std::slice::from_raw_parts(self.0.base().as_ptr(), self.0.len()) }
    }
}

impl Slab {
    pub(crate) fn new(buffer: Buffer) -> Self {
        let whole = Bytes::from_owner(View(buffer.backing().clone()));
        Slab { whole, buffer }
    }

    /// A view of `range`, without a copy.
    ///
    /// # Panics
    /// If the range lies outside the slab, as slices do.
    #[inline]
    pub fn share(&self, range: Range<usize>) -> Bytes {
        self.whole.slice(range)
    }

    /// True if no view is alive, so that the slab can be posted.
    #[inline]
    pub fn is_unique(&self) -> bool {
        let unique = self.whole.is_unique();
        // A dropped view's last reads happen before its count went down; this makes them happen before what follows.
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
        unique
    }

    /// The bytes for writing, if no view is alive.
    pub fn get_mut(&mut self) -> Option<&mut [u8]> {
        if self.is_unique() { Some(&mut self.buffer) } else { None }
    }

    pub(crate) fn buffer(&self) -> &Buffer {
        &self.buffer
    }
}

impl Deref for Slab {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.whole
    }
}
