//! Flushes: when all that was begun before has come to the peer.

use std::collections::VecDeque;

use super::slots::WorkSlots;

/// Flushes that wait, the oldest first.
#[derive(Debug)]
pub(crate) struct Flushes {
    waiting: VecDeque<u64>,
    /// Requests that were posted when nothing older than the first of them was left to post.
    mark: Option<u32>,
}

impl Flushes {
    pub(crate) fn new() -> Self {
        Flushes { waiting: VecDeque::new(), mark: None }
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn push(&mut self, op: u64) {
        self.waiting.push_back(op);
    }

    /// The requests whose acknowledgment the first waits for.
    pub(crate) fn mark(&self) -> Option<u32> {
        self.mark
    }

    /// The next that is done: all older operations are over, `oldest` being the first that is not, and the peer's device has
    /// acknowledged what was posted by then.
    pub(crate) fn next(&mut self, oldest: Option<u64>, slots: &WorkSlots) -> Option<u64> {
        let first = *self.waiting.front()?;
        if oldest.is_some_and(|oldest| oldest < first) {
            return None;
        }
        let mark = *self.mark.get_or_insert(slots.posted());
        if !slots.has_retired(mark) {
            return None;
        }
        self.mark = None;
        self.waiting.pop_front()
    }

    /// What was posted is posted anew.
    pub(crate) fn restart(&mut self) {
        self.mark = None;
    }

    /// One is no longer wanted. False if none of that number waits.
    pub(crate) fn cancel(&mut self, op: u64) -> bool {
        let Some(place) = self.waiting.iter().position(|&waiting| waiting == op) else { return false };
        if place == 0 {
            self.mark = None;
        }
        self.waiting.remove(place).is_some()
    }

    /// All of them, when the connection ends.
    pub(crate) fn drain(&mut self) -> Vec<u64> {
        self.mark = None;
        self.waiting.drain(..).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_waits_for_older_operations_and_for_what_they_posted() {
        let (mut flushes, mut slots) = (Flushes::new(), WorkSlots::new(16));
        assert_eq!(flushes.next(None, &slots), None);
        slots.take(false);
        flushes.push(5);
        assert_eq!((flushes.next(Some(4), &slots), flushes.mark()), (None, None));
        let queued = slots.take(true);
        assert_eq!((flushes.next(Some(6), &slots), flushes.mark()), (None, Some(2)));
        let later = slots.take(true);
        flushes.push(7);
        slots.retire(queued.number);
        assert_eq!(flushes.next(Some(6), &slots), Some(5));
        assert_eq!(flushes.next(Some(6), &slots), None);
        assert_eq!(flushes.next(None, &slots), None);
        slots.retire(later.number);
        assert_eq!(flushes.next(None, &slots), Some(7));
        assert!(flushes.is_empty());
    }

    #[test]
    fn with_nothing_before_it_a_flush_is_done_at_once() {
        let (mut flushes, slots) = (Flushes::new(), WorkSlots::new(16));
        flushes.push(1);
        flushes.push(2);
        assert_eq!((flushes.next(None, &slots), flushes.next(None, &slots)), (Some(1), Some(2)));
        flushes.push(3);
        flushes.push(4);
        assert!(flushes.cancel(3) && !flushes.cancel(3));
        assert_eq!(flushes.drain(), [4]);
    }
}
