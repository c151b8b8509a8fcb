//! A connection goes on over another queue pair when its own has failed, while the peer's socket lives. Both sides give up
//! the queue pair, take what had come by it, tell each other of a new one and how much had come, and send again what had
//! not: nothing is lost, and nothing comes twice.

mod renewal;
mod repeats;
mod trial;

use std::time::Duration;

use qpair_verbs::{Local, Prepared};

use super::Worker;
use super::endpoint::{Endpoint, InFlight, OneSided, Stage};
use super::error::{CloseReason, Lost, OpError, WorkerError};
use super::event::{Event, Returned};
use super::ids::OpId;
use super::seen::Note;
use super::service::FLUSH_LIMIT;
use super::watch::Watch;
use crate::engine::is_before;

pub(super) use renewal::Renewed;
pub(super) use repeats::Repeats;
pub(super) use trial::Trial;

/// How far a connection is whose queue pair failed.
#[derive(Debug)]
pub(super) struct Recovery {
    trial: Box<Trial>,
    /// How long the device has taken to give back what it has.
    drained: Watch,
    /// No other queue pair is made before.
    after: Duration,
    step: Step,
}

impl Recovery {
    fn new(trial: Box<Trial>, now: Duration) -> Self {
        Recovery { after: now + trial.pause(), trial, drained: Watch::new(now), step: Step::Draining }
    }

    /// What is with the device comes back, and one more queue pair is made, after a pause where many came to nothing.
    fn start_over(&mut self, now: Duration) {
        self.trial.again();
        (self.step, self.drained, self.after) = (Step::Draining, Watch::new(now), now + self.trial.pause());
    }

    /// True if it took longer than `limit`, or a device keeps what it has.
    fn is_over(&mut self, now: Duration, limit: Duration) -> bool {
        let is_stuck = self.drained.is_over(now, FLUSH_LIMIT) && matches!(self.step, Step::Draining);
        self.trial.is_over(now, limit) || is_stuck
    }
}

#[derive(Debug)]
enum Step {
    /// What is with the device comes back.
    Draining,
    /// It is there, and another queue pair is made soon.
    Pausing,
    /// Another queue pair is made, and the peer told of it. The peer's is awaited.
    Renewed(Prepared),
    /// There was none to be had on the rail that the peer chose, and it was told: its next choice is awaited.
    Waiting,
    /// It is connected to the peer's. That the peer has connected its own is awaited.
    Connected,
}

impl Endpoint {
    /// True if the connection can go on over another queue pair. Not while bytes are read that the device combines with what
    /// is there: whether it has, nobody knows.
    pub(super) fn can_recover(&self, reason: &CloseReason) -> bool {
        let combines = |work: &InFlight| match &work.what {
            OneSided::Pull(reading) => reading.calc.is_some(),
            OneSided::Get { calc, .. } => calc.is_some(),
            _ => false,
        };
        let stands = matches!(self.stage, Stage::Up) && self.socket.is_some() && !self.parted;
        let mut works = self.reads.iter().chain(self.repeats.lost.iter().map(|(work, _)| work));
        self.link.retains() && stands && reason.is_of_queue_pair() && !works.any(combines)
    }

    /// The connection broke. If another queue pair may take the place of its own, which has surely failed, what is given from now on
    /// waits for that: a device may refuse requests to one that failed.
    pub(super) fn hold_back(&mut self, reason: &CloseReason) {
        if !matches!(reason, CloseReason::PeerLost(Lost::Silent(_))) && self.can_recover(reason) {
            self.link.suspend();
            self.up = false;
        }
    }
}

impl Worker {
    /// The queue pair failed for a reason that another may not have.
    #[cold]
    pub(super) fn suspend(&mut self, index: usize, reason: CloseReason) {
        let now = self.now();
        let Some(endpoint) = self.endpoints.at(index) else { return };
        endpoint.note(now, Note::new("gives up its queue pair"));
        endpoint.fail_queue_pair();
        tracing::info!(parent: &endpoint.span, %reason, "interrupted; another queue pair is made");
        endpoint.link.suspend();
        // Its time would say nothing of the path.
        endpoint.timed = None;
        endpoint.up = false;
        // The limit is for all that it takes until one carries what others failed by.
        let failed_again = endpoint.trial.take().filter(|_| !endpoint.link.is_proven());
        let trial = match failed_again {
            Some(mut trial) => {
                trial.again();
                trial
            }
            None => Box::new(Trial::new(reason, now)),
        };
        endpoint.stage = Stage::Recovering(Box::new(Recovery::new(trial, now)));
        self.recovering = true;
        self.schedule(index, now);
    }

