//! The end of ranks, and of all: who tells of it, and who is told.

use std::time::Duration;

use super::{Stage, Store};
use crate::bootstrap::message::{FromStore, encode};
use crate::bootstrap::regroup::Spot;
use crate::deadline::Deadline;
use crate::fault::{Fault, Place};

impl Store {
    /// A rank takes its leave; whether it may go on with others. Where this stands in for another store, that is to ask a third, and
    /// nobody goes on elsewhere: those that do are half of the ranks, of which one goes with neither.
    pub(super) fn part(&mut self, rank: u32, goes_on: bool) {
        if goes_on && !self.stands_in() {
            self.roll.desert(rank);
        } else {
            self.roll.leave(rank);
        }
        self.leave(rank);
    }

    /// A rank asks who is left. One that the others went on without hears so.
    pub(super) fn count_in(&mut self, at: usize, rank: u32, spot: Spot, limit: Duration) {
        let is_counted = self.roll.ask(rank, spot, limit);
        self.leave(rank);
        if let (false, Some(remnant), Some(Some(visitor))) = (is_counted, &self.remnant, self.visitors.get_mut(at)) {
            visitor.tell(&encode(&FromStore::Remain(remnant.clone())));
        }
    }

    /// A rank waited too long: asks the others what they wait for, before all are told.
    pub(super) fn ask(&mut self, mut fault: Fault) {
        if let Fault::TimedOut { by, place, waits, .. } = &mut fault {
            *waits = vec![(*by, Some(place.clone()))];
        }
        self.stage = Stage::Asking { until: Deadline::after(ANSWERS), fault };
        self.tell_all(&FromStore::Ask);
    }

    pub(super) fn hear_waits(&mut self, rank: u32, place: Option<Place>) {
        let Stage::Asking { fault: Fault::TimedOut { waits, .. }, .. } = &mut self.stage else { return };
        if waits.iter().all(|(other, _)| *other != rank) {
            waits.push((rank, place));
        }
        let complete = waits.len() >= self.ranks.iter().flatten().count();
        self.tell_waits(complete);
    }

    /// Tells all what ended it, once all have said what they wait for, or had the time to.
    pub(super) fn tell_waits(&mut self, complete: bool) {
        let Stage::Asking { until, fault } = &self.stage else { return };
        if complete || until.is_over() {
            let fault = fault.clone();
            self.end(FromStore::Verdict(fault));
        }
    }

    /// A rank can not go on. The first fault counts.
    pub(super) fn raise(&mut self, fault: Fault) {
        let fault = match fault {
            Fault::Gone { rank } if self.has_left(rank) => Fault::Left { rank },
            fault => fault,
        };
        self.end(FromStore::Verdict(fault));
    }

    /// Tells all ranks what ended it, unless something did before.
    pub(super) fn end(&mut self, verdict: FromStore) {
        if !matches!(self.stage, Stage::Over(_)) {
            self.tell_who_left();
            self.tell_all(&verdict);
            self.stage = Stage::Over(verdict);
        }
    }

    pub(super) fn leave(&mut self, rank: u32) {
        if let Some(left) = self.left.get_mut(rank as usize).filter(|left| !**left) {
            *left = true;
            self.leaving.push(rank);
        }
    }

    /// Of all that left about the same time at once: they often do, and each that is here is told of each.
    pub(super) fn tell_who_left(&mut self) {
        if !self.leaving.is_empty() {
            let ranks = std::mem::take(&mut self.leaving);
            self.tell_all(&FromStore::Left { ranks });
        }
    }

    /// Once all have asked that can, or had the time to; also those that have not.
    pub(super) fn tell_who_is_left(&mut self) {
        if let Some(remnant) = self.roll.settle() {
            self.tell_all(&FromStore::Remain(remnant.clone()));
            self.remnant = Some(remnant);
        }
    }
}

/// How long ranks have to say what they wait for: one that runs answers within milliseconds.
const ANSWERS: Duration = Duration::from_millis(300);
