//! From which length on a payload is offered for reading instead of being copied: measured on each path, and again as it is
//! used.
//!
//! A copy costs the sender its time, `n / copy rate`; an offer costs a fixed time instead, since the payload is read where it
//! is: the message that offers it, the READ, and the message that it is done, which a program waits for before it has its
//! memory back. The threshold is the length at which both take as long: `fixed time x copy rate`.

use std::time::Duration;

/// The threshold of one path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Threshold {
    chosen: usize,
    origin: Origin,
    /// Longest payload that may be copied.
    limit: usize,
    /// Bytes that are copied in a microsecond.
    copied: u64,
    /// The fixed time of an offer, the least of late.
    fixed: Option<Duration>,
}

/// Where a threshold came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The longest that both sides take, nothing being measured yet.
    Limit,
    /// The application chose it.
    Chosen,
    /// Measured: how long a probe takes to the peer's device and back.
    Probed {
        /// The least of the probes' times.
        round_trip: Duration,
    },
    /// Measured: how long payloads took from their offer to the word that they were read, less the time of their bytes.
    Used {
        /// The least of these times of late.
        fixed: Duration,
    },
}

impl Threshold {
    /// No payload above `limit` is copied; the others by `copied` bytes a microsecond, unless the application has chosen.
    pub(crate) fn new(limit: usize, chosen: Option<usize>, copied: u64) -> Self {
        let origin = if chosen.is_some() { Origin::Chosen } else { Origin::Limit };
        Threshold { chosen: chosen.unwrap_or(limit).min(limit), origin, limit, copied, fixed: None }
    }

    /// The peer takes no more than that by copy.
    pub(crate) fn lower_limit(&mut self, limit: usize) {
        self.limit = self.limit.min(limit);
        self.chosen = self.chosen.min(self.limit);
    }

    /// Longest payload that is copied.
    #[inline(always)]
    pub(crate) fn bytes(&self) -> usize {
        self.chosen
    }

    /// Longest payload that may be copied.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Bytes that are copied in a microsecond.
    pub(crate) fn copy_rate(&self) -> u64 {
        self.copied
    }

    pub(crate) fn origin(&self) -> Origin {
        self.origin
    }

    /// A probe was answered.
    pub(crate) fn probed(&mut self, took: Duration) {
        let round_trip = match self.origin {
            Origin::Limit => took,
            Origin::Probed { round_trip } => round_trip.min(took),
            // The application knows better, or use has told more.
            Origin::Chosen | Origin::Used { .. } => return,
        };
        self.origin = Origin::Probed { round_trip };
        // A message each way, and the READ between.
        self.choose(round_trip * 2);
    }

    /// An offered payload was read, and its sender told of it.
    pub(crate) fn read(&mut self, took: Duration, len: u64) {
        if self.origin == Origin::Chosen {
            return;
        }
        let bytes = Duration::from_nanos(len.saturating_mul(1000) / self.copied.max(1));
        let fixed = took.saturating_sub(bytes);
        // The least of late: what a receiver takes its time for is no part of it, and paths change.
        let least = match self.fixed {
            Some(least) if fixed >= least => least + (least / AGING).max(Duration::from_nanos(1)),
            _ => fixed,
        };
        self.fixed = Some(least);
        self.origin = Origin::Used { fixed: least };
        self.choose(least);
    }

    fn choose(&mut self, fixed: Duration) {
        let bytes = (fixed.as_nanos() as u64).saturating_mul(self.copied) / 1000;
        self.chosen = usize::try_from(bytes).unwrap_or(usize::MAX).clamp(LEAST.min(self.limit), self.limit);
    }
}

/// Below, an offer is longer than what it saves.
const LEAST: usize = 512;
/// By what part of itself the least time grows with each that is longer: half as much again after some two dozen.
const AGING: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    const MICRO: Duration = Duration::from_micros(1);

    #[test]
    fn the_application_or_the_limit_counts_before_anything_is_measured() {
        let threshold = Threshold::new(8192, None, 10_000);
        assert_eq!((threshold.bytes(), threshold.origin()), (8192, Origin::Limit));
        let mut threshold = Threshold::new(8192, Some(3000), 10_000);
        threshold.probed(MICRO);
        threshold.read(50 * MICRO, 1 << 20);
        assert_eq!((threshold.bytes(), threshold.origin()), (3000, Origin::Chosen));
        threshold.lower_limit(1000);
        assert_eq!((threshold.bytes(), threshold.limit()), (1000, 1000));
    }

    #[test]
    fn a_probe_gives_a_first_idea_and_the_least_counts() {
        let mut threshold = Threshold::new(1 << 20, None, 10_000);
        for (took, expected) in [(5, 100_000), (2, 40_000), (9, 40_000)] {
            threshold.probed(took * MICRO);
            assert_eq!(threshold.bytes(), expected);
        }
        assert_eq!(threshold.origin(), Origin::Probed { round_trip: 2 * MICRO });
        threshold.probed(Duration::ZERO);
        assert_eq!(threshold.bytes(), LEAST);
    }

    #[test]
    fn use_refines_it_and_follows_a_path_that_changes() {
        let mut threshold = Threshold::new(1 << 20, None, 10_000);
        threshold.probed(MICRO);
        // 100,000 bytes take 10 us by copying, and 14 here.
        threshold.read(14 * MICRO, 100_000);
        assert_eq!((threshold.bytes(), threshold.origin()), (40_000, Origin::Used { fixed: 4 * MICRO }));
        // A receiver that takes its time does not count, unless it always does.
        threshold.read(1000 * MICRO, 100_000);
        assert!((40_000..41_000).contains(&threshold.bytes()));
        for _ in 0..200 {
            threshold.read(1000 * MICRO, 100_000);
        }
        assert!(threshold.bytes() > 500_000);
        threshold.read(11 * MICRO, 100_000);
        assert_eq!(threshold.bytes(), 10_000);
        threshold.probed(100 * MICRO);
        assert_eq!(threshold.bytes(), 10_000, "use tells more");
    }
}
