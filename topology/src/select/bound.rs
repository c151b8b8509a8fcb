//! Bounds: what no completion of an assignment in part can exceed.

use std::cmp::Reverse;

use super::ceiling::Ceiling;
use super::cut::Cut;
use super::open::{Bits, Level, Open, Rows, Taken, bits, least};
use super::price::Prices;
use super::problem::{Bundle, Problem};
use super::search::{Worth, units};

/// Keeps, for an assignment in part, what every completion of it has in common.
pub(super) struct Bounds<'a> {
    problem: &'a Problem,
    bundles: &'a [Vec<Bundle>],
    users: Vec<usize>,
    /// For each choice what all of its ways pass, and its NICs.
    common: Rows,
    nics: Rows,
    /// What is open when so many users have chosen.
    open: Vec<Open>,
    /// For each user the least that a choice costs, and what choices cost with prices.
    costs: Vec<u64>,
    prices: Prices,
    /// For each user what was chosen, if anything.
    chosen: Vec<Option<usize>>,
    /// What no assignment exceeds; that of the worst holds for what it had at first, in units.
    ceiling: Ceiling,
    first: u64,
    /// What the worst has so far, in units; as much as that, and more, for all.
    worst: u64,
    reach: Level,
    exceed: Level,
    full: Bits,
    taken: Taken,
    cut: Cut,
}

/// What all can come to together, beside the sum that they have.
struct Outlook {
    /// True if all can have more than the worst so far.
    exceeds: bool,
    /// They cost no less, by their own costs and with prices.
    cost: u64,
    priced: u64,
    off_rail: u64,
}

impl<'a> Bounds<'a> {
    pub(super) fn new(problem: &'a Problem, bundles: &'a [Vec<Bundle>], users: &[usize], best: &Worth) -> Self {
        let common = Rows::new(problem.capacity.len(), bundles, |bundle| &bundle.common);
        let nics = problem.ways.iter().flatten().map(|way| usize::from(way.nic) + 1).max().unwrap_or(0);
        let nics = Rows::new(nics, bundles, |bundle| &bundle.nics);
        let reach = Level::new(best.worst, &problem.capacity);
        Self {
            problem,
            bundles,
            users: users.to_vec(),
            open: vec![Open::all(bundles, problem.capacity.len(), &common); users.len() + 1],
            costs: bundles.iter().map(|all| all.iter().map(|bundle| bundle.cost).min().unwrap_or(0)).collect(),
            prices: Prices::new(bundles, &reach.users, best.near.0),
            chosen: vec![None; bundles.len()],
            ceiling: Ceiling::new(problem, bundles, best.worst),
            first: best.worst,
            worst: best.worst,
            reach,
            exceed: Level::new(best.worst + 1, &problem.capacity),
            full: common.none(),
            taken: Taken::new(&nics),
            cut: Cut::default(),
            common,
            nics,
        }
    }

    /// Says what a user has chosen, or that it has not.
    pub(super) fn choose(&mut self, user: usize, choice: Option<usize>) {
        self.chosen[user] = choice;
    }

    /// What the user at that place can choose when those before it have chosen.
    pub(super) fn open(&self, place: usize) -> &[u16] {
        &self.open[place].choices[self.users[place]]
    }

    /// A worth that no completion exceeds when the first users, so many, have chosen. Only how it
    /// compares to `best` is exact.
    pub(super) fn most(&mut self, count: usize, best: &Worth, nic_users: &[u32], nic_own: &[bool]) -> Worth {
        if best.worst != self.worst {
            self.worst = best.worst;
            self.reach = Level::new(best.worst, &self.problem.capacity);
            self.exceed = Level::new(best.worst + 1, &self.problem.capacity);
        }
        let open = self.narrow(count, nic_users, nic_own).then(|| self.outlook(count));
        let Some(outlook) = open.flatten() else {
            return Worth { worst: 0, total: 0, near: Reverse(u64::MAX), off_rail: Reverse(u64::MAX) };
        };
        let near = Reverse(outlook.cost.max(self.prices.all(outlook.priced)));
        let worth = |worst, total| Worth { worst, total, near, off_rail: Reverse(outlook.off_rail) };
        if outlook.exceeds && self.room(self.exceed.rate, nic_users, nic_own) {
            return worth(best.worst + 1, u64::MAX);
        }
        let enough = least(best.total);
        let mut total = self.ceiling.total;
        if total >= enough {
            total = total.min(self.cut.most(&self.problem.capacity, self.reach.rate, enough));
        }
        worth(best.worst, units(total))
    }

