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

    /// Whose payloads wait for memory, and how long they are: not those that have found a receive's own since.
    pub(crate) fn stalled(&self) -> impl Iterator<Item = (Peer, u64)> {
        self.stalled.iter().filter_map(|(peer, key)| {
            let entry = self.entries.get(*key)?;
            let Stage::Wanted(_, posted) = &entry.stage else { return None };
            posted.as_ref().is_none_or(|posted| posted.staged).then_some((*peer, entry.len))
        })
    }

    /// There is memory again: what waits for it can be read.
    pub(crate) fn resume(&mut self) -> Vec<(Peer, EntryKey)> {
        std::mem::take(&mut self.stalled)
    }
}
