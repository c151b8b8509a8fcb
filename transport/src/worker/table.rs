//! Queue pair numbers to endpoints: a flat table of open addressing. The numbers are unpredictable, so their low bits
//! spread well.

/// From queue pair number to a small number.
#[derive(Debug)]
pub(crate) struct QpTable {
    entries: Box<[Entry]>,
    used: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    qpn: u32,
    value: u32,
}

const FREE: Entry = Entry { qpn: u32::MAX, value: 0 };

impl Default for QpTable {
    fn default() -> Self {
        QpTable::new()
    }
}

impl QpTable {
    pub(crate) fn new() -> Self {
        QpTable { entries: vec![FREE; 16].into(), used: 0 }
    }

    #[inline]
    pub(crate) fn get(&self, qpn: u32) -> Option<u32> {
        let mask = self.entries.len() - 1;
        let mut at = qpn as usize & mask;
        loop {
            let entry = self.entries[at & mask];
            if entry.qpn == qpn {
                return Some(entry.value);
            }
            if entry.qpn == FREE.qpn {
                return None;
            }
            at += 1;
        }
    }

    pub(crate) fn insert(&mut self, qpn: u32, value: u32) {
        if (self.used + 1) * 4 > self.entries.len() {
            let bigger = vec![FREE; self.entries.len() * 2].into();
            let old = std::mem::replace(&mut self.entries, bigger);
            old.iter().filter(|entry| entry.qpn != FREE.qpn).for_each(|entry| self.place(*entry));
        }
        self.place(Entry { qpn, value });
        self.used += 1;
    }

    /// Removes an entry, and closes the gap so that no search ends too early.
    pub(crate) fn remove(&mut self, qpn: u32) {
        let mask = self.entries.len() - 1;
        let mut at = qpn as usize & mask;
        while self.entries[at].qpn != qpn {
            if self.entries[at].qpn == FREE.qpn {
                return;
            }
            at = (at + 1) & mask;
        }
        self.entries[at] = FREE;
        self.used -= 1;
        let mut next = (at + 1) & mask;
        while self.entries[next].qpn != FREE.qpn {
            let entry = std::mem::replace(&mut self.entries[next], FREE);
            self.place(entry);
            next = (next + 1) & mask;
        }
    }

    fn place(&mut self, entry: Entry) {
        let mask = self.entries.len() - 1;
        let mut at = entry.qpn as usize & mask;
        while self.entries[at].qpn != FREE.qpn {
            at = (at + 1) & mask;
        }
        self.entries[at] = entry;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_agrees_with_a_map(ops in proptest::collection::vec((0u32..40, any::<bool>()), 0..300)) {
            let (mut table, mut map) = (QpTable::new(), BTreeMap::new());
            for (step, (number, add)) in ops.into_iter().enumerate() {
                // Few distinct low bits, so that entries collide.
                let qpn = (number % 5) | (number << 8);
                if add && !map.contains_key(&qpn) {
                    table.insert(qpn, step as u32);
                    map.insert(qpn, step as u32);
                } else if !add {
                    table.remove(qpn);
                    map.remove(&qpn);
                }
                for number in 0..40 {
                    let qpn = (number % 5) | (number << 8);
                    prop_assert_eq!(table.get(qpn), map.get(&qpn).copied());
                }
            }
        }
    }
}
