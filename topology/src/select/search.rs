//! The search for the best assignment: branch and bound over users in order.
//!
//! A first answer comes from taking for each user in turn what is best so far, and from changing one
//! or two users at a time while that helps. The search then visits, in the order that decides
//! between equals, whatever could still be better, and leaves out what bounds prove not to be, and
//! what comes of something before it when users or NICs that are alike change places.

use std::cmp::Ordering;

use super::bound::Bounds;
use super::narrow::narrow;
use super::problem::{Bundle, Problem};
use super::share::Sharing;
use super::symmetry::Symmetry;

/// What an assignment is worth. Greater is better, the first field first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Worth {
    /// The rate of the user that has least, in [`UNIT`]s.
    pub(super) worst: u64,
    /// The sum of rates, in [`UNIT`]s.
    pub(super) total: u64,
    /// The sum of costs: nearer is better.
    pub(super) near: std::cmp::Reverse<u64>,
    /// How many NICs are not the user's own rail.
    pub(super) off_rail: std::cmp::Reverse<u64>,
}

/// An assignment and its worth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// For each user the place of its bundle; of users without any, zero.
    pub(super) bundles: Vec<usize>,
    /// What it is worth.
    pub(super) worth: Worth,
    /// True if the search went to its end: there is none better.
    pub(super) proven: bool,
}

/// Up to this many users and NICs the search always goes to its end.
pub(super) const PROVEN: usize = 8;

/// Beyond, it visits at most so many assignments in part. It was chosen so that the oddest of 2000
/// random machines of 16 GPUs and 16 NICs takes some 10 ms, on an AMD EPYC.
const VISITS: u64 = 500;

/// Finds the best assignment.
pub(super) fn search(problem: &Problem, bundles: &[Vec<Bundle>]) -> Answer {
    let mut search = Search::new(problem, bundles);
    search.first();
    search.improve();
    // What can not give its user as much as the worst one has already is left out from here on.
    let enough = |bundle: &Bundle| units(bundle.most) >= search.worth.worst;
    let kept = |bundles: &Vec<Bundle>| (0..bundles.len()).filter(|&place| enough(&bundles[place])).collect();
    let kept: Vec<Vec<usize>> = bundles.iter().map(kept).collect();
    let left: Vec<Vec<Bundle>> =
        bundles.iter().zip(&kept).map(|(all, kept)| kept.iter().map(|&place| all[place].clone()).collect()).collect();
    let place = |(user, &choice): (usize, &usize)| kept[user].iter().position(|&place| place == choice).unwrap_or(0);
    let mut proof = Search::new(problem, &left);
    proof.best = search.best.iter().enumerate().map(place).collect();
    proof.worth = search.worth;
    proof.visits = if proof.users.len() <= PROVEN && proof.nic_users.len() <= PROVEN { u64::MAX } else { VISITS };
    let mut bounds = Bounds::new(problem, &left, &proof.users, &proof.worth);
    let root = bounds.most(0, &proof.worth, &proof.nic_users, &proof.nic_own);
    proof.rates_final = (root.worst, root.total) == (proof.worth.worst, proof.worth.total);
    let symmetry = Symmetry::of(&narrow(problem, &left), &left, proof.nic_users.len());
    let proven = proof.descend(0, &mut bounds, &symmetry);
    let best = proof.best.iter().zip(&kept).map(|(&choice, kept)| kept.get(choice).copied().unwrap_or(0));
    Answer { bundles: best.collect(), worth: proof.worth, proven }
}

/// Rates are compared in megabytes a second, rounded: a share of a third has no whole number of
/// bytes, and the rest must not outweigh that a NIC is nearer.
pub(super) const UNIT: u64 = 1_000_000;

/// Bytes a second in units.
pub(super) fn units(rate: u64) -> u64 {
    (rate.saturating_add(UNIT / 2)) / UNIT
}

struct Search<'a> {
    problem: &'a Problem,
    bundles: &'a [Vec<Bundle>],
    /// The users that have something to choose, in order.
    users: Vec<usize>,
    /// What is tried now.
    now: Vec<usize>,
    best: Vec<usize>,
    worth: Worth,
    /// True while `best` is not from the search itself: then an equal one replaces it, so that the
    /// first of equals wins.
    heuristic: bool,
    visits: u64,
    /// True if the rates of `best` can not be exceeded, so that only a nearer one can be better.
    rates_final: bool,
    /// How many flows may still be looked at before the search proper; it bounds the time that a
    /// machine of hundreds of GPUs takes.
    effort: u64,
    /// How many users each NIC has in `now`, and whether one has it for itself.
    nic_users: Vec<u32>,
    nic_own: Vec<bool>,
    /// Space that is kept.
    flows: Vec<&'a [u16]>,
    sharing: Sharing,
}

