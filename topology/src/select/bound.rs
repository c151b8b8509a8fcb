//! Bounds: what no completion of an assignment in part can exceed.

use std::cmp::Reverse;

use super::flow;
use super::problem::{Bundle, Problem, Way};
use super::search::{UNIT, Worth, units};

/// Keeps, for an assignment in part, what every completion of it has in common.
pub(super) struct Bounds<'a> {
    problem: &'a Problem,
    bundles: &'a [Vec<Bundle>],
    users: Vec<usize>,
    /// For each user what it passes whatever it chooses.
    free: Vec<Vec<u16>>,
    /// For each user the least that a choice costs.
    costs: Vec<u64>,
    /// For each user what was chosen, if anything.
    chosen: Vec<Option<usize>>,
    /// No outcome carries more in all: what the NICs can take together.
    ports: u64,
    /// No outcome gives the worst more than this, in units.
    highest: u64,
    /// What each NIC can take.
    slots: Vec<u64>,
}

/// What a user can come to.
struct Outlook {
    /// It has no more than this, as others choose.
    rate: u64,
    /// It has no more than this, whatever others choose.
    most: u64,
    /// It costs no less than this.
    cost: u64,
    off_rail: u64,
}

impl Outlook {
    fn of(bundle: &Bundle) -> Self {
        Self { rate: bundle.most, most: bundle.most, cost: bundle.cost, off_rail: bundle.off_rail }
    }
}

impl<'a> Bounds<'a> {
    pub(super) fn new(problem: &'a Problem, bundles: &'a [Vec<Bundle>], users: &[usize], worst: u64) -> Self {
        let free = bundles.iter().map(|bundles| {
            let common = bundles.first().map(|first| first.common.clone()).unwrap_or_default();
            common.into_iter().filter(|r| bundles.iter().all(|bundle| bundle.common.contains(r))).collect()
        });
        // The ways that some bundle takes.
        let used = |(user, bundles): (usize, &'a Vec<Bundle>)| {
            let mut ways: Vec<u16> = bundles.iter().flat_map(|bundle| bundle.ways.iter().copied()).collect();
            ways.sort_unstable();
            ways.dedup();
            ways.into_iter().map(move |way| &problem.ways[user][usize::from(way)]).collect::<Vec<_>>()
        };
        let of_users: Vec<Vec<&Way>> = bundles.iter().enumerate().map(used).collect();
        let ways: Vec<&Way> = of_users.iter().flatten().copied().collect();
        let nics = ways.iter().map(|way| usize::from(way.nic) + 1).max().unwrap_or(0);
        // What all ways to a NIC pass bounds what it gets, and what NICs have in common bounds them
        // together: cards with two ports, switches with a narrow link above.
        let shared: Vec<(Vec<u16>, u64)> = (0..nics as u16).map(|nic| shared(problem, &ways, nic)).collect();
        let demands: Vec<(&[u16], u64)> = shared.iter().map(|(common, most)| (common.as_slice(), *most)).collect();
        let mut ports = cut(&demands, &problem.capacity);
        let mut highest = u64::MAX;
        if users.len() <= FLOWS {
            let flow = |each: u64| {
                let all: Vec<_> = of_users.iter().filter(|ways| !ways.is_empty()).map(|ways| (each, ways)).collect();
                flow::most(&all, &problem.capacity)
            };
            ports = ports.min(flow(u64::MAX));
            // Can all have more than the worst has now?
            let better = above(worst);
            if flow(better) < better.saturating_mul(users.len() as u64) {
                highest = worst;
            }
        }
        let slots = shared.iter().map(|(_, most)| *most).collect();
        Self {
            problem,
            bundles,
            users: users.to_vec(),
            free: free.collect(),
            costs: bundles.iter().map(|all| all.iter().map(|bundle| bundle.cost).min().unwrap_or(0)).collect(),
            chosen: vec![None; bundles.len()],
            ports,
            highest,
            slots,
        }
    }

    /// Says what a user has chosen, or that it has not.
    pub(super) fn choose(&mut self, user: usize, choice: Option<usize>) {
        self.chosen[user] = choice;
    }

    /// A worth that no completion exceeds. Only how it compares to `best` is exact.
    pub(super) fn most(&self, best: &Worth, nic_users: &[u32], nic_own: &[bool]) -> Worth {
        let nothing = Worth { worst: 0, total: 0, near: Reverse(u64::MAX), off_rail: Reverse(u64::MAX) };
        let passing = self.passing();
        // Of users that all pass one resource, one has no more than an equal share.
        let shares = passing.iter().zip(&self.problem.capacity).filter(|(users, _)| **users > 0);
        let mut worst = shares.map(|(users, capacity)| capacity / users).min().unwrap_or(u64::MAX);
        if units(worst) < best.worst {
            return nothing;
        }
        let (mut near, mut off_rail) = (0, 0);
        let mut demands: Vec<(&[u16], u64)> = Vec::with_capacity(self.users.len());
        for &user in &self.users {
            let outlook = match self.chosen[user] {
                Some(choice) => Outlook::of(&self.bundles[user][choice]),
                None => self.outlook(user, best.worst, &passing, nic_users, nic_own),
            };
            worst = worst.min(outlook.rate);
            if units(worst) < best.worst {
                return nothing;
            }
            near += outlook.cost;
            off_rail += outlook.off_rail;
            demands.push((self.common(user), outlook.most));
        }
        let mut worst = units(worst).min(self.highest.max(best.worst));
        if worst > best.worst && !self.room(above(best.worst), nic_users, nic_own) {
            worst = best.worst;
        }
        let worth = |total| Worth { worst, total, near: Reverse(near), off_rail: Reverse(off_rail) };
        if worst > best.worst {
            return worth(u64::MAX);
        }
        worth(units(cut(&demands, &self.problem.capacity).min(self.ports)))
    }

