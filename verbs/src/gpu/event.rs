//! Points in the work of a stream.

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use super::device::{Device, Gpu};
use super::driver::{Handle, NOT_READY};
use crate::error::GpuError;

/// A point in the work of a stream: what was given to the stream before is done once the event is. Clones name the same.
///
/// ```no_run
/// # use qpair_verbs::{Gpu, GpuError};
/// let event = Gpu::open(0)?.record()?; // of the default stream
/// while !event.is_done()? {
///     // something else ...
/// }
/// # Ok::<(), GpuError>(())
/// ```
#[derive(Clone)]
pub struct GpuEvent(Arc<Recorded>);

/// An event of the driver, destroyed when it is dropped.
struct Recorded {
    device: &'static Device,
    handle: Handle,
}

impl Gpu {
    /// Marks where the default stream is now: the event that is returned is done once the stream has done all that it was given.
    ///
    /// # Errors
    /// [`GpuError::Driver`].
    pub fn record(&self) -> Result<GpuEvent, GpuError> {
        // SAFETY: the default stream is always there.
        unsafe { self.record_in(std::ptr::null_mut()) }
    }

    /// Marks where `stream` is now, a `CUstream` or `cudaStream_t`, such as that of another library.
    ///
    /// # Errors
    /// [`GpuError::Driver`].
    ///
    /// # Safety
    /// The stream is alive, and of this GPU's primary context, which is the one that CUDA's runtime uses.
    pub unsafe fn record_in(&self, stream: *mut c_void) -> Result<GpuEvent, GpuError> {
        let device = self.device();
        let _entered = device.enter()?;
        // SAFETY: the context is this thread's, and the stream one of it, by the caller's word.
        unsafe {
            let event = Recorded { device, handle: device.driver.create_event()? };
            device.driver.record(event.handle, Handle(stream))?;
            Ok(GpuEvent(Arc::new(event)))
        }
    }
}

impl GpuEvent {
    /// Whether the stream has come so far.
    ///
    /// # Errors
    /// [`GpuError::Driver`], also of work that has failed.
    pub fn is_done(&self) -> Result<bool, GpuError> {
        let Recorded { device, handle } = *self.0;
        let _entered = device.enter()?;
        // SAFETY: the event is alive as long as this value.
        match unsafe { device.driver.query(handle) } {
            Ok(()) => Ok(true),
            Err(GpuError::Driver { code: NOT_READY, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Waits until the stream has come so far, however long it takes; who has something else to do asks [`is_done`](Self::is_done).
    ///
    /// # Errors
    /// As [`is_done`](GpuEvent::is_done).
    pub fn wait(&self) -> Result<(), GpuError> {
        let Recorded { device, handle } = *self.0;
        let _entered = device.enter()?;
        // SAFETY: the event is alive as long as this value.
        unsafe { device.driver.wait(handle) }
    }

    /// The GPU whose stream it is.
    pub fn gpu(&self) -> Gpu {
        Gpu::on(self.0.device)
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        // SAFETY: the last holder is gone. The driver keeps what the stream still needs.
        let destroyed =
            self.device.enter().and_then(|_entered| unsafe { self.device.driver.destroy_event(self.handle) });
        if let Err(error) = destroyed {
            tracing::error!(%error, "an event of a GPU could not be destroyed");
        }
    }
}

impl fmt::Debug for GpuEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GpuEvent(of GPU {})", self.0.device.ordinal())
    }
}
