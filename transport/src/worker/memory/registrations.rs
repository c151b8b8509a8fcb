//! `Bytes` of the application's that peers may read where they lie. Those that were sent stay registered for a while, since
//! programs send the same again and registering takes a NIC longer than sending.
//!
//! No hook into the allocator is needed for that: a registration holds a part of the `Bytes`, so that their memory stays what
//! it was, and whatever lies within it is a part of the same.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use qpair_verbs::{BytesRegion, MemoryError, ProtectionDomain, RemoteSlice, Rkey};
use slab::Slab;

use super::chain::Chain;

/// A registration in use; to be [released](Registrations::release).
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct InUse(u32);

#[derive(Debug)]
pub(crate) struct Registrations {
    pd: ProtectionDomain,
    entries: Slab<Entry>,
    /// Address and number of each, by address.
    places: Vec<(usize, u32)>,
    /// What the application registered, by address and length, each with its number; as often as it did.
    kept: Vec<(usize, usize, u32)>,
    /// Bytes that may stay registered without being used.
    limit: usize,
    /// Bytes of those that are neither used nor kept.
    idle: usize,
    /// These, those first that have been for longest.
    idlers: Chain,
    /// Uses so far, and those of one period and of two ago: what was not used since is old.
    clock: u64,
    periods: [u64; 2],
    period_ends: Duration,
    /// The longest there was: how far before an address a registration of it may begin.
    longest: usize,
    /// Where the next look for those that nobody can send again begins.
    hand: usize,
    /// Revoked, with a peer in the middle of reading.
    leaving: VecDeque<BytesRegion>,
    made: u64,
    reused: u64,
}

#[derive(Debug)]
struct Entry {
    region: BytesRegion,
    /// Payloads that a peer may be reading.
    users: u32,
    /// The application registered it, so many times.
    kept: u32,
    used: u64,
}

impl Entry {
    fn is_idle(&self) -> bool {
        self.users == 0 && self.kept == 0
    }

    fn covers(&self, address: usize, len: usize) -> bool {
        let bytes = self.region.bytes();
        let start = bytes.as_ptr().addr();
        address >= start && address - start <= bytes.len() && len <= bytes.len() - (address - start)
    }
}

impl Registrations {
    /// `limit`: bytes that may stay registered when nobody uses them.
    pub(crate) fn new(pd: &ProtectionDomain, limit: usize) -> Self {
        Registrations {
            pd: pd.clone(),
            entries: Slab::new(),
            places: Vec::new(),
            kept: Vec::new(),
            limit,
            idle: 0,
            idlers: Chain::new(),
            clock: 0,
            periods: [0; 2],
            period_ends: Duration::ZERO,
            longest: 0,
            hand: 0,
            leaving: VecDeque::new(),
            made: 0,
            reused: 0,
        }
    }

