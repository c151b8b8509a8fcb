//! When connections have something to do that nothing else tells of.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// The times of all connections, and whose turn it is to be looked at.
#[derive(Debug, Default)]
pub(super) struct Timers {
    /// Times and indices; one of each connection counts, see [`Endpoint::timer`](super::endpoint::Endpoint::timer).
    heap: BinaryHeap<Reverse<(Duration, u32)>>,
    cursor: usize,
}

impl Timers {
    /// The first time.
    pub(super) fn next(&self) -> Option<Duration> {
        self.heap.peek().map(|Reverse((due, _))| *due)
    }

    pub(super) fn push(&mut self, due: Duration, index: u32) {
        self.heap.push(Reverse((due, index)));
    }

    /// True if most of it does not count any more: where a connection is due sooner again and again, its later times stay.
    pub(super) fn is_crowded(&self, connections: usize) -> bool {
        self.heap.len() > 2 * connections + FEW
    }

    /// Drops what does not count, by time and index.
    pub(super) fn keep(&mut self, mut counts: impl FnMut(Duration, u32) -> bool) {
        let mut kept = std::mem::take(&mut self.heap).into_vec();
        kept.retain(|&Reverse((due, index))| counts(due, index));
        kept.sort_unstable();
        kept.dedup();
        self.heap = kept.into();
    }

    /// The next time that has come, with its index.
    pub(super) fn pop(&mut self, now: Duration) -> Option<(Duration, u32)> {
        let Reverse((due, _)) = self.heap.peek()?;
        if *due > now {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| entry)
    }

    /// Places to look at this time, of `bound`: all if they are few, else as many as it takes to come round in
    /// [`ROUND`] times.
    pub(super) fn turn(&mut self, bound: usize) -> impl Iterator<Item = usize> + use<> {
        let count = bound.min(FEW.max(bound.div_ceil(ROUND)));
        let start = if self.cursor < bound { self.cursor } else { 0 };
        self.cursor = if bound == 0 { 0 } else { (start + count) % bound };
        (start..start + count).map(move |place| if place < bound { place } else { place - bound })
    }
}

const FEW: usize = 64;
const ROUND: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_looked_at_in_turn() {
        let mut timers = Timers::default();
        assert_eq!(timers.turn(0).count(), 0);
        assert!(timers.turn(3).eq(0..3) && timers.turn(3).eq(0..3));
        let mut seen = vec![0; 10_000];
        for _ in 0..2 * ROUND {
            timers.turn(seen.len()).for_each(|place| seen[place] += 1);
        }
        assert!(seen.iter().all(|&count| count == 2));
        assert_eq!(timers.turn(65).collect::<Vec<_>>().len(), 64, "there are fewer now");
        assert!(timers.turn(65).eq((64..65).chain(0..63)));
    }

    #[test]
    fn times_that_do_not_count_are_dropped() {
        let (mut timers, soon, late) = (Timers::default(), Duration::from_secs(1), Duration::from_secs(100));
        for round in 0..1000 {
            timers.push(late, 7);
            timers.push(soon, round);
            if timers.is_crowded(3) {
                timers.keep(|due, index| index == 7 && due == late);
                assert_eq!(timers.heap.len(), 1);
            }
        }
        assert!(timers.heap.len() <= 2 * 3 + FEW);
        timers.keep(|_, index| index == 7);
        assert_eq!((timers.pop(soon), timers.pop(late), timers.pop(late)), (None, Some((late, 7)), None));
    }

    #[test]
    fn times_come_in_order_once_they_are_due() {
        let mut timers = Timers::default();
        for due in [3, 1, 2] {
            timers.push(Duration::from_secs(due), due as u32);
        }
        let now = Duration::from_secs(2);
        assert_eq!(timers.next(), Some(Duration::from_secs(1)));
        assert_eq!(
            [timers.pop(now), timers.pop(now), timers.pop(now)].map(|entry| entry.map(|(_, index)| index)),
            [Some(1), Some(2), None]
        );
    }
}
