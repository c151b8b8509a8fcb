//! Remote atomics on a word of 8 bytes.

use crate::sync::{AtomicU64, Ordering};

/// An atomic operation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Atomic {
    /// What the word is compared with, and what replaces it.
    CompareSwap(u64, u64),
    FetchAdd(u64),
}

impl Atomic {
    /// Does it, as a processor does; the value before.
    pub(crate) fn apply(self, word: &AtomicU64) -> u64 {
        match self {
            Atomic::CompareSwap(compare, swap) => {
                match word.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(old) | Err(old) => old,
                }
            }
            Atomic::FetchAdd(add) => word.fetch_add(add, Ordering::AcqRel),
        }
    }
}
