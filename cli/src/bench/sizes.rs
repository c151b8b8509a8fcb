//! The sizes to measure.

use super::args::VectorArgs;
use super::error::BenchError;
use crate::size::Size;

/// Sizes in bytes, in ascending order, each at least 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes(Vec<usize>);

/// How a size follows from the one before.
#[derive(Clone, Copy, Debug)]
enum Growth {
    Times(u64),
    Plus(u64),
}

impl Sizes {
    /// The sizes that the arguments ask for.
    ///
    /// # Errors
    /// [`BenchError::Range`] if there is none, [`BenchError::Step`] if they do not grow or are too many,
    /// [`BenchError::TooLarge`] if this machine can not address them.
    pub fn new(args: &VectorArgs) -> Result<Self, BenchError> {
        let growth = args.step_bytes.map_or(Growth::Times(args.factor), |step| Growth::Plus(step.0));
        Self::between(args.begin, args.end, growth)
    }

    fn between(begin: Size, end: Size, growth: Growth) -> Result<Self, BenchError> {
        if begin.0 == 0 || begin > end {
            return Err(BenchError::Range { begin, end });
        }
        if let Growth::Plus(step) = growth {
            let most = (end.0 - begin.0).checked_div(step);
            if most.is_none_or(|most| most > MOST) {
                return Err(BenchError::Step { step: Size(step), most: MOST });
            }
        }
        let next = |size: &u64| match growth {
            Growth::Times(factor) => size.checked_mul(factor),
            Growth::Plus(step) => size.checked_add(step),
        };
        let sizes = std::iter::successors(Some(begin.0), next);
        let sizes = sizes.take_while(|&size| size < end.0).chain([end.0]);
        let sizes = sizes.map(usize::try_from).collect::<Result<_, _>>();
        sizes.map(Sizes).map_err(|_| BenchError::TooLarge { size: end })
    }

    /// How many elements, one in each block, fit in each size if one in each takes so many bytes together; but not none.
    pub fn counts(&self, together: usize) -> Vec<usize> {
        let mut counts: Vec<_> = self.0.iter().map(|size| (size / together).max(1)).collect();
        counts.dedup();
        counts
    }
}

/// Steps that somebody may want to wait for.
const MOST: u64 = 100_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(begin: u64, end: u64, growth: Growth, together: usize) -> Vec<usize> {
        Sizes::between(Size(begin), Size(end), growth).expect("a range").counts(together)
    }

    #[test]
    fn sizes_grow_by_the_factor_and_end_with_the_last() {
        assert_eq!(counts(8, 128, Growth::Times(4), 4), [2, 8, 32]);
        assert_eq!(counts(8, 100, Growth::Times(4), 4), [2, 8, 25]);
        let default = counts(8, 64 << 20, Growth::Times(4), 4);
        assert_eq!((default.len(), default.last()), (13, Some(&(16 << 20))));
    }

    #[test]
    fn sizes_grow_by_the_step_and_end_with_the_last() {
        assert_eq!(counts(8, 32, Growth::Plus(8), 4), [2, 4, 6, 8]);
        assert_eq!(counts(8, 30, Growth::Plus(8), 1), [8, 16, 24, 30]);
    }

    #[test]
    fn a_size_below_one_element_is_one_element_once() {
        assert_eq!(counts(1, 16, Growth::Times(2), 8), [1, 2]);
    }

    #[test]
    fn sizes_do_not_overflow() {
        assert_eq!(counts(1, u64::MAX, Growth::Times(2), 1).len(), 65);
        assert_eq!(counts(u64::MAX - 1, u64::MAX, Growth::Plus(u64::MAX), 1).len(), 2);
    }

    #[test]
    fn no_range_and_no_step_are_typed_errors() {
        for (begin, end) in [(0, 8), (16, 8)] {
            let error = Sizes::between(Size(begin), Size(end), Growth::Times(2)).expect_err("no range");
            assert!(matches!(error, BenchError::Range { .. }), "{error}");
        }
        for step in [0, 1] {
            let error = Sizes::between(Size(8), Size(64 << 20), Growth::Plus(step)).expect_err("no step");
            assert!(matches!(error, BenchError::Step { .. }), "{error}");
        }
    }
}
