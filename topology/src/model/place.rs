//! Where each part hangs: parents that exist, roles of bridges, NUMA nodes.

use std::collections::BTreeMap;

use super::builder::Description;
use super::limits;
use super::node::Warning;
use super::parts::{BridgeRole, HostBridge, Parent};
use crate::PciAddress;

/// What a part turns out to hang under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Above {
    /// A bridge, by its place among the bridges.
    Bridge(usize),
    /// A host bridge; its key, with its NUMA node.
    HostBridge(HostBridge),
    /// A NUMA node; `None` is the node for what has no known place.
    Numa(Option<u32>),
}

/// Where everything hangs. Lists are parallel to those of the description.
#[derive(Debug, Default)]
pub(super) struct Places {
    pub(super) bridges: Vec<Above>,
    pub(super) gpus: Vec<Above>,
    pub(super) nics: Vec<Above>,
}

/// Finds where everything hangs, makes roles of bridges known, and adds NUMA nodes that are named
/// but not described.
pub(super) fn place(parts: &mut Description, warnings: &mut Vec<Warning>) -> Places {
    check_parents(parts, warnings);
    check_numa(parts, warnings);
    let votes = Votes::count(parts);
    let above = |parent: Parent, numa: Option<u32>, parts: &Description| match parent {
        // `check_parents` left only addresses of bridges that are there.
        Parent::Bridge(address) => match bridge_at(parts, address) {
            Some(place) => Above::Bridge(place),
            None => Above::Numa(votes.fallback),
        },
        Parent::HostBridge { domain, bus } => {
            let numa = numa.or_else(|| votes.of_host_bridge(domain, bus));
            Above::HostBridge(HostBridge { domain, bus, numa: numa.or(votes.fallback) })
        }
        Parent::Numa(number) => Above::Numa(Some(number)),
        Parent::Unknown => Above::Numa(numa.or(votes.fallback)),
    };
    let bridge_numa = |place: usize, parts: &Description| parts.bridges[place].numa.or_else(|| votes.below(place));
    let places = Places {
        bridges: (0..parts.bridges.len())
            .map(|place| above(parts.bridges[place].parent, bridge_numa(place, parts), parts))
            .collect(),
        gpus: parts.gpus.iter().map(|gpu| above(gpu.parent, gpu.numa, parts)).collect(),
        nics: parts.nics.iter().map(|nic| above(nic.parent, nic.numa, parts)).collect(),
    };
    find_roles(parts, &places);
    places
}

/// The place of the bridge at an address; bridges are sorted by it.
pub(super) fn bridge_at(parts: &Description, address: PciAddress) -> Option<usize> {
    parts.bridges.binary_search_by_key(&address, |bridge| bridge.address).ok()
}

/// Parents that are no bridge, or lead in a circle or too deep, become unknown.
fn check_parents(parts: &mut Description, warnings: &mut Vec<Warning>) {
    let parents: Vec<Parent> = parts.bridges.iter().map(|bridge| bridge.parent).collect();
    let mut lost = Vec::new();
    for place in 0..parents.len() {
        let mut parent = parents[place];
        for step in 0.. {
            let Parent::Bridge(address) = parent else { break };
            let Some(next) = bridge_at(parts, address) else {
                // It is told where it breaks, not again for all that hang below.
                if step == 0 {
                    lost.push((place, format!("it hangs under {address}, which is no bridge")));
                }
                break;
            };
            if next == place || step == limits::DEPTH {
                let how = if next == place { "itself" } else { "too many bridges" };
                lost.push((place, format!("it hangs under {how}")));
                break;
            }
            parent = parents[next];
        }
    }
    for (place, problem) in lost {
        let bridge = &mut parts.bridges[place];
        warnings.push(Warning::new(bridge.address, format!("{problem}; it is taken to hang nowhere in particular")));
        bridge.parent = Parent::Unknown;
    }
    let is_bridge = |address| parts.bridges.binary_search_by_key(&address, |bridge| bridge.address).is_ok();
    let gpus = parts.gpus.iter_mut().map(|gpu| (&mut gpu.parent, gpu.address.to_string()));
    let nics = parts.nics.iter_mut().map(|nic| (&mut nic.parent, nic.name.clone()));
    for (parent, about) in gpus.chain(nics) {
        if let Parent::Bridge(address) = *parent
            && !is_bridge(address)
        {
            let problem = format!("it hangs under {address}, which is no bridge; it is taken to hang nowhere");
            warnings.push(Warning::new(about, problem + " in particular"));
            *parent = Parent::Unknown;
        }
    }
}

