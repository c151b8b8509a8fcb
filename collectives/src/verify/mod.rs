//! Proves a plan right before it runs, by symbolic execution: results, races, deadlock, bounds.

mod barrier;
mod contents;
mod error;
mod hazards;
mod intervals;
mod matching;
mod rank_set;
mod replay;
mod structure;

pub use error::{OutputFault, VerifyError};
pub(crate) use matching::Matching;

use crate::plan::{Collective, Graph, Plan};

impl Plan {
    /// Proves that the plan does what its collective says, whatever the timing of the ranks:
    ///
    /// - All-reduce: every rank's every output element holds each rank's contribution to that
    ///   element exactly once. Broadcast: it holds the root's. Barrier: every rank's exit depends
    ///   on every rank's entry.
    /// - No deadlock, even where each send waits for its receive.
    /// - No race: of two steps of a rank that touch the same elements, one of them to write, the
    ///   later depends on the earlier, directly or through other steps of that rank. This is
    ///   stricter than need be, since an order that holds only by way of other ranks does not
    ///   count; so no rank's memory is at the mercy of another's program.
    /// - Every message has its receive, of its length; slices lie within their buffers; scratch is
    ///   at most twice the vector.
    ///
    /// Takes milliseconds for thousands of steps: time grows with steps, and with the pieces that
    /// vectors are cut into.
    ///
    /// # Errors
    /// The first fault found, with the rank and step to look at.
    pub fn verify(&self) -> Result<(), VerifyError> {
        structure::check(self)?;
        let matching = Matching::of(self)?;
        for (rank, program) in self.by_rank() {
            hazards::check(self, rank, program)?;
        }
        let graphs: Vec<Graph> = self.programs.iter().map(Graph::of).collect();
        if self.collective == Collective::Barrier {
            barrier::check(self, &matching, &graphs)
        } else {
            contents::check(self, &matching, &graphs)
        }
    }
}
