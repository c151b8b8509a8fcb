//! All-reduce by exchanging whole vectors with ever farther partners.

use super::split::plan;
use crate::plan::{Collective, Elements, Grain, Plan, Program, Ranks, Slice, StepKind};

/// All-reduce by recursive doubling: in round k each rank exchanges its whole vector with the one
/// whose number differs in bit k, and both combine.
///
/// Where the number of ranks is no power of two, the first ranks fold in pairs: the even one gives
/// its vector to the odd one, sits out the rounds, and gets the result.
///
/// - Steps: log2 N rounds; 2 more where ranks fold.
/// - On the wire: each rank sends and receives log2 N vectors; the most is one vector more.
/// - Scratch: two vectors. A rank sends a copy, since its own vector changes as the partner's
///   comes in.
/// - Wins: short vectors, where the number of messages in a row sets the time.
///
/// Both partners compute one value, a op b and b op a, from operands that are by induction the
/// same on all ranks that hold them. Every operation commutes to the last bit, so the results have
/// the same bits on all ranks, though float sums are grouped otherwise than by another algorithm.
///
/// ```
/// use qpair_collectives::{Elements, Grain, Ranks, algorithms};
///
/// let plan = algorithms::recursive_doubling_all_reduce(Ranks(6), Elements(2), Grain::default());
/// plan.verify()?;
/// # Ok::<(), qpair_collectives::VerifyError>(())
/// ```
pub fn recursive_doubling_all_reduce(ranks: Ranks, len: Elements, grain: Grain) -> Plan {
    let scratch = if ranks.0 > 1 { len.0.saturating_mul(2) } else { 0 };
    plan((Collective::AllReduce, "recursive-doubling"), (ranks, len), grain, (len.0, scratch), |rank| {
        program(rank, ranks.0, len.0)
    })
}

fn program(rank: u32, ranks: u32, len: u64) -> Program {
    let mut program = Program::new();
    if len == 0 || ranks < 2 {
        return program;
    }
    let data = Slice::data(0, len);
    let core = 1 << ranks.ilog2();
    // The first `2 * folded` ranks fold in pairs.
    let folded = ranks - core;
    let mut ready = None;
    if rank < 2 * folded {
        if rank.is_multiple_of(2) {
            let peer = rank + 1;
            let send = program.push(StepKind::Send { peer, src: data }, None);
            program.push(StepKind::Recv { peer, dst: data }, [send]);
            return program;
        }
        let peer = rank - 1;
        ready = Some(program.push(StepKind::RecvReduce { peer, dst: data }, None));
    }
    let in_core = |rank: u32| {
        if rank < 2 * folded { rank / 2 } else { rank - folded }
    };
    let outside = |core: u32| {
        if core < folded { 2 * core + 1 } else { core + folded }
    };
    // The send that last used each half of scratch.
    let mut sent = [None; 2];
    for round in 0..core.ilog2() {
        let peer = outside(in_core(rank) ^ (1 << round));
        let half = round as usize % 2;
        let copy = Slice::scratch(half as u64 * len, len);
        let deps = [ready, sent[half]].into_iter().flatten();
        let copied = program.push(StepKind::Copy { src: data, dst: copy }, deps);
        sent[half] = Some(program.push(StepKind::Send { peer, src: copy }, [copied]));
        ready = Some(program.push(StepKind::RecvReduce { peer, dst: data }, [copied]));
    }
    if rank < 2 * folded {
        let peer = rank - 1;
        program.push(StepKind::Send { peer, src: data }, ready);
    }
    program
}
