//! Posted receives, found by the message that comes: those for one tag of one peer or of any by a table, those for
//! several tags one after the other. The one that was posted first takes the message.

use std::collections::VecDeque;

use slab::Slab;

use super::Peer;
use crate::engine::table::{Key, Table};

/// Which messages a receive takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    /// Of whom; of anyone if there is none.
    pub(crate) source: Option<Peer>,
    pub(crate) tag: u64,
    /// Which bits of the tag count.
    pub(crate) mask: u64,
}

/// Which lengths a posted receive takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fit {
    /// Greatest length in bytes.
    pub(crate) limit: u64,
    /// The length must be a multiple of this.
    pub(crate) granule: u32,
}

/// A receive.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Posted<M> {
    /// Later ones have greater numbers.
    pub(crate) op: u64,
    pub(crate) pattern: Pattern,
    pub(crate) fit: Fit,
    /// A payload is read into memory of the transport's own first.
    pub(crate) staged: bool,
    pub(crate) memory: M,
}

/// All receives that wait for a message.
#[derive(Debug)]
pub(super) struct Receives<M> {
    slots: Slab<Slot<M>>,
    /// Those whose whole tag counts: the first and the last for each.
    exact: Table<Exact, (u32, u32)>,
    /// Of these, those that take any peer's messages.
    anyones: usize,
    /// The others, as posted.
    masked: VecDeque<u32>,
}

#[derive(Debug)]
struct Slot<M> {
    posted: Posted<M>,
    /// The next for the same tag of the same peer.
    next: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Exact {
    source: Option<Peer>,
    tag: u64,
}

const NONE: u32 = u32::MAX;

impl Pattern {
    /// True if a message of that peer and tag is one of them.
    pub(crate) fn takes(&self, peer: Peer, tag: u64) -> bool {
        self.source.is_none_or(|source| source == peer) && (tag ^ self.tag) & self.mask == 0
    }

    /// True if it stands for one tag of one peer.
    pub(super) fn is_single(&self) -> Option<(Peer, u64)> {
        self.source.filter(|_| self.mask == u64::MAX).map(|source| (source, self.tag))
    }
}

impl Fit {
    pub(crate) fn takes(&self, len: u64) -> bool {
        len <= self.limit && (self.granule <= 1 || len.is_multiple_of(u64::from(self.granule)))
    }
}

impl Key for Exact {
    fn spread(self) -> u64 {
        let source = self.source.map_or(0, |Peer(number)| number.wrapping_add(1));
        super::mix(source, self.tag)
    }
}

impl<M> Receives<M> {
    pub(super) fn new() -> Self {
        Receives { slots: Slab::new(), exact: Table::new(), anyones: 0, masked: VecDeque::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Posted<M>> {
        self.slots.iter().map(|(_, slot)| &slot.posted)
    }

    /// Adds a receive, behind all others.
    pub(super) fn push(&mut self, posted: Posted<M>) {
        let Pattern { source, tag, mask } = posted.pattern;
        let index = self.slots.insert(Slot { posted, next: NONE }) as u32;
        if mask != u64::MAX {
            return self.masked.push_back(index);
        }
        self.anyones += usize::from(source.is_none());
        let key = Exact { source, tag };
        match self.exact.get(key) {
            Some((first, last)) => {
                self.slots[last as usize].next = index;
                self.exact.insert(key, (first, index));
            }
            None => self.exact.insert(key, (index, index)),
        }
    }

    /// The receive that takes a message of that peer and tag: of several the one that was posted first.
    pub(super) fn take(&mut self, peer: Peer, tag: u64) -> Option<Posted<M>> {
        if self.slots.is_empty() {
            return None;
        }
        let exact = |source| self.exact.get(Exact { source, tag }).map(|(first, _)| first);
        let anyones = if self.anyones > 0 { exact(None) } else { None };
        let masked = self.masked.iter().copied().find(|&at| self.slots[at as usize].posted.pattern.takes(peer, tag));
        let candidates = [exact(Some(peer)), anyones, masked];
        let first = candidates.into_iter().flatten().min_by_key(|&at| self.slots[at as usize].posted.op)?;
        Some(self.remove(first))
    }

    /// The receive that takes a message of that peer and tag, and of that length: of several the one that was posted first.
    pub(super) fn take_fitting(&mut self, peer: Peer, tag: u64, len: u64) -> Option<Posted<M>> {
        let fits = |&at: &u32| self.slots[at as usize].posted.fit.takes(len);
        let next = |&at: &u32| Some(self.slots[at as usize].next).filter(|&next| next != NONE);
        let exact = |source| {
            let first = self.exact.get(Exact { source, tag }).map(|(first, _)| first);
            std::iter::successors(first, next).find(fits)
        };
        let takes = |at: &u32| self.slots[*at as usize].posted.pattern.takes(peer, tag);
        let masked = self.masked.iter().copied().find(|at| takes(at) && fits(at));
        let candidates = [exact(Some(peer)), exact(None), masked];
        let first = candidates.into_iter().flatten().min_by_key(|&at| self.slots[at as usize].posted.op)?;
        Some(self.remove(first))
    }

    /// Takes back the receive of that number.
    pub(super) fn cancel(&mut self, op: u64) -> Option<Posted<M>> {
        let (index, _) = self.slots.iter().find(|(_, slot)| slot.posted.op == op)?;
        Some(self.remove(index as u32))
    }

    /// Takes back the receives that wait for that peer alone.
    pub(super) fn drop_peer(&mut self, peer: Peer, into: &mut Vec<Posted<M>>) {
        let of_peer = |slot: &Slot<M>| slot.posted.pattern.source == Some(peer);
        let gone: Vec<_> = self.slots.iter().filter(|(_, slot)| of_peer(slot)).map(|(at, _)| at as u32).collect();
        into.extend(gone.into_iter().map(|index| self.remove(index)));
    }

    fn remove(&mut self, index: u32) -> Posted<M> {
        let Slot { posted, next } = self.slots.remove(index as usize);
        let Pattern { source, tag, mask } = posted.pattern;
        if mask != u64::MAX {
            self.masked.retain(|&at| at != index);
            return posted;
        }
        self.anyones -= usize::from(source.is_none());
        let key = Exact { source, tag };
        match self.exact.get(key) {
            Some((first, last)) if first == index && last == index => self.exact.remove(key),
            Some((first, last)) if first == index => self.exact.insert(key, (next, last)),
            Some((first, last)) => {
                let mut before = first;
                while self.slots[before as usize].next != index {
                    before = self.slots[before as usize].next;
                }
                self.slots[before as usize].next = next;
                self.exact.insert(key, (first, if last == index { before } else { last }));
            }
            None => debug_assert!(false, "a receive that is in no list"),
        }
        posted
    }
}
