//! By way of a tree, pipelined in segments: broadcast down, reduce up, all-reduce up and down. The shape of the tree is the
//! caller's; here it is binomial, where a member's children are the ones whose distance from the root has one more bit.
//!
//! Scatter and gather go by the binomial tree too: what a member passes on is what its subtree gives or gets.
//!
//! - Steps: log2 N messages in a row, twice for an all-reduce, and one more for each further segment, which the root sends
//!   log2 N times.
//! - On the wire: each rank but the root receives S once (sends, for a reduce), and the root sends up to S log2 N; for
//!   scatter and gather the root's part is S (N - 1) / N.
//! - Scratch: a reduce into another vector combines in four segments; scatter and gather pass on up to half of the vector.
//! - Wins: short vectors among many ranks.

use super::Task;
use super::builder::Builder;
use super::extent::Extent;
use super::group::Group;
use super::outline::{Outline, Phase, Reach};
use super::parts::Parts;
use crate::plan::{Buffer, Collective, Slice};

/// A member's place in a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tree {
    pub(super) parent: Option<u32>,
    /// Smallest subtree first.
    pub(super) children: Vec<u32>,
}

impl Tree {
    /// The place in the binomial tree of `members` under `root`.
    pub(super) fn binomial(members: u32, root: u32, me: u32) -> Self {
        let at = (me + members - root % members) % members;
        let member = |at: u32| (at + root) % members;
        let below = if at == 0 { u32::BITS } else { at.trailing_zeros() };
        let children =
            (0..below).map_while(|bit| at.checked_add(1_u32.checked_shl(bit)?).filter(|&child| child < members));
        Self { parent: (at > 0).then(|| member(at & (at - 1))), children: children.map(member).collect() }
    }
}

pub(super) fn build(b: &mut Builder, task: &Task<'_>) {
    let members = task.group.len();
    match task.spec.collective {
        Collective::Scatter { root } => scatter(b, task, root),
        Collective::Gather { root } => gather(b, task, root),
        collective => {
            let tree = Tree::binomial(members, collective.root().unwrap_or(0), task.rank);
            through(b, task, &tree);
        }
    }
}

/// Broadcast, reduce or all-reduce through a tree. An all-reduce goes to the root and back.
pub(super) fn through(b: &mut Builder, task: &Task<'_>, tree: &Tree) {
    let (spec, group) = (task.spec, &task.group);
    let (given, data) = (spec.contribution(task.rank), spec.output(task.rank));
    match spec.collective {
        Collective::Broadcast { .. } => {
            for segment in 0..b.segments(data) {
                down(b, group, tree, b.part(data, segment));
            }
        }
        Collective::AllReduce => {
            for segment in 0..b.segments(data) {
                up(b, group, tree, b.part(given, segment), b.part(data, segment));
                down(b, group, tree, b.part(data, segment));
            }
        }
        _ => {
            for segment in 0..b.segments(given) {
                let part = b.part(given, segment);
                let into = reduced(b, task, part, segment);
                up(b, group, tree, part, into);
            }
        }
    }
}

/// Where a segment of a reduce is combined: in place; else in the root's other vector, or in scratch.
pub(super) fn reduced(b: &Builder, task: &Task<'_>, given: Slice, segment: u64) -> Slice {
    if task.spec.in_place {
        given
    } else if task.spec.collective.root() == Some(task.rank) {
        Slice { buffer: Buffer::Data, ..given }
    } else {
        Slice::scratch(segment % 4 * b.segment, given.len)
    }
}

/// Gives `part` from the root to all.
pub(super) fn down(b: &mut Builder, group: &Group, tree: &Tree, part: Slice) {
    if let Some(parent) = tree.parent {
        b.recv(group.rank(parent), part);
    }
    for &child in tree.children.iter().rev() {
        b.send(group.rank(child), part);
    }
}

