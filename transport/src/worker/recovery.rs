//! A connection goes on over another queue pair when its own has failed, while the peer's socket lives. Both sides give up
//! the queue pair, take what had come by it, tell each other of a new one and how much had come, and send again what had
//! not: nothing is lost, and nothing comes twice.

use std::collections::VecDeque;
use std::time::Duration;

use qpair_verbs::{Local, Prepared, QueuePair, RemoteSlice};

use super::Worker;
use super::endpoint::{Endpoint, InFlight, Job, OneSided, Reach, Stage, wr_id};
use super::error::{CloseReason, ConnectFailure, Lost, OpError, ResourceError, WorkerError};
use super::event::{Event, Returned};
use super::ids::OpId;
use super::ops::post;
use super::seen::Note;
use super::service::FLUSH_LIMIT;
use super::setup::{epoch, terms};
use crate::cm::{Message, Renewal};
use crate::engine::{Again, HEADER_BYTES, Header, HeaderView, RESERVED_SLOTS, Unconfirmed, by_number};

/// How far a connection is whose queue pair failed.
#[derive(Debug)]
pub(super) struct Recovery {
    /// What happened: it ends with that if it can not go on.
    reason: CloseReason,
    /// When it was looked at last, and time that was watched since the queue pair failed, for each of the limits: a clock that
    /// jumps takes a part of them, and not all.
    looked: Duration,
    waited: Duration,
    drained: Duration,
    step: Step,
}

impl Recovery {
    fn new(reason: CloseReason, now: Duration) -> Self {
        let (waited, drained) = (Duration::ZERO, Duration::ZERO);
        Recovery { reason, looked: now, waited, drained, step: Step::Draining }
    }

    /// True if it took longer than `limit`, or a device keeps what it has.
    fn is_over(&mut self, now: Duration, limit: Duration) -> bool {
        let gone = now.saturating_sub(std::mem::replace(&mut self.looked, now));
        self.waited += gone.min(limit / LOOKS);
        self.drained += gone.min(FLUSH_LIMIT / LOOKS);
        self.waited >= limit || (matches!(self.step, Step::Draining) && self.drained >= FLUSH_LIMIT)
    }
}

#[derive(Debug)]
enum Step {
    /// What is with the device comes back.
    Draining,
    /// Another queue pair is made, and the peer told of it. The peer's is awaited.
    Renewed(Prepared),
    /// It is connected to the peer's. That the peer has connected its own is awaited.
    Connected,
}

/// What goes out again over another queue pair.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    /// One-sided work that came back undone.
    pub(super) lost: Vec<(InFlight, Local)>,
    /// In the order in which it goes out.
    due: VecDeque<Repeat>,
}

#[derive(Debug)]
enum Repeat {
    /// A message, with the header that it had.
    Message(Box<[u8]>),
    /// A write of a copy.
    Write(RemoteSlice, Box<[u8]>),
    /// One-sided work with memory of its own.
    Work(InFlight, Local),
}

