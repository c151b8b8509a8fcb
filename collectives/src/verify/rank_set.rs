//! Sets of ranks.

use std::rc::Rc;

use super::most_followed;

/// A set of ranks. What algorithms combine are mostly ranks in a row, round the last: those are kept as two runs; other
/// sets as one bit each, shared by clones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RankSet {
    /// Runs from start up to end, ascending and apart; an empty one has start and end 0 and comes last.
    Runs([Run; 2]),
    Bits(Rc<[u64]>),
}

type Run = (u32, u32);

const NO_RUN: Run = (0, 0);

impl RankSet {
    /// Only `rank`.
    pub(super) fn one(rank: u32) -> Self {
        Self::Runs([(rank, rank + 1), NO_RUN])
    }

    /// All of `ranks` ranks.
    pub(super) fn all(ranks: u32) -> Self {
        Self::Runs([(0, ranks), NO_RUN])
    }

    /// The ranks of either.
    pub(super) fn union(&self, other: &Self) -> Self {
        if let (Self::Runs(a), Self::Runs(b)) = (self, other) {
            // Mostly one is grown by the next ranks, or those before.
            match (a, b) {
                (&[one, NO_RUN], &[next, NO_RUN]) if one.1 == next.0 => return Self::Runs([(one.0, next.1), NO_RUN]),
                (&[next, NO_RUN], &[one, NO_RUN]) if one.1 == next.0 => return Self::Runs([(one.0, next.1), NO_RUN]),
                _ => {}
            }
            if let Some(runs) = merged(a, b) {
                return Self::Runs(runs);
            }
        }
        let (a, b) = (self.words(), other.words());
        let word = |words: &[u64], at: usize| words.get(at).copied().unwrap_or(0);
        let words: Vec<u64> = (0..a.len().max(b.len())).map(|at| word(&a, at) | word(&b, at)).collect();
        Self::Bits(words.into()).normal()
    }

    /// The lowest rank that both have.
    pub(super) fn first_common(&self, other: &Self) -> Option<u32> {
        if let (Self::Runs(a), Self::Runs(b)) = (self, other) {
            let pairs = a.iter().flat_map(|a| b.iter().map(move |b| (a.0.max(b.0), a.1.min(b.1))));
            return pairs.filter(|(start, end)| start < end).map(|(start, _)| start).min();
        }
        let (a, b) = (self.words(), other.words());
        first(a.iter().zip(b.iter()).map(|(a, b)| a & b))
    }

    /// The lowest rank that this has and `other` has not.
    pub(super) fn first_beyond(&self, other: &Self) -> Option<u32> {
        if let (Self::Runs(a), Self::Runs(b)) = (self, other) {
            return a.iter().filter(|run| run.0 < run.1).find_map(|&(start, end)| {
                let after = b.iter().fold(start, |at, run| if run.0 <= at && at < run.1 { run.1 } else { at });
                (after < end).then_some(after)
            });
        }
        let (a, b) = (self.words(), other.words());
        first(a.iter().enumerate().map(|(at, word)| word & !b.get(at).copied().unwrap_or(0)))
    }

    fn words(&self) -> Rc<[u64]> {
        match self {
            Self::Bits(words) => words.clone(),
            Self::Runs(runs) => {
                let end = runs.iter().map(|run| run.1).max().unwrap_or(0);
                let mut words = vec![0; end.div_ceil(64) as usize];
                for rank in runs.iter().flat_map(|run| run.0..run.1) {
                    words[rank as usize / 64] |= 1 << (rank % 64);
                }
                words.into()
            }
        }
    }

    /// As runs if that is possible, so that equal sets are equal.
    fn normal(self) -> Self {
        let Self::Bits(words) = &self else { return self };
        let mut runs = [NO_RUN; 2];
        let (mut found, mut at) = (0, 0);
        while let Some(start) = next(words, at, false) {
            let stop = next(words, start, true).unwrap_or(words.len() as u32 * 64);
            if found == 2 {
                return self;
            }
            runs[found] = (start, stop);
            (found, at) = (found + 1, stop);
        }
        Self::Runs(runs)
    }
}

/// What the sets that are kept may take, so that a plan that has ever more of them is refused before memory runs out.
#[derive(Debug)]
pub(super) struct Allowance {
    pub(super) limit: usize,
    left: usize,
}

