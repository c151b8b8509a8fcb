//! Broadcast down a chain, in segments.

use super::split::{Split, plan};
use crate::plan::{Collective, Elements, Grain, Plan, Program, Ranks, StepKind};

/// Broadcast by a pipelined chain: each rank hands a segment on while the next one comes in.
///
/// - Steps: N - 1 messages in a row for the first segment, one more for each further one.
/// - On the wire: each rank receives one vector and sends one; the last sends none.
/// - Wins: long vectors, where every link and every core is busy once the chain is full.
///
/// A root that is no rank is left for the verifier to refuse.
///
/// ```
/// use qpair_collectives::{Elements, Grain, Ranks, algorithms};
///
/// algorithms::chain_broadcast(Ranks(4), 0, Elements(1 << 20), Grain::default()).verify()?;
/// # Ok::<(), qpair_collectives::VerifyError>(())
/// ```
pub fn chain_broadcast(ranks: Ranks, root: u32, len: Elements, grain: Grain) -> Plan {
    let split = Split::new(len, 1, grain);
    plan((Collective::Broadcast { root }, "chain"), (ranks, len), grain, (split.segment_len(), 0), |rank| {
        program(rank, ranks.0, root % ranks.0, split)
    })
}

fn program(rank: u32, ranks: u32, root: u32, split: Split) -> Program {
    let mut program = Program::new();
    let next = (rank + 1) % ranks;
    let previous = (rank + ranks - 1) % ranks;
    for segment in 0..split.most_segments() {
        let Some(part) = split.segment(0, segment) else {
            break;
        };
        let received = (rank != root).then(|| {
            let recv = StepKind::Recv { peer: previous, dst: part };
            program.push(recv, None)
        });
        if next != root {
            let send = StepKind::Send { peer: next, src: part };
            program.push(send, received);
        }
    }
    program
}
