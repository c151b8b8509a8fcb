//! How long a connection may take to find a queue pair that works.

use std::time::Duration;

use crate::worker::error::CloseReason;

/// From when its queue pair failed until another has carried something: those between, which only seemed to work, count.
#[derive(Debug)]
pub(in crate::worker) struct Trial {
    /// What happened first: the connection ends with that if it can not go on.
    pub(super) reason: CloseReason,
    waited: Watch,
}

impl Trial {
    pub(super) fn new(reason: CloseReason, now: Duration) -> Self {
        Trial { reason, waited: Watch::new(now) }
    }

    /// True if it took longer than `limit`.
    pub(super) fn is_over(&mut self, now: Duration, limit: Duration) -> bool {
        self.waited.is_over(now, limit)
    }
}

/// Time that was watched: a clock that jumps takes a part of a limit, and not all.
#[derive(Debug)]
pub(super) struct Watch {
    looked: Duration,
    watched: Duration,
}

impl Watch {
    pub(super) fn new(now: Duration) -> Self {
        Watch { looked: now, watched: Duration::ZERO }
    }

    pub(super) fn is_over(&mut self, now: Duration, limit: Duration) -> bool {
        let gone = now.saturating_sub(std::mem::replace(&mut self.looked, now));
        self.watched = self.watched.saturating_add(gone.min(limit / LOOKS));
        self.watched >= limit
    }
}

/// Looks before a limit is over, at least.
const LOOKS: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_of_the_clock_takes_a_part_of_a_limit_and_not_all() {
        let second = Duration::from_secs(1);
        let looks = |apart: Duration| {
            let mut watch = Watch::new(second);
            (1..).take_while(|look| !watch.is_over(second + apart * *look, second)).count() + 1
        };
        assert_eq!((looks(3600 * second), looks(second / 100)), (LOOKS as usize, 100));
        let mut watch = Watch::new(second);
        assert!(!watch.is_over(Duration::ZERO, 2 * second), "a clock that goes back takes nothing");
        assert!(!Watch::new(second).is_over(second * 2, Duration::MAX));
    }
}
