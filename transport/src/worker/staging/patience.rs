//! Peers that have offered messages in parts, and offer no part, though others wait for the memory that is kept for these.

use std::collections::HashMap;
use std::time::Duration;

use super::Staging;
use crate::engine::Peer;
use crate::worker::Worker;
use crate::worker::error::CloseReason;
use crate::worker::ids::EndpointId;

/// Who holds others up, while somebody waits for memory.
#[derive(Debug, Default)]
pub(super) struct Patience {
    /// When that is looked at next.
    due: Option<Duration>,
    /// Connections that have held others up all the while for so many looks.
    holders: HashMap<EndpointId, u32>,
}

impl Staging {
    /// When it is to be looked at who holds others up.
    pub(in crate::worker) fn look_due(&self) -> Option<Duration> {
        self.patience.due
    }

    /// What counts of a connection begins anew: its peer has offered a part.
    pub(super) fn forgive(&mut self, ep: EndpointId) {
        self.patience.holders.remove(&ep);
    }

    /// What counts of all begins anew: nobody waits for memory.
    pub(in crate::worker) fn forgive_all(&mut self) {
        self.patience.holders.clear();
    }

    /// Bytes that are kept by connection for messages whose peers alone can go on: nothing of these connections is being read.
    fn kept(&self) -> HashMap<EndpointId, usize> {
        let mut kept = HashMap::<_, usize>::new();
        for (_, incoming) in &self.incoming {
            *kept.entry(incoming.ep()).or_default() += incoming.kept();
        }
        for (_, incoming) in self.incoming.iter().filter(|(_, incoming)| incoming.goes_on()) {
            kept.remove(&incoming.ep());
        }
        kept.retain(|_, bytes| *bytes > 0);
        kept
    }
}

impl Worker {
    /// A payload waits for memory: from now on it is looked at who holds it up.
    pub(in crate::worker) fn watch_parts(&mut self) {
        let patience = &mut self.staging.patience;
        if patience.due.is_none() {
            patience.due = Some(self.pace.now() + STEP);
        }
    }

    /// Looks who holds others up, if that is due, and ends those connections that have done so for [`PATIENCE`]. Time counts in
    /// which it was looked at, so that a clock that jumps takes little of a peer's time.
    pub(in crate::worker) fn look_at_parts(&mut self, now: Duration) {
        if self.staging.patience.due.is_none_or(|due| now < due) {
            return;
        }
        for ep in self.late_holders(now) {
            self.fail(ep.index as usize, CloseReason::PartsTimedOut(PATIENCE));
        }
    }

    /// One look at all who hold others up; gives those who have done so for too long.
    fn late_holders(&mut self, now: Duration) -> Vec<EndpointId> {
        self.inbox.forget_started();
        // One that is interrupted, or ends, holds up nobody: its memory comes back without its peer, or not yet.
        let mut kept = self.staging.kept();
        kept.retain(|ep, _| self.endpoints.get(*ep).is_some_and(|endpoint| endpoint.up));
        let all = kept.values().sum();
        // It may be that the application keeps what came, and that nobody else holds up.
        let waits = |&(_, len): &(Peer, u64)| self.pool.would_have(usize::try_from(len).unwrap_or(usize::MAX), all);
        let mut waiting = self.inbox.stalled().filter(waits).map(|(peer, _)| peer);
        let first = waiting.next();
        let other = waiting.find(|peer| Some(*peer) != first);
        let holds_up = |ep: EndpointId| other.is_some() || first.is_some_and(|first| first != ep.peer());
        let is_stalled = self.inbox.is_stalled();
        let Staging { patience, .. } = &mut self.staging;
        patience.due = is_stalled.then_some(now + STEP);
        let holds = |ep: &EndpointId| kept.contains_key(ep) && holds_up(*ep);
        patience.holders.retain(|ep, _| holds(ep));
        for ep in kept.keys().filter(|ep| holds(ep)) {
            *patience.holders.entry(*ep).or_default() += 1;
        }
        patience.holders.iter().filter(|(_, looks)| **looks > LOOKS).map(|(ep, _)| *ep).collect()
    }
}

/// How long a peer may take at least for the next part while others wait for memory: it may compute, and not poll.
const PATIENCE: Duration = Duration::from_secs(30);
/// In how many steps that is counted, beside one that has begun before.
const LOOKS: u32 = 5;
const STEP: Duration = Duration::from_secs(PATIENCE.as_secs() / LOOKS as u64);
