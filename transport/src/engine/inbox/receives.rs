//! Posted receives, found by the message that comes: those for one tag of one peer or of any by a table, those for
//! several tags one after the other. The one that was posted first takes the message.

use std::collections::VecDeque;

use slab::Slab;

use super::Peer;
use crate::engine::table::{Key, Seeds, Table};

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
    /// Numbers and places of all, by number, and of others that are gone: at most about as many.
    by_op: VecDeque<(u64, u32)>,
}

#[derive(Debug)]
struct Slot<M> {
    posted: Posted<M>,
    /// Those before and behind it for the same tag of the same peer.
    previous: u32,
    next: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Exact {
    source: Option<Peer>,
    tag: u64,
}

const NONE: u32 = u32::MAX;
/// Places of receives that are gone which are kept until looking for them is worth while.
const SLACK: usize = 64;

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
    fn words(self) -> [u64; 2] {
        [self.source.map_or(0, |Peer(number)| number.wrapping_add(1)), self.tag]
    }
}

impl<M> Receives<M> {
    pub(super) fn new(seeds: Seeds) -> Self {
        Receives {
            slots: Slab::new(),
            exact: Table::new(seeds),
            anyones: 0,
            masked: VecDeque::new(),
            by_op: VecDeque::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Posted<M>> {
        self.slots.iter().map(|(_, slot)| &slot.posted)
    }

    /// Adds a receive, behind all that were posted before it. Nearly always that is behind all others: it may have had a message that
    /// will not come.
    pub(super) fn push(&mut self, posted: Posted<M>) {
        let Pattern { source, tag, mask } = posted.pattern;
        let op = posted.op;
        let index = self.slots.insert(Slot { posted, previous: NONE, next: NONE }) as u32;
        self.number(op, index);
        let is_before = |at: u32| self.slots[at as usize].posted.op < op;
        if mask != u64::MAX {
            let place = self.masked.iter().rposition(|&at| is_before(at)).map_or(0, |before| before + 1);
            return self.masked.insert(place, index);
        }
        self.anyones += usize::from(source.is_none());
        let key = Exact { source, tag };
        let Some((first, last)) = self.exact.get(key) else { return self.exact.insert(key, (index, index)) };
        let earlier = |at: &u32| Some(self.slots[*at as usize].previous).filter(|&previous| previous != NONE);
        let previous = std::iter::successors(Some(last), earlier).find(|&at| is_before(at)).unwrap_or(NONE);
        let next = if previous == NONE { first } else { self.slots[previous as usize].next };
        self.link(index, previous, next);
        let ends = (if previous == NONE { index } else { first }, if next == NONE { index } else { last });
        self.exact.insert(key, ends);
    }

    /// Puts a receive between two of its list, either of which may not be there.
    fn link(&mut self, index: u32, previous: u32, next: u32) {
        let slot = &mut self.slots[index as usize];
        (slot.previous, slot.next) = (previous, next);
        if let Some(slot) = self.slots.get_mut(previous as usize) {
            slot.next = index;
        }
        if let Some(slot) = self.slots.get_mut(next as usize) {
            slot.previous = index;
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

    /// The receive that takes messages of that peer and tag, and whose fit is as asked for: of several the one that was posted first.
    pub(super) fn take_first(&mut self, peer: Peer, tag: u64, is_fit: impl Fn(Fit) -> bool) -> Option<Posted<M>> {
        let fits = |&at: &u32| is_fit(self.slots[at as usize].posted.fit);
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
        let first = self.by_op.partition_point(|&(number, _)| number < op);
        let of_op = self.by_op.range(first..).take_while(|&&(number, _)| number == op);
        let (_, index) = of_op.copied().find(|&entry| self.is_there(entry))?;
        Some(self.remove(index))
    }

    /// Notes the place of a receive. Nearly all come in the order of their numbers.
    fn number(&mut self, op: u64, index: u32) {
        if self.by_op.len() > 2 * self.slots.len() + SLACK {
            let mut by_op = std::mem::take(&mut self.by_op);
            by_op.retain(|&entry| self.is_there(entry));
            self.by_op = by_op;
        }
        match self.by_op.back() {
            Some(&(last, _)) if last > op => {
                let at = self.by_op.partition_point(|&(number, _)| number <= op);
                self.by_op.insert(at, (op, index));
            }
            _ => self.by_op.push_back((op, index)),
        }
    }

    /// True if the receive of that number is at that place.
    fn is_there(&self, (op, index): (u64, u32)) -> bool {
        self.slots.get(index as usize).is_some_and(|slot| slot.posted.op == op)
    }

    /// Takes back the receives that wait for that peer alone.
    pub(super) fn drop_peer(&mut self, peer: Peer, into: &mut Vec<Posted<M>>) {
        let of_peer = |slot: &Slot<M>| slot.posted.pattern.source == Some(peer);
        let gone: Vec<_> = self.slots.iter().filter(|(_, slot)| of_peer(slot)).map(|(at, _)| at as u32).collect();
        into.extend(gone.into_iter().map(|index| self.remove(index)));
    }

    fn remove(&mut self, index: u32) -> Posted<M> {
        let Slot { posted, previous, next } = self.slots.remove(index as usize);
        let Pattern { source, tag, mask } = posted.pattern;
        if mask != u64::MAX {
            self.masked.retain(|&at| at != index);
            return posted;
        }
        self.anyones -= usize::from(source.is_none());
        if let Some(slot) = self.slots.get_mut(previous as usize) {
            slot.next = next;
        }
        if let Some(slot) = self.slots.get_mut(next as usize) {
            slot.previous = previous;
        }
        let key = Exact { source, tag };
        match (previous, next) {
            (NONE, NONE) => self.exact.remove(key),
            (NONE, _) | (_, NONE) => {
                if let Some((first, last)) = self.exact.get(key) {
                    let ends =
                        (if previous == NONE { next } else { first }, if next == NONE { previous } else { last });
                    self.exact.insert(key, ends);
                }
            }
            _ => {}
        }
        posted
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn posted(op: u64, source: Option<u64>, tag: u64, mask: u64) -> Posted<()> {
        let pattern = Pattern { source: source.map(Peer), tag, mask };
        Posted { op, pattern, fit: Fit { limit: u64::MAX, granule: 1 }, staged: false, memory: () }
    }

    /// Each receive that is cancelled costs a search by halves: these would not end otherwise.
    #[test]
    fn a_hundred_thousand_receives_are_cancelled_in_any_order() {
        const COUNT: u64 = 100_000;
        let mut receives = Receives::new(Seeds::SOME);
        (0..COUNT).for_each(|op| receives.push(posted(op, Some(1), op % 3, u64::MAX)));
        // The last first, then those in the middle.
        for op in (0..COUNT).rev().filter(|op| op % 2 == 0).chain((0..COUNT).filter(|op| op % 2 == 1)) {
            assert_eq!(receives.cancel(op).map(|posted| posted.op), Some(op));
            assert_eq!(receives.cancel(op), None);
        }
        assert!(receives.is_empty() && receives.exact.len() == 0);
        // What is gone takes no room once others come.
        receives.push(posted(COUNT, Some(1), 1, u64::MAX));
        assert_eq!(receives.by_op.len(), 1);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Push { op: u64, source: Option<u64>, tag: u64, masked: bool },
        Take { peer: u64, tag: u64 },
        Cancel { op: u64 },
    }

    fn step() -> impl Strategy<Value = Step> {
        let source = prop_oneof![Just(None), (0..3u64).prop_map(Some)];
        prop_oneof![
            (0..60u64, source, 0..3u64, prop::bool::weighted(0.2)).prop_map(|(op, source, tag, masked)| Step::Push {
                op,
                source,
                tag,
                masked
            }),
            (0..3u64, 0..3u64).prop_map(|(peer, tag)| Step::Take { peer, tag }),
            (0..60u64).prop_map(|op| Step::Cancel { op }),
        ]
    }

    proptest! {
        /// Against a plain list. What was posted first has the least number, whenever it comes.
        #[test]
        fn whatever_is_posted_is_taken_or_cancelled_once(steps in prop::collection::vec(step(), 1..400)) {
            let mut receives = Receives::new(Seeds::SOME);
            let mut model: Vec<Posted<()>> = Vec::new();
            for step in steps {
                match step {
                    Step::Push { op, source, tag, masked } => {
                        if model.iter().any(|other| other.op == op) {
                            continue;
                        }
                        let mask = if masked { 0 } else { u64::MAX };
                        receives.push(posted(op, source, tag, mask));
                        model.push(posted(op, source, tag, mask));
                    }
                    Step::Take { peer, tag } => {
                        let takers = model.iter().filter(|it| it.pattern.takes(Peer(peer), tag));
                        let expected = takers.map(|one| one.op).min();
                        prop_assert_eq!(receives.take(Peer(peer), tag).map(|posted| posted.op), expected);
                        model.retain(|it| Some(it.op) != expected);
                    }
                    Step::Cancel { op } => {
                        let there = model.iter().any(|it| it.op == op);
                        prop_assert_eq!(receives.cancel(op).is_some(), there);
                        model.retain(|it| it.op != op);
                    }
                }
                prop_assert_eq!(receives.iter().count(), model.len());
            }
        }
    }
}
