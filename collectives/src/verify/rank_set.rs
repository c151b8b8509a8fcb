//! Sets of ranks.

use std::rc::Rc;

/// A set of ranks, one bit each; a clone shares the bits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RankSet(Rc<[u64]>);

impl RankSet {
    /// No ranks, of `ranks` possible ones.
    pub(super) fn empty(ranks: u32) -> Self {
        Self(vec![0; ranks.div_ceil(64) as usize].into())
    }

    /// Only `rank`.
    pub(super) fn one(ranks: u32, rank: u32) -> Self {
        Self::empty(ranks).with(rank)
    }

    /// All ranks.
    pub(super) fn all(ranks: u32) -> Self {
        let words = (0..ranks.div_ceil(64)).map(|word| match ranks - 64 * word {
            rest @ ..64 => (1 << rest) - 1,
            _ => u64::MAX,
        });
        Self(words.collect())
    }

    fn with(&self, rank: u32) -> Self {
        let bit = |word: usize| {
            let here = word == rank as usize / 64;
            u64::from(here) << (rank % 64)
        };
        Self((0..).zip(self.0.iter()).map(|(i, word)| word | bit(i)).collect())
    }

    /// The ranks of either.
    pub(super) fn union(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(other.0.iter()).map(|(a, b)| a | b).collect())
    }

    /// The lowest rank that both have.
    pub(super) fn first_common(&self, other: &Self) -> Option<u32> {
        first(self.0.iter().zip(other.0.iter()).map(|(a, b)| a & b))
    }

    /// The lowest rank that this has and `other` has not.
    pub(super) fn first_beyond(&self, other: &Self) -> Option<u32> {
        first(self.0.iter().zip(other.0.iter()).map(|(a, b)| a & !b))
    }
}

fn first(words: impl Iterator<Item = u64>) -> Option<u32> {
    let found = (0..).zip(words).find(|&(_, word)| word != 0);
    found.map(|(i, word): (u32, u64)| 64 * i + word.trailing_zeros())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_more_ranks_than_a_word_has_bits() {
        for ranks in [1, 63, 64, 65, 130] {
            let last = RankSet::one(ranks, ranks - 1);
            let all = RankSet::all(ranks);
            assert_eq!(last.first_common(&all), Some(ranks - 1));
            assert_eq!(last.first_beyond(&all), None);
            let built = (0..ranks).fold(RankSet::empty(ranks), |set, rank| set.with(rank));
            assert_eq!(built, all);
            assert_eq!(all.union(&last), all);
            let missing = all.first_beyond(&last);
            assert_eq!(missing, (ranks > 1).then_some(0));
        }
    }
}
