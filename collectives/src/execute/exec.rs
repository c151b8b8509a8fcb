//! Runs one operation: starts steps as their dependencies complete, and takes what comes for them.

use std::time::Duration;

use qpair_transport::{EndpointId, Event, Message, OpError, Tag, WorkerError};

use super::compile::{Compiled, Step, What};
use super::net::{Link, Net};
use super::run::{Run, State, Word};
use super::tag::{Fields, Kind};
use super::wait::{Patience, Pause};
use crate::bootstrap::Alarm;
use crate::fault::{Fault, Outcome, Place};

/// What it takes to run an operation.
pub(crate) struct Exec<'a> {
    pub(crate) net: &'a mut Net,
    pub(crate) plan: &'a mut Compiled,
    pub(crate) run: &'a mut Run,
    pub(crate) alarm: &'a Alarm,
    pub(crate) patience: Patience,
    /// How long nothing may happen.
    pub(crate) limit: Duration,
}

impl Exec<'_> {
    /// Starts the operation that was prepared.
    #[inline]
    pub(crate) fn start(&mut self) -> Outcome<()> {
        if self.plan.introduced != self.net.epoch {
            self.introduce()?;
        }
        self.run.active = true;
        self.run.wait.reset();
        if self.plan.large {
            self.begin()?;
        }
        self.run.ready.extend(&self.plan.first);
        if !self.run.stash.is_empty() {
            self.unstash()?;
        }
        self.start_ready()
    }

    /// Runs it to its end.
    #[inline]
    pub(crate) fn complete_all(&mut self) -> Outcome<()> {
        while !self.is_complete() {
            if !self.advance()? {
                self.idle()?;
            }
        }
        Ok(())
    }

    /// Whether it is complete.
    #[inline]
    pub(crate) fn is_complete(&self) -> bool {
        self.run.open == 0 && self.run.blocked.is_empty()
    }

    /// Does what can be done at once, once. False if that was nothing.
    #[inline]
    pub(crate) fn advance(&mut self) -> Outcome<bool> {
        if !self.run.blocked.is_empty() {
            self.retry()?;
        }
        if !self.run.transfers.is_empty() {
            self.transfer()?;
        }
        match self.net.worker.poll() {
            Ok(Some(event)) => {
                self.run.wait.reset();
                self.handle(event)?;
                self.start_ready()?;
                Ok(true)
            }
            Ok(None) => Ok(false),
            Err(error) => Err(self.broken(&error)),
        }
    }

    /// Nothing could be done: waits a little for something to do.
    #[inline]
    fn idle(&mut self) -> Outcome<()> {
        if self.alarm.is_raised() {
            return Err(self.raised());
        }
        match self.run.wait.pause(self.patience, self.limit) {
            Pause::Poll => Ok(()),
            Pause::Sleep(limit) => self.sleep(limit),
            Pause::Over => Err(self.timed_out()),
        }
    }

    #[cold]
    fn sleep(&mut self, limit: Duration) -> Outcome<()> {
        match self.net.worker.wait(Some(limit)) {
            Ok(Some(event)) => {
                self.run.wait.reset();
                self.handle(event)?;
                self.start_ready()
            }
            Ok(None) => Ok(()),
            Err(error) => Err(self.broken(&error)),
        }
    }

    /// Connects to all peers of the plan, and tells them what its number stands for.
    #[cold]
    fn introduce(&mut self) -> Outcome<()> {
        self.run.wait.reset();
        while !self.net.connect(self.plan)? {
            match self.net.worker.poll() {
                Ok(Some(event)) => self.handle(event)?,
                Ok(None) => self.idle()?,
                Err(error) => return Err(self.broken(&error)),
            }
        }
        self.net.announce(self.plan)?;
        self.plan.introduced = self.net.epoch;
        Ok(())
    }

    #[inline]
    fn start_ready(&mut self) -> Outcome<()> {
        while let Some(step) = self.run.ready.pop_front() {
            self.start_step(step)?;
        }
        Ok(())
    }

    #[inline]
    fn start_step(&mut self, number: u32) -> Outcome<()> {
        let step = self.plan.steps[number as usize];
        match step.what {
            What::Send | What::Recv | What::RecvReduce if step.way.is_direct() => {
                return self.start_direct(number, &step);
            }
            What::Send if self.run.states[number as usize] == State::Given => self.complete(number),
            What::Send => {
                self.run.states[number as usize] = State::Started;
                let word = Word { slot: step.slot, kind: Kind::Data, message: step.message, step: Some(number) };
                if self.try_say(word)? {
                    self.complete(number);
                } else {
                    self.run.blocked.push_back(word);
                }
            }
            What::Recv | What::RecvReduce => {
                if let Some(message) = self.run.messages[number as usize].take() {
                    return self.take(number, &message);
                }
                self.run.states[number as usize] = State::Started;
            }
            What::Copy => {
                if step.sends == (0, 0) || !self.give(number, step.sends)? {
                    self.local(&step)?;
                }
                self.complete(number);
            }
            What::Reduce => {
                self.local(&step)?;
                self.complete(number);
            }
        }
        Ok(())
    }

    /// A step is done: those that waited for it alone are ready.
    #[inline]
    pub(super) fn complete(&mut self, number: u32) {
        let state = &mut self.run.states[number as usize];
        if std::mem::replace(state, State::Done) == State::Done {
            return;
        }
        self.run.open -= 1;
        for &dependent in self.plan.graph.dependents(number) {
            let count = &mut self.run.counts[dependent as usize];
            *count -= 1;
            if *count == 0 {
                self.run.ready.push_back(dependent);
            }
        }
    }

    /// Sends what step `copy` would copy, as the messages of the sends that wait for it. False if one of the peers has no
    /// room for it now, so that the copy must be made.
    #[inline]
    fn give(&mut self, copy: u32, (start, end): (u32, u32)) -> Outcome<bool> {
        let mut all = true;
        for at in start..end {
            let send = self.plan.given[at as usize];
            let step = &self.plan.steps[send as usize];
            let word = Word { slot: step.slot, kind: Kind::Data, message: step.message, step: Some(copy) };
            if self.try_say(word)? {
                self.run.states[send as usize] = State::Given;
            } else {
                all = false;
            }
        }
        Ok(all)
    }

    /// Sends what had to wait for room.
    #[cold]
    fn retry(&mut self) -> Outcome<()> {
        for _ in 0..self.run.blocked.len() {
            let Some(word) = self.run.blocked.pop_front() else { break };
            if !self.try_say(word)? {
                self.run.blocked.push_back(word);
            } else if let Some(number) = word.step {
                self.complete(number);
            }
        }
        self.start_ready()
    }

    /// The tag of a message of this rank.
    #[inline]
    pub(super) fn tag(&self, kind: Kind, message: u32) -> Tag {
        let (rank, plan, sequence) = (self.net.me, self.plan.number, self.run.sequence());
        Fields { kind, rank, plan, sequence, message }.encode()
    }

    #[inline]
    fn handle(&mut self, event: Event) -> Outcome<()> {
        match event {
            Event::Received { ep, tag, message } => self.arrived(ep, tag, message),
            Event::Got { op, memory, .. } | Event::Put { op, memory, .. } => {
                drop(memory);
                self.transferred(op)
            }
            other => self.handle_other(other),
        }
    }

    #[cold]
    fn handle_other(&mut self, event: Event) -> Outcome<()> {
        match event {
            Event::Connected { ep } => self.net.connected(ep),
            Event::Closed { ep, reason } => {
                if let Some((rank, fault)) = self.net.closed(ep, &reason)
                    && self.needs(rank)
                {
                    return Err(fault);
                }
            }
            // An operation on a connection that ends fails first; what it means is told by the end.
            Event::Failed { ep, error, .. } if error != OpError::Closed && self.net.rank_of(ep).is_some() => {
                return Err(self.failed(error.to_string()));
            }
            Event::Rejected { peer, error, .. } => tracing::debug!(%peer, %error, "a connection was not made"),
            _ => {}
        }
        Ok(())
    }

    /// Something came from a peer.
    #[inline]
    fn arrived(&mut self, ep: EndpointId, tag: Tag, message: Message) -> Outcome<()> {
        let Some(fields) = Fields::decode(tag) else { return Ok(()) };
        let other = matches!(fields.kind, Kind::Hello | Kind::Announce);
        if other || fields.sequence != self.run.sequence() || !self.run.active {
            return self.arrived_other(ep, fields, message);
        }
        self.deliver(Some(ep), fields, message)
    }

    /// Something came for the operation that runs. Without a connection, it was checked before.
    #[inline]
    pub(super) fn deliver(&mut self, ep: Option<EndpointId>, fields: Fields, message: Message) -> Outcome<()> {
        let Some(slot) = self.plan.slot(fields.rank) else { return Err(self.differs(fields)) };
        let peer = &self.plan.peers[slot as usize];
        if (ep.is_some() && peer.ep != ep) || peer.theirs != Some(fields.plan) {
            self.check_peer(slot, fields)?;
        }
        self.run.arrived[slot as usize] += 1;
        if fields.kind != Kind::Data {
            return self.told(slot, fields, &message);
        }
        let Some(number) = self.plan.receive(slot, fields.message) else { return Err(self.differs(fields)) };
        match self.run.states[number as usize] {
            _ if self.plan.steps[number as usize].way.is_direct() => self.told(slot, fields, &message),
            State::Started => self.take(number, &message),
            State::Done => Err(self.differs(fields)),
            _ => {
                self.run.messages[number as usize] = Some(message);
                Ok(())
            }
        }
    }

    /// Puts a message where its receive wants it.
    #[inline]
    fn take(&mut self, number: u32, message: &Message) -> Outcome<()> {
        let step = &self.plan.steps[number as usize];
        let calc = if step.what == What::RecvReduce { self.plan.calc } else { None };
        let dst = step.dst;
        if message.len() != dst.len {
            return Err(self.inconsistent(number));
        }
        if let Err(reason) = self.run.memory(dst.buffer).put(dst, message, calc) {
            return Err(self.failed(reason));
        }
        self.complete(number);
        Ok(())
    }

    pub(super) fn is_up(&self, slot: u16) -> bool {
        let rank = self.plan.peers[slot as usize].rank;
        matches!(self.net.peers[rank as usize].link, Link::Up(_))
    }

    /// Whether the operation still waits for something of `rank`.
    fn needs(&self, rank: u32) -> bool {
        let Some(slot) = self.plan.slot(rank) else { return false };
        let open = |(number, step): (usize, &Step)| {
            let came = self.run.messages[number].is_some();
            step.slot == slot && step.what.is_message() && self.run.states[number] != State::Done && !came
        };
        !self.run.active || self.lacks(rank) || self.plan.steps.iter().enumerate().any(open)
    }

    /// Where this rank waits: for `rank`, if it waits for that; else for a peer that has not even begun, since others may
    /// wait for it too; else for what it lacks rather than for what others are to take.
    pub(crate) fn place(&self, rank: Option<u32>) -> Option<Place> {
        let waits = |(number, step): (u32, &Step)| {
            let started = self.run.active && self.run.states.get(number as usize) == Some(&State::Started);
            let peer = &self.plan.peers[step.slot as usize];
            let preference = (Some(peer.rank) != rank, peer.theirs.is_some(), step.what == What::Send);
            (started && step.what.is_message()).then_some((preference, (peer.rank, number)))
        };
        let waiting = (0..).zip(&self.plan.steps).filter(|(_, step)| step.what.is_message()).filter_map(waits);
        let found = waiting.min_by_key(|(preference, _)| *preference).map(|(_, place)| place);
        let unconnected = || {
            let peer = self.plan.peers.iter().find(|peer| peer.ep.is_none());
            peer.map(|peer| (peer.rank, 0))
        };
        let (rank, step) = found.or_else(unconnected)?;
        Some(Place { rank, step, call: self.plan.call })
    }

    #[cold]
    fn raised(&self) -> Box<Fault> {
        Box::new(self.alarm.fault().unwrap_or(Fault::Failed { rank: self.net.me, reason: "aborted".into() }))
    }

    #[cold]
    fn timed_out(&self) -> Box<Fault> {
        match self.place(None) {
            Some(place) => Box::new(Fault::TimedOut { by: self.net.me, place, limit: self.limit }),
            None => self.failed("it waited for nothing".into()),
        }
    }

    #[cold]
    fn broken(&self, error: &WorkerError) -> Box<Fault> {
        self.failed(error.to_string())
    }

    #[cold]
    pub(super) fn inconsistent(&self, number: u32) -> Box<Fault> {
        self.failed(format!("step {number} of {} does not fit what came for it", self.plan.call))
    }

    #[cold]
    pub(super) fn failed(&self, reason: String) -> Box<Fault> {
        Box::new(Fault::Failed { rank: self.net.me, reason })
    }
}
