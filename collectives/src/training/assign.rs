//! Which gradient goes into which bucket, and where.

use std::ops::Range;

/// Where a parameter's gradient is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) bucket: usize,
    pub(super) range: Range<usize>,
}

/// The place of each gradient, by parameter, and the length of each bucket. The last parameter's is in the first bucket,
/// since the backward pass finds it first. A bucket has at most `most` elements, unless one gradient alone has more.
pub(super) fn assign(lengths: &[usize], most: usize) -> (Vec<Place>, Vec<usize>) {
    let mut buckets: Vec<usize> = Vec::new();
    let mut places: Vec<_> = lengths
        .iter()
        .rev()
        .map(|&len| {
            if buckets.last().is_none_or(|&filled| filled > 0 && filled.saturating_add(len) > most) {
                buckets.push(0);
            }
            let bucket = buckets.len() - 1;
            let start = buckets[bucket];
            buckets[bucket] += len;
            Place { bucket, range: start..start + len }
        })
        .collect();
    places.reverse();
    (places, buckets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_parameters_come_first() {
        let place = |bucket, range| Place { bucket, range };
        let (places, buckets) = assign(&[1, 3, 2, 2], 4);
        assert_eq!(places, [place(1, 3..4), place(1, 0..3), place(0, 2..4), place(0, 0..2)]);
        assert_eq!(buckets, [4, 4]);
    }

    #[test]
    fn a_large_gradient_has_a_bucket_of_its_own() {
        assert_eq!(assign(&[1, 9, 1], 4).1, [1, 9, 1]);
        assert_eq!(assign(&[1, 1], 0).1, [1, 1]);
        assert_eq!(assign(&[0, 0], 4).1, [0]);
        assert_eq!(assign(&[], 4), (vec![], vec![]));
    }
}
