//! The compact form of a plan: what is asked for, and by which algorithm. Each rank's program follows from it alone.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Algorithm;
use super::parts::Parts;
use crate::parallel;
use crate::plan::{Buffer, Collective, Counts, FORMAT, Plan, PlanHash, Program, Slice, Spec};

/// A plan that an algorithm makes: some hundred bytes, whatever the number of ranks. Each rank's program is made when it is
/// needed, by that rank alone.
///
/// ```
/// use qpair_collectives::{Algorithm, Elements, Ranks, Recipe, Spec};
///
/// let spec = Spec::all_reduce(Ranks(16_384), Elements(1 << 24), 4);
/// let recipe = Recipe::new(spec, Algorithm::HalvingDoubling)?;
/// assert_eq!(recipe.program(9).steps().len(), recipe.program(16_383).steps().len());
/// # Ok::<(), qpair_collectives::RecipeError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// The version of the format: [`FORMAT`].
    pub format: u32,
    /// What the plan does.
    pub spec: Spec,
    /// By which algorithm.
    pub algorithm: Algorithm,
    /// With which parameters.
    pub shape: Shape,
}

/// The parameters of algorithms. Each uses those that it knows.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Shape {
    /// Elements of a segment, in which long vectors are pipelined; 0 counts as 1. An algorithm enlarges segments where there
    /// would be thousands of steps.
    pub segment: u64,
    /// Rings that share a vector, each over other neighbours; 0 counts as 1.
    pub channels: u32,
    /// Ranks that reduce for all in the parameter server's way; 0 counts as 1.
    pub servers: u32,
    /// Which ranks share a node.
    pub nodes: Nodes,
    /// Whether contributions are to be combined in [the canonical order](crate::Proof::canonical), where the algorithm can.
    pub ordered: bool,
}

/// Which ranks share a node, for hierarchical algorithms.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Nodes {
    /// All.
    #[default]
    One,
    /// So many ranks in a row on each; the last may have fewer.
    Of(u32),
    /// The node of each rank.
    Listed(Arc<Vec<u32>>),
}

impl Nodes {
    /// The node of `rank`.
    pub fn of(&self, rank: u32) -> u32 {
        match self {
            Self::One => 0,
            Self::Of(ranks) => rank / ranks.max(&1),
            Self::Listed(nodes) => nodes.get(rank as usize).copied().unwrap_or(0),
        }
    }

    /// By node that has any: how many of these ranks it has.
    pub(crate) fn sizes(&self, ranks: impl Iterator<Item = u32>) -> HashMap<u32, u32> {
        let mut sizes = HashMap::new();
        ranks.for_each(|rank| *sizes.entry(self.of(rank)).or_default() += 1);
        sizes
    }
}

impl Default for Shape {
    /// Segments of 32,768 elements, which are 128 KiB of 4 bytes each: a segment and its operand stay in the second-level
    /// cache of current CPUs between being reduced and being pulled.
    fn default() -> Self {
        Self { segment: 32 << 10, channels: 1, servers: 1, nodes: Nodes::One, ordered: false }
    }
}

impl Shape {
    /// Segments of at most `bytes` of elements of `element_size`, but at least one element.
    pub fn segments(element_size: u32, bytes: u64) -> Self {
        Self { segment: (bytes / u64::from(element_size.max(1))).max(1), ..Self::default() }
    }
}

/// Why an algorithm can not do what is asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecipeError {
    /// The algorithm does other collectives.
    #[error("{algorithm} does no {collective}: use one of {}", names(collective))]
    Collective {
        /// The algorithm.
        algorithm: Algorithm,
        /// The collective, by name.
        collective: &'static str,
    },
    /// The algorithm needs counts, or a placement, of another kind.
    #[error("{algorithm} does no {spec}: {hint}")]
    Spec {
        /// The algorithm.
        algorithm: Algorithm,
        /// What was asked for.
        spec: String,
        /// What to do.
        hint: &'static str,
    },
}

/// Those that do it, less what is no recipe's.
fn names(collective: &str) -> String {
    let does = Algorithm::ALL.iter().filter(|algorithm| {
        let mut all = Collective::ALL.into_iter();
        !matches!(algorithm, Algorithm::Auto | Algorithm::Listed)
            && all.any(|other| other.name() == collective && algorithm.does(other))
    });
    does.map(|algorithm| algorithm.name()).collect::<Vec<_>>().join(", ")
}

