//! What comes: matched with posted receives, read if it is long, and delivered in the order of its channel. One for all
//! connections of a worker, so that a receive can take messages of any of them.
//!
//! A short message waits behind a long one of its channel that is still being read.

mod entries;
mod freed;
mod receives;
mod stalled;

use std::collections::VecDeque;

use entries::{Entries, Reader, Stage};
use receives::Receives;

pub(crate) use entries::EntryKey;
pub(crate) use freed::Freed;
pub(crate) use receives::{Fit, Pattern, Posted};

use super::table::Seeds;
use super::wire::{Class, Envelope, Offer};

/// A connection, in its worker's numbering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer(pub(crate) u64);

/// What becomes of tagged messages without a receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    /// Short ones wait for one, instead of going to the application.
    pub(crate) hold_short: bool,
    /// Long ones wait for one, instead of being read into memory of the transport's own.
    pub(crate) hold_long: bool,
    /// Those that are longer wait in any case.
    pub(crate) longest: u64,
    /// So many that are here, of connections that have ended, wait at most.
    pub(crate) orphans: usize,
    pub(crate) seeds: Seeds,
}

/// What becomes of an eager message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Arrival<M> {
    /// For the application as it is.
    Unmatched,
    /// For this receive.
    Matched(Posted<M>),
    /// It waits for a receive, or behind another of its channel.
    Held,
    /// The posted receive can not take it and fails; the message goes to the application, or waits if `held`.
    Misfit { posted: Posted<M>, held: bool },
}

/// What becomes of a ready-to-send.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Offered<M> {
    /// It can be read now.
    Startable(EntryKey),
    /// It waits for a receive.
    Held,
    /// The posted receive can not take it and fails; it can be read without, or waits for another.
    Misfit { posted: Posted<M>, startable: Option<EntryKey> },
    /// No receive may take it, and it is longer than what is read without one, which the peer knows.
    TooLong { limit: u64 },
}

/// What became of a receive.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Placed<M> {
    /// It waits for a message, or for one that is held already and has its turn later.
    Waits,
    /// It took a message that is delivered now: see [`Inbox::next_due`].
    Due,
    /// It matched an offer of that peer, which can be read now.
    Startable(Peer, EntryKey),
    /// The message that is next for it does not fit.
    Misfit { posted: Posted<M>, len: u64 },
}

/// A payload to be read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Start<M> {
    pub(crate) key: EntryKey,
    pub(crate) envelope: Envelope,
    pub(crate) offer: Offer,
    pub(crate) len: u64,
    /// Where to; without a receive, memory of the transport's own.
    pub(crate) posted: Option<Posted<M>>,
}

/// A message that is to be delivered now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Delivery<M, B> {
    pub(crate) peer: Peer,
    pub(crate) envelope: Envelope,
    pub(crate) len: u64,
    /// None of a part of a stream that will never come.
    pub(crate) body: Option<B>,
    /// The receive that takes it, if it came whole; a payload that was read is in the memory of its own already.
    pub(crate) posted: Option<Posted<M>>,
}

/// A message that waits for a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) peer: Peer,
    pub(crate) tag: u64,
    pub(crate) len: u64,
}

/// Posted receives, and arrivals that are not delivered yet.
///
/// `M` is memory of a posted receive, `B` the contents of a message.
#[derive(Debug)]
pub(crate) struct Inbox<M, B> {
    receives: Receives<M>,
    entries: Entries<M, B>,
    due: VecDeque<Delivery<M, B>>,
    freed: VecDeque<Freed<M>>,
    /// Payloads that wait for memory of the transport's own, of which there is none at the moment.
    stalled: Vec<(Peer, EntryKey)>,
    /// Messages that wait for receives though their connections have ended, oldest first; among them some that found theirs.
    orphans: VecDeque<EntryKey>,
    policy: Policy,
}

