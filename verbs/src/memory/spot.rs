//! Where bytes are that a device moves: an address, and whose memory it is of.

use super::Atomic;
use crate::calc::{self, Calc, DataType, Scale};
use crate::error::GpuError;
use crate::gpu::{self, Place};
use crate::soft::device_copy;
use crate::sync::AtomicU64;

/// An address of the processor's memory or a GPU's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot {
    ptr: *mut u8,
    place: Place,
}

impl Spot {
    #[inline(always)]
    pub(crate) fn new(ptr: *mut u8, place: Place) -> Self {
        Spot { ptr, place }
    }

    /// Memory of the processor.
    #[inline(always)]
    pub(crate) fn host(ptr: *mut u8) -> Self {
        Spot { ptr, place: Place::HOST }
    }

    /// Whose memory it is.
    #[inline(always)]
    pub(crate) fn place(self) -> Place {
        self.place
    }

    /// The address, if the processor reaches it.
    #[inline(always)]
    pub(crate) fn on_host(self) -> Option<*mut u8> {
        self.place.is_host().then_some(self.ptr)
    }

    /// The address, and whose memory it is, if that is a GPU's.
    #[inline(always)]
    pub(crate) fn on_gpu(self) -> Option<(*mut u8, Place)> {
        (!self.place.is_host()).then_some((self.ptr, self.place))
    }

    /// So many bytes further.
    #[inline(always)]
    pub(crate) fn add(self, bytes: usize) -> Self {
        Spot { ptr: self.ptr.wrapping_add(bytes), ..self }
    }

    /// Copies as a NIC would; see [`device_copy`].
    ///
    /// # Errors
    /// What a GPU's driver says; between memory of the processor there are none.
    ///
    /// # Safety
    /// Both are memory of their places for `len` bytes.
    #[inline(always)]
    pub(crate) unsafe fn copy_from(self, from: Spot, len: usize) -> Result<(), Box<GpuError>> {
        if self.place.is_host() && from.place.is_host() {
            // SAFETY: passed on to the caller.
            unsafe { device_copy(self.ptr, from.ptr, len) };
            return Ok(());
        }
        // SAFETY: passed on to the caller.
        unsafe { gpu::copy((self.ptr, self.place), (from.ptr, from.place), len) }.map_err(Box::new)
    }

    /// Combines `from` into what is here, element by element.
    ///
    /// # Errors
    /// As [`copy_from`](Spot::copy_from), and of operations that GPUs do not calculate.
    ///
    /// # Safety
    /// As [`copy_from`](Spot::copy_from), and the ranges do not overlap.
    #[inline(always)]
    pub(crate) unsafe fn combine_from(self, from: Spot, len: usize, calc: Calc) -> Result<(), Box<GpuError>> {
        if self.place.is_host() && from.place.is_host() {
            // SAFETY: passed on to the caller.
            unsafe { calc::combine_raw(calc, self.ptr, self.ptr, from.ptr, len) };
            return Ok(());
        }
        // SAFETY: passed on to the caller.
        unsafe { gpu::combine((self.ptr, self.place), (from.ptr, from.place), len, calc) }.map_err(Box::new)
    }

    /// True at a multiple of `to`.
    #[inline(always)]
    pub(crate) fn is_aligned(self, to: usize) -> bool {
        (self.ptr as usize).is_multiple_of(to)
    }

    /// Does an atomic operation on the word of 8 bytes that is here; what it was before.
    ///
    /// # Errors
    /// As [`copy_from`](Spot::copy_from).
    ///
    /// # Safety
    /// It is memory of its place for 8 bytes, at a multiple of 8, to which all access is atomic or by [`device_copy`].
    #[inline(always)]
    pub(crate) unsafe fn atomic(self, operation: Atomic) -> Result<u64, Box<GpuError>> {
        if self.place.is_host() {
            // SAFETY: by the caller's word.
            return Ok(operation.apply(unsafe { AtomicU64::from_ptr(self.ptr.cast()) }));
        }
        // SAFETY: passed on to the caller.
        unsafe { gpu::atomic((self.ptr, self.place), operation) }.map_err(Box::new)
    }

    /// Scales the elements that are here.
    ///
    /// # Errors
    /// As [`combine_from`](Spot::combine_from), and of a division by zero or a factor that the type does not hold.
    ///
    /// # Safety
    /// It is memory of its place for `len` bytes, a whole number of elements.
    pub(crate) unsafe fn scale(self, len: usize, data_type: DataType, by: Scale) -> Result<(), Box<GpuError>> {
        if !self.place.is_host() {
            // SAFETY: passed on to the caller.
            return unsafe { gpu::scale((self.ptr, self.place), len, data_type, by) }.map_err(Box::new);
        }
        // Others may look at the memory: it is scaled beside it.
        let mut part = [0_u8; PART];
        for at in (0..len).step_by(PART) {
            let part = &mut part[..PART.min(len - at)];
            // SAFETY: the part of what the caller vouches for.
            unsafe { device_copy(part.as_mut_ptr(), self.ptr.add(at), part.len()) };
            let refused = |error: calc::CalcError| Box::new(GpuError::NotCalculated { what: error.to_string() });
            calc::scale(data_type, part, by).map_err(refused)?;
            // SAFETY: as above.
            unsafe { device_copy(self.ptr.add(at), part.as_ptr(), part.len()) };
        }
        Ok(())
    }
}

/// Bytes that stay in the first-level cache. A multiple of every element's size.
const PART: usize = 8 << 10;
