//! Broadcast from the root to each rank by itself.

use super::split::plan;
use crate::plan::{Collective, Elements, Grain, Plan, Program, Ranks, Slice, StepKind};

/// Broadcast without ranks in between: the root gives its vector to each of them.
///
/// - Steps: 1 message in a row.
/// - On the wire: the root sends N - 1 vectors, each other rank receives one.
/// - Wins: in shared memory among few ranks, where each reads the root's memory by its own core, and short vectors where
///   ranks share cores.
///
/// A root that is no rank is left for the verifier to refuse.
///
/// ```
/// use qpair_collectives::{Elements, Grain, Ranks, algorithms};
///
/// algorithms::flat_broadcast(Ranks(4), 2, Elements(10), Grain::default()).verify()?;
/// # Ok::<(), qpair_collectives::VerifyError>(())
/// ```
pub fn flat_broadcast(ranks: Ranks, root: u32, len: Elements, grain: Grain) -> Plan {
    plan((Collective::Broadcast { root }, "flat"), (ranks, len), grain, (len.0, 0), |rank| {
        let mut program = Program::new();
        let (root, data) = (root % ranks.0, Slice::data(0, len.0));
        if len.0 == 0 {
            return program;
        }
        if rank != root {
            program.push(StepKind::Recv { peer: root, dst: data }, None);
            return program;
        }
        for distance in 1..ranks.0 {
            let peer = (root + distance) % ranks.0;
            program.push(StepKind::Send { peer, src: data }, None);
        }
        program
    })
}
