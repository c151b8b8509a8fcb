//! Times as messages tell them.

use std::time::Duration;

/// A time as messages tell it: 4.096 us x 2^n, where n is 0 to 31 (2.4 hours). IBA 12.7.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timeout(u8);

impl Timeout {
    /// The time of this n; only its low 5 bits count.
    pub const fn from_code(n: u8) -> Self {
        Timeout(n & 31)
    }

    /// The shortest one that is not below `duration`, or the longest there is.
    pub fn at_least(duration: Duration) -> Self {
        (0..31).map(Timeout).find(|timeout| timeout.duration() >= duration).unwrap_or(Timeout(31))
    }

    /// Its n, 0 to 31.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// How long it is.
    pub const fn duration(self) -> Duration {
        Duration::from_nanos(4096 << self.0)
    }

    /// How long this end waits where it is told that time: 1 ms to 69 s.
    pub(super) fn bounded(self) -> Duration {
        self.clamp(SHORTEST, LONGEST).duration()
    }
}

/// 1 ms: the shortest that Linux' cm.c waits. With less, one request would bring a burst of acceptances.
const SHORTEST: Timeout = Timeout(8);
/// 69 s: the longest that Linux' rdma_cm asks a peer to wait (`CMA_CM_MRA_SETTING` in drivers/infiniband/core/cma.c). A
/// peer that tells more would hold a connection's resources for hours.
const LONGEST: Timeout = Timeout(24);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_powers_of_two() {
        assert_eq!(Timeout::from_code(0).duration(), Duration::from_nanos(4096));
        assert_eq!(Timeout::from_code(20).duration(), Duration::from_nanos(4_294_967_296));
        assert_eq!(Timeout::from_code(31 + 32).code(), 31);
        assert_eq!(Timeout::at_least(Duration::from_nanos(4097)).code(), 1);
        assert_eq!(Timeout::at_least(Duration::from_secs(86_400)).code(), 31);
        assert_eq!(Timeout::from_code(0).bounded(), Timeout::from_code(8).duration());
        assert_eq!(Timeout::from_code(31).bounded(), Timeout::from_code(24).duration());
    }
}
