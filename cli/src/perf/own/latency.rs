//! How latency is sampled: batches for the typical value, single operations for the spread.

use std::time::Instant;

use super::exchange::{Exchange, Round};
use super::stats::{Samples, clock_cost};
use crate::perf::error::PerfError;
use crate::perf::test::Effort;

/// Latency of one size. Times are in seconds, one way where the operation is a ping-pong.
#[derive(Clone, Copy, Debug)]
pub struct Latency {
    /// Bytes of each message.
    pub size: usize,
    /// Operations measured.
    pub operations: u64,
    /// Median of the means over batches: no clock read disturbs it. Of few operations, that of single ones.
    pub typical: f64,
    /// The shortest single operation.
    pub min: f64,
    /// The median single operation.
    pub median: f64,
    /// What 99 % of single operations do not exceed.
    pub p99: f64,
    /// The longest single operation.
    pub max: f64,
}

/// An operation whose latency is measured, on the client's side.
pub trait Operation {
    /// Does it once, to its end.
    ///
    /// # Errors
    /// Whatever keeps it from its end.
    fn once(&mut self, exchange: &Exchange) -> Result<(), PerfError>;

    /// Parts of it that are one latency: 2 for a ping-pong.
    fn ways(&self) -> f64;
}

/// Which times are taken of so many operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sampling {
    /// Operations that are timed in batches.
    batched: u64,
    /// How many in each.
    batch: u64,
    /// Of the rest, one in so many is timed alone.
    every: u64,
}

impl Sampling {
    /// For operations that take `each` seconds.
    fn new(operations: u64, each: f64) -> Self {
        let batch = ((BATCH_TIME / each) as u64).clamp(1, MAX_BATCH);
        // A part is timed one by one, and be it one.
        let alone = (operations / 4).max(1);
        let batched = operations - alone;
        if batch == 1 || batched < FEWEST_BATCHES * batch {
            // Where an operation takes long against a clock read, or too few are done for a median of batches, each is timed,
            // unless it were too many.
            return Sampling { batched: 0, batch: 1, every: operations.div_ceil(MAX_SAMPLES) };
        }
        let batch = batch.max(batched.div_ceil(MAX_SAMPLES));
        Sampling { batched, batch, every: SAMPLE_EVERY.max(alone.div_ceil(MAX_SAMPLES)) }
    }
}

/// Measures `operation` with messages of `size` bytes.
///
/// # Errors
/// What the operation or the other side says.
pub fn measure(
    exchange: &mut Exchange,
    operation: &mut impl Operation,
    size: usize,
    effort: Effort,
) -> Result<Latency, PerfError> {
    let (each, fitting) = calibrate(exchange, operation, size, effort)?;
    let operations = match effort {
        Effort::Operations(operations) => operations,
        Effort::Time(_) => fitting,
    };
    let Sampling { batched, batch, every } = Sampling::new(operations, each);
    exchange.start(Round { size, count: WARM_UP + operations })?;
    for _ in 0..WARM_UP {
        operation.once(exchange)?;
    }
    let mut means = batches(exchange, operation, batched, batch)?;
    let mut single = singles(exchange, operation, operations - batched, every)?;
    exchange.finish_round()?;
    let ways = operation.ways();
    let typical = if batched == 0 { single.median() } else { means.median() };
    Ok(Latency {
        size,
        operations,
        typical: typical / ways,
        min: single.min() / ways,
        median: single.median() / ways,
        p99: single.p99() / ways,
        max: single.max() / ways,
    })
}

