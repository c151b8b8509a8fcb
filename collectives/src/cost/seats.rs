//! Where ranks are: which share a node, and how many cores they have there.

use crate::algorithms::{Nodes, Reach};

/// Where ranks are: which of them share a node, and how many cores those of a node have together.
///
/// ```
/// use qpair_collectives::Nodes;
/// use qpair_collectives::cost::Seats;
///
/// let seats = Seats { nodes: Nodes::Of(4), cores: 2 }; // four ranks on each node, which share two cores
/// assert_ne!(seats, Seats::default());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seats {
    /// Which ranks share a node.
    pub nodes: Nodes,
    /// Cores that the ranks of a node share: of the node with the fewest for each rank.
    pub cores: u32,
}

impl Default for Seats {
    /// One node with a core for each rank.
    fn default() -> Self {
        Self { nodes: Nodes::One, cores: u32::MAX }
    }
}

/// How ranks are spread, once their number is known.
pub(crate) struct Spread<'a> {
    nodes: &'a Nodes,
    pub(super) ranks: u32,
    /// Of a node.
    pub(super) cores: f64,
    /// Of the node with the most.
    pub(super) fullest: f64,
    /// How many nodes there are.
    pub(super) count: usize,
}

impl<'a> Spread<'a> {
    pub(crate) fn of(seats: &'a Seats, ranks: u32) -> Self {
        let Seats { nodes, cores } = seats;
        let sizes = nodes.sizes(0..ranks);
        let fullest = sizes.values().copied().max().unwrap_or(1);
        let cores = f64::from((*cores).max(1));
        Self { nodes, ranks, cores, fullest: f64::from(fullest), count: sizes.len().max(1) }
    }

    /// The part of all messages of a node's ranks that go to other nodes: of the node with most such messages.
    pub(super) fn crossing(&self, reach: Reach) -> f64 {
        if self.count < 2 {
            return 0.0;
        }
        match reach {
            Reach::Near => 0.0,
            Reach::Across => 1.0,
            Reach::All => {
                let others = f64::from(self.ranks.saturating_sub(1).max(1));
                (f64::from(self.ranks) - self.fullest) / others
            }
            Reach::Apart(places) => {
                self.leaving(|rank| ((u64::from(rank) + u64::from(places)) % u64::from(self.ranks.max(1))) as u32)
            }
            Reach::Flipped(bit) => {
                self.leaving(|rank| Some(rank ^ bit).filter(|&other| other < self.ranks).unwrap_or(rank))
            }
        }
    }

    /// The part of a node's ranks whose partner is on another.
    fn leaving(&self, partner: impl Fn(u32) -> u32) -> f64 {
        let leaving = (0..self.ranks).filter(|&rank| self.nodes.of(rank) != self.nodes.of(partner(rank)));
        let most = self.nodes.sizes(leaving).into_values().max().unwrap_or(0);
        f64::from(most) / self.fullest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_crosses_follows_from_who_is_where() {
        let part = |seats: &Seats, reach| Spread::of(seats, 8).crossing(reach);
        let on = |nodes| Seats { nodes, ..Seats::default() };
        let (one, two) = (on(Nodes::One), on(Nodes::Of(4)));
        let dealt = on(Nodes::Listed(vec![0, 1, 0, 1, 0, 1, 0, 1].into()));
        for reach in [Reach::Apart(1), Reach::All, Reach::Near, Reach::Across] {
            assert_eq!(part(&one, reach), 0.0);
        }
        // The last rank of each node passes on to the next node; who are four apart are on different ones.
        assert_eq!([1, 2, 4].map(|apart| part(&two, Reach::Apart(apart))), [0.25, 0.5, 1.0]);
        assert_eq!([1, 2, 4].map(|apart| part(&dealt, Reach::Apart(apart))), [1.0, 0.0, 0.0]);
        assert_eq!([1, 2, 4].map(|bit| part(&two, Reach::Flipped(bit))), [0.0, 0.0, 1.0]);
        assert_eq!([Reach::All, Reach::Near, Reach::Across].map(|reach| part(&two, reach)), [4.0 / 7.0, 0.0, 1.0]);
        assert_eq!((Spread::of(&two, 7).fullest, Spread::of(&two, 7).count), (4.0, 2));
    }
}
