//! All-reduce by exchanging whole vectors: in round k each member of the core exchanges with the one whose place differs in
//! bit k, and both combine.
//!
//! Where the number of ranks is no power of two, the first ranks [fold](super::fold) in pairs: the even one gives its vector
//! to the odd one, sits out the rounds, and gets the result.
//!
//! - Steps: log2 N rounds; 2 more where ranks fold.
//! - On the wire: each rank sends and receives log2 N vectors; the most is one vector more.
//! - Scratch: two vectors. A rank sends a copy, since its own vector changes as the partner's comes in.
//! - Wins: short vectors, where the number of messages in a row sets the time.
//!
//! Both partners compute one value, a op b and b op a, from operands that are by induction the same on all ranks that hold
//! them. Every operation commutes to the last bit, so the results have the same bits on all ranks: those of the canonical
//! order.

use super::Task;
use super::builder::Builder;
use super::extent::Extent;
use super::fold::{Fold, Role};
use super::outline::{Outline, Phase, Reach};
use crate::plan::Slice;

pub(super) fn build(b: &mut Builder, task: &Task<'_>) {
    let (given, data) = (task.spec.contribution(task.rank), task.spec.output(task.rank));
    let fold = Fold::of(task.group.len());
    let (place, partner) = match fold.role(task.rank) {
        Role::Outside { partner } => {
            b.send(partner, given);
            b.recv(partner, data);
            return;
        }
        Role::Core { place, partner } => (place, partner),
    };
    b.copy(given, data);
    if let Some(partner) = partner {
        b.recv_reduce(partner, data);
    }
    for round in 0..fold.rounds() {
        let peer = fold.member(place ^ (1 << round));
        let copy = Slice::scratch(u64::from(round % 2) * data.len, data.len);
        b.copy(data, copy);
        b.send(peer, copy);
        b.recv_reduce(peer, data);
    }
    b.finish(data);
    if let Some(partner) = partner {
        b.send(partner, data);
    }
}

pub(super) fn outline(extent: &Extent<'_>) -> Outline {
    let (fold, bytes) = (Fold::of(extent.ranks), extent.bytes);
    let [before, after] = extent.folding(extent.ranks, bytes, Reach::Flipped);
    let copy = Phase::local(fold.core, if extent.copied { 0.0 } else { bytes });
    let rounds = Extent::distances(fold.core).flat_map(|distance| {
        [copy, Phase::among(fold.core, 1.0, bytes, Reach::Flipped(distance)).combining().passing_on()]
    });
    let peers = fold.rounds() + u32::from(fold.folded > 0);
    Outline::with_peers(peers).then_all(before).then_all(rounds).then_all(after)
}
