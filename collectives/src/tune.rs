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
    /// All-reduce: [`algorithms::exchange_all_reduce`]; barrier: [`algorithms::exchange_barrier`].
    Exchange,
    /// Broadcast: [`algorithms::flat_broadcast`].
    Flat,
    /// Broadcast: [`algorithms::binomial_broadcast`].
    BinomialTree,
    /// Broadcast: [`algorithms::chain_broadcast`].
    Chain,
    /// Barrier: [`algorithms::dissemination_barrier`].
    Dissemination,
}

impl Algorithm {
    /// Every algorithm, [`Auto`](Self::Auto) first.
    pub const ALL: [Algorithm; 9] = [
        Self::Auto,
        Self::Ring,
        Self::RecursiveDoubling,
        Self::Direct,
        Self::Exchange,
        Self::Flat,
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
            Self::Exchange => "exchange",
            Self::Flat => "flat",
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
            Self::Exchange => matches!(collective, Collective::AllReduce | Collective::Barrier),
            Self::Flat | Self::BinomialTree | Self::Chain => matches!(collective, Collective::Broadcast { .. }),
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
    /// All-reduce of up to so many bytes goes by recursive doubling, or by exchange.
    pub recursive_doubling_to: u64,
    /// Such an all-reduce goes by exchange among up to so many ranks.
    pub exchange_to_ranks: u32,
    /// Longer all-reduces go direct among up to so many ranks, else round the ring.
    pub direct_to_ranks: u32,
    /// Broadcasts go flat, and barriers by exchange, among up to so many ranks.
    pub flat_to_ranks: u32,
    /// Other broadcasts of up to so many bytes go down the tree, above it down the chain.
    pub tree_to: u64,
    /// Bytes of a segment.
    pub segment: u64,
    /// Vectors of up to so many bytes are copied from rank to rank; what is longer goes straight from memory to memory.
    pub eager: u64,
}

impl Default for Tuning {
    /// For shared memory, by measurement on two cores of a Xeon (Sapphire Rapids), medians in us of f32:
    ///
    /// | all-reduce | 64 B | 1 KiB | 4 KiB | 8 KiB | 16 KiB | 64 KiB | 256 KiB | 1 MiB |
    /// |---|---|---|---|---|---|---|---|---|
    /// | 2 ranks, exchange | 0.34 | 0.67 | 1.1 | 1.7 | 2.9 | | | |
    /// | 2 ranks, direct | | | 1.4 | 1.8 | 1.8 | 2.9 | 6.4 | 23 |
    /// | 3 ranks, exchange | 1.7 | 2.5 | 3.3 | | 14 | | | |
    /// | 3 ranks, recursive doubling | 2.7 | 2.4 | 3.2 | | 7.0 | | | |
    /// | 4 ranks, exchange | 2.7 | 4.0 | 5.6 | | 13 | | | |
    /// | 4 ranks, recursive doubling | 2.3 | 3.1 | 4.1 | 5.3 | 15 | 28 | | |
    /// | 4 ranks, direct | | | 8.8 | 9.3 | 11 | 14 | 25 | 93 |
    ///
    /// | broadcast, 4 ranks | 1 KiB | 4 KiB | 16 KiB | 256 KiB | 1 MiB | 16 MiB |
    /// |---|---|---|---|---|---|---|
    /// | flat, copied | 1.1 | 1.6 | 5.1 | | | |
    /// | flat, straight | 5.6 | 4.1 | 4.9 | 16 | 91 | 1730 |
    /// | tree, then chain | 1.2 | 1.5 | 4.2 | 24 | 130 | 3760 |
    ///
    /// Segments of 64 to 256 KiB differ by less than 10 % from 1 to 16 MiB on two ranks; 1 MiB loses 15 % at 4 MiB, where
    /// the second-level cache overflows. Command: `cargo bench -p qpair-collectives --bench all_reduce -- -n 4`, with
    /// `--algorithm`, `--segment` or `--eager`. The limits in ranks, but for the exchange's, are estimates: a mesh has
    /// messages for each pair of ranks.
    fn default() -> Self {
        Self {
            recursive_doubling_to: 8 << 10,
            exchange_to_ranks: 3,
            direct_to_ranks: 64,
            flat_to_ranks: 8,
            tree_to: 64 << 10,
            segment: 128 << 10,
            eager: 8 << 10,
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
                if ranks.0 <= tuning.exchange_to_ranks { Algorithm::Exchange } else { Algorithm::RecursiveDoubling }
            } else if ranks.0 <= tuning.direct_to_ranks {
                Algorithm::Direct
            } else {
                Algorithm::Ring
            }
        }
        (Algorithm::Auto, Collective::Broadcast { .. }) => {
            if ranks.0 <= tuning.flat_to_ranks {
                Algorithm::Flat
            } else if bytes <= tuning.tree_to {
                Algorithm::BinomialTree
            } else {
                Algorithm::Chain
            }
        }
        (Algorithm::Auto, Collective::Barrier) if ranks.0 <= tuning.flat_to_ranks => Algorithm::Exchange,
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
        Algorithm::Exchange if collective == Collective::Barrier => algorithms::exchange_barrier(ranks),
        Algorithm::Exchange => algorithms::exchange_all_reduce(ranks, elements, grain),
        Algorithm::Flat => algorithms::flat_broadcast(ranks, root, elements, grain),
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
