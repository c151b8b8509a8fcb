//! Proves a plan right before it runs, by symbolic execution: results, races, deadlock, bounds.

mod barrier;
mod contents;
mod contract;
mod error;
mod hazards;
mod matching;
mod order;
mod places;
mod rank_set;
mod replay;
mod structure;

pub use error::{OutputFault, VerifyError};
pub(crate) use matching::Matching;

use crate::parallel;
use crate::plan::{Collective, Plan, Program, Spec};

/// What one rank's program must satisfy by itself: bounds, and no races.
///
/// # Errors
/// The first fault found.
pub(crate) fn check_alone(spec: &Spec, rank: u32, program: &Program) -> Result<(), VerifyError> {
    structure::check_program(spec, rank, program)?;
    hazards::check(spec, rank, program)
}

/// Reads of parts of buffers, or combinations of what they hold, that are followed for so many steps: several times what any
/// algorithm makes, which does once apart what it then does as a whole a few times.
fn most_followed(steps: usize) -> usize {
    64 * steps + (1 << 20)
}

/// What was proved of a plan beside that it is right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Proof {
    /// Whether every element of every result is combined in the canonical order, so that its bits do not depend on which
    /// plan makes it. The canonical order is a tree over the ranks: where their number is no power of two, the first ones
    /// are combined in pairs, 0 with 1, 2 with 3, until it is; then neighbours, then pairs of neighbours, and so on. It
    /// does not matter which of two comes first, since every operation commutes to the last bit.
    pub canonical: bool,
    /// The steps of all ranks.
    pub steps: u64,
    /// The most elements of scratch that a rank needs.
    pub scratch: u64,
}

impl Spec {
    /// Checks that there can be such a collective: that there are ranks, the root is one of them, and counts and sizes fit.
    /// [`Plan::verify`] does that too; this is for what comes from elsewhere, before a plan is made of it.
    ///
    /// # Errors
    /// The first fault found.
    pub fn check(&self) -> Result<(), VerifyError> {
        structure::check_spec(self)
    }
}

impl Plan {
    /// Proves that the plan does what its collective says, whatever the timing of the ranks:
    ///
    /// - Every element of every result holds each contribution that belongs to it exactly once, and nothing else, and is
    ///   finished if it is to be. Barrier: every rank's exit depends on every rank's entry.
    /// - All ranks end an all-reduce with the same bits: each element's contributions are combined in one order.
    /// - No deadlock, even where each send waits for its receive, and there is room for one message at a time from one
    ///   rank to another.
    /// - No race: of two steps of a rank that touch the same elements, one of them to write, the
    ///   later depends on the earlier, directly or through other steps of that rank. This is
    ///   stricter than need be, since an order that holds only by way of other ranks does not
    ///   count; so no rank's memory is at the mercy of another's program.
    /// - Every message has its receive, of its length; slices lie within their buffers; the input stays as it is; scratch
    ///   is bounded.
    ///
    /// Takes milliseconds for thousands of steps, and half a second on two cores for the four million of a ring among 1,024
    /// ranks: time grows with steps, and with the pieces that vectors are cut into. Where there are many steps, several
    /// threads share the work.
    ///
    /// # Errors
    /// The first fault found, with the rank and step to look at.
    pub fn verify(&self) -> Result<Proof, VerifyError> {
        structure::check(self)?;
        let matching = Matching::of(self)?;
        // Two things to do that need not know of each other: what a plan with a race holds does not matter, since it is
        // refused for the race.
        let holds = || match self.spec.collective {
            Collective::Barrier => barrier::check(self, &matching).map(|()| true),
            _ => contents::check(self, &matching),
        };
        let (races, held) = parallel::both(self.total_steps(), || hazards::check_all(self), holds);
        races?;
        let canonical = held?;
        let scratch = self.programs.iter().map(|program| program.scratch()).max().unwrap_or(0);
        Ok(Proof { canonical, steps: self.total_steps() as u64, scratch })
    }
}
