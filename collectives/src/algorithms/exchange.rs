//! All-reduce, and barrier, in which every rank gives all it has to every other at once.

use super::split::plan;
use crate::plan::{Collective, Elements, Grain, Plan, Program, Ranks, Slice, StepKind};

/// All-reduce by one exchange: each rank sends its vector to every other, and combines all of them by itself.
///
/// - Steps: 1 message in a row, whatever the number of ranks.
/// - On the wire: each rank sends and receives N - 1 vectors, and combines as many.
/// - Scratch: two vectors, one of them a copy to send while the vector changes.
/// - Wins: short vectors among few ranks; above all where ranks share cores, since each rank has to run only once for
///   all others to go on.
///
/// All ranks combine in the order of ranks, so they end with the same bits. Each has its own vector at hand and may come
/// to it only after those of the ranks before it; those it combines in scratch, and every operation commutes to the last
/// bit.
///
/// ```
/// use qpair_collectives::{Elements, Grain, Ranks, algorithms};
///
/// algorithms::exchange_all_reduce(Ranks(5), Elements(10), Grain::default()).verify()?;
/// # Ok::<(), qpair_collectives::VerifyError>(())
/// ```
pub fn exchange_all_reduce(ranks: Ranks, len: Elements, grain: Grain) -> Plan {
    let vectors = match ranks.0 {
        0 | 1 => 0,
        2 => 1,
        _ => 2,
    };
    let scratch = len.0.saturating_mul(vectors);
    plan((Collective::AllReduce, "exchange"), (ranks, len), grain, (len.0, scratch), |rank| {
        program(rank, ranks.0, len.0)
    })
}

/// Barrier by one exchange: each rank signals every other.
///
/// - Steps: 1 message in a row.
/// - On the wire: each rank sends and receives N - 1 empty messages.
/// - Wins: among few ranks, as [`exchange_all_reduce`] does.
///
/// ```
/// use qpair_collectives::{Ranks, algorithms};
///
/// algorithms::exchange_barrier(Ranks(4)).verify()?;
/// # Ok::<(), qpair_collectives::VerifyError>(())
/// ```
pub fn exchange_barrier(ranks: Ranks) -> Plan {
    plan((Collective::Barrier, "exchange"), (ranks, Elements(0)), Grain::default(), (0, 0), |rank| {
        let mut program = Program::new();
        for peer in others(rank, ranks.0) {
            program.push(StepKind::Send { peer, src: Slice::EMPTY }, None);
        }
        for peer in others(rank, ranks.0) {
            program.push(StepKind::Recv { peer, dst: Slice::EMPTY }, None);
        }
        program
    })
}

fn program(rank: u32, ranks: u32, len: u64) -> Program {
    let mut program = Program::new();
    if len == 0 || ranks < 2 {
        return program;
    }
    let (data, copy, others_sum) = (Slice::data(0, len), Slice::scratch(0, len), Slice::scratch(len, len));
    let copied = program.push(StepKind::Copy { src: data, dst: copy }, None);
    for peer in others(rank, ranks) {
        program.push(StepKind::Send { peer, src: copy }, [copied]);
    }
    // The ranks before this one: a single one straight into the vector, several in scratch first.
    let mut last = copied;
    if rank == 1 {
        last = program.push(StepKind::RecvReduce { peer: 0, dst: data }, [copied]);
    } else if rank > 1 {
        let mut summed = program.push(StepKind::Recv { peer: 0, dst: others_sum }, None);
        for peer in 1..rank {
            summed = program.push(StepKind::RecvReduce { peer, dst: others_sum }, [summed]);
        }
        last = program.push(StepKind::Reduce { src: others_sum, dst: data }, [copied, summed]);
    }
    for peer in rank + 1..ranks {
        last = program.push(StepKind::RecvReduce { peer, dst: data }, [last]);
    }
    program
}

/// All ranks but `rank`, from the next one on.
fn others(rank: u32, ranks: u32) -> impl Iterator<Item = u32> {
    (1..ranks).map(move |distance| (rank + distance) % ranks)
}
