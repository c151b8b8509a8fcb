//! Ranks as threads, as many as tests run on.

pub use crate::group::group;
use crate::random::Random;

/// As many ranks as tests run on.
pub const RANKS: [usize; 4] = [1, 2, 3, 5];

/// Puts items into an order at random.
pub fn shuffle<T>(items: &mut [T], random: &mut Random) {
    for last in (1..items.len()).rev() {
        items.swap(last, random.below(last as u64 + 1) as usize);
    }
}
