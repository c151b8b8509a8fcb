//! What operations are looked up by, from how they are called; and whether what a rank has for them fits.

use std::sync::Arc;

use qpair_verbs::calc::{Element, ReduceOp};

use super::comm::Communicator;
use super::location::Location;
use crate::error::CollectiveError;
use crate::execute::Key;
use crate::plan::{Collective, Counts, Spec};

impl Communicator {
    /// The key of a transfer of `len` elements to or from another rank.
    pub(super) fn transfer<T: Element, L: Location>(
        &self,
        len: usize,
        to: Option<usize>,
        from: Option<usize>,
    ) -> Result<Key, CollectiveError> {
        let (from, to) = (from.unwrap_or(self.rank()), to.unwrap_or(self.rank()));
        let other = if from == self.rank() { to } else { from };
        if other >= self.size() || from == to {
            return Err(CollectiveError::NoSuchPeer { rank: other, ranks: self.size() });
        }
        let collective = Collective::Transfer { from: from as u32, to: to as u32 };
        Ok(self.key::<T, L>(collective, Counts::Even(len as u64), false, None))
    }

    /// The key of an operation on whole vectors of `len`.
    #[inline]
    pub(super) fn whole<T: Element, L: Location>(
        &self,
        collective: Collective,
        len: usize,
        in_place: bool,
        op: Option<ReduceOp>,
    ) -> Key {
        self.key::<T, L>(collective, Counts::Even(len as u64), in_place, op)
    }

    /// The key of an operation on vectors of one block per rank, of `len` together.
    #[inline]
    pub(super) fn blocks<T: Element, L: Location>(
        &self,
        collective: Collective,
        len: usize,
        in_place: bool,
        op: Option<ReduceOp>,
    ) -> Result<Key, CollectiveError> {
        let size = self.size();
        if !len.is_multiple_of(size) {
            return Err(CollectiveError::Length {
                what: "vector",
                len,
                expected: len.next_multiple_of(size),
                hint: "give each rank a block of one length, or use a variant with counts",
            });
        }
        Ok(self.key::<T, L>(collective, Counts::Even((len / size) as u64), in_place, op))
    }

    /// The key of an all-to-all with blocks of any lengths.
    pub(super) fn pairs<T: Element, L: Location>(
        &self,
        gives: &[usize],
        gets: &[usize],
    ) -> Result<Key, CollectiveError> {
        let (own, me) = (|list: &[u64]| list[self.rank()] as usize, self.rank() as u32);
        let (gives, gets) = (self.list(gives)?, self.list(gets)?);
        if own(&gives) != own(&gets) {
            return Err(CollectiveError::Length {
                what: "block that a rank gets from itself",
                len: own(&gets),
                expected: own(&gives),
                hint: "it gets as much as it gives itself",
            });
        }
        let counts = Counts::Own { rank: me, gives, gets };
        Ok(self.key::<T, L>(Collective::AllToAll, counts, false, None))
    }

    pub(super) fn ragged(&self, counts: &[usize]) -> Result<Counts, CollectiveError> {
        self.list(counts).map(Counts::Ragged)
    }

    /// Counts, one per rank.
    fn list(&self, counts: &[usize]) -> Result<Arc<Vec<u64>>, CollectiveError> {
        if counts.len() != self.size() {
            return Err(CollectiveError::Length {
                what: "list of counts",
                len: counts.len(),
                expected: self.size(),
                hint: "give one count per rank",
            });
        }
        let total = counts.iter().fold(0_usize, |total, &count| total.saturating_add(count));
        if total > LONGEST {
            let hint = "no vector is as long: see whether a count is wrong";
            return Err(CollectiveError::Length { what: "sum of the counts", len: total, expected: LONGEST, hint });
        }
        Ok(Arc::new(counts.iter().map(|&count| count as u64).collect()))
    }

    pub(super) fn root(&self, root: usize) -> Result<u32, CollectiveError> {
        if root < self.size() { Ok(root as u32) } else { Err(CollectiveError::NoSuchRoot { root, ranks: self.size() }) }
    }

    #[inline]
    pub(super) fn check_lengths(&self, spec: &Spec, input: usize, data: usize) -> Result<(), CollectiveError> {
        let me = self.rank() as u32;
        let lengths = [
            ("input", input, spec.input_len(me)),
            (if spec.in_place { "vector" } else { "output" }, data, spec.data_len(me)),
        ];
        match lengths.into_iter().find(|&(_, len, expected)| len as u64 != expected) {
            None => Ok(()),
            Some((what, len, expected)) => Err(CollectiveError::Length {
                what,
                len,
                expected: expected as usize,
                hint: "see what the operation expects of this rank",
            }),
        }
    }
}

/// Elements of the longest type that a vector may have, and more of any than there is memory for.
const LONGEST: usize = isize::MAX as usize / size_of::<u64>();

/// Which of what a caller has is given, and which gets the result: a single vector does both, or gets it; but one that is sent
/// is given.
#[inline]
pub(super) fn roles<T>(spec: &Spec, me: u32, [first, second]: [T; 2]) -> [T; 2] {
    match spec.collective {
        Collective::Transfer { from, .. } if from == me => [second, first],
        _ => [first, second],
    }
}
