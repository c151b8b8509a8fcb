//! Operations in the order of their numbers, by which those that wait are found.

use std::collections::VecDeque;

/// Operations in the order of their numbers, each with its slot of a slab; among them some that are over. Whether one is, the slab
/// knows: `is_there` says of an operation and its slot that it is in there still.
#[derive(Debug, Default)]
pub(super) struct Order {
    entries: VecDeque<(u64, u32)>,
}

impl Order {
    /// One more, nearly always the last: numbers are given in ascending order.
    pub(super) fn insert(&mut self, op: u64, slot: usize) {
        let entry = (op, slot as u32);
        if self.entries.back().is_none_or(|&(last, _)| last < op) {
            self.entries.push_back(entry);
        } else {
            let place = self.entries.partition_point(|&(before, _)| before < op);
            self.entries.insert(place, entry);
        }
    }

    /// The slot of an operation, which may be another's if that is over.
    pub(super) fn find(&self, op: u64) -> Option<usize> {
        let place = self.entries.binary_search_by_key(&op, |&(op, _)| op).ok()?;
        Some(self.entries[place].1 as usize)
    }

    /// The least number, of one that is not over: [`tidy`](Order::tidy) was called since one was.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.entries.front().map(|&(op, _)| op)
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }

    /// One is over: sees to it that the first is one that is not, and that not most of those that are kept are, `left` being left.
    pub(super) fn tidy(&mut self, left: usize, is_there: impl Fn(u64, usize) -> bool) {
        while self.entries.front().is_some_and(|&(op, slot)| !is_there(op, slot as usize)) {
            self.entries.pop_front();
        }
        if self.entries.len() > 2 * left + SLACK {
            self.entries.retain(|&(op, slot)| is_there(op, slot as usize));
        }
    }
}

/// Operations that are over and stay in the order before it is worth while to look for them.
const SLACK: usize = 64;

#[cfg(test)]
mod tests {
    use slab::Slab;

    use super::*;

    #[test]
    fn the_oldest_and_each_by_its_number_are_found_whatever_ends_in_between() {
        let (mut order, mut slots) = (Order::default(), Slab::new());
        (0..10_000).for_each(|op| order.insert(op, slots.insert(op)));
        let end = |order: &mut Order, slots: &mut Slab<u64>, op| {
            let slot = order.find(op).expect("it waits");
            assert_eq!(slots.remove(slot), op);
            order.tidy(slots.len(), |op, slot| slots.get(slot) == Some(&op));
        };
        // The first and every thousandth stay.
        (0..10_000).filter(|op| op % 1000 != 0).for_each(|op| end(&mut order, &mut slots, op));
        assert!(order.entries.len() <= 2 * slots.len() + SLACK, "it is bounded by what is left");
        for op in (0..10_000).step_by(1000) {
            assert_eq!(order.oldest(), Some(op));
            end(&mut order, &mut slots, op);
        }
        assert_eq!((order.oldest(), order.entries.len(), order.find(0)), (None, 0, None));
    }
}
