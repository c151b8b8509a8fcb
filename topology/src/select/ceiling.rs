//! What no assignment at all exceeds, found once before the search.

use super::cut::Cut;
use super::flow;
use super::open::least;
use super::problem::{Bundle, Problem, Way};

/// What no assignment exceeds.
#[derive(Debug)]
pub(super) struct Ceiling {
    /// What all have together, in bytes.
    pub(super) total: u64,
    /// True if the worst can not have more than it was said to have.
    pub(super) worst_is_final: bool,
    /// What each NIC can take.
    pub(super) nics: Vec<u64>,
}

impl Ceiling {
    /// `worst` is what the user that has least has in some assignment, in units.
    pub(super) fn new(problem: &Problem, bundles: &[Vec<Bundle>], worst: u64) -> Self {
        let of_users: Vec<Vec<&Way>> = (0..bundles.len()).map(|user| used(problem, user, &bundles[user])).collect();
        let ways: Vec<&Way> = of_users.iter().flatten().copied().collect();
        let nics = ways.iter().map(|way| way.nic + 1).max().unwrap_or(0);
        // What all ways to a NIC pass bounds what it gets, and what NICs have in common bounds them
        // together: cards with two ports, switches with a narrow link above.
        let shared: Vec<(Vec<u16>, u64)> = (0..nics).map(|nic| shared(problem, &ways, nic)).collect();
        let mut cut = Cut::default();
        shared.iter().for_each(|(common, most)| cut.add(common.iter().map(|&r| usize::from(r)), *most));
        let nics = shared.iter().map(|(_, most)| *most).collect();
        let mut ceiling = Self { total: cut.most(&problem.capacity, 0, 0), worst_is_final: false, nics };
        let users: Vec<&Vec<&Way>> = of_users.iter().filter(|ways| !ways.is_empty()).collect();
        if users.len() <= FLOWS {
            let flow = |each: u64, capacity: &[u64]| {
                flow::most(&users.iter().map(|&ways| (each, ways)).collect::<Vec<_>>(), capacity)
            };
            ceiling.total = ceiling.total.min(flow(u64::MAX, &problem.capacity));
            // Can all have more than the worst has now?
            let more = least(worst + 1);
            let whole = whole(problem, bundles, &ways, more);
            ceiling.worst_is_final = flow(more, &whole) < more.saturating_mul(users.len() as u64);
        }
        ceiling
    }
}

/// The ways that some bundle of a user takes.
fn used<'a>(problem: &'a Problem, user: usize, bundles: &[Bundle]) -> Vec<&'a Way> {
    let mut ways: Vec<u16> = bundles.iter().flat_map(|bundle| bundle.ways.iter().copied()).collect();
    ways.sort_unstable();
    ways.dedup();
    ways.into_iter().map(|way| &problem.ways[user][usize::from(way)]).collect()
}

/// What resources carry for users that have `rate` each. Where each has one NIC, a resource holds a
/// whole number of them, and what is left over is of no use to anybody.
fn whole(problem: &Problem, bundles: &[Vec<Bundle>], ways: &[&Way], rate: u64) -> Vec<u64> {
    let several = |bundles: &Vec<Bundle>| bundles.iter().any(|bundle| bundle.ways.len() > 1);
    let single = !bundles.iter().any(several);
    // Those that are told to use several NICs may share them.
    let told = bundles.iter().zip(&problem.pinned).any(|(bundles, pinned)| pinned.is_some() && several(bundles));
    let of_one_nic = |r: u16| {
        let mut nics = ways.iter().filter(|way| way.over.contains(&r)).map(|way| way.nic);
        let first = nics.next();
        nics.all(|nic| Some(nic) == first)
    };
    let whole = problem.capacity.iter().enumerate().map(|(r, &capacity)| {
        // Who has several NICs has each alone, and then as much of it as it wants.
        let counts = single || !told && capacity >= rate && of_one_nic(r as u16);
        if counts { capacity / rate * rate } else { capacity }
    });
    whole.collect()
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

/// With more users the flow would take longer than what it saves.
const FLOWS: usize = 32;
