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

    /// How long an acknowledgment may take by way of a path for which this is enough, if the peer's device takes `delay` to
    /// give it. As Linux adds them (`cm_ack_timeout` in drivers/infiniband/core/cm.c): the longer one, or twice that if the
    /// other is not much shorter. What is without end stays so.
    pub(super) fn with_delay(self, delay: Timeout) -> Self {
        if self.0 == 0 {
            return self;
        }
        let (long, short) = (self.0.max(delay.0), self.0.min(delay.0));
        Timeout((long + u8::from(short + 1 >= long)).min(31))
    }

    /// How long an acknowledgment may take where the peer tells that, and this end would wait for `own`: as long as the peer tells,
    /// but not for hours, nor without end, by which it could keep what is posted here for ever.
    pub fn beside(self, own: Duration) -> Duration {
        // IBA 9.9.2.4.1: without end.
        if self.0 == 0 { own } else { self.duration().min(own.max(LONGEST.duration())) }
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

    #[test]
    fn a_peer_does_not_have_this_end_wait_for_ever() {
        let own = Duration::from_millis(500);
        assert_eq!(Timeout(0).beside(own), own);
        assert_eq!(Timeout(14).beside(own), Timeout(14).duration());
        assert_eq!(Timeout(31).beside(own), LONGEST.duration());
        assert_eq!(Timeout(31).beside(Duration::from_secs(3600)), Duration::from_secs(3600));
    }

    /// That of Linux 6.12, word for word; it is given the path's time less one.
    fn cm_ack_timeout(ca_ack_delay: u8, packet_life_time: u8) -> u8 {
        let ack_timeout = packet_life_time + 1;
        let sum = if ack_timeout >= ca_ack_delay {
            ack_timeout + u8::from(ca_ack_delay >= ack_timeout - 1)
        } else {
            ca_ack_delay + u8::from(ack_timeout >= ca_ack_delay - 1)
        };
        sum.min(31)
    }

    #[test]
    fn delays_are_added_as_linux_adds_them() {
        for (path, delay) in (1..32).flat_map(|path| (0..32).map(move |delay| (path, delay))) {
            let sum = Timeout(path).with_delay(Timeout(delay));
            assert_eq!(sum.code(), cm_ack_timeout(delay, path - 1), "{path} and {delay}");
        }
        assert_eq!(Timeout(0).with_delay(Timeout(17)).code(), 0, "no end is no end");
    }
}
