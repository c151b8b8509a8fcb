//! READs and atomics that were answered, to be answered again: an atomic must not be done twice. IBA 9.7.5.1.

use std::collections::VecDeque;

use crate::types::{Msn, Psn};
use crate::work::Remote;

/// The last of them, as many as the peer may have under way.
#[derive(Debug)]
pub(super) struct Replay {
    done: VecDeque<Done>,
    room: usize,
}

/// A request that was answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    /// Sequence number of the first packet of the answer.
    pub(super) psn: Psn,
    /// Packets of the answer.
    pub(super) packets: u32,
    /// Messages done with it.
    pub(super) msn: Msn,
    /// What was answered.
    pub(super) answer: Answered,
}

/// What was answered.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answered {
    /// So many bytes of memory.
    Read(Remote, u32),
    /// What was there before an atomic.
    Atomic(u64),
}

impl Replay {
    pub(super) fn new(room: u8) -> Self {
        Replay { done: VecDeque::with_capacity(room.into()), room: room.into() }
    }

    pub(super) fn keep(&mut self, done: Done) {
        if self.done.len() == self.room {
            self.done.pop_front();
        }
        self.done.push_back(done);
    }

    /// The first packet of the oldest answer that is behind `psn`, and before `end`.
    pub(super) fn first_between(&self, psn: Psn, end: Psn) -> Option<Psn> {
        let behind = self.done.iter().map(|done| done.psn);
        behind.filter(|first| (1..end.since(psn)).contains(&first.since(psn))).min_by_key(|first| first.since(psn))
    }

    /// The one whose answer has this packet.
    pub(super) fn find(&self, psn: Psn) -> Option<Done> {
        self.done.iter().rev().find(|done| psn.since(done.psn) < done.packets).copied()
    }
}
