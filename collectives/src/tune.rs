//! Which algorithm, and which segments: a pure function of what all ranks know, so that all ranks
//! decide the same.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::algorithms;
use crate::plan::{Collective, Elements, Grain, Plan, Ranks};

/// An algorithm by name, or the choice of one.
///
/// ```
/// use qpair_collectives::tune::Algorithm;
///
/// assert_eq!("recursive-doubling".parse(), Ok(Algorithm::RecursiveDoubling));
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Algorithm {
    /// By collective, ranks and size.
    #[default]
    Auto,
    /// All-reduce: [`algorithms::ring_all_reduce`].
    Ring,
    /// All-reduce: [`algorithms::recursive_doubling_all_reduce`].
    RecursiveDoubling,
    /// All-reduce: [`algorithms::direct_all_reduce`].
    Direct,
    /// Broadcast: [`algorithms::binomial_broadcast`].
    BinomialTree,
    /// Broadcast: [`algorithms::chain_broadcast`].
    Chain,
    /// Barrier: [`algorithms::dissemination_barrier`].
    Dissemination,
}

impl Algorithm {
    /// Every algorithm, [`Auto`](Self::Auto) first.
    pub const ALL: [Algorithm; 7] = [
        Self::Auto,
        Self::Ring,
        Self::RecursiveDoubling,
        Self::Direct,
        Self::BinomialTree,
        Self::Chain,
        Self::Dissemination,
    ];

    /// The name it prints and parses.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Ring => "ring",
            Self::RecursiveDoubling => "recursive-doubling",
            Self::Direct => "direct",
            Self::BinomialTree => "binomial-tree",
            Self::Chain => "chain",
            Self::Dissemination => "dissemination",
        }
    }

    /// Whether it does that collective.
    pub const fn does(self, collective: Collective) -> bool {
        match self {
            Self::Auto => true,
            Self::Ring | Self::RecursiveDoubling | Self::Direct => {
                matches!(collective, Collective::AllReduce)
            }
            Self::BinomialTree | Self::Chain => matches!(collective, Collective::Broadcast { .. }),
            Self::Dissemination => matches!(collective, Collective::Barrier),
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = TuneError;

    fn from_str(text: &str) -> Result<Self, TuneError> {
        let found = Self::ALL.into_iter().find(|a| a.name() == text);
        found.ok_or_else(|| TuneError::Unknown { name: text.to_owned() })
    }
}

/// Where one algorithm gives way to another. The same on all ranks, or their plans differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Tuning {
    /// All-reduce of up to so many bytes goes by recursive doubling.
    pub recursive_doubling_to: u64,
    /// All-reduce above that goes direct among up to so many ranks, else round the ring.
    pub direct_to_ranks: u32,
    /// Broadcast of up to so many bytes goes down the tree, above it down the chain.
    pub tree_to: u64,
    /// Bytes of a segment.
    pub segment: u64,
    /// Messages of up to so many bytes are copied to the receiver; longer ones it reads from exposed memory. Where one
    /// message of a plan is longer, all are read.
    pub eager: u64,
}

impl Default for Tuning {
    /// For shared memory.
    ///
    /// Direct needs two messages in a row and each rank 2 / N of the vector's bytes to pull and
    /// reduce; recursive doubling needs log2 N messages, each with the whole vector. At some 0.3 us
    /// a message and 20 GB/s they meet at a few KiB. On a mesh of more than 64 ranks the messages
    /// of each segment are too small. A chain of 4 ranks takes two hops more than a tree, and half
    /// the copies in a row: even at about 64 KiB.
    fn default() -> Self {
        Self {
            recursive_doubling_to: 8 << 10,
            direct_to_ranks: 64,
            tree_to: 64 << 10,
            segment: 128 << 10,
            eager: 16 << 10,
        }
    }
}

/// Decides the algorithm for a vector of `bytes`.
///
/// # Errors
/// [`TuneError::Mismatch`] if `wish` names an algorithm for another collective.
pub fn choose(
    collective: Collective,
    ranks: Ranks,
    bytes: u64,
    tuning: &Tuning,
    wish: Algorithm,
) -> Result<Algorithm, TuneError> {
    if !wish.does(collective) {
        return Err(TuneError::Mismatch { algorithm: wish, collective });
    }
    Ok(match (wish, collective) {
        (Algorithm::Auto, Collective::AllReduce) => {
            if bytes <= tuning.recursive_doubling_to {
                Algorithm::RecursiveDoubling
            } else if ranks.0 <= tuning.direct_to_ranks {
                Algorithm::Direct
            } else {
                Algorithm::Ring
            }
        }
        (Algorithm::Auto, Collective::Broadcast { .. }) => {
            if bytes <= tuning.tree_to {
                Algorithm::BinomialTree
            } else {
                Algorithm::Chain
            }
        }
        (Algorithm::Auto, Collective::Barrier) => Algorithm::Dissemination,
        (named, _) => named,
    })
}

/// Decides, and builds the plan. `elements` is ignored for a barrier.
///
/// ```
/// use qpair_collectives::tune::{Algorithm, Tuning, plan};
/// use qpair_collectives::{Collective, Elements, Ranks};
///
/// let (ranks, tuning) = (Ranks(4), Tuning::default());
/// let all_reduce = |n| plan(Collective::AllReduce, ranks, Elements(n), 4, &tuning, Algorithm::Auto);
/// assert_eq!(all_reduce(2)?.algorithm, "recursive-doubling");
/// assert_eq!(all_reduce(1 << 20)?.algorithm, "direct");
/// # Ok::<(), qpair_collectives::tune::TuneError>(())
/// ```
///
/// # Errors
/// As [`choose`].
pub fn plan(
    collective: Collective,
    ranks: Ranks,
    elements: Elements,
    element_size: u32,
    tuning: &Tuning,
    wish: Algorithm,
) -> Result<Plan, TuneError> {
    let bytes = elements.0.saturating_mul(u64::from(element_size));
    let grain = Grain::new(element_size, tuning.segment);
    let root = match collective {
        Collective::Broadcast { root } => root,
        _ => 0,
    };
    Ok(match choose(collective, ranks, bytes, tuning, wish)? {
        Algorithm::Auto | Algorithm::Ring => algorithms::ring_all_reduce(ranks, elements, grain),
        Algorithm::RecursiveDoubling => algorithms::recursive_doubling_all_reduce(ranks, elements, grain),
        Algorithm::Direct => algorithms::direct_all_reduce(ranks, elements, grain),
        Algorithm::BinomialTree => algorithms::binomial_broadcast(ranks, root, elements, grain),
        Algorithm::Chain => algorithms::chain_broadcast(ranks, root, elements, grain),
        Algorithm::Dissemination => algorithms::dissemination_barrier(ranks),
    })
}

/// Why no algorithm can be decided.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TuneError {
    /// The name is no algorithm's.
    #[error("unknown algorithm `{name}`: use one of {}", Algorithm::ALL.map(Algorithm::name).join(", "))]
    Unknown {
        /// The name.
        name: String,
    },
    /// The algorithm does another collective.
    #[error("{algorithm} does no {collective}: use auto")]
    Mismatch {
        /// The algorithm asked for.
        algorithm: Algorithm,
        /// The collective asked for.
        collective: Collective,
    },
}
