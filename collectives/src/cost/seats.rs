//! Where ranks are: which share a node and an island of it, and how many cores they have there.

use std::collections::HashMap;

use crate::algorithms::{Nodes, Reach};

/// Where ranks are: which of them share a node, which of those an island of it, and how many cores those of a node have together.
///
/// Ranks of an island reach each other better than others of their node: where their memory is the processors', those of a
/// socket; where it is of GPUs, those whose GPUs are joined by NVLink or what is nearest there
/// ([`Machine::gpu_islands`](qpair_topology::Machine::gpu_islands)).
///
/// ```
/// use qpair_collectives::Nodes;
/// use qpair_collectives::cost::Seats;
///
/// // Four ranks on each node, two on each of its sockets, which share two cores.
/// let seats = Seats { nodes: Nodes::Of(4), islands: Some(Nodes::Of(2)), cores: 2.0, ..Seats::default() };
/// assert_ne!(seats, Seats::default());
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Seats {
    /// Which ranks share a node.
    pub nodes: Nodes,
    /// Which ranks share an island; `None` where all of a node do. Ranks of two nodes never do.
    pub islands: Option<Nodes>,
    /// The same where vectors are in memory of GPUs.
    pub gpu_islands: Option<Nodes>,
    /// Cores that the ranks of a node share, more than 0: of the node with the fewest for each rank. Less than one where several
    /// nodes share a core, as containers do.
    pub cores: f64,
    /// Whether all that goes between ranks goes by the software device, between nodes over its network.
    pub by_software: bool,
    /// Whether messages of GPUs go by memory that their devices reach, since one does not reach that of its GPU.
    pub gpus_are_staged: bool,
}

impl Default for Seats {
    /// One node and island, with a core for each rank.
    fn default() -> Self {
        Self {
            nodes: Nodes::One,
            islands: None,
            gpu_islands: None,
            cores: f64::INFINITY,
            by_software: false,
            gpus_are_staged: false,
        }
    }
}

impl Seats {
    /// The same where vectors are in memory of GPUs: with the islands of these.
    pub fn on_gpus(&self) -> Self {
        Self { islands: self.gpu_islands.clone(), ..self.clone() }
    }
}

/// Of a core, for the ranks of a node.
pub(crate) const LEAST_CORES: f64 = 0.01;

/// How ranks are spread, once their number is known.
pub(crate) struct Spread {
    pub(super) ranks: u32,
    /// Of a node.
    pub(super) cores: f64,
    pub(super) nodes: Parted,
    pub(super) islands: Parted,
}

impl Spread {
    pub(crate) fn of(seats: &Seats, ranks: u32) -> Self {
        let nodes = Parted::by(&seats.nodes, ranks);
        let islands = seats.islands.as_ref().map_or_else(|| nodes.clone(), |islands| Parted::by(islands, ranks));
        Self { ranks, cores: seats.cores.max(LEAST_CORES), nodes, islands }
    }

    /// Ranks of a node for each of its cores, at least 1.
    pub(super) fn crowd(&self) -> f64 {
        (self.nodes.fullest / self.cores).max(1.0)
    }

    /// The part of a core that is other ranks' than the one that has it, where all are on one node. Between nodes that share cores, as
    /// containers do, what the system takes for packets is far more than what caches make.
    pub(super) fn others_part(&self) -> f64 {
        if self.nodes.sizes.len() > 1 { 0.0 } else { 1.0 - 1.0 / self.crowd() }
    }
}

/// Ranks, parted into groups.
#[derive(Clone)]
pub(super) struct Parted {
    /// By rank: its group.
    groups: Vec<u32>,
    /// Ranks of each group.
    sizes: Vec<u32>,
    /// Ranks of the group with the most.
    pub(super) fullest: f64,
}

impl Parted {
    fn by(nodes: &Nodes, ranks: u32) -> Self {
        let mut numbers: HashMap<u32, u32> = HashMap::new();
        let mut sizes = Vec::new();
        let group = |rank| {
            let next = numbers.len() as u32;
            let group = *numbers.entry(nodes.of(rank)).or_insert(next);
            if group == next {
                sizes.push(0);
            }
            sizes[group as usize] += 1;
            group
        };
        let groups = (0..ranks).map(group).collect();
        let fullest = f64::from(sizes.iter().copied().max().unwrap_or(1));
        Self { groups, sizes, fullest }
    }

    /// The group of a rank, numbered in the order of their first ranks.
    pub(super) fn group(&self, rank: u32) -> usize {
        self.groups[rank as usize] as usize
    }

