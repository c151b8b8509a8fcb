//! Round a ring: each member sends to the next and receives from the one before.
//!
//! The vector is cut into one part per member. In a reduce-scatter each part travels once round and every member adds its
//! own; in an all-gather the finished parts travel round; an all-reduce is both. Segments of a part overlap.
//!
//! - Steps: N - 1 messages in a row, twice for an all-reduce, of one part each.
//! - On the wire: each rank sends and receives (N - 1) / N of the vector, twice for an all-reduce: the least there is.
//! - Scratch: two parts for a reduce-scatter into another vector.
//! - Wins: large vectors where each rank has a link of its own to its neighbour, and messages are cheap beside them.
//!
//! One rank finishes each part and the others copy it, so all ranks end with the same bits.

use super::Task;
use super::builder::Builder;
use super::extent::Extent;
use super::group::Group;
use super::outline::{Outline, Phase, Reach};
use super::parts::Parts;
use crate::plan::{Buffer, Collective, Slice};

pub(super) fn build(b: &mut Builder, task: &Task<'_>) {
    let spec = task.spec;
    let given = spec.contribution(task.rank);
    match spec.collective {
        Collective::AllReduce => {
            let channels = task.recipe.shape.channels.max(1);
            let data = spec.output(task.rank);
            let (given, data) =
                (Parts::split(given, channels, spec.element_size), Parts::split(data, channels, spec.element_size));
            for channel in 0..channels {
                let group = channel_group(&task.group, channel);
                let cut = |whole| Parts::split(whole, group.len(), spec.element_size);
                all_reduce(b, &group, &cut(given.part(channel)), &cut(data.part(channel)));
            }
        }
        Collective::ReduceScatter => {
            let from = Parts::blocks(spec, given.buffer, given.offset);
            if spec.in_place {
                reduce_scatter(b, &task.group, &from, |part, _| from.part(part));
            } else {
                let (own, longest) = (spec.output(task.rank), from.longest());
                let last = task.group.len().saturating_sub(2);
                reduce_scatter(b, &task.group, &from, |part, step| {
                    let slot = Slice::scratch(u64::from(step % 2) * longest, from.part(part).len);
                    if step >= last { own } else { slot }
                });
            }
        }
        _ => all_gather(b, &task.group, given, &Parts::blocks(spec, Buffer::Data, 0)),
    }
}

fn all_reduce(b: &mut Builder, group: &Group, from: &Parts, into: &Parts) {
    reduce_scatter(b, group, from, |part, _| into.part(part));
    all_gather(b, group, into.part(group.me()), into);
}

/// Reduces this member's part. `place` says where a part is combined, by part and step.
pub(super) fn reduce_scatter(b: &mut Builder, group: &Group, from: &Parts, place: impl Fn(u32, u32) -> Slice) {
    let members = group.len();
    if members == 1 {
        let own = place(0, 0);
        b.copy(from.part(0), own);
        b.finish(own);
        return;
    }
    let (next, previous) = (group.rank(group.after(1)), group.rank(group.before(1)));
    for step in 0..members - 1 {
        let (outgoing, incoming) = (group.before(step + 1), group.before(step + 2));
        let src = if step == 0 { from.part(outgoing) } else { place(outgoing, step - 1) };
        let (own, dst) = (from.part(incoming), place(incoming, step));
        for segment in 0..b.segments(src).max(b.segments(dst)) {
            b.send(next, b.part(src, segment));
            let dst = b.part(dst, segment);
            b.copy(b.part(own, segment), dst);
            b.recv_reduce(previous, dst);
            if step == members - 2 {
                b.finish(dst);
            }
        }
    }
}

/// Collects all members' parts. This one's is `own`.
pub(super) fn all_gather(b: &mut Builder, group: &Group, own: Slice, into: &Parts) {
    if group.len() > 1 {
        let (next, previous) = (group.rank(group.after(1)), group.rank(group.before(1)));
        for step in 0..group.len() - 1 {
            let src = if step == 0 { own } else { into.part(group.before(step)) };
            let dst = into.part(group.before(step + 1));
            for segment in 0..b.segments(src).max(b.segments(dst)) {
                b.send(next, b.part(src, segment));
                b.recv(previous, b.part(dst, segment));
            }
        }
    }
    b.copy(own, into.part(group.me()));
}

/// The ring of a channel: neighbours are so many ranks apart that all ranks are on it.
fn channel_group(all: &Group, channel: u32) -> Group {
    let members = all.len();
    let mut strides = (1..members.max(2)).filter(|&stride| gcd(stride, members) == 1);
    let coprime = strides.clone().count().max(1) as u32;
    match strides.nth((channel % coprime) as usize) {
        Some(stride) if stride > 1 => {
            let ranks = (0..u64::from(members)).map(|at| (at * u64::from(stride) % u64::from(members)) as u32);
            Group::listed(ranks.collect::<Vec<_>>(), all.rank(all.me())).unwrap_or_else(|| all.clone())
        }
        _ => all.clone(),
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

pub(super) fn outline(extent: &Extent<'_>) -> Outline {
    let (n, part) = (extent.n(), extent.part());
    let round = Phase::among(n, extent.segments(part), part, Reach::Apart(1)).times(extent.others());
    let (reduce, gather) = (round.combining().passing_on(), round.passing_on());
    // Into another vector, each part is copied before others are added to it.
    let apart = if extent.spec.in_place { 0.0 } else { extent.others() * part };
    let outline = Outline::with_peers(extent.others().min(2.0));
    match extent.collective() {
        Collective::AllReduce => outline.then(Phase::local(n, apart)).then(reduce).then(gather),
        Collective::ReduceScatter => outline.then(Phase::local(n, apart)).then(reduce),
        _ => outline.then(gather),
    }
}
