//! Lengths of time as people write them: `30`, `500ms`, `5m`.

use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

/// A length of time, at most [`LONGEST`]. It parses as seconds, or with `us`, `ms`, `s`, `m` or `h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period(pub Duration);

/// A text that is no length of time.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PeriodError {
    /// Not a number with a known unit.
    #[error("`{0}` is not a length of time; write seconds, or a number with us, ms, s, m or h: 2, 0.5, 200ms, 5m")]
    NotAPeriod(String),
    /// Beyond [`LONGEST`].
    #[error("`{0}` is longer than 100 years; leave the option out where there is no limit to give")]
    TooLong(String),
}

impl FromStr for Period {
    type Err = PeriodError;

    fn from_str(text: &str) -> Result<Self, PeriodError> {
        let wrong = || PeriodError::NotAPeriod(text.to_owned());
        let numeric = |c: char| c.is_ascii_digit() || c == '.';
        let (number, unit) = text.split_at(text.len() - text.trim_start_matches(numeric).len());
        let scale = match unit {
            "us" => 1e-6,
            "ms" => 1e-3,
            "" | "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(wrong()),
        };
        let seconds = number.parse::<f64>().map_err(|_| wrong())? * scale;
        if seconds > LONGEST.as_secs_f64() {
            return Err(PeriodError::TooLong(text.to_owned()));
        }
        Duration::try_from_secs_f64(seconds).map(Period).map_err(|_| wrong())
    }
}

/// 100 years: no clock overflows by adding it to the present.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn seconds_and_units() {
        for (text, millis) in
            [("2", 2000), ("0.5", 500), ("200ms", 200), ("3000us", 3), ("5m", 300_000), ("1h", 3_600_000)]
        {
            assert_eq!(text.parse(), Ok(Period(Duration::from_millis(millis))), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "s", "-1", "1d", "1.2.3"] {
            assert_eq!(text.parse::<Period>(), Err(PeriodError::NotAPeriod(text.to_owned())));
        }
    }

    #[test]
    fn what_a_clock_can_not_reach_is_refused() {
        for text in ["876001h", "10000000000000000000", "99999999999999999999999h"] {
            assert_eq!(text.parse::<Period>(), Err(PeriodError::TooLong(text.to_owned())));
        }
        assert_eq!("876000h".parse(), Ok(Period(LONGEST)));
        assert!(Instant::now().checked_add(LONGEST).is_some());
    }
}
