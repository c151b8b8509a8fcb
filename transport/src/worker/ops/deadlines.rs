//! Which operations must be over by when. Their times go with them: an operation that ends leaves nothing behind for long.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use crate::engine::{Key, Seeds, Table};
use crate::worker::ids::OpId;

/// The times of all operations that have one.
#[derive(Debug)]
pub(in crate::worker) struct Deadlines {
    /// The time that counts for each operation.
    due: Table<Number, Duration>,
    /// The same in order, and others that count no more: at most about as many.
    heap: BinaryHeap<Reverse<(Duration, OpId)>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Number(u64);

impl Key for Number {
    fn words(self) -> [u64; 2] {
        [self.0, 0]
    }
}

impl Deadlines {
    pub(in crate::worker) fn new(seeds: Seeds) -> Self {
        Deadlines { due: Table::new(seeds), heap: BinaryHeap::new() }
    }

    #[inline(always)]
    pub(in crate::worker) fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// The first of them.
    pub(in crate::worker) fn next(&self) -> Option<Duration> {
        self.heap.peek().map(|Reverse((due, _))| *due)
    }

    /// The earliest counts of several.
    pub(in crate::worker) fn set(&mut self, op: OpId, due: Duration) {
        if self.due.get(Number(op.number)).is_some_and(|earlier| earlier <= due) {
            return;
        }
        self.due.insert(Number(op.number), due);
        self.heap.push(Reverse((due, op)));
        if self.heap.len() > 2 * self.due.len() + SLACK {
            let Deadlines { due, heap } = self;
            heap.retain(|Reverse((time, op))| due.get(Number(op.number)) == Some(*time));
        }
    }

    /// An operation has ended.
    pub(in crate::worker) fn forget(&mut self, op: OpId) {
        self.due.remove(Number(op.number));
        self.drop_stale();
    }

    /// The next operation whose time is over; it has none any more.
    pub(in crate::worker) fn pop(&mut self, now: Duration) -> Option<OpId> {
        let Reverse((_, op)) = *self.heap.peek().filter(|Reverse((due, _))| *due <= now)?;
        self.forget(op);
        Some(op)
    }

    /// Sees to it that the first counts.
    fn drop_stale(&mut self) {
        while let Some(Reverse((due, op))) = self.heap.peek()
            && self.due.get(Number(op.number)) != Some(*due)
        {
            self.heap.pop();
        }
    }
}

/// Times that count no more, and are kept until looking for them is worth while.
const SLACK: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn op(number: u64) -> OpId {
        OpId { number, index: 0 }
    }

    #[test]
    fn what_has_ended_has_no_deadline_and_takes_no_memory() {
        let mut deadlines = Deadlines::new(Seeds::SOME);
        let hour = Duration::from_secs(3600);
        deadlines.set(op(1), Duration::from_secs(1));
        for number in 2..100_000 {
            deadlines.set(op(number), hour);
            deadlines.forget(op(number));
        }
        assert!(deadlines.heap.len() <= 2 + SLACK && deadlines.due.len() == 1);
        assert_eq!(deadlines.next(), Some(Duration::from_secs(1)));
        deadlines.forget(op(1));
        assert!(deadlines.is_empty() && deadlines.pop(hour).is_none());
    }

    #[test]
    fn the_earliest_counts_and_each_once() {
        let mut deadlines = Deadlines::new(Seeds::SOME);
        let second = Duration::from_secs(1);
        for (number, due) in [(1, 5), (2, 3), (1, 2), (1, 4), (3, 9)] {
            deadlines.set(op(number), due * second);
        }
        assert_eq!(deadlines.next(), Some(2 * second));
        assert_eq!(deadlines.pop(second), None);
        let popped = [(); 3].map(|()| deadlines.pop(6 * second).map(|op| op.number));
        assert_eq!(popped, [Some(1), Some(2), None]);
        assert_eq!(deadlines.next(), Some(9 * second));
    }
}
