//! By halving what is exchanged from partner to partner, and then doubling it.
//!
//! All-reduce: in round k a member of the core exchanges half of what it is still responsible for with the one whose place
//! differs in bit k; after the last round each has one part reduced, and goes back the same way, exchanging all it has.
//! Where the number of ranks is no power of two, the first ranks [fold](super::fold) in pairs. It combines in the canonical
//! order.
//!
//! Reduce-scatter and all-gather: the members are split into halves, again and again; each exchanges with its counterpart in
//! the other half what belongs to that half. Where one half has a member more, that one's counterpart is the first of the
//! other half, which gives it what it needs and takes what it gives. So any number of ranks does, without folding.
//!
//! - Steps: log2 N messages in a row, twice for an all-reduce, and 2 more where ranks fold.
//! - On the wire: each rank sends and receives about (N - 1) / N of the vector, twice for an all-reduce; a rank that is
//!   folded onto, one vector more.
//! - Scratch: one vector for a reduce-scatter into another vector.
//! - Wins: middling and large vectors among many ranks.

use super::Task;
use super::builder::Builder;
use super::extent::Extent;
use super::fold::{Fold, Role};
use super::group::Group;
use super::outline::{Outline, Phase, Reach};
use super::parts::Parts;
use crate::plan::{Buffer, Collective, Slice};

pub(super) fn build(b: &mut Builder, task: &Task<'_>) {
    let (spec, group) = (task.spec, &task.group);
    let given = spec.contribution(task.rank);
    match spec.collective {
        Collective::AllReduce => all_reduce(b, group, given, spec.output(task.rank)),
        Collective::ReduceScatter => {
            let from = Parts::blocks(spec, given.buffer, given.offset);
            let work = if spec.in_place { Buffer::Data } else { Buffer::Scratch };
            let work = Parts::blocks(spec, work, 0);
            b.copy(from.whole(), work.whole());
            reduce_scatter(b, group, &work);
            b.copy(work.part(task.rank), spec.output(task.rank));
        }
        _ => {
            let into = Parts::blocks(spec, Buffer::Data, 0);
            b.copy(given, into.part(task.rank));
            all_gather(b, group, &into);
        }
    }
}

/// Combines `given` of all members into `data` of all.
pub(super) fn all_reduce(b: &mut Builder, group: &Group, given: Slice, data: Slice) {
    let fold = Fold::of(group.len());
    let (place, partner) = match fold.role(group.me()) {
        Role::Outside { partner } => {
            let partner = group.rank(partner);
            send(b, partner, given);
            recv(b, partner, data);
            return;
        }
        Role::Core { place, partner } => (place, partner.map(|partner| group.rank(partner))),
    };
    for segment in 0..b.segments(data) {
        let part = b.part(data, segment);
        b.copy(b.part(given, segment), part);
        if let Some(partner) = partner {
            b.recv_reduce(partner, part);
        }
    }
    let peer = |round: u32| group.rank(fold.member(place ^ (1 << round)));
    let mut held = vec![data];
    for round in 0..fold.rounds() {
        let whole = held[round as usize];
        let (low, high) = halves(whole);
        let (kept, other) = if place >> round & 1 == 0 { (low, high) } else { (high, low) };
        send(b, peer(round), other);
        recv_reduce(b, peer(round), kept);
        held.push(kept);
    }
    if let Some(&own) = held.last() {
        for segment in 0..b.segments(own) {
            b.finish(b.part(own, segment));
        }
    }
    for round in (0..fold.rounds()).rev() {
        let (low, high) = halves(held[round as usize]);
        let kept = held[round as usize + 1];
        send(b, peer(round), kept);
        recv(b, peer(round), if kept == low { high } else { low });
    }
    if let Some(partner) = partner {
        send(b, partner, data);
    }
}

/// The two halves of a slice. Only the one that is empty can be taken for the other.
fn halves(whole: Slice) -> (Slice, Slice) {
    let half = whole.len.div_ceil(2);
    let low = Slice { len: half, ..whole };
    (low, Slice { offset: whole.offset + half, len: whole.len - half, ..whole })
}

/// Reduces this member's part of `work`, which holds its contribution.
pub(super) fn reduce_scatter(b: &mut Builder, group: &Group, work: &Parts) {
    for level in levels(group) {
        let Level { first, middle, end, partner, extra } = level;
        let (left, right) = (work.range(first, middle), work.range(middle, end));
        let (kept, other) = if group.me() < middle { (left, right) } else { (right, left) };
        match partner {
            Partner::Both(peer) => {
                send(b, group.rank(peer), other);
                recv_reduce(b, group.rank(peer), kept);
            }
            Partner::Served(peer) => send(b, group.rank(peer), other),
        }
        if let Some(extra) = extra {
            recv_reduce(b, group.rank(extra), kept);
        }
    }
    let own = work.part(group.me());
    for segment in 0..b.segments(own) {
        b.finish(b.part(own, segment));
    }
}

