//! What an operation waits for, and why it can not go on.

use super::exec::Exec;
use super::run::State;
use super::steps::Step;
use crate::fault::{Fault, Place};
use crate::plan::What;

impl Exec<'_> {
    /// Whether the operation, which has started, still waits for something of `rank`.
    pub(super) fn needs(&self, rank: u32) -> bool {
        let Some(slot) = self.plan.slot(rank) else { return false };
        let open = |(number, step): (usize, &Step)| {
            let came = self.run.messages[number].is_some() || self.run.staged.came(number as u32, step.dst.len);
            step.slot == slot && step.what.is_message() && self.run.states[number] != State::Done && !came
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

    #[cold]
    pub(super) fn failed(&self, reason: String) -> Box<Fault> {
        Box::new(Fault::Failed { rank: self.net.me, reason })
    }
}
