//! What a plain copy between two buffers of this process takes, for comparison.

use std::hint::black_box;
use std::time::Instant;

/// Two buffers of one size.
#[derive(Debug)]
pub struct Memcpy {
    from: Vec<u8>,
    to: Vec<u8>,
}

impl Memcpy {
    /// Buffers of `size` bytes, written once so that their pages are there.
    pub fn new(size: usize) -> Self {
        Memcpy { from: vec![1; size], to: vec![2; size] }
    }

    /// Seconds of one copy: the mean over about `time` seconds.
    pub fn seconds(&mut self, time: f64) -> f64 {
        let mut repeats: u64 = 1;
        loop {
            let start = Instant::now();
            for _ in 0..repeats {
                black_box(&mut self.to).copy_from_slice(black_box(&self.from));
            }
            let seconds = start.elapsed().as_secs_f64().max(1e-9);
            if seconds >= time / 2.0 {
                return seconds / repeats as f64;
            }
            let fitting = (time / seconds * repeats as f64) as u64;
            repeats = fitting.clamp(repeats * 2, repeats * 64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_copy_takes_longer() {
        let (short, long) = (Memcpy::new(64).seconds(0.002), Memcpy::new(4 << 20).seconds(0.002));
        assert!(short > 0.0 && short < long, "{short} {long}");
    }
}
