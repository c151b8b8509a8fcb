//! What an operation waits for, and why it can not go on.

use std::time::Duration;

use qpair_transport::WorkerError;

use super::engine::Engine;
use super::exec::Exec;
use super::run::{Run, State};
use super::steps::Step;
use crate::fault::{Fault, Outcome, Place};
use crate::plan::What;

impl Exec<'_> {
    /// Whether the operation, which has started, still waits for something of `rank`.
    pub(super) fn needs(&self, rank: u32) -> bool {
        let Some(slot) = self.plan.slot(rank) else { return false };
        let open = |(number, step): (usize, &Step)| {
            if step.slot != slot || !step.what.is_message() || self.run.states[number] == State::Done {
                return false;
            }
            let is_empty = !step.way.is_direct() && self.run.states[number] == State::Offered;
            !is_empty && self.run.messages[number].is_none() && !self.run.staged.came(number as u32, step.dst.len)
        };
        self.lacks(rank) || self.plan.steps.iter().enumerate().any(open)
    }

    /// Where this rank waits: for `rank`, if it waits for that; else for a peer that has not even begun, since others may
    /// wait for it too; else for what it lacks rather than for what others are to take.
    pub(crate) fn place(&self, rank: Option<u32>) -> Option<Place> {
        let waits = |(number, step): (u32, &Step)| {
            let state = self.run.states.get(number as usize);
            let started = self.run.active && matches!(state, Some(State::Started | State::Queued));
            let peer = &self.plan.peers[step.slot as usize];
            let preference = (Some(peer.rank) != rank, peer.theirs.is_some(), step.what == What::Send);
            (started && step.what.is_message()).then_some((preference, (peer.rank, number)))
        };
        let waiting = (0..).zip(&self.plan.steps).filter(|(_, step)| step.what.is_message()).filter_map(waits);
        let found = waiting.min_by_key(|(preference, _)| *preference).map(|(_, place)| place);
        let unconnected = || {
            let slots = 0..self.plan.peers.len() as u16;
            let slot = slots.into_iter().find(|&slot| !self.run.active && !self.is_up(slot))?;
            Some((self.plan.peers[slot as usize].rank, 0))
        };
        let (rank, step) = found.or_else(unconnected)?;
        Some(Place { rank, step, call: self.plan.call })
    }

    /// Bytes that this rank expects of a peer, of which it knows its own part of the plan alone.
    pub(super) fn expects(&self, slot: u16) -> u64 {
        self.plan.receive(slot, 0).map_or(0, |number| self.plan.steps[number as usize].dst.len as u64)
    }

    /// A peer gives more, or less, than this rank expects of it.
    #[cold]
    pub(super) fn gives_other(&self, slot: u16, given: u64) -> Box<Fault> {
        let (peer, me, expected) = (self.plan.peers[slot as usize].rank, self.net.me, self.expects(slot));
        let reason = format!(
            "it gives rank {me} {given} bytes in {}, but rank {me} expects {expected} of it: what one gives must be what \
             the other expects",
            self.plan.call.collective
        );
        Box::new(Fault::Failed { rank: peer, reason })
    }

    #[cold]
    pub(super) fn inconsistent(&self, number: u32) -> Box<Fault> {
        self.failed(format!("step {number} of {} does not fit what came for it", self.plan.call))
    }

    /// What a peer gives for a step can not be.
    #[cold]
    pub(super) fn unfit(&self, number: u32) -> Box<Fault> {
        let rank = self.plan.peers[self.plan.steps[number as usize].slot as usize].rank;
        let reason = format!("what it gave rank {} for step {number} of {} does not fit", self.net.me, self.plan.call);
        Box::new(Fault::Failed { rank, reason })
    }

    #[cold]
    pub(super) fn failed(&self, reason: String) -> Box<Fault> {
        Box::new(Fault::Failed { rank: self.net.me, reason })
    }
}

impl Engine<'_> {
    /// Whether the operation at a place can not go on without what `rank` has not given so far.
    #[cold]
    pub(super) fn needs(&mut self, at: usize, rank: u32) -> Outcome<bool> {
        let exec = self.exec(at)?;
        if exec.is_active() {
            return Ok(exec.needs(rank));
        }
        let plan = |run: &Run| self.cache.get(run.plan);
        let Some(own) = self.runs.get(at).and_then(|run| plan(run)) else { return Ok(false) };
        let Some(peer) = own.peer(rank) else { return Ok(false) };
        let waiting = self.runs.iter().take(at).filter(|run| !run.is_active()).filter_map(|run| plan(run));
        let before = waiting.filter(|plan| plan.peer(rank).is_some() && plan.is_numbered_with(own)).count();
        Ok(!self.net.has_given_all(peer, &own.call, before as u64))
    }

    /// What ended the connection to a rank: where that is gone, or has left, others may know it before long.
    #[cold]
    pub(super) fn cause(&self, rank: u32, fault: Box<Fault>) -> Box<Fault> {
        if !matches!(*fault, Fault::Failed { .. }) {
            return fault;
        }
        match self.alarm.wait(MOMENT) {
            Some(first) => Box::new(first),
            None if self.alarm.has_left(rank) => Box::new(Fault::Left { rank }),
            None => fault,
        }
    }

    #[cold]
    pub(super) fn raised(&self) -> Box<Fault> {
        Box::new(self.alarm.fault().unwrap_or(Fault::Failed { rank: self.net.me, reason: "aborted".into() }))
    }

    /// Where the first operation that waits for a rank, or for `rank` if it waits for that, waits.
    pub(crate) fn place(&mut self, rank: Option<u32>) -> Option<Place> {
        (0..self.runs.len()).find_map(|at| self.exec(at).ok()?.place(rank))
    }

    #[cold]
    pub(super) fn timed_out(&self, place: Option<Place>, limit: Duration) -> Box<Fault> {
        match place {
            Some(place) => Box::new(Fault::TimedOut { by: self.net.me, place, limit, waits: Vec::new() }),
            None => self.failed("it waited for nothing".into()),
        }
    }

    #[cold]
    pub(super) fn broken(&self, error: &WorkerError) -> Box<Fault> {
        self.failed(error.to_string())
    }

    #[cold]
    pub(super) fn failed(&self, reason: String) -> Box<Fault> {
        Box::new(Fault::Failed { rank: self.net.me, reason })
    }
}

/// How long to wait for the reason why a connection did not come up.
const MOMENT: Duration = Duration::from_millis(300);
