//! How fast a queue pair may send.

use std::fmt;

/// A rate, in bits a second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(u64);

impl Rate {
    /// So many bits a second.
    pub const fn from_bps(bits: u64) -> Self {
        Rate(bits)
    }

    /// So many millions of bits a second.
    pub const fn from_mbps(megabits: u32) -> Self {
        Rate(megabits as u64 * 1_000_000)
    }

    /// So many thousands of millions of bits a second.
    pub const fn from_gbps(gigabits: u32) -> Self {
        Rate(gigabits as u64 * 1_000_000_000)
    }

    /// Bits a second.
    pub const fn bps(self) -> u64 {
        self.0
    }

    /// Between this rate and another, rounded up: what is halved again and again gets there.
    pub(super) const fn midway(self, other: Rate) -> Rate {
        let (low, high) = if self.0 < other.0 { (self.0, other.0) } else { (other.0, self.0) };
        Rate(low + (high - low).div_ceil(2))
    }

    pub(super) const fn plus(self, more: u64) -> Rate {
        Rate(self.0.saturating_add(more))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03} Gb/s", self.0 / 1_000_000_000, self.0 / 1_000_000 % 1000)
    }
}

impl fmt::Debug for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rate({self})")
    }
}
