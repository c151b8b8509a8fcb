//! From rank to rank, pipelined in segments.
//!
//! - Steps: N - 1 messages in a row, twice for an all-reduce, and one more for each further segment.
//! - On the wire: S in and out of each rank, twice for an all-reduce.
//! - Scratch: a reduce into another vector combines in four segments.
//! - Wins: broadcasts of large vectors among many ranks, where a rank's link is full with one copy of it.

use super::Task;
use super::builder::Builder;
use super::extent::Extent;
use super::outline::{Outline, Phase, Reach};
use super::tree::{Descent, Tree, through};
use crate::plan::Collective;

pub(super) fn build(b: &mut Builder, task: &Task<'_>) {
    let members = task.group.len();
    let root = task.spec.collective.root().unwrap_or(0) % members;
    let at = (task.rank + members - root) % members;
    let member = |at: u32| (at + root) % members;
    let tree = Tree {
        parent: (at > 0).then(|| member(at - 1)),
        children: if at + 1 < members { vec![member(at + 1)] } else { Vec::new() },
    };
    through(b, task, &tree);
}

pub(super) fn outline(extent: &Extent<'_>) -> Outline {
    let descent = Descent { members: extent.ranks, depth: extent.ranks.saturating_sub(1), children: 1 };
    let down = descent.outline(extent, extent.bytes, Reach::Apart(1));
    let outline = Outline::with_peers(extent.others().min(2.0));
    match extent.collective() {
        Collective::Broadcast { .. } => outline.then_all(down),
        Collective::AllReduce => outline.then_all(down.clone().map(Phase::combining)).then_all(down),
        _ => outline.then_all(down.map(Phase::combining)),
    }
}