impl<'a> Search<'a> {
    fn new(problem: &'a Problem, bundles: &'a [Vec<Bundle>]) -> Self {
        let nics = problem.ways.iter().flatten().map(|way| usize::from(way.nic) + 1).max().unwrap_or(0);
        let reverse = std::cmp::Reverse;
        Self {
            problem,
            bundles,
            users: (0..bundles.len()).filter(|&user| !bundles[user].is_empty()).collect(),
            now: vec![0; bundles.len()],
            best: vec![0; bundles.len()],
            worth: Worth { worst: 0, total: 0, near: reverse(u64::MAX), off_rail: reverse(u64::MAX) },
            heuristic: true,
            visits: 0,
            rates_final: false,
            effort: EFFORT,
            nic_users: vec![0; nics],
            nic_own: vec![false; nics],
            flows: Vec::new(),
            sharing: Sharing::default(),
        }
    }

    /// What `now` is worth, of the first users only.
    fn value(&mut self, users: usize) -> Worth {
        let users = &self.users[..users];
        let chosen = users.iter().map(|&user| (&self.problem.ways[user], &self.bundles[user][self.now[user]]));
        self.flows.clear();
        self.flows.extend(
            chosen.flat_map(|(ways, bundle)| bundle.ways.iter().map(|&way| ways[usize::from(way)].over.as_slice())),
        );
        self.effort = self.effort.saturating_sub(self.flows.len() as u64);
        let rates = self.sharing.rates(&self.flows, &self.problem.capacity);
        let (mut worst, mut total, mut near, mut off_rail, mut place) = (u64::MAX, 0_u64, 0, 0, 0);
        for &user in users {
            let bundle = &self.bundles[user][self.now[user]];
            let next = place + bundle.ways.len();
            let rate = rates[place..next].iter().sum();
            worst = worst.min(rate);
            total += rate;
            near += bundle.cost;
            off_rail += bundle.off_rail;
            place = next;
        }
        let (worst, total) = (units(worst), units(total));
        Worth { worst, total, near: std::cmp::Reverse(near), off_rail: std::cmp::Reverse(off_rail) }
    }

    /// True if nobody of those who have chosen forbids it: who has several NICs has them alone.
    fn allowed(&self, bundle: &Bundle) -> bool {
        let several = bundle.nics.len() > 1;
        bundle
            .nics
            .iter()
            .map(|&nic| usize::from(nic))
            .all(|nic| !(self.nic_own[nic] || several && self.nic_users[nic] > 0))
    }

    fn take(&mut self, user: usize, choice: usize) {
        let bundle = &self.bundles[user][choice];
        for &nic in &bundle.nics {
            self.nic_users[usize::from(nic)] += 1;
            self.nic_own[usize::from(nic)] = bundle.nics.len() > 1 && self.problem.pinned[user].is_none();
        }
        self.now[user] = choice;
    }

    fn leave(&mut self, user: usize) {
        for &nic in &self.bundles[user][self.now[user]].nics {
            self.nic_users[usize::from(nic)] -= 1;
            self.nic_own[usize::from(nic)] = false;
        }
    }

    /// For each user in turn, the one NIC that is best so far. More come as the answer is improved,
    /// when all have one.
    fn first(&mut self) {
        for place in 0..self.users.len() {
            let user = self.users[place];
            let pinned = self.problem.pinned[user].is_some();
            let mut best: Option<(Worth, usize)> = None;
            for choice in 0..self.bundles[user].len() {
                if self.effort == 0 {
                    break;
                }
                if self.bundles[user][choice].nics.len() > 1 && !pinned {
                    continue;
                }
                self.now[user] = choice;
                let worth = self.value(place + 1);
                if best.is_none_or(|(so_far, _)| worth > so_far) {
                    best = Some((worth, choice));
                }
            }
            let choice = if self.effort == 0 { self.least_used(user) } else { best.map(|(_, choice)| choice) };
            self.take(user, choice.unwrap_or(0));
        }
        self.best.clone_from(&self.now);
        self.worth = self.value(self.users.len());
    }

