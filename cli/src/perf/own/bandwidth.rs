//! Streams of WRITEs, READs and SENDs with a window of outstanding requests.

use std::time::{Duration, Instant};

use super::exchange::{Exchange, Round};
use super::memcpy::Memcpy;
use super::session::{INLINE, Session};
use super::stats::Samples;
use super::watch::Watch;
use crate::perf::error::PerfError;
use crate::perf::test::{Effort, Test};

/// Bandwidth of one size.
#[derive(Clone, Copy, Debug)]
pub struct Bandwidth {
    /// Bytes of each message.
    pub size: usize,
    /// Messages measured.
    pub operations: u64,
    /// Seconds per message, median over slices of the run.
    pub seconds: f64,
    /// The same, on average over the whole run.
    pub mean: f64,
    /// Seconds that a memcpy of the same size takes, measured between the slices.
    pub memcpy: f64,
}

/// A stream that can be measured, on the client's side.
pub trait Stream {
    /// Sends so many messages of so many bytes; returns when all are there.
    ///
    /// # Errors
    /// What the device or the other side says.
    fn run(&mut self, exchange: &Exchange, round: Round) -> Result<(), PerfError>;
}

/// WRITEs, READs or SENDs of a session.
#[derive(Debug)]
pub struct VerbsStream<'a> {
    session: &'a mut Session,
    kind: Test,
    inline: [u8; INLINE],
}

/// Measures `stream` with messages of `size` bytes, in slices, with a copy of as much between them.
///
/// # Errors
/// What the stream or the other side says.
pub fn measure(
    exchange: &mut Exchange,
    stream: &mut impl Stream,
    mut memcpy: Memcpy,
    size: usize,
    effort: Effort,
) -> Result<Bandwidth, PerfError> {
    let operations = calibrate(exchange, stream, size, effort)?;
    let (mut times, mut copies, mut all) = (Samples::default(), Samples::default(), 0.0);
    for count in slices(operations) {
        copies.push(memcpy.seconds(MEMCPY_TIME)?);
        let took = timed(exchange, stream, Round { size, count })?.as_secs_f64();
        times.push(took / count as f64);
        all += took;
    }
    let mean = all / operations.max(1) as f64;
    Ok(Bandwidth { size, operations, seconds: times.median(), mean, memcpy: copies.median() })
}

/// The messages of each slice: as equal as can be, and none empty.
fn slices(operations: u64) -> impl Iterator<Item = u64> {
    let of = move |slice| operations / SLICES + u64::from(slice < operations % SLICES);
    (0..SLICES).map(of).filter(|&count| count > 0)
}

fn timed(exchange: &mut Exchange, stream: &mut impl Stream, round: Round) -> Result<Duration, PerfError> {
    exchange.start(round)?;
    let start = Instant::now();
    stream.run(exchange, round)?;
    let time = start.elapsed();
    exchange.finish_round()?;
    Ok(time)
}

/// Messages that the effort amounts to.
fn calibrate(exchange: &mut Exchange, stream: &mut impl Stream, size: usize, effort: Effort) -> Result<u64, PerfError> {
    // The first messages touch memory for the first time.
    timed(exchange, stream, Round { size, count: 2 })?;
    let mut count = 4;
    let mut each = f64::INFINITY;
    loop {
        let seconds = timed(exchange, stream, Round { size, count })?.as_secs_f64().max(1e-9);
        let budget = match effort {
            Effort::Operations(operations) => return Ok(operations),
            Effort::Time(time) => time.as_secs_f64(),
        };
        // A trial that was interrupted tells nothing.
        each = each.min(seconds / count as f64);
        if seconds > CALIBRATION_TIME || seconds * 8.0 > budget {
            return Ok((budget / each).clamp(1.0, MAX_MESSAGES) as u64);
        }
        count *= 4;
    }
}

impl<'a> VerbsStream<'a> {
    /// A stream of the kind that `test` measures.
    pub fn new(session: &'a mut Session, kind: Test) -> Self {
        VerbsStream { session, kind, inline: [0; INLINE] }
    }

