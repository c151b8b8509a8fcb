//! The time that a run by duration takes: a margin, what is measured, a margin.

use std::time::{Duration, Instant};

use super::terms::Goal;

/// Where a run by duration is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// In a margin: not measured.
    Margin,
    /// Measured.
    Measured,
    /// Over.
    Over,
}

/// The course of a run: by duration, or none if it is over with its messages.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    from: Instant,
    to: Instant,
    end: Instant,
}

impl Span {
    /// The course that begins now; none if messages are counted.
    pub fn begin(goal: Goal, now: Instant) -> Option<Self> {
        match goal {
            Goal::Iterations(_) => None,
            Goal::Seconds { duration, margin } => {
                let at = |seconds: f64| now + Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default();
                Some(Span { from: at(margin), to: at(duration - margin), end: at(duration) })
            }
        }
    }

    /// The phase at `now`.
    #[inline]
    pub fn phase(&self, now: Instant) -> Phase {
        match now {
            now if now >= self.end => Phase::Over,
            now if now < self.from || now >= self.to => Phase::Margin,
            _ => Phase::Measured,
        }
    }

    /// Seconds that are measured in all by a run that ends at `now`, and whose last message came at `last`. If the other
    /// side was through before its time, what is waited for it then is not measured.
    pub fn seconds(&self, now: Instant, last: Instant) -> f64 {
        let end = if self.phase(now) == Phase::Over { now } else { last };
        end.min(self.to).saturating_duration_since(self.from).as_secs_f64()
    }

    /// True if the other side, which has its own clock and began when it could, may be through at `now`.
    pub fn may_end(&self, now: Instant) -> bool {
        now >= self.from + (self.end - self.from) / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn margins_are_not_measured() {
        let now = Instant::now();
        let span = Span::begin(Goal::Seconds { duration: 10.0, margin: 2.0 }, now).expect("by duration");
        let phase = |seconds: f64| span.phase(now + Duration::from_secs_f64(seconds));
        assert_eq!([phase(0.0), phase(1.9), phase(8.1), phase(9.9)], [Phase::Margin; 4]);
        assert_eq!([phase(2.0), phase(7.9)], [Phase::Measured; 2]);
        assert_eq!(phase(10.0), Phase::Over);
        let at = |seconds: f64| now + Duration::from_secs_f64(seconds);
        for (end, last, measured) in
            [(10.0, 9.9, 6.0), (20.0, 5.0, 6.0), (9.0, 8.5, 6.0), (7.5, 7.0, 5.0), (5.0, 3.0, 1.0), (2.5, 1.0, 0.0)]
        {
            assert!((span.seconds(at(end), at(last)) - measured).abs() < 1e-6, "{end} {last}");
        }
        assert!(!span.may_end(at(5.9)) && span.may_end(at(6.1)));
        assert!(Span::begin(Goal::Iterations(3), now).is_none());
    }
}
