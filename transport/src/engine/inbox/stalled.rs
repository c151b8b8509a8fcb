//! Payloads that wait for memory of the transport's own.

use super::entries::Stage;
use super::{Class, EntryKey, Inbox, Peer, Start};

impl<M, B> Inbox<M, B> {
    /// Undoes [`start`](Inbox::start) for want of memory, until [`resume`](Inbox::resume).
    pub(crate) fn stall(&mut self, start: Start<M>) {
        let Some(entry) = self.entries.get_mut(start.key) else { return };
        let peer = entry.peer;
        let free = start.posted.is_none() && entry.envelope.class == Class::Tagged;
        entry.stage = Stage::Wanted(start.offer, start.posted);
        if free {
            self.entries.release(start.key);
        }
        self.stalled.push((peer, start.key));
    }

    /// True if payloads wait for memory.
    pub(crate) fn is_stalled(&self) -> bool {
        !self.stalled.is_empty()
    }

    /// Forgets payloads that wait no more: their messages are gone, or have found a receive's own memory since.
    pub(crate) fn forget_started(&mut self) {
        let waits = |stage: &Stage<M, B>| match stage {
            Stage::Wanted(_, posted) => posted.as_ref().is_none_or(|posted| posted.staged),
            _ => false,
        };
        self.stalled.retain(|(_, key)| self.entries.get(*key).is_some_and(|entry| waits(&entry.stage)));
    }

    /// Whose payloads wait for memory, and how long they are.
    pub(crate) fn stalled(&self) -> impl Iterator<Item = (Peer, u64)> {
        self.stalled.iter().filter_map(|(peer, key)| Some((*peer, self.entries.get(*key)?.len)))
    }

    /// There is memory again: what waits for it can be read.
    pub(crate) fn resume(&mut self) -> Vec<(Peer, EntryKey)> {
        std::mem::take(&mut self.stalled)
    }
}