impl Recipe {
    /// With the default [`Shape`].
    ///
    /// # Errors
    /// [`RecipeError`] if the algorithm does not do that.
    pub fn new(spec: Spec, algorithm: Algorithm) -> Result<Self, RecipeError> {
        Self::with(spec, algorithm, Shape::default())
    }

    /// With these parameters.
    ///
    /// # Errors
    /// [`RecipeError`] if the algorithm does not do that.
    pub fn with(spec: Spec, algorithm: Algorithm, shape: Shape) -> Result<Self, RecipeError> {
        let recipe = Self { format: FORMAT, spec, algorithm, shape };
        recipe.check()?;
        Ok(recipe)
    }

    /// Whether the algorithm does that. A recipe that was read from a file may ask for anything.
    ///
    /// # Errors
    /// [`RecipeError`] if it does not.
    pub fn check(&self) -> Result<(), RecipeError> {
        let (algorithm, spec) = (self.algorithm, &self.spec);
        if !algorithm.does(spec.collective) {
            return Err(RecipeError::Collective { algorithm, collective: spec.collective.name() });
        }
        match algorithm.objection(spec) {
            None => Ok(()),
            Some(hint) => Err(RecipeError::Spec { algorithm, spec: spec.to_string(), hint }),
        }
    }

    /// What `rank` does; nothing if there is no such rank.
    pub fn program(&self, rank: u32) -> Program {
        if rank < self.spec.ranks.0 { super::program(self, rank) } else { Program::new() }
    }

    /// The whole plan, step by step. Takes memory in proportion to the number of steps of all ranks.
    pub fn plan(&self) -> Plan {
        Plan {
            format: self.format,
            spec: self.spec.clone(),
            algorithm: self.algorithm.name().to_owned(),
            programs: self.programs(),
        }
    }

    /// All programs, made on all cores if they are long.
    fn programs(&self) -> Vec<Program> {
        let Some(others) = self.spec.ranks.0.checked_sub(1) else { return Vec::new() };
        let first = self.program(0);
        let steps = first.len().saturating_mul(others as usize);
        let some = |range: Range<usize>| range.map(|other| self.program(other as u32 + 1)).collect::<Vec<_>>();
        let others = parallel::in_ranges(others as usize, steps, some);
        [first].into_iter().chain(others.into_iter().flatten()).collect()
    }

    /// Elements of a segment.
    pub(super) fn segment(&self) -> u64 {
        match self.spec.counts {
            // What two ranks agree on alone goes in one message, since how much others give is not known to both.
            Counts::Pairs(_) | Counts::Own { .. } => u64::MAX,
            _ => self.shape.segment.max(self.spec.total().div_ceil(self.most_segments())).max(1),
        }
    }

    /// The most segments of a vector.
    fn most_segments(&self) -> u64 {
        match self.algorithm {
            Algorithm::Flat | Algorithm::ParameterServer => {
                // What is combined in one order has some segments of scratch, which are not to be of much of the vector.
                let messages = if self.shape.ordered { 4 * MAX_MESSAGES } else { MAX_MESSAGES };
                (messages / u64::from(self.spec.ranks.0)).clamp(1, MAX_SEGMENTS)
            }
            _ => MAX_SEGMENTS,
        }
    }

    /// A bound on the elements of a message, of any rank, without a look at their programs.
    pub(crate) fn longest_message(&self) -> u64 {
        let Spec { collective, counts, ranks, element_size, .. } = &self.spec;
        let apart = match self.algorithm {
            Algorithm::Direct | Algorithm::Ring | Algorithm::Pairwise => true,
            Algorithm::Flat => matches!(collective, Collective::Scatter { .. } | Collective::Gather { .. }),
            _ => false,
        };
        match counts {
            _ if !apart => self.spec.total(),
            Counts::Even(len) if collective.has_blocks() => *len,
            Counts::Even(len) => {
                let whole = Slice { buffer: Buffer::Data, offset: 0, len: *len };
                Parts::split(whole, ranks.0, *element_size).longest()
            }
            Counts::Ragged(counts) | Counts::Pairs(counts) => counts.iter().copied().max().unwrap_or(0),
            Counts::Own { gives, gets, .. } => gives.iter().chain(gets.iter()).copied().max().unwrap_or(0),
        }
    }

