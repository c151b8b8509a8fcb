//! Graphs that other libraries of the process capture. Meanwhile CUDA refuses many a call to all threads, and takes it as the end of
//! the capture, but for threads that say that they know what they do.

use std::time::Duration;

use super::driver::{Driver, REFUSALS};
use crate::error::GpuError;

/// A thread's stay in the mode in which captures by others forbid it nothing, and nothing that it does ends them. What is done in it
/// is given to streams of this library's own, which nobody captures, or to one that the caller names.
pub(super) struct Relaxed {
    driver: Driver,
    /// The mode that it had.
    before: u32,
}

impl Relaxed {
    pub(super) fn new(driver: Driver) -> Result<Self, GpuError> {
        // SAFETY: it takes a mode.
        let before = unsafe { driver.exchange_capture_mode(RELAXED) }?;
        Ok(Relaxed { driver, before })
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        // SAFETY: it takes a mode, which is the one that the thread had: the value is not sent.
        if let Err(error) = unsafe { self.driver.exchange_capture_mode(self.before) } {
            tracing::error!(%error, "a thread's mode of capture could not be restored");
        }
    }
}

/// True of an error that says of nothing that it is over: the driver did not look, as a graph is being captured.
pub(super) fn is_refusal(error: &GpuError) -> bool {
    matches!(error, GpuError::Driver { code, .. } if REFUSALS.contains(code))
}

/// Waits by `wait`. While that is [refused](is_refusal) it is asked again: memory that work is under way on is not given back.
pub(super) fn until_allowed(mut wait: impl FnMut() -> Result<(), GpuError>) -> Result<(), GpuError> {
    let mut is_told = false;
    loop {
        match wait() {
            Err(error) if is_refusal(&error) => {
                if !std::mem::replace(&mut is_told, true) {
                    tracing::warn!(%error, "the driver does not let anybody wait while a graph is captured; it is asked again");
                }
                std::thread::sleep(ASKED_AGAIN);
            }
            other => return other,
        }
    }
}

/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: u32 = 2;
/// Captures take milliseconds at least.
const ASKED_AGAIN: Duration = Duration::from_millis(1);
