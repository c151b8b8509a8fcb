//! How long an answer takes: RFC 6298.

use std::time::Duration;

/// What is known of the round trip.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    smoothed: Option<Duration>,
    variation: Duration,
    least: Duration,
    /// Doublings since an answer was measured (RFC 6298, 5.7, and Karn: what was sent again measures nothing).
    backoff: u32,
}

impl Timing {
    pub(super) fn new(least: Duration) -> Self {
        Timing { smoothed: None, variation: Duration::ZERO, least, backoff: 0 }
    }

    /// A packet that was sent so often has come, so long after the last time. (Karn: of what was sent again, nobody knows
    /// which is answered.)
    pub(super) fn came(&mut self, tries: u32, took: Duration) {
        if tries > 1 {
            return;
        }
        self.backoff = 0;
        // After a pause that was not the network's.
        let took = took.min(LONGEST);
        let Some(smoothed) = self.smoothed else {
            (self.smoothed, self.variation) = (Some(took), took / 2);
            return;
        };
        self.variation = (self.variation * 3 + smoothed.abs_diff(took)) / 4;
        self.smoothed = Some((smoothed * 7 + took) / 8);
    }

    pub(super) fn timed_out(&mut self) {
        self.backoff = (self.backoff + 1).min(MOST_DOUBLINGS);
    }

    /// How long to wait before sending again.
    pub(super) fn timeout(&self) -> Duration {
        let once = self.smoothed.map_or(FIRST, |smoothed| smoothed + self.variation * 4).max(self.least);
        (once * (1 << self.backoff)).min(LONGEST)
    }
}

/// Before anything was measured.
const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(2);
const MOST_DOUBLINGS: u32 = 10;
