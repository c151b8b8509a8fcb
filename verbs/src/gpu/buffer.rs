//! Memory of a GPU that this program alone has.

use std::ops::Range;
use std::sync::Arc;

use super::allocation::Allocation;
use super::atomic;
use super::device::Gpu;
use super::lane;
use super::place::Place;
use crate::calc::{Calc, Scale};
use crate::error::GpuError;

/// Memory of a GPU.
///
/// It yields no slice: the processor does not reach it. Bytes are copied in and out; kernels of other libraries take its
/// [`address`](GpuBuffer::address). Registering moves it into a [`GpuRegion`](super::GpuRegion), which gives it back once no
/// device and no peer reaches it any more, so that it can not be freed before:
///
/// ```compile_fail,E0382
/// # use qpair_verbs::*;
/// # fn f(pd: &ProtectionDomain, buffer: GpuBuffer) {
/// let region = pd.register_gpu(buffer, Access::REMOTE_WRITE).unwrap();
/// drop(buffer); // moved into the region
/// # }
/// ```
///
/// Dropping it waits, as `cudaFree` does, for all that the GPU's streams were given before, so that kernels which were given its
/// [`address`](GpuBuffer::address) have ended when the memory goes, also where an error or a panic ends a function early. While a
/// stream of the GPU is [held](super::GpuHold) it does not wait: the memory is kept until none is, and given back then by a
/// thread of this library. A program that always holds some stream has it back never; a hold that another thread begins in just the
/// moment of the drop is waited for. Of [adopted](super::Gpu::adopt) memory the owner is dropped, without a wait: what uses the
/// memory is the owner's to wait for.
#[derive(Debug)]
pub struct GpuBuffer {
    allocation: Arc<Allocation>,
}

impl GpuBuffer {
    pub(super) fn new(allocation: Allocation) -> Self {
        GpuBuffer { allocation: Arc::new(allocation) }
    }

    /// Other memory of the same GPU with the same contents.
    pub(super) fn copy_of(allocation: &Allocation) -> Result<Self, GpuError> {
        let copy = Self::new(Allocation::new(allocation.device(), allocation.len())?);
        let (to, from) = (copy.allocation.address() as usize, allocation.address() as usize);
        let at = |address, place| (std::ptr::without_provenance_mut(address), place);
        // SAFETY: both have as many bytes and are different memory.
        unsafe { lane::copy(at(to, copy.place()), at(from, allocation.place()), allocation.len()) }?;
        Ok(copy)
    }

    /// Length in bytes; never zero.
    #[allow(clippy::len_without_is_empty, reason = "memory is never empty")]
    pub fn len(&self) -> usize {
        self.allocation.len()
    }

    /// The GPU whose memory it is.
    pub fn gpu(&self) -> Gpu {
        Gpu::on(self.allocation.device())
    }

    /// Its address, for kernels. Whoever writes there is done, and has synchronised, before this value is used again.
    pub fn address(&self) -> u64 {
        self.allocation.address()
    }

    /// Copies `from` to `offset` on. It is there when this returns.
    ///
    /// # Errors
    /// [`GpuError::Range`], [`GpuError::Driver`].
    pub fn write(&mut self, offset: usize, from: &[u8]) -> Result<(), GpuError> {
        let at = self.at(offset, from.len())?;
        // SAFETY: `at` spans as many bytes of this memory, and `from` is a slice.
        unsafe { lane::copy((at, self.place()), (from.as_ptr().cast_mut(), Place::HOST), from.len()) }
    }

