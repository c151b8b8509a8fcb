//! Bounds: what no completion of an assignment in part can exceed.

use std::cmp::Reverse;

use super::problem::{Bundle, Problem};
use super::search::{UNIT, Worth, units};

/// Keeps, for an assignment in part, what every completion of it has in common.
pub(super) struct Bounds<'a> {
    problem: &'a Problem,
    bundles: &'a [Vec<Bundle>],
    users: Vec<usize>,
    /// For each user what it is free to do, summed up.
    free: Vec<Outlook>,
    /// For each user what was chosen, if anything.
    chosen: Vec<Option<usize>>,
    /// No outcome carries more in all: what the NICs can take together.
    ports: u64,
    /// What each NIC can take.
    slots: Vec<u64>,
}

/// What holds whatever a user chooses.
struct Outlook {
    /// It passes these in any case.
    common: Vec<u16>,
    /// It has no more than this.
    most: u64,
    /// It costs no less than this.
    cost: u64,
    off_rail: u64,
}

impl<'a> Bounds<'a> {
    pub(super) fn new(problem: &'a Problem, bundles: &'a [Vec<Bundle>], users: &[usize]) -> Self {
        let free = bundles.iter().map(|bundles| {
            let mut all = bundles.iter();
            let common = all.next().map(|first| first.common.clone()).unwrap_or_default();
            Outlook {
                common: common.into_iter().filter(|r| bundles.iter().all(|b| b.common.contains(r))).collect(),
                most: bundles.iter().map(|b| b.most).max().unwrap_or(0),
                cost: bundles.iter().map(|b| b.cost).min().unwrap_or(0),
                off_rail: bundles.iter().map(|b| b.off_rail).min().unwrap_or(0),
            }
        });
        let nics = problem.ways.iter().flatten().map(|way| usize::from(way.nic) + 1).max().unwrap_or(0);
        // What all ways to a NIC pass bounds what it gets, and what NICs have in common bounds them
        // together: cards with two ports, switches with a narrow link above.
        let shared: Vec<(Vec<u16>, u64)> = (0..nics as u16).map(|nic| shared(problem, nic)).collect();
        let demands: Vec<(&[u16], u64)> = shared.iter().map(|(common, most)| (common.as_slice(), *most)).collect();
        let ports = cut(&demands, &problem.capacity);
        let slots = shared.iter().map(|(_, most)| *most).collect();
        Self {
            problem,
            bundles,
            users: users.to_vec(),
            free: free.collect(),
            chosen: vec![None; bundles.len()],
            ports,
            slots,
        }
    }

    /// Says what a user has chosen, or that it has not.
    pub(super) fn choose(&mut self, user: usize, choice: Option<usize>) {
        self.chosen[user] = choice;
    }

    /// A worth that no completion exceeds. Only how it compares to `best` is exact.
    pub(super) fn most(&self, best: &Worth, nic_users: &[u32], nic_own: &[bool]) -> Worth {
        let (mut near, mut off_rail, mut worst) = (0, 0, u64::MAX);
        let mut passing = vec![0_u64; self.problem.capacity.len()];
        for &user in &self.users {
            let (common, most, cost, off) = self.outlook(user);
            worst = worst.min(most);
            near += cost;
            off_rail += off;
            for &r in common {
                passing[usize::from(r)] += 1;
            }
        }
        // Of users that all pass one resource, one has no more than an equal share.
        for (r, &users) in passing.iter().enumerate().filter(|(_, users)| **users > 0) {
            worst = worst.min(self.problem.capacity[r] / users);
        }
        let mut worst = units(worst);
        let better = (best.worst + 1) * UNIT - UNIT / 2;
        if worst > best.worst && !self.room(better, nic_users, nic_own) {
            worst = best.worst;
        }
        let reverse = Reverse;
        let worth = |total| Worth { worst, total, near: reverse(near), off_rail: reverse(off_rail) };
        if worst != best.worst {
            return worth(u64::MAX);
        }
        worth(units(self.total()))
    }

    fn outlook(&self, user: usize) -> (&[u16], u64, u64, u64) {
        match self.chosen[user] {
            Some(choice) => {
                let bundle = &self.bundles[user][choice];
                (&bundle.common, bundle.most, bundle.cost, bundle.off_rail)
            }
            None => {
                let free = &self.free[user];
                (&free.common, free.most, free.cost, free.off_rail)
            }
        }
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

    /// The sum of what users can have at most.
    fn total(&self) -> u64 {
        let demands: Vec<(&[u16], u64)> = self
            .users
            .iter()
            .map(|&user| {
                let (common, most, ..) = self.outlook(user);
                (common, most)
            })
            .collect();
        cut(&demands, &self.problem.capacity).min(self.ports)
    }
}

/// What all ways to a NIC pass, and what of it is narrowest.
fn shared(problem: &Problem, nic: u16) -> (Vec<u16>, u64) {
    let mut ways = problem.ways.iter().flatten().filter(|way| way.nic == nic);
    let Some(first) = ways.next() else { return (Vec::new(), 0) };
    let common = first.over.iter().copied().filter(|r| ways.clone().all(|way| way.over.contains(r)));
    let common: Vec<u16> = common.collect();
    let widest = problem.ways.iter().flatten().filter(|way| way.nic == nic).map(|way| way.limit);
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
