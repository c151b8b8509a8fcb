//! Errors: of meeting the other ranks, of parts of them, and of operations.

mod bootstrap;

use std::sync::Arc;
use std::time::Duration;

use qpair_verbs::MemoryError;
use qpair_verbs::calc::{DataType, ReduceOp};
use thiserror::Error;

pub use self::bootstrap::BootstrapError;
use crate::algorithms::RecipeError;
use crate::fault::{Fault, Mismatch, Place, Waits};

/// A communicator of some of the ranks did not come about.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SplitError {
    /// The communicator that was to be split.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// The ranks of the new one did not find each other.
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    /// Not all of the ranks that a list names gave that list.
    #[error("a group of {named} ranks was to be made, and {came} of them gave that list: give the same on all of them")]
    Lists {
        /// How many are named.
        named: usize,
        /// How many gave the same list.
        came: usize,
    },
}

/// An operation did not come about.
///
/// After the first six the communicator is of no use any more: each later call returns the same error at once.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// A rank ended.
    #[error("rank {rank} is gone{}: see its output", waited(*rank, place.as_deref()))]
    RankGone {
        /// The rank.
        rank: u32,
        /// Where this rank was waiting.
        place: Option<Box<Place>>,
    },
    /// A rank dropped its communicator while others needed it.
    #[error(
        "rank {rank} has dropped its communicator{}: all ranks must call the same operations",
        waited(*rank, place.as_deref())
    )]
    RankLeft {
        /// The rank.
        rank: u32,
        /// Where this rank was waiting.
        place: Option<Box<Place>>,
    },
    /// A rank waited too long for another.
    #[error(
        "rank {by} gave up after {limit:?}: it waited for rank {} at {place}{}; see what rank {} does, or raise the limit \
         with set_timeout", place.rank, waits.tell(place.rank), waits.culprit(place.rank).unwrap_or(place.rank)
    )]
    TimedOut {
        /// The rank that waited.
        by: u32,
        /// Where, and for whom.
        place: Box<Place>,
        /// The limit.
        limit: Duration,
        /// What the others waited for then.
        waits: Box<Waits>,
    },
    /// Two ranks were asked for different things.
    #[error("{0}")]
    Mismatch(Box<Mismatch>),
    /// A rank can not go on by itself.
    #[error("rank {rank} failed: {reason}")]
    RankFailed {
        /// The rank.
        rank: u32,
        /// Why.
        reason: Arc<str>,
    },
    /// The communicator was ended by [`abort`](crate::Communicator::abort).
    #[error("rank {rank} ended the communicator: {reason}")]
    Aborted {
        /// The rank that did.
        rank: u32,
        /// What it said.
        reason: Arc<str>,
    },
    /// The root is no rank.
    #[error("there is no rank {root} among {ranks}: choose a root from 0 to {}", ranks - 1)]
    NoSuchRoot {
        /// The root asked for.
        root: usize,
        /// The number of ranks.
        ranks: usize,
    },
    /// The other side of a transfer is no other rank.
    #[error("rank {rank} is no other rank among {ranks}: name one to send to, or to receive from")]
    NoSuchPeer {
        /// The rank named.
        rank: usize,
        /// The number of ranks.
        ranks: usize,
    },
    /// A length does not fit the operation.
    #[error("the {what} has {len} where {expected} fit: {hint}")]
    Length {
        /// What has the length.
        what: &'static str,
        /// Its length in elements.
        len: usize,
        /// The length that would fit.
        expected: usize,
        /// What to do.
        hint: &'static str,
    },
    /// The buffer is another communicator's.
    #[error("the buffer belongs to another communicator: make it with this one's `buffer`")]
    ForeignBuffer,
    /// No memory.
    #[error(transparent)]
    Memory(Arc<MemoryError>),
    /// The result is there, but the vector's memory can not be given back: the vector is empty.
    #[error(
        "a peer that does not run is in the middle of reaching the vector's memory, which is withheld, and there is no \
         other for its {len} bytes ({source}): see why that peer is stopped"
    )]
    Withheld {
        /// The length of the vector in bytes.
        len: usize,
        /// Why there is no other memory.
        source: Arc<MemoryError>,
    },
    /// A gradient was to be taken for the reduced one.
    #[error(
        "the gradient is not reduced since the last update: call start_reduce, or start_reduce_whole, before update"
    )]
    NotReduced,
    /// Tensors of ranks differ, which as one vector would be mixed up.
    #[error("ranks do not have tensors of the same lengths in the same order: give the same list on all")]
    Tensors,
    /// A function of the program's own on memory of GPUs.
    #[error("{op} is a function of this program's, which GPUs do not run: copy the vectors to memory of the processor")]
    NotOnGpu {
        /// The operation.
        op: ReduceOp,
    },
    /// The algorithm does not do the collective.
    #[error(transparent)]
    Algorithm(#[from] RecipeError),
    /// So many operations are under way that differ from each other, as in their lengths.
    #[error("{limit} operations that differ from each other are under way: wait for some before you start others")]
    TooManyPlans {
        /// How many there may be.
        limit: usize,
    },
    /// A plan of the user's own is not to be run.
    #[error("the plan is refused: {0}")]
    OwnPlan(Arc<str>),
    /// A plan is wrong, and was not run.
    #[error("the plan is wrong, which is a bug of its algorithm: {0}; choose another with set_algorithm")]
    Plan(Arc<str>),
    /// The operation is not for the type of the vector.
    #[error("vectors of {data_type} can not be combined by {op}: see ReduceOp::supports")]
    Unsupported {
        /// The operation.
        op: ReduceOp,
        /// The type of the elements.
        data_type: DataType,
    },
}

