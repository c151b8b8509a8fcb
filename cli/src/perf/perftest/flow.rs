//! Streams of messages on all queue pairs: this side sends, receives, or does both.

use std::time::Instant;

use qpair::verbs::QpType;

use super::bench::{Bench, place};
use super::engine::Role;
use super::error::{ExchangeError, Step};
use super::link::{Link, Peer};
use super::peak::Stamps;
use super::progress::Progress;
use super::settings::Settings;
use super::span::{Phase, Span};
use super::watch::Watch;
use crate::perf::error::PerfError;
use crate::perf::test::Kind;

/// What one side saw of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Streamed {
    /// Messages measured.
    pub messages: u64,
    /// Messages that did not arrive (UC and UD).
    pub lost: u64,
    /// Seconds that they took.
    pub seconds: f64,
    /// Seconds per message in the best part of the run, if it was looked for.
    pub best: Option<f64>,
}

/// A stream under way.
struct Flow<'a> {
    bench: &'a mut Bench,
    size: usize,
    inline: Option<&'a [u8]>,
    service: QpType,
    /// Messages on each queue pair; without end with a duration.
    limit: u64,
    window: u64,
    every: u64,
    rx_depth: u64,
    lanes: Vec<LaneCount>,
    sends: bool,
    receives: bool,
    /// The server of a stream both ways holds back until the client has begun.
    held_back: bool,
    sent: u64,
    retired: u64,
    received: u64,
    measured: u64,
    stamps: Option<Stamps>,
    span: Option<Span>,
    settings: &'a Settings,
    times: Times,
}

/// When a stream began, and when its last messages each way were seen to be done: what is waited for after that, messages
/// that are lost or those of the other side, takes no part in how long it took.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    begun: Option<Instant>,
    sent: Option<Instant>,
    received: Option<Instant>,
}

#[derive(Clone, Copy, Debug, Default)]
struct LaneCount {
    sent: u64,
    retired: u64,
    received: u64,
}

/// Posts the receives that a stream begins with, if this side receives.
///
/// # Errors
/// [`PerfError::Post`].
pub fn prepare(bench: &mut Bench, settings: &Settings) -> Result<(), PerfError> {
    (0..bench.lanes.len()).try_for_each(|lane| bench.receive_up_to(lane, settings.rx_depth()))
}

/// True if this side sends in the stream, or asks for the messages.
pub fn sends(settings: &Settings, role: Role) -> bool {
    role == Role::Client || settings.duplex
}

/// True if this side takes receives from its queue in the stream.
pub fn receives(settings: &Settings, role: Role) -> bool {
    settings.test.kind() == Kind::Send && (role == Role::Server || settings.duplex)
}

/// Does this side's part of a stream of messages of `size` bytes.
///
/// # Errors
/// What the device says, or that the other side is gone or did something else.
pub fn run(
    bench: &mut Bench,
    link: &Link,
    settings: &Settings,
    role: Role,
    size: usize,
) -> Result<Streamed, PerfError> {
    let data = vec![0; if size <= bench.inline { size } else { 0 }];
    let inline = (size <= bench.inline).then_some(data.as_slice());
    let limit = settings.iterations().unwrap_or(u64::MAX);
    let (sends, receives) = (sends(settings, role), receives(settings, role));
    let total = limit.saturating_mul(settings.qps.into());
    let mut flow = Flow {
        size,
        inline,
        service: settings.service,
        limit,
        window: settings.tx_depth().into(),
        every: settings.cq_mod().into(),
        rx_depth: settings.rx_depth().into(),
        lanes: vec![LaneCount::default(); bench.lanes.len()],
        sends,
        receives,
        held_back: sends && receives && role == Role::Server,
        sent: 0,
        retired: 0,
        received: 0,
        measured: 0,
        stamps: (sends && settings.peak()).then(|| Stamps::new(total)),
        span: None,
        settings,
        times: Times::default(),
        bench,
    };
    flow.run(link, total)
}