    /// The least that all users can cost, whatever it gives them.
    pub(super) fn nearest(&self) -> u64 {
        let cost = |&user: &usize| match self.chosen[user] {
            Some(choice) => self.bundles[user][choice].cost,
            None => self.costs[user],
        };
        self.users.iter().map(cost).sum()
    }

    /// How many users pass each resource in any case.
    fn passing(&self) -> Vec<u64> {
        let mut passing = vec![0_u64; self.problem.capacity.len()];
        for &user in &self.users {
            self.common(user).iter().for_each(|&r| passing[usize::from(r)] += 1);
        }
        passing
    }

    /// What a user passes in any case.
    fn common(&self, user: usize) -> &[u16] {
        self.chosen[user].map_or(&self.free[user], |choice| &self.bundles[user][choice].common)
    }

    /// What a user that has not chosen still can, of what gives it at least the worst rate so far;
    /// each with the rate that it can not exceed.
    fn open<'s>(
        &'s self,
        user: usize,
        worst: u64,
        passing: &'s [u64],
        nic_users: &'s [u32],
        nic_own: &'s [bool],
    ) -> impl Iterator<Item = (&'s Bundle, u64)> + 's {
        let counted = &self.free[user];
        let pinned = self.problem.pinned[user].is_some();
        self.bundles[user].iter().filter_map(move |bundle| {
            let several = bundle.nics.len() > 1;
            let mut nics = bundle.nics.iter().map(|&nic| usize::from(nic));
            if !pinned && nics.any(|nic| nic_own[nic] || several && nic_users[nic] > 0) {
                return None;
            }
            let share = |&r: &u16| {
                let users = passing[usize::from(r)] + u64::from(!counted.contains(&r));
                self.problem.capacity[usize::from(r)] / users
            };
            let rate = bundle.common.iter().map(share).fold(bundle.most, u64::min);
            (units(rate) >= worst).then_some((bundle, rate))
        })
    }

    fn outlook(&self, user: usize, worst: u64, passing: &[u64], nic_users: &[u32], nic_own: &[bool]) -> Outlook {
        let nothing = Outlook { rate: 0, most: 0, cost: u64::MAX, off_rail: u64::MAX };
        self.open(user, worst, passing, nic_users, nic_own).fold(nothing, |all, (bundle, rate)| Outlook {
            rate: all.rate.max(rate),
            most: all.most.max(bundle.most),
            cost: all.cost.min(bundle.cost),
            off_rail: all.off_rail.min(bundle.off_rail),
        })
    }

    /// True if the NICs can hold those who have not chosen, were each to have `rate`.
    fn room(&self, rate: u64, nic_users: &[u32], nic_own: &[bool]) -> bool {
        let waiting = self.users.iter().filter(|&&user| self.chosen[user].is_none()).count() as u64;
        let places = self.slots.iter().enumerate().map(|(nic, &slot)| {
            if nic_own[nic] {
                return 0;
            }
            // A NIC too slow for one can still be part of several that are fast enough.
            (slot / rate).max(u64::from(slot > 0)).saturating_sub(nic_users[nic].into())
        });
        places.fold(0_u64, u64::saturating_add) >= waiting
    }
}

/// What all ways to a NIC pass, and what of it is narrowest.
fn shared(problem: &Problem, ways: &[&Way], nic: u16) -> (Vec<u16>, u64) {
    let mut to = ways.iter().filter(|way| way.nic == nic);
    let Some(first) = to.next() else { return (Vec::new(), 0) };
    let common = first.over.iter().copied().filter(|r| to.clone().all(|way| way.over.contains(r)));
    let common: Vec<u16> = common.collect();
    let widest = ways.iter().filter(|way| way.nic == nic).map(|way| way.limit);
    let most = common.iter().map(|&r| problem.capacity[usize::from(r)]).min();
    (common, most.unwrap_or_else(|| widest.fold(0, u64::saturating_add)))
}

/// What those that want something get together at most, where those that pass one resource have no
/// more than it carries. Resources are taken in the order of what they take away, and who wants
/// something counts once.
fn cut(demands: &[(&[u16], u64)], capacity: &[u64]) -> u64 {
    let mut wanted = vec![0_u64; capacity.len()];
    for (common, most) in demands {
        common.iter().for_each(|&r| wanted[usize::from(r)] = wanted[usize::from(r)].saturating_add(*most));
    }
    let mut counted = vec![false; demands.len()];
    let mut sum = 0_u64;
    loop {
        let over = |r: usize| wanted[r].saturating_sub(capacity[r]);
        let Some(r) = (0..wanted.len()).max_by_key(|&r| over(r)).filter(|&r| over(r) > 0) else { break };
        sum = sum.saturating_add(capacity[r]);
        for ((common, most), counted) in demands.iter().zip(&mut counted) {
            if !*counted && common.contains(&(r as u16)) {
                common.iter().for_each(|&r| wanted[usize::from(r)] = wanted[usize::from(r)].saturating_sub(*most));
                *counted = true;
            }
        }
    }
    let rest = demands.iter().zip(&counted).filter(|(_, counted)| !**counted).map(|((_, most), _)| *most);
    rest.fold(sum, u64::saturating_add)
}

/// The least rate that is more than this, in units.
fn above(worst: u64) -> u64 {
    worst.saturating_add(1).saturating_mul(UNIT) - UNIT / 2
}

/// With more users the flow would take longer than what it saves.
const FLOWS: usize = 32;
