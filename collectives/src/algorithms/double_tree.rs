//! By two binary trees, each for half of the vector (Sanders, Speck, Träff: Two-tree algorithms for full bandwidth broadcast,
//! reduction and scan, 2009). A member that is inside one is a leaf of the other, so that all links are used alike.
//!
//! The first tree is that of the numbers' lowest bits: those with one lowest bit lie halfway between their children. The
//! second is the first with the members mirrored, or moved on by one where their number is odd.
//!
//! - Steps: 2 log2 N messages in a row, twice for an all-reduce, and two more for each further segment.
//! - On the wire: S in and out of each rank, twice for an all-reduce.
//! - Scratch: a reduce into another vector combines in four segments of each half.
//! - Wins: middling and large vectors among very many ranks.

use super::Task;
use super::builder::Builder;
use super::extent::Extent;
use super::outline::{Outline, Phase, Reach};
use super::parts::Parts;
use super::tree::{Descent, Tree, down, up};
use crate::plan::{Buffer, Collective, Slice};

pub(super) fn build(b: &mut Builder, task: &Task<'_>) {
    let (spec, group) = (task.spec, &task.group);
    let members = group.len();
    let root = spec.collective.root().unwrap_or(0) % members;
    let is_root = task.rank == root;
    let trees = [false, true].map(|second| tree(members, root, task.rank, second));
    let (given, data) = (spec.contribution(task.rank), spec.output(task.rank));
    let halves = |whole| Parts::split(whole, 2, spec.element_size);
    let whole = if spec.collective.reduces() { given } else { data };
    for segment in 0..b.segments(halves(whole).part(0)) {
        for (half, tree) in (0..).zip(&trees) {
            let part = |whole| b.part(halves(whole).part(half), segment);
            let (given, into) = (part(given), part(data));
            match spec.collective {
                Collective::Broadcast { .. } => down(b, group, tree, into),
                Collective::AllReduce => {
                    up(b, group, tree, given, into);
                    down(b, group, tree, into);
                }
                _ if spec.in_place => up(b, group, tree, given, given),
                _ if is_root => up(b, group, tree, given, Slice { buffer: Buffer::Data, ..given }),
                _ => {
                    let slot = u64::from(half) * 4 + segment % 4;
                    let size = b.segment.min(halves(whole).part(0).len);
                    up(b, group, tree, given, Slice::scratch(slot * size, given.len));
                }
            }
        }
    }
}

/// The place of `me` in one of the trees. The root is above both, whose members are all others.
fn tree(members: u32, root: u32, me: u32, second: bool) -> Tree {
    let others = members - 1;
    // The others from 1 on, as the tree numbers them.
    let member = |number: u32| {
        let at = match second {
            false => number,
            true if others.is_multiple_of(2) => others + 1 - number,
            true => number % others + 1,
        };
        (at + root) % members
    };
    if others == 0 {
        return Tree { parent: None, children: Vec::new() };
    }
    let top = 1 << others.ilog2();
    if me == root {
        return Tree { parent: None, children: vec![member(top)] };
    }
    let at = (me + members - root) % members;
    let number = match second {
        false => at,
        true if others.is_multiple_of(2) => others + 1 - at,
        true => (at + others - 2) % others + 1,
    };
    let parent = if number == top { root } else { member(above(number, others)) };
    Tree { parent: Some(parent), children: below(number, others).map(member).collect() }
}

/// The parent of a number that is not the top, among 1 to `most`.
fn above(number: u32, most: u32) -> u32 {
    let bit = 1 << number.trailing_zeros();
    let parent = (number & !bit) | (bit << 1);
    if parent <= most { parent } else { number & !bit }
}

/// The children of a number among 1 to `most`.
fn below(number: u32, most: u32) -> impl Iterator<Item = u32> {
    let bits = 0..number.trailing_zeros();
    let near = bits.clone().map(move |bit| number - (1 << bit)).chain(bits.map(move |bit| number + (1 << bit)));
    near.filter(move |&child| child <= most && child > 0 && above(child, most) == number)
}

pub(super) fn outline(extent: &Extent<'_>) -> Outline {
    // Two trees at a time, each for a half. Who has two children in one has none in the other.
    let descent = Descent { members: extent.ranks, depth: Extent::log2(extent.ranks), children: 1 };
    let down = descent.outline(extent, extent.bytes / 2.0, Reach::Tree).map(Phase::doubled);
    let outline = Outline::with_peers(extent.others().min(4.0));
    match extent.collective() {
        Collective::Broadcast { .. } => outline.then_all(down),
        Collective::AllReduce => outline.then_all(down.clone().map(Phase::combining)).then_all(down),
        _ => outline.then_all(down.map(Phase::combining)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_member_is_its_parents_child_once_and_inside_one_tree_at_most() {
        for members in 1..70 {
            for root in [0, members / 2] {
                let mut inside = vec![0; members as usize];
                for second in [false, true] {
                    let trees: Vec<_> = (0..members).map(|me| tree(members, root, me, second)).collect();
                    for (me, tree) in (0..).zip(&trees) {
                        assert_eq!(tree.parent.is_none(), me == root, "{members} {root} {me}");
                        assert!(tree.children.len() <= 2);
                        assert!(tree.children.iter().all(|&child| trees[child as usize].parent == Some(me)));
                        inside[me as usize] += u32::from(me != root && !tree.children.is_empty());
                    }
                    assert_eq!(trees.iter().map(|tree| tree.children.len()).sum::<usize>(), members as usize - 1);
                }
                assert!(inside.iter().filter(|&&trees| trees > 1).count() <= 1, "{members} {root}: {inside:?}");
            }
        }
    }
}