    /// Copies from `offset` on into `into`.
    ///
    /// # Errors
    /// [`GpuError::Range`], [`GpuError::Driver`].
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), GpuError> {
        let at = self.at(offset, into.len())?;
        // SAFETY: `at` spans as many bytes of this memory, and `into` is a slice.
        unsafe { lane::copy((into.as_mut_ptr(), Place::HOST), (at, self.place()), into.len()) }
    }

    /// Copies `len` bytes from `start` of `from`, which may be another GPU's, to `offset` on.
    ///
    /// # Errors
    /// [`GpuError::Range`], [`GpuError::Driver`].
    pub fn copy_from(&mut self, offset: usize, from: &GpuBuffer, start: usize, len: usize) -> Result<(), GpuError> {
        let (to, from_at) = (self.at(offset, len)?, from.at(start, len)?);
        // SAFETY: both span as many bytes; the two are different memory, since one is borrowed mutably.
        unsafe { lane::copy((to, self.place()), (from_at, from.place()), len) }
    }

    /// Combines `len` bytes from `start` of `from` into those from `offset` on: `self = self op from`, element by element, with
    /// the bits that the processor calculates.
    ///
    /// # Errors
    /// [`GpuError::Range`], [`GpuError::Elements`], [`GpuError::NotCalculated`] of a program's own operation,
    /// [`GpuError::Driver`].
    pub fn combine_from(
        &mut self,
        (offset, from, start): (usize, &GpuBuffer, usize),
        len: usize,
        calc: Calc,
    ) -> Result<(), GpuError> {
        let (to, from_at) = (self.at(offset, len)?, from.at(start, len)?);
        // SAFETY: as in `copy_from`.
        unsafe { lane::combine((to, self.place()), (from_at, from.place()), len, calc) }
    }

    /// Combines `from`, which is the processor's, into the bytes from `offset` on, as
    /// [`combine_from`](GpuBuffer::combine_from).
    ///
    /// # Errors
    /// As [`combine_from`](GpuBuffer::combine_from).
    pub fn combine(&mut self, offset: usize, from: &[u8], calc: Calc) -> Result<(), GpuError> {
        let at = self.at(offset, from.len())?;
        // SAFETY: `at` spans as many bytes of this memory, and `from` is a slice.
        unsafe { lane::combine((at, self.place()), (from.as_ptr().cast_mut(), Place::HOST), from.len(), calc) }
    }

    /// Copies `from` of this memory to `offset` on, apart from it.
    ///
    /// # Errors
    /// As [`copy_from`](GpuBuffer::copy_from), and [`GpuError::Overlap`].
    pub fn copy_within(&mut self, offset: usize, from: Range<usize>) -> Result<(), GpuError> {
        let (to, from_at) = self.apart(offset, &from)?;
        // SAFETY: both span as many bytes of this memory, apart from each other.
        unsafe { lane::copy((to, self.place()), (from_at, self.place()), from.len()) }
    }

    /// Combines `from` of this memory into the bytes from `offset` on, apart from it, as [`combine_from`](GpuBuffer::combine_from).
    ///
    /// # Errors
    /// As [`combine_from`](GpuBuffer::combine_from), and [`GpuError::Overlap`].
    pub fn combine_within(&mut self, offset: usize, from: Range<usize>, calc: Calc) -> Result<(), GpuError> {
        let (to, from_at) = self.apart(offset, &from)?;
        // SAFETY: as in `copy_within`.
        unsafe { lane::combine((to, self.place()), (from_at, self.place()), from.len(), calc) }
    }

    /// Scales `len` bytes from `offset` on, as [`calc::scale`](crate::calc::scale()) does.
    ///
    /// # Errors
    /// [`GpuError::Range`], [`GpuError::Elements`], [`GpuError::NotCalculated`] of a division by zero or a factor that the
    /// type does not hold, [`GpuError::Driver`].
    pub fn scale(
        &mut self,
        offset: usize,
        len: usize,
        data_type: crate::calc::DataType,
        scale: Scale,
    ) -> Result<(), GpuError> {
        let at = self.at(offset, len)?;
        // SAFETY: `at` spans as many bytes of this memory.
        unsafe { lane::scale((at, self.place()), len, data_type, scale) }
    }

    /// Sets all bytes.
    ///
    /// # Errors
    /// [`GpuError::Driver`].
    pub(super) fn fill(&self, value: u8) -> Result<(), GpuError> {
        // SAFETY: the memory has as many bytes.
        unsafe { lane::fill(self.allocation.device(), self.allocation.address(), value, self.len()) }
    }

    /// Has its GPU load what does atomics.
    ///
    /// # Errors
    /// [`GpuError::NotCalculated`] without the feature `cuda`, [`GpuError::Driver`].
    pub(crate) fn prepare_atomics(&self) -> Result<(), GpuError> {
        atomic::prepare(self.allocation.device())
    }

    pub(crate) fn allocation(&self) -> &Arc<Allocation> {
        &self.allocation
    }

    fn place(&self) -> Place {
        self.allocation.place()
    }

    /// Where two parts of it are that do not overlap.
    fn apart(&self, offset: usize, from: &Range<usize>) -> Result<(*mut u8, *mut u8), GpuError> {
        let Some(len) = from.end.checked_sub(from.start) else {
            return Err(GpuError::Range { start: from.start, end: from.end, len: self.len() });
        };
        let (to, from_at) = (self.at(offset, len)?, self.at(from.start, len)?);
        if offset.abs_diff(from.start) < len {
            return Err(GpuError::Overlap { len });
        }
        Ok((to, from_at))
    }

    fn at(&self, offset: usize, len: usize) -> Result<*mut u8, GpuError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len() => {
                Ok(std::ptr::without_provenance_mut(self.allocation.address() as usize + offset))
            }
            end => Err(GpuError::Range { start: offset, end: end.unwrap_or(usize::MAX), len: self.len() }),
        }
    }
}