    /// Goes on where queue pairs have given back what they had, and ends what nobody is there for any more.
    pub(super) fn look_at_recovering(&mut self) -> Result<(), WorkerError> {
        if !self.recovering {
            return Ok(());
        }
        // What had come before the queue pair failed counts: all of it, since the peer is told how much that is.
        self.take_all()?;
        let now = self.now();
        self.recovering = false;
        for index in 0..self.endpoints.bound() {
            let Some(endpoint) = self.endpoints.at(index) else { continue };
            let is_drained = endpoint.reads.is_empty() && endpoint.copied == 0;
            let has_hung_up = endpoint.socket.is_none();
            let Stage::Recovering(recovery) = &mut endpoint.stage else { continue };
            if has_hung_up {
                self.give_up_recovering(index);
                continue;
            }
            self.recovering = true;
            if matches!(recovery.step, Step::Draining) && is_drained {
                recovery.step = Step::Pausing;
            }
            if matches!(recovery.step, Step::Pausing) && now >= recovery.after {
                self.renew(index, None);
            }
        }
        Ok(())
    }

    /// Looks after a connection that recovers: limits.
    pub(super) fn recover(&mut self, index: usize, now: Duration) {
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let Stage::Recovering(recovery) = &mut endpoint.stage else { return };
        let is_over = recovery.is_over(now, self.config.recovery);
        if endpoint.is_late(now, self.config.close_timeout) {
            self.fail(index, CloseReason::CloseTimedOut(self.config.close_timeout));
        } else if is_over {
            self.give_up_recovering(index);
        }
    }

    /// Looks after a connection that goes on over another queue pair, of which nothing shows yet that it does better. One that
    /// carries something has all the time it takes, unless it fails. False if the connection has ended.
    pub(super) fn try_out(&mut self, index: usize, now: Duration) -> bool {
        let limit = self.config.recovery;
        let Some(endpoint) = self.endpoints.at(index) else { return false };
        let is_proven = endpoint.link.is_proven();
        endpoint.trial.take_if(|_| is_proven);
        let is_over =
            endpoint.trial.as_mut().is_some_and(|trial| trial.is_over(now, limit)) && !endpoint.link.carries();
        if is_over {
            self.give_up_recovering(index);
        }
        !is_over
    }

    /// The connection ends with what interrupted it; unless it was over, but for the last acknowledgment.
    pub(super) fn give_up_recovering(&mut self, index: usize) {
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let is_over = endpoint.parted && endpoint.link.awaits_last_acknowledgment();
        let trial = match &mut endpoint.stage {
            Stage::Recovering(recovery) => Some(&mut recovery.trial),
            _ => endpoint.trial.as_mut(),
        };
        let Some(trial) = trial else { return };
        if is_over {
            return self.finish_close(index);
        }
        let reason = trial.take_reason();
        self.fail(index, reason);
    }

    /// Ends the one-sided work that the peer's device has surely seen to, that must not be done twice, or that only brings what
    /// nobody waits for. Gives the rest, which is done again: also what nobody waits for any more here, since messages behind it
    /// tell the peer that it was done. `had`: the last request that the peer has surely seen to.
    pub(super) fn settle_works(&mut self, index: usize, had: Option<u32>) -> Vec<(InFlight, Local)> {
        let Some(endpoint) = self.endpoints.at(index) else { return Vec::new() };
        let (ep, lost) = (endpoint.id, std::mem::take(&mut endpoint.repeats.lost));
        let mut again = Vec::new();
        for (mut work, memory) in lost {
            let op = OpId::new(work.number, Some(ep));
            let is_done = had.is_some_and(|had| is_before(work.order, had));
            let event = match &mut work.what {
                OneSided::Put { own, .. } if is_done => {
                    let memory = self.own_memory(own.take(), memory);
                    Event::Put { op, ep, memory }
                }
                OneSided::Get { .. } if !work.awaited => Event::Got { op, ep, memory },
                OneSided::Fetch { .. } => {
                    self.give_back(memory);
                    Event::Failed { op, ep: Some(ep), error: OpError::Unknown, returned: Returned::Nothing }
                }
                _ => {
                    again.push((work, memory));
                    continue;
                }
            };
            self.ready.push_back(if work.awaited { event } else { event.released(op) });
        }
        again
    }

    /// The peer has connected its queue pair too: what it may not have goes out again.
    pub(super) fn recovered(&mut self, index: usize) {
        let now = self.now();
        let Some(endpoint) = self.endpoints.at(index) else { return };
        if !matches!(&endpoint.stage, Stage::Recovering(recovery) if matches!(recovery.step, Step::Connected)) {
            return;
        }
        if let Stage::Recovering(recovery) = std::mem::replace(&mut endpoint.stage, Stage::Up) {
            endpoint.trial = Some(recovery.trial);
        }
        endpoint.note(now, Note::of("goes on; sends again", endpoint.repeats.due.len() as u64));
        tracing::info!(parent: &endpoint.span, again = endpoint.repeats.due.len(), "goes on over another queue pair");
        self.counters.recovered += 1;
        self.schedule(index, now);
        self.advance(index);
        if self.endpoints.at(index).is_some_and(|endpoint| endpoint.link.is_interrupted()) {
            // What goes out again waits for something. If there is no room for this, something else shows whether it works.
            self.post_probe(index);
        }
    }
}
