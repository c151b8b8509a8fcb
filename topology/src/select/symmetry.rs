//! Users and NICs that are alike: of assignments that differ in nothing but which of them has what,
//! one is looked at.

use std::collections::BTreeMap;

use super::problem::{Bundle, EVERY_SET, Problem, Way};
use super::share::Over;

/// Which users and which NICs can change places. Where they do, an assignment is worth the same, so
/// of all that come of one another so the search needs the first: that one wins between equals.
#[derive(Debug)]
pub(super) struct Symmetry {
    /// For each user the last one before it that it can change places with.
    users: Vec<Option<usize>>,
    /// For each NIC the last one before it that it can change places with while nobody uses either.
    nics: Vec<Option<u16>>,
}

impl Symmetry {
    /// Of a problem without what never limits: things that differ in nothing else are alike.
    pub(super) fn of(problem: &Problem, bundles: &[Vec<Bundle>], nics: usize) -> Self {
        let mut all = Self { users: vec![None; bundles.len()], nics: vec![None; nics] };
        if bundles.len() > MOST || nics > MOST {
            return all;
        }
        let several = bundles.iter().flatten().any(|bundle| bundle.nics.len() > 1);
        all.find_users(problem, bundles, several);
        // Where not every set of NICs is offered, the one with the other NIC in it may not be.
        if !several || problem.ways.iter().all(|ways| ways.chunk_by(|a, b| a.nic == b.nic).count() <= EVERY_SET) {
            all.find_nics(problem);
        }
        all
    }

    /// True if no assignment that comes of this one comes before it. `now` has what earlier users
    /// chose, `nic_users` how many of them each NIC has.
    pub(super) fn is_first(
        &self,
        user: usize,
        choice: usize,
        bundle: &Bundle,
        now: &[usize],
        nic_users: &[u32],
    ) -> bool {
        let unused = |nic: u16| nic_users[usize::from(nic)] == 0;
        let in_turn = |&nic: &u16| {
            let before = self.nics[usize::from(nic)].filter(|_| unused(nic));
            before.is_none_or(|before| !unused(before) || bundle.nics.contains(&before))
        };
        self.users[user].is_none_or(|before| choice >= now[before]) && bundle.nics.iter().all(in_turn)
    }

    fn find_users(&mut self, problem: &Problem, bundles: &[Vec<Bundle>], several: bool) {
        let owners = owners(problem, |user, _| user);
        let mut last = BTreeMap::new();
        for (user, ways) in problem.ways.iter().enumerate().filter(|(user, _)| problem.pinned[*user].is_none()) {
            let Some(first) = ways.first() else { continue };
            // Where each has one way, what all of them cost more adds up to the same.
            let more = if several { 0 } else { first.cost };
            let own = |r: u16| owners[usize::from(r)] == Owner::One(user);
            let kind = |way: &Way| (way.nic, way.cost.wrapping_sub(more), way.off_rail, way.limit, others(way, own));
            let kinds: Vec<_> = ways.iter().map(kind).collect();
            let places = ways.iter().enumerate();
            let own = own_resources(places, own, &problem.capacity);
            let sets: Vec<&[u16]> = bundles[user].iter().map(|bundle| bundle.ways.as_slice()).collect();
            self.users[user] = last.insert((kinds, own, sets), user);
        }
    }

    fn find_nics(&mut self, problem: &Problem) {
        let owners = owners(problem, |_, way| usize::from(way.nic));
        let told = |nic: u16| problem.pinned.iter().flatten().any(|nics| nics.contains(&nic));
        let mut last = BTreeMap::new();
        for nic in (0..self.nics.len() as u16).filter(|&nic| !told(nic)) {
            let own = |r: u16| owners[usize::from(r)] == Owner::One(nic.into());
            let ways = problem.ways.iter().enumerate().flat_map(|(user, ways)| {
                let to = ways.iter().filter(move |way| way.nic == nic).enumerate();
                to.map(move |(place, way)| ((user, place), way))
            });
            let kind = |(at, way): ((usize, usize), &Way)| (at, way.cost, way.off_rail, way.limit, others(way, own));
            let kinds: Vec<_> = ways.clone().map(kind).collect();
            if !kinds.is_empty() {
                let own = own_resources(ways, own, &problem.capacity);
                self.nics[usize::from(nic)] = last.insert((kinds, own), nic);
            }
        }
    }
}

