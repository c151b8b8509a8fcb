//! Ordinary registered memory: derefs to bytes, and moves into the work request it is posted with.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::error::{ExposeFailed, PostError};
use crate::gpu::GpuBuffer;
use crate::memory::{Backing, ExposedRegion, RegionShared, Slab};
use crate::types::Access;

/// Registered memory that this program alone may touch.
///
/// It derefs to `[u8]`. Posting moves it into the work request; it comes back with the completion, so that no safe
/// code can touch memory that a device may be writing:
///
/// ```compile_fail,E0382
/// # use qpair_verbs::*;
/// # fn f(qp: &mut QueuePair, buf: Buffer) {
/// qp.recv(buf).post().unwrap();
/// println!("{}", buf[0]); // moved into the receive
/// # }
/// ```
#[derive(Debug)]
pub struct Buffer {
    backing: Arc<Backing>,
    /// What the last exposure allocated, for the next one.
    spare: Option<Arc<RegionShared>>,
}

/// Whether memory stands on huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// Ordinary pages.
    #[default]
    No,
    /// Huge pages where the system has some reserved, else ordinary ones.
    Try,
    /// Huge pages, or an error.
    Require,
}

impl Buffer {
    pub(crate) fn new(backing: Arc<Backing>) -> Self {
        Buffer { backing, spare: None }
    }

    /// Lets peers of this domain's queue pairs reach the memory; see [`ExposedRegion`]. Allocates the first time only.
    ///
    /// # Errors
    /// [`ExposeFailed`] with the buffer, unless a device keeps that, if no remote key is free or the device refuses it.
    pub fn expose(self, access: Access) -> Result<ExposedRegion, ExposeFailed> {
        ExposedRegion::new(self, access)
    }

    /// Turns the buffer into a slab, whose received bytes can be shared without copying.
    pub fn into_slab(self) -> Slab {
        Slab::new(self)
    }

    /// The vector that was registered with [`ProtectionDomain::register`](crate::ProtectionDomain::register). It is empty where
    /// a device that failed may still write to the memory, which is leaked then.
    ///
    /// # Errors
    /// The buffer, if it came from the domain's own allocator.
    pub fn into_vec(self) -> Result<Vec<u8>, Buffer> {
        self.backing.into_vec().map_err(Buffer::new)
    }

    /// True if it is pinned for GPUs; see [`ProtectionDomain::alloc_pinned`](crate::ProtectionDomain::alloc_pinned).
    pub fn is_pinned(&self) -> bool {
        self.backing.is_pinned()
    }

    /// The GPU's memory that it stands on; such a buffer is inside of a region only.
    pub(crate) fn into_gpu(self) -> Option<GpuBuffer> {
        self.backing.into_gpu()
    }

    pub(crate) fn backing(&self) -> &Arc<Backing> {
        &self.backing
    }

    /// What an exposure that is over had allocated, kept by [`keep`](Buffer::keep).
    pub(crate) fn spare(&mut self) -> Option<Arc<RegionShared>> {
        self.spare.take()
    }

    pub(crate) fn keep(&mut self, spare: Arc<RegionShared>) {
        self.spare = Some(spare);
    }

    pub(crate) fn check_domain(&self, domain: u64) -> Result<(), PostError> {
        if self.backing.is_of(domain) { Ok(()) } else { Err(PostError::WrongDomain) }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the block is the processor's (`Backing::of_gpu` says who sees to that), initialised (zeroed pages or the
        // caller's bytes) and lives as long as `backing`. A
        // `Buffer` value exists only while no device holds the block: posting and exposing consume it.
        unsafe { std::slice::from_raw_parts(self.backing.base().as_ptr(), self.backing.len()) }
    }
}

impl DerefMut for Buffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `Buffer` is the only holder of its backing (slabs keep theirs apart), so `&mut self`
        // is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.backing.base().as_ptr(), self.backing.len()) }
    }
}
