//! Barrier with ever farther partners: in round k each rank signals the one 2^k places on.
//!
//! - Steps: log2 N signals in a row, rounded up.
//! - On the wire: as many empty messages from each rank.
//! - Wins: among many ranks.

use super::Task;
use super::builder::Builder;
use super::extent::Extent;
use super::group::Group;
use super::outline::{Outline, Phase, Reach};

pub(super) fn build(b: &mut Builder, task: &Task<'_>) {
    barrier(b, &task.group, Vec::new());
}

/// Holds every member until all have come. The first signals wait for the steps `entry`; gives those that come last.
pub(super) fn barrier(b: &mut Builder, group: &Group, entry: Vec<u32>) -> Vec<u32> {
    let mut heard = entry;
    let mut distance = 1;
    while distance < group.len() {
        b.after(heard.iter().copied());
        b.signal(group.rank(group.after(distance)));
        let own = b.hear(group.rank(group.before(distance)));
        heard.push(own);
        distance *= 2;
    }
    heard
}

pub(super) fn outline(extent: &Extent<'_>) -> Outline {
    rounds(Outline::with_peers((2 * Extent::log2(extent.ranks)).min(extent.ranks - 1)), extent.ranks, Reach::Apart)
}

/// The rounds of so many ranks.
pub(super) fn rounds(outline: Outline, ranks: u32, reach: impl Fn(u32) -> Reach) -> Outline {
    let round = |distance| Phase::among(ranks, 1.0, 0.0, reach(distance)).passing_on();
    outline.then_all(Extent::distances(ranks).map(round))
}
