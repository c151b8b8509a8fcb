//! The plan of all ranks.

use serde::{Deserialize, Serialize};

use super::program::Program;
use super::spec::{Collective, Elements, Ranks};

/// The version of the plan format that this build writes and accepts.
pub const FORMAT: u32 = 1;

/// One collective, step by step, for every rank: plain data.
///
/// Counts are in elements, so one plan runs for every element type of its size, and for every
/// operation.
///
/// ```
/// use qpair_collectives::{Elements, Grain, Ranks, algorithms};
///
/// let plan = algorithms::ring_all_reduce(Ranks(4), Elements(1000), Grain::default());
/// plan.verify()?;
/// println!("{plan}"); // the listing: each rank's steps, and what they wait for
/// # Ok::<(), qpair_collectives::VerifyError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The version of the format: [`FORMAT`].
    pub format: u32,
    /// What the plan does.
    pub collective: Collective,
    /// The name of the algorithm that made it, for people.
    pub algorithm: String,
    /// How many ranks take part.
    pub ranks: Ranks,
    /// The length of each rank's vector.
    pub elements: Elements,
    /// Bytes of one element.
    pub element_size: u32,
    /// The most elements that a pipelined message carries, for people.
    pub segment: u64,
    /// Elements of scratch that each rank needs.
    pub scratch: u64,
    /// What each rank does, by rank.
    pub programs: Vec<Program>,
}

impl Plan {
    /// What `rank` does; `None` if there is no such rank.
    pub fn program(&self, rank: u32) -> Option<&Program> {
        self.programs.get(rank as usize)
    }

    /// Bytes of each rank's vector; `None` if that is no `u64`.
    pub fn bytes(&self) -> Option<u64> {
        self.elements.0.checked_mul(u64::from(self.element_size))
    }

    /// The number of steps of all ranks.
    pub fn total_steps(&self) -> usize {
        self.programs.iter().map(Program::len).sum()
    }

    /// All programs with their ranks.
    pub(crate) fn by_rank(&self) -> impl Iterator<Item = (u32, &Program)> {
        (0..).zip(&self.programs)
    }
}
