//! Between the root and each rank by itself. What has no root goes by way of the first rank: all give it what they have, and
//! get of it what is theirs. An all-to-all goes by way of the first of each four ranks, which gets what is for these.
//!
//! - Steps: 1 message in a row; 2 by way of the first rank.
//! - On the wire: the root sends or receives N - 1 vectors (blocks, for scatter and gather), each other rank one. The first
//!   rank both: in vectors and out blocks for a reduce-scatter, the other way round for an all-gather. In an all-to-all the
//!   first of each four takes in and gives out nearly four, others one.
//! - Scratch: of the first rank one vector, and for a reduce-scatter in the canonical order one for each halving of the ranks;
//!   for an all-to-all up to seven, of the first of each four.
//! - Wins: in shared memory among few ranks, where each reads the root's memory by its own core, and short vectors where
//!   ranks share cores: by way of the first rank there are 2 (N - 1) messages, where there are N (N - 1) if every rank talks
//!   to every other; in an all-to-all some N²/4 + N.
//!
//! A transfer is what goes from one rank to one other.

use super::Task;
use super::builder::Builder;
use super::combine;
use super::direct::pair_parts;
use super::extent::Extent;
use super::outline::{Outline, Phase, Reach, Side};
use super::parts::Parts;
use super::tree::reduced;
use crate::plan::{Buffer, Collective, Slice};

pub(super) fn build(b: &mut Builder, task: &Task<'_>) {
    let (spec, group) = (task.spec, &task.group);
    let (given, data) = (spec.contribution(task.rank), spec.output(task.rank));
    match spec.collective {
        Collective::Transfer { from, to } if from == to => _ = b.copy(given, data),
        Collective::Transfer { from, to } => {
            if task.rank == from {
                b.send_always(to, given);
            } else if task.rank == to {
                b.recv_always(from, data);
            }
        }
        Collective::Broadcast { root } if task.rank == root => {
            group.others().for_each(|peer| _ = b.send(group.rank(peer), data));
        }
        Collective::Broadcast { root } => _ = b.recv(root, data),
        Collective::Scatter { root } if task.rank == root => {
            let blocks = Parts::blocks(spec, given.buffer, given.offset);
            group.others().for_each(|peer| _ = b.send(group.rank(peer), blocks.part(peer)));
            b.copy(blocks.part(root), data);
        }
        Collective::Scatter { root } => _ = b.recv(root, data),
        Collective::Gather { root } if task.rank == root => {
            let blocks = Parts::blocks(spec, Buffer::Data, 0);
            group.others().for_each(|peer| _ = b.recv(group.rank(peer), blocks.part(peer)));
            b.copy(given, blocks.part(root));
        }
        Collective::Gather { root } => _ = b.send(root, given),
        Collective::ReduceScatter => reduce_scatter(b, task),
        Collective::AllGather => all_gather(b, task),
        Collective::AllToAll => all_to_all(b, task),
        Collective::Barrier => barrier(b, task),
        _ => {
            let root = spec.collective.root().unwrap_or(0);
            for segment in 0..b.segments(given) {
                let part = b.part(given, segment);
                if task.rank != root {
                    b.send(root, part);
                    continue;
                }
                let into = reduced(b, task, part, segment);
                b.copy(part, into);
                let scratch = segment % 2 * u64::from(group.len().ilog2() + 1) * b.segment.min(given.len);
                combine::pull(b, group, into, scratch, task.recipe.shape.ordered);
            }
        }
    }
}

fn reduce_scatter(b: &mut Builder, task: &Task<'_>) {
    let (spec, group) = (task.spec, &task.group);
    let (given, own) = (spec.contribution(task.rank), spec.output(task.rank));
    if task.rank != FIRST {
        b.send(FIRST, given);
        b.recv(FIRST, own);
        return;
    }
    let sum = Slice::scratch(0, given.len);
    b.copy(given, sum);
    combine::pull(b, group, sum, sum.len, task.recipe.shape.ordered);
    let sums = Parts::blocks(spec, sum.buffer, sum.offset);
    group.others().for_each(|peer| _ = b.send(group.rank(peer), sums.part(peer)));
    b.copy(sums.part(FIRST), own);
}

fn all_gather(b: &mut Builder, task: &Task<'_>) {
    let (spec, group) = (task.spec, &task.group);
    let (given, blocks) = (spec.contribution(task.rank), Parts::blocks(spec, Buffer::Data, 0));
    if task.rank != FIRST {
        b.send(FIRST, given);
        b.recv(FIRST, blocks.whole());
        return;
    }
    // Each message then waits for one step, instead of as many as there are ranks.
    let gathered = Parts::blocks(spec, Buffer::Scratch, 0);
    b.copy(given, gathered.part(FIRST));
    group.others().for_each(|peer| _ = b.recv(group.rank(peer), gathered.part(peer)));
    b.copy(gathered.whole(), blocks.whole());
    group.others().for_each(|peer| _ = b.send(group.rank(peer), blocks.whole()));
}