    /// The single NIC that fewest users have, for machines too large to try all.
    fn least_used(&self, user: usize) -> Option<usize> {
        let singles = self.bundles[user].iter().enumerate().filter(|(_, bundle)| bundle.nics.len() == 1);
        let used = |bundle: &Bundle| (self.nic_users[usize::from(bundle.nics[0])], bundle.cost);
        singles.min_by_key(|(_, bundle)| used(bundle)).map(|(choice, _)| choice)
    }

    /// Changes one user, or two at once, while that is better.
    fn improve(&mut self) {
        for _ in 0..ROUNDS {
            let before = self.worth;
            for place in 0..self.users.len() {
                self.improve_one(self.users[place]);
            }
            for a in 0..self.users.len() {
                for b in a + 1..self.users.len() {
                    self.exchange(self.users[a], self.users[b]);
                }
            }
            if self.worth == before {
                break;
            }
        }
        for place in 0..self.users.len() {
            self.leave(self.users[place]);
        }
    }

    fn improve_one(&mut self, user: usize) {
        let mut kept = self.now[user];
        self.leave(user);
        for choice in 0..self.bundles[user].len() {
            if self.effort == 0 {
                break;
            }
            if choice == kept || !self.allowed(&self.bundles[user][choice]) {
                continue;
            }
            self.now[user] = choice;
            let worth = self.value(self.users.len());
            if worth > self.worth {
                self.worth = worth;
                kept = choice;
            }
        }
        self.take(user, kept);
        self.best.clone_from(&self.now);
    }

    /// Gives each of two users the NICs of the other.
    fn exchange(&mut self, a: usize, b: usize) {
        let (now_a, now_b) = (self.now[a], self.now[b]);
        let with = |user: usize, nics: &[u16]| self.bundles[user].iter().position(|bundle| bundle.nics == nics);
        let nics_a = &self.bundles[a][now_a].nics;
        let nics_b = &self.bundles[b][now_b].nics;
        if nics_a == nics_b || self.effort == 0 {
            return;
        }
        let (Some(new_a), Some(new_b)) = (with(a, nics_b), with(b, nics_a)) else { return };
        (self.now[a], self.now[b]) = (new_a, new_b);
        let worth = self.value(self.users.len());
        if worth > self.worth {
            self.worth = worth;
            (self.now[a], self.now[b]) = (now_a, now_b);
            self.leave(a);
            self.leave(b);
            self.take(a, new_a);
            self.take(b, new_b);
            self.best.clone_from(&self.now);
        } else {
            (self.now[a], self.now[b]) = (now_a, now_b);
        }
    }

    /// True if a completion of what the first users chose can be better than the best so far.
    fn useful(&self, count: usize, bounds: &mut Bounds<'_>) -> bool {
        match bounds.most(count, &self.worth, &self.nic_users, &self.nic_own).cmp(&self.worth) {
            Ordering::Greater => true,
            Ordering::Equal => self.heuristic,
            Ordering::Less => false,
        }
    }

    /// Visits what the users from `depth` on can choose. False if the visits ran out.
    fn descend(&mut self, depth: usize, bounds: &mut Bounds<'_>, symmetry: &Symmetry) -> bool {
        let Some(&user) = self.users.get(depth) else {
            let worth = self.value(depth);
            if worth > self.worth || self.heuristic && worth == self.worth {
                self.worth = worth;
                self.best.clone_from(&self.now);
                self.heuristic = false;
            }
            return true;
        };
        for place in 0.. {
            let Some(&choice) = bounds.open(depth).get(place) else { break };
            let choice = usize::from(choice);
            if !symmetry.is_first(user, choice, &self.bundles[user][choice], &self.now, &self.nic_users) {
                continue;
            }
            bounds.choose(user, Some(choice));
            if self.rates_final && bounds.nearest() > self.worth.near.0 {
                bounds.choose(user, None);
                continue;
            }
            if self.visits == 0 {
                return false;
            }
            self.visits -= 1;
            self.take(user, choice);
            let useful = self.useful(depth + 1, bounds);
            let ended = !useful || self.descend(depth + 1, bounds, symmetry);
            bounds.choose(user, None);
            self.leave(user);
            if !ended {
                return false;
            }
        }
        true
    }
}

/// Rounds of improvement; few machines need a second.
const ROUNDS: usize = 4;

/// Flows that are looked at before the search proper: several times what 16 GPUs and 16 NICs need.
const EFFORT: u64 = 500_000;