    /// About how many steps of all ranks a proof looks at, or pieces of their vectors where these are more, without a look at their
    /// programs: the same on all ranks.
    pub(crate) fn proof_size(&self) -> usize {
        let phases = super::outline(self, false).phases;
        let messages: f64 = phases.iter().map(|phase| phase.rounds * phase.takes.ranks * phase.takes.messages).sum();
        let all_get_of_all = matches!(self.spec.collective, Collective::AllGather | Collective::AllToAll);
        let pieces = if all_get_of_all { f64::from(self.spec.ranks.0).powi(2) } else { 0.0 };
        (2.0 * messages).max(pieces) as usize
    }

    /// The recipe's hash, which is the same on all ranks: what one rank alone knows of an all-to-all does not count.
    pub fn hash(&self) -> PlanHash {
        match self.spec.counts {
            Counts::Own { .. } => PlanHash::of(&(&self.algorithm, &self.shape, "own counts")),
            _ => PlanHash::of(self),
        }
    }
}

/// The most segments of a vector. It keeps a rank's program within some 16,000 steps, however long the vector and short the
/// segments asked for.
const MAX_SEGMENTS: u64 = 4096;
/// The most messages that a rank gets which has one of each other rank for each segment: some 200,000 steps, or four times as many.
const MAX_MESSAGES: u64 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Elements, Ranks};

    /// Also where one rank has nearly all the steps, or where few messages carry many ranks' pieces.
    #[test]
    fn a_proof_is_as_long_as_all_ranks_steps_or_pieces() {
        let size = |algorithm, collective| {
            Recipe::new(Spec::new(collective, Ranks(1000), Elements(1), 4), algorithm).unwrap().proof_size()
        };
        assert_eq!(size(Algorithm::Flat, Collective::ReduceScatter), 4 * 999);
        assert_eq!(size(Algorithm::Flat, Collective::Barrier), 4 * 999);
        assert_eq!(size(Algorithm::Direct, Collective::ReduceScatter), 2 * 1000 * 999);
        assert_eq!(size(Algorithm::Flat, Collective::AllGather), 1000 * 1000);
    }

    /// However long the vector, and also where one rank hears all others.
    #[test]
    fn programs_have_a_bound() {
        for (ranks, algorithm, ordered) in [
            (1024, Algorithm::Flat, true),
            (1024, Algorithm::Flat, false),
            (4096, Algorithm::ParameterServer, true),
            (4096, Algorithm::ParameterServer, false),
            (1024, Algorithm::BinomialTree, false),
        ] {
            let collective = if algorithm == Algorithm::ParameterServer {
                Collective::AllReduce
            } else {
                Collective::Reduce { root: 0 }
            };
            let spec = Spec::new(collective, Ranks(ranks), Elements(1 << 30), 4);
            let mut recipe = Recipe::new(spec, algorithm).unwrap();
            (recipe.shape.ordered, recipe.shape.segment) = (ordered, 1);
            let program = recipe.program(0);
            let steps = program.len();
            assert!(program.scratch() <= (1 << 30) / 2, "{} elements of scratch", program.scratch());
            assert!(
                (1000..if ordered { 1_000_000 } else { 250_000 }).contains(&steps),
                "{steps} steps of {algorithm} among {ranks}, ordered: {ordered}"
            );
        }
    }

    #[test]
    fn no_message_is_longer_than_the_longest() {
        let mut longest_found = 0;
        for (algorithm, collective) in
            Algorithm::ALL.into_iter().flat_map(|a| Collective::ALL.into_iter().map(move |c| (a, c)))
        {
            for (ranks, elements) in [(2, 1), (2, 9), (3, 7), (5, 4), (5, 23), (8, 17), (3, 1537), (5, 4097)] {
                for in_place in [true, false] {
                    let even = Spec { in_place, ..Spec::new(collective, Ranks(ranks), Elements(elements), 4) };
                    let counts = (0..ranks).map(|rank| u64::from(rank) * elements % 11).collect::<Vec<_>>();
                    for spec in [even.clone(), even.with_counts(Counts::Ragged(counts.into()))] {
                        let Ok(recipe) = Recipe::new(spec, algorithm) else { continue };
                        let longest = recipe.longest_message();
                        let found = recipe.plan().longest_message();
                        assert!(found <= longest, "{recipe:?}: {found} of {longest}");
                        longest_found += u32::from(found == longest);
                    }
                }
            }
        }
        assert!(longest_found > 100);
    }
}
