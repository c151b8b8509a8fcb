//! What is done beside the messages, now and then: sockets, timers, memory that was withheld.

use std::time::Duration;

use qpair_verbs::{Local, RemoteSlice, Rkey};

use super::Worker;
use super::endpoint::{Job, Stage, wr_id};
use super::error::{CloseReason, Lost, WorkerError};
use crate::engine::Pulse;

/// How often polls look at the clock, and when the sockets were last seen to.
#[derive(Debug)]
pub(super) struct Pace {
    /// Polls between two looks at the clock.
    stride: u32,
    last: Duration,
    serviced: Duration,
    /// When endpoints' timers were looked at last, and up to which one.
    timed: Option<Duration>,
    looked: usize,
}

impl Pace {
    pub(super) fn new() -> Self {
        Pace { stride: 1, last: Duration::ZERO, serviced: Duration::ZERO, timed: None, looked: 0 }
    }

    /// The clock was looked at: polls until the next time, which shall come in some tens of microseconds.
    fn next_stride(&mut self, now: Duration) -> u32 {
        let elapsed = now.saturating_sub(std::mem::replace(&mut self.last, now));
        self.stride = match elapsed {
            long if long > Duration::from_micros(200) => (self.stride / 8).max(1),
            short if short < Duration::from_micros(25) => (self.stride * 2).min(STRIDE),
            _ => self.stride,
        };
        self.stride
    }
}

impl Worker {
    /// Looks at the clock, and at the sockets if it is time.
    #[cold]
    pub(super) fn tick(&mut self) -> Result<(), WorkerError> {
        let now = self.now();
        self.countdown = self.pace.next_stride(now);
        let interval = if self.sockets.is_brisk(now) { CONNECTING } else { INTERVAL };
        if now.saturating_sub(self.pace.serviced) >= interval {
            self.service(now, Some(Duration::ZERO))?;
        }
        Ok(())
    }

    /// Sees to sockets and timers; sleeps for the sockets and the completion channel up to `limit`.
    pub(super) fn service(&mut self, now: Duration, limit: Option<Duration>) -> Result<(), WorkerError> {
        let slept = limit != Some(Duration::ZERO);
        let system = |source| WorkerError::System { what: "poll the sockets", source };
        self.sockets.poll(limit, now).map_err(system)?;
        let now = if slept { self.now() } else { now };
        self.pace.serviced = now;
        // What peers have said counts, however late this side comes to read it.
        self.see_to_notices();
        self.sockets.expire(now);
        self.see_to_notices();
        // Each endpoint costs a look: not as often as handshakes are worth one.
        if slept || self.pace.timed.is_none_or(|timed| now.saturating_sub(timed) >= INTERVAL) {
            self.pace.timed = Some(now);
            self.look_at_timers(if slept { usize::MAX } else { TIMERS }, now);
        }
        if self.broken > 0 {
            self.end_overdue(now.saturating_sub(DRAIN_LIMIT))?;
        }
        self.look_at_withheld(LOOKS);
        self.look_at_parting()?;
        if self.pool.is_relieved() {
            self.resume();
        }
        Ok(())
    }

    fn see_to_notices(&mut self) {
        while !self.sockets.notices().is_empty() {
            for notice in std::mem::take(self.sockets.notices()) {
                self.notice(notice);
            }
        }
    }

    /// When something is to be done that no socket tells of.
    pub(super) fn next_timer(&self) -> Option<Duration> {
        self.endpoints
            .iter()
            .flat_map(|endpoint| {
                let due = matches!(endpoint.stage, Stage::Up).then(|| endpoint.link.due());
                let ending = matches!(endpoint.stage, Stage::Ending { .. }).then_some(Duration::ZERO);
                [due, endpoint.deadline, ending]
            })
            .flatten()
            .min()
    }

    /// Looks at the next endpoints, at most so many and each once. A sleep ends for the first of all, so that all count then.
    fn look_at_timers(&mut self, most: usize, now: Duration) {
        let bound = self.endpoints.bound();
        for _ in 0..most.min(bound) {
            self.pace.looked = if self.pace.looked < bound { self.pace.looked } else { 0 };
            self.timers(self.pace.looked, now);
            self.pace.looked += 1;
        }
    }

    fn timers(&mut self, index: usize, now: Duration) {
        let Some(endpoint) = self.endpoints.at(index) else { return };
        match endpoint.stage {
            Stage::Dialing { .. } | Stage::Greeting(_) | Stage::HalfOpen => {}
            Stage::Ending { since, .. } => {
                let late = now.saturating_sub(since) >= FLUSH_LIMIT;
                return if late { self.remove(index) } else { self.settle(index) };
            }
            Stage::Up => {
                let pulse = endpoint.link.tick(now);
                if endpoint.has_failed(pulse, now) {
                    return self.break_off(index, CloseReason::PeerLost(Lost::QueuePair));
                }
                match pulse {
                    Pulse::Quiet => {}
                    Pulse::Probe => self.probe(index),
                    Pulse::Lost => {
                        let lost = Lost::Silent(self.config.detection);
                        return self.break_off(index, CloseReason::PeerLost(lost));
                    }
                }
            }
        }
        let Some(endpoint) = self.endpoints.at(index) else { return };
        if endpoint.deadline.is_some_and(|deadline| now >= deadline) {
            self.fail(index, CloseReason::CloseTimedOut(self.config.close_timeout));
        }
    }

    /// Asks the peer's device for a sign of life.
    fn probe(&mut self, index: usize) {
        if !self.post_probe(index)
            && let Some(endpoint) = self.endpoints.at(index)
        {
            // A full send queue is a probe itself: its completions are awaited.
            endpoint.link.probe_done(false);
        }
    }

    /// Posts a zero-byte WRITE, which the peer's device answers without the peer's help. False if there is no room for it.
    pub(super) fn post_probe(&mut self, index: usize) -> bool {
        let Some(endpoint) = self.endpoints.at(index) else { return false };
        let (Some(work), Some(qp)) = (endpoint.link.take_slot(), &mut endpoint.qp) else { return false };
        let nowhere = RemoteSlice { addr: 0, len: 0, rkey: Rkey(0) };
        let id = wr_id(Job::Probe, endpoint.id, work.number);
        if let Err(rejected) = qp.write(Local::None, nowhere).id(id).signaled().post() {
            self.check(index, Err(rejected.error.into()));
        }
        true
    }
}

/// Most polls between two looks at the clock.
const STRIDE: u32 = 256;
/// Time between two looks at the sockets, each of which is a system call.
const INTERVAL: Duration = Duration::from_millis(1);
/// Endpoints whose timers are looked at each time: some tens of microseconds, and all of a thousand in 4 ms.
const TIMERS: usize = 256;
/// Time between two looks while connections are being made.
const CONNECTING: Duration = Duration::from_micros(20);
/// Pieces of withheld memory that are looked at each time.
const LOOKS: usize = 16;
/// How long a connection that broke waits for the queue to run empty by itself.
const DRAIN_LIMIT: Duration = Duration::from_millis(100);
/// How long a device may take to flush a broken queue pair, and peers to leave memory.
const FLUSH_LIMIT: Duration = Duration::from_secs(1);
