//! The plan of all ranks.

use std::fmt;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::program::Program;
use super::spec::Spec;

/// The version of the plan format that this build writes and accepts.
pub const FORMAT: u32 = 2;

/// One collective, step by step, for every rank: plain data. A [`Recipe`](crate::Recipe) is the compact form of those that
/// algorithms make.
///
/// Counts are in elements, so one plan runs for every element type of its size, and for every
/// operation.
///
/// ```
/// use qpair_collectives::{Algorithm, Elements, Ranks, Recipe, Spec};
///
/// let recipe = Recipe::new(Spec::all_reduce(Ranks(4), Elements(1000), 4), Algorithm::Ring)?;
/// let plan = recipe.plan();
/// plan.verify()?;
/// println!("{plan}"); // the listing: each rank's steps, and what they wait for
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The version of the format: [`FORMAT`].
    pub format: u32,
    /// What the plan does.
    pub spec: Spec,
    /// The name of the algorithm that made it, for people.
    pub algorithm: String,
    /// What each rank does, by rank. Of a plan that is read there are 65,536 at most.
    #[serde(deserialize_with = "programs")]
    pub programs: Vec<Program>,
}

impl Plan {
    /// What `rank` does; `None` if there is no such rank.
    pub fn program(&self, rank: u32) -> Option<&Program> {
        self.programs.get(rank as usize)
    }

    /// The number of steps of all ranks.
    pub fn total_steps(&self) -> usize {
        self.programs.iter().map(Program::len).sum()
    }

    /// The elements of the longest message.
    pub(crate) fn longest_message(&self) -> u64 {
        let steps = self.programs.iter().flat_map(Program::steps);
        steps.filter(|step| step.kind.peer().is_some()).map(|step| step.kind.elements()).max().unwrap_or(0)
    }

    /// All programs with their ranks.
    pub(crate) fn by_rank(&self) -> impl Iterator<Item = (u32, &Program)> {
        (0..).zip(&self.programs)
    }
}

/// Reads programs, but no more than ranks there may be: an empty one is three bytes of text, and fifty times that here.
fn programs<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Program>, D::Error> {
    struct Bounded;

    impl<'de> Visitor<'de> for Bounded {
        type Value = Vec<Program>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "the programs of up to {MOST_PROGRAMS} ranks")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Vec<Program>, A::Error> {
            let mut programs = Vec::new();
            while let Some(program) = from.next_element()? {
                if programs.len() == MOST_PROGRAMS {
                    return Err(A::Error::invalid_length(MOST_PROGRAMS + 1, &self));
                }
                programs.push(program);
            }
            Ok(programs)
        }
    }

    from.deserialize_seq(Bounded)
}

/// Of a plan that is read.
const MOST_PROGRAMS: usize = 1 << 16;
