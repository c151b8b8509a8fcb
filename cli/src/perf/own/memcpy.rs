//! What a plain copy between two buffers of this process takes, for comparison.

use std::hint::black_box;
use std::time::Instant;

use qpair::verbs::{Gpu, GpuBuffer, GpuError, MemoryError};

use crate::perf::error::PerfError;

/// Two buffers of one size.
#[derive(Debug)]
pub enum Memcpy {
    /// Of the processor.
    Host {
        /// What is copied.
        from: Vec<u8>,
        /// Where to.
        to: Vec<u8>,
    },
    /// Of a GPU, which copies.
    Gpu {
        /// What is copied.
        from: GpuBuffer,
        /// Where to.
        to: GpuBuffer,
    },
}

impl Memcpy {
    /// Buffers of `size` bytes, written once so that their pages are there. The caller has memory of twice that size already, so
    /// that there was room for as much.
    ///
    /// # Errors
    /// If the memory is not to be had.
    pub fn new(size: usize) -> Result<Self, MemoryError> {
        Ok(Memcpy::Host { from: filled(1, size)?, to: filled(2, size)? })
    }

    /// Buffers of `size` bytes on a GPU.
    ///
    /// # Errors
    /// If the memory is not to be had.
    pub fn on_gpu(gpu: Gpu, size: usize) -> Result<Self, MemoryError> {
        Ok(Memcpy::Gpu { from: gpu.alloc(size)?, to: gpu.alloc(size)? })
    }

    /// Seconds of one copy: the mean over about `time` seconds.
    ///
    /// # Errors
    /// What the GPU says.
    pub fn seconds(&mut self, time: f64) -> Result<f64, PerfError> {
        let mut repeats: u64 = 1;
        loop {
            let start = Instant::now();
            for _ in 0..repeats {
                self.copy().map_err(MemoryError::from)?;
            }
            let seconds = start.elapsed().as_secs_f64().max(1e-9);
            if seconds >= time / 2.0 {
                return Ok(seconds / repeats as f64);
            }
            let fitting = (time / seconds * repeats as f64) as u64;
            repeats = fitting.clamp(repeats * 2, repeats * 64);
        }
    }

    #[inline]
    fn copy(&mut self) -> Result<(), GpuError> {
        match self {
            Memcpy::Host { from, to } => {
                black_box(to).copy_from_slice(black_box(from));
                Ok(())
            }
            Memcpy::Gpu { from, to } => to.copy_from(0, from, 0, from.len()),
        }
    }
}

/// `len` bytes of that value.
fn filled(value: u8, len: usize) -> Result<Vec<u8>, MemoryError> {
    let mut bytes = Vec::new();
    let reserved = bytes.try_reserve_exact(len);
    reserved.map_err(|_| MemoryError::NoMemory { len, source: std::io::ErrorKind::OutOfMemory.into() })?;
    bytes.resize(len, value);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_copy_takes_longer() {
        let seconds = |size| Memcpy::new(size).expect("it is short").seconds(0.002).expect("no GPU is asked");
        let (short, long) = (seconds(64), seconds(4 << 20));
        assert!(short > 0.0 && short < long, "{short} {long}");
    }
}