/// Seconds of one operation, and how many fit the time.
fn calibrate(
    exchange: &mut Exchange,
    operation: &mut impl Operation,
    size: usize,
    effort: Effort,
) -> Result<(f64, u64), PerfError> {
    let mut count = 8;
    let mut each = f64::INFINITY;
    loop {
        exchange.start(Round { size, count })?;
        let start = Instant::now();
        for _ in 0..count {
            operation.once(exchange)?;
        }
        let seconds = start.elapsed().as_secs_f64();
        exchange.finish_round()?;
        // A trial that was interrupted tells nothing.
        each = each.min((seconds / count as f64).max(1e-9));
        let (enough, fitting) = match effort {
            Effort::Operations(operations) => (count >= operations, operations),
            Effort::Time(time) => (seconds * 8.0 > time.as_secs_f64(), (time.as_secs_f64() / each) as u64),
        };
        if enough || seconds > CALIBRATION_TIME {
            return Ok((each, fitting.clamp(1, MAX_OPERATIONS)));
        }
        count *= 4;
    }
}

fn batches(exchange: &Exchange, operation: &mut impl Operation, count: u64, batch: u64) -> Result<Samples, PerfError> {
    let mut means = Samples::with_capacity(count.div_ceil(batch) as usize);
    let mut left = count;
    let mut start = Instant::now();
    while left > 0 {
        let now = left.min(batch);
        for _ in 0..now {
            operation.once(exchange)?;
        }
        let end = Instant::now();
        means.push((end - start).as_secs_f64() / now as f64);
        start = end;
        left -= now;
    }
    Ok(means)
}

/// Times one operation in `every`, less what the clock reads take.
fn singles(exchange: &Exchange, operation: &mut impl Operation, count: u64, every: u64) -> Result<Samples, PerfError> {
    let clock = clock_cost();
    let mut times = Samples::with_capacity(count.div_ceil(every) as usize);
    for index in 0..count {
        if !index.is_multiple_of(every) {
            operation.once(exchange)?;
            continue;
        }
        let start = Instant::now();
        operation.once(exchange)?;
        times.push(start.elapsed().saturating_sub(clock).as_secs_f64());
    }
    Ok(times)
}

/// A batch takes about this many seconds, against which two clock reads (50 ns) do not count ...
const BATCH_TIME: f64 = 50e-6;
/// ... and has no more operations than this, unless there were too many batches.
const MAX_BATCH: u64 = 1000;
/// The mean of a batch that was interrupted is above most single operations. The median of so many leaves four out.
const FEWEST_BATCHES: u64 = 9;
/// One short operation in so many is timed alone.
const SAMPLE_EVERY: u64 = 8;
/// Operations before the measured ones.
const WARM_UP: u64 = 16;
/// Seconds after which the time of one operation is known well enough.
const CALIBRATION_TIME: f64 = 0.02;
/// Times of each kind that are kept: 128 MiB.
const MAX_SAMPLES: u64 = 1 << 24;
/// More than any time allows.
const MAX_OPERATIONS: u64 = 1_000_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_times_are_kept_as_there_is_memory_for() {
        for (operations, each) in [(1, 1e-7), (8, 1e-3), (1 << 26, 1e-7), (1 << 40, 1e-7), (1 << 40, 1e-4)] {
            let Sampling { batched, batch, every } = Sampling::new(operations, each);
            let alone = operations - batched;
            assert!(alone > 0, "some are timed alone");
            assert!(batched.div_ceil(batch) <= MAX_SAMPLES && alone.div_ceil(every) <= MAX_SAMPLES);
        }
        assert_eq!(Sampling::new(1 << 26, 1e-7), Sampling { batched: 3 << 24, batch: 500, every: SAMPLE_EVERY });
        assert_eq!(Sampling::new(1000, 1e-3), Sampling { batched: 0, batch: 1, every: 1 });
    }

    #[test]
    fn few_operations_are_timed_one_by_one() {
        for operations in [1, 8, 100, 5996] {
            let each_alone = Sampling { batched: 0, batch: 1, every: 1 };
            assert_eq!(Sampling::new(operations, 1e-7), each_alone, "{operations}");
        }
        let Sampling { batched, batch, .. } = Sampling::new(6000, 1e-7);
        assert_eq!((batched, batch), (4500, 500), "nine batches");
    }
}