    /// Registrations that were made, and times that one was used again.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.made, self.reused)
    }

    /// Makes `bytes` readable for peers, or finds that they are.
    ///
    /// # Errors
    /// [`MemoryError`] as the device refuses them, also after those that are not used were let go of.
    pub(crate) fn acquire(&mut self, bytes: &Bytes) -> Result<(InUse, RemoteSlice), MemoryError> {
        let index = self.find_or_make(bytes)?;
        Ok(self.take(index, bytes))
    }

    /// The same, if they are readable already.
    pub(crate) fn acquire_registered(&mut self, bytes: &Bytes) -> Option<(InUse, RemoteSlice)> {
        let index = self.find(bytes)?;
        self.touch(index);
        Some(self.take(index, bytes))
    }

    fn take(&mut self, index: u32, bytes: &Bytes) -> (InUse, RemoteSlice) {
        let entry = &mut self.entries[index as usize];
        if entry.is_idle() {
            self.idle -= entry.region.len();
            self.idlers.remove(index);
        }
        entry.users += 1;
        let start = bytes.as_ptr().addr() - entry.region.bytes().as_ptr().addr();
        (InUse(index), entry.region.remote(start..start + bytes.len()))
    }

    /// The key that peers present to the device of that domain.
    pub(crate) fn rkey_in(&self, InUse(index): &InUse, domain: &ProtectionDomain) -> Option<Rkey> {
        self.entries.get(*index as usize)?.region.rkey_in(domain)
    }

    /// A peer reads them no more.
    pub(crate) fn release(&mut self, InUse(index): InUse) {
        let Some(entry) = self.entries.get_mut(index as usize) else { return };
        entry.users -= 1;
        self.settle(index);
    }

    /// Keeps `bytes` registered until they are [forgotten](Registrations::forget).
    ///
    /// # Errors
    /// As [`acquire`](Registrations::acquire).
    pub(crate) fn keep(&mut self, bytes: &Bytes) -> Result<(), MemoryError> {
        let index = self.find_or_make(bytes)?;
        let entry = &mut self.entries[index as usize];
        if entry.is_idle() {
            self.idle -= entry.region.len();
            self.idlers.remove(index);
        }
        entry.kept += 1;
        let kept = (bytes.as_ptr().addr(), bytes.len(), index);
        let place = self.kept.partition_point(|other| *other < kept);
        self.kept.insert(place, kept);
        Ok(())
    }

    /// Takes one [`keep`](Registrations::keep) of just these bytes back. False if there is none.
    pub(crate) fn forget(&mut self, bytes: &Bytes) -> bool {
        let (address, len) = (bytes.as_ptr().addr(), bytes.len());
        let place = self.kept.partition_point(|&(start, of, _)| (start, of) < (address, len));
        if self.kept.get(place).is_none_or(|&(start, of, _)| (start, of) != (address, len)) {
            return false;
        }
        let (_, _, index) = self.kept.remove(place);
        let entry = &mut self.entries[index as usize];
        entry.kept -= 1;
        if entry.is_idle() {
            self.remove(index);
        }
        true
    }

    /// Lets go of all that was not used for a while: of what the application has dropped, not all tells.
    pub(crate) fn age(&mut self, now: Duration) {
        if now < self.period_ends {
            return;
        }
        self.period_ends = now.saturating_add(PERIOD);
        let old = self.periods[1];
        self.periods = [self.clock, self.periods[0]];
        let is_old = |entry: &Entry| entry.is_idle() && entry.used <= old;
        let gone: Vec<_> = self.entries.iter().filter(|(_, entry)| is_old(entry)).map(|(index, _)| index).collect();
        for index in gone {
            self.remove_idle(index as u32);
        }
    }

    /// Lets go of some that nobody can send again, since the application has dropped them; and of memory that peers have left.
    pub(crate) fn look_around(&mut self) {
        for _ in 0..LOOKS.min(self.entries.len()) {
            self.hand = if self.hand + 1 >= self.places.len() { 0 } else { self.hand + 1 };
            let Some(&(_, index)) = self.places.get(self.hand) else { break };
            let entry = &self.entries[index as usize];
            if entry.is_idle() && entry.region.bytes().is_unique() {
                self.remove_idle(index);
            }
        }
        for _ in 0..LOOKS.min(self.leaving.len()) {
            if let Some(region) = self.leaving.pop_front() {
                self.revoke(region);
            }
        }
    }

    /// Lets go of all that nobody uses: memory of the worker's own may be among it, which messages that are passed on lie in.
    pub(crate) fn let_go(&mut self) {
        self.shrink(0);
    }

    /// True if peers are in memory that is revoked.
    pub(crate) fn has_chores(&self) -> bool {
        !self.leaving.is_empty()
    }

    fn find_or_make(&mut self, bytes: &Bytes) -> Result<u32, MemoryError> {
        if let Some(index) = self.find(bytes) {
            self.touch(index);
            return Ok(index);
        }
        self.look_around();
        let region = match self.pd.expose_bytes(bytes.clone()) {
            Ok(region) => region,
            // Keys, locked memory, or what else the device has no more of: perhaps it is here.
            Err(_) if self.idle > 0 => {
                self.shrink(0);
                self.pd.expose_bytes(bytes.clone())?
            }
            Err(error) => return Err(error),
        };
        self.made += 1;
        self.clock += 1;
        self.idle += region.len();
        self.longest = self.longest.max(region.len());
        let address = bytes.as_ptr().addr();
        let index = self.entries.insert(Entry { region, users: 0, kept: 0, used: self.clock }) as u32;
        self.idlers.push(index);
        let place = self.places.partition_point(|&(other, _)| other <= address);
        self.places.insert(place, (address, index));
        Ok(index)
    }

    fn touch(&mut self, index: u32) {
        self.reused += 1;
        self.clock += 1;
        self.entries[index as usize].used = self.clock;
    }

    /// A registration that `bytes` lie within: any that the application asked for, or of the others one of the nearest.
    fn find(&self, bytes: &Bytes) -> Option<u32> {
        let (address, len) = (bytes.as_ptr().addr(), bytes.len());
        let covers = |index: &u32| self.entries.get(*index as usize).is_some_and(|entry| entry.covers(address, len));
        let near_enough = |start: usize| address - start <= self.longest;
        let end = self.kept.partition_point(|&(start, ..)| start <= address);
        let kept = self.kept[..end].iter().rev().take_while(|(start, ..)| near_enough(*start));
        let end = self.places.partition_point(|&(start, _)| start <= address);
        let others = self.places[..end].iter().rev().take(LOOKS).take_while(|(start, _)| near_enough(*start));
        kept.map(|&(_, _, index)| index).chain(others.map(|&(_, index)| index)).find(covers)
    }

    /// One that may be unused now stays, or makes room.
    fn settle(&mut self, index: u32) {
        let entry = &self.entries[index as usize];
        if entry.is_idle() {
            self.idle += entry.region.len();
            self.idlers.push(index);
            self.shrink(self.limit);
        }
    }

    /// Lets go of unused ones until no more than so many bytes are left: those first that were unused for longest.
    fn shrink(&mut self, limit: usize) {
        while self.idle > limit
            && let Some(index) = self.idlers.first()
        {
            self.remove_idle(index);
        }
    }

    /// Lets go of one that nobody uses.
    fn remove_idle(&mut self, index: u32) {
        self.idle -= self.entries[index as usize].region.len();
        self.idlers.remove(index);
        self.remove(index);
    }

    fn remove(&mut self, index: u32) {
        let Some(entry) = self.entries.try_remove(index as usize) else { return };
        let address = entry.region.bytes().as_ptr().addr();
        let first = self.places.partition_point(|&(other, _)| other < address);
        if let Some(at) = self.places[first..].iter().position(|&(_, other)| other == index) {
            self.places.remove(first + at);
        }
        self.revoke(entry.region);
    }

    fn revoke(&mut self, region: BytesRegion) {
        if let Err(failed) = region.try_revoke() {
            self.leaving.push_back(failed.region);
        }
    }
}

