//! Messages that came and are not delivered yet: in one list for each channel of a peer, in the order in which they were
//! sent, and those that a receive may still take in one for all, in the order in which they came.

use slab::Slab;

use super::{Peer, Posted};
use crate::engine::table::{Key, Seeds, Table};
use crate::engine::wire::{Envelope, Offer};

/// A message that came. Never given twice: what is said of one that is gone is meant for no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryKey {
    index: u32,
    serial: u32,
}

impl EntryKey {
    /// Later messages have greater ones, until the numbers begin anew.
    pub(super) fn age(self) -> u32 {
        self.serial
    }
}

#[derive(Debug)]
pub(super) struct Entry<M, B> {
    pub(super) peer: Peer,
    pub(super) envelope: Envelope,
    pub(super) len: u64,
    pub(super) stage: Stage<M, B>,
    /// Its peer is gone: no receive takes it any more.
    pub(super) is_orphan: bool,
    /// The number of its offer, if it came as one.
    offer: Option<u32>,
    serial: u32,
    /// Its neighbours in its channel.
    before: u32,
    next: u32,
    /// Its neighbours among the free ones, if it is one.
    free: Option<(u32, u32)>,
}

/// How far a message is.
#[derive(Debug)]
pub(super) enum Stage<M, B> {
    /// An offer that waits for a receive.
    Offered(Offer),
    /// To be read as soon as a send slot, and memory, are there; until then a receive may take it that has none.
    Wanted(Offer, Option<Posted<M>>),
    /// Being read.
    Reading(Offer, Reader<M>),
    /// All of it is here: for its receive, for the one that may still take it, or for nobody in particular.
    Whole(B, Option<Posted<M>>),
    /// It will never come.
    Lost,
}

/// For whom a payload is being read.
#[derive(Debug)]
pub(super) enum Reader<M> {
    /// For the receive of that operation, which the device or the worker has.
    Receive(u64),
    /// For nobody in particular, or for one that takes it once it is here.
    Anyone(Option<Posted<M>>),
}

impl<M, B> Entry<M, B> {
    /// True if a receive may take it.
    pub(super) fn is_free(&self) -> bool {
        self.free.is_some()
    }
}

/// The first and the last of a list.
type Ends = (u32, u32);

