//! Every member talks to every other.
//!
//! In a reduce-scatter each member pulls its part from every other and reduces it; in an all-gather it pulls every other's;
//! an all-reduce is both, segment by segment: a reduced segment is still in the cache of the member that made it when the
//! others pull it, while that one goes on to the next. Member m pulls from m + 1, m + 2 and so on, so that none is pulled
//! from by all at once.
//!
//! - Steps: 1 message in a row, 2 for an all-reduce, whatever the number of ranks.
//! - On the wire: each rank sends and receives (N - 1) / N of the vector, twice for an all-reduce: the least there is, in
//!   N - 1 messages per segment.
//! - Scratch: an all-to-all in place copies what it gives.
//! - Wins: in shared memory or on a full crossbar, where a pull costs no more from one rank than from another.
//!
//! One rank computes each part, so all ranks end with the same bits.

use super::Task;
use super::builder::Builder;
use super::combine;
use super::extent::Extent;
use super::group::Group;
use super::outline::{Outline, Phase, Reach};
use super::parts::Parts;
use crate::plan::{Buffer, Collective, Counts, Slice, Spec};

pub(super) fn build(b: &mut Builder, task: &Task<'_>) {
    let (spec, group) = (task.spec, &task.group);
    let given = spec.contribution(task.rank);
    let ordered = task.recipe.shape.ordered;
    match spec.collective {
        Collective::AllReduce => {
            let cut = |whole| Parts::split(whole, group.len(), spec.element_size);
            all_reduce(b, group, &cut(given), &cut(spec.output(task.rank)), ordered);
        }
        Collective::ReduceScatter => {
            let from = Parts::blocks(spec, given.buffer, given.offset);
            reduce_scatter(b, group, &from, spec.output(task.rank), ordered);
        }
        Collective::AllGather => all_gather(b, group, given, &Parts::blocks(spec, Buffer::Data, 0)),
        _ => all_to_all(b, task),
    }
}

pub(super) fn all_reduce(b: &mut Builder, group: &Group, from: &Parts, into: &Parts, ordered: bool) {
    let own = into.part(group.me());
    for segment in 0..(0..group.len()).map(|part| b.segments(into.part(part))).max().unwrap_or(0) {
        give(b, group, from, segment);
        let reduced = b.part(own, segment);
        reduce(b, group, b.part(from.part(group.me()), segment), reduced, segment, ordered);
        for peer in group.others_back() {
            b.send(group.rank(peer), reduced);
        }
        for peer in group.others() {
            b.recv(group.rank(peer), b.part(into.part(peer), segment));
        }
    }
}

/// Reduces this member's part into `own`.
pub(super) fn reduce_scatter(b: &mut Builder, group: &Group, from: &Parts, own: Slice, ordered: bool) {
    for segment in 0..(0..group.len()).map(|part| b.segments(from.part(part))).max().unwrap_or(0) {
        give(b, group, from, segment);
        reduce(b, group, b.part(from.part(group.me()), segment), b.part(own, segment), segment, ordered);
    }
}

/// Collects all members' parts. This one's is `own`.
pub(super) fn all_gather(b: &mut Builder, group: &Group, own: Slice, into: &Parts) {
    for peer in group.others_back() {
        b.send(group.rank(peer), own);
    }
    for peer in group.others() {
        b.recv(group.rank(peer), into.part(peer));
    }
    b.copy(own, into.part(group.me()));
}

/// Gives each owner its part of this member's segment. Owners pull from the next member first: the one before this is the
/// first to come.
fn give(b: &mut Builder, group: &Group, from: &Parts, segment: u64) {
    for peer in group.others_back() {
        b.send(group.rank(peer), b.part(from.part(peer), segment));
    }
}

fn reduce(b: &mut Builder, group: &Group, given: Slice, reduced: Slice, segment: u64, ordered: bool) {
    if reduced.len > 0 {
        b.copy(given, reduced);
        // Every other segment has scratch of its own, so that one can be pulled while the one before is combined.
        let scratch = (segment % 2) * combine_levels(group.len()) * b.segment.min(reduced.len.max(1));
        combine::pull(b, group, reduced, scratch, ordered);
    }
}

/// Sums that a canonical order keeps at a time, at most.
fn combine_levels(members: u32) -> u64 {
    u64::from(members.max(1).ilog2()) + 1
}

pub(super) fn all_to_all(b: &mut Builder, task: &Task<'_>) {
    let group = &task.group;
    let (gives, gets) = pair_parts(task.spec, task.rank);
    // In place, before anything comes in its place.
    let given: Vec<Slice> = (0..group.len()).map(|peer| gives.part(peer)).collect();
    let given = outgoing(b, task.spec, group.me(), given);
    for (behind, peer) in (1..).zip(group.others_back()) {
        let from = group.after(behind);
        if let Counts::Even(_) = task.spec.counts {
            b.send(group.rank(peer), given[peer as usize]);
            b.recv(group.rank(from), gets.part(from));
        } else {
            b.send_always(group.rank(peer), given[peer as usize]);
            b.recv_always(group.rank(from), gets.part(from));
        }
    }
    b.copy(gives.part(group.me()), gets.part(group.me()));
}

/// Where what is given to each may stay until it was taken: in place, in copies.
pub(super) fn outgoing(b: &mut Builder, spec: &Spec, me: u32, mut given: Vec<Slice>) -> Vec<Slice> {
    for (_, slice) in (0..).zip(&mut given).filter(|(peer, _)| spec.in_place && *peer != me) {
        let copy = Slice { buffer: Buffer::Scratch, ..*slice };
        b.copy(*slice, copy);
        *slice = copy;
    }
    given
}

/// What a rank gives to each in an all-to-all, and what it gets.
pub(super) fn pair_parts(spec: &Spec, rank: u32) -> (Parts, Parts) {
    let from = if spec.in_place { Buffer::Data } else { Buffer::Input };
    if let Counts::Even(_) = spec.counts {
        return (Parts::blocks(spec, from, 0), Parts::blocks(spec, Buffer::Data, 0));
    }
    let ranks = 0..spec.ranks.0;
    let gives = Parts::of_lengths(from, 0, ranks.clone().map(|to| spec.pair(rank, to)));
    (gives, Parts::of_lengths(Buffer::Data, 0, ranks.map(|from| spec.pair(from, rank))))
}

pub(super) fn outline(extent: &Extent<'_>) -> Outline {
    let (n, others, part) = (extent.n(), extent.others(), extent.part());
    let messages = others * extent.segments(part);
    let all = Phase::among(n, messages, others * part, Reach::All);
    // What is not combined goes in one message to each.
    let whole = Phase::among(n, others, others * part, Reach::All);
    let reduce = [Phase::local(n, extent.sums(extent.ordered, others, part)), all.combining()];
    let outline = Outline::with_peers(others);
    match extent.collective() {
        Collective::AllReduce => outline.then_all(reduce).then(all),
        Collective::ReduceScatter => outline.then_all(reduce),
        Collective::AllGather => outline.then(whole),
        _ => outline.then(Phase::local(n, copied_before(extent))).then(whole),
    }
}

/// Bytes that a rank copies in an all-to-all before anything comes.
pub(super) fn copied_before(extent: &Extent<'_>) -> f64 {
    if extent.spec.in_place { extent.others() * extent.part() } else { 0.0 }
}
