//! Remote atomics, as the CPU does them.

use crate::sync::{AtomicU64, Ordering};

/// An atomic operation.
#[derive(Clone, Copy)]
pub(crate) enum Atomic {
    CompareSwap(u64, u64),
    FetchAdd(u64),
}

impl Atomic {
    /// Does it; the value before.
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
