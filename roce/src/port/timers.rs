//! When queue pairs are to be looked at. Each has one entry at most that counts; what it waits for may move on meanwhile
//! without a change here, since it is looked at too early then, and once more.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

use super::slot::Slot;
use crate::types::Qpn;

/// Queue pairs by time.
#[derive(Debug, Default)]
pub(super) struct Timers {
    entries: BinaryHeap<Reverse<(Instant, Qpn)>>,
}

impl Timers {
    /// Has a queue pair looked at when it is due, unless it will be before.
    pub(super) fn arm<L: Copy>(&mut self, qpn: Qpn, slot: &mut Slot<L>) {
        if let Some(due) = slot.timeout()
            && slot.armed.is_none_or(|armed| due < armed)
        {
            slot.armed = Some(due);
            self.entries.push(Reverse((due, qpn)));
        }
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.entries.peek().map(|Reverse((at, _))| *at)
    }

    /// A queue pair that is to be looked at by now.
    pub(super) fn due(&mut self, now: Instant) -> Option<Qpn> {
        if self.next()? > now {
            return None;
        }
        self.entries.pop().map(|Reverse((_, qpn))| qpn)
    }
}
