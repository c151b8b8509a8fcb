//! Order statistics of measured times.

use std::time::{Duration, Instant};

/// Times of one kind of operation, in seconds.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// Room for so many, so that adding does not allocate.
    pub fn with_capacity(count: usize) -> Self {
        Samples(Vec::with_capacity(count))
    }

    /// Adds one, in seconds.
    #[inline]
    pub fn push(&mut self, seconds: f64) {
        self.0.push(seconds);
    }

    /// The value below which `part` (0 to 1) of the samples lie; 0 without samples.
    pub fn quantile(&mut self, part: f64) -> f64 {
        if self.0.is_empty() {
            return 0.0;
        }
        let at = ((self.0.len() - 1) as f64 * part).round() as usize;
        *self.0.select_nth_unstable_by(at, f64::total_cmp).1
    }

    /// The least.
    pub fn min(&mut self) -> f64 {
        self.quantile(0.0)
    }

    /// The middle one.
    pub fn median(&mut self) -> f64 {
        self.quantile(0.5)
    }

    /// The one that 99 % do not exceed.
    pub fn p99(&mut self) -> f64 {
        self.quantile(0.99)
    }

    /// The greatest.
    pub fn max(&mut self) -> f64 {
        self.quantile(1.0)
    }
}

/// What two clock reads next to each other see go by, at least.
pub fn clock_cost() -> Duration {
    let pairs = (0..1000).map(|_| {
        let first = Instant::now();
        first.elapsed()
    });
    pairs.min().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_the_sorted_samples() {
        let mut samples = Samples::default();
        (0..=100).rev().for_each(|value| samples.push(f64::from(value)));
        assert_eq!(samples.min(), 0.0);
        assert_eq!(samples.median(), 50.0);
        assert_eq!(samples.p99(), 99.0);
        assert_eq!(samples.max(), 100.0);
    }

    #[test]
    fn no_samples_are_zero() {
        assert_eq!(Samples::default().median(), 0.0);
    }

    #[test]
    fn a_clock_read_is_short() {
        assert!(clock_cost() < Duration::from_millis(1));
    }
}
