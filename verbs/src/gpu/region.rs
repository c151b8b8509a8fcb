//! GPU memory with a protection domain.

use std::fmt;
use std::ops::Range;

use super::buffer::GpuBuffer;
use super::device::Gpu;
use super::path::{Flush, RegistrationPath, Way};
use crate::error::{GpuError, GpuRevokeFailed, MemoryError, RevokeBlocked};
use crate::memory::{Atomic, Bindable, ExposedRegion, Here, RegionSlice, RemoteSlice, Whole};
use crate::pd::ProtectionDomain;
use crate::types::{Access, Rkey};

/// Registered GPU memory, made by [`ProtectionDomain::register_gpu`].
///
/// Work requests name parts of it by [`local`](GpuRegion::local), peers by [`remote`](GpuRegion::remote). On the software
/// device it can be the memory of every request, of windows too; between hosts its bytes go by pinned memory of the processor, many
/// packets at a time. [`revoke`](GpuRegion::revoke) gives the memory back.
pub struct GpuRegion {
    region: ExposedRegion,
    path: RegistrationPath,
}

impl GpuRegion {
    /// `region` stands on GPU memory.
    pub(crate) fn new(region: ExposedRegion, path: RegistrationPath) -> Self {
        GpuRegion { region, path }
    }

    /// Length in bytes; never zero.
    #[allow(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.region.len()
    }

    /// The rights that peers have.
    pub fn access(&self) -> Access {
        self.region.access()
    }

    /// The key that peers present.
    pub fn rkey(&self) -> Rkey {
        self.region.rkey()
    }

    /// As [`ExposedRegion::rkey_in`].
    pub fn rkey_in(&self, domain: &ProtectionDomain) -> Option<Rkey> {
        self.region.rkey_in(domain)
    }

    /// How the device reaches it.
    pub fn path(&self) -> &RegistrationPath {
        &self.path
    }

    /// The name of `range` for peers: plain data to send to them.
    ///
    /// # Panics
    /// If the range lies outside the region, as slices do.
    pub fn remote(&self, range: Range<usize>) -> RemoteSlice {
        self.region.remote(range)
    }

    /// `range` as the local side of work requests.
    ///
    /// # Panics
    /// If the range lies outside the region, as slices do.
    pub fn local(&self, range: Range<usize>) -> RegionSlice {
        self.region.local(range)
    }

    /// Copies from `offset` on into `into`. Bytes that a peer writes meanwhile may be old or new.
    ///
    /// # Errors
    /// [`MemoryError::Range`], [`MemoryError::Gpu`].
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), MemoryError> {
        self.region.read(offset, into)
    }

    /// Copies `from` to `offset` on. It is there when this returns.
    ///
    /// # Errors
    /// [`MemoryError::Range`], [`MemoryError::Gpu`].
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<(), MemoryError> {
        self.region.write(offset, from)
    }

    /// Adds to the 8 bytes at `offset`, in the machine's byte order, by a kernel; gives the value before. Atomic towards kernels
    /// and, as [`ExposedRegion::fetch_add`] says, towards peers' atomics.
    ///
    /// # Errors
    /// [`MemoryError::Range`], [`MemoryError::Misaligned`], [`MemoryError::Gpu`].
    pub fn fetch_add(&self, offset: usize, add: u64) -> Result<u64, MemoryError> {
        self.region.change(offset, Atomic::FetchAdd(add))
    }

    /// Other memory of the same GPU with what this holds now. Bytes that a peer writes meanwhile may be old or new.
    ///
    /// # Errors
    /// [`MemoryError::Gpu`].
    pub fn copy(&self) -> Result<GpuBuffer, MemoryError> {
        let Some(allocation) = self.region.gpu() else { unreachable!("the region was made of GPU memory") };
        Ok(GpuBuffer::copy_of(allocation)?)
    }

    /// Makes what peers have written visible to kernels that start from now on, by the rule that holds on every machine
    /// ([GPUDirect RDMA](https://docs.nvidia.com/cuda/gpudirect-rdma/), "Synchronization and memory ordering"): to be called after
    /// polling the completions that tell of the writes.
    ///
    /// # Errors
    /// [`MemoryError::Gpu`].
    pub fn flush(&self) -> Result<Flush, MemoryError> {
        Ok(self.flush_to(false)?)
    }

    /// The same for kernels and copies of its own GPU, or of any.
    pub(super) fn flush_to(&self, all: bool) -> Result<Flush, GpuError> {
        let Some(allocation) = self.region.gpu() else { return Ok(Flush::NotNeeded) };
        let attributes = allocation.attributes();
        let is_ordered = if all { attributes.writes_ordered_for_all } else { attributes.writes_ordered };
        if self.path.way == Way::Software || is_ordered {
            return Ok(Flush::NotNeeded);
        }
        if !attributes.flush.host {
            return Ok(Flush::ReadBack);
        }
        allocation.flush(all)?;
        Ok(Flush::Done)
    }

    /// The GPU whose memory it is.
    pub(super) fn gpu(&self) -> Option<Gpu> {
        self.region.gpu().map(|allocation| Gpu::on(allocation.device()))
    }

    /// Withdraws the key, waits until no peer is in the middle of an access, and gives the memory back.
    ///
    /// # Errors
    /// [`GpuRevokeFailed`] with the region, as [`ExposedRegion::revoke`].
    pub fn revoke(self) -> Result<GpuBuffer, GpuRevokeFailed> {
        self.take_back(ExposedRegion::revoke)
    }

    /// As [`revoke`](GpuRegion::revoke), without waiting for peers; see [`ExposedRegion::try_revoke`].
    ///
    /// # Errors
    /// As [`revoke`](GpuRegion::revoke).
    pub fn try_revoke(self) -> Result<GpuBuffer, GpuRevokeFailed> {
        self.take_back(ExposedRegion::try_revoke)
    }

    fn take_back(
        self,
        revoke: impl FnOnce(ExposedRegion) -> Result<crate::Buffer, crate::RevokeFailed>,
    ) -> Result<GpuBuffer, GpuRevokeFailed> {
        let GpuRegion { region, path } = self;
        match revoke(region) {
            Ok(buffer) => buffer.into_gpu().ok_or(GpuRevokeFailed { why: KEPT, region: None }),
            Err(failed) => {
                let region = Some(GpuRegion { region: failed.region, path });
                Err(GpuRevokeFailed { why: failed.why, region })
            }
        }
    }
}

impl Bindable for GpuRegion {}

impl Whole for GpuRegion {
    fn whole(&self, _: Here) -> &ExposedRegion {
        &self.region
    }
}

impl fmt::Debug for GpuRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuRegion")
            .field("len", &self.len())
            .field("access", &self.access())
            .field("rkey", &self.rkey())
            .field("path", &self.path.name())
            .finish()
    }
}

/// The device does not end its registration: the memory is leaked, since it may be reached for ever.
const KEPT: RevokeBlocked = RevokeBlocked::Refused { errno: libc::EBUSY };