impl<M, B> Inbox<M, B> {
    pub(crate) fn new(policy: Policy) -> Self {
        Inbox {
            receives: Receives::new(policy.seeds),
            entries: Entries::new(policy.seeds),
            due: VecDeque::new(),
            freed: VecDeque::new(),
            stalled: Vec::new(),
            orphans: VecDeque::new(),
            policy,
        }
    }

    /// True if a message that comes goes to the application as it is.
    #[inline(always)]
    pub(crate) fn is_plain(&self) -> bool {
        self.receives.is_empty() && self.entries.is_empty() && !self.policy.hold_short
    }

    /// An eager message came; `body` makes what is kept of it, if it must wait.
    pub(crate) fn eager(&mut self, peer: Peer, envelope: Envelope, len: u64, body: impl FnOnce() -> B) -> Arrival<M> {
        let behind = self.entries.has(peer, envelope);
        let (posted, misfit) = self.take_receive(peer, envelope, len);
        let holds = envelope.class == Class::Tagged && self.policy.hold_short && posted.is_none();
        if behind || holds {
            let free = envelope.class == Class::Tagged && posted.is_none();
            let key = self.entries.push(peer, envelope, len, Stage::Whole(body(), posted));
            if free {
                self.entries.release(key);
            }
            if misfit.is_some() {
                self.rematch(key);
            }
            return misfit.map_or(Arrival::Held, |posted| Arrival::Misfit { posted, held: true });
        }
        match (posted, misfit) {
            (Some(posted), _) => Arrival::Matched(posted),
            (None, Some(posted)) => Arrival::Misfit { posted, held: false },
            (None, None) => Arrival::Unmatched,
        }
    }

    /// A ready-to-send came. `closing`: nobody will post receives for this peer's messages any more.
    pub(crate) fn offer(
        &mut self,
        peer: Peer,
        envelope: Envelope,
        len: u64,
        offer: Offer,
        closing: bool,
    ) -> Offered<M> {
        let limit = self.policy.longest;
        if len > limit && !matches!(envelope.class, Class::Tagged | Class::Part) {
            return Offered::TooLong { limit };
        }
        let (posted, misfit) = self.take_receive(peer, envelope, len);
        let Policy { hold_long, longest, hold_short, .. } = self.policy;
        // One that lost its receive is delivered all the same, if there can be memory for it.
        let hold = hold_long && !closing && envelope.class == Class::Tagged && (misfit.is_none() || hold_short);
        // Part of a payload has its place, which this does not know.
        let held = posted.is_none() && (len > longest || hold) && envelope.class != Class::Part;
        let free = envelope.class == Class::Tagged && posted.is_none();
        let stage = if held { Stage::Offered(offer) } else { Stage::Wanted(offer, posted) };
        let key = self.entries.push(peer, envelope, len, stage);
        if free {
            self.entries.release(key);
        }
        match misfit {
            Some(posted) => {
                let startable = self.rematch(key) || !held;
                Offered::Misfit { posted, startable: startable.then_some(key) }
            }
            None if held => Offered::Held,
            None => Offered::Startable(key),
        }
    }

    /// Posts a receive.
    pub(crate) fn post(&mut self, posted: Posted<M>) -> Placed<M> {
        let Some(key) = self.find_free(&posted.pattern) else {
            self.receives.push(posted);
            return Placed::Waits;
        };
        let Some(entry) = self.entries.get_mut(key) else { return Placed::Waits };
        if !posted.fit.takes(entry.len) {
            return Placed::Misfit { posted, len: entry.len };
        }
        let (peer, envelope) = (entry.peer, entry.envelope);
        let placed = match &mut entry.stage {
            Stage::Offered(offer) => {
                entry.stage = Stage::Wanted(*offer, Some(posted));
                Placed::Startable(peer, key)
            }
            Stage::Wanted(_, place) => {
                *place = Some(posted);
                Placed::Startable(peer, key)
            }
            Stage::Whole(_, place) => {
                *place = Some(posted);
                Placed::Due
            }
            Stage::Reading(_, Reader::Anyone(place)) => {
                *place = Some(posted);
                Placed::Waits
            }
            // Not among the free ones.
            Stage::Reading(_, Reader::Receive(_)) | Stage::Lost => {
                return Placed::Misfit { len: entry.len, posted };
            }
        };
        self.entries.claim(key);
        if !matches!(placed, Placed::Due) {
            return placed;
        }
        let due = self.due.len();
        self.advance(peer, envelope);
        if self.due.len() > due { Placed::Due } else { Placed::Waits }
    }