#[derive(Debug)]
pub(super) struct Entries<M, B> {
    slots: Slab<Entry<M, B>>,
    chains: Table<Chain, Ends>,
    /// Those that came as offers, by their peers' numbers.
    offers: Table<OfferKey, u32>,
    free: Ends,
    serial: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Chain {
    peer: Peer,
    channel: Envelope,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OfferKey(Peer, u32);

impl Key for OfferKey {
    fn words(self) -> [u64; 2] {
        [self.0.0, self.1.into()]
    }
}

const NONE: u32 = u32::MAX;

impl Key for Chain {
    fn words(self) -> [u64; 2] {
        let Envelope { class, port, tag } = self.channel;
        // Of one peer all are different, whatever port and tag it chooses.
        [self.peer.0 ^ u64::from(port) << 48 ^ (class as u64) << 40, tag]
    }
}

impl<M, B> Entries<M, B> {
    pub(super) fn new(seeds: Seeds) -> Self {
        Entries {
            slots: Slab::new(),
            chains: Table::new(seeds),
            offers: Table::new(seeds),
            free: (NONE, NONE),
            serial: 0,
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (EntryKey, &Entry<M, B>)> {
        self.slots.iter().map(|(index, entry)| (EntryKey { index: index as u32, serial: entry.serial }, entry))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Entry<M, B>> {
        self.slots.iter_mut().map(|(_, entry)| entry)
    }

    pub(super) fn get(&self, key: EntryKey) -> Option<&Entry<M, B>> {
        self.slots.get(key.index as usize).filter(|entry| entry.serial == key.serial)
    }

    pub(super) fn get_mut(&mut self, key: EntryKey) -> Option<&mut Entry<M, B>> {
        self.slots.get_mut(key.index as usize).filter(|entry| entry.serial == key.serial)
    }

    /// True if a message of that channel is there, which a later one must wait behind.
    pub(super) fn has(&self, peer: Peer, envelope: Envelope) -> bool {
        !self.slots.is_empty() && self.chains.get(Chain { peer, channel: envelope.channel() }).is_some()
    }

    /// What came as a peer's offer of that number.
    pub(super) fn offered(&self, peer: Peer, id: u32) -> Option<EntryKey> {
        self.offers.get(OfferKey(peer, id)).map(|index| self.key(index))
    }

    /// The first message of a channel.
    pub(super) fn first(&self, peer: Peer, envelope: Envelope) -> Option<EntryKey> {
        let (first, _) = self.chains.get(Chain { peer, channel: envelope.channel() })?;
        Some(self.key(first))
    }

    /// The messages of a channel, in order.
    pub(super) fn channel(&self, peer: Peer, envelope: Envelope) -> impl Iterator<Item = (EntryKey, &Entry<M, B>)> {
        let at = |index: u32| (index != NONE).then(|| (self.key(index), &self.slots[index as usize]));
        let first = self.chains.get(Chain { peer, channel: envelope.channel() }).map_or(NONE, |(first, _)| first);
        std::iter::successors(at(first), move |(_, entry)| at(entry.next))
    }

    /// True if a message of its channel that came before is still to be read.
    pub(super) fn is_behind_unread(&self, key: EntryKey) -> bool {
        let Some(entry) = self.get(key) else { return false };
        let mut before = self.channel(entry.peer, entry.envelope).take_while(|(other, _)| *other != key);
        before.any(|(_, entry)| matches!(entry.stage, Stage::Wanted(..)))
    }

    /// Adds a message behind those of its channel.
    pub(super) fn push(&mut self, peer: Peer, envelope: Envelope, len: u64, stage: Stage<M, B>) -> EntryKey {
        self.serial = self.serial.wrapping_add(1);
        let serial = self.serial;
        let chain = Chain { peer, channel: envelope.channel() };
        let ends = self.chains.get(chain);
        let before = ends.map_or(NONE, |(_, last)| last);
        let offer = match &stage {
            Stage::Offered(offer) | Stage::Wanted(offer, _) => Some(offer.id),
            Stage::Reading(..) | Stage::Whole(..) | Stage::Lost => None,
        };
        let (is_orphan, next, free) = (false, NONE, None);
        let entry = Entry { peer, envelope, len, stage, is_orphan, offer, serial, before, next, free };
        let index = self.slots.insert(entry) as u32;
        if let Some(id) = offer {
            self.offers.insert(OfferKey(peer, id), index);
        }
        if before != NONE {
            self.slots[before as usize].next = index;
        }
        self.chains.insert(chain, (ends.map_or(index, |(first, _)| first), index));
        EntryKey { index, serial }
    }

    /// Removes a message.
    pub(super) fn remove(&mut self, key: EntryKey) -> Option<Entry<M, B>> {
        self.get(key)?;
        self.claim(key);
        let entry = self.slots.try_remove(key.index as usize)?;
        // A peer that lies may have given its number to another since.
        if let Some(offer) = entry.offer.map(|id| OfferKey(entry.peer, id))
            && self.offers.get(offer) == Some(key.index)
        {
            self.offers.remove(offer);
        }
        let Entry { before, next, .. } = entry;
        if before != NONE {
            self.slots[before as usize].next = next;
        }
        if next != NONE {
            self.slots[next as usize].before = before;
        }
        let chain = Chain { peer: entry.peer, channel: entry.envelope.channel() };
        if let Some((first, last)) = self.chains.get(chain) {
            let first = if first == key.index { next } else { first };
            let last = if last == key.index { before } else { last };
            if first == NONE { self.chains.remove(chain) } else { self.chains.insert(chain, (first, last)) }
        } else {
            debug_assert!(false, "a message that is in no list");
        }
        Some(entry)
    }

    /// A receive may take this message: it joins the free ones, at its place in the order of arrival.
    pub(super) fn release(&mut self, key: EntryKey) {
        if self.get(key).is_none_or(|entry| entry.free.is_some()) {
            return;
        }
        // Nearly always the last: others come back when their receive was cancelled or refused.
        let mut before = self.free.1;
        while before != NONE && self.is_later(self.slots[before as usize].serial, key.serial) {
            before = self.slots[before as usize].free.map_or(NONE, |(before, _)| before);
        }
        let after = match before {
            NONE => self.free.0,
            before => self.slots[before as usize].free.map_or(NONE, |(_, after)| after),
        };
        self.slots[key.index as usize].free = Some((before, after));
        self.join(before, key.index);
        self.join(key.index, after);
    }

    /// No receive may take this message any more, if one could.
    pub(super) fn claim(&mut self, key: EntryKey) {
        if let Some((before, after)) = self.get_mut(key).and_then(|entry| entry.free.take()) {
            self.join(before, after);
        }
    }

    /// Messages that a receive may take, in the order in which they came.
    pub(super) fn free(&self) -> impl Iterator<Item = (EntryKey, &Entry<M, B>)> {
        let at = |index: u32| (index != NONE).then(|| (self.key(index), &self.slots[index as usize]));
        std::iter::successors(at(self.free.0), move |(_, entry)| entry.free.and_then(|(_, after)| at(after)))
    }

    /// The first message of a channel that a receive may take.
    pub(super) fn first_free(&self, peer: Peer, envelope: Envelope) -> Option<EntryKey> {
        self.channel(peer, envelope).find(|(_, entry)| entry.is_free()).map(|(key, _)| key)
    }

    /// True if a receive may take one of them.
    pub(super) fn has_free(&self) -> bool {
        self.free.0 != NONE
    }

    fn key(&self, index: u32) -> EntryKey {
        EntryKey { index, serial: self.slots[index as usize].serial }
    }

    /// Makes two free messages neighbours; `NONE` stands for the end.
    fn join(&mut self, before: u32, after: u32) {
        match before {
            NONE => self.free.0 = after,
            before => self.set_free(before, |ends| ends.1 = after),
        }
        match after {
            NONE => self.free.1 = before,
            after => self.set_free(after, |ends| ends.0 = before),
        }
    }

    fn set_free(&mut self, index: u32, set: impl FnOnce(&mut Ends)) {
        if let Some(ends) = self.slots[index as usize].free.as_mut() {
            set(ends);
        }
    }

    fn is_later(&self, one: u32, other: u32) -> bool {
        one.wrapping_sub(other) < u32::MAX / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::wire::Class;

    /// They choose ports and tags.
    #[test]
    fn no_two_channels_of_a_peer_lie_at_one_place_whatever_the_numbers_drawn() {
        let words =
            |class, port, tag| Chain { peer: Peer(7 | 3 << 32), channel: Envelope { class, port, tag } }.words();
        let mut seen: Vec<_> = (0..=u16::MAX)
            .flat_map(|port| [Class::Active, Class::Request].map(|class| words(class, port, 5)))
            .collect();
        let count = seen.len();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), count);
    }
}
