//! Runs one operation: starts steps as their dependencies complete, and takes what comes for them.

use std::time::Duration;

use qpair_transport::{EndpointId, Event, Message, OpError, Tag};
use qpair_verbs::calc::{Calc, scale};

use super::compile::{Compiled, Step, What};
use super::net::{Link, Net};
use super::run::{Run, State, Word};
use super::tag::{Fields, Kind};
use super::wait::{Patience, Pause};
use crate::bootstrap::Alarm;
use crate::fault::Outcome;

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
    pub(super) fn start_ready(&mut self) -> Outcome<()> {
        while let Some(step) = self.run.ready.pop_front() {
            self.start_step(step)?;
        }
        Ok(())
    }

    #[inline]
    fn start_step(&mut self, number: u32) -> Outcome<()> {
        let Step { what, way, slot, message, sends, .. } = self.plan.steps[number as usize];
        match what {
            What::Send | What::Recv | What::RecvReduce if way.is_direct() => return self.start_direct(number),
            What::Send if self.run.states[number as usize] == State::Given => self.complete(number),
            What::Send => {
                self.run.states[number as usize] = State::Started;
                if self.say(Word { slot, kind: Kind::Data, message, step: Some(number) })? {
                    self.complete(number);
                }
            }
            What::Recv | What::RecvReduce => {
                if let Some(message) = self.run.messages[number as usize].take() {
                    return self.take(number, &message);
                }
                self.run.states[number as usize] = State::Started;
            }
            What::Copy => {
                if sends == (0, 0) || !self.give(number, sends)? {
                    self.local(number, None)?;
                }
                self.complete(number);
            }
            What::Reduce => {
                self.local(number, self.plan.calc)?;
                self.complete(number);
            }
            What::Finish => {
                self.finish(number)?;
                self.complete(number);
            }
        }
        Ok(())
    }

    fn local(&mut self, number: u32, calc: Option<Calc>) -> Outcome<()> {
        let Step { src, dst, .. } = self.plan.steps[number as usize];
        self.run.local(src, dst, calc).map_err(|reason| self.failed(reason))
    }

    /// Finishes elements that all contributions are in.
    fn finish(&mut self, number: u32) -> Outcome<()> {
        let Step { dst, .. } = self.plan.steps[number as usize];
        let Some((data_type, by)) = self.plan.finish else { return Ok(()) };
        let finish = |bytes: &mut [u8]| scale(data_type, bytes, by).map_err(|error| error.to_string());
        self.run.finish_span(dst, finish).map_err(|reason| self.failed(reason))
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
                    return Err(self.cause(rank, fault));
                }
            }
            Event::Offered { ep, .. } => return self.foreign(ep),
            // An operation on a connection that ends fails first; what it means is told by the end.
            Event::Failed { ep: Some(ep), error, .. } if error != OpError::Closed => {
                if let Some(rank) = self.net.rank_of(ep) {
                    return Err(self.failed(format!("it could not go on with rank {rank}: {error}")));
                }
            }
            Event::Rejected { peer, error, .. } => tracing::debug!(%peer, %error, "a connection was not made"),
            _ => {}
        }
        Ok(())
    }

    /// Something came from a peer, or from a stranger.
    #[inline]
    fn arrived(&mut self, ep: EndpointId, tag: Tag, message: Message) -> Outcome<()> {
        let Some(fields) = Fields::decode(tag) else { return self.foreign(ep) };
        let other = matches!(fields.kind, Kind::Hello | Kind::Announce);
        if other || fields.sequence != self.run.sequence() || !self.run.active {
            return self.arrived_other(ep, fields, message);
        }
        match self.plan.slot(fields.rank) {
            Some(slot) if self.plan.peers[slot as usize].ep == Some(ep) => self.deliver(slot, fields, message),
            _ => self.arrived_other(ep, fields, message),
        }
    }

    /// Something came for the operation that runs, from the peer that it says it is from.
    #[inline]
    pub(super) fn deliver(&mut self, slot: u16, fields: Fields, message: Message) -> Outcome<()> {
        let peer = &self.plan.peers[slot as usize];
        if peer.theirs != Some(fields.plan) {
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
            State::Waiting if self.run.messages[number as usize].is_none() => {
                self.run.messages[number as usize] = Some(message);
                Ok(())
            }
            _ => Err(self.differs(fields)),
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
        if let Err(reason) = self.run.memory_mut(dst.buffer).put(dst, message, calc) {
            return Err(self.failed(reason));
        }
        self.complete(number);
        Ok(())
    }

    pub(super) fn is_up(&self, slot: u16) -> bool {
        let rank = self.plan.peers[slot as usize].rank;
        matches!(self.net.peers[rank as usize].link, Link::Up(_))
    }
}