    /// The message that a receive of that pattern would take now.
    pub(crate) fn probe(&self, pattern: &Pattern) -> Option<Waiting> {
        let entry = self.entries.get(self.find_free(pattern)?)?;
        Some(Waiting { peer: entry.peer, tag: entry.envelope.tag, len: entry.len })
    }

    /// A payload is read from now on. `None` if it can not be any more, or needs not: what was said of it is out of date.
    pub(crate) fn start(&mut self, key: EntryKey) -> Option<Start<M>> {
        let entry = self.entries.get(key)?;
        let Stage::Wanted(_, posted) = &entry.stage else { return None };
        let is_part = entry.envelope.class == Class::Part;
        let needs_memory = !is_part && posted.as_ref().is_none_or(|posted| posted.staged);
        let peer = entry.peer;
        // Behind one that waits for memory it would be read into memory that only comes back after that one.
        if needs_memory && !self.stalled.is_empty() && self.entries.is_behind_unread(key) {
            self.stalled.push((peer, key));
            return None;
        }
        let entry = self.entries.get_mut(key)?;
        let Stage::Wanted(offer, posted) = &mut entry.stage else { return None };
        let (offer, posted, len, envelope) = (*offer, posted.take(), entry.len, entry.envelope);
        // Where messages wait for receives, one may still take it, and has it when it is here.
        let stays = self.policy.hold_short && posted.is_none() && envelope.class == Class::Tagged;
        let reader = posted.as_ref().map_or(Reader::Anyone(None), |posted| Reader::Receive(posted.op));
        entry.stage = Stage::Reading(offer, reader);
        if !stays {
            self.entries.claim(key);
        }
        Some(Start { key, envelope, offer, len, posted })
    }

    /// A payload was read, for a receive whose memory it is not in yet, or for none. Gives its message id and its length;
    /// it is delivered when its turn comes.
    pub(crate) fn finish(&mut self, key: EntryKey, body: B, posted: Option<Posted<M>>) -> Option<(u32, u64)> {
        let entry = self.entries.get_mut(key)?;
        let Stage::Reading(offer, reader) = &mut entry.stage else { return None };
        let (offer, later) = match reader {
            Reader::Receive(_) => (*offer, None),
            Reader::Anyone(later) => (*offer, Some(later.take())),
        };
        let free = matches!(later, Some(None)) && entry.envelope.class == Class::Tagged && !entry.is_orphan;
        entry.stage = Stage::Whole(body, posted.or(later.flatten()));
        let (peer, envelope, len) = (entry.peer, entry.envelope, entry.len);
        if free {
            self.entries.release(key);
            self.rematch(key);
        }
        self.advance(peer, envelope);
        Some((offer.id, len))
    }

    /// A payload will not be read, since the connection broke. Gives the receive.
    pub(crate) fn fail(&mut self, key: EntryKey) -> Option<u64> {
        let peer = self.entries.get(key)?.peer;
        self.end_reading(key, Some(peer))
    }

    /// A payload is read no more. The receive that was to have it once it is here has another, or waits for one: not for what
    /// has yet to come from a peer whose connection broke.
    fn end_reading(&mut self, key: EntryKey, broken: Option<Peer>) -> Option<u64> {
        let entry = self.entries.get_mut(key)?;
        let Stage::Reading(_, reader) = &mut entry.stage else { return None };
        let (op, later) = match reader {
            Reader::Receive(op) => (Some(*op), None),
            Reader::Anyone(later) => (None, later.take()),
        };
        entry.stage = Stage::Lost;
        let (peer, envelope) = (entry.peer, entry.envelope);
        self.entries.claim(key);
        if let Some(posted) = later {
            self.wait_again(posted, broken);
        }
        self.advance(peer, envelope);
        op
    }

