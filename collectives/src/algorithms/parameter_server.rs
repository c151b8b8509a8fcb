//! Servers that reduce a part each for all, and give it back: the way of parameter servers, with one server or with several
//! that share the vector. Servers are ranks too, from 0 on.
//!
//! - Steps: 2 messages in a row.
//! - On the wire: each rank sends and receives S, and each server (N - 1) S / servers both ways.
//! - Wins: where servers have links that are so much wider; else it is the baseline that other ways are held against.

use super::Task;
use super::builder::Builder;
use super::combine;
use super::extent::Extent;
use super::outline::{Outline, Phase, Reach};
use super::parts::Parts;

pub(super) fn build(b: &mut Builder, task: &Task<'_>) {
    let (spec, group) = (task.spec, &task.group);
    let servers = task.recipe.shape.servers.clamp(1, group.len());
    let cut = |whole| Parts::split(whole, servers, spec.element_size);
    let (from, into) = (cut(spec.contribution(task.rank)), cut(spec.output(task.rank)));
    let segments = (0..servers).map(|part| b.segments(into.part(part))).max().unwrap_or(0);
    for segment in 0..segments {
        for server in (0..servers).filter(|&server| server != task.rank) {
            b.send(server, b.part(from.part(server), segment));
        }
        if task.rank < servers {
            let reduced = b.part(into.part(task.rank), segment);
            if reduced.len > 0 {
                b.copy(b.part(from.part(task.rank), segment), reduced);
                let levels = u64::from(group.len().ilog2()) + 1;
                let scratch = segment % 2 * levels * b.segment.min(reduced.len);
                combine::pull(b, group, reduced, scratch, task.recipe.shape.ordered);
                group.others().for_each(|peer| _ = b.send(group.rank(peer), reduced));
            }
        }
        for server in (0..servers).filter(|&server| server != task.rank) {
            b.recv(server, b.part(into.part(server), segment));
        }
    }
}

pub(super) fn outline(extent: &Extent<'_>) -> Outline {
    let servers = f64::from(extent.servers);
    let part = extent.bytes / servers;
    let collect = Phase::collect(extent.others(), extent.segments(part), part, Reach::All).of_groups(servers);
    let spread = Phase::spread(extent.others(), extent.segments(part), part, Reach::All).of_groups(servers);
    let sums = Phase::local(servers, extent.sums(extent.ordered, extent.others(), part));
    Outline::with_peers(extent.others()).mostly(servers).then(sums).then(collect.combining()).then(spread.passing_on())
}