impl Flow<'_> {
    fn run(&mut self, link: &Link, total: u64) -> Result<Streamed, PerfError> {
        let mut watch = Watch::new(link, self.bench.pace, Progress::on_terminal(self.settings, self.size));
        if self.sends && !self.held_back {
            self.begin();
        }
        loop {
            let done = (!self.sends || self.retired >= total) && (!self.receives || self.received >= total);
            if done {
                break;
            }
            let mut moved = self.post_sends()?;
            if self.receives {
                moved |= self.reap_receives()?;
            }
            if self.sends {
                moved |= self.reap_sends()?;
            }
            if self.span.is_some_and(|span| span.phase(Instant::now()) == Phase::Over) {
                break;
            }
            let messages = self.retired + self.received;
            if moved {
                watch.busy(messages)?;
            } else if let Some(peer) = watch.idle(self.bench, messages)?
                && self.gone_on(peer, total)?
            {
                break;
            }
        }
        Ok(self.outcome(total))
    }

    fn begin(&mut self) {
        let now = Instant::now();
        self.times.begun = Some(now);
        self.span = Span::begin(self.settings.goal, now);
    }

    fn post_sends(&mut self) -> Result<bool, PerfError> {
        if !self.sends || self.held_back {
            return Ok(false);
        }
        let before = self.sent;
        for lane in 0..self.lanes.len() {
            let count = &mut self.lanes[lane];
            while count.sent < self.limit && count.sent - count.retired < self.window {
                count.sent += 1;
                self.sent += 1;
                if let Some(stamps) = &mut self.stamps {
                    stamps.posted();
                }
                let signaled = count.sent.is_multiple_of(self.every) || count.sent == self.limit;
                self.bench.post(lane, count.sent, self.size, self.inline, signaled)?;
            }
        }
        Ok(self.sent != before)
    }

    fn reap_sends(&mut self) -> Result<bool, PerfError> {
        let before = self.retired;
        for _ in 0..BATCH {
            let Some(done) = self.bench.send_cq.poll()? else { break };
            done.ok()?;
            let (lane, number) = place(done.wr_id());
            let Some(count) = self.lanes.get_mut(lane) else { continue };
            self.retired += number.saturating_sub(count.retired);
            count.retired = count.retired.max(number);
            if let Some(stamps) = &mut self.stamps {
                stamps.completed(self.retired);
            }
        }
        if self.retired != before {
            let now = Instant::now();
            self.times.sent = Some(now);
            self.measure(self.retired - before, now);
        }
        Ok(self.retired != before)
    }

    fn reap_receives(&mut self) -> Result<bool, PerfError> {
        let before = self.received;
        for _ in 0..BATCH {
            let Some(done) = self.bench.recv_cq.poll()? else { break };
            done.ok()?;
            let lane = done.wr_id() as usize;
            drop(done);
            if self.times.begun.is_none() {
                self.begin();
                self.held_back = false;
            }
            let Some(count) = self.lanes.get_mut(lane) else { continue };
            self.bench.received(lane);
            count.received += 1;
            self.received += 1;
            // At the end as many are posted as are to come: only those are left for the next size whose messages got lost.
            if count.received.saturating_add(self.rx_depth) <= self.limit {
                self.bench.receive(lane)?;
            }
        }
        if self.received != before {
            let now = Instant::now();
            self.times.received = Some(now);
            self.measure(self.received - before, now);
        }
        Ok(self.received != before)
    }

    /// Counts messages of a run by duration, in both directions.
    fn measure(&mut self, messages: u64, now: Instant) {
        if self.span.is_some_and(|span| span.phase(now) == Phase::Measured) {
            self.measured += messages;
        }
    }

    /// The other side has gone on: true if this is how the run ends.
    fn gone_on(&mut self, peer: Peer, total: u64) -> Result<bool, PerfError> {
        if self.span.is_some_and(|span| span.may_end(Instant::now())) {
            return Ok(true);
        }
        let all_sent = !self.sends || self.retired >= total;
        if peer == Peer::Ahead && self.service != QpType::Rc && self.times.begun.is_some() && all_sent {
            return Ok(true);
        }
        if peer == Peer::Gone {
            return Err(ExchangeError::Closed { step: Step::Run }.into());
        }
        let (done, expected) = if self.receives { (self.received, total) } else { (self.retired, total) };
        let expected = if total == u64::MAX { "those of the whole duration".to_owned() } else { expected.to_string() };
        Err(ExchangeError::Ahead { received: done, expected }.into())
    }

    fn outcome(&self, total: u64) -> Streamed {
        if let Some(span) = self.span {
            let now = Instant::now();
            let seconds = span.seconds(now, self.times.last().unwrap_or(now));
            return Streamed { messages: self.measured, lost: 0, seconds, best: None };
        }
        let seconds = self.times.seconds(self.sends);
        let messages = if self.sends { self.retired } else { self.received };
        let lost = if self.receives { total.saturating_sub(self.received) } else { 0 };
        Streamed { messages, lost, seconds, best: self.stamps.as_ref().and_then(Stamps::best) }
    }
}

impl Times {
    /// Seconds from the beginning to the last message that this side sent if it sends, else received.
    fn seconds(&self, sends: bool) -> f64 {
        let last = if sends { self.sent } else { self.received };
        let took = self.begun.zip(last).map(|(begun, last)| last.saturating_duration_since(begun));
        took.unwrap_or_default().as_secs_f64()
    }

    /// When the last message of all was seen.
    fn last(&self) -> Option<Instant> {
        self.sent.max(self.received).or(self.begun)
    }
}

/// Completions looked at before more is posted.
const BATCH: u32 = 16;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_stream_takes_until_its_last_message() {
        let now = Instant::now();
        let at = |millis| Some(now + Duration::from_millis(millis));
        let times = Times { begun: at(0), sent: at(200), received: at(700) };
        assert_eq!([times.seconds(true), times.seconds(false)], [0.2, 0.7]);
        assert_eq!(times.last(), at(700));
        let silent = Times { begun: at(5), ..Times::default() };
        assert_eq!((silent.seconds(true), silent.seconds(false), silent.last()), (0.0, 0.0, at(5)));
    }
}