/// Collects all members' parts in `into`, which holds this one's.
pub(super) fn all_gather(b: &mut Builder, group: &Group, into: &Parts) {
    for level in levels(group).into_iter().rev() {
        let Level { first, middle, end, partner, extra } = level;
        let (left, right) = (into.range(first, middle), into.range(middle, end));
        let (held, other) = if group.me() < middle { (left, right) } else { (right, left) };
        match partner {
            Partner::Both(peer) => {
                send(b, group.rank(peer), held);
                recv(b, group.rank(peer), other);
            }
            Partner::Served(peer) => recv(b, group.rank(peer), other),
        }
        if let Some(extra) = extra {
            send(b, group.rank(extra), held);
        }
    }
}

/// One split of the members, as one of them sees it.
struct Level {
    first: u32,
    middle: u32,
    end: u32,
    partner: Partner,
    /// The member without a counterpart, which this one serves.
    extra: Option<u32>,
}

enum Partner {
    /// The counterpart, to exchange with.
    Both(u32),
    /// There is none; that one gives and takes.
    Served(u32),
}

/// The splits down to this member alone. The first half has the member more, if there is one.
fn levels(group: &Group) -> Vec<Level> {
    let me = group.me();
    let (mut first, mut end) = (0, group.len());
    let mut levels = Vec::new();
    while end - first > 1 {
        let middle = first + (end - first).div_ceil(2);
        let (left, right) = (middle - first, end - middle);
        let (partner, extra) = if me >= middle {
            let extra = (me == middle && left > right).then_some(middle - 1);
            (Partner::Both(first + me - middle), extra)
        } else if me - first < right {
            (Partner::Both(middle + me - first), None)
        } else {
            (Partner::Served(middle), None)
        };
        levels.push(Level { first, middle, end, partner, extra });
        (first, end) = if me < middle { (first, middle) } else { (middle, end) };
    }
    levels
}

fn send(b: &mut Builder, peer: u32, whole: Slice) {
    (0..b.segments(whole)).for_each(|segment| _ = b.send(peer, b.part(whole, segment)));
}

fn recv(b: &mut Builder, peer: u32, whole: Slice) {
    (0..b.segments(whole)).for_each(|segment| _ = b.recv(peer, b.part(whole, segment)));
}

fn recv_reduce(b: &mut Builder, peer: u32, whole: Slice) {
    (0..b.segments(whole)).for_each(|segment| _ = b.recv_reduce(peer, b.part(whole, segment)));
}

pub(super) fn outline(extent: &Extent<'_>) -> Outline {
    let (n, part) = (extent.n(), extent.part());
    let outline = Outline::with_peers(Extent::log2(extent.ranks));
    // By distance: what is exchanged with the partner that far.
    let round = |distance: u32| {
        let bytes = part * f64::from(distance.min(extent.ranks - distance));
        Phase::among(n, extent.segments(bytes), bytes, Reach::Flipped(distance)).passing_on()
    };
    match extent.collective() {
        Collective::AllReduce => all_reduce_outline(extent, extent.ranks, extent.bytes, Reach::Flipped),
        Collective::ReduceScatter => {
            let work = if extent.spec.in_place { 0.0 } else { extent.bytes };
            let rounds = Extent::distances(extent.ranks).rev().map(|distance| round(distance).combining());
            outline.then(Phase::local(n, work)).then_all(rounds)
        }
        _ => outline.then_all(Extent::distances(extent.ranks).map(round)),
    }
}

/// That of an all-reduce of so many bytes in each of the groups of that many ranks.
pub(super) fn all_reduce_outline(extent: &Extent<'_>, ranks: u32, bytes: f64, reach: impl Fn(u32) -> Reach) -> Outline {
    let fold = Fold::of(ranks);
    let [before, after] = extent.folding(ranks, bytes, &reach);
    let round = |distance: u32| {
        let bytes = bytes / f64::from(2 * distance);
        Phase::among(fold.core, extent.segments(bytes), bytes, reach(distance)).passing_on()
    };
    let halve = Extent::distances(fold.core).map(|distance| round(distance).combining());
    let double = Extent::distances(fold.core).rev().map(round);
    let peers = fold.rounds() + u32::from(fold.folded > 0);
    Outline::with_peers(peers).then_all(before).then_all(halve).then_all(double).then_all(after)
}
