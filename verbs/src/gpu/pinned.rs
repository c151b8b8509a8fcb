//! Memory of the processor that GPUs copy from and to where it lies.

use std::ptr::NonNull;

use super::device::Gpu;
use super::place::Place;
use crate::error::GpuError;

/// A range of the processor's memory that is pinned for all GPUs of this process: its pages stay where they are, and copies
/// go straight to them. Not write-combined: the processor reads it at full speed.
///
/// It is unpinned by [`end`](Pinned::end), and not on drop: whoever unmaps the memory has to know whether it may.
#[derive(Debug)]
pub(crate) struct Pinned {
    gpu: Gpu,
    base: NonNull<u8>,
}

// SAFETY: the address is a name to the driver, which takes it from every thread; nothing is accessed by it.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Pins `len` bytes at `base`.
    ///
    /// # Errors
    /// [`GpuError::NotPinned`] where the driver refuses, [`GpuError::Driver`] where the GPU's context is lost.
    ///
    /// # Safety
    /// The range is mapped, and no part of it is pinned. It stays mapped until [`end`](Pinned::end) has gone well.
    pub(crate) unsafe fn new(gpu: Gpu, base: NonNull<u8>, len: usize) -> Result<Self, GpuError> {
        let device = gpu.device();
        let _entered = device.enter()?;
        // SAFETY: the context is this thread's; the range is memory by the caller's word.
        let pinned = unsafe { device.driver.pin(base.as_ptr().cast(), len) };
        match pinned {
            Ok(()) => Ok(Pinned { gpu, base }),
            Err(GpuError::Driver { name, .. }) => Err(GpuError::NotPinned { len, name }),
            Err(other) => Err(other),
        }
    }

    /// Unpins it.
    ///
    /// # Errors
    /// [`GpuError::Driver`]: the driver takes the addresses for pinned memory still, which they may not cease to be.
    pub(crate) fn end(self) -> Result<(), GpuError> {
        let device = self.gpu.device();
        let _entered = device.enter()?;
        // SAFETY: pinned by `new`, once, and this value is gone with it; the context is this thread's.
        unsafe { device.driver.unpin(self.base.as_ptr().cast()) }
    }
}

impl Place {
    /// The GPU whose memory it is, if it is some.
    pub(crate) fn opened(self) -> Option<Gpu> {
        super::device::Device::of(self).map(Gpu::on)
    }
}
