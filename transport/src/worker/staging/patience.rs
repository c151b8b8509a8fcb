//! Peers that have offered messages in parts, and offer no part, though others wait for the memory that is kept for these.

use std::time::Duration;

use super::Staging;
use super::incoming::Incoming;
use crate::worker::Worker;
use crate::worker::ids::EndpointId;

/// A connection whose peer holds others up.
#[derive(Debug)]
pub(super) struct Holder {
    ep: EndpointId,
    /// When that was looked at last, and how often it was so all the while since.
    looked: Duration,
    looks: u32,
}

/// What a look at a peer that has offered messages in parts gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::worker) enum Parts {
    /// It offers them, or holds up nobody.
    Fine,
    /// It holds others up, and is to be looked at again then.
    Due(Duration),
    /// It has done so for as long as it may.
    Missing,
}

impl Staging {
    /// The peer has offered a part, or nobody waits for it to.
    pub(super) fn lets_go_on(&mut self, ep: EndpointId) {
        self.holders.retain(|holder| holder.ep != ep);
    }

    /// Nobody waits for memory.
    pub(in crate::worker) fn nobody_waits(&mut self) {
        self.holders.clear();
    }

    /// Messages for which memory is kept that peers alone could let go of: nothing of these connections is being read.
    fn kept(&self) -> impl Iterator<Item = &Incoming> {
        let all = || self.incoming.iter().map(|(_, incoming)| incoming);
        let goes_on = move |ep| all().any(|other| other.ep() == ep && other.goes_on());
        all().filter(move |incoming| incoming.kept() > 0 && !goes_on(incoming.ep()))
    }

    /// One more look at a peer that holds others up.
    fn hold(&mut self, ep: EndpointId, now: Duration) -> Parts {
        let known = self.holders.iter().position(|holder| holder.ep == ep);
        let at = known.unwrap_or_else(|| {
            self.holders.push(Holder { ep, looked: now, looks: 0 });
            self.holders.len() - 1
        });
        let holder = &mut self.holders[at];
        if now >= holder.looked + PATIENCE / LOOKS {
            (holder.looked, holder.looks) = (now, holder.looks + 1);
        }
        if holder.looks < LOOKS { Parts::Due(holder.looked + PATIENCE / LOOKS) } else { Parts::Missing }
    }
}

impl Worker {
    /// Looks whether a peer holds others up. Time counts in which it was looked at, so that a clock that jumps takes little of
    /// its time.
    pub(in crate::worker) fn look_at_parts(&mut self, ep: EndpointId, now: Duration) -> Parts {
        if !self.inbox.is_stalled() {
            return Parts::Fine;
        }
        let is_one = self.staging.kept().any(|incoming| incoming.ep() == ep);
        let kept = self.staging.kept().map(Incoming::kept).sum();
        // It may be that the application keeps what came, and nobody else holds up.
        let waits = |len| self.pool.would_have(usize::try_from(len).unwrap_or(usize::MAX), kept);
        if !is_one || !self.inbox.stalled_beside(ep.peer()).any(waits) {
            self.staging.lets_go_on(ep);
            return Parts::Fine;
        }
        self.staging.hold(ep, now)
    }

    /// Has those looked at who may hold others up, as soon as somebody waits for memory.
    pub(in crate::worker) fn watch_parts(&mut self) {
        if !self.inbox.is_stalled() {
            return;
        }
        let now = self.pace.now();
        let holders: Vec<_> = self.staging.kept().map(Incoming::ep).collect();
        holders.into_iter().for_each(|ep| self.schedule(ep.index as usize, now));
    }
}

/// How long a peer may take for the next part while others wait for memory: it may compute, and not poll.
pub(in crate::worker) const PATIENCE: Duration = Duration::from_secs(30);
/// In how many pieces that is counted.
const LOOKS: u32 = 5;
