//! From parts to the graph: puts them in order, drops what is there twice, and joins them.

use std::collections::BTreeMap;

use super::builder::Description;
use super::limits;
use super::machine::Machine;
use super::node::{CpuId, Link, LinkKind, NicId, NodeId, Warning};
use super::parts::{BridgeRole, Cpu, GpuLink, GpuLinkKind, GpuPeer, HostBridge};
use super::place::{Above, Places, place};
use crate::{Bandwidth, PciAddress, PcieLink};

/// Makes the machine of its parts.
pub(super) fn assemble(mut parts: Description, mut warnings: Vec<Warning>) -> Machine {
    sort(&mut parts, &mut warnings);
    let described = parts.clone();
    let places = place(&mut parts, &mut warnings);
    let mut machine = Machine {
        cpus: parts.cpus.clone(),
        host_bridges: host_bridges(&parts, &places),
        bridges: parts.bridges.clone(),
        gpus: parts.gpus.clone(),
        nics: parts.nics.clone(),
        nv_switch: parts.nv_switch.clone(),
        parts: described,
        links: Vec::new(),
        adjacent: Vec::new(),
        warnings: Vec::new(),
    };
    let nowhere = places.bridges.iter().chain(&places.gpus).chain(&places.nics);
    let nowhere = nowhere.filter(|above| matches!(above, Above::Numa(None))).count()
        + machine.host_bridges.iter().filter(|host| host.numa.is_none()).count();
    if nowhere > 0 && machine.cpus.iter().all(|cpu| cpu.numa.is_some()) {
        machine.cpus.push(Cpu::default());
    }
    if parts.gpu_links.iter().any(|link| link.to == GpuPeer::NvSwitch) {
        machine.nv_switch.get_or_insert_default();
    }
    let mut links = Links::default();
    sockets(&machine, &parts, &mut links);
    tree(&machine, &places, &mut links);
    gpu_links(&machine, &parts.gpu_links, &mut links, &mut warnings);
    network(&machine, &mut links);
    machine.links = links.finish();
    let mut adjacent = vec![Vec::new(); machine.node_count()];
    for (place, link) in machine.links.iter().enumerate() {
        for end in [link.a, link.b] {
            if let Some(index) = machine.index(end) {
                adjacent[index].push(place as u32);
            }
        }
    }
    machine.adjacent = adjacent;
    warnings.sort();
    warnings.dedup();
    warnings.truncate(limits::WARNINGS);
    machine.warnings = warnings;
    machine
}

/// Puts all lists in order, and of parts with the same key keeps the first of that order.
fn sort(parts: &mut Description, warnings: &mut Vec<Warning>) {
    parts.cpus.sort_by(|a, b| (a.numa.is_none(), a).cmp(&(b.numa.is_none(), b)));
    unique(&mut parts.cpus, warnings, |cpu| cpu.numa, Cpu::label);
    parts.host_bridges.sort();
    parts.host_bridges.dedup();
    parts.bridges.sort();
    unique(&mut parts.bridges, warnings, |bridge| bridge.address, |bridge| bridge.address.to_string());
    parts.gpus.sort();
    unique(&mut parts.gpus, warnings, |gpu| gpu.address, |gpu| gpu.address.to_string());
    for nic in &mut parts.nics {
        nic.ports.sort();
        nic.ports.dedup_by_key(|port| port.number);
        nic.bond.sort();
    }
    // Names first, so that the one dropped does not depend on the order of addresses.
    parts.nics.sort();
    unique(&mut parts.nics, warnings, |nic| nic.name.clone(), |nic| nic.name.clone());
    parts.nics.sort_by_cached_key(|nic| (nic.software, nic.address.is_none(), nic.address, natural(&nic.name)));
    if let Some(switch) = &mut parts.nv_switch {
        switch.addresses.sort();
        switch.addresses.dedup();
    }
    parts.gpu_links.sort();
    for link in &mut parts.socket_links {
        (link.a, link.b) = (link.a.min(link.b), link.a.max(link.b));
    }
    parts.socket_links.sort();
    parts.socket_links.dedup_by_key(|link| (link.a, link.b));
}

/// Drops parts whose key the one before has.
fn unique<T, K: PartialEq>(
    parts: &mut Vec<T>,
    warnings: &mut Vec<Warning>,
    key: impl Fn(&T) -> K,
    about: impl Fn(&T) -> String,
) {
    parts.dedup_by(|later, first| {
        let again = key(later) == key(first);
        if again {
            warnings.push(Warning::new(about(later), "it is described twice; the second was left out"));
        }
        again
    });
}