    /// The part of all messages of a group's ranks that go to other groups: of the group with most such messages. `near` is what
    /// [`Reach::Near`] and [`Reach::Across`] speak of.
    pub(super) fn crossing(&self, reach: Reach, near: &Nodes) -> f64 {
        let ranks = self.groups.len() as u32;
        if self.sizes.len() < 2 {
            return 0.0;
        }
        match reach {
            Reach::All => (f64::from(ranks) - self.fullest) / f64::from(ranks.saturating_sub(1).max(1)),
            Reach::Near => {
                let near = Self::by(near, ranks);
                self.leaving(&near.groups, &near.sizes)
            }
            Reach::Across => {
                let (places, sizes) = places(&Self::by(near, ranks));
                self.leaving(&places, &sizes)
            }
            Reach::Apart(places) => {
                let partner = |rank: usize| ((rank as u64 + u64::from(places)) % u64::from(ranks.max(1))) as usize;
                self.most(|rank| f64::from(u8::from(self.groups[rank] != self.groups[partner(rank)])))
            }
            Reach::Tree => {
                // The binomial one below the first rank; others are alike.
                let parent = |rank: usize| rank & rank.saturating_sub(1);
                self.most(|rank| f64::from(u8::from(self.groups[rank] != self.groups[parent(rank)])))
            }
            Reach::Flipped(bit) => {
                let partner = |rank: usize| self.groups.get(rank ^ bit as usize);
                self.most(|rank| f64::from(u8::from(partner(rank).is_some_and(|other| *other != self.groups[rank]))))
            }
        }
    }

    /// Sums up over the ranks of each group; the part of the group with the most.
    fn most(&self, leaves: impl Fn(usize) -> f64) -> f64 {
        let mut sums = vec![0.0; self.sizes.len()];
        for (rank, &group) in self.groups.iter().enumerate() {
            sums[group as usize] += leaves(rank);
        }
        sums.into_iter().fold(0.0, f64::max) / self.fullest
    }

    /// Where each rank has messages with all others of its kind, of which there are so many.
    fn leaving(&self, kinds: &[u32], sizes: &[u32]) -> f64 {
        let mut beside: HashMap<(u32, u32), u32> = HashMap::new();
        let pair = |rank: usize| (kinds[rank], self.groups[rank]);
        (0..kinds.len()).for_each(|rank| *beside.entry(pair(rank)).or_default() += 1);
        self.most(|rank| {
            let alike = sizes[kinds[rank] as usize];
            if alike < 2 { 0.0 } else { f64::from(alike - beside[&pair(rank)]) / f64::from(alike - 1) }
        })
    }
}

/// By rank, its place within its group; and how many groups have that place.
fn places(parted: &Parted) -> (Vec<u32>, Vec<u32>) {
    let mut next = vec![0; parted.sizes.len()];
    let place = |&group: &u32| {
        next[group as usize] += 1;
        next[group as usize] - 1
    };
    let places: Vec<u32> = parted.groups.iter().map(place).collect();
    let mut sizes = vec![0; parted.fullest as usize];
    places.iter().for_each(|&place| sizes[place as usize] += 1);
    (places, sizes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_crosses_follows_from_who_is_where() {
        let part = |seats: &Seats, reach| Spread::of(seats, 8).nodes.crossing(reach, &seats.nodes);
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
        // One of the second four has its parent among the first.
        assert_eq!([&one, &two].map(|seats| part(seats, Reach::Tree)), [0.0, 0.25]);
        assert_eq!([Reach::All, Reach::Near, Reach::Across].map(|reach| part(&two, reach)), [4.0 / 7.0, 0.0, 1.0]);
        assert_eq!(Spread::of(&two, 7).nodes.fullest, 4.0);
    }

    #[test]
    fn ranks_of_one_node_have_cores_that_were_others() {
        let part = |nodes, cores| Spread::of(&Seats { nodes, cores, ..Seats::default() }, 8).others_part();
        assert_eq!([f64::INFINITY, 8.0, 4.0, 2.0].map(|cores| part(Nodes::One, cores)), [0.0, 0.0, 0.5, 0.75]);
        assert_eq!(part(Nodes::Of(4), 1.0), 0.0);
    }

    #[test]
    fn islands_are_crossed_within_nodes() {
        let seats = Seats { nodes: Nodes::Of(4), islands: Some(Nodes::Of(2)), ..Seats::default() };
        let spread = Spread::of(&seats, 8);
        let parts = |reach, near: &Nodes| [&spread.nodes, &spread.islands].map(|parted| parted.crossing(reach, near));
        // By nodes: two of three of one's node are on the other island. By islands: none are near; of the three across, one
        // is on the same node.
        assert_eq!(parts(Reach::Near, &Nodes::Of(4)), [0.0, 2.0 / 3.0]);
        assert_eq!(parts(Reach::Near, &Nodes::Of(2)), [0.0, 0.0]);
        assert_eq!(parts(Reach::Across, &Nodes::Of(2)), [2.0 / 3.0, 1.0]);
        assert_eq!(parts(Reach::Flipped(2), &Nodes::One), [0.0, 1.0]);
        // Where nobody said, a node is one island.
        let whole = Spread::of(&Seats { islands: None, ..seats }, 8);
        assert_eq!(
            [&whole.nodes, &whole.islands].map(|parted| parted.crossing(Reach::All, &Nodes::One)),
            [4.0 / 7.0; 2]
        );
    }
}
