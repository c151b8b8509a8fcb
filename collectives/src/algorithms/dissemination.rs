//! Barrier with ever farther partners: in round k each rank signals the one 2^k places on.
//!
//! - Steps: log2 N signals in a row, rounded up.
//! - On the wire: as many empty messages from each rank.
//! - Wins: among many ranks.

use super::Task;
use super::builder::Builder;
use super::group::Group;

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
