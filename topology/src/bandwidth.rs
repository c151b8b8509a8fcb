//! Bandwidth: whole bytes a second, so that sums and comparisons are exact on every machine.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, Sub};

use serde::{Deserialize, Serialize};

/// Bytes a second in one direction.
///
/// It is a whole number: two processes that compare bandwidths come to the same answer, which
/// floating point does not promise once sums are taken in different orders.
///
/// ```
/// use qpair_topology::Bandwidth;
///
/// let port = Bandwidth::from_mbit(100_000);
/// assert_eq!(port.to_string(), "12.5 GB/s");
/// assert_eq!(port.shared_by(2), Bandwidth::from_mb(6_250));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bandwidth(u64);

impl Bandwidth {
    /// Nothing passes.
    pub const ZERO: Self = Self(0);
    /// No limit: what stays inside a chip.
    pub const UNLIMITED: Self = Self(u64::MAX);

    /// From bytes a second.
    pub const fn from_bytes(bytes_per_second: u64) -> Self {
        Self(bytes_per_second)
    }

    /// From megabytes (10^6 bytes) a second.
    pub const fn from_mb(megabytes_per_second: u64) -> Self {
        Self(megabytes_per_second.saturating_mul(1_000_000))
    }

    /// From gigabytes (10^9 bytes) a second.
    pub const fn from_gb(gigabytes_per_second: u64) -> Self {
        Self(gigabytes_per_second.saturating_mul(1_000_000_000))
    }

    /// From megabits (10^6 bits) a second, the unit of a network port.
    pub const fn from_mbit(megabits_per_second: u64) -> Self {
        Self(megabits_per_second.saturating_mul(125_000))
    }

    /// Bytes a second.
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// Gigabytes (10^9 bytes) a second, to be shown.
    pub fn as_gb(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// True of [`Bandwidth::UNLIMITED`].
    pub const fn is_unlimited(self) -> bool {
        self.0 == u64::MAX
    }

    /// The share of each of `flows` that divide it evenly; of none, all of it.
    #[must_use]
    pub const fn shared_by(self, flows: u64) -> Self {
        if self.is_unlimited() || flows == 0 { self } else { Self(self.0 / flows) }
    }

    /// This many times as much.
    #[must_use]
    pub const fn times(self, count: u64) -> Self {
        Self(self.0.saturating_mul(count))
    }
}

impl Add for Bandwidth {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

/// Never less than nothing; and what is unlimited stays so.
impl Sub for Bandwidth {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        if self.is_unlimited() { self } else { Self(self.0.saturating_sub(other.0)) }
    }
}

impl Sum for Bandwidth {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::ZERO, Add::add)
    }
}

/// In GB/s with at most two decimals.
impl fmt::Display for Bandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_unlimited() {
            return f.write_str("unlimited");
        }
        let hundredths = (u128::from(self.0) + 5_000_000) / 10_000_000;
        let (whole, part) = (hundredths / 100, hundredths % 100);
        match part {
            0 => write!(f, "{whole} GB/s"),
            part if part % 10 == 0 => write!(f, "{whole}.{} GB/s", part / 10),
            part => write!(f, "{whole}.{part:02} GB/s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_agree_and_nothing_overflows() {
        assert_eq!(Bandwidth::from_mbit(8_000), Bandwidth::from_gb(1));
        assert_eq!(Bandwidth::from_mb(1_000), Bandwidth::from_gb(1));
        assert!(Bandwidth::from_gb(u64::MAX).is_unlimited());
        assert!((Bandwidth::UNLIMITED + Bandwidth::from_gb(1)).is_unlimited());
        assert!(Bandwidth::UNLIMITED.shared_by(3).is_unlimited());
        assert_eq!(Bandwidth::from_gb(1) - Bandwidth::from_gb(2), Bandwidth::ZERO);
    }

    #[test]
    fn it_is_shown_without_needless_decimals() {
        assert_eq!(Bandwidth::from_gb(24).to_string(), "24 GB/s");
        assert_eq!(Bandwidth::from_mb(6_250).to_string(), "6.25 GB/s");
        assert_eq!(Bandwidth::UNLIMITED.to_string(), "unlimited");
    }
}
