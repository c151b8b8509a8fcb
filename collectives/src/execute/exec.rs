//! Runs one operation: starts steps as their dependencies complete, and takes what comes for them.

use std::time::Duration;

use qpair_transport::{EndpointId, Event, Message, SendCopyError, Tag, WorkerError};

use super::compile::{Compiled, Span, Step, What};
use super::memory::Memory;
use super::net::{Link, Net};
use super::run::{Run, State};
use super::stash::Arrival;
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
        self.run.ready.extend(&self.plan.first);
        if !self.run.stash.is_empty() {
            self.unstash()?;
        }
        self.start_ready()
    }

    /// Runs it to its end.
    #[inline]
    pub(crate) fn complete_all(&mut self) -> Outcome<()> {
        while self.run.open > 0 {
            if !self.advance()? {
                self.idle()?;
            }
        }
        Ok(())
    }

    /// Whether it is complete.
    #[inline]
    pub(crate) fn is_complete(&self) -> bool {
        self.run.open == 0
    }

    /// Does what can be done at once, once. False if that was nothing.
    #[inline]
    pub(crate) fn advance(&mut self) -> Outcome<bool> {
        let mut busy = false;
        if !self.run.blocked.is_empty() {
            self.retry()?;
        }
        if let Some(step) = self.run.pulls.pop() {
            self.pull(step.0)?;
            busy = true;
        }
        match self.net.worker.poll() {
            Ok(Some(event)) => {
                self.run.wait.reset();
                self.handle(event)?;
                self.start_ready()?;
                Ok(true)
            }
            Ok(None) => Ok(busy),
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
            What::Send if self.run.states[number as usize] == State::Given => self.complete(number),
            What::Send => {
                self.run.states[number as usize] = State::Started;
                self.send(number, &step)?;
            }
            What::Recv | What::RecvReduce => {
                if let Some(message) = self.run.messages[number as usize].take() {
                    return self.take(number, &message);
                }
                if self.run.states[number as usize] == State::Offered {
                    self.run.pulls.push(std::cmp::Reverse(number));
                }
                self.run.states[number as usize] = State::Started;
            }
            What::Copy => {
                match step.send {
                    Some(send) if self.give(send, step.src)? => self.run.states[send as usize] = State::Given,
                    _ => self.local(&step)?,
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
        self.run.states[number as usize] = State::Done;
        self.run.open -= 1;
        for &dependent in self.plan.graph.dependents(number) {
            let count = &mut self.run.counts[dependent as usize];
            *count -= 1;
            if *count == 0 {
                self.run.ready.push_back(dependent);
            }
        }
    }

    #[inline]
    fn send(&mut self, number: u32, step: &Step) -> Outcome<()> {
        if self.plan.large && step.src.len > 0 {
            return self.offer(number, step);
        }
        if self.give(number, step.src)? {
            self.complete(number);
        } else {
            self.run.blocked.push_back(number);
        }
        Ok(())
    }

    /// Sends a copy of `src` as the message of step `number`. False if the peer has no room for it now.
    #[inline]
    fn give(&mut self, number: u32, src: Span) -> Outcome<bool> {
        let step = &self.plan.steps[number as usize];
        let (tag, slot) = (self.tag(step.message), step.slot);
        let peer = &self.plan.peers[slot as usize];
        let memory: &Memory = match src.buffer {
            crate::plan::Buffer::Data => &self.run.data,
            crate::plan::Buffer::Scratch => &self.run.scratch,
        };
        let bytes = if src.len == 0 { Some(&[][..]) } else { memory.bytes(src) };
        let (Some(ep), Some(bytes)) = (peer.ep, bytes) else { return Err(self.inconsistent(number)) };
        match self.net.worker.send_copy(ep, tag, bytes) {
            Ok(()) => Ok(true),
            Err(SendCopyError::WouldBlock) => Ok(false),
            // The event that says why is on its way.
            Err(SendCopyError::Closed(_)) if self.is_up(slot) => Ok(false),
            Err(_) => Err(Box::new(Fault::Gone { rank: self.plan.peers[slot as usize].rank })),
        }
    }

    /// Sends what had to wait for room.
    #[cold]
    fn retry(&mut self) -> Outcome<()> {
        for _ in 0..self.run.blocked.len() {
            let Some(number) = self.run.blocked.pop_front() else { break };
            let src = self.plan.steps[number as usize].src;
            if self.give(number, src)? {
                self.complete(number);
            } else {
                self.run.blocked.push_back(number);
            }
        }
        self.start_ready()
    }

    /// The tag of a message of this rank.
    #[inline]
    pub(super) fn tag(&self, message: u32) -> Tag {
        let (rank, plan, sequence) = (self.net.me, self.plan.number, self.run.sequence());
        Fields { kind: Kind::Data, rank, plan, sequence, message }.encode()
    }

    #[inline]
    fn handle(&mut self, event: Event) -> Outcome<()> {
        match event {
            Event::Received { ep, tag, message } => self.arrived(ep, tag, Arrival::Message(message)),
            Event::Offered { ep, tag, len } => self.arrived(ep, tag, Arrival::Offer(len)),
            Event::ReceivedInto { tag, memory, len, .. } => {
                drop(memory);
                self.pulled(tag, len)
            }
            Event::Sent { op, .. } => {
                self.given(op);
                Ok(())
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
            Event::Failed { ep, error, .. } => {
                // An operation on a connection that ends fails first; what it means is told by the end.
                if self.net.rank_of(ep).is_some() && !matches!(error, qpair_transport::OpError::Closed) {
                    return Err(self.failed(error.to_string()));
                }
            }
            Event::Rejected { peer, error, .. } => tracing::debug!(%peer, %error, "a connection was not made"),
            _ => {}
        }
        Ok(())
    }

    /// Something came from a peer.
    #[inline]
    fn arrived(&mut self, ep: EndpointId, tag: Tag, arrival: Arrival) -> Outcome<()> {
        let Some(fields) = Fields::decode(tag) else { return Ok(()) };
        if fields.kind != Kind::Data || fields.sequence != self.run.sequence() || !self.run.active {
            return self.arrived_other(ep, fields, arrival);
        }
        self.deliver(Some(ep), fields, arrival)
    }

    /// Something came for the operation that runs. Without a connection, it was checked before.
    #[inline]
    pub(super) fn deliver(&mut self, ep: Option<EndpointId>, fields: Fields, arrival: Arrival) -> Outcome<()> {
        let Some(slot) = self.plan.slot(fields.rank) else { return Err(self.differs(fields)) };
        let peer = &self.plan.peers[slot as usize];
        if (ep.is_some() && peer.ep != ep) || peer.theirs != Some(fields.plan) {
            self.check_peer(slot, fields)?;
        }
        let Some(number) = self.plan.receive(slot, fields.message) else { return Err(self.differs(fields)) };
        self.run.arrived[slot as usize] += 1;
        let state = self.run.states[number as usize];
        match arrival {
            Arrival::Message(message) if state == State::Started => self.take(number, &message),
            Arrival::Message(message) => {
                self.run.messages[number as usize] = Some(message);
                Ok(())
            }
            Arrival::Offer(len) => self.offered(number, len),
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
        let open = |(step, state): (&Step, &State)| {
            step.slot == slot && !matches!(step.what, What::Copy | What::Reduce) && *state != State::Done
        };
        !self.run.active || self.plan.steps.iter().zip(&self.run.states).any(open)
    }

    /// Where this rank waits: for `rank`, if it waits for that.
    pub(crate) fn place(&self, rank: Option<u32>) -> Option<Place> {
        let waits = |(number, step): (u32, &Step)| {
            let started = self.run.active && self.run.states.get(number as usize) == Some(&State::Started);
            let remote = !matches!(step.what, What::Copy | What::Reduce);
            (started && remote).then(|| (self.plan.peers[step.slot as usize].rank, number))
        };
        let mut waiting = (0..).zip(&self.plan.steps).filter_map(waits);
        let first = waiting.next();
        let found = first.filter(|(peer, _)| rank.is_none_or(|rank| rank == *peer));
        let found = found.or_else(|| waiting.find(|(peer, _)| Some(*peer) == rank)).or(first);
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
