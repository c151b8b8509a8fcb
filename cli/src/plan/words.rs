//! Numbers and names as people read them.

use std::fmt;

use qpair::collectives::Slice;

use crate::size::Size;
use crate::text::printable;

/// Seconds as us, with as many decimals as tell something.
pub fn us(seconds: f64) -> String {
    Unit::MICROSECOND.number(seconds)
}

/// Seconds in the unit that fits, with its name.
pub fn time(seconds: f64) -> String {
    let unit = Unit::of(seconds);
    format!("{} {}", unit.number(seconds), unit.name)
}

/// From one time to another.
pub fn from_to(begin: f64, end: f64) -> String {
    let unit = Unit::of(begin);
    let begins = if unit == Unit::of(end) { unit.number(begin) } else { time(begin) };
    format!("{begins} to {}", time(end))
}

/// A unit of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unit {
    /// Its name.
    pub name: &'static str,
    /// How many of it a second has.
    pub a_second: f64,
}

impl Unit {
    const MICROSECOND: Self = Self { name: "us", a_second: 1e6 };

    /// The smallest in which a time has no more than four digits before the point.
    pub fn of(seconds: f64) -> Self {
        match seconds {
            seconds if seconds >= 10.0 => Self { name: "s", a_second: 1.0 },
            seconds if seconds >= 0.01 => Self { name: "ms", a_second: 1e3 },
            _ => Self::MICROSECOND,
        }
    }

    /// Seconds in it, with as many decimals as tell something.
    fn number(self, seconds: f64) -> String {
        let number = seconds * self.a_second;
        let decimals = match number {
            number if number >= 1000.0 => 0,
            number if number >= 100.0 => 1,
            _ => 2,
        };
        format!("{number:.decimals$}")
    }
}

/// A name of anyone: on one line, of a length that can be read, and nothing that a terminal obeys.
pub fn name(text: &str) -> String {
    let short: String = text.chars().take(LONGEST).collect();
    let rest = if short.len() < text.len() { "..." } else { "" };
    printable(&short) + rest
}

/// The elements of a slice, in few characters: `16K..32K`.
pub fn elements(slice: Slice) -> String {
    let end = slice.offset.saturating_add(slice.len);
    format!("{}..{}", Size(slice.offset), Size(end))
}

/// Least and greatest, or both in one where they are the same.
pub struct Range<T>(pub T, pub T);

impl<T: fmt::Display + PartialEq> fmt::Display for Range<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == self.1 { write!(f, "{}", self.0) } else { write!(f, "{} to {}", self.0, self.1) }
    }
}

/// Longer than the name of any algorithm.
const LONGEST: usize = 60;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_the_unit_that_fits() {
        let times = [1.234e-6, 456.7e-6, 0.05, 0.25, 12.0, 1000.0].map(time);
        assert_eq!(times, ["1.23 us", "456.7 us", "50.00 ms", "250.0 ms", "12.00 s", "1000 s"]);
        assert_eq!(from_to(1e-6, 2e-6), "1.00 to 2.00 us");
        assert_eq!(from_to(1e-6, 0.25), "1.00 us to 250.0 ms");
    }

    #[test]
    fn names_of_anyone_do_no_harm() {
        assert_eq!(name("ri\u{1b}[2Jng\n"), "ri\u{fffd}[2Jng\u{fffd}");
        assert_eq!(name(&"x".repeat(61)), "x".repeat(60) + "...");
        assert_eq!(elements(Slice::data(1 << 14, 1 << 14)), "16K..32K");
    }
}
