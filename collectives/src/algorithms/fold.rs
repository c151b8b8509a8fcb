//! How a number of ranks is brought down to a power of two: the first ranks fold in pairs.

use super::combine::Tree;

/// Members of a group whose number is a power of two, the core, and those that fold onto them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fold {
    /// The number of members in the core.
    pub(super) core: u32,
    /// The first twice as many members fold in pairs: the even one gives to the odd one.
    pub(super) folded: u32,
}

/// A member's part in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// It gives all to that member, and gets the result.
    Outside { partner: u32 },
    /// It is in the core, at that place, for that member too if there is one.
    Core { place: u32, partner: Option<u32> },
}

impl Fold {
    pub(super) fn of(members: u32) -> Self {
        let core = 1 << members.max(1).ilog2();
        Self { core, folded: members.max(1) - core }
    }

    pub(super) fn role(&self, member: u32) -> Role {
        if member >= 2 * self.folded {
            Role::Core { place: member - self.folded, partner: None }
        } else if member.is_multiple_of(2) {
            Role::Outside { partner: member + 1 }
        } else {
            Role::Core { place: member / 2, partner: Some(member - 1) }
        }
    }

    /// The member at a place in the core.
    pub(super) fn member(&self, place: u32) -> u32 {
        if place < self.folded { 2 * place + 1 } else { place + self.folded }
    }

    pub(super) fn rounds(&self) -> u32 {
        self.core.ilog2()
    }

    /// The canonical order: pairs that fold first, then those whose places differ in the lowest bit, then in the next.
    pub(super) fn tree(&self) -> Tree {
        self.subtree(0, self.core)
    }

    fn subtree(&self, first: u32, places: u32) -> Tree {
        if places > 1 {
            let half = places / 2;
            return Tree::Pair(self.subtree(first, half).into(), self.subtree(first + half, half).into());
        }
        let leaf = |member| Tree::Leaf(member);
        match self.role(self.member(first)) {
            Role::Core { partner: Some(partner), .. } => {
                Tree::Pair(leaf(partner).into(), leaf(self.member(first)).into())
            }
            _ => leaf(self.member(first)),
        }
    }
}