/// A name cut into text and numbers, so that `mlx5_10` comes after `mlx5_9`.
fn natural(name: &str) -> Vec<(String, u64)> {
    let mut parts = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let text = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let digits = rest[text..].find(|c: char| !c.is_ascii_digit()).map_or(rest.len(), |length| text + length);
        parts.push((rest[..text].to_owned(), rest[text..digits].parse().unwrap_or(u64::MAX)));
        rest = &rest[digits..];
    }
    // Names that differ in zeros before a number alone are still two.
    parts.push((name.to_owned(), 0));
    parts
}

fn host_bridges(parts: &Description, places: &Places) -> Vec<HostBridge> {
    let named = places.bridges.iter().chain(&places.gpus).chain(&places.nics).filter_map(|above| match above {
        Above::HostBridge(host) => Some(*host),
        _ => None,
    });
    let mut all: Vec<_> = named.collect();
    // One that nothing hangs under is kept, so that a description comes out as it went in.
    all.extend(
        parts
            .host_bridges
            .iter()
            .filter(|host| !all.iter().any(|h| (h.domain, h.bus) == (host.domain, host.bus)))
            .copied()
            .collect::<Vec<_>>(),
    );
    all.sort();
    all.dedup();
    all
}

/// Links as they are collected, with those that are one in metal.
#[derive(Default)]
struct Links {
    links: Vec<(Link, Option<Lanes>)>,
}

/// What links that are one in metal have in common.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Lanes {
    /// A port has one link below it.
    Port(usize),
    /// Functions of a device have one link; virtual ones that of the physical one. With the domain,
    /// bus and device.
    Device(u32, u8, u8),
    /// Functions of a NIC have the ports of the physical one.
    Ports(PciAddress),
}

impl Links {
    fn add(&mut self, a: NodeId, b: NodeId, kind: LinkKind, bandwidth: Bandwidth, lanes: Option<Lanes>) {
        self.links.push((Link { a, b, kind, bandwidth, lanes: 0 }, lanes));
    }

    /// All links in order, with numbers of lanes.
    fn finish(mut self) -> Vec<Link> {
        // A virtual function does not say how fast its link is; the physical one does.
        let mut known: BTreeMap<Lanes, PcieLink> = BTreeMap::new();
        for (link, lanes) in &self.links {
            if let (LinkKind::Pcie(pcie), Some(lanes)) = (link.kind, lanes)
                && pcie.is_known()
            {
                let best = known.entry(*lanes).or_insert(pcie);
                *best = (*best).max(pcie);
            }
        }
        for (link, lanes) in &mut self.links {
            if let (LinkKind::Pcie(pcie), Some(best)) = (link.kind, lanes.and_then(|lanes| known.get(&lanes)))
                && !pcie.is_known()
            {
                link.kind = LinkKind::Pcie(*best);
                link.bandwidth = best.bandwidth();
            }
        }
        self.links.sort_by_key(|(link, _)| (link.a, link.b, link.kind));
        let mut numbers: BTreeMap<Lanes, u32> = BTreeMap::new();
        let number = self.links.into_iter().enumerate().map(|(place, (link, lanes))| {
            let own = place as u32;
            Link { lanes: lanes.map_or(own, |lanes| *numbers.entry(lanes).or_insert(own)), ..link }
        });
        number.collect()
    }
}

/// Every NUMA node is joined to every other: sockets are not always, but routes between them are
/// not to be seen, and estimates of bandwidth hold end to end.
fn sockets(machine: &Machine, parts: &Description, links: &mut Links) {
    let described = |a: &Cpu, b: &Cpu| {
        let (a, b) = (a.numa?, b.numa?);
        let key = (a.min(b), a.max(b));
        let place = parts.socket_links.binary_search_by_key(&key, |link| (link.a, link.b)).ok()?;
        Some(parts.socket_links[place].bandwidth)
    };
    for (i, a) in machine.cpus.iter().enumerate() {
        for (j, b) in machine.cpus.iter().enumerate().skip(i + 1) {
            let within = a.package.is_some() && a.package == b.package;
            let estimate = if within {
                a.package_bandwidth().min(b.package_bandwidth())
            } else {
                a.socket_bandwidth().min(b.socket_bandwidth())
            };
            let kind = if within { LinkKind::Package } else { LinkKind::Socket };
            // What has no known place may be next to either: that it is far is no more than a guess.
            let known = a.numa.is_some() && b.numa.is_some();
            let bandwidth = described(a, b).unwrap_or(if known { estimate } else { Bandwidth::UNLIMITED });
            links.add(CpuId(i as u16).into(), CpuId(j as u16).into(), kind, bandwidth, None);
        }
    }
}