impl Allowance {
    /// For a plan of so many steps: some KiB for each, which is several times what any algorithm's takes.
    pub(super) fn for_steps(steps: usize) -> Self {
        let limit = 64 * most_followed(steps);
        Self { limit, left: limit }
    }

    /// Counts one that is to be kept; false if it is too much.
    pub(super) fn takes(&mut self, set: &RankSet) -> bool {
        let RankSet::Bits(words) = set else { return true };
        // Those that are shared count each time.
        let left = self.left.checked_sub(size_of_val::<[u64]>(words));
        self.left = left.unwrap_or(0);
        left.is_some()
    }
}

/// The first rank from `from` on that is in the set; or, of `absent` ones, that is not.
fn next(words: &[u64], from: u32, absent: bool) -> Option<u32> {
    let wanted = |word: u64| if absent { !word } else { word };
    let at = from as usize / 64;
    let begun = wanted(*words.get(at)?) & (u64::MAX << (from % 64));
    let rest = words[at + 1..].iter().map(|&word| wanted(word));
    first([begun].into_iter().chain(rest)).map(|rank| at as u32 * 64 + rank)
}

/// The runs of either, if they are two at most.
fn merged(a: &[Run; 2], b: &[Run; 2]) -> Option<[Run; 2]> {
    let mut all = [a[0], a[1], b[0], b[1]];
    all.sort_unstable_by_key(|run| if run.0 == run.1 { u32::MAX } else { run.0 });
    let mut runs = [NO_RUN; 2];
    let mut count = 0;
    for run in all.into_iter().filter(|run| run.0 < run.1) {
        if count > 0 && run.0 <= runs[count - 1].1 {
            runs[count - 1].1 = runs[count - 1].1.max(run.1);
        } else if count == 2 {
            return None;
        } else {
            runs[count] = run;
            count += 1;
        }
    }
    Some(runs)
}

fn first(words: impl Iterator<Item = u64>) -> Option<u32> {
    let found = (0..).zip(words).find(|&(_, word)| word != 0);
    found.map(|(i, word): (u32, u64)| 64 * i + word.trailing_zeros())
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: RankSet = RankSet::Runs([NO_RUN; 2]);

    #[test]
    fn sets_of_many_runs_have_an_allowance() {
        let mut left = Allowance::for_steps(0);
        let set = |last| [0, 2, last].into_iter().fold(EMPTY, |set, rank| set.union(&RankSet::one(rank)));
        // A MiB each.
        assert_eq!((0..100).filter(|_| left.takes(&set((8 << 20) - 1))).count(), 64);
        assert!((0..100).all(|_| left.takes(&RankSet::all(8 << 20))), "runs take nothing");
    }

    #[test]
    fn all_is_the_union_of_each() {
        for ranks in [1, 63, 64, 65, 130] {
            let last = RankSet::one(ranks - 1);
            let all = RankSet::all(ranks);
            assert_eq!(last.first_common(&all), Some(ranks - 1));
            assert_eq!(last.first_beyond(&all), None);
            let in_steps = |step: u32| (0..ranks).map(move |i| i * step % ranks);
            for step in [1, 11] {
                let built = in_steps(step).fold(EMPTY, |set, rank| set.union(&RankSet::one(rank)));
                assert_eq!(built, all);
            }
            assert_eq!(all.union(&last), all);
            assert_eq!(all.first_beyond(&last), (ranks > 1).then_some(0));
        }
    }

    #[test]
    fn sets_agree_with_lists() {
        let lists: [&[u32]; 6] = [&[], &[3], &[0, 1, 2, 9], &[0, 2, 4, 6, 100], &[63, 64, 65, 200], &[2, 4, 5, 6, 130]];
        let set = |list: &[u32]| list.iter().fold(EMPTY, |set, &rank| set.union(&RankSet::one(rank)));
        for a in lists {
            for b in lists {
                let (one, other) = (set(a), set(b));
                assert_eq!(one.first_common(&other), a.iter().copied().find(|rank| b.contains(rank)), "{a:?} {b:?}");
                assert_eq!(one.first_beyond(&other), a.iter().copied().find(|rank| !b.contains(rank)), "{a:?} {b:?}");
                assert_eq!(one.union(&other), set(&[a, b].concat()));
            }
        }
    }
}