impl Drop for Registrations {
    /// A peer that is stopped in the middle of reading is waited for once, and not for each.
    fn drop(&mut self) {
        let regions = self.entries.drain().map(|entry| entry.region).chain(self.leaving.drain(..));
        let stuck: Vec<_> = regions.filter_map(|region| region.try_revoke().err()).collect();
        let mut waited = false;
        for failed in stuck {
            let left = if waited { failed.region.try_revoke() } else { failed.region.revoke() };
            if let Err(failed) = left {
                waited = true;
                tracing::error!(len = failed.region.len(), "a peer is in the middle of reading; the memory is leaked");
                std::mem::forget(failed.region);
            }
        }
    }
}

/// What was not used for one to two of these is let go of.
const PERIOD: Duration = Duration::from_secs(10);
/// Registrations that are looked at in one go.
const LOOKS: usize = 8;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use qpair_verbs::Context;

    use super::*;

    fn registrations(limit: usize) -> Registrations {
        Registrations::new(&Context::open("soft0").unwrap().alloc_pd().unwrap(), limit)
    }

    fn bytes(len: usize) -> Bytes {
        vec![1; len].into()
    }

    #[test]
    fn what_was_sent_is_found_again_and_so_is_each_part_of_it() {
        let mut all = registrations(10_000);
        let whole = bytes(5000);
        let (first, remote) = all.acquire(&whole).unwrap();
        let (second, part) = all.acquire(&whole.slice(100..300)).unwrap();
        assert_eq!((all.counts(), part), ((1, 1), remote.slice(100..300)));
        all.release(first);
        all.release(second);
        let (third, again) = all.acquire(&whole.slice(4999..)).unwrap();
        assert_eq!((all.counts(), again.rkey), ((1, 2), remote.rkey));
        all.release(third);
    }

    #[test]
    fn the_least_recently_used_make_room_and_those_in_use_never_do() {
        let mut all = registrations(1500);
        let sent: Vec<_> = (0..4).map(|_| bytes(1000)).collect();
        let (used, _) = all.acquire(&sent[0]).unwrap();
        for bytes in &sent[1..] {
            let (one, _) = all.acquire(bytes).unwrap();
            all.release(one);
        }
        assert_eq!((all.entries.len(), all.idle), (2, 1000));
        let made = |all: &mut Registrations, bytes: &Bytes| {
            let before = all.counts().0;
            let (one, _) = all.acquire(bytes).unwrap();
            all.release(one);
            all.counts().0 - before
        };
        assert_eq!([0, 3, 1].map(|at| made(&mut all, &sent[at])), [0, 0, 1]);
        all.release(used);
        assert_eq!((all.entries.len(), all.idle), (1, 1000));
        assert!(sent[2].is_unique() && !sent[0].is_unique() || !sent[1].is_unique());
    }

    proptest! {
        /// Whatever is done, those that nobody uses are known, and their bytes.
        #[test]
        fn those_that_are_idle_are_counted_and_let_go_of_in_order(
            steps in prop::collection::vec((0..5u8, 0..12usize), 1..150),
        ) {
            let mut all = registrations(3000);
            let sent: Vec<_> = (0..12).map(|at| bytes(300 + 100 * at)).collect();
            let mut used = Vec::new();
            for (what, at) in steps {
                match what {
                    0 => used.push(all.acquire(&sent[at]).unwrap().0),
                    1 if !used.is_empty() => {
                        let one = used.swap_remove(at % used.len());
                        all.release(one);
                    }
                    2 => all.keep(&sent[at]).unwrap(),
                    3 => {
                        all.forget(&sent[at]);
                    }
                    4 if at == 0 => all.let_go(),
                    _ => all.look_around(),
                }
                let idle: Vec<_> = all.entries.iter().filter(|(_, entry)| entry.is_idle()).collect();
                prop_assert_eq!(all.idle, idle.iter().map(|(_, entry)| entry.region.len()).sum::<usize>());
                prop_assert!(all.idle <= 3000 && all.places.len() == all.entries.len());
                prop_assert_eq!(all.idlers.first().is_some(), !idle.is_empty());
            }
            used.into_iter().for_each(|one| all.release(one));
            all.let_go();
            prop_assert_eq!((all.idle, all.idlers.first()), (0, None));
            prop_assert!(all.entries.iter().all(|(_, entry)| entry.kept > 0));
        }
    }

    #[test]
    fn what_the_application_dropped_is_let_go_of() {
        let mut all = registrations(1 << 20);
        for _ in 0..5 {
            let (one, _) = all.acquire(&bytes(1000)).unwrap();
            all.release(one);
        }
        all.look_around();
        assert_eq!((all.entries.len(), all.idle, all.places.len()), (0, 0, 0));
    }

    #[test]
    fn what_is_kept_stays_until_it_is_forgotten() {
        let mut all = registrations(0);
        let kept = bytes(3000);
        all.keep(&kept).unwrap();
        for _ in 0..3 {
            let (one, _) = all.acquire(&kept.slice(7..)).unwrap();
            all.release(one);
        }
        all.look_around();
        assert_eq!(all.counts(), (1, 3));
        assert!(all.forget(&kept) && !all.forget(&kept));
        assert!(kept.is_unique());
    }

    #[test]
    fn whatever_was_registered_is_found_among_many_and_taken_back_as_it_was() {
        let mut all = registrations(1 << 20);
        let whole = bytes(100_000);
        let parts: Vec<_> = (0..40).map(|at| whole.slice(at * 1000..at * 1000 + 500)).collect();
        for part in &parts {
            all.keep(part).unwrap();
        }
        all.keep(&whole).unwrap();
        let made = all.counts().0;
        let (one, _) = all.acquire(&whole.slice(39_600..99_000)).unwrap();
        assert_eq!(all.counts().0, made, "more than forty begin in between");
        all.release(one);
        // One from the same address is another.
        assert!(all.forget(&parts[0]) && !all.forget(&parts[0]));
        assert!(all.forget(&whole) && !all.forget(&whole));
        assert!(parts[1..].iter().all(|part| all.forget(part)));
        assert!(all.entries.is_empty() && all.kept.is_empty());
    }

    #[test]
    fn what_is_not_used_any_more_ages_also_where_nothing_tells_that_it_was_dropped() {
        let mut all = registrations(1 << 20);
        let whole = bytes(10_000);
        let used = bytes(1000);
        for part in [whole.slice(..4000), whole.slice(5000..)] {
            let (one, _) = all.acquire(&part).unwrap();
            all.release(one);
        }
        drop(whole);
        for seconds in 1..=4 {
            let (one, _) = all.acquire(&used).unwrap();
            all.release(one);
            all.age(PERIOD * seconds);
        }
        assert_eq!((all.entries.len(), all.idle), (1, 1000));
        assert_eq!(all.counts().0, 3);
    }

    #[test]
    fn one_that_is_used_when_it_is_forgotten_goes_with_its_last_use() {
        let mut all = registrations(0);
        let kept = bytes(3000);
        all.keep(&kept).unwrap();
        let (one, _) = all.acquire(&kept).unwrap();
        assert!(all.forget(&kept));
        assert_eq!(all.entries.len(), 1);
        all.release(one);
        assert!(all.entries.is_empty() && kept.is_unique());
    }
}
