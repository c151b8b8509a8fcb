//! What is done beside the messages, now and then: sockets, timers, memory that was withheld.

use std::time::Duration;

use qpair_verbs::{Local, RemoteSlice, Rkey};

use super::datagram::line_of;
use super::endpoint::Stage;
use super::error::{CloseReason, Lost, WorkerError};
use super::seen::Note;
use super::work_id::{Job, wr_id};
use super::{Worker, datagram};
use crate::engine::Pulse;

/// How often polls look at the clock, and when the sockets were last seen to.
#[derive(Debug)]
pub(super) struct Pace {
    /// Polls that find nothing between two looks at the clock.
    stride: i32,
    last: Duration,
    serviced: Duration,
    /// When connections were looked at last.
    looked: Option<Duration>,
}

impl Pace {
    pub(super) fn new() -> Self {
        Pace { stride: 1, last: Duration::ZERO, serviced: Duration::ZERO, looked: None }
    }

    /// The time when the clock was last looked at: near enough for a history.
    pub(super) fn now(&self) -> Duration {
        self.last
    }

    /// The clock was looked at: polls until the next time, which shall come in some tens of microseconds.
    fn next_stride(&mut self, now: Duration) -> i32 {
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
        if self.armed {
            return self.end_sleep(now);
        }
        // Where messages never cease, the queue never runs empty. And the sockets may take long while peers connect: all datagrams
        // that came meanwhile are taken, before those behind find no receive.
        if self.has_other_queues {
            self.poll_other_queues(datagram::DEPTH)?;
        }
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
        self.sockets.sleep(limit).map_err(system)?;
        // What came in a sleep came at its end.
        let now = if slept { self.now() } else { now };
        self.sockets.see_to_events(now);
        self.pace.serviced = now;
        // What peers have said counts, however late this side comes to read it.
        self.see_to_notices();
        self.look_at_held(now);
        self.sockets.expire(now);
        self.see_to_notices();
        if self.rails.count() > 0 {
            self.drain_rails()?;
        }
        // Nor are packets taken for lost whose acknowledgments wait.
        self.poll_datagrams(datagram::DEPTH);
        while let Some((due, index)) = self.timers.pop(now) {
            let endpoint = self.endpoints.at(index as usize);
            if endpoint.is_some_and(|endpoint| endpoint.timer.take_if(|timer| *timer == due).is_some()) {
                self.look(index as usize, now);
            }
        }
        // Not as often as handshakes are worth a look at the sockets.
        if slept || self.pace.looked.is_none_or(|looked| now.saturating_sub(looked) >= INTERVAL) {
            self.pace.looked = Some(now);
            for index in self.timers.turn(self.endpoints.bound()) {
                self.look(index, now);
            }
        }
        if self.broken > 0 {
            self.end_overdue(now.saturating_sub(DRAIN_LIMIT))?;
        }
        self.expire_operations(now);
        self.look_at_withheld(LOOKS);
        self.reclaim_dropped(LOOKS);
        self.registrations.look_around();
        self.registrations.age(now);
        self.look_at_parting()?;
        self.staging.replace_kept(&self.pd);
        self.look_at_recovering()?;
        self.look_at_parts(now);
        if self.pool.is_relieved() {
            self.resume();
        }
        if self.pool.has_line() {
            self.feed();
        }
        Ok(())
    }

    pub(super) fn see_to_notices(&mut self) {
        while !self.sockets.notices().is_empty() {
            for notice in std::mem::take(self.sockets.notices()) {
                self.notice(notice);
            }
        }
    }

    /// Looks after a connection, not before `due`, if there is none sooner to come.
    pub(super) fn schedule(&mut self, index: usize, due: Duration) {
        if let Some(endpoint) = self.endpoints.at(index)
            && endpoint.timer.is_none_or(|timer| due < timer)
        {
            endpoint.timer = Some(due);
            self.timers.push(due, index as u32);
            if self.timers.is_crowded(self.endpoints.len()) {
                let endpoints = &mut self.endpoints;
                self.timers.keep(|due, index| endpoints.at(index as usize).is_some_and(|one| one.timer == Some(due)));
            }
        }
    }

