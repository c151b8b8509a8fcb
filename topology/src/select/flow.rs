//! The most that can flow when every user may use all of its ways at once and in parts.

use std::collections::VecDeque;

use super::problem::Way;

/// No assignment carries more than this in all, of users that each have a most and ways. Where ways meet, flow may go on by either, so it is
/// no more than a bound; it sees every narrow place that several users have to pass.
pub(super) fn most(users: &[(u64, &Vec<&Way>)], capacity: &[u64]) -> u64 {
    let mut net = Net::new(2 + users.len() + 2 * capacity.len());
    let user = |user: usize| 2 + user;
    let into = |resource: u16| 2 + users.len() + 2 * usize::from(resource);
    for (resource, &capacity) in capacity.iter().enumerate() {
        net.join(into(resource as u16), into(resource as u16) + 1, capacity);
    }
    for (place, (most, ways)) in users.iter().enumerate() {
        net.join(SOURCE, user(place), (*most).min(ENOUGH));
        for way in *ways {
            let mut from = user(place);
            for &resource in &way.route {
                net.join(from, into(resource), ENOUGH);
                from = into(resource) + 1;
            }
            net.join(from, SINK, ENOUGH);
        }
    }
    net.flow()
}

const SOURCE: usize = 0;
const SINK: usize = 1;
/// More than all capacities together.
const ENOUGH: u64 = u64::MAX / 4;

/// A flow network, by what is left of each edge; an edge and its reverse are neighbours in the list.
struct Net {
    edges: Vec<(usize, u64)>,
    of: Vec<Vec<usize>>,
}

impl Net {
    fn new(nodes: usize) -> Self {
        Self { edges: Vec::new(), of: vec![Vec::new(); nodes] }
    }

    fn join(&mut self, from: usize, to: usize, capacity: u64) {
        if self.of[from].iter().any(|&edge| edge % 2 == 0 && self.edges[edge].0 == to) {
            return;
        }
        self.of[from].push(self.edges.len());
        self.of[to].push(self.edges.len() + 1);
        self.edges.extend([(to, capacity), (from, 0)]);
    }

    /// Fills the shortest way that is left, again and again.
    fn flow(mut self) -> u64 {
        let mut sum = 0_u64;
        loop {
            let mut came = vec![usize::MAX; self.of.len()];
            let mut queue = VecDeque::from([SOURCE]);
            while let Some(node) = queue.pop_front() {
                for &edge in &self.of[node] {
                    let (to, left) = self.edges[edge];
                    if left > 0 && to != SOURCE && came[to] == usize::MAX {
                        came[to] = edge;
                        queue.push_back(to);
                    }
                }
            }
            if came[SINK] == usize::MAX {
                return sum;
            }
            let (mut least, mut node) = (u64::MAX, SINK);
            while node != SOURCE {
                least = least.min(self.edges[came[node]].1);
                node = self.edges[came[node] ^ 1].0;
            }
            node = SINK;
            while node != SOURCE {
                let edge = came[node];
                self.edges[edge].1 -= least;
                self.edges[edge ^ 1].1 += least;
                node = self.edges[edge ^ 1].0;
            }
            sum = sum.saturating_add(least);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(route: &[u16]) -> Way {
        Way { nic: 0, over: route.to_vec(), route: route.to_vec(), limit: 0, cost: 0, off_rail: false }
    }

    #[test]
    fn a_narrow_place_that_all_have_to_pass_bounds_them() {
        // Two users with a link each (0, 1), one uplink (2), two NICs behind it (3, 4).
        let ways: Vec<Vec<Way>> = [0, 1].map(|own| vec![way(&[own, 2, 3]), way(&[own, 2, 4])]).to_vec();
        let ways: Vec<Vec<&Way>> = ways.iter().map(|ways| ways.iter().collect()).collect();
        let users: Vec<(u64, &Vec<&Way>)> = ways.iter().map(|ways| (20, ways)).collect();
        assert_eq!(most(&users, &[10, 10, 8, 5, 5]), 8);
        assert_eq!(most(&users, &[10, 10, 30, 5, 5]), 10);
        assert_eq!(most(&users, &[1, 2, 30, 5, 5]), 3);
    }
}
