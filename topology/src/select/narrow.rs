//! The problem without what never limits a flow.

use std::cmp::Reverse;

use super::problem::{Bundle, Problem, Way};
use super::share::Over;

/// The same problem without resources that can not get full before others that the same flows pass:
/// rates are the same without them. `bundles` are those that users may choose.
pub(super) fn narrow(problem: &Problem, bundles: &[Vec<Bundle>]) -> Problem {
    let limits = limits(problem, bundles);
    let mut numbers = vec![None; limits.len()];
    let mut capacity = Vec::new();
    for (r, _) in limits.iter().enumerate().filter(|(_, limits)| **limits) {
        numbers[r] = Some(capacity.len() as u16);
        capacity.push(problem.capacity[r]);
    }
    let left = |over: &Over| over.iter().filter_map(|&r| numbers[usize::from(r)]).collect::<Over>();
    let way = |way: &Way| Way { over: left(&way.over), route: left(&way.route), ..way.clone() };
    let ways = problem.ways.iter().map(|ways| ways.iter().map(way).collect()).collect();
    Problem { capacity, ways, pinned: problem.pinned.clone() }
}

/// Whether each resource can limit a flow: whether all that may pass it can want more than it
/// carries, as the others limit them that they pass.
fn limits(problem: &Problem, bundles: &[Vec<Bundle>]) -> Vec<bool> {
    let several = bundles.iter().flatten().any(|bundle| bundle.ways.len() > 1);
    let mut limits = vec![true; problem.capacity.len()];
    // One after the other, so that no two are left out of which each was the reason for the other.
    let mut widest_first: Vec<u16> = (0..limits.len() as u16).collect();
    widest_first.sort_by_key(|&r| (Reverse(problem.capacity[usize::from(r)]), r));
    for r in widest_first {
        let of_way = |way: &Way| {
            let others = way.over.iter().filter(|&&other| other != r && limits[usize::from(other)]);
            others.map(|&other| problem.capacity[usize::from(other)]).min().unwrap_or(u64::MAX)
        };
        let of_user = |ways: &Vec<Way>| {
            let over = ways.iter().filter(|way| way.over.contains(&r)).map(of_way);
            if several { over.fold(0, u64::saturating_add) } else { over.max().unwrap_or(0) }
        };
        let wanted = problem.ways.iter().map(of_user).fold(0, u64::saturating_add);
        limits[usize::from(r)] = wanted > problem.capacity[usize::from(r)];
    }
    limits
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(capacity: &[u64], routes: &[&[u16]]) -> (Problem, Vec<Vec<Bundle>>) {
        let way = |route: &&[u16]| {
            let limit = route.iter().map(|&r| capacity[usize::from(r)]).min().unwrap_or(0);
            Way { nic: 0, over: route.to_vec(), route: route.to_vec(), limit, cost: 0, off_rail: false }
        };
        let ways = routes.iter().map(|route| vec![way(route)]).collect::<Vec<_>>();
        let problem = Problem { capacity: capacity.to_vec(), pinned: vec![None; ways.len()], ways };
        let bundles = problem.bundles();
        (problem, bundles)
    }

    #[test]
    fn a_link_wider_than_what_follows_it_never_limits() {
        let (problem, bundles) = problem(&[24, 12], &[&[0, 1]]);
        let narrow = narrow(&problem, &bundles);
        assert_eq!((narrow.capacity.as_slice(), narrow.ways[0][0].over.as_slice()), (&[12][..], &[0][..]));
    }

    #[test]
    fn a_link_that_several_share_limits_them() {
        let (problem, bundles) = problem(&[24, 20, 20], &[&[0, 1], &[0, 2]]);
        assert_eq!(narrow(&problem, &bundles).capacity, [24, 20, 20]);
    }

    #[test]
    fn of_two_equal_links_in_a_row_one_is_left() {
        let (problem, bundles) = problem(&[24, 24], &[&[0, 1]]);
        assert_eq!(narrow(&problem, &bundles).capacity, [24]);
    }
}