/// The tree from NUMA nodes over host bridges and bridges down to devices.
fn tree(machine: &Machine, places: &Places, links: &mut Links) {
    let cpu = |numa: Option<u32>| {
        let place = machine.cpus.iter().position(|cpu| cpu.numa == numa);
        // Beyond the limit of nodes there may be no such; then the last takes it.
        NodeId::Cpu(CpuId(place.unwrap_or(machine.cpus.len().saturating_sub(1)) as u16))
    };
    for (place, host) in machine.host_bridges.iter().enumerate() {
        links.add(cpu(host.numa), NodeId::HostBridge(place as u16), LinkKind::Internal, Bandwidth::UNLIMITED, None);
    }
    let mut hang =
        |above: &Above, node: NodeId, pcie: PcieLink, address: Option<PciAddress>, role: Option<BridgeRole>| {
            let device = address.map(|a| Lanes::Device(a.domain, a.bus, a.device));
            let (parent, pcie, lanes) = match *above {
                Above::Numa(numa) => (cpu(numa), pcie, device),
                Above::HostBridge(host) => {
                    let place = machine.host_bridges.binary_search(&host).unwrap_or(0);
                    (NodeId::HostBridge(place as u16), pcie, device)
                }
                Above::Bridge(place) => {
                    let bridge = &machine.bridges[place];
                    let node = NodeId::Bridge(place as u16);
                    match bridge.role {
                        BridgeRole::RootPort | BridgeRole::DownstreamPort => {
                            (node, pcie.limited_by(bridge.pcie), Some(Lanes::Port(place)))
                        }
                        BridgeRole::Switch | BridgeRole::Unknown => (node, pcie, device),
                    }
                }
            };
            let pcie = pcie.checked();
            let inside = matches!(role, Some(BridgeRole::RootPort | BridgeRole::DownstreamPort));
            let software = address.is_none() && !pcie.is_known();
            if inside || software {
                links.add(parent, node, LinkKind::Internal, Bandwidth::UNLIMITED, None);
            } else {
                let lanes = if role.is_some() && !matches!(lanes, Some(Lanes::Port(_))) { None } else { lanes };
                links.add(parent, node, LinkKind::Pcie(pcie), pcie.bandwidth(), lanes);
            }
        };
    for (place, bridge) in machine.bridges.iter().enumerate() {
        let node = NodeId::Bridge(place as u16);
        hang(&places.bridges[place], node, bridge.pcie, Some(bridge.address), Some(bridge.role));
    }
    for (id, gpu) in machine.gpu_ids().zip(&machine.gpus) {
        let address = Some(gpu.physfn.unwrap_or(gpu.address));
        hang(&places.gpus[usize::from(id.0)], id.into(), gpu.pcie, address, None);
    }
    for (id, nic) in machine.nic_ids().zip(&machine.nics) {
        hang(&places.nics[usize::from(id.0)], id.into(), nic.pcie, nic.physfn.or(nic.address), None);
    }
}

/// Links of GPUs, each pair of ends once.
fn gpu_links(machine: &Machine, described: &[GpuLink], links: &mut Links, warnings: &mut Vec<Warning>) {
    /// Between two nodes, of one kind: per direction of description, count and bandwidth.
    type Pairs = BTreeMap<(NodeId, NodeId, GpuLinkKind), [(u32, Bandwidth); 2]>;
    let mut pairs = Pairs::new();
    for link in described {
        let to = match link.to {
            GpuPeer::Gpu(address) => machine.gpu_at(address).map(NodeId::from),
            GpuPeer::NvSwitch => Some(NodeId::NvSwitch),
            GpuPeer::Cpu(numa) => machine.cpu_numa(numa).map(NodeId::from),
        };
        let from = machine.gpu_at(link.gpu).map(NodeId::from);
        let (Some(from), Some(to)) = (from, to) else {
            let problem = format!("a {} link leads to what is not there; it was left out", link.kind.name());
            warnings.push(Warning::new(link.gpu, problem));
            continue;
        };
        if from == to || link.count == 0 {
            let problem = format!("a {} link is to itself or none; it was left out", link.kind.name());
            warnings.push(Warning::new(link.gpu, problem));
            continue;
        }
        let entry = pairs.entry((from.min(to), from.max(to), link.kind)).or_default();
        let sum = &mut entry[usize::from(from > to)];
        *sum = (sum.0.saturating_add(link.count), sum.1 + link.each.times(link.count.into()));
    }
    for ((a, b, kind), sums) in pairs {
        let (count, bandwidth) = sums[0].max(sums[1]);
        links.add(a, b, LinkKind::GpuLink { kind, count }, bandwidth, None);
    }
}

/// Every NIC leads outwards, at the rate of its ports.
fn network(machine: &Machine, links: &mut Links) {
    for (id, nic) in machine.nic_ids().zip(&machine.nics) {
        let lanes = nic.physfn.or(nic.address).map(Lanes::Ports);
        links.add(NicId(id.0).into(), NodeId::Network, LinkKind::Network, nic.bandwidth(), lanes);
    }
}
