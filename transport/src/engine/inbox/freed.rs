//! Messages that lose their receives, which are cancelled or refused: each goes to another, waits, or is read without. Receives that lose
//! their messages, to those that came before.

use super::entries::{Entry, Reader, Stage};
use super::{EntryKey, Envelope, Inbox, Peer, Posted, Waiting};

/// What becomes of a message that lost its receive, or of a receive.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Freed<M> {
    /// An offer of that peer, which can be read now: for another receive, or without one.
    Startable(Peer, EntryKey),
    /// An offer that waits for a receive.
    Waits(Waiting),
    /// A receive that a message of that peer and of that length does not fit, which waits.
    Misfit { peer: Peer, posted: Posted<M>, len: u64 },
}

impl<M, B> Inbox<M, B> {
    /// Undoes [`start`](Inbox::start) of an offer whose receive failed, which is given. The offer goes to another, or waits
    /// for one, or is read without: see [`next_freed`](Inbox::next_freed). `closing` as of [`offer`](Inbox::offer).
    pub(crate) fn unmatch(&mut self, key: EntryKey, closing: bool) -> Option<u64> {
        let entry = self.entries.get_mut(key)?;
        let Stage::Reading(offer, Reader::Receive(op)) = entry.stage else { return None };
        entry.stage = Stage::Wanted(offer, None);
        self.free_offer(key, self.policy.hold_short && !closing);
        Some(op)
    }

    /// Takes back a receive, unless its payload is being read already. The message that it had taken, if it had, goes to
    /// another, or waits for one, or is delivered without. `is_closing`: nobody will post receives for that peer's messages.
    pub(crate) fn cancel(&mut self, op: u64, is_closing: impl FnOnce(Peer) -> bool) -> Option<Posted<M>> {
        if let Some(posted) = self.receives.cancel(op) {
            return Some(posted);
        }
        let of_op = |posted: &Option<Posted<M>>| posted.as_ref().is_some_and(|posted| posted.op == op);
        let (key, _) = self.entries.iter().find(|(_, entry)| match &entry.stage {
            Stage::Wanted(_, posted) | Stage::Whole(_, posted) => of_op(posted),
            Stage::Reading(_, Reader::Anyone(posted)) => of_op(posted),
            _ => false,
        })?;
        let entry = self.entries.get_mut(key)?;
        match &mut entry.stage {
            Stage::Wanted(_, place) => {
                let (posted, peer) = (place.take(), entry.peer);
                self.free_offer(key, self.policy.hold_long && !is_closing(peer));
                posted
            }
            Stage::Whole(_, place) | Stage::Reading(_, Reader::Anyone(place)) => {
                let posted = place.take();
                self.entries.release(key);
                self.rematch(key);
                posted
            }
            _ => None,
        }
    }

    /// Whose message it is that is read for this receive.
    pub(crate) fn reads_for(&self, op: u64) -> Option<Peer> {
        let found = self
            .entries
            .iter()
            .find(|(_, entry)| matches!(entry.stage, Stage::Reading(_, Reader::Receive(of)) if of == op));
        found.map(|(_, entry)| entry.peer)
    }

    /// The payload that is being read is not for its receive any more, but for the first that waits or comes: those behind it
    /// have their turn after it.
    pub(crate) fn detach(&mut self, key: EntryKey) {
        if let Some(entry) = self.entries.get_mut(key)
            && let Stage::Reading(_, reader) = &mut entry.stage
        {
            *reader = Reader::Anyone(None);
            if !entry.is_orphan {
                self.entries.release(key);
                self.rematch(key);
            }
        }
    }

    /// A payload was read, for nobody: its receive is over. Gives its message id and its length.
    pub(crate) fn discard(&mut self, key: EntryKey) -> Option<(u32, u64)> {
        let entry = self.entries.get(key)?;
        let Stage::Reading(offer, _) = entry.stage else { return None };
        let len = entry.len;
        self.end_reading(key, None);
        Some((offer.id, len))
    }