/// Numbers of NUMA nodes that are too large become unknown; nodes that are named are added.
fn check_numa(parts: &mut Description, warnings: &mut Vec<Warning>) {
    let mut named = Vec::new();
    let mut check = |about: &dyn std::fmt::Display, numa: &mut Option<u32>| {
        if let Some(number) = numa.take_if(|number| *number >= limits::NUMA) {
            warnings.push(Warning::new(about, format!("its NUMA node {number} can not be; it is taken as unknown")));
        }
        named.extend(*numa);
    };
    let mut check_parent = |about: &dyn std::fmt::Display, parent: &mut Parent| {
        if let Parent::Numa(number) = *parent {
            let mut numa = Some(number);
            check(about, &mut numa);
            if numa.is_none() {
                *parent = Parent::Unknown;
            }
        }
    };
    for bridge in &mut parts.bridges {
        check_parent(&bridge.address, &mut bridge.parent);
    }
    for gpu in &mut parts.gpus {
        check_parent(&gpu.address, &mut gpu.parent);
    }
    for nic in &mut parts.nics {
        check_parent(&nic.name, &mut nic.parent);
    }
    parts.bridges.iter_mut().for_each(|bridge| check(&bridge.address, &mut bridge.numa));
    parts.gpus.iter_mut().for_each(|gpu| check(&gpu.address, &mut gpu.numa));
    parts.nics.iter_mut().for_each(|nic| check(&nic.name, &mut nic.numa));
    parts.host_bridges.iter_mut().for_each(|host| check(&format!("host bridge {:02x}", host.bus), &mut host.numa));
    named.sort_unstable();
    named.dedup();
    for numa in named {
        if !parts.cpus.iter().any(|cpu| cpu.numa == Some(numa)) {
            if parts.cpus.len() < limits::CPUS {
                parts.cpus.push(super::Cpu::numa(numa));
            } else {
                warnings.push(Warning::new(format!("NUMA {numa}"), "there are too many NUMA nodes; it was left out"));
            }
        }
    }
    parts.cpus.sort_by(|a, b| (a.numa.is_none(), a).cmp(&(b.numa.is_none(), b)));
}

/// What parts say about the NUMA nodes of those above them.
struct Votes {
    host_bridges: BTreeMap<(u32, u8), BTreeMap<u32, usize>>,
    bridges: Vec<BTreeMap<u32, usize>>,
    /// Where what has no known place hangs: the only NUMA node, or the one for such parts.
    fallback: Option<u32>,
}

impl Votes {
    fn count(parts: &Description) -> Self {
        let fallback = match parts.cpus.as_slice() {
            [only] => only.numa,
            _ => None,
        };
        let mut votes = Self { host_bridges: BTreeMap::new(), bridges: Vec::new(), fallback };
        votes.bridges.resize_with(parts.bridges.len(), BTreeMap::new);
        for host in &parts.host_bridges {
            if let Some(numa) = host.numa {
                // What is said of the host bridge itself outweighs what all parts say.
                *votes.host_bridges.entry((host.domain, host.bus)).or_default().entry(numa).or_default() +=
                    limits::BRIDGES + limits::GPUS + limits::NICS + 1;
            }
        }
        let bridges = parts.bridges.iter().map(|bridge| (bridge.parent, bridge.numa));
        let gpus = parts.gpus.iter().map(|gpu| (gpu.parent, gpu.numa));
        let nics = parts.nics.iter().map(|nic| (nic.parent, nic.numa));
        for (mut parent, numa) in bridges.chain(gpus).chain(nics) {
            let Some(numa) = numa else { continue };
            for _ in 0..=limits::DEPTH {
                match parent {
                    Parent::Bridge(address) => {
                        let Some(place) = bridge_at(parts, address) else { break };
                        *votes.bridges[place].entry(numa).or_default() += 1;
                        parent = parts.bridges[place].parent;
                    }
                    Parent::HostBridge { domain, bus } => {
                        *votes.host_bridges.entry((domain, bus)).or_default().entry(numa).or_default() += 1;
                        break;
                    }
                    Parent::Numa(_) | Parent::Unknown => break,
                }
            }
        }
        votes
    }

    fn of_host_bridge(&self, domain: u32, bus: u8) -> Option<u32> {
        self.host_bridges.get(&(domain, bus)).and_then(most)
    }

    fn below(&self, bridge: usize) -> Option<u32> {
        most(&self.bridges[bridge])
    }
}

/// The node with most votes; of equals the lowest.
fn most(votes: &BTreeMap<u32, usize>) -> Option<u32> {
    votes.iter().max_by_key(|&(numa, count)| (*count, std::cmp::Reverse(*numa))).map(|(&numa, _)| numa)
}

/// Gives each bridge whose role is not known the one that follows from what it hangs under.
fn find_roles(parts: &mut Description, places: &Places) {
    // From the top down: after as many rounds as trees are deep, all are known.
    for _ in 0..=limits::DEPTH {
        let mut left = false;
        for place in 0..parts.bridges.len() {
            if parts.bridges[place].role != BridgeRole::Unknown {
                continue;
            }
            let role = match places.bridges[place] {
                Above::HostBridge(_) => BridgeRole::RootPort,
                // A file that leaves host bridges out leaves root ports out too.
                Above::Numa(_) => BridgeRole::Switch,
                Above::Bridge(above) => match parts.bridges[above].role {
                    BridgeRole::RootPort | BridgeRole::DownstreamPort => BridgeRole::Switch,
                    BridgeRole::Switch => BridgeRole::DownstreamPort,
                    BridgeRole::Unknown => BridgeRole::Unknown,
                },
            };
            left |= role == BridgeRole::Unknown;
            parts.bridges[place].role = role;
        }
        if !left {
            break;
        }
    }
}
