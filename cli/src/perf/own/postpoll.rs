//! What posting an 8-byte WRITE and polling for it cost the caller.

use std::time::Instant;

use super::exchange::Exchange;
use super::session::Session;
use super::stats::Samples;
use crate::perf::error::PerfError;
use crate::perf::test::Effort;

/// Cost of post and poll, in seconds per WRITE, over batches.
#[derive(Clone, Copy, Debug)]
pub struct PostPoll {
    /// One WRITE in so many was signaled.
    pub signal_every: u64,
    /// WRITEs measured.
    pub operations: u64,
    /// The cheapest batch.
    pub min: f64,
    /// The median batch.
    pub median: f64,
    /// What 99 % of batches do not exceed.
    pub p99: f64,
}

/// Measures with one WRITE in `signal_every` signaled, and each completion polled for before the next WRITE.
///
/// # Errors
/// What the device says.
pub fn measure(
    session: &mut Session,
    exchange: &Exchange,
    signal_every: u64,
    effort: Effort,
) -> Result<PostPoll, PerfError> {
    for _ in 0..WARM_UP_BATCHES {
        batch(session, exchange, signal_every)?;
    }
    let start = Instant::now();
    let mut batches = Samples::default();
    let mut count = 0;
    loop {
        batches.push(batch(session, exchange, signal_every)?);
        count += 1;
        let enough = match effort {
            Effort::Operations(operations) => count * BATCH >= operations,
            Effort::Time(time) => start.elapsed() >= time,
        };
        if enough {
            break;
        }
    }
    Ok(PostPoll {
        signal_every,
        operations: count * BATCH,
        min: batches.min(),
        median: batches.median(),
        p99: batches.p99(),
    })
}

/// Seconds per WRITE in one batch.
fn batch(session: &mut Session, exchange: &Exchange, signal_every: u64) -> Result<f64, PerfError> {
    let target = session.remote_at(0, 8);
    let start = Instant::now();
    for number in 1..=BATCH {
        let data = number.to_ne_bytes();
        let request = session.qp.write_inline(&data, target);
        if number.is_multiple_of(signal_every) {
            request.signaled().post()?;
            session.wait_sent(exchange)?;
        } else {
            request.post()?;
        }
    }
    Ok(start.elapsed().as_secs_f64() / BATCH as f64)
}

/// WRITEs between two clock reads; a multiple of every `signal_every` in use.
const BATCH: u64 = 1024;
const WARM_UP_BATCHES: u64 = 64;
