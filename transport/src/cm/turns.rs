//! Who may go on, of many: so many at once, and the others after them, first come, first served.

use std::collections::VecDeque;

/// So many places, and who waits for one.
#[derive(Debug)]
pub(super) struct Turns<T> {
    free: usize,
    queue: VecDeque<T>,
}

impl<T> Turns<T> {
    pub(super) fn new(places: usize) -> Self {
        Turns { free: places, queue: VecDeque::new() }
    }

    /// True if `who` has a place now; else it waits.
    pub(super) fn ask(&mut self, who: T) -> bool {
        let at_once = self.free > 0 && self.queue.is_empty();
        if at_once {
            self.free -= 1;
        } else {
            self.queue.push_back(who);
        }
        at_once
    }

    /// A place is free again.
    pub(super) fn give_back(&mut self) {
        self.free += 1;
    }

    /// Who has a place now, having waited longest.
    pub(super) fn next(&mut self) -> Option<T> {
        if !self.has_next() {
            return None;
        }
        self.free -= 1;
        self.queue.pop_front()
    }

    pub(super) fn has_next(&self) -> bool {
        self.free > 0 && !self.queue.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_first_goes_first() {
        let mut turns = Turns::new(2);
        assert!(turns.ask('a') && turns.ask('b') && !turns.ask('c') && !turns.ask('d'));
        assert_eq!(turns.next(), None);
        turns.give_back();
        assert!(turns.has_next() && !turns.ask('e'), "nobody goes ahead of those who wait");
        assert_eq!((turns.next(), turns.next()), (Some('c'), None));
        turns.give_back();
        turns.give_back();
        assert_eq!((turns.next(), turns.next(), turns.next()), (Some('d'), Some('e'), None));
        turns.give_back();
        assert!(turns.ask('f'));
    }
}
