//! Where a communicator's ranks are, by what each told of itself.

use std::collections::{HashMap, HashSet};

use crate::algorithms::Nodes;
use crate::bootstrap::{Member, OwnIsland, Whereabouts};
use crate::cost::{LEAST_CORES, Seats};
use crate::execute::Patience;

/// Which ranks are on one node and on one island, and how many cores those of a node have: of the node with the fewest for each rank.
pub(super) fn seats(members: &[Member]) -> Seats {
    let mut nodes: HashMap<&str, u32> = HashMap::new();
    let mut numbers = Vec::with_capacity(members.len());
    let mut sizes: Vec<(usize, f64)> = Vec::new();
    for Member { whereabouts, .. } in members {
        let next = nodes.len() as u32;
        let number = *nodes.entry(&whereabouts.node).or_insert(next);
        numbers.push(number);
        if number == next {
            // Several may be on one machine, whose cores they share.
            let (all, cores) = crowd(members, &whereabouts.machine);
            let ranks = members.iter().filter(|other| other.whereabouts.node == whereabouts.node).count();
            sizes.push((ranks, (cores * ranks) as f64 / all.max(1) as f64));
        }
    }
    let most = sizes.iter().map(|(ranks, _)| *ranks).max().unwrap_or(1);
    // Scaled to the node with most ranks, so that each rank has the part of a core that it has where they are fewest.
    let scaled = sizes.iter().map(|&(ranks, cores)| cores * most as f64 / ranks.max(1) as f64);
    let cores = scaled.fold(f64::INFINITY, f64::min).max(LEAST_CORES);
    let nodes = if nodes.len() > 1 { Nodes::Listed(numbers.into()) } else { Nodes::One };
    Seats {
        nodes,
        islands: islands(members, |rank| rank.cpu_island),
        gpu_islands: islands(members, |rank| rank.gpu_island),
        // All ranks come to the same, whole where it nearly is.
        cores: (cores * 1e3).round() / 1e3,
        by_software: members.iter().all(|member| member.is_software),
        gpus_are_staged: members.iter().any(|member| member.staging.is_some()),
    }
}

/// Which ranks are on one island of a node; `None` where that is to say on one node. A node is one island where it is not known
/// of all its ranks which they are on.
fn islands(members: &[Member], of: impl Fn(&Whereabouts) -> Option<OwnIsland>) -> Option<Nodes> {
    let all = || members.iter().map(|member| &member.whereabouts);
    let unknown: HashSet<&str> = all().filter(|rank| of(rank).is_none()).map(|rank| &*rank.node).collect();
    let mut numbers: HashMap<(&str, Option<u64>), u32> = HashMap::new();
    let islands = all().map(|rank| {
        let island = of(rank).map(|island| island.number).filter(|_| !unknown.contains(&*rank.node));
        let next = numbers.len() as u32;
        *numbers.entry((&rank.node, island)).or_insert(next)
    });
    let islands: Vec<u32> = islands.collect();
    let nodes: HashSet<&str> = all().map(|rank| &*rank.node).collect();
    (numbers.len() > nodes.len()).then(|| Nodes::Listed(islands.into()))
}

/// How many ranks are on a machine, and how many cores they may run on.
fn crowd(members: &[Member], machine: &str) -> (usize, usize) {
    let all = members.iter().map(|member| &member.whereabouts);
    let beside: Vec<_> = all.filter(|other| other.machine == machine).collect();
    let mut cores: Vec<_> = beside.iter().flat_map(|other| other.cores.iter()).collect();
    cores.sort_unstable();
    cores.dedup();
    (beside.len(), cores.len())
}

/// How a rank waits: by whether each rank of its machine has a core of its own.
pub(super) fn patience(rank: u32, members: &[Member]) -> Patience {
    let Some(own) = members.get(rank as usize) else { return Patience::new(1, 1, false) };
    let (ranks, cores) = crowd(members, &own.whereabouts.machine);
    let apart = members.iter().any(|other| other.whereabouts.node != own.whereabouts.node);
    Patience::new(ranks, cores, apart)
}

