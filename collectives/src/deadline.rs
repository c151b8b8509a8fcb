//! A point in time, or never.

use std::time::{Duration, Instant};

/// A point in time, or never.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    /// So long from now; never, if no clock goes that far.
    pub(crate) fn after(limit: Duration) -> Self {
        Deadline(Instant::now().checked_add(limit))
    }

    /// How long it is until then; `None` for ever.
    pub(crate) fn left(self) -> Option<Duration> {
        self.0.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Whether it has come.
    pub(crate) fn is_over(self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_time_is_for_ever() {
        let never = Deadline::after(Duration::MAX);
        assert_eq!((never.left(), never.is_over()), (None, false));
        assert!(Deadline::after(Duration::ZERO).is_over());
        let later = Deadline::after(Duration::from_secs(1000));
        assert!(!later.is_over() && later.left() > Some(Duration::from_secs(900)));
    }
}
