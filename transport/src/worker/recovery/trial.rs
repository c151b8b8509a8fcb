//! How long a connection may take to find a queue pair that works.

use std::time::Duration;

use crate::engine::RAILS;
use crate::worker::error::CloseReason;

/// From when its queue pair failed until another has carried something: those between, which only seemed to work, count.
#[derive(Debug)]
pub(in crate::worker) struct Trial {
    /// What happened first: the connection ends with that if it can not go on.
    pub(super) reason: CloseReason,
    waited: Watch,
    /// Queue pairs before this one that carried nothing.
    tries: u32,
    /// Those of them that could not be connected, or not be had on a rail that the peer asked for.
    refused: u32,
}

impl Trial {
    pub(super) fn new(reason: CloseReason, now: Duration) -> Self {
        Trial { reason, waited: Watch::new(now), tries: 0, refused: 0 }
    }

    /// True before the first queue pair that takes the place of the one that failed.
    pub(super) fn is_first(&self) -> bool {
        self.tries == 0
    }

    /// Another queue pair carried nothing.
    pub(super) fn again(&mut self) {
        self.tries = self.tries.saturating_add(1);
    }

    /// Another could not be connected. False if that was so too often: nothing paces what both sides try then.
    pub(super) fn bears_refusal(&mut self) -> bool {
        self.again();
        self.refused += 1;
        self.refused <= REFUSALS
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

/// Queue pairs that come to nothing at once, for each that carries something: each rail twice.
const REFUSALS: u32 = 2 * RAILS as u32;
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