fn barrier(b: &mut Builder, task: &Task<'_>) {
    if task.rank != FIRST {
        b.signal(FIRST);
        b.hear(FIRST);
        return;
    }
    // One after the other: the last of them stands for all.
    let (group, mut heard) = (&task.group, None);
    for peer in group.others() {
        b.after(heard);
        heard = Some(b.hear(group.rank(peer)));
    }
    for peer in group.others() {
        b.after(heard);
        b.signal(group.rank(peer));
    }
}

/// Each rank gives the first of every four what is for those four, and gets of the first of its own four what all gave for it.
fn all_to_all(b: &mut Builder, task: &Task<'_>) {
    let (spec, group) = (task.spec, &task.group);
    let (me, block) = (group.me(), spec.block(0));
    let (gives, gets) = pair_parts(spec, me);
    let fours = || (0..group.len()).step_by(FOUR as usize).map(|first| first..group.len().min(first + FOUR));
    for four in fours().filter(|four| four.start != me) {
        b.send(group.rank(four.start), gives.range(four.start, four.end));
    }
    if !me.is_multiple_of(FOUR) {
        b.recv(group.rank(me - me % FOUR), gets.whole());
        return;
    }
    let four = me..group.len().min(me + FOUR);
    let blocks = |count: u64| block.saturating_mul(count);
    let (all, width) = (u64::from(group.len()), u64::from(four.end - four.start));
    // What others give, each its blocks for the four; behind it what each of these gets.
    let came = |from: u32, to: u32| match from {
        from if from == me => gives.part(to),
        from => Slice::scratch(blocks(u64::from(from) * width + u64::from(to - me)), block),
    };
    for from in group.others() {
        b.recv(group.rank(from), Slice { len: blocks(width), ..came(from, me) });
    }
    for (place, to) in (width..).zip(four.skip(1)) {
        let packed = Parts::blocks(spec, Buffer::Scratch, blocks(all * place));
        (0..group.len()).for_each(|from| _ = b.copy(came(from, to), packed.part(from)));
        b.send(group.rank(to), packed.whole());
    }
    (0..group.len()).for_each(|from| _ = b.copy(came(from, me), gets.part(from)));
}

/// The rank by way of which goes what has no root.
const FIRST: u32 = 0;

/// Ranks of which the first sorts for all what they get in an all-to-all, in twice as many vectors of scratch less one, which among as
/// many ranks is all that a plan may have: by more, it would have more of the work; by fewer, there would be more messages.
const FOUR: u32 = 4;

pub(super) fn outline(extent: &Extent<'_>) -> Outline {
    let (others, bytes, block) = (extent.others(), extent.bytes, extent.part());
    let outline = Outline::with_peers(others).mostly(1);
    match extent.collective() {
        Collective::Transfer { .. } => Outline::with_peers(1).then(Phase::spread(1, 1.0, bytes, Reach::All)),
        Collective::Broadcast { .. } => outline.then(Phase::spread(others, 1.0, bytes, Reach::All)),
        Collective::Scatter { .. } => outline.then(Phase::spread(others, 1.0, block, Reach::All)),
        Collective::Gather { .. } => outline.then(Phase::collect(others, 1.0, block, Reach::All)),
        Collective::AllToAll => {
            let fours = f64::from(extent.ranks.div_ceil(FOUR));
            // On average, where the last four are fewer.
            let four = extent.n() / fours;
            let taken = Side { ranks: fours, messages: others, bytes: others * four * block };
            let each = fours / extent.n();
            let given = Side { ranks: extent.n(), messages: each * taken.messages, bytes: each * taken.bytes };
            let collect = Phase { gives: given, takes: taken, ..Phase::among(0, 0.0, 0.0, Reach::All) };
            // Sorted by whose it is, and given to those that follow the first, as a parent's in a tree.
            let sorted = Phase::local(fours, four * bytes);
            let spread = Phase::spread(four - 1.0, 1.0, bytes, Reach::Tree).of_groups(fours).passing_on();
            let outline = outline.mostly(fours);
            outline.then(collect).then(sorted).then(spread)
        }
        collective @ (Collective::ReduceScatter | Collective::AllGather | Collective::Barrier) => {
            let (given, local, gotten) = match collective {
                Collective::ReduceScatter => (bytes, bytes + extent.sums(extent.ordered, others, bytes), block),
                Collective::AllGather => (block, bytes, bytes),
                _ => (0.0, 0.0, 0.0),
            };
            let collect = Phase::collect(others, 1.0, given, Reach::All);
            let collect = if collective.reduces() { collect.combining() } else { collect };
            let spread = Phase::spread(others, 1.0, gotten, Reach::All).passing_on();
            outline.then(collect).then(Phase::local(1, local)).then(spread)
        }
        _ => {
            let sums = Phase::local(1, extent.sums(extent.ordered, others, bytes));
            let reduce = Phase::collect(others, extent.segments(bytes), bytes, Reach::All).combining();
            outline.then(sums).then(reduce)
        }
    }
}
