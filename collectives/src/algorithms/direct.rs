//! All-reduce in which every rank talks to every other.

use super::split::{Split, plan};
use crate::plan::{Collective, Elements, Grain, Plan, Program, Ranks, StepKind};

/// All-reduce by a full mesh: each rank reduces one block, pulling it from every other rank, and
/// every other rank then pulls the result.
///
/// Rank r pulls from r + 1, r + 2 and so on, so that no rank is pulled from by all at once. It goes
/// segment by segment: a reduced segment is still in the cache of the rank that made it when the
/// others pull it, while that rank goes on to the next.
///
/// - Steps: 2 messages in a row, whatever the number of ranks.
/// - On the wire: each rank sends and receives 2 (N - 1) / N of the vector, the least there is, in
///   2 (N - 1) messages per segment.
/// - Wins: large vectors in shared memory or on a full crossbar, where a pull costs no more from
///   one rank than from another.
///
/// One rank computes each block, so all ranks end with the same bits.
///
/// ```
/// use qpair_collectives::{Elements, Grain, Ranks, algorithms};
///
/// algorithms::direct_all_reduce(Ranks(4), Elements(1 << 20), Grain::default()).verify()?;
/// # Ok::<(), qpair_collectives::VerifyError>(())
/// ```
pub fn direct_all_reduce(ranks: Ranks, len: Elements, grain: Grain) -> Plan {
    let split = Split::new(len, ranks.0, grain);
    plan((Collective::AllReduce, "direct"), (ranks, len), grain, (split.segment_len(), 0), |rank| {
        program(rank, ranks.0, split)
    })
}

fn program(rank: u32, ranks: u32, split: Split) -> Program {
    let mut program = Program::new();
    let after = || (1..ranks).map(|distance| (rank + distance) % ranks);
    // Owners pull from the next rank first: the rank before this one is the first to come.
    let before = || (1..ranks).map(|distance| (rank + ranks - distance) % ranks);
    let mut given = vec![None; ranks as usize];
    for segment in 0..split.most_segments() {
        // This rank's part of everyone's segment.
        for peer in before() {
            given[peer as usize] =
                split.segment(peer, segment).map(|src| program.push(StepKind::Send { peer, src }, None));
        }
        // Its own segment: reduced, then handed out.
        if let Some(own) = split.segment(rank, segment) {
            let mut reduced = None;
            for peer in after() {
                let pull = StepKind::RecvReduce { peer, dst: own };
                reduced = Some(program.push(pull, reduced));
            }
            for peer in before() {
                program.push(StepKind::Send { peer, src: own }, reduced);
            }
        }
        // Everyone's finished segment, over the part that was given for it.
        for peer in after() {
            if let Some(dst) = split.segment(peer, segment) {
                program.push(StepKind::Recv { peer, dst }, given[peer as usize]);
            }
        }
    }
    program
}
