//! Runs one operation: starts steps as their dependencies complete, and takes what comes for them.

use qpair_verbs::calc::Calc;

use super::compile::Compiled;
use super::net::{Link, Net};
use super::run::{Run, State, Word};
use super::stash::Came;
use super::steps::{Span, Step};
use super::straight::{Order, Straight};
use super::tag::{Fields, Kind};
use crate::fault::Outcome;
use crate::plan::{Buffer, What};
use crate::trace::Activity;

/// One operation, and what it takes to run it.
pub(crate) struct Exec<'a> {
    pub(crate) net: &'a mut Net,
    pub(crate) plan: &'a mut Compiled,
    pub(crate) run: &'a mut Run,
}

impl Exec<'_> {
    /// Starts the operation that was prepared, whose peers are connected.
    #[inline]
    pub(super) fn start(&mut self) -> Outcome<()> {
        self.run.active = true;
        self.run.numbers.clear();
        for peer in &self.plan.peers {
            self.run.numbers.push(self.net.enlist(peer.rank, self.plan.call));
        }
        if self.plan.large {
            self.begin()?;
        }
        if !self.net.stash.is_empty() {
            self.unstash()?;
        }
        for at in 0..self.plan.first.len() {
            self.start_step(self.plan.first[at])?;
        }
        self.start_ready()
    }

    /// Goes on with an operation that was run straight up to where that stopped.
    #[cold]
    pub(super) fn resume(&mut self, straight: &Straight) -> Outcome<()> {
        self.run.active = true;
        self.run.numbers.clone_from(&straight.numbers);
        let all = Span { buffer: Buffer::Scratch, start: 0, len: self.plan.scratch };
        if let Some(scratch) = straight.scratch.bytes(all).filter(|scratch| !scratch.is_empty()) {
            self.run.scratch.put(all, scratch, None).map_err(|reason| self.failed(reason))?;
        }
        let order = self.plan.straight.take();
        let steps = order.as_ref().map_or(&[][..], Order::steps);
        let those = |over| steps.iter().copied().filter(move |&number| straight.is_over(number) == over);
        // It is not complete before what came is looked at.
        self.run.open += 1;
        for number in those(true) {
            let Step { what, slot, .. } = self.plan.steps[number as usize];
            if what.is_recv() {
                self.run.arrived[slot as usize] += 1;
            }
            self.complete(number);
        }
        for send in those(false).filter(|&send| straight.given >> send & 1 == 1) {
            self.run.states[send as usize] = State::Given;
        }
        // What was to be given away, and was not to all, is copied.
        if let Some(copy) = those(false).next().filter(|&copy| self.plan.steps[copy as usize].gives()) {
            self.local(copy, None)?;
            self.complete(copy);
        }
        self.plan.straight = order;
        let states = &self.run.states;
        self.run.ready.retain(|&number| states[number as usize] != State::Done);
        self.unstash()?;
        self.run.open -= 1;
        for at in 0..self.plan.first.len() {
            let number = self.plan.first[at];
            if self.run.states[number as usize] != State::Done {
                self.start_step(number)?;
            }
        }
        self.start_ready()
    }

    /// Whether it has started.
    #[inline]
    pub(super) fn is_active(&self) -> bool {
        self.run.is_active()
    }

    /// Whether it is complete.
    #[inline]
    pub(crate) fn is_complete(&self) -> bool {
        self.run.active && self.run.open == 0 && self.run.blocked.is_empty()
    }

    /// Does what had to wait for room, or for a GPU. Whether a GPU was done with something.
    #[inline]
    pub(super) fn push_on(&mut self) -> Outcome<bool> {
        if !self.run.blocked.is_empty() {
            self.retry()?;
        }
        if !self.run.transfers.is_empty() {
            self.transfer()?;
        }
        if self.run.staged.is_idle() { Ok(false) } else { self.stage() }
    }

    #[inline]
    pub(super) fn start_ready(&mut self) -> Outcome<()> {
        loop {
            while let Some(step) = self.run.ready.pop_front() {
                self.start_step(step)?;
            }
            if self.run.held_back == 0 || !self.release() {
                return Ok(());
            }
        }
    }

    #[inline]
    fn start_step(&mut self, number: u32) -> Outcome<()> {
        let Step { what, way, slot, message, sends, .. } = self.plan.steps[number as usize];
        if what == What::Send && self.is_out_of_turn(slot, message) {
            self.hold_back(number);
            return Ok(());
        }
        if self.net.recorder.is_some() && self.run.states[number as usize] != State::Done {
            self.record_start(number);
        }
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
                if self.run.states[number as usize] == State::Offered {
                    return self.take(number, &[]);
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

    #[cold]
    fn record_end(&mut self, number: u32) {
        let id = self.run.id;
        let Some(recorder) = &mut self.net.recorder else { return };
        // What a peer did before this rank came to it takes no time here.
        if !recorder.end(id, Some(number)) {
            self.record_start(number);
            if let Some(recorder) = &mut self.net.recorder {
                recorder.end(id, Some(number));
            }
        }
    }

    #[cold]
    fn record_start(&mut self, number: u32) {
        let Step { what, slot, src, dst, .. } = self.plan.steps[number as usize];
        let peer = if what.is_message() { self.plan.peers.get(slot as usize).map(|peer| peer.rank) } else { None };
        let activity = Activity::Step { step: number, kind: what.name(), peer, bytes: src.len.max(dst.len) };
        if let Some(recorder) = &mut self.net.recorder {
            recorder.begin(self.run.id, activity);
        }
    }

    /// Finishes elements that all contributions are in.
    fn finish(&mut self, number: u32) -> Outcome<()> {
        let Step { dst, .. } = self.plan.steps[number as usize];
        let Some((data_type, by)) = self.plan.finish else { return Ok(()) };
        self.run.finish_span(dst, data_type, by).map_err(|reason| self.failed(reason))
    }

    /// A step is done: those that waited for it alone are ready.
    #[inline]
    pub(super) fn complete(&mut self, number: u32) {
        let state = &mut self.run.states[number as usize];
        if std::mem::replace(state, State::Done) == State::Done {
            return;
        }
        self.run.open -= 1;
        if self.net.recorder.is_some() {
            self.record_end(number);
        }
        for &dependent in self.plan.graph.dependents(number) {
            let count = &mut self.run.counts[dependent as usize];
            *count -= 1;
            if *count == 0 {
                self.run.ready.push_back(dependent);
            }
        }
    }

    /// Sends what step `copy` would copy, as the messages of the sends that wait for it. False if one of the peers has no
    /// room for it now, or others come first, so that the copy must be made.
    #[inline]
    fn give(&mut self, copy: u32, (start, end): (u32, u32)) -> Outcome<bool> {
        let mut all = true;
        for at in start..end {
            let send = self.plan.given[at as usize];
            let step = &self.plan.steps[send as usize];
            let word = Word { slot: step.slot, kind: Kind::Data, message: step.message, step: Some(copy) };
            if !self.is_out_of_turn(word.slot, word.message) && self.try_say(word)? {
                self.run.states[send as usize] = State::Given;
            } else {
                all = false;
            }
        }
        Ok(all)
    }

    /// Takes note of something that came for it, of a peer that is to do the same.
    #[inline]
    pub(super) fn note(&mut self, slot: u16, fields: Fields) -> Outcome<()> {
        if self.plan.peers[slot as usize].theirs != Some(fields.plan) {
            self.check_peer(slot, fields)?;
        }
        self.run.arrived[slot as usize] += 1;
        Ok(())
    }

    /// Something came for it, from the peer that it says it is from.
    #[inline]
    pub(super) fn deliver(&mut self, slot: u16, fields: Fields, message: impl Came) -> Outcome<()> {
        self.note(slot, fields)?;
        self.hand_on(slot, fields, message)
    }

    /// The same, noted already.
    #[inline]
    pub(super) fn hand_on(&mut self, slot: u16, fields: Fields, message: impl Came) -> Outcome<()> {
        if fields.kind != Kind::Data {
            return self.told(slot, fields, &message);
        }
        let Some(number) = self.plan.receive(slot, fields.message) else { return Err(self.differs(fields)) };
        if self.plan.steps[number as usize].way.is_direct() {
            // Of a peer that knows its own part alone: nothing, where something was expected.
            let nothing = self.plan.named_apart;
            return if nothing { Err(self.gives_other(slot, 0)) } else { self.told(slot, fields, &message) };
        }
        match self.run.states[number as usize] {
            State::Started => self.take(number, &message),
            State::Waiting if self.run.messages[number as usize].is_none() => {
                if message.is_empty() {
                    // Kept, it would take up room that others need.
                    self.run.states[number as usize] = State::Offered;
                } else {
                    self.run.messages[number as usize] = Some(message.into());
                }
                Ok(())
            }
            _ => Err(self.differs(fields)),
        }
    }

    /// Puts a message where its receive wants it.
    #[inline]
    fn take(&mut self, number: u32, message: &[u8]) -> Outcome<()> {
        let step = &self.plan.steps[number as usize];
        let calc = if step.what == What::RecvReduce { self.plan.calc } else { None };
        let dst = step.dst;
        if message.len() != dst.len {
            return Err(self.unfit(number));
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
