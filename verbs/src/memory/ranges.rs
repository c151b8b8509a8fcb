//! An allocator of ranges: which parts of a mapping are free. First fit, with neighbours joined again.

use std::collections::BTreeMap;

/// Free ranges of an address space that starts at 0.
#[derive(Debug)]
pub(crate) struct Ranges {
    /// Start of a free range to its length; no two touch.
    free: BTreeMap<usize, usize>,
    capacity: usize,
}

impl Ranges {
    /// All of `0..capacity` but the first `reserved` bytes is free.
    pub(crate) fn new(reserved: usize, capacity: usize) -> Self {
        let mut free = BTreeMap::new();
        if reserved < capacity {
            free.insert(reserved, capacity - reserved);
        }
        Ranges { free, capacity }
    }

    /// Takes `len` bytes at a multiple of `align` (a power of two).
    pub(crate) fn take(&mut self, len: usize, align: usize) -> Option<usize> {
        debug_assert!(align.is_power_of_two() && len > 0);
        let (start, free, at) = self.free.iter().find_map(|(&start, &free)| {
            let at = start.checked_next_multiple_of(align)?;
            let end = at.checked_add(len)?;
            (end <= start + free).then_some((start, free, at))
        })?;
        self.free.remove(&start);
        if at > start {
            self.free.insert(start, at - start);
        }
        let rest = start + free - (at + len);
        if rest > 0 {
            self.free.insert(at + len, rest);
        }
        Some(at)
    }

    /// Gives a range back that `take` gave out.
    pub(crate) fn give(&mut self, mut start: usize, mut len: usize) {
        debug_assert!(start + len <= self.capacity);
        if let Some((&before, &before_len)) = self.free.range(..start).next_back() {
            debug_assert!(before + before_len <= start, "given back twice");
            if before + before_len == start {
                self.free.remove(&before);
                start = before;
                len += before_len;
            }
        }
        if let Some(after_len) = self.free.remove(&(start + len)) {
            len += after_len;
        }
        self.free.insert(start, len);
    }

    /// True if nothing is taken but the reserved start.
    #[cfg(test)]
    pub(crate) fn is_untouched(&self, reserved: usize) -> bool {
        self.free.len() == 1 && self.free.get(&reserved) == Some(&(self.capacity - reserved))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn given_out_ranges_never_overlap_and_all_comes_back(
            ops in proptest::collection::vec((1usize..400, 0u32..8, any::<bool>()), 1..200)
        ) {
            let mut ranges = Ranges::new(64, 8192);
            let mut held: Vec<(usize, usize)> = Vec::new();
            for (len, align, drop_one) in ops {
                if drop_one && !held.is_empty() {
                    let (start, len) = held.swap_remove(len % held.len());
                    ranges.give(start, len);
                } else if let Some(start) = ranges.take(len, 1 << align) {
                    prop_assert!(start.is_multiple_of(1 << align) && start >= 64 && start + len <= 8192);
                    for &(other, other_len) in &held {
                        prop_assert!(start + len <= other || other + other_len <= start);
                    }
                    held.push((start, len));
                }
            }
            for (start, len) in held {
                ranges.give(start, len);
            }
            prop_assert!(ranges.is_untouched(64));
        }
    }
}
