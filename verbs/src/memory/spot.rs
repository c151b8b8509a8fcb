//! Where bytes are that a device moves: an address, and whose memory it is of.

use crate::calc::{self, Calc};
use crate::error::GpuError;
use crate::gpu::{self, Place};
use crate::soft::device_copy;

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

    /// The address, if the processor reaches it.
    #[inline(always)]
    pub(crate) fn on_host(self) -> Option<*mut u8> {
        self.place.is_host().then_some(self.ptr)
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
}