/// Combines all members' `given` at the root, in `into`; others combine what their subtree gives there.
pub(super) fn up(b: &mut Builder, group: &Group, tree: &Tree, given: Slice, into: Slice) {
    if let (Some(parent), true) = (tree.parent, tree.children.is_empty()) {
        b.send(group.rank(parent), given);
        return;
    }
    b.copy(given, into);
    for &child in &tree.children {
        b.recv_reduce(group.rank(child), into);
    }
    match tree.parent {
        Some(parent) => _ = b.send(group.rank(parent), into),
        None => b.finish(into),
    }
}

/// The root's vector to all, by blocks: a member passes on those of its subtree.
fn scatter(b: &mut Builder, task: &Task<'_>, root: u32) {
    let (spec, group) = (task.spec, &task.group);
    let subtree = Subtree::of(task, root);
    let tree = Tree::binomial(group.len(), root, task.rank);
    let own = spec.output(task.rank);
    let whole = spec.contribution(root);
    if let Some(parent) = tree.parent {
        let alone = tree.children.is_empty();
        for (run, place) in subtree.runs(group.len()) {
            b.recv(parent, if alone { own } else { Slice::scratch(place, run.len) });
        }
    }
    for &child in tree.children.iter().rev() {
        let below = Subtree::of_rank(task, root, child);
        for (run, place) in below.runs(group.len()) {
            let at_root = Slice { offset: whole.offset + run.offset, len: run.len, ..whole };
            let here = Slice::scratch(place + below.start - subtree.start, run.len);
            b.send(child, if tree.parent.is_none() { at_root } else { here });
        }
    }
    if tree.parent.is_none() {
        let block = Parts::blocks(spec, whole.buffer, whole.offset).part(task.rank);
        b.copy(block, own);
    } else if !tree.children.is_empty() {
        b.copy(Slice::scratch(0, own.len), own);
    }
}

/// All blocks to the root: a member passes on those of its subtree.
fn gather(b: &mut Builder, task: &Task<'_>, root: u32) {
    let (spec, group) = (task.spec, &task.group);
    let subtree = Subtree::of(task, root);
    let tree = Tree::binomial(group.len(), root, task.rank);
    let given = spec.contribution(task.rank);
    let is_root = tree.parent.is_none();
    if is_root {
        b.copy(given, Parts::blocks(spec, Buffer::Data, 0).part(task.rank));
    } else if !tree.children.is_empty() {
        b.copy(given, Slice::scratch(0, given.len));
    }
    for &child in &tree.children {
        let below = Subtree::of_rank(task, root, child);
        for (run, place) in below.runs(group.len()) {
            let here = Slice::scratch(place + below.start - subtree.start, run.len);
            b.recv(child, if is_root { Slice::data(run.offset, run.len) } else { here });
        }
    }
    if let Some(parent) = tree.parent {
        let alone = tree.children.is_empty();
        for (run, place) in subtree.runs(group.len()) {
            b.send(parent, if alone { given } else { Slice::scratch(place, run.len) });
        }
    }
}

/// The members of a subtree, which follow each other, counted from the root, and what their blocks are.
struct Subtree<'a> {
    task: &'a Task<'a>,
    root: u32,
    /// The first, counted from the root, and how many there are.
    first: u32,
    count: u32,
    /// Elements of the blocks before it, from the root's on.
    start: u64,
}

impl<'a> Subtree<'a> {
    fn of(task: &'a Task<'a>, root: u32) -> Self {
        Self::of_rank(task, root, task.rank)
    }

    fn of_rank(task: &'a Task<'a>, root: u32, rank: u32) -> Self {
        let members = task.group.len();
        let first = (rank + members - root % members) % members;
        let most = if first == 0 { members } else { 1 << first.trailing_zeros() };
        let count = most.min(members - first);
        let spec = task.spec;
        let start = if rank >= root {
            spec.offset(rank) - spec.offset(root)
        } else {
            spec.total() - spec.offset(root) + spec.offset(rank)
        };
        Self { task, root, first, count, start }
    }

