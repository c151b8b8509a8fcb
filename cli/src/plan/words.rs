//! Numbers and names as people read them.

use std::fmt;

use qpair::collectives::Slice;

use crate::size::Size;
use crate::text::printable;

/// Seconds as us, with as many decimals as tell something.
pub fn us(seconds: f64) -> String {
    let us = seconds * 1e6;
    let decimals = match us {
        us if us >= 1000.0 => 0,
        us if us >= 100.0 => 1,
        _ => 2,
    };
    format!("{us:.decimals$}")
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
    fn names_of_anyone_do_no_harm() {
        assert_eq!(name("ri\u{1b}[2Jng\n"), "ri\u{fffd}[2Jng\u{fffd}");
        assert_eq!(name(&"x".repeat(61)), "x".repeat(60) + "...");
        assert_eq!(elements(Slice::data(1 << 14, 1 << 14)), "16K..32K");
    }
}
