//! How long a connection may take to find a queue pair that works.

use std::time::Duration;

use crate::engine::RAILS;
use crate::worker::error::{CloseReason, Lost};
use crate::worker::watch::Watch;

/// From when its queue pair failed until another has carried what goes out again: those between, which only seemed to work, count.
#[derive(Debug)]
pub(in crate::worker) struct Trial {
    /// What happened first: the connection ends with that if it can not go on,
    reason: CloseReason,
    /// or with why the last queue pair could not be connected.
    refusal: Option<CloseReason>,
    waited: Watch,
    /// Queue pairs before this one that came to nothing.
    tries: u32,
    /// How often the peer changed its mind about its own since the last of them.
    changes: u32,
}

impl Trial {
    pub(super) fn new(reason: CloseReason, now: Duration) -> Self {
        Trial { reason, refusal: None, waited: Watch::new(now), tries: 0, changes: 0 }
    }

    /// True before the first queue pair that takes the place of the one that failed.
    pub(super) fn is_first(&self) -> bool {
        self.tries == 0
    }

    /// Another queue pair came to nothing.
    pub(super) fn again(&mut self) {
        (self.tries, self.changes) = (self.tries.saturating_add(1), 0);
    }

    /// The peer tells of another of its own, perhaps on another rail. False if it did too often: nothing paces that.
    pub(super) fn bears_change(&mut self) -> bool {
        self.changes += 1;
        self.changes <= AT_ONCE
    }

    /// Another could not be connected.
    pub(super) fn refuse(&mut self, why: CloseReason) {
        self.refusal = Some(why);
    }

    /// Another is connected.
    pub(super) fn connect(&mut self) {
        self.refusal = None;
    }

    /// Why the connection ends.
    pub(super) fn take_reason(&mut self) -> CloseReason {
        let reason = std::mem::replace(&mut self.reason, CloseReason::PeerLost(Lost::QueuePair));
        self.refusal.take().unwrap_or(reason)
    }

    /// How long to wait before the next: not at all at first, so that each rail has its turn twice, then longer and longer.
    pub(super) fn pause(&self) -> Duration {
        match self.tries.checked_sub(AT_ONCE) {
            None => Duration::ZERO,
            Some(further) => LONGEST.min(SHORTEST * (1 << further.min(16))),
        }
    }

    /// True if it took longer than `limit`.
    pub(super) fn is_over(&mut self, now: Duration, limit: Duration) -> bool {
        self.waited.is_over(now, limit)
    }
}

/// Queue pairs that come to nothing and are followed by another at once, for each that carries what goes out again: of as many rails
/// as there may be, each twice.
pub(super) const AT_ONCE: u32 = 2 * RAILS as u32;
/// First and longest pause before another.
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_comes_after_many_tries_and_grows() {
        let mut trial = Trial::new(CloseReason::PeerLost(Lost::QueuePair), Duration::ZERO);
        let pauses: Vec<_> = (0..AT_ONCE + 12)
            .map(|_| {
                trial.again();
                trial.pause().as_millis()
            })
            .collect();
        let (without, with) = pauses.split_at(AT_ONCE as usize - 1);
        assert!(without.iter().all(|&pause| pause == 0));
        assert_eq!(with, [1, 2, 4, 8, 16, 32, 64, 128, 250, 250, 250, 250, 250]);
    }

    #[test]
    fn a_connection_ends_with_why_the_last_queue_pair_was_refused() {
        let mut trial = Trial::new(CloseReason::PeerLost(Lost::QueuePair), Duration::ZERO);
        trial.refuse(CloseReason::Remote);
        assert!(matches!(trial.take_reason(), CloseReason::Remote));
        let mut trial = Trial::new(CloseReason::PeerLost(Lost::QueuePair), Duration::ZERO);
        trial.refuse(CloseReason::Remote);
        trial.connect();
        assert!(matches!(trial.take_reason(), CloseReason::PeerLost(Lost::QueuePair)));
    }
}