    /// Its blocks as runs of the whole vector, two where they go past its end; and where each begins among them.
    fn runs(&self, members: u32) -> Vec<(Slice, u64)> {
        let spec = self.task.spec;
        let (from, to) = (self.first + self.root, self.first + self.root + self.count);
        let begin = |rank: u32| if rank >= members { spec.total() } else { spec.offset(rank) };
        let pieces = if to <= members {
            vec![(begin(from), begin(to))]
        } else if from >= members {
            vec![(begin(from - members), begin(to - members))]
        } else {
            vec![(begin(from), spec.total()), (0, begin(to - members))]
        };
        let mut place = 0;
        let mut runs = Vec::new();
        for (start, end) in pieces {
            runs.push((Slice::data(start, end - start), place));
            place += end - start;
        }
        runs
    }
}

pub(super) fn outline(extent: &Extent<'_>) -> Outline {
    let ranks = extent.ranks;
    let outline = Outline::with_peers(Extent::log2(ranks)).mostly(2);
    // Members whose parent, or child, is that far: the last may have none.
    let pairs = |distance: u32| f64::from((ranks / distance).div_ceil(2).min(ranks.div_ceil(2 * distance)).max(1));
    // Up, the root takes from one child after the other; down, ranks pass on segment by segment.
    let up = Extent::distances(ranks).map(|distance| {
        let (messages, bytes) = (extent.segments(extent.bytes), extent.bytes);
        Phase::among(pairs(distance), messages, bytes, Reach::Flipped(distance)).combining().passing_on()
    });
    let down = Descent::binomial(ranks).outline(extent, extent.bytes, Reach::Tree);
    match extent.collective() {
        Collective::Broadcast { .. } => outline.then_all(down),
        Collective::AllReduce => outline.then_all(up).then_all(down),
        Collective::Reduce { .. } => outline.then_all(up),
        // By distance: the blocks of the subtree at the far end.
        collective => {
            let round = |distance: u32| {
                let bytes = extent.part() * f64::from(distance.min(ranks - distance));
                Phase::among(pairs(distance), 1.0, bytes, Reach::Flipped(distance)).passing_on()
            };
            let is_scatter = matches!(collective, Collective::Scatter { .. });
            let rounds: Vec<Phase> = Extent::distances(ranks).map(round).collect();
            if is_scatter { outline.then_all(rounds.into_iter().rev()) } else { outline.then_all(rounds) }
        }
    }
}

/// A tree that a vector goes down.
#[derive(Clone, Copy)]
pub(super) struct Descent {
    pub(super) members: u32,
    /// Messages in a row from the root to the last.
    pub(super) depth: u32,
    /// Children of the member that has most.
    pub(super) children: u32,
}

impl Descent {
    /// Down the binomial tree, whose root has a child at each distance.
    pub(super) fn binomial(members: u32) -> Self {
        let depth = Extent::log2(members);
        Self { members, depth, children: depth }
    }

    /// The outline of so many bytes that go down, one segment after the other: first one goes from member to member, then all
    /// members are at work, each at another segment.
    pub(super) fn outline(self, extent: &Extent<'_>, bytes: f64, reach: Reach) -> impl Iterator<Item = Phase> + Clone {
        let segments = extent.segments(bytes);
        let bytes = bytes / segments;
        let [others, depth, children] =
            [self.members.saturating_sub(1), self.depth, self.children.max(1)].map(f64::from);
        let first = Phase::among(others / depth.max(1.0), 1.0, bytes, reach).times(depth);
        let rest = Phase::spread(children, 1.0, bytes, reach).of_groups(others / children);
        [first, rest.times(segments - 1.0).waiting(0.0)].into_iter().map(Phase::passing_on)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_member_of_a_binomial_tree_is_its_parents_child_once() {
        for members in 1..40 {
            for root in [0, members / 2, members - 1] {
                let trees: Vec<_> = (0..members).map(|me| Tree::binomial(members, root, me)).collect();
                for (me, tree) in (0..).zip(&trees) {
                    assert_eq!(tree.parent.is_none(), me == root);
                    assert!(tree.children.iter().all(|&child| trees[child as usize].parent == Some(me)));
                }
                assert_eq!(trees.iter().map(|tree| tree.children.len()).sum::<usize>(), members as usize - 1);
            }
        }
    }
}
