//! In log2 N messages in a row, each of which carries what has been collected so far (Bruck and others: Efficient algorithms
//! for all-to-all communications in multiport message-passing systems, 1997).
//!
//! All-gather: before round k a member has the blocks of the 2^k members from itself on, and fetches as many from the one
//! 2^k places on. All-to-all: in round k a block that has to travel d places goes 2^k places if bit k of d is set; those that
//! go are packed into one message.
//!
//! - Steps: log2 N messages in a row, rounded up; two where blocks go past the vector's end.
//! - On the wire: S (N - 1) / N for an all-gather, the least there is; up to S log2 N / 2 for an all-to-all.
//! - Scratch: two vectors for an all-to-all.
//! - Wins: short blocks among many ranks.

use super::Task;
use super::builder::Builder;
use super::extent::Extent;
use super::outline::{Outline, Phase, Reach};
use super::parts::Parts;
use crate::plan::{Buffer, Collective, Slice};

pub(super) fn build(b: &mut Builder, task: &Task<'_>) {
    if task.spec.collective == Collective::AllGather { all_gather(b, task) } else { all_to_all(b, task) }
}

fn all_gather(b: &mut Builder, task: &Task<'_>) {
    let (spec, group) = (task.spec, &task.group);
    let into = Parts::blocks(spec, Buffer::Data, 0);
    b.copy(spec.contribution(task.rank), into.part(task.rank));
    let members = group.len();
    let mut distance = 1;
    while distance < members {
        let count = distance.min(members - distance);
        let (to, from) = (group.before(distance), group.after(distance));
        for run in runs(&into, group.me(), count) {
            b.send(group.rank(to), run);
        }
        for run in runs(&into, from, count) {
            b.recv(group.rank(from), run);
        }
        distance *= 2;
    }
}

/// The parts of `count` members from `first` on, round: one run, or two.
fn runs(parts: &Parts, first: u32, count: u32) -> [Slice; 2] {
    let members = parts.count();
    let end = first + count;
    [parts.range(first, end.min(members)), parts.range(0, end.saturating_sub(members))]
}

fn all_to_all(b: &mut Builder, task: &Task<'_>) {
    let (spec, group) = (task.spec, &task.group);
    let (members, block) = (group.len(), spec.block(0));
    let from = if spec.in_place { Buffer::Data } else { Buffer::Input };
    let (gives, gets) = (Parts::blocks(spec, from, 0), Parts::blocks(spec, Buffer::Data, 0));
    // Scratch: the blocks by how far they have to go; then what is packed to be sent, and what came.
    let blocks = Parts::Blocks { first: Slice::scratch(0, block), parts: members };
    let half = u64::from(members.div_ceil(2)) * block;
    let (sent, came) = (u64::from(members) * block, u64::from(members) * block + half);
    b.copy(gives.part(task.rank), gets.part(task.rank));
    // What is for those after this rank, then for those from the first on.
    let (me, after) = (group.me(), members - group.me());
    b.copy(gives.range(me + 1, members), blocks.range(1, after));
    b.copy(gives.range(0, me), blocks.range(after, members));
    let mut distance = 1;
    while distance < members {
        // Blocks that go this far lie together as many at a time.
        let first = (distance..members).step_by(2 * distance as usize);
        let going: Vec<Slice> = first.map(|far| blocks.range(far, members.min(far + distance))).collect();
        let len = going.iter().map(|run| run.len).sum();
        let mut place = sent;
        for run in &going {
            b.copy(*run, Slice::scratch(place, run.len));
            place += run.len;
        }
        b.send(group.rank(group.after(distance)), Slice::scratch(sent, len));
        b.recv(group.rank(group.before(distance)), Slice::scratch(came, len));
        place = came;
        for run in &going {
            b.copy(Slice::scratch(place, run.len), *run);
            place += run.len;
        }
        distance *= 2;
    }
    for far in 1..members {
        b.copy(blocks.part(far), gets.part(group.before(far)));
    }
}

pub(super) fn outline(extent: &Extent<'_>) -> Outline {
    let (n, block) = (extent.n(), extent.part());
    let outline = Outline::with_peers(Extent::log2(extent.ranks));
    let round = |distance: u32, blocks: u32, messages: f64| {
        Phase::among(n, messages, f64::from(blocks) * block, Reach::Apart(distance)).passing_on()
    };
    if extent.collective() == Collective::AllGather {
        let rounds = Extent::distances(extent.ranks);
        return outline.then_all(rounds.map(|distance| {
            let blocks = distance.min(extent.ranks - distance);
            // Some go past the vector's end, and make two.
            round(distance, blocks, 1.0 + f64::from(blocks - 1) / n)
        }));
    }
    // Sorted by how far they have to go, and back; packed and unpacked in each round.
    let sorted = Phase::local(n, 2.0 * extent.others() * block);
    let rounds = Extent::distances(extent.ranks).flat_map(|distance| {
        let going = (0..extent.ranks).filter(|far| far & distance != 0).count() as u32;
        [Phase::local(n, 2.0 * f64::from(going) * block), round(distance, going, 1.0)]
    });
    outline.then(sorted).then_all(rounds)
}
