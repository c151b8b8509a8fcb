//! A receive buffer whose contents are handed out without copying.

use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use bytes::Bytes;

use crate::memory::{Backing, Buffer};

/// Registered memory for receives, of which shared views can be handed out.
///
/// [`share`](Slab::share) gives a [`SlabView`] of a range: no copy and no allocation. While any of them is alive the slab
/// can be read but not posted; once they are dropped, [`is_unique`](Slab::is_unique) turns true and it can be posted
/// again.
// Moved in pieces of 16 bytes: at an odd multiple of 8 within an enum it would be read across two pieces that were just
// written, which the processor does not forward (some 5 ns for each received message).
#[derive(Debug)]
#[repr(align(16))]
pub struct Slab {
    buffer: Buffer,
}

/// A shared view of received bytes; keeps its slab from being posted.
///
/// [`into_bytes`](SlabView::into_bytes) makes it [`Bytes`], still without a copy.
#[derive(Clone)]
pub struct SlabView {
    /// The block; its count tells the slab whether views are alive.
    backing: Arc<Backing>,
    start: usize,
    len: usize,
}

impl Slab {
    pub(crate) fn new(buffer: Buffer) -> Self {
        Slab { buffer }
    }

    /// A view of `range`, without a copy.
    ///
    /// # Panics
    /// If the range lies outside the slab, as slices do.
    #[inline]
    pub fn share(&self, range: Range<usize>) -> SlabView {
        let backing = self.buffer.backing();
        assert!(range.start <= range.end && range.end <= backing.len(), "range outside the slab");
        SlabView { backing: backing.clone(), start: range.start, len: range.end - range.start }
    }

    /// True if no view is alive, so that the slab can be posted.
    #[inline]
    pub fn is_unique(&self) -> bool {
        let unique = Arc::strong_count(self.buffer.backing()) == 1;
        // A dropped view's last reads happen before its count went down; this makes them happen before what follows.
        fence(Ordering::Acquire);
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
        &self.buffer
    }
}

impl SlabView {
    /// The view as [`Bytes`]: no copy, one small allocation for the owner.
    pub fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }

    /// The part `range` of this view.
    ///
    /// # Panics
    /// If the range lies outside the view, as slices do.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> SlabView {
        assert!(range.start <= range.end && range.end <= self.len, "range outside the view");
        SlabView { backing: self.backing.clone(), start: self.start + range.start, len: range.end - range.start }
    }
}

impl Deref for SlabView {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the block is initialised and lives as long as the `Arc`; the range was checked when the view was made.
        // Nobody writes the block while a view exists: the slab gives no mutable access then and refuses to be posted
        // (`is_unique`).
        unsafe { std::slice::from_raw_parts(self.backing.base().as_ptr().add(self.start), self.len) }
    }
}

impl AsRef<[u8]> for SlabView {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<SlabView> for Bytes {
    fn from(view: SlabView) -> Self {
        view.into_bytes()
    }
}

impl PartialEq<[u8]> for SlabView {
    fn eq(&self, other: &[u8]) -> bool {
        **self == *other
    }
}

impl std::fmt::Debug for SlabView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "b\"{}\"", self.escape_ascii())
    }
}