/// Whose ways pass a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Nobody,
    One(usize),
    Several,
}

fn owners(problem: &Problem, whose: impl Fn(usize, &Way) -> usize) -> Vec<Owner> {
    let mut owners = vec![Owner::Nobody; problem.capacity.len()];
    for (user, ways) in problem.ways.iter().enumerate() {
        for way in ways {
            let one = whose(user, way);
            for &r in &way.over {
                let owner = &mut owners[usize::from(r)];
                let same = matches!(*owner, Owner::Nobody) || *owner == Owner::One(one);
                *owner = if same { Owner::One(one) } else { Owner::Several };
            }
        }
    }
    owners
}

/// What a way passes that is not one's own.
fn others(way: &Way, own: impl Fn(u16) -> bool) -> Over {
    way.over.iter().copied().filter(|&r| !own(r)).collect()
}

/// One's own resources without their numbers: what each carries, and on which ways it is.
fn own_resources<'a, P: Ord + Copy>(
    ways: impl Iterator<Item = (P, &'a Way)>,
    own: impl Fn(u16) -> bool,
    capacity: &[u64],
) -> Vec<(u64, Vec<P>)> {
    let mut all: BTreeMap<u16, (u64, Vec<P>)> = BTreeMap::new();
    for (place, way) in ways {
        for &r in way.over.iter().filter(|&&r| own(r)) {
            all.entry(r).or_insert_with(|| (capacity[usize::from(r)], Vec::new())).1.push(place);
        }
    }
    let mut all: Vec<_> = all.into_values().collect();
    all.sort();
    all
}

/// With more users or NICs than this the search is not complete anyway.
const MOST: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    /// Users with a link each (the first numbers) and NICs with a link each (the others).
    fn problem(users: &[u64], nics: &[u64]) -> (Problem, Vec<Vec<Bundle>>) {
        let capacity: Vec<u64> = users.iter().chain(nics).copied().collect();
        let way = |user: usize, nic: usize| {
            let route = vec![user as u16, (users.len() + nic) as u16];
            let limit = users[user].min(nics[nic]);
            Way { nic: nic as u16, over: route.clone(), route, limit, cost: 1, off_rail: false }
        };
        let ways = (0..users.len()).map(|user| (0..nics.len()).map(|nic| way(user, nic)).collect());
        let problem = Problem { capacity, ways: ways.collect(), pinned: vec![None; users.len()] };
        let bundles = problem.bundles();
        (problem, bundles)
    }

    #[test]
    fn users_and_nics_with_equal_links_are_alike() {
        let (problem, bundles) = problem(&[8, 8, 9], &[5, 4, 5]);
        let symmetry = Symmetry::of(&problem, &bundles, 3);
        assert_eq!((symmetry.users, symmetry.nics), (vec![None, Some(0), None], vec![None, None, Some(0)]));
    }

    #[test]
    fn the_first_of_what_is_alike_is_looked_at() {
        let (problem, bundles) = problem(&[8, 8], &[5, 5]);
        let symmetry = Symmetry::of(&problem, &bundles, 2);
        let is_first = |user: usize, choice: usize, now: &[usize], nic_users: &[u32]| {
            symmetry.is_first(user, choice, &bundles[user][choice], now, nic_users)
        };
        assert!(is_first(0, 0, &[0, 0], &[0, 0]));
        assert!(!is_first(0, 1, &[0, 0], &[0, 0]), "the second NIC before the first");
        assert!(is_first(1, 1, &[0, 0], &[1, 0]));
        assert!(!is_first(1, 0, &[1, 0], &[0, 1]), "the second user before the first");
    }

    #[test]
    fn a_nic_that_one_is_told_to_use_is_like_no_other() {
        let (mut problem, bundles) = problem(&[8, 8], &[5, 5]);
        problem.pinned[0] = Some(vec![0]);
        let symmetry = Symmetry::of(&problem, &bundles, 2);
        assert_eq!((symmetry.users, symmetry.nics), (vec![None, None], vec![None, None]));
    }
}
