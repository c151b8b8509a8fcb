//! From keys to small values: a flat table of open addressing, which allocates only while it grows.
//!
//! Peers choose parts of keys. Where one lies follows from numbers that nobody else knows, so that nobody can have many lie at one
//! place.

/// Random numbers that say where keys lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seeds(pub(crate) [u64; 2]);

#[cfg(test)]
impl Seeds {
    /// As if they were drawn.
    pub(crate) const SOME: Seeds = Seeds([0x9e37_79b9_7f4a_7c15, 0xd1b5_4a32_d192_ed03]);
}

/// A key of a [`Table`].
pub(crate) trait Key: Copy + Eq {
    /// Two numbers that it stands for. Nobody can choose many keys that have both alike.
    fn words(self) -> [u64; 2];

    /// A number whose low bits say where it lies in a table with these numbers.
    #[inline(always)]
    fn home(self, Seeds([first, second]): Seeds) -> u64 {
        let [one, other] = self.words();
        finish(fold(one ^ first, other ^ second))
    }
}

/// Values by key.
#[derive(Debug)]
pub(crate) struct Table<K, V> {
    entries: Box<[Option<(K, V)>]>,
    used: usize,
    seeds: Seeds,
}

impl<K: Key, V: Copy> Table<K, V> {
    pub(crate) fn new(seeds: Seeds) -> Self {
        Table { entries: empty(LEAST), used: 0, seeds }
    }

    #[inline]
    pub(crate) fn get(&self, key: K) -> Option<V> {
        let (_, entry) = self.find(key);
        entry.map(|(_, value)| value)
    }

    /// Sets the value of a key.
    pub(crate) fn insert(&mut self, key: K, value: V) {
        if let (at, Some(_)) = self.find(key) {
            self.entries[at] = Some((key, value));
            return;
        }
        if (self.used + 1) * 2 > self.entries.len() {
            let bigger = empty(self.entries.len() * 2);
            let old = std::mem::replace(&mut self.entries, bigger);
            old.into_iter().flatten().for_each(|entry| self.place(entry));
        }
        self.place((key, value));
        self.used += 1;
    }

    /// Removes a key, and closes the gap so that no search ends too early.
    pub(crate) fn remove(&mut self, key: K) {
        let mask = self.entries.len() - 1;
        let (at, Some(_)) = self.find(key) else { return };
        self.entries[at] = None;
        self.used -= 1;
        let mut next = (at + 1) & mask;
        while let Some(entry) = self.entries[next].take() {
            self.place(entry);
            next = (next + 1) & mask;
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.used
    }

    /// Removes the keys of which `keep` says no.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(K, V) -> bool) {
        let kept: Vec<_> = self.entries.iter().flatten().filter(|(key, value)| keep(*key, *value)).copied().collect();
        if kept.len() < self.used {
            self.used = kept.len();
            self.entries.fill(None);
            kept.into_iter().for_each(|entry| self.place(entry));
        }
    }

    /// Where a key is, or the gap at which the search for it ends.
    #[inline]
    fn find(&self, key: K) -> (usize, Option<(K, V)>) {
        let mask = self.entries.len() - 1;
        let mut at = key.home(self.seeds) as usize & mask;
        loop {
            match self.entries[at] {
                Some(entry) if entry.0 == key => return (at, Some(entry)),
                Some(_) => at = (at + 1) & mask,
                None => return (at, None),
            }
        }
    }

    fn place(&mut self, entry: (K, V)) {
        let (at, _) = self.find(entry.0);
        self.entries[at] = Some(entry);
    }
}

/// The product of two numbers, its halves laid over each other, so that each bit depends on all of both.
#[inline(always)]
const fn fold(one: u64, other: u64) -> u64 {
    let product = one as u128 * other as u128;
    product as u64 ^ (product >> 64) as u64
}

/// A number whose low bits depend on all of another, without any order that is in a row of such.
#[inline(always)]
const fn finish(mixed: u64) -> u64 {
    // The last steps of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

fn empty<K: Copy, V: Copy>(len: usize) -> Box<[Option<(K, V)>]> {
    vec![None; len].into()
}

/// Entries at first; at most half of them are in use.
const LEAST: usize = 16;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    impl Key for u32 {
        // Few distinct ones, so that entries collide.
        fn words(self) -> [u64; 2] {
            [u64::from(self % 5), 0]
        }
    }

    impl Key for [u64; 2] {
        fn words(self) -> [u64; 2] {
            self
        }
    }

    /// Keys of which peers choose one word, all alike but for some bits; and numbers in their order.
    #[test]
    fn no_keys_are_looked_for_long() {
        for (shift, in_first) in (0..60_u32).flat_map(|shift| [(shift, true), (shift, false)]) {
            let seeds =
                [u64::from(shift).wrapping_mul(0x9e37_79b9_7f4a_7c15), 0x0123_4567_89ab_cdef ^ u64::from(in_first)];
            let mut table = Table::new(Seeds(seeds));
            for number in 0..1 << (64 - shift).min(12) {
                table.insert(if in_first { [number << shift, 7] } else { [7, number << shift] }, ());
            }
            // The longest row of entries without a gap, which a search, or a removal, goes along at most.
            let rows = table.entries.split(Option::is_none).map(<[_]>::len);
            assert!(rows.max() < Some(200), "{shift}, {in_first}");
        }
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_map(ops in proptest::collection::vec((0u32..40, any::<bool>()), 0..300)) {
            let (mut table, mut map) = (Table::new(Seeds::SOME), BTreeMap::new());
            for (step, (key, add)) in ops.into_iter().enumerate() {
                if add {
                    table.insert(key, step);
                    map.insert(key, step);
                } else {
                    table.remove(key);
                    map.remove(&key);
                }
                for key in 0..40 {
                    prop_assert_eq!(table.get(key), map.get(&key).copied());
                }
            }
            table.retain(|key, _| key % 3 == 0);
            map.retain(|key, _| key % 3 == 0);
            for key in 0..40 {
                prop_assert_eq!((table.get(key), table.len()), (map.get(&key).copied(), map.len()));
            }
        }
    }
}
