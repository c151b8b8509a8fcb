//! Selection without a machine: users, the ways that each has to NICs, and what ways pass.

use super::share::Over;

/// One way of a user to a NIC.
#[derive(Clone, Debug)]
pub(super) struct Way {
    /// The NIC.
    pub(super) nic: u16,
    /// What it passes, sorted, with at least one.
    pub(super) over: Over,
    /// The same in the order in which it passes it.
    pub(super) route: Over,
    /// What it carries alone.
    pub(super) limit: u64,
    /// How far it is; lesser is nearer.
    pub(super) cost: u64,
    /// True if it leads to a NIC that the user does not have when all take part.
    pub(super) off_rail: bool,
}

/// Users and their ways to NICs. A user without ways takes no part.
#[derive(Clone, Debug, Default)]
pub(super) struct Problem {
    /// What each resource carries.
    pub(super) capacity: Vec<u64>,
    /// The ways of each user, in the order of NICs, and of one NIC the best first.
    pub(super) ways: Vec<Vec<Way>>,
    /// For users that are told which NICs to use: exactly these.
    pub(super) pinned: Vec<Option<Vec<u16>>>,
}

/// Several ways that a user may take at once, each to another NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bundle {
    /// Places in the user's list of ways.
    pub(super) ways: Vec<u16>,
    /// The NICs, in order.
    pub(super) nics: Vec<u16>,
    /// What all of its ways pass.
    pub(super) common: Over,
    /// No outcome gives the user more.
    pub(super) most: u64,
    /// The sum of costs.
    pub(super) cost: u64,
    /// How many lead off the rail.
    pub(super) off_rail: u64,
}

/// A user with at most this many NICs is offered every set of them. More would be too many sets;
/// then it is offered the sets of the nearest, and the nearest of each number.
pub(super) const EVERY_SET: usize = 8;

impl Problem {
    /// The bundles that each user may choose of, in the order that decides between equals: by NICs.
    ///
    /// A user has one NIC; where there are more NICs than users, it may have several.
    pub(super) fn bundles(&self) -> Vec<Vec<Bundle>> {
        let mut nics: Vec<u16> = self.ways.iter().flatten().map(|way| way.nic).collect();
        nics.sort_unstable();
        nics.dedup();
        let users = self.ways.iter().filter(|ways| !ways.is_empty()).count();
        let several = nics.len() > users;
        let users = self.ways.iter().zip(&self.pinned);
        users.map(|(ways, pinned)| self.bundles_of(ways, pinned.as_deref(), several)).collect()
    }

    fn bundles_of(&self, ways: &[Way], pinned: Option<&[u16]>, several: bool) -> Vec<Bundle> {
        // The best way to each NIC.
        let mut best: Vec<u16> = (0..ways.len() as u16).collect();
        best.dedup_by_key(|way| ways[usize::from(*way)].nic);
        if let Some(pinned) = pinned {
            let all: Vec<u16> = best.into_iter().filter(|&w| pinned.contains(&ways[usize::from(w)].nic)).collect();
            return if all.is_empty() {
                Vec::new()
            } else if let [only] = all[..] {
                let same = |w: &u16| ways[usize::from(*w)].nic == ways[usize::from(only)].nic;
                (0..ways.len() as u16).filter(same).map(|way| self.bundle(ways, vec![way])).collect()
            } else {
                vec![self.bundle(ways, all)]
            };
        }
        let mut sets: Vec<Vec<u16>> = (0..ways.len() as u16).map(|way| vec![way]).collect();
        if several {
            // Who has several NICs has them alone, and so not those that somebody is told to use.
            let told = |nic: u16| self.pinned.iter().flatten().any(|nics| nics.contains(&nic));
            let mut near: Vec<u16> = best.into_iter().filter(|&way| !told(ways[usize::from(way)].nic)).collect();
            near.sort_by_key(|&way| (ways[usize::from(way)].cost, way));
            let every = if near.len() <= EVERY_SET { near.len() } else { nearest_equals(ways, &near) };
            let subsets = (1_u32..1 << every).filter(|bits| bits.count_ones() > 1);
            sets.extend(subsets.map(|bits| {
                near[..every].iter().enumerate().filter(|(i, _)| bits >> i & 1 == 1).map(|(_, &way)| way).collect()
            }));
            sets.extend((every + 1..=near.len()).filter(|&n| n > 1).map(|n| near[..n].to_vec()));
        }
        let mut bundles: Vec<_> = sets.into_iter().map(|set| self.bundle(ways, set)).collect();
        bundles.sort_by(|a, b| (&a.nics, &a.ways).cmp(&(&b.nics, &b.ways)));
        bundles
    }

    fn bundle(&self, ways: &[Way], mut set: Vec<u16>) -> Bundle {
        set.sort_unstable();
        let all: Vec<&Way> = set.iter().map(|&way| &ways[usize::from(way)]).collect();
        let common: Over = all[0].over.iter().copied().filter(|r| all.iter().all(|way| way.over.contains(r))).collect();
        let sum = all.iter().fold(0_u64, |sum, way| sum.saturating_add(way.limit));
        let most = common.iter().map(|&r| self.capacity[usize::from(r)]).fold(sum, u64::min);
        Bundle {
            nics: all.iter().map(|way| way.nic).collect(),
            most,
            cost: all.iter().map(|way| way.cost).sum(),
            off_rail: all.iter().filter(|way| way.off_rail).count() as u64,
            common,
            ways: set,
        }
    }
}

/// How many of the nearest NICs are offered in every set, where there are many: those as near as the
/// nearest.
fn nearest_equals(ways: &[Way], near: &[u16]) -> usize {
    let cost = |&way: &u16| ways[usize::from(way)].cost;
    near.iter().take(EVERY_SET).take_while(|way| cost(way) == cost(&near[0])).count()
}
