//! From keys to small values: a flat table of open addressing, which allocates only while it grows.

/// A key of a [`Table`].
pub(crate) trait Key: Copy + Eq {
    /// A number whose low bits differ between most keys.
    fn spread(self) -> u64;
}

/// Values by key.
#[derive(Debug)]
pub(crate) struct Table<K, V> {
    entries: Box<[Option<(K, V)>]>,
    used: usize,
}

impl<K: Key, V: Copy> Table<K, V> {
    pub(crate) fn new() -> Self {
        Table { entries: empty(LEAST), used: 0 }
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
        let gone: Vec<_> = self.entries.iter().flatten().filter(|(key, value)| !keep(*key, *value)).copied().collect();
        gone.into_iter().for_each(|(key, _)| self.remove(key));
    }

    /// Where a key is, or the gap at which the search for it ends.
    #[inline]
    fn find(&self, key: K) -> (usize, Option<(K, V)>) {
        let mask = self.entries.len() - 1;
        let mut at = key.spread() as usize & mask;
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
        // Few distinct low bits, so that entries collide.
        fn spread(self) -> u64 {
            u64::from(self % 5)
        }
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_map(ops in proptest::collection::vec((0u32..40, any::<bool>()), 0..300)) {
            let (mut table, mut map) = (Table::new(), BTreeMap::new());
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
        }
    }
}
