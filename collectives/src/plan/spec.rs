//! What a plan is asked for.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::counts::Counts;

/// How many ranks take part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ranks(pub u32);

/// A number of elements of a vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Elements(pub u64);

/// What a plan does.
///
/// Collectives of blocks cut a long vector into one block per rank, in the order of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Collective {
    /// Every rank's vector becomes the elementwise reduction of all ranks' vectors.
    AllReduce,
    /// Each rank's block becomes the elementwise reduction of that block of all ranks' vectors.
    ReduceScatter,
    /// Every rank's vector becomes all ranks' blocks, one after the other.
    AllGather,
    /// Block b of rank a becomes block a of rank b.
    AllToAll,
    /// Every rank's vector becomes the root's.
    Broadcast {
        /// The rank whose vector is taken.
        root: u32,
    },
    /// The root's vector becomes the elementwise reduction of all ranks' vectors.
    Reduce {
        /// The rank that gets the result.
        root: u32,
    },
    /// Each rank gets its block of the root's vector.
    Scatter {
        /// The rank whose vector is taken.
        root: u32,
    },
    /// The root's vector becomes all ranks' blocks, one after the other.
    Gather {
        /// The rank that gets them.
        root: u32,
    },
    /// One rank's vector goes to another. Others have no part in it.
    Transfer {
        /// The rank that gives it.
        from: u32,
        /// The rank that gets it.
        to: u32,
    },
    /// No rank leaves before every rank has entered. There are no elements.
    Barrier,
}

impl Collective {
    /// One of each, with rank 0 as the root, and transfers from rank 0 to rank 1.
    pub const ALL: [Collective; 10] = [
        Self::AllReduce,
        Self::ReduceScatter,
        Self::AllGather,
        Self::AllToAll,
        Self::Broadcast { root: 0 },
        Self::Reduce { root: 0 },
        Self::Scatter { root: 0 },
        Self::Gather { root: 0 },
        Self::Transfer { from: 0, to: 1 },
        Self::Barrier,
    ];

    /// Its name without a root, as commands take it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all-reduce",
            Self::ReduceScatter => "reduce-scatter",
            Self::AllGather => "all-gather",
            Self::AllToAll => "all-to-all",
            Self::Broadcast { .. } => "broadcast",
            Self::Reduce { .. } => "reduce",
            Self::Scatter { .. } => "scatter",
            Self::Gather { .. } => "gather",
            Self::Transfer { .. } => "transfer",
            Self::Barrier => "barrier",
        }
    }

    /// Whether data goes from one rank to others, or to one from others: what has a root, and transfers.
    pub const fn goes_one_way(self) -> bool {
        self.root().is_some() || matches!(self, Self::Transfer { .. })
    }

    /// The root, where there is one.
    pub const fn root(self) -> Option<u32> {
        match self {
            Self::Broadcast { root } | Self::Reduce { root } | Self::Scatter { root } | Self::Gather { root } => {
                Some(root)
            }
            _ => None,
        }
    }

    /// The same with another root, if it has one.
    pub const fn with_root(self, root: u32) -> Self {
        match self {
            Self::Broadcast { .. } => Self::Broadcast { root },
            Self::Reduce { .. } => Self::Reduce { root },
            Self::Scatter { .. } => Self::Scatter { root },
            Self::Gather { .. } => Self::Gather { root },
            other => other,
        }
    }

    /// Whether elements are combined.
    pub const fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter | Self::Reduce { .. })
    }

    /// Whether vectors are made of one block per rank.
    pub const fn has_blocks(self) -> bool {
        matches!(
            self,
            Self::ReduceScatter | Self::AllGather | Self::AllToAll | Self::Scatter { .. } | Self::Gather { .. }
        )
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Self::Broadcast { root } | Self::Scatter { root } => write!(f, " from rank {root}"),
            Self::Reduce { root } | Self::Gather { root } => write!(f, " to rank {root}"),
            Self::Transfer { from, to } => write!(f, " from rank {from} to rank {to}"),
            _ => Ok(()),
        }
    }
}

