//! Barrier by dissemination.

use super::split::plan;
use crate::plan::{Collective, Elements, Grain, Plan, Program, Ranks, Slice, StepKind};

/// Barrier by dissemination: in round k each rank signals the one 2^k after it, once it has the
/// signals of all rounds before.
///
/// - Steps: log2 N messages in a row, rounded up, on every rank alike.
/// - On the wire: each rank sends and receives log2 N empty messages.
/// - Wins: always, among barriers without help of the network.
///
/// ```
/// use qpair_collectives::{Ranks, algorithms};
///
/// algorithms::dissemination_barrier(Ranks(5)).verify()?;
/// # Ok::<(), qpair_collectives::VerifyError>(())
/// ```
pub fn dissemination_barrier(ranks: Ranks) -> Plan {
    plan((Collective::Barrier, "dissemination"), (ranks, Elements(0)), Grain::default(), (0, 0), |rank| {
        program(u64::from(rank), u64::from(ranks.0))
    })
}

fn program(rank: u64, ranks: u64) -> Program {
    let mut program = Program::new();
    let mut heard = None;
    let mut distance = 1;
    while distance < ranks {
        let send = StepKind::Send { peer: ((rank + distance) % ranks) as u32, src: Slice::EMPTY };
        let recv = StepKind::Recv { peer: ((rank + ranks - distance) % ranks) as u32, dst: Slice::EMPTY };
        program.push(send, heard);
        heard = Some(program.push(recv, heard));
        distance *= 2;
    }
    program
}