    /// The least that all users can cost, whatever it gives them.
    pub(super) fn nearest(&self) -> u64 {
        let chosen = |&user: &usize| (user, self.chosen[user]);
        let cost = |(user, choice): (usize, Option<usize>)| match choice {
            Some(choice) => (self.bundles[user][choice].cost, self.prices.of(user, choice)),
            None => (self.costs[user], self.prices.least(user)),
        };
        let costs = self.users.iter().map(chosen).map(cost);
        let (cost, priced) = costs.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
        cost.max(self.prices.all(priced))
    }

    /// Leaves open what gives all as much as the worst so far. False if that is nothing.
    fn narrow(&mut self, count: usize, nic_users: &[u32], nic_own: &[bool]) -> bool {
        let (before, after) = self.open.split_at_mut(count);
        let open = &mut after[0];
        if let Some(before) = before.last() {
            let user = self.users[count - 1];
            open.follow(before, user, self.chosen[user], &self.common);
        }
        self.taken.set(nic_users, nic_own);
        let waiting = &self.users[count..];
        let pinned = |user: usize| self.problem.pinned[user].is_some();
        let free = waiting.iter().copied().filter(|&user| !pinned(user));
        open.leave_taken(free, self.bundles, &self.nics, &self.taken, &self.common)
            && open.leave_full(waiting, self.bundles, &self.reach, &self.common, &mut self.full)
    }

    /// What all can come to, by what is open. `None` if they can not have as much as the worst so far.
    fn outlook(&mut self, count: usize) -> Option<Outlook> {
        let open = &self.open[count];
        let can_exceed = !(self.ceiling.worst_is_final && self.worst == self.first);
        let exceeds = can_exceed && self.exceed.full(&open.passing, &mut self.full);
        let mut all = Outlook { exceeds, cost: 0, priced: 0, off_rail: 0 };
        self.cut.clear();
        for &user in &self.users {
            let bundles = &self.bundles[user];
            let most = if let Some(choice) = self.chosen[user] {
                let bundle = &bundles[choice];
                if !self.is_left(user, bundle, &self.reach, open) {
                    return None;
                }
                all.exceeds = all.exceeds && self.is_left(user, bundle, &self.exceed, open);
                all.cost += bundle.cost;
                all.priced += self.prices.of(user, choice);
                all.off_rail += bundle.off_rail;
                bundle.most
            } else {
                all.exceeds = all.exceeds && open.can(user, bundles, &self.exceed, &self.common, &self.full);
                let (mut cost, mut priced, mut off_rail, mut most) = (u64::MAX, u64::MAX, u64::MAX, 0);
                for choice in open.choices[user].iter().map(|&choice| usize::from(choice)) {
                    let bundle = &bundles[choice];
                    cost = cost.min(bundle.cost);
                    priced = priced.min(self.prices.of(user, choice));
                    off_rail = off_rail.min(bundle.off_rail);
                    most = most.max(bundle.most);
                }
                all.cost = all.cost.saturating_add(cost);
                all.priced = all.priced.saturating_add(priced);
                all.off_rail = all.off_rail.saturating_add(off_rail);
                most
            };
            self.cut.add(bits(&open.common[user]), most);
        }
        Some(all)
    }

    /// True if others, were each to have no more than this, leave as much for a user of several NICs.
    fn is_left(&self, user: usize, bundle: &Bundle, level: &Level, open: &Open) -> bool {
        if bundle.ways.len() == 1 {
            return bundle.most >= level.rate;
        }
        let left = |&r: &u16| {
            let others = open.passing[usize::from(r)] - u64::from(bundle.common.contains(&r));
            self.problem.capacity[usize::from(r)].saturating_sub(others.saturating_mul(level.rate))
        };
        let ways = bundle.ways.iter().map(|&way| &self.problem.ways[user][usize::from(way)]);
        let each = ways.map(|way| way.over.iter().map(left).min().unwrap_or(0));
        each.fold(0, u64::saturating_add) >= level.rate
    }

    /// True if the NICs can hold those who have not chosen, were each to have `rate`.
    fn room(&self, rate: u64, nic_users: &[u32], nic_own: &[bool]) -> bool {
        let waiting = self.users.iter().filter(|&&user| self.chosen[user].is_none()).count() as u64;
        let places = self.ceiling.nics.iter().enumerate().map(|(nic, &most)| {
            if nic_own[nic] {
                return 0;
            }
            // A NIC too slow for one can still be part of several that are fast enough.
            (most / rate).max(u64::from(most > 0)).saturating_sub(nic_users[nic].into())
        });
        places.fold(0_u64, u64::saturating_add) >= waiting
    }
}