/// What a plan is to do: which collective, among how many ranks, on how much, from where to where.
///
/// ```
/// use qpair_collectives::{Elements, Ranks, Spec};
///
/// let spec = Spec::reduce_scatter(Ranks(4), Elements(1000), 4); // blocks of 1000 elements of 4 B
/// assert_eq!((spec.data_len(2), spec.output(2).offset), (4000, 2000));
/// let spec = spec.separate(); // from one vector into another
/// assert_eq!((spec.input_len(2), spec.data_len(2)), (4000, 1000));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Which collective.
    pub collective: Collective,
    /// How many ranks take part.
    pub ranks: Ranks,
    /// The number of elements.
    pub counts: Counts,
    /// Bytes of one element.
    pub element_size: u32,
    /// Whether each rank's result replaces what it gives, in one vector. Else it gives one vector, which stays as it is,
    /// and gets another.
    pub in_place: bool,
    /// Whether each element of a result is finished once, after the last contribution: the division of an average.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub finish: bool,
}

impl Spec {
    /// `collective` in place on `elements` of `element_size` bytes: of the vector, or of each block where the
    /// collective is of blocks. A barrier has no elements, and a transfer goes from one vector into another.
    pub fn new(collective: Collective, ranks: Ranks, elements: Elements, element_size: u32) -> Self {
        let counts = if collective == Collective::Barrier { Counts::Even(0) } else { Counts::Even(elements.0) };
        let in_place = !matches!(collective, Collective::Transfer { .. });
        Self { collective, ranks, counts, element_size, in_place, finish: false }
    }

    /// All-reduce of vectors of `elements`, in place.
    pub fn all_reduce(ranks: Ranks, elements: Elements, element_size: u32) -> Self {
        Self::new(Collective::AllReduce, ranks, elements, element_size)
    }

    /// Reduce-scatter of one block of `elements` per rank, in place.
    pub fn reduce_scatter(ranks: Ranks, elements: Elements, element_size: u32) -> Self {
        Self::new(Collective::ReduceScatter, ranks, elements, element_size)
    }

    /// The same, from one vector into another.
    pub fn separate(self) -> Self {
        Self { in_place: false, ..self }
    }

    /// The same with these counts.
    pub fn with_counts(self, counts: Counts) -> Self {
        Self { counts, ..self }
    }

    /// The same with a finish.
    pub fn finished(self) -> Self {
        Self { finish: true, ..self }
    }

    /// Why no operation of a communicator is this, if none is.
    pub(crate) fn why_no_operation(&self) -> Option<&'static str> {
        let is_ragged = matches!(self.counts, Counts::Ragged(_));
        let goes_over = match self.collective {
            Collective::Scatter { .. } | Collective::Gather { .. } | Collective::Transfer { .. } => true,
            _ => is_ragged,
        };
        match (&self.counts, self.collective, self.in_place) {
            (Counts::Pairs(_) | Counts::Own { .. }, ..) => Some(
                "each rank knows its own counts alone of an all-to-all with counts, which no plan that is given goes by",
            ),
            (_, Collective::Broadcast { .. }, false) => {
                Some("a broadcast is of one vector on each rank: have it be in place")
            }
            (_, _, true) if goes_over => Some(
                "scatter, gather, transfers and what has a count for each rank go from one vector into another: have it do so",
            ),
            _ => None,
        }
    }

    /// Whether it is of no elements on any rank, and all know so: nothing goes from rank to rank then.
    pub(crate) fn is_void(&self) -> bool {
        let is_told = !matches!(self.counts, Counts::Pairs(_) | Counts::Own { .. });
        let is_apart = matches!(self.collective, Collective::Barrier | Collective::Transfer { .. });
        is_told && !is_apart && self.total() == 0
    }

    /// The same as operations of a communicator say it, where a file says it otherwise.
    pub(crate) fn of_operation(self) -> Self {
        match self.collective {
            Collective::Barrier => Self::new(self.collective, self.ranks, Elements(0), 1),
            _ => self,
        }
    }

    /// Whether messages are copied from rank to rank, where none has more than `longest` elements and those of up to `eager`
    /// bytes are; else they go straight from memory to memory, as do those of which one rank alone knows the lengths.
    pub(crate) fn copies(&self, longest: u64, eager: u64) -> bool {
        let alone = matches!(self.counts, Counts::Own { .. });
        !alone && longest.checked_mul(u64::from(self.element_size)).is_some_and(|bytes| bytes <= eager)
    }
}
