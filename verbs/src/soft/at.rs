//! A value in a segment, which stays mapped as long as this.

use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::memory::Segment;

/// A value made of atomics somewhere in a segment.
pub(crate) struct At<T> {
    value: NonNull<T>,
    segment: Arc<Segment>,
}

// SAFETY: it gives out `&T` only, and keeps the mapping.
unsafe impl<T: Sync> Send for At<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for At<T> {}

impl<T> At<T> {
    /// The value at `offset`; `None` if it does not lie within the segment, or is not aligned.
    ///
    /// # Safety
    /// As [`Segment::at`].
    pub(crate) unsafe fn new(segment: &Arc<Segment>, offset: usize) -> Option<Self> {
        // SAFETY: passed on to the caller.
        let value = unsafe { segment.at::<T>(offset) }?;
        Some(At { value, segment: segment.clone() })
    }
}

impl<T> Clone for At<T> {
    fn clone(&self) -> Self {
        At { value: self.value, segment: self.segment.clone() }
    }
}

impl<T> Deref for At<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: mapped as long as `segment` lives; valid for any bit pattern (`new`).
        unsafe { self.value.as_ref() }
    }
}

impl<T> fmt::Debug for At<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("At").field(&self.value).finish()
    }
}
