//! Whether all ranks have the same lengths in the same order: as one vector, others would often be as long and be mixed up.

use qpair_verbs::calc::ReduceOp;

use crate::fnv::Fnv;

/// What each rank gives: a hash of its lengths and the complement, so that the least of both tell the least and the greatest hash.
pub(super) fn hashes(lengths: impl IntoIterator<Item = usize>) -> [u64; 2] {
    let hash = Fnv::of_numbers(lengths);
    [hash, !hash]
}

/// By which they are combined.
pub(super) const COMBINED: ReduceOp = ReduceOp::Min;

/// Whether all were alike, by what came of theirs.
pub(super) fn are_alike(combined: &[u64]) -> bool {
    matches!(combined, [least, other] if *least == !other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_of_all_tell_whether_one_differs() {
        let combined = |all: &[&[usize]]| {
            let hashes: Vec<_> = all.iter().map(|lengths| hashes(lengths.iter().copied())).collect();
            [0, 1].map(|at| hashes.iter().map(|both| both[at]).min().unwrap())
        };
        assert!(are_alike(&combined(&[&[1, 2], &[1, 2], &[1, 2]])) && are_alike(&combined(&[&[]])));
        for other in [&[2, 1][..], &[3], &[1, 2, 0], &[]] {
            assert!(!are_alike(&combined(&[&[1, 2], other, &[1, 2]])), "{other:?}");
        }
        assert!(!are_alike(&[]));
    }
}
