//! Atomics on words of GPU memory, by kernels of one thread.

use std::ffi::c_void;

use super::device::Device;
use super::driver::Address;
use super::lane::{Lane, either, start_copy};
use super::place::Place;
use crate::error::GpuError;
use crate::memory::Atomic;

/// Does an atomic operation on a word of a GPU's memory, atomic for everybody who reaches it: what it was before.
///
/// # Errors
/// [`GpuError::NoDevice`], [`GpuError::NotCalculated`] without the feature `cuda`, [`GpuError::Driver`].
///
/// # Safety
/// It is memory of that GPU for 8 bytes, at a multiple of 8.
#[cold]
pub(crate) unsafe fn atomic((word, place): (*mut u8, Place), operation: Atomic) -> Result<u64, GpuError> {
    let device = either(place, Place::HOST)?;
    let kernel = device.kernels.atomic(device, operation)?;
    let _entered = device.enter()?;
    let lane = Lane::with_word(device)?;
    let (mut word, mut before) = (word as Address, lane.word());
    let (mut first, mut second) = match operation {
        Atomic::FetchAdd(add) => (add, 0),
        Atomic::CompareSwap(compare, swap) => (compare, swap),
    };
    let [at, one, other, answer] =
        [&raw mut word, &raw mut first, &raw mut second, &raw mut before].map(|argument| argument.cast::<c_void>());
    let mut args = match operation {
        // It takes three of them.
        Atomic::FetchAdd(_) => [at, one, answer, answer],
        Atomic::CompareSwap(..) => [at, one, other, answer],
    };
    let mut old = 0_u64;
    // SAFETY: the kernel takes these arguments, which the driver copies before it returns; the word is the GPU's by the caller's
    // word, the lane's word is this thread's, and the stream is waited for.
    let started = unsafe {
        device.driver.launch(kernel, 1, 1, lane.stream(), args.as_mut_ptr()).and_then(|()| {
            let to = (&raw mut old as Address, Place::HOST);
            start_copy(device, to, (before, place), size_of::<u64>(), lane.stream())
        })
    };
    lane.wait(device, started)?;
    Ok(old)
}

/// Loads the kernels now, which the first of them would otherwise wait for.
///
/// # Errors
/// As [`atomic`].
pub(super) fn prepare(device: &Device) -> Result<(), GpuError> {
    for operation in [Atomic::FetchAdd(0), Atomic::CompareSwap(0, 0)] {
        device.kernels.atomic(device, operation)?;
    }
    Ok(())
}
