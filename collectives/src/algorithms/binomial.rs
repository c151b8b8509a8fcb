//! Broadcast down a binomial tree.

use super::split::plan;
use crate::plan::{Collective, Elements, Grain, Plan, Program, Ranks, Slice, StepKind};

/// Broadcast by a binomial tree: each rank that has the vector gives it to one more in each round.
///
/// - Steps: log2 N messages in a row, rounded up.
/// - On the wire: each rank receives one vector; the root sends log2 N of them, half of the ranks
///   none.
/// - Wins: short vectors.
///
/// A root that is no rank is left for the verifier to refuse.
///
/// ```
/// use qpair_collectives::{Elements, Grain, Ranks, algorithms};
///
/// algorithms::binomial_broadcast(Ranks(7), 3, Elements(10), Grain::default()).verify()?;
/// # Ok::<(), qpair_collectives::VerifyError>(())
/// ```
pub fn binomial_broadcast(ranks: Ranks, root: u32, len: Elements, grain: Grain) -> Plan {
    plan((Collective::Broadcast { root }, "binomial-tree"), (ranks, len), grain, (len.0, 0), |rank| {
        program(rank, ranks.0, root % ranks.0, len.0)
    })
}

fn program(rank: u32, ranks: u32, root: u32, len: u64) -> Program {
    let mut program = Program::new();
    if len == 0 {
        return program;
    }
    let data = Slice::data(0, len);
    // Numbers in the tree count from the root; the parent's lacks the lowest bit.
    let place = u64::from((rank + (ranks - root)) % ranks);
    let at = |place: u64| ((place + u64::from(root)) % u64::from(ranks)) as u32;
    let below = if place == 0 { u64::from(ranks).next_power_of_two() } else { 1 << place.trailing_zeros() };
    let received = (place > 0).then(|| {
        let peer = at(place - below);
        program.push(StepKind::Recv { peer, dst: data }, None)
    });
    // The child with the most ranks below it comes first.
    let mut distance = below / 2;
    while distance > 0 {
        if place + distance < u64::from(ranks) {
            let peer = at(place + distance);
            program.push(StepKind::Send { peer, src: data }, received);
        }
        distance /= 2;
    }
    program
}
