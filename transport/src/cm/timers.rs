//! When what is to be looked at: as cheap with ten thousand as with ten.

use core::time::Duration;
use std::collections::BTreeSet;

/// Times, each of a key. The greatest time is never.
#[derive(Debug, Default)]
pub(super) struct Timers(BTreeSet<(Duration, usize)>);

impl Timers {
    /// Moves the time of `key`.
    pub(super) fn set(&mut self, key: usize, from: Duration, to: Duration) {
        if from != to {
            self.0.remove(&(from, key));
            if to != Duration::MAX {
                self.0.insert((to, key));
            }
        }
    }

    /// The first time of all.
    pub(super) fn first(&self) -> Option<Duration> {
        self.0.first().map(|&(time, _)| time)
    }

    /// The keys whose time has come, first things first. They stay until they are moved.
    pub(super) fn due(&self, now: Duration) -> Vec<usize> {
        self.0.range(..=(now, usize::MAX)).map(|&(_, key)| key).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_due_in_order_until_they_are_moved() {
        let second = Duration::from_secs;
        let mut timers = Timers::default();
        for (key, time) in [(7, 3), (1, 2), (2, 2), (9, 5)] {
            timers.set(key, Duration::MAX, second(time));
        }
        timers.set(3, Duration::MAX, Duration::MAX);
        assert_eq!((timers.first(), timers.due(second(1))), (Some(second(2)), vec![]));
        assert_eq!(timers.due(second(3)), [1, 2, 7]);
        timers.set(1, second(2), second(4));
        timers.set(2, second(2), Duration::MAX);
        timers.set(7, second(3), second(3));
        assert_eq!((timers.first(), timers.due(second(9))), (Some(second(3)), vec![7, 1, 9]));
    }
}