impl CollectiveError {
    pub(crate) fn new(fault: Fault, place: Option<Place>) -> Self {
        let place = place.map(Box::new);
        match fault {
            Fault::Gone { rank } => Self::RankGone { rank, place },
            Fault::Left { rank } => Self::RankLeft { rank, place },
            Fault::TimedOut { by, place, limit, waits } => {
                Self::TimedOut { by, place: Box::new(place), limit, waits: Box::new(Waits::new(waits)) }
            }
            Fault::Differs(mismatch) => Self::Mismatch(Box::new(mismatch)),
            Fault::Failed { rank, reason } => Self::RankFailed { rank, reason: reason.into() },
            Fault::Aborted { rank, reason } => Self::Aborted { rank, reason: reason.into() },
        }
    }

    /// Whether the communicator is of no use any more.
    pub fn is_fatal(&self) -> bool {
        matches!(
            self,
            Self::RankGone { .. }
                | Self::RankLeft { .. }
                | Self::TimedOut { .. }
                | Self::Mismatch(_)
                | Self::RankFailed { .. }
                | Self::Aborted { .. }
        )
    }
}

impl From<MemoryError> for CollectiveError {
    fn from(error: MemoryError) -> Self {
        Self::Memory(Arc::new(error))
    }
}

/// Where this rank waited, in parentheses.
fn waited(rank: u32, place: Option<&Place>) -> String {
    match place {
        Some(place) if place.rank == rank => format!(" (waited for it at {place})"),
        Some(place) => format!(" (waited for rank {} at {place})", place.rank),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::Algorithm;
    use crate::execute::Call;
    use crate::plan::{Collective, PlanHash};

    #[test]
    fn a_dead_rank_is_named_with_the_place() {
        let call = Call {
            collective: Collective::AllReduce,
            data_type: Some(DataType::F32),
            op: Some(ReduceOp::Sum),
            elements: 1 << 20,
            in_place: true,
            on_gpu: false,
            algorithm: Algorithm::Ring,
            hash: PlanHash(0),
        };
        let place = Place { rank: 2, step: 7, call };
        let error = |place| CollectiveError::new(Fault::Gone { rank: 2 }, place).to_string();
        let words = "rank 2 is gone (waited for it at step 7 of ring all-reduce of 4 MiB): see its output";
        assert_eq!(error(Some(place)), words);
        assert_eq!(error(None), "rank 2 is gone: see its output");
    }
}
