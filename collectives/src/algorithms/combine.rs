//! Combining what all members of a group give, at one of them.

use super::builder::Builder;
use super::fold::Fold;
use super::group::Group;
use crate::plan::Slice;

/// Combines one message of each other member into `dst`, which holds this member's contribution, and finishes it.
///
/// Either one after the other, the next member first; or, where `ordered`, by [the canonical order](crate::Proof::canonical),
/// for which parts of the tree are combined in scratch from element `scratch` on.
pub(super) fn pull(b: &mut Builder, group: &Group, dst: Slice, scratch: u64, ordered: bool) {
    if ordered {
        climb(b, group, &Fold::of(group.len()).tree(), dst, scratch);
    } else {
        for peer in group.others() {
            b.recv_reduce(group.rank(peer), dst);
        }
    }
    b.finish(dst);
}

/// Which contributions are combined with which.
pub(super) enum Tree {
    Leaf(u32),
    Pair(Box<Tree>, Box<Tree>),
}

impl Tree {
    fn holds(&self, member: u32) -> bool {
        match self {
            Tree::Leaf(leaf) => *leaf == member,
            Tree::Pair(a, b) => a.holds(member) || b.holds(member),
        }
    }
}

/// Combines all of `tree`, of which `dst` holds this member's leaf. Every operation commutes to the last bit, so that it
/// does not matter which side comes first.
fn climb(b: &mut Builder, group: &Group, tree: &Tree, dst: Slice, scratch: u64) {
    let Tree::Pair(one, other) = tree else { return };
    let (own, other) = if one.holds(group.me()) { (one, other) } else { (other, one) };
    climb(b, group, own, dst, scratch);
    add(b, group, other, dst, scratch);
}

/// Combines all of `tree` into `dst`.
fn add(b: &mut Builder, group: &Group, tree: &Tree, dst: Slice, scratch: u64) {
    match tree {
        Tree::Leaf(member) => {
            b.recv_reduce(group.rank(*member), dst);
        }
        Tree::Pair(..) => {
            let sum = Slice::scratch(scratch, dst.len);
            collect(b, group, tree, sum, scratch + dst.len);
            b.reduce(sum, dst);
        }
    }
}

/// Fills `dst` with all of `tree`.
fn collect(b: &mut Builder, group: &Group, tree: &Tree, dst: Slice, scratch: u64) {
    match tree {
        Tree::Leaf(member) => {
            b.recv(group.rank(*member), dst);
        }
        Tree::Pair(one, other) => {
            collect(b, group, one, dst, scratch);
            add(b, group, other, dst, scratch);
        }
    }
}