    /// How many messages may be posted now, if `outstanding` are.
    #[inline]
    fn window(&self, outstanding: u64, sent: u64) -> Result<u64, PerfError> {
        let session = &self.session;
        let window = u64::from(session.depth).saturating_sub(outstanding);
        if self.kind != Test::SendBw {
            return Ok(window);
        }
        // Never more than the receiver has receives for: nothing is ever retried.
        let received = session.inbox.load(session.credit_at())?;
        let ahead = sent.saturating_sub(received);
        Ok(window.min(u64::from(session.receives).saturating_sub(ahead)))
    }

    #[inline]
    fn post(&mut self, size: usize, number: u64, signaled: bool) -> Result<(), PerfError> {
        let session = &mut *self.session;
        let remote = session.data.slice(0..size as u64);
        let request = match self.kind {
            Test::AtomicBw => {
                let word = session.remote_at(session.atomic_at(), 8);
                session.qp.fetch_add(session.outbox.local(0..8), word, 1)
            }
            Test::ReadBw => session.qp.read(session.outgoing(size), remote),
            Test::SendBw if session.is_inline(size) => session.qp.send_inline(&self.inline[..size]),
            Test::SendBw => session.qp.send(session.outgoing(size)),
            _ if session.is_inline(size) => session.qp.write_inline(&self.inline[..size], remote),
            _ => session.qp.write(session.outgoing(size), remote),
        };
        let request = request.id(number);
        if signaled {
            request.signaled().post()?
        } else {
            request.post()?
        }
        Ok(())
    }
}

impl Stream for VerbsStream<'_> {
    fn run(&mut self, exchange: &Exchange, round: Round) -> Result<(), PerfError> {
        let every = u64::from(self.session.signal_every);
        let before = self.session.counters().sent;
        let (mut posted, mut retired) = (0, 0);
        let mut watch = Watch::new(exchange);
        while retired < round.count {
            let window = self.window(posted - retired, before + posted)?.min(round.count - posted);
            for _ in 0..window {
                posted += 1;
                let signaled = posted.is_multiple_of(every) || posted == round.count;
                self.post(round.size, posted, signaled)?;
            }
            match self.session.send_cq.poll()? {
                Some(done) => {
                    done.ok()?;
                    retired = done.wr_id();
                    watch.progress();
                }
                None if window > 0 => watch.progress(),
                None => watch.idle(Some(&self.session.qp))?,
            }
        }
        self.session.counters().sent = before + round.count;
        Ok(())
    }
}

/// The server's part of a SEND round: takes the messages, and tells how far it is.
///
/// # Errors
/// What the device says, or that the client is gone.
pub fn sink(session: &mut Session, exchange: &Exchange, round: Round) -> Result<(), PerfError> {
    let target = session.remote_at(session.credit_at(), 8);
    let every = u64::from(session.receives / 4);
    let mut watch = Watch::new(exchange);
    let mut left = round.count;
    while left > 0 {
        let Some(done) = session.recv_cq.poll()? else {
            watch.idle(Some(&session.qp))?;
            continue;
        };
        done.ok()?;
        session.qp.recv(done.into_memory()).post()?;
        watch.progress();
        left -= 1;
        session.counters().received += 1;
        let received = session.counters().received;
        if received.is_multiple_of(every) || left == 0 {
            session.qp.write_inline(&received.to_ne_bytes(), target).signaled().post()?;
            session.wait_sent(exchange)?;
        }
    }
    Ok(())
}

/// A run is cut into so many slices, with memcpy between them; medians are over slices.
const SLICES: u64 = 7;
/// Seconds of memcpy per slice.
const MEMCPY_TIME: f64 = 0.02;
/// Seconds after which the time of one message is known well enough.
const CALIBRATION_TIME: f64 = 0.02;
const MAX_MESSAGES: f64 = 1e12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_have_all_messages_and_no_more() {
        for operations in [1, 2, 3, 6, 7, 10, 100, 1 << 40] {
            let counts: Vec<u64> = slices(operations).collect();
            assert_eq!(counts.iter().sum::<u64>(), operations);
            assert_eq!(counts.len() as u64, operations.min(SLICES));
            assert!(counts[0] - counts[counts.len() - 1] <= 1, "{counts:?}");
        }
    }
}