    /// Looks after a connection: signs of life, what waits for the peer or the device, and limits.
    fn look(&mut self, index: usize, now: Duration) {
        let patience = ASK.max(ASK_EACH.saturating_mul(self.endpoints.len() as u32));
        let Some(endpoint) = self.endpoints.at(index) else { return };
        match endpoint.stage {
            Stage::Dialing { .. } | Stage::Greeting(_) | Stage::HalfOpen => {}
            Stage::Ending { since, .. } => {
                let late = now.saturating_sub(since) >= FLUSH_LIMIT;
                // A GPU that copies is waited for: its memory is the application's.
                // The program may not have polled all the while: what the device gave back is no more with it.
                if late && let Err(error) = self.take_all() {
                    tracing::warn!(%error, "a connection ends, and not all that its device gave back could be taken");
                }
                let Some(endpoint) = self.endpoints.at(index) else { return };
                if late && !(endpoint.is_with_nobody() && self.staging.takes_from(endpoint.id)) {
                    self.remove(index);
                } else {
                    self.settle(index);
                    self.schedule(index, now + INTERVAL);
                }
                return;
            }
            Stage::Recovering(_) => {
                self.recover(index, now);
                self.look_at_rails(index, now);
                return self.schedule(index, now + INTERVAL);
            }
            Stage::Up => {
                if endpoint.trial.is_some() && !self.try_out(index, now) {
                    return;
                }
                let Some(endpoint) = self.endpoints.at(index) else { return };
                endpoint.link.allow(endpoint.grace());
                endpoint.listen();
                let pulse = endpoint.link.tick(now);
                if endpoint.has_failed(pulse, now, patience) {
                    return self.break_off(index, CloseReason::PeerLost(Lost::QueuePair));
                }
                match pulse {
                    Pulse::Quiet => {}
                    Pulse::Probe => self.probe_life(index),
                    Pulse::Lost => {
                        let lost = Lost::Silent(self.config.detection);
                        return self.break_off(index, CloseReason::PeerLost(lost));
                    }
                }
            }
        }
        self.look_at_rails(index, now);
        self.look_at_line(index);
        let Some(endpoint) = self.endpoints.at(index) else { return };
        if endpoint.is_late(now, self.config.close_timeout) {
            return self.fail(index, CloseReason::CloseTimedOut(self.config.close_timeout));
        }
        let life = matches!(endpoint.stage, Stage::Up).then(|| endpoint.link.due());
        let trial = endpoint.trial.as_ref().map(|_| now);
        let closing = endpoint.closing.as_ref().map(|closing| closing.due(self.config.close_timeout));
        let due = [life, closing, trial].into_iter().flatten().min();
        if let Some(due) = due {
            // Not before the next look: what could not be done now is tried again then.
            self.schedule(index, due.max(now + INTERVAL));
        }
    }

    /// Asks the peer's device for a sign of life.
    fn probe_life(&mut self, index: usize) {
        if let Some(endpoint) = self.endpoints.at(index)
            && let Some(frame) = endpoint.link.give_up_slots()
        {
            let ep = endpoint.id;
            endpoint.note(self.pace.now(), Note::of("silent; gave up slots", frame.header.length));
            self.send_credit(ep, &frame);
        }
        let posted = self.post_probe(index);
        let Some(endpoint) = self.endpoints.at(index) else { return };
        if posted {
            endpoint.note(self.pace.now(), Note::new("silent; probed"));
        } else {
            // A full send queue is a probe itself: its completions are awaited.
            endpoint.link.probe_done(false);
        }
    }

    /// The peer's device has answered a probe.
    pub(super) fn probe_answered(&mut self, index: usize) {
        let now = self.now();
        let Some(endpoint) = self.endpoints.at(index) else { return };
        endpoint.link.probe_done(true);
        endpoint.threshold.probed(now.saturating_sub(endpoint.probed));
        self.measure(index);
    }

    /// Measures the path to the peer, a probe after the other.
    pub(super) fn measure(&mut self, index: usize) {
        let Some(endpoint) = self.endpoints.at(index).filter(|endpoint| endpoint.up) else { return };
        if let Some(left) = endpoint.measuring.checked_sub(1) {
            endpoint.measuring = left;
            self.post_probe(index);
        }
    }

    /// Posts a zero-byte WRITE, which the peer's device answers without the peer's help; over datagrams a packet of nothing,
    /// which the peer's program answers. False if there is no room for it.
    pub(super) fn post_probe(&mut self, index: usize) -> bool {
        let Some(endpoint) = self.endpoints.at(index) else { return false };
        if !endpoint.is_connected() {
            return false;
        }
        let Some(work) = endpoint.link.take_slot() else { return false };
        endpoint.probed = self.start.elapsed();
        let id = endpoint.id;
        if let Some((line, datagrams)) = line_of(endpoint, &mut self.datagrams) {
            datagrams.post_nothing(line, id.index, Job::Probe, work.number);
            return true;
        }
        let Some(qp) = &mut endpoint.qp else { return false };
        endpoint.arrivals = qp.arrivals();
        let nowhere = RemoteSlice { addr: 0, len: 0, rkey: Rkey(0) };
        let id = wr_id(Job::Probe, id, work.number);
        if let Err(rejected) = qp.write(Local::None, nowhere).id(id).signaled().post() {
            self.check(index, Err(rejected.error.into()));
        }
        true
    }
}

/// Most polls that find nothing between two looks at the clock.
pub(super) const STRIDE: i32 = 512;
/// Time between two looks at the sockets, each of which is a system call.
const INTERVAL: Duration = Duration::from_millis(1);
/// Time between two looks while connections are being made.
const CONNECTING: Duration = Duration::from_micros(20);
/// Pieces of withheld memory, and of what the application has, that are looked at each time.
const LOOKS: usize = 16;
/// How long a connection that broke waits for the queue to run empty by itself.
const DRAIN_LIMIT: Duration = Duration::from_millis(100);
/// How long a device may take to flush a broken queue pair, and peers to leave memory.
pub(super) const FLUSH_LIMIT: Duration = Duration::from_secs(1);
/// How long a peer is silent before the device is asked about the queue pair, and the time until it is asked again: as long
/// as a program that polls takes at most to find a failure of which nothing tells. A probe asks as well.
const ASK: Duration = Duration::from_millis(100);
/// The same for each connection there is: asking is a system call.
const ASK_EACH: Duration = Duration::from_millis(1);
