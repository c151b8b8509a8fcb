//! Which algorithm, and which segments: a pure function of what all ranks know, so that all ranks
//! decide the same.

use serde::{Deserialize, Serialize};

use crate::algorithms::{Algorithm, Nodes, Recipe, RecipeError, Shape};
use crate::plan::{Collective, Counts, Spec};

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
    /// All-gathers and all-to-alls of up to so many bytes go in log2 N messages in a row among more than
    /// [`flat_to_ranks`](Self::flat_to_ranks).
    pub bruck_to: u64,
    /// Whether results are not to depend on the algorithm, on timing, or on how messages are split: reductions are then
    /// combined in [the canonical order](crate::Proof::canonical). What can not is refused.
    pub deterministic: bool,
    /// Messages of up to so many bytes are copied from rank to rank, if all of a plan are; what is longer goes straight from
    /// memory to memory.
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
            bruck_to: 4 << 10,
            deterministic: false,
            segment: 128 << 10,
            eager: 8 << 10,
        }
    }
}

/// Decides the algorithm for what is asked for.
///
/// # Errors
/// [`RecipeError`] if `wish` names an algorithm that does not do that, or not in the canonical order where results are to be
/// deterministic.
pub fn choose(spec: &Spec, tuning: &Tuning, wish: Algorithm) -> Result<Algorithm, RecipeError> {
    if wish != Algorithm::Auto {
        if tuning.deterministic && spec.collective.reduces() && !wish.orders(spec.collective) {
            let hint = "its results depend on how ranks are arranged: name direct, or none, for deterministic ones";
            return Err(RecipeError::Spec { algorithm: wish, spec: spec.to_string(), hint });
        }
        return Recipe::new(spec.clone(), wish).map(|recipe| recipe.algorithm);
    }
    let (ranks, bytes) = (spec.ranks.0, spec.bytes().unwrap_or(u64::MAX));
    let (few, mesh) = (ranks <= tuning.flat_to_ranks, ranks <= tuning.direct_to_ranks);
    let even = matches!(spec.counts, Counts::Even(_));
    Ok(match spec.collective {
        Collective::AllReduce if bytes <= tuning.recursive_doubling_to => {
            if ranks <= tuning.exchange_to_ranks {
                Algorithm::Exchange
            } else {
                Algorithm::RecursiveDoubling
            }
        }
        Collective::AllReduce if mesh => Algorithm::Direct,
        Collective::AllReduce if tuning.deterministic || bytes / u64::from(ranks) < RING_PART => {
            Algorithm::HalvingDoubling
        }
        Collective::AllReduce => Algorithm::Ring,
        Collective::ReduceScatter if mesh || tuning.deterministic => Algorithm::Direct,
        Collective::ReduceScatter if bytes / u64::from(ranks) < RING_PART => Algorithm::HalvingDoubling,
        Collective::ReduceScatter => Algorithm::Ring,
        Collective::AllGather if few => Algorithm::Direct,
        Collective::AllGather if bytes <= tuning.bruck_to => Algorithm::Bruck,
        Collective::AllGather if mesh => Algorithm::Direct,
        Collective::AllGather => Algorithm::Ring,
        Collective::AllToAll if !few && even && bytes <= tuning.bruck_to => Algorithm::Bruck,
        Collective::AllToAll if mesh => Algorithm::Direct,
        Collective::AllToAll => Algorithm::Pairwise,
        Collective::Broadcast { .. } | Collective::Reduce { .. } if few => Algorithm::Flat,
        Collective::Reduce { .. } if tuning.deterministic => Algorithm::Flat,
        Collective::Broadcast { .. } | Collective::Reduce { .. } if bytes <= tuning.tree_to => Algorithm::BinomialTree,
        Collective::Broadcast { .. } | Collective::Reduce { .. } => Algorithm::Chain,
        Collective::Scatter { .. } | Collective::Gather { .. } if !few && bytes <= tuning.tree_to => {
            Algorithm::BinomialTree
        }
        Collective::Scatter { .. } | Collective::Gather { .. } | Collective::Transfer { .. } => Algorithm::Flat,
        Collective::Barrier if few => Algorithm::Exchange,
        Collective::Barrier => Algorithm::Dissemination,
    })
}

/// Decides, and gives the recipe.
///
/// ```
/// use qpair_collectives::tune::{Tuning, recipe};
/// use qpair_collectives::{Algorithm, Elements, Nodes, Ranks, Spec};
///
/// let tuning = Tuning::default();
/// let all_reduce = |n| {
///     let spec = Spec::all_reduce(Ranks(4), Elements(n), 4);
///     recipe(spec, &tuning, Nodes::One, Algorithm::Auto).map(|recipe| recipe.algorithm)
/// };
/// assert_eq!(all_reduce(2)?, Algorithm::RecursiveDoubling);
/// assert_eq!(all_reduce(1 << 20)?, Algorithm::Direct);
/// # Ok::<(), qpair_collectives::RecipeError>(())
/// ```
///
/// # Errors
/// As [`choose`].
pub fn recipe(spec: Spec, tuning: &Tuning, nodes: Nodes, wish: Algorithm) -> Result<Recipe, RecipeError> {
    let algorithm = choose(&spec, tuning, wish)?;
    let segments = Shape::segments(spec.element_size, tuning.segment);
    let nodes = if algorithm == Algorithm::Hierarchical { nodes } else { Nodes::One };
    let ordered = tuning.deterministic && spec.collective.reduces();
    Recipe::with(spec, algorithm, Shape { nodes, ordered, ..segments })
}

/// Parts of an all-reduce below which the number of messages in a row counts more than links that all ranks use alike.
const RING_PART: u64 = 32 << 10;