impl Repeats {
    /// One-sided work among it.
    pub(super) fn works(&mut self) -> impl Iterator<Item = &mut InFlight> + '_ {
        let due = self.due.iter_mut().filter_map(|repeat| match repeat {
            Repeat::Work(work, _) => Some(work),
            _ => None,
        });
        self.lost.iter_mut().map(|(work, _)| work).chain(due)
    }

    /// The connection ends: takes out the one-sided work.
    pub(super) fn abort(&mut self) -> Vec<(InFlight, Local)> {
        let mut works = std::mem::take(&mut self.lost);
        works.extend(self.due.drain(..).filter_map(|repeat| match repeat {
            Repeat::Work(work, memory) => Some((work, memory)),
            _ => None,
        }));
        works
    }

    /// The queue pair failed again: what had gone out comes before what had not.
    fn put_first(&mut self, unconfirmed: Vec<Unconfirmed>, works: Vec<(InFlight, Local)>) {
        let repeats = unconfirmed.into_iter().map(|Unconfirmed { number, what }| match what {
            Again::Message(bytes) => (number, Repeat::Message(bytes)),
            Again::Write(remote, data) => (number, Repeat::Write(remote, data)),
        });
        let works = works.into_iter().map(|(work, memory)| (work.order, Repeat::Work(work, memory)));
        let mut first: Vec<_> = repeats.chain(works).collect();
        first.sort_by(|a, b| by_number(a.0, b.0));
        let rest = std::mem::replace(&mut self.due, first.into_iter().map(|(_, repeat)| repeat).collect());
        self.due.extend(rest);
    }
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
        endpoint.stage = Stage::Recovering(Box::new(Recovery::new(reason, now)));
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
                self.renew(index);
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

    /// The connection ends with what interrupted it; unless it was over, but for the last acknowledgment.
    pub(super) fn give_up_recovering(&mut self, index: usize) {
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let is_over = endpoint.parted && endpoint.link.awaits_last_acknowledgment();
        let Stage::Recovering(recovery) = &mut endpoint.stage else { return };
        if is_over {
            return self.finish_close(index);
        }
        let reason = std::mem::replace(&mut recovery.reason, CloseReason::PeerLost(Lost::QueuePair));
        self.fail(index, reason);
    }

    /// Makes another queue pair, and tells the peer of it.
    fn renew(&mut self, index: usize) {
        let qp = self.endpoints.detach(index);
        let stays = |qp: &QueuePair| self.config.shared_receives.is_some() || !qp.is_settled();
        self.parting.extend(qp.filter(stays));
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let ep = endpoint.id;
        self.slabs.disown(ep);
        let window = endpoint.link.window();
        let posted = endpoint.link.outstanding_slots() + RESERVED_SLOTS;
        let flushed = std::mem::take(&mut endpoint.flushed);
        if let Some(lanes) = &endpoint.lanes {
            // Both sides go on over the same, without a word.
            endpoint.rail = lanes.next_for_messages(endpoint.rail);
        }
        let rail = endpoint.rail;
        endpoint.reserved = false;
        self.shares.end(window);
        self.slabs.release(window + RESERVED_SLOTS, posted.saturating_sub(flushed));
        let made = match epoch() {
            Ok(epoch) => {
                endpoint.link.renew(epoch);
                self.prepare(ep, rail).map(|prepared| (prepared, epoch))
            }
            Err(error) => {
                tracing::warn!(%error, "no random number to be had");
                return self.give_up_recovering(index);
            }
        };
        let (prepared, epoch) = match made {
            Ok(made) => made,
            Err(error) => return self.fail(index, CloseReason::Resources(Box::new(error))),
        };
        let hello = self.hello(&prepared, epoch);
        let Some(endpoint) = self.endpoints.at(index) else { return };
        endpoint.reserved = true;
        endpoint.note(self.pace.now(), Note::new("made another queue pair"));
        let renewal = Renewal { hello, received: endpoint.link.received() };
        if let Stage::Recovering(recovery) = &mut endpoint.stage {
            recovery.step = Step::Renewed(prepared);
        }
        if let Some(socket) = endpoint.socket {
            self.sockets.send(socket, &Message::Renew(Box::new(renewal)));
        }
        self.reconnect(index);
    }

    /// The peer tells of another queue pair of its own.
    pub(super) fn peer_renews(&mut self, index: usize, renewal: Box<Renewal>) {
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let address = endpoint.peer;
        // One at a time is due: a second would be the beginning of a flood.
        let is_connected =
            matches!(&endpoint.stage, Stage::Recovering(recovery) if matches!(recovery.step, Step::Connected));
        if !endpoint.link.retains() || endpoint.renewal.is_some() || is_connected {
            let error = crate::cm::HandshakeError::Unexpected(RENEW);
            return self.fail(index, ConnectFailure::Handshake { address, error }.into());
        }
        endpoint.renewal = Some(renewal);
        match endpoint.stage {
            Stage::Recovering(_) => self.reconnect(index),
            _ => self.break_off(index, CloseReason::PeerLost(Lost::QueuePair)),
        }
    }

    /// Connects the new queue pair to the peer's, once both are there.
    fn reconnect(&mut self, index: usize) {
        let now = self.now();
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let (address, epoch) = (endpoint.peer, endpoint.link.epoch());
        let Stage::Recovering(recovery) = &mut endpoint.stage else { return };
        if !matches!(recovery.step, Step::Renewed(_)) {
            return;
        }
        let Some(theirs) = endpoint.renewal.take() else { return };
        let Step::Renewed(prepared) = std::mem::replace(&mut recovery.step, Step::Connected) else { return };
        let ours = self.hello(&prepared, epoch);
        if let Err(error) = ours.check_fabric(&theirs.hello) {
            return self.fail(index, ConnectFailure::Handshake { address, error }.into());
        }
        let qp = match prepared.connect(&theirs.hello.address) {
            Ok(qp) => qp,
            Err(error) => return self.fail(index, ConnectFailure::QueuePair(Box::new(error)).into()),
        };
        self.endpoints.replace(index, qp);
        let Some(endpoint) = self.endpoints.at(index) else { return };
        let (unconfirmed, had) = match endpoint.link.resume(&terms(&theirs.hello), theirs.received, now) {
            Ok(resumed) => resumed,
            Err(violation) => return self.fail(index, CloseReason::Protocol(violation)),
        };
        let works = self.settle_works(index, had);
        let Some(endpoint) = self.endpoints.at(index) else { return };
        endpoint.repeats.put_first(unconfirmed, works);
        if let Some(socket) = endpoint.socket {
            self.sockets.send(socket, &Message::Ready);
        }
    }

    /// Ends the one-sided work that the peer's device has surely seen to, that must not be done twice, or that nobody waits
    /// for. Gives the rest, which is done again. `had`: the last request that the peer has surely seen to.
    pub(super) fn settle_works(&mut self, index: usize, had: Option<u32>) -> Vec<(InFlight, Local)> {
        let Some(endpoint) = self.endpoints.at(index) else { return Vec::new() };
        let ep = endpoint.id;
        let mut again = Vec::new();
        for (work, memory) in std::mem::take(&mut endpoint.repeats.lost) {
            let op = OpId::new(work.number, Some(ep));
            let is_done = had.is_some_and(|had| by_number(work.order, had).is_lt());
            let event = match &work.what {
                OneSided::Put { .. } if is_done => Event::Put { op, ep, memory },
                OneSided::Get { .. } | OneSided::Put { .. } if !work.awaited => Event::Got { op, ep, memory },
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
        endpoint.stage = Stage::Up;
        endpoint.note(now, Note::of("goes on; sends again", endpoint.repeats.due.len() as u64));
        tracing::info!(parent: &endpoint.span, again = endpoint.repeats.due.len(), "goes on over another queue pair");
        self.counters.recovered += 1;
        self.schedule(index, now);
        self.advance(index);
    }

    /// Sends again what there is room for. True once all is done, and the connection goes on.
    #[cold]
    pub(super) fn repeat(&mut self, index: usize) -> bool {
        loop {
            let Some(endpoint) = self.endpoints.at(index) else { return false };
            if !matches!(endpoint.stage, Stage::Up) || endpoint.broken.is_some() {
                return false;
            }
            // What stood behind a read may have waited for it.
            let reads = matches!(endpoint.repeats.due.front(), Some(Repeat::Work(work, _)) if work.is_read());
            if !reads && !endpoint.reads.is_empty() {
                return false;
            }
            let Some(repeat) = endpoint.repeats.due.pop_front() else {
                endpoint.link.go_on();
                endpoint.up = true;
                return true;
            };
            match self.repeat_one(index, repeat) {
                Ok(None) => {}
                Ok(Some(repeat)) => {
                    if let Some(endpoint) = self.endpoints.at(index) {
                        endpoint.repeats.due.push_front(repeat);
                    }
                    return false;
                }
                Err(error) => {
                    self.check(index, Err(error));
                    return false;
                }
            }
        }
    }

    /// Gives it back if there is no room for it.
    fn repeat_one(&mut self, index: usize, repeat: Repeat) -> Result<Option<Repeat>, ResourceError> {
        let Some(endpoint) = self.endpoints.at(index) else { return Ok(None) };
        match repeat {
            Repeat::Message(bytes) => {
                // It went out with it.
                let Ok(view) = HeaderView::new_checked(&bytes) else { return Ok(None) };
                let Some(frame) = endpoint.link.repeat(&Header::parse(&view)) else {
                    return Ok(Some(Repeat::Message(bytes)));
                };
                let (scratch, pool, inline) = (&mut self.frame, &mut self.pool, self.max_inline);
                post(endpoint, scratch, pool, inline, frame, &bytes[HEADER_BYTES..])?;
            }
            Repeat::Write(remote, data) => {
                let (Some(qp), Some(work)) = (&mut endpoint.qp, endpoint.link.take_slot()) else {
                    return Ok(Some(Repeat::Write(remote, data)));
                };
                let id = wr_id(Job::Send, endpoint.id, work.number);
                qp.write_inline(&data, remote).id(id).signaled().post().map_err(|rejected| rejected.error)?;
                endpoint.link.keep_write(work, remote, &data);
            }
            Repeat::Work(work, memory) => {
                if !endpoint.link.has_slot() {
                    return Ok(Some(Repeat::Work(work, memory)));
                }
                return self.repeat_work(index, work, memory).map(|()| None);
            }
        }
        Ok(None)
    }

    fn repeat_work(&mut self, index: usize, work: InFlight, memory: Local) -> Result<(), ResourceError> {
        let Some(endpoint) = self.endpoints.at(index) else { return Ok(()) };
        let InFlight { number, awaited, len, what, .. } = work;
        let (reach, remote) = match &what {
            OneSided::Get { remote, .. } | OneSided::Combine { remote, .. } => (Reach::Read(None), *remote),
            OneSided::Put { remote } => (Reach::Write, *remote),
            OneSided::Pull(_) | OneSided::Fetch { .. } => {
                let OneSided::Pull(reading) = what else { return Ok(()) };
                return match endpoint.read_part(reading, awaited, memory) {
                    Ok(()) => Ok(()),
                    Err(unread) => {
                        self.unread(index, unread.reading, awaited, unread.memory);
                        Err(unread.error.into())
                    }
                };
            }
        };
        match endpoint.reach(reach, memory, remote) {
            Ok(order) => {
                endpoint.reads.push_back(InFlight { number, order, awaited, len, what });
                Ok(())
            }
            Err((error, memory)) => {
                let order = endpoint.link.posted();
                endpoint.repeats.lost.push((InFlight { number, order, awaited, len, what }, memory));
                Err(error.into())
            }
        }
    }
}

/// Looks at a connection before a limit of its recovery is over, at least.
const LOOKS: u32 = 8;
/// The message that tells of another queue pair, as the handshake's errors name it.
const RENEW: u8 = 6;
