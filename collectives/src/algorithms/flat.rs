//! Between the root and each rank by itself.
//!
//! - Steps: 1 message in a row.
//! - On the wire: the root sends or receives N - 1 vectors (blocks, for scatter and gather), each other rank one.
//! - Wins: in shared memory among few ranks, where each reads the root's memory by its own core, and short vectors where
//!   ranks share cores.
//!
//! A transfer is what goes from one rank to one other.

use super::Task;
use super::builder::Builder;
use super::combine;
use super::extent::Extent;
use super::outline::{Outline, Phase, Reach};
use super::parts::Parts;
use super::tree::reduced;
use crate::plan::{Buffer, Collective};

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

pub(super) fn outline(extent: &Extent<'_>) -> Outline {
    let (others, bytes, block) = (extent.others(), extent.bytes, extent.part());
    let outline = Outline::with_peers(others);
    match extent.collective() {
        Collective::Transfer { .. } => Outline::with_peers(1).then(Phase::spread(1, 1.0, bytes, Reach::All)),
        Collective::Broadcast { .. } => outline.then(Phase::spread(others, 1.0, bytes, Reach::All)),
        Collective::Scatter { .. } => outline.then(Phase::spread(others, 1.0, block, Reach::All)),
        Collective::Gather { .. } => outline.then(Phase::collect(others, 1.0, block, Reach::All)),
        _ => {
            let sums = Phase::local(1, extent.sums(extent.ordered, others, bytes));
            let reduce = Phase::collect(others, extent.segments(bytes), bytes, Reach::All).combining();
            outline.then(sums).then(reduce)
        }
    }
}