    /// The peer takes an offer back. True if it will not be read; else it is being read, or was.
    pub(crate) fn withdraw(&mut self, peer: Peer, id: u32) -> bool {
        let is_it = |stage: &Stage<M, B>| match stage {
            Stage::Offered(offer) | Stage::Wanted(offer, None) => offer.id == id,
            _ => false,
        };
        let Some(key) = self.entries.offered(peer, id) else { return false };
        let Some(entry) = self.entries.get(key).filter(|entry| is_it(&entry.stage)) else { return false };
        let envelope = entry.envelope;
        self.lose(key);
        self.advance(peer, envelope);
        true
    }

    /// The next message to deliver.
    #[inline]
    pub(crate) fn next_due(&mut self) -> Option<Delivery<M, B>> {
        self.due.pop_front()
    }

    /// Nobody posts receives for that peer's messages any more: offers that can be read without are given, to be read.
    pub(crate) fn release_offers(&mut self, peer: Peer) -> Vec<EntryKey> {
        let held = |stage: &Stage<M, B>| matches!(stage, Stage::Offered(_));
        let entries = self.entries.iter().filter(|(_, entry)| entry.peer == peer && held(&entry.stage));
        let mut keys: Vec<_> = entries.filter(|(_, entry)| entry.len <= self.policy.longest).collect();
        keys.sort_by_key(|(key, _)| key.age());
        let keys: Vec<_> = keys.into_iter().map(|(key, _)| key).collect();
        for &key in &keys {
            if let Some(entry) = self.entries.get_mut(key)
                && let Stage::Offered(offer) = entry.stage
            {
                entry.stage = Stage::Wanted(offer, None);
            }
        }
        keys
    }

