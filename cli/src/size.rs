//! Sizes as people write them: `8`, `64K`, `1MiB`.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// A number of bytes. It parses with K, M and G as powers of 1024, and prints in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// A text that is no size.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SizeError {
    /// Not a number with a known unit.
    #[error("`{0}` is not a size; write whole bytes, or a number with K, M or G (powers of 1024): 8, 64K, 1MiB")]
    NotASize(String),
    /// More than 2^64 - 1 bytes.
    #[error("`{0}` is too large; the greatest size is below 16777216 TiB")]
    TooLarge(String),
}

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, unit) = text.split_at(digits);
        let shift = UNITS
            .iter()
            .find(|(_, names)| names.iter().any(|name| unit.eq_ignore_ascii_case(name)))
            .map(|(shift, _)| *shift);
        let (Some(shift), false) = (shift, number.is_empty()) else {
            return Err(SizeError::NotASize(text.to_owned()));
        };
        number
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(1 << shift))
            .map(Size)
            .ok_or_else(|| SizeError::TooLarge(text.to_owned()))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            0 => "0".to_owned(),
            bytes if bytes % (1 << 30) == 0 => format!("{}G", bytes >> 30),
            bytes if bytes % (1 << 20) == 0 => format!("{}M", bytes >> 20),
            bytes if bytes % (1 << 10) == 0 => format!("{}K", bytes >> 10),
            bytes => bytes.to_string(),
        };
        f.pad(&text)
    }
}

/// Powers of two and their names, without regard to case. `KB` is absent: it means 1000 to some.
const UNITS: [(u32, &[&str]); 4] = [(0, &["", "b"]), (10, &["k", "kib"]), (20, &["m", "mib"]), (30, &["g", "gib"])];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_powers_of_1024() {
        for (text, bytes) in [
            ("8", 8),
            ("8B", 8),
            ("64K", 64 << 10),
            ("64k", 64 << 10),
            ("3KiB", 3 << 10),
            ("64M", 64 << 20),
            ("1mib", 1 << 20),
            ("2G", 2 << 30),
            ("2GiB", 2 << 30),
            ("0", 0),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
    }

    #[test]
    fn nonsense_is_a_typed_error_that_says_what_to_write() {
        for text in ["", "K", "-1", "1.5M", "12x", "1KB", "64 M", "0x10", "١"] {
            let error = text.parse::<Size>().expect_err(text);
            assert_eq!(error, SizeError::NotASize(text.to_owned()));
            assert!(error.to_string().contains("64K"), "{error}");
        }
        for text in ["18446744073709551616", "17179869184G"] {
            assert_eq!(text.parse::<Size>(), Err(SizeError::TooLarge(text.to_owned())));
        }
    }

    #[test]
    fn prints_the_largest_unit_that_is_exact() {
        for (bytes, text) in [(0, "0"), (8, "8"), (1024, "1K"), (1025, "1025"), (64 << 20, "64M"), (3 << 30, "3G")] {
            assert_eq!(Size(bytes).to_string(), text);
        }
        assert_eq!(format!("{:>6}|", Size(2048)), "    2K|");
    }
}
