//! Whose turn it is to send, and when queue pairs are to be looked at.

use std::collections::{BTreeSet, VecDeque};
use std::time::Instant;

use super::slot::Slot;
use crate::types::Qpn;

/// Queue pairs in turn, and by time: one entry of each kind at most for any.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Those that may have something to send.
    waiting: VecDeque<Qpn>,
    /// Those of them whose way out has no room: they are passed over until it may have.
    held_up: Vec<Qpn>,
    timers: BTreeSet<(Instant, Qpn)>,
}

impl Turns {
    /// Lets a queue pair send in its turn.
    pub(super) fn enqueue<L: Copy>(&mut self, qpn: Qpn, slot: &mut Slot<L>) {
        if !slot.is_waiting {
            slot.is_waiting = true;
            self.waiting.push_back(qpn);
        }
    }

    /// Lets a queue pair send before all others.
    pub(super) fn prefer<L: Copy>(&mut self, qpn: Qpn, slot: &mut Slot<L>) {
        if slot.is_waiting {
            self.leave(qpn);
        }
        slot.is_waiting = true;
        self.waiting.push_front(qpn);
    }

    /// Passes over a queue pair, whose turn it is, until [`resume`](Turns::resume).
    pub(super) fn hold_up<L>(&mut self, qpn: Qpn, slot: &mut Slot<L>) {
        slot.is_waiting = true;
        self.held_up.push(qpn);
    }

    /// Those that were passed over have their turn again, in the order in which they had it.
    pub(super) fn resume(&mut self) {
        self.waiting.extend(self.held_up.drain(..));
    }

    fn leave(&mut self, qpn: Qpn) {
        self.waiting.retain(|waiting| *waiting != qpn);
        self.held_up.retain(|waiting| *waiting != qpn);
    }

    /// The queue pair whose turn it is. It waits no more.
    pub(super) fn next(&mut self) -> Option<Qpn> {
        self.waiting.pop_front()
    }

    /// Has a queue pair looked at when it is due. One that will be looked at before stays as it is: nearly all deadlines move
    /// on before they come, and so each is looked at once in a while, and not with each packet.
    pub(super) fn arm<L: Copy>(&mut self, qpn: Qpn, slot: &mut Slot<L>) {
        if let Some(due) = slot.timeout()
            && slot.armed.is_none_or(|armed| due < armed)
        {
            if let Some(later) = slot.armed.replace(due) {
                self.timers.remove(&(later, qpn));
            }
            self.timers.insert((due, qpn));
        }
    }

    /// True if none may have something to send, but for those that are held up.
    pub(super) fn is_quiet(&self) -> bool {
        self.waiting.is_empty()
    }

    /// When the first is to be looked at.
    pub(super) fn due(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// A queue pair that is to be looked at by now.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<Qpn> {
        if self.due()? > now {
            return None;
        }
        self.timers.pop_first().map(|(_, qpn)| qpn)
    }

    /// A queue pair is gone.
    pub(super) fn forget<L>(&mut self, qpn: Qpn, slot: &Slot<L>) {
        if let Some(armed) = slot.armed {
            self.timers.remove(&(armed, qpn));
        }
        if slot.is_waiting {
            self.leave(qpn);
        }
    }

    /// Entries of either kind.
    #[cfg(test)]
    pub(super) fn entries(&self) -> (usize, usize) {
        (self.timers.len(), self.waiting.len() + self.held_up.len())
    }
}
