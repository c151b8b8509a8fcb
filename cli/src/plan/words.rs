//! Numbers and names as people read them.

use std::fmt;

use qpair::collectives::Slice;

use crate::size::Size;

/// Bytes with a unit: exact where they are whole ones, else with two decimals.
pub fn bytes(bytes: u64) -> String {
    let unit = [(30, "GiB"), (20, "MiB"), (10, "KiB")].into_iter().find(|(shift, _)| bytes >= 1 << shift);
    match unit {
        None => format!("{bytes} B"),
        Some((shift, unit)) if bytes.is_multiple_of(1 << shift) => format!("{} {unit}", bytes >> shift),
        Some((shift, unit)) => format!("{:.2} {unit}", bytes as f64 / (1_u64 << shift) as f64),
    }
}

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

/// A text of anyone: on one line, of a length that can be read, and nothing that a terminal obeys.
pub fn printable(text: &str) -> String {
    let clean = |c: char| if c.is_control() { '?' } else { c };
    let short: String = text.chars().take(LONGEST).map(clean).collect();
    if text.chars().nth(LONGEST).is_some() { short + "..." } else { short }
}

/// A number of things.
pub fn counted(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// The elements of a slice, in few characters: `16K..32K`.
pub fn elements(slice: Slice) -> String {
    let end = slice.offset.saturating_add(slice.len);
    format!("{}..{}", Size(slice.offset), Size(end))
}

/// Least and greatest, or both in one where they are the same.
pub struct Range(pub u64, pub u64);

impl fmt::Display for Range {
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
    fn bytes_are_exact_where_that_is_short() {
        let all = [(0, "0 B"), (1000, "1000 B"), (1024, "1 KiB"), (384 << 10, "384 KiB"), (1536 << 10, "1.50 MiB")];
        for (number, text) in all {
            assert_eq!(bytes(number), text);
        }
    }

    #[test]
    fn names_of_anyone_do_no_harm() {
        assert_eq!(printable("ri\u{1b}[2Jng\n"), "ri?[2Jng?");
        assert_eq!(printable(&"x".repeat(61)), "x".repeat(60) + "...");
        assert_eq!(elements(Slice::data(1 << 14, 1 << 14)), "16K..32K");
    }
}
