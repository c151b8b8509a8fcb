//! Every member gives all it has to every other at once.
//!
//! - Steps: 1 message in a row, whatever the number of ranks.
//! - On the wire: each rank sends and receives N - 1 vectors, and combines as many; a barrier, as many empty messages.
//! - Scratch: a copy to send while the vector changes, and log2 N vectors of partial sums.
//! - Wins: short vectors among few ranks; above all where ranks share cores, since each rank has to run only once for all
//!   others to go on.
//!
//! All ranks combine in the canonical order, so they end with the same bits.

use super::Task;
use super::builder::Builder;
use super::combine;
use super::extent::Extent;
use super::outline::{Outline, Phase, Reach};
use crate::plan::{Collective, Slice};

pub(super) fn build(b: &mut Builder, task: &Task<'_>) {
    let group = &task.group;
    if task.spec.collective == Collective::Barrier {
        group.others().for_each(|peer| _ = b.signal(group.rank(peer)));
        group.others().for_each(|peer| _ = b.hear(group.rank(peer)));
        return;
    }
    let (given, data) = (task.spec.contribution(task.rank), task.spec.output(task.rank));
    let copied = task.spec.in_place && group.len() > 1;
    let src = if copied { Slice::scratch(0, data.len) } else { given };
    b.copy(given, if copied { src } else { data });
    for peer in group.others() {
        b.send(group.rank(peer), src);
    }
    let scratch = if copied { data.len } else { 0 };
    combine::pull(b, group, data, scratch, true);
}

pub(super) fn outline(extent: &Extent<'_>) -> Outline {
    let (n, others, bytes) = (extent.n(), extent.others(), extent.bytes);
    let outline = Outline::with_peers(others);
    let all = Phase::among(n, others, others * bytes, Reach::All);
    if extent.collective() == Collective::Barrier {
        return outline.then(all);
    }
    // A copy to be sent, which is not made where messages are copied.
    let copy = if extent.copied { 0.0 } else { bytes };
    outline.then(Phase::local(n, copy + extent.sums(true, others, bytes))).then(all.combining())
}