    /// Takes a message that is here and waits for its turn, if `is_it` says so of its contents.
    pub(crate) fn take_whole(&mut self, is_it: impl Fn(&B) -> bool) -> Option<B> {
        let found = |stage: &Stage<M, B>| matches!(stage, Stage::Whole(body, None) if is_it(body));
        let (key, _) = self.entries.iter().find(|(_, entry)| found(&entry.stage))?;
        match self.entries.remove(key)?.stage {
            Stage::Whole(body, _) => Some(body),
            _ => None,
        }
    }

    /// The next of the offers that lost their receives, and of the receives that fail by messages before theirs.
    #[inline]
    pub(crate) fn next_freed(&mut self) -> Option<Freed<M>> {
        self.freed.pop_front()
    }

    /// A message that any receive may take goes to the first of those that wait, and that it fits. False if there is none.
    pub(super) fn rematch(&mut self, key: EntryKey) -> bool {
        let Some(entry) = self.entries.get(key).filter(|entry| entry.is_free()) else { return false };
        let len = entry.len;
        let Some(posted) = self.receives.take_first(entry.peer, entry.envelope.tag, |fit| fit.takes(len)) else {
            return false;
        };
        self.give(key, posted);
        true
    }

    /// Length of the first message of a channel that waits until a receive takes it.
    pub(super) fn first_waiting(&self, peer: Peer, envelope: Envelope) -> Option<u64> {
        if !self.entries.has_free() {
            return None;
        }
        let waits = |entry: &Entry<M, B>| {
            entry.is_free() && (self.policy.hold_short || matches!(entry.stage, Stage::Offered(_)))
        };
        self.entries.channel(peer, envelope).find(|(_, entry)| waits(entry)).map(|(_, entry)| entry.len)
    }

    /// A receive lost the message that it was to have: it has the first that waits and that it fits, or waits for another as if it
    /// had not had that one. Of the peer whose connection broke it has what is here.
    pub(super) fn wait_again(&mut self, posted: Posted<M>, broken: Option<Peer>) {
        let Posted { pattern, fit, .. } = &posted;
        let comes = |entry: &Entry<M, B>| broken != Some(entry.peer) || matches!(entry.stage, Stage::Whole(..));
        let takes = |entry: &Entry<M, B>| pattern.takes(entry.peer, entry.envelope.tag) && fit.takes(entry.len);
        let found = self.entries.free().find(|(_, entry)| takes(entry) && comes(entry));
        let Some((key, peer)) = found.map(|(key, entry)| (key, entry.peer)) else { return self.receives.push(posted) };
        self.give(key, posted);
        if self.entries.get(key).is_some_and(|entry| matches!(entry.stage, Stage::Wanted(..))) {
            self.freed.push_back(Freed::Startable(peer, key));
        }
    }

    /// A message that any receive may take goes to that one.
    fn give(&mut self, key: EntryKey, posted: Posted<M>) {
        self.entries.claim(key);
        let Some(entry) = self.entries.get_mut(key) else { return };
        let (peer, envelope) = (entry.peer, entry.envelope);
        match &mut entry.stage {
            Stage::Offered(offer) => entry.stage = Stage::Wanted(*offer, Some(posted)),
            Stage::Wanted(_, place) | Stage::Whole(_, place) | Stage::Reading(_, Reader::Anyone(place)) => {
                *place = Some(posted);
            }
            // Not among the free ones.
            Stage::Reading(_, Reader::Receive(_)) | Stage::Lost => return,
        }
        self.advance(peer, envelope);
    }

    /// An offer lost its receive: it goes to another, or waits for one, or is read without. `hold`: it waits, as those too
    /// long to be read without do in any case.
    fn free_offer(&mut self, key: EntryKey, hold: bool) {
        self.entries.release(key);
        let rematched = self.rematch(key);
        let longest = self.policy.longest;
        let Some(entry) = self.entries.get_mut(key) else { return };
        let (peer, tag, len) = (entry.peer, entry.envelope.tag, entry.len);
        self.freed.push_back(match entry.stage {
            Stage::Wanted(offer, None) if !rematched && (hold || len > longest) => {
                entry.stage = Stage::Offered(offer);
                Freed::Waits(Waiting { peer, tag, len })
            }
            _ => Freed::Startable(peer, key),
        });
    }
}