    /// A connection ends. Gives the receives that can not come true any more; those being read come with their completion.
    /// Messages that are here are delivered, or wait for their receives as before, as far as [`Policy::orphans`] goes.
    pub(crate) fn drop_peer(&mut self, peer: Peer) -> Vec<Posted<M>> {
        let mut left = Vec::new();
        self.receives.drop_peer(peer, &mut left);
        let unread = |stage: &Stage<M, B>| matches!(stage, Stage::Offered(_) | Stage::Wanted(..));
        let gone: Vec<_> = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.peer == peer && unread(&entry.stage))
            .map(|(key, entry)| (key, entry.envelope))
            .collect();
        let of_peer = self.entries.iter_mut().filter(|entry| entry.peer == peer);
        left.extend(of_peer.filter_map(|entry| match &mut entry.stage {
            Stage::Reading(_, reader) => {
                entry.is_orphan = true;
                if let Reader::Anyone(later) = reader { later.take() } else { None }
            }
            _ => None,
        }));
        let orphans: Vec<_> = self.entries.free().filter(|(_, entry)| entry.is_orphan).map(|(key, _)| key).collect();
        orphans.into_iter().for_each(|key| self.entries.claim(key));
        for (key, envelope) in gone {
            left.extend(self.lose(key));
            self.advance(peer, envelope);
        }
        if self.policy.hold_short {
            let waits = |key: &EntryKey| self.waits(*key);
            let of_peer = self.entries.iter().filter(|(_, entry)| entry.peer == peer).map(|(key, _)| key);
            let mut orphans: Vec<_> = of_peer.filter(waits).collect();
            orphans.sort_by_key(|key| key.age());
            self.orphans.extend(orphans);
            self.deliver_orphans();
        }
        left
    }

    /// True if it is a message that is here and waits for a receive.
    fn waits(&self, key: EntryKey) -> bool {
        self.entries.get(key).is_some_and(|entry| entry.is_free() && matches!(entry.stage, Stage::Whole(_, None)))
    }

    /// Delivers the oldest messages of connections that have ended, without receives, so that few enough are left.
    fn deliver_orphans(&mut self) {
        if self.orphans.len() <= self.policy.orphans {
            return;
        }
        let mut orphans = std::mem::take(&mut self.orphans);
        orphans.retain(|key| self.waits(*key));
        let over = orphans.len().saturating_sub(self.policy.orphans);
        for key in orphans.drain(..over) {
            self.entries.claim(key);
            if let Some((peer, envelope)) = self.entries.get(key).map(|entry| (entry.peer, entry.envelope)) {
                self.advance(peer, envelope);
            }
        }
        self.orphans = orphans;
    }

    /// Receives that wait for a message.
    #[cfg(test)]
    pub(crate) fn posted(&self) -> impl Iterator<Item = &Posted<M>> {
        self.receives.iter()
    }

    /// Posted receives, and arrivals that wait, of one peer. For those in no hurry.
    pub(crate) fn counts(&self, peer: Peer) -> (usize, usize) {
        let posted = self.receives.iter().filter(|posted| posted.pattern.source == Some(peer)).count();
        (posted, self.entries.iter().filter(|(_, entry)| entry.peer == peer).count())
    }

    /// The receive for a message, if there is one, and it fits; or one that it does not fit.
    fn take_receive(&mut self, peer: Peer, envelope: Envelope, len: u64) -> (Option<Posted<M>>, Option<Posted<M>>) {
        if envelope.class != Class::Tagged || self.receives.is_empty() {
            return (None, None);
        }
        // While an earlier one of its tag waits for a receive that it fits, this one would stand behind it with the receive that it
        // took. Those that the earlier one does not fit fail, as they do when they are posted while it waits.
        if let Some(len) = self.first_waiting(peer, envelope) {
            while let Some(posted) = self.receives.take_first(peer, envelope.tag, |fit| !fit.takes(len)) {
                self.freed.push_back(Freed::Misfit { peer, posted, len });
            }
        }
        match self.receives.take(peer, envelope.tag) {
            Some(posted) if !posted.fit.takes(len) => (None, Some(posted)),
            posted => (posted, None),
        }
    }

    fn find_free(&self, pattern: &Pattern) -> Option<EntryKey> {
        if self.entries.is_empty() {
            return None;
        }
        match pattern.is_single() {
            Some((peer, tag)) => self.entries.first_free(peer, Envelope::bare(tag)),
            None => {
                let takes = |peer, tag| pattern.takes(peer, tag);
                self.entries.free().find(|(_, entry)| takes(entry.peer, entry.envelope.tag)).map(|(key, _)| key)
            }
        }
    }

    /// Delivers what comes first in its channel now, as far as it is here.
    fn advance(&mut self, peer: Peer, envelope: Envelope) {
        while let Some(key) = self.entries.first(peer, envelope) {
            let waits = self.policy.hold_short && envelope.class == Class::Tagged;
            let ready = self.entries.get(key).is_some_and(|entry| match &entry.stage {
                Stage::Whole(_, None) => !(waits && entry.is_free()),
                Stage::Whole(..) | Stage::Lost => true,
                Stage::Offered(_) | Stage::Wanted(..) | Stage::Reading(..) => false,
            });
            if !ready {
                return;
            }
            let Some(entry) = self.entries.remove(key) else { return };
            let (body, posted) = match entry.stage {
                Stage::Whole(body, posted) => (Some(body), posted),
                _ if envelope.class == Class::Stream => (None, None),
                _ => continue,
            };
            self.due.push_back(Delivery { peer, envelope: entry.envelope, len: entry.len, body, posted });
        }
    }

    /// A message that is not read, and never will be, goes. Part of a stream leaves a gap. Gives the receive.
    fn lose(&mut self, key: EntryKey) -> Option<Posted<M>> {
        let entry = self.entries.get_mut(key)?;
        let stage = if entry.envelope.class == Class::Stream {
            std::mem::replace(&mut entry.stage, Stage::Lost)
        } else {
            self.entries.remove(key)?.stage
        };
        if let Stage::Wanted(_, posted) = stage { posted } else { None }
    }
}
