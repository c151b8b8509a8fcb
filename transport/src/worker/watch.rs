//! Limits that a process which stood still does not miss: what came meanwhile is seen before its time is over.

use std::time::Duration;

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

    /// True if it was watched for `limit`.
    pub(super) fn is_over(&mut self, now: Duration, limit: Duration) -> bool {
        let gone = now.saturating_sub(std::mem::replace(&mut self.looked, now));
        self.watched = self.watched.saturating_add(gone.min(limit / LOOKS));
        self.watched >= limit
    }

    /// When it is to be looked at next: as often as it takes that all time counts.
    pub(super) fn due(&self, limit: Duration) -> Duration {
        self.looked.saturating_add(limit.saturating_sub(self.watched).min(limit / LOOKS))
    }
}

/// Looks before a limit is over, at least.
const LOOKS: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_jump_of_the_clock_takes_a_part_of_a_limit_and_not_all() {
        let looks = |apart: Duration| {
            let mut watch = Watch::new(SECOND);
            (1..).take_while(|look| !watch.is_over(SECOND + apart * *look, SECOND)).count() + 1
        };
        assert_eq!((looks(3600 * SECOND), looks(SECOND / 100)), (LOOKS as usize, 100));
        let mut watch = Watch::new(SECOND);
        assert!(!watch.is_over(Duration::ZERO, 2 * SECOND), "a clock that goes back takes nothing");
        assert!(!Watch::new(SECOND).is_over(SECOND * 2, Duration::MAX));
    }

    #[test]
    fn who_looks_when_it_is_due_misses_nothing() {
        let mut watch = Watch::new(SECOND);
        let mut now = SECOND;
        while !watch.is_over(now, SECOND) {
            now = watch.due(SECOND);
        }
        assert_eq!(now, 2 * SECOND);
        assert!(watch.due(Duration::MAX) > 1000 * SECOND);
    }
}
