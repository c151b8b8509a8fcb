//! Where ranks are: which share a node, and how many cores they have there.

use super::outline::Reach;
use crate::algorithms::Nodes;

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
pub(super) struct Spread<'a> {
    nodes: &'a Nodes,
    pub(super) ranks: u32,
    /// Of the node with the most.
    pub(super) fullest: f64,
    /// How many nodes there are.
    pub(super) count: usize,
}

impl<'a> Spread<'a> {
    pub(super) fn of(nodes: &'a Nodes, ranks: u32) -> Self {
        let sizes = sizes(nodes, (0..ranks).map(|rank| (rank, true)));
        let fullest = sizes.iter().map(|(_, size)| *size).max().unwrap_or(1);
        Self { nodes, ranks, fullest: f64::from(fullest), count: sizes.len().max(1) }
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
        let leaves = |rank: u32| self.nodes.of(rank) != self.nodes.of(partner(rank));
        let crossing = sizes(self.nodes, (0..self.ranks).map(|rank| (rank, leaves(rank))));
        let most = crossing.iter().map(|(_, size)| *size).max().unwrap_or(0);
        f64::from(most) / self.fullest
    }
}

/// By node: how many of these ranks count.
fn sizes(nodes: &Nodes, ranks: impl Iterator<Item = (u32, bool)>) -> Vec<(u32, u32)> {
    let mut sizes: Vec<(u32, u32)> = Vec::new();
    let mut last = 0;
    for (rank, counts) in ranks {
        let node = nodes.of(rank);
        // Ranks of a node mostly follow each other.
        if sizes.get(last).is_none_or(|(name, _)| *name != node) {
            last = sizes.iter().position(|(name, _)| *name == node).unwrap_or(sizes.len());
        }
        if last == sizes.len() {
            sizes.push((node, 0));
        }
        sizes[last].1 += u32::from(counts);
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_crosses_follows_from_who_is_where() {
        let part = |nodes: &Nodes, reach| Spread::of(nodes, 8).crossing(reach);
        let (one, two) = (Nodes::One, Nodes::Of(4));
        let dealt = Nodes::Listed(vec![0, 1, 0, 1, 0, 1, 0, 1].into());
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
