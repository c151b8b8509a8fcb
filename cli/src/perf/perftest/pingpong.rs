//! Latency: WRITEs and SENDs forth and back, READs and atomics one by one.

use std::time::Instant;

use super::bench::Bench;
use super::engine::Role;
use super::error::{ExchangeError, Step};
use super::link::{Link, Peer};
use super::settings::Settings;
use super::span::{Phase, Span};
use super::watch::Watch;
use crate::perf::error::PerfError;

/// What one side saw of messages one by one.
#[derive(Clone, Debug, PartialEq)]
pub enum Timed {
    /// Seconds from each message to the next.
    Each(Vec<f64>),
    /// So many messages in so many seconds: a run by duration.
    Total {
        /// Messages.
        messages: u64,
        /// Seconds.
        seconds: f64,
    },
}

/// Messages one by one, under way.
struct PingPong<'a> {
    bench: &'a mut Bench,
    watch: Watch<'a>,
    size: usize,
    /// Messages; without end with a duration.
    limit: u64,
    span: Option<Span>,
    settings: &'a Settings,
    /// When each message was posted.
    posted: Vec<Instant>,
    /// When a message of a run by duration was last counted.
    last: Instant,
    measured: u64,
    /// Receives are posted again before the answer, not after: there is but one.
    early: bool,
    /// What is sent inline; as long as a message, or empty.
    data: Vec<u8>,
}

/// The course of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waited {
    /// What was waited for is there.
    Came,
    /// The time of the run is over.
    Over,
}

impl<'a> PingPong<'a> {
    fn new(bench: &'a mut Bench, link: &'a Link, settings: &'a Settings, size: usize) -> Self {
        let room = settings.iterations().map_or(0, |count| count.min(MAX_ROOM) as usize);
        PingPong {
            watch: Watch::new(link, bench.pace, None),
            size,
            limit: settings.iterations().unwrap_or(u64::MAX),
            span: None,
            settings,
            posted: Vec::with_capacity(room),
            last: Instant::now(),
            measured: 0,
            early: settings.rx_depth() < 2,
            data: vec![0; if size <= bench.inline { size } else { 0 }],
            bench,
        }
    }

    fn begin(&mut self) {
        self.span = Span::begin(self.settings.goal, Instant::now());
    }

    fn phase(&self) -> Option<Phase> {
        self.span.map(|span| span.phase(Instant::now()))
    }

    /// Posts message `number`.
    #[inline]
    fn post(&mut self, number: u64) -> Result<(), PerfError> {
        // Not after posting: the message may have arrived before the clock is read.
        if self.settings.iterations().is_some() {
            self.posted.push(Instant::now());
        }
        let inline = (!self.data.is_empty()).then_some(self.data.as_slice());
        self.bench.post(0, number, self.size, inline, true)
    }

    /// Waits for the completion of the only request that is outstanding.
    #[inline]
    fn wait_sent(&mut self, sent: u64) -> Result<Waited, PerfError> {
        loop {
            let came = self.bench.send_cq.poll()?.map(|done| done.ok());
            match came {
                Some(Ok(())) => {
                    self.watch.progress();
                    return Ok(Waited::Came);
                }
                Some(Err(failed)) => return self.over_or(failed.into()),
                None => {}
            }
            if let Some(peer) = self.watch.idle(self.bench, sent - 1)? {
                return self.over_or(gone_on(peer, self.limit, sent - 1));
            }
        }
    }

    /// What `error` of a wait means: of two runs by duration one ends first, and takes its queue pair with it.
    #[cold]
    fn over_or(&self, error: PerfError) -> Result<Waited, PerfError> {
        let peer = self.watch.peer()?;
        let may_end = self.span.is_some_and(|span| span.may_end(Instant::now()));
        if may_end && peer != Peer::Running { Ok(Waited::Over) } else { Err(error) }
    }

    /// A poll for the other side's message found nothing.
    #[inline]
    fn idle(&mut self, received: u64) -> Result<Waited, PerfError> {
        if self.watch.now_and_then() && self.phase() == Some(Phase::Over) {
            return Ok(Waited::Over);
        }
        match self.watch.idle(self.bench, received)? {
            None => Ok(Waited::Came),
            Some(peer) => self.over_or(gone_on(peer, self.limit, received)),
        }
    }

    /// Counts a message of a run by duration; true if that is over.
    #[inline]
    fn count(&mut self) -> bool {
        let Some(span) = self.span else { return false };
        let now = Instant::now();
        match span.phase(now) {
            Phase::Measured => self.measured += 1,
            Phase::Over => return true,
            Phase::Margin => {}
        }
        self.last = now;
        false
    }