/// The ranks, in order, that run on the same core as a rank does, where each of them has that one alone.
pub(super) fn core_mates(rank: u32, members: &[Member]) -> Box<[u32]> {
    let Some(own) = members.get(rank as usize).map(|own| &own.whereabouts) else { return Box::default() };
    let is_mate = |(number, other): &(u32, &Member)| {
        let other = &other.whereabouts;
        *number != rank && other.machine == own.machine && other.cores == own.cores
    };
    let mates = (0..).zip(members).filter(|_| own.cores.iter().count() == 1).filter(is_mate);
    mates.map(|(number, _)| number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::whereabouts;

    /// Ranks by node and island.
    fn ranks(all: &[(&str, Option<u64>)]) -> Vec<Member> {
        let member = |&(node, island): &(&str, Option<u64>)| {
            let gpu_island = island.map(|number| OwnIsland { number, outside: None });
            let whereabouts = Whereabouts { node: node.into(), machine: node.into(), gpu_island, ..whereabouts() };
            Member { whereabouts, device: "soft0".into(), is_software: true, staging: None }
        };
        all.iter().map(member).collect()
    }

    #[test]
    fn islands_are_numbered_as_their_first_ranks_come() {
        let all = [("a", Some(1)), ("a", Some(0)), ("b", Some(0)), ("a", Some(1)), ("b", Some(1))];
        let seats = seats(&ranks(&all));
        assert_eq!(seats.nodes, Nodes::Listed(vec![0, 0, 1, 0, 1].into()));
        assert_eq!(seats.gpu_islands, Some(Nodes::Listed(vec![0, 1, 2, 0, 3].into())));
        assert_eq!(seats.islands, None);
    }

    #[test]
    fn nodes_of_one_machine_share_its_cores() {
        let rank = |node: &str, machine: &str, cores: &str| {
            let (node, machine, cores) = (node.into(), machine.into(), cores.parse().unwrap());
            let whereabouts = Whereabouts { node, machine, cores, ..whereabouts() };
            Member { whereabouts, device: "soft0".into(), is_software: true, staging: None }
        };
        let cores = |ranks: &[(&str, &str, &str)]| {
            let members: Vec<_> = ranks.iter().map(|&(node, machine, cores)| rank(node, machine, cores)).collect();
            seats(&members).cores
        };
        assert_eq!(cores(&[("a", "m", "0"), ("b", "m", "0")]), 0.5);
        assert_eq!(cores(&[("a", "m", "0-1"), ("a", "m", "0-1"), ("b", "n", "0-3")]), 2.0);
        // By the node with fewest for each rank, as many as the one with most ranks would have.
        assert_eq!(cores(&[("a", "m", "0-7"), ("a", "m", "0-7"), ("b", "n", "0")]), 2.0);
        assert_eq!(cores(&[("a", "m", "0"); 3]), 1.0);
    }

    #[test]
    fn who_has_the_same_core_alone_is_a_mate() {
        let rank = |machine: &str, cores: &str| {
            let whereabouts = Whereabouts { machine: machine.into(), cores: cores.parse().unwrap(), ..whereabouts() };
            Member { whereabouts, device: "soft0".into(), is_software: true, staging: None }
        };
        let all = [("m", "0"), ("m", "1"), ("m", "0"), ("n", "0"), ("m", "0-1"), ("m", "0"), ("m", "0-1")];
        let members: Vec<_> = all.iter().map(|&(machine, cores)| rank(machine, cores)).collect();
        let mates = |rank: u32| core_mates(rank, &members).into_vec();
        assert_eq!([mates(0), mates(2), mates(5)], [vec![2, 5], vec![0, 5], vec![0, 2]]);
        assert!([1, 3, 4, 6, 9].iter().all(|&rank| mates(rank).is_empty()));
    }

    #[test]
    fn a_node_of_which_not_all_is_known_is_one_island() {
        let of = |all: &[(&str, Option<u64>)]| seats(&ranks(all)).gpu_islands;
        let half = [("a", Some(0)), ("a", None), ("b", Some(0)), ("b", Some(1)), ("a", Some(1))];
        assert_eq!(of(&half), Some(Nodes::Listed(vec![0, 0, 1, 2, 0].into())));
        // All of a node on one island, or nothing known of any.
        assert_eq!(of(&[("a", Some(1)), ("a", Some(1)), ("b", Some(0))]), None);
        assert_eq!(of(&[("a", None), ("b", None)]), None);
    }
}
