//! A connection goes on over another queue pair when its own has failed, while the peer's socket lives. Both sides give up
//! the queue pair, take what had come by it, tell each other of a new one and how much had come, and send again what had
//! not: nothing is lost, and nothing comes twice.

mod repeats;
mod trial;

use std::time::Duration;

use qpair_verbs::{Local, PostError, Prepared, QpState, QueuePair};

use super::Worker;
use super::endpoint::{Endpoint, InFlight, OneSided, Stage};
use super::error::{CloseReason, ConnectFailure, Lost, OpError, ResourceError, WorkerError};
use super::event::{Event, Returned};
use super::ids::OpId;
use super::seen::Note;
use super::service::FLUSH_LIMIT;
use super::setup::{epoch, terms};
use crate::cm::{Message, RailNews, Renewal};
use crate::engine::{Again, RESERVED_SLOTS, RemoteMemory, Unconfirmed, is_before};

pub(super) use repeats::Repeats;
pub(super) use trial::Trial;
use trial::Watch;

/// How far a connection is whose queue pair failed.
#[derive(Debug)]
pub(super) struct Recovery {
    trial: Box<Trial>,
    /// How long the device has taken to give back what it has.
    drained: Watch,
    step: Step,
}

impl Recovery {
    fn new(trial: Box<Trial>, now: Duration) -> Self {
        Recovery { trial, drained: Watch::new(now), step: Step::Draining }
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
}

impl Endpoint {
    /// True if all that is to be written again can be: what follows may count on it.
    fn can_repeat(&self, unconfirmed: &[Unconfirmed], works: &[(InFlight, Local)]) -> bool {
        let is_known = |remote: &RemoteMemory| self.name(remote).is_ok();
        let copies = unconfirmed.iter().all(|one| match &one.what {
            Again::Write(remote, _) => is_known(remote),
            Again::Message(_) => true,
        });
        copies
            && works.iter().all(|(work, _)| match &work.what {
                OneSided::Put { remote } => is_known(remote),
                _ => true,
            })
    }
}

impl Worker {
    /// The queue pair failed for a reason that another may not have.
    #[cold]
    pub(super) fn suspend(&mut self, index: usize, reason: CloseReason) {
        let now = self.now();
        let Some(endpoint) = self.endpoints.at(index) else { return };
        endpoint.note(now, Note::new("gives up its queue pair"));
        if let Some(qp) = &mut endpoint.qp
            && let Err(error) = qp.to_error()
        {
            tracing::debug!(parent: &endpoint.span, %error, "the queue pair was in error already");
        }
        tracing::info!(parent: &endpoint.span, %reason, "interrupted; another queue pair is made");
        endpoint.link.suspend();
        // Its time would say nothing of the path.
        endpoint.timed = None;
        endpoint.up = false;
        // The limit is for all that it takes until one carries something.
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

    /// Goes on where queue pairs have given back what they had.
    pub(super) fn look_at_recovering(&mut self) -> Result<(), WorkerError> {
        if !self.recovering {
            return Ok(());
        }
        // What had come before the queue pair failed counts: all of it, since the peer is told how much that is.
        self.take_all()?;
        self.recovering = false;
        for index in 0..self.endpoints.bound() {
            let Some(endpoint) = self.endpoints.at(index) else { continue };
            let Stage::Recovering(recovery) = &endpoint.stage else { continue };
            self.recovering = true;
            let is_drained = endpoint.reads.is_empty() && endpoint.copied == 0;
            if matches!(recovery.step, Step::Draining) && is_drained {
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
        if endpoint.deadline.is_some_and(|deadline| now >= deadline) {
            self.fail(index, CloseReason::CloseTimedOut(self.config.close_timeout));
        } else if is_over {
            self.give_up_recovering(index);
        }
    }

    /// Looks after a connection that goes on over another queue pair, which has carried nothing yet. False if it has ended.
    pub(super) fn try_out(&mut self, index: usize, now: Duration) -> bool {
        let limit = self.config.recovery;
        let Some(endpoint) = self.endpoints.at(index) else { return false };
        let is_proven = endpoint.link.is_proven();
        endpoint.trial.take_if(|_| is_proven);
        let is_over = endpoint.trial.as_mut().is_some_and(|trial| trial.is_over(now, limit));
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
        let reason = std::mem::replace(&mut trial.reason, CloseReason::PeerLost(Lost::QueuePair));
        self.fail(index, reason);
    }

    /// Makes another queue pair, on the rail that the peer chose or on one of this side's choice, and tells the peer of it.
    fn renew(&mut self, index: usize, chosen: Option<usize>) {
        self.put_away(index);
        let epoch = match epoch() {
            Ok(epoch) => epoch,
            Err(error) => {
                tracing::warn!(%error, "no random number to be had");
                return self.give_up_recovering(index);
            }
        };
        let Some(endpoint) = self.endpoints.at(index) else { return };
        endpoint.link.renew(epoch);
        let ep = endpoint.id;
        let made = match chosen {
            Some(rail) => self.prepare(ep, rail).map(|prepared| (prepared, rail)),
            None => self.prepare_somewhere(index),
        };
        let (prepared, rail) = match (made, chosen) {
            (Ok(made), _) => made,
            (Err(error), Some(rail)) => {
                tracing::info!(rail, %error, "messages can not go over a rail that the peer chose");
                return self.bar_rail(index, rail);
            }
            (Err(error), None) => return self.fail(index, CloseReason::Resources(Box::new(error))),
        };
        let hello = self.hello_on(rail, prepared.address(), epoch);
        let Some(endpoint) = self.endpoints.at(index) else { return };
        (endpoint.reserved, endpoint.rail, endpoint.device) = (true, rail, self.rails.device_of(rail));
        endpoint.note(self.pace.now(), Note::of("made another queue pair, on rail", rail as u64));
        let renewal = Renewal { hello, received: endpoint.link.received(), rail: rail as u8 };
        if let Stage::Recovering(recovery) = &mut endpoint.stage {
            recovery.step = Step::Renewed(prepared);
        }
        if let Some(socket) = endpoint.socket {
            self.sockets.send(socket, &Message::Renew(Box::new(renewal)));
        }
        self.reconnect(index);
    }

    /// The queue pair that a connection has goes, with its receives.
    fn put_away(&mut self, index: usize) {
        let qp = self.endpoints.detach(index);
        let stays = |qp: &QueuePair| self.config.shared_receives.is_some() || !qp.is_settled();
        self.parting.extend(qp.filter(stays));
        let Some(endpoint) = self.endpoints.at(index).filter(|endpoint| endpoint.reserved) else { return };
        endpoint.reserved = false;
        let (ep, window, own) = (endpoint.id, endpoint.link.window(), endpoint.device > 0);
        let posted = endpoint.link.outstanding_slots() + RESERVED_SLOTS;
        let flushed = std::mem::take(&mut endpoint.flushed);
        self.slabs.disown(ep);
        self.shares.end(window);
        self.slabs.release(window + RESERVED_SLOTS, posted.saturating_sub(flushed), own);
    }

    /// A queue pair on the next rail on which there is one to be had.
    fn prepare_somewhere(&mut self, index: usize) -> Result<(Prepared, usize), ResourceError> {
        loop {
            let Some(endpoint) = self.endpoints.at(index) else { return Err(PostError::State(QpState::Err).into()) };
            let (ep, mut rail) = (endpoint.id, endpoint.rail);
            // A failure may have been of that moment.
            let first = matches!(&endpoint.stage, Stage::Recovering(recovery) if recovery.trial.is_first());
            if let Some(lanes) = &endpoint.lanes {
                rail = lanes.next_for_messages(rail, first).unwrap_or(rail);
            }
            let error = match self.prepare(ep, rail) {
                Ok(prepared) => return Ok((prepared, rail)),
                Err(error) => error,
            };
            tracing::info!(rail, %error, "messages can not go over a rail");
            let lanes = self.endpoints.at(index).and_then(|endpoint| endpoint.lanes.as_mut());
            let Some(lanes) = lanes else { return Err(error) };
            lanes.bar(rail);
            if lanes.next_for_messages(rail, false).is_none() {
                return Err(error);
            }
            self.say_of_rail(index, rail, RailNews::Barred);
        }
    }

    /// The peer chose a rail on which there is no queue pair to be had: it is told, and chooses another.
    fn bar_rail(&mut self, index: usize, rail: usize) {
        let Some(endpoint) = self.endpoints.at(index) else { return };
        endpoint.renewal = None;
        if let Some(lanes) = &mut endpoint.lanes {
            lanes.bar(rail);
        }
        if let Stage::Recovering(recovery) = &mut endpoint.stage {
            recovery.step = Step::Waiting;
        }
        self.say_of_rail(index, rail, RailNews::Barred);
    }

    /// Messages can not go over a rail on the peer's side.
    pub(super) fn barred(&mut self, index: usize, rail: usize) {
        let Some(Endpoint { lanes: Some(lanes), stage, rail: current, .. }) = self.endpoints.at(index) else { return };
        lanes.bar(rail);
        let is_asked = matches!(stage, Stage::Recovering(recovery) if matches!(recovery.step, Step::Renewed(_)));
        if lanes.caller && is_asked && *current == rail {
            self.try_again(index, CloseReason::PeerLost(Lost::QueuePair));
        }
    }

    /// The queue pair that was to take the place of one that failed came to nothing: another does. `failure`: why, if that was
    /// so too often.
    pub(super) fn try_again(&mut self, index: usize, failure: CloseReason) {
        let now = self.now();
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let Stage::Recovering(recovery) = &mut endpoint.stage else { return };
        let has_others =
            endpoint.lanes.as_ref().is_some_and(|lanes| lanes.next_for_messages(endpoint.rail, false).is_some());
        if !has_others || !recovery.trial.is_refused() {
            return self.fail(index, failure);
        }
        (recovery.step, recovery.drained) = (Step::Draining, Watch::new(now));
        endpoint.link.suspend();
        if let Some(qp) = &mut endpoint.qp
            && let Err(error) = qp.to_error()
        {
            tracing::debug!(parent: &endpoint.span, %error, "the queue pair was in error already");
        }
        self.recovering = true;
        self.schedule(index, now);
    }

    /// The peer tells of another queue pair of its own.
    pub(super) fn peer_renews(&mut self, index: usize, renewal: Box<Renewal>) {
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let address = endpoint.peer;
        let is_connected =
            matches!(&endpoint.stage, Stage::Recovering(recovery) if matches!(recovery.step, Step::Connected));
        // One at a time is due: a second would be the beginning of a flood.
        if !endpoint.link.retains() || endpoint.renewal.is_some() {
            let error = crate::cm::HandshakeError::Unexpected(RENEW);
            return self.fail(index, ConnectFailure::Handshake { address, error }.into());
        }
        endpoint.renewal = Some(renewal);
        match endpoint.stage {
            // The peer could not connect the one before.
            Stage::Recovering(_) if is_connected => self.try_again(index, CloseReason::PeerLost(Lost::QueuePair)),
            Stage::Recovering(_) => self.reconnect(index),
            _ => self.break_off(index, CloseReason::PeerLost(Lost::QueuePair)),
        }
    }

    /// Connects the new queue pair to the peer's, once both are there and on one rail.
    fn reconnect(&mut self, index: usize) {
        let now = self.now();
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let (address, epoch, rail) = (endpoint.peer, endpoint.link.epoch(), endpoint.rail);
        let Stage::Recovering(recovery) = &mut endpoint.stage else { return };
        let is_ready = matches!(recovery.step, Step::Renewed(_));
        if !is_ready && !matches!(recovery.step, Step::Waiting) {
            return;
        }
        let Some(theirs) = endpoint.renewal.take() else { return };
        let chosen = usize::from(theirs.rail);
        if !is_ready || chosen != rail {
            return self.follow(index, theirs);
        }
        let Step::Renewed(prepared) = std::mem::replace(&mut recovery.step, Step::Connected) else { return };
        let ours = self.hello_on(rail, prepared.address(), epoch);
        if let Err(error) = ours.check_fabric(&theirs.hello) {
            return self.try_again(index, ConnectFailure::Handshake { address, error }.into());
        }
        let qp = match prepared.connect(&theirs.hello.address) {
            Ok(qp) => qp,
            Err(error) => return self.try_again(index, ConnectFailure::QueuePair(Box::new(error)).into()),
        };
        self.endpoints.replace(index, qp, self.rails.device_of(rail));
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let (unconfirmed, had) = match endpoint.link.resume(&terms(&theirs.hello), theirs.received, now) {
            Ok(resumed) => resumed,
            Err(violation) => return self.fail(index, CloseReason::Protocol(violation)),
        };
        let works = self.settle_works(index, had);
        let Some(endpoint) = self.endpoints.at(index) else { return };
        if !endpoint.can_repeat(&unconfirmed, &works) {
            endpoint.repeats.lost.extend(works);
            return self.give_up_recovering(index);
        }
        let posted = endpoint.link.posted();
        endpoint.repeats.put_first(unconfirmed, works, posted);
        if let Some(socket) = endpoint.socket {
            self.sockets.send(socket, &Message::Ready);
        }
    }

    /// The peer is on another rail than this side. The side that called waits for the other to follow; that one does.
    fn follow(&mut self, index: usize, theirs: Box<Renewal>) {
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let (address, chosen) = (endpoint.peer, usize::from(theirs.rail));
        let Stage::Recovering(recovery) = &mut endpoint.stage else { return };
        match &endpoint.lanes {
            Some(lanes) if lanes.caller => {}
            // As often as there are rails to choose from, and a few times more.
            Some(lanes) if chosen < lanes.count() && recovery.trial.is_refused() => {
                if !lanes.is_for_messages(chosen) {
                    return self.bar_rail(index, chosen);
                }
                endpoint.renewal = Some(theirs);
                self.renew(index, Some(chosen));
            }
            _ => {
                let error = crate::cm::HandshakeError::Unexpected(RENEW);
                self.fail(index, ConnectFailure::Handshake { address, error }.into());
            }
        }
    }

    /// Ends the one-sided work that the peer's device has surely seen to, that must not be done twice, or that nobody waits
    /// for. Gives the rest, which is done again. `had`: the last request that the peer has surely seen to.
    pub(super) fn settle_works(&mut self, index: usize, had: Option<u32>) -> Vec<(InFlight, Local)> {
        let Some(endpoint) = self.endpoints.at(index) else { return Vec::new() };
        let (ep, lost) = (endpoint.id, std::mem::take(&mut endpoint.repeats.lost));
        let (rail, home) = (endpoint.rail, endpoint.peer_home);
        let mut again = Vec::new();
        for (work, memory) in lost {
            let op = OpId::new(work.number, Some(ep));
            let is_done = had.is_some_and(|had| is_before(work.order, had));
            let event = match &work.what {
                OneSided::Put { .. } if is_done => Event::Put { op, ep, memory },
                OneSided::Get { .. } | OneSided::Put { .. } if !work.awaited => Event::Got { op, ep, memory },
                OneSided::Get { remote, .. } if remote.over(rail, home).is_none() => {
                    let (error, returned) = (OpError::NoKey { rail }, Returned::Memory(memory));
                    Event::Failed { op, ep: Some(ep), error, returned }
                }
                OneSided::Combine { remote, .. } if remote.over(rail, home).is_none() => {
                    let OneSided::Combine { target, pooled, .. } = work.what else { continue };
                    self.unstage(memory, pooled);
                    let (error, returned) = (OpError::NoKey { rail }, Returned::Memory(target.memory));
                    Event::Failed { op, ep: Some(ep), error, returned }
                }
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
        // Where nothing else goes out, this shows whether it works. If there is no room for it, something else does.
        self.post_probe(index);
    }
}

/// The message that tells of another queue pair, as the handshake's errors name it.
const RENEW: u8 = 6;