    fn timed(self) -> Timed {
        match self.span {
            Some(span) => Timed::Total { messages: self.measured, seconds: span.seconds(Instant::now(), self.last) },
            None => Timed::Each(self.posted.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect()),
        }
    }

    /// Waits for message `number`: the last byte in the inbox is that of the number.
    #[inline]
    fn wait_written(&mut self, number: u64) -> Result<Waited, PerfError> {
        let value = number as u8;
        let last = self.size - 1;
        let (word, byte) = (last & !7, last & 7);
        loop {
            if self.bench.inbox.load(word)?.to_ne_bytes()[byte] == value {
                self.watch.progress();
                return Ok(Waited::Came);
            }
            if self.idle(number - 1)? == Waited::Over {
                return Ok(Waited::Over);
            }
        }
    }

    /// Posts a receive in the place of message `received`, as long as more than those posted are to come.
    #[inline]
    fn receive_again(&mut self, received: u64) -> Result<(), PerfError> {
        if received > 0 && received.saturating_add(self.settings.rx_depth().into()) <= self.limit {
            self.bench.receive(0)?;
        }
        Ok(())
    }

    /// Waits for a message; where there is but one receive, posts it again at once.
    #[inline]
    fn wait_received(&mut self, received: u64) -> Result<Waited, PerfError> {
        loop {
            let came = self.bench.recv_cq.poll()?.map(|done| done.ok());
            match came {
                Some(Ok(())) => {
                    self.bench.received(0);
                    self.watch.progress();
                    if self.early {
                        self.receive_again(received)?;
                    }
                    return Ok(Waited::Came);
                }
                Some(Err(failed)) => return self.over_or(failed.into()),
                None => {}
            }
            if self.idle(received - 1)? == Waited::Over {
                return Ok(Waited::Over);
            }
        }
    }
}

/// RDMA WRITEs forth and back: the last byte of message n is n, which the other side polls its memory for. The server
/// writes first.
///
/// # Errors
/// What the device says, or that the other side is gone or did something else.
pub fn writes(
    bench: &mut Bench,
    link: &Link,
    settings: &Settings,
    role: Role,
    size: usize,
) -> Result<Timed, PerfError> {
    let mut run = PingPong::new(bench, link, settings, size);
    run.begin();
    for number in 1..=run.limit {
        if role == Role::Client && run.wait_written(number)? == Waited::Over {
            break;
        }
        if run.data.is_empty() {
            run.bench.outbox.write(size - 1, &[number as u8])?;
        } else {
            run.data[size - 1] = number as u8;
        }
        run.post(number)?;
        if run.wait_sent(number)? == Waited::Over || run.count() {
            break;
        }
        if role == Role::Server && run.wait_written(number)? == Waited::Over {
            break;
        }
    }
    Ok(run.timed())
}

/// SENDs forth and back. The client sends first.
///
/// # Errors
/// As [`writes`].
pub fn sends(bench: &mut Bench, link: &Link, settings: &Settings, role: Role, size: usize) -> Result<Timed, PerfError> {
    let mut run = PingPong::new(bench, link, settings, size);
    for number in 1..=run.limit {
        if role == Role::Server && run.wait_received(number)? == Waited::Over {
            break;
        }
        if number == 1 {
            run.begin();
        }
        run.post(number)?;
        if !run.early {
            // While the message is on its way.
            run.receive_again(if role == Role::Server { number } else { number - 1 })?;
        }
        if run.wait_sent(number)? == Waited::Over {
            break;
        }
        if role == Role::Client && run.wait_received(number)? == Waited::Over {
            break;
        }
        if run.count() {
            break;
        }
    }
    Ok(run.timed())
}

/// READs or atomics one by one; the other side does nothing.
///
/// # Errors
/// As [`writes`].
pub fn singles(bench: &mut Bench, link: &Link, settings: &Settings, size: usize) -> Result<Timed, PerfError> {
    let mut run = PingPong::new(bench, link, settings, size);
    run.begin();
    for number in 1..=run.limit {
        run.post(number)?;
        if run.wait_sent(number)? == Waited::Over || run.count() {
            break;
        }
    }
    Ok(run.timed())
}

fn gone_on(peer: Peer, limit: u64, received: u64) -> PerfError {
    let error = match peer {
        Peer::Gone | Peer::Running => ExchangeError::Closed { step: Step::Run },
        Peer::Ahead => {
            let expected = if limit == u64::MAX { "those of the whole duration".to_owned() } else { limit.to_string() };
            ExchangeError::Ahead { received, expected }
        }
    };
    error.into()
}

/// Room for stamps to begin with; more is taken as messages come.
const MAX_ROOM: u64 = 1 << 20;
