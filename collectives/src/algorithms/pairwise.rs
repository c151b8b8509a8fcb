//! With one partner at a time: in round k each member sends to the one k places on, and receives from the one k places back.
//!
//! - Steps: N - 1 messages in a row, of one part each.
//! - On the wire: each rank sends and receives (N - 1) / N of the vector, the least there is.
//! - Scratch: an all-to-all in place copies what it gives.
//! - Wins: large blocks, where many messages at once would crowd the network.

use super::Task;
use super::builder::Builder;
use super::direct::{copied_before, outgoing, pair_parts};
use super::extent::Extent;
use super::outline::{Outline, Phase, Reach};
use super::parts::Parts;
use crate::plan::{Buffer, Collective, Counts, Slice};

pub(super) fn build(b: &mut Builder, task: &Task<'_>) {
    let (spec, group) = (task.spec, &task.group);
    let given = spec.contribution(task.rank);
    match spec.collective {
        Collective::ReduceScatter => {
            let from = Parts::blocks(spec, given.buffer, given.offset);
            let own = spec.output(task.rank);
            b.copy(from.part(task.rank), own);
            rounds(
                b,
                task,
                |peer| from.part(peer),
                |b, peer, segment, round| {
                    let part = b.part(own, segment);
                    let step = b.recv_reduce(peer, part);
                    if round + 1 == group.len() {
                        b.finish(part);
                    }
                    step
                },
                |b, _| b.segments(own),
            );
            if group.len() == 1 {
                b.finish(own);
            }
        }
        Collective::AllGather => {
            let into = Parts::blocks(spec, Buffer::Data, 0);
            b.copy(given, into.part(task.rank));
            rounds(
                b,
                task,
                |_| given,
                |b, peer, segment, _| b.recv(peer, b.part(into.part(peer), segment)),
                |b, peer| b.segments(into.part(peer)),
            );
        }
        _ => {
            let (gives, gets) = pair_parts(spec, task.rank);
            // In place, before anything comes in its place.
            let given: Vec<Slice> = (0..group.len()).map(|peer| gives.part(peer)).collect();
            let given = outgoing(b, spec, task.rank, given);
            if let Counts::Even(_) = spec.counts {
                rounds(
                    b,
                    task,
                    |peer| given[peer as usize],
                    |b, peer, segment, _| b.recv(peer, b.part(gets.part(peer), segment)),
                    |b, peer| b.segments(gets.part(peer)),
                );
            } else {
                let mut before = Vec::new();
                for round in 1..group.len() {
                    let (to, from) = (group.after(round), group.before(round));
                    b.after(before.iter().copied());
                    let sent = b.send_always(to, given[to as usize]);
                    b.after(before);
                    before = vec![sent, b.recv_always(from, gets.part(from))];
                }
            }
            b.copy(gives.part(task.rank), gets.part(task.rank));
        }
    }
}

/// The rounds, of which a segment goes when that of the round before is through. `gives` says what a rank is sent, `take`
/// takes a segment of what comes from a rank, of which there are `segments`.
fn rounds(
    b: &mut Builder,
    task: &Task<'_>,
    gives: impl Fn(u32) -> Slice,
    take: impl Fn(&mut Builder, u32, u64, u32) -> Option<u32>,
    segments: impl Fn(&Builder, u32) -> u64,
) {
    // By segment: the steps of the round before.
    let mut before: Vec<Vec<u32>> = Vec::new();
    for round in 1..task.group.len() {
        let (to, from) = (task.group.after(round), task.group.before(round));
        let src = gives(to);
        let incoming = segments(b, from);
        for segment in 0..b.segments(src).max(incoming) {
            let lane = segment as usize;
            before.resize_with(before.len().max(lane + 1), Vec::new);
            let waits = std::mem::take(&mut before[lane]);
            b.after(waits.iter().copied());
            let mut steps: Vec<u32> = b.send(to, b.part(src, segment)).into_iter().collect();
            if segment < incoming {
                b.after(waits.iter().copied());
                steps.extend(take(b, from, segment, round));
            }
            before[lane] = if steps.is_empty() { waits } else { steps };
        }
    }
}

pub(super) fn outline(extent: &Extent<'_>) -> Outline {
    let (n, part) = (extent.n(), extent.part());
    let round = Phase::among(n, extent.segments(part), part, Reach::All).times(extent.others()).passing_on();
    let outline = Outline::with_peers(extent.others());
    match extent.collective() {
        Collective::ReduceScatter => outline.then(round.combining()),
        Collective::AllGather => outline.then(round),
        _ => outline.then(Phase::local(n, copied_before(extent))).then(round),
    }
}
