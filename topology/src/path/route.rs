//! Finding ways. Trees have one way between two nodes; what leads around them are links of GPUs.

use super::PathClass;
use crate::Bandwidth;
use crate::model::{BridgeRole, GpuId, GpuLinkKind, Link, LinkKind, Machine, NicId, NodeId};

/// A way from one node to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// Where it starts.
    pub from: NodeId,
    /// The links that it passes, in order.
    pub hops: Vec<Hop>,
    /// How near its ends are.
    pub class: PathClass,
    /// What it carries in one direction: as much as its slowest link, were it alone.
    pub bandwidth: Bandwidth,
}

/// A link that a path passes, and where it leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The link.
    pub link: Link,
    /// The node at its end.
    pub to: NodeId,
}

impl Path {
    /// Where it ends.
    pub fn to(&self) -> NodeId {
        self.hops.last().map_or(self.from, |hop| hop.to)
    }

    /// Its nodes, with both ends.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        std::iter::once(self.from).chain(self.hops.iter().map(|hop| hop.to))
    }

    /// The first of its slowest links; `None` if nothing on it limits.
    pub fn bottleneck(&self) -> Option<&Link> {
        let slowest = self.hops.iter().min_by_key(|hop| hop.link.bandwidth)?;
        (!slowest.link.bandwidth.is_unlimited()).then_some(&slowest.link)
    }

    /// True if it goes over the link between a processor and the GPU that is one with it.
    pub fn is_coherent(&self) -> bool {
        let c2c = |hop: &Hop| matches!(hop.link.kind, LinkKind::GpuLink { kind: GpuLinkKind::C2c, .. });
        self.hops.iter().any(c2c)
    }

    /// The other path after this one; `None` if it does not start where this one ends. The class is
    /// that of the farther.
    pub fn then(mut self, next: Path) -> Option<Path> {
        if next.from != self.to() {
            return None;
        }
        self.hops.extend(next.hops);
        Some(Self { class: self.class.max(next.class), bandwidth: self.bandwidth.min(next.bandwidth), ..self })
    }

    fn of(machine: &Machine, from: NodeId, hops: Vec<Hop>) -> Self {
        let class = classify(machine, from, &hops);
        let bandwidth = hops.iter().map(|hop| hop.link.bandwidth).min().unwrap_or(Bandwidth::UNLIMITED);
        Self { from, hops, class, bandwidth }
    }
}

impl Machine {
    /// The way from one node to another: of all there are the nearest, then the widest. `None` if
    /// one is not of this machine, or nothing joins them.
    ///
    /// It is what data takes without being asked: links of GPUs between GPUs, PCIe else. The way
    /// over a neighbour's NIC is [`Machine::path_through`]; that over the network is
    /// [`Machine::path_over_network`].
    ///
    /// ```
    /// use qpair_topology::{Cpu, Gpu, GpuId, Machine, Nic, NicId, Parent, PathClass};
    ///
    /// let mut machine = Machine::builder();
    /// machine.cpu(Cpu::numa(0)).cpu(Cpu::numa(1));
    /// machine.gpu(Gpu::at("0000:17:00.0".parse()?, Parent::Numa(0)));
    /// machine.nic(Nic::at("mlx5_0", "0000:b1:00.0".parse()?, Parent::Numa(1)));
    /// let machine = machine.build();
    /// let path = machine.path(GpuId(0), NicId(0)).expect("both are there");
    /// assert_eq!(path.class, PathClass::Sys);
    /// # Ok::<(), qpair_topology::ParsePciAddressError>(())
    /// ```
    pub fn path(&self, from: impl Into<NodeId>, to: impl Into<NodeId>) -> Option<Path> {
        let (from, to) = (from.into(), to.into());
        self.index(from)?;
        self.index(to)?;
        if from == to {
            return Some(Path { from, hops: Vec::new(), class: PathClass::Loc, bandwidth: Bandwidth::UNLIMITED });
        }
        if from == NodeId::Network || to == NodeId::Network {
            return self.path_outside(from, to);
        }
        let direct = self.gpu_hops(from, to).into_iter();
        let host = self
            .ascents(from)
            .into_iter()
            .flat_map(|up| self.ascents(to).into_iter().filter_map(move |down| self.meet(from, up.clone(), to, &down)));
        let paths = direct.chain(host).map(|hops| Path::of(self, from, hops));
        paths.min_by(|a, b| {
            let key = |path: &Path| (path.class, std::cmp::Reverse(path.bandwidth), path.hops.len());
            key(a).cmp(&key(b)).then_with(|| a.nodes().cmp(b.nodes()))
        })
    }

    /// The way from a GPU over the memory of another one, which it has links to, to a NIC. `None` if
    /// there are no such links.
    pub fn path_through(&self, gpu: GpuId, neighbour: GpuId, nic: NicId) -> Option<Path> {
        let first = self.path(gpu, neighbour).filter(|path| path.class == PathClass::Nvl)?;
        let second = self.path(neighbour, nic)?;
        let class = if second.class <= PathClass::Pxb { PathClass::Pxn } else { second.class };
        Some(Path { class, ..first.then(second)? })
    }

    /// The way from one node out of a NIC, over the network, and in by another NIC to the other
    /// node. It can be faster than the link between sockets. `None` if a path to a NIC is missing.
    pub fn path_over_network(
        &self,
        from: impl Into<NodeId>,
        out: NicId,
        back: NicId,
        to: impl Into<NodeId>,
    ) -> Option<Path> {
        let leave = self.path(from, out)?.then(self.path(out, NodeId::Network)?)?;
        leave.then(self.path(NodeId::Network, back)?)?.then(self.path(back, to)?)
    }

    /// To or from the network: over the nearest NIC, of equals the widest.
    fn path_outside(&self, from: NodeId, to: NodeId) -> Option<Path> {
        let outside = |nic: NicId| {
            let link = *self.links_of(nic).find(|link| link.b == NodeId::Network)?;
            (link.bandwidth > Bandwidth::ZERO).then_some(link)
        };
        let inner = if to == NodeId::Network { from } else { to };
        let ways = self.nic_ids().filter(|&nic| !matches!(inner, NodeId::Nic(own) if own != nic)).filter_map(|nic| {
            let link = outside(nic)?;
            let (path, hop) = if to == NodeId::Network {
                (self.path(from, nic)?, Hop { link, to })
            } else {
                (self.path(nic, to)?, Hop { link, to: nic.into() })
            };
            let near = (path.class, std::cmp::Reverse(path.bandwidth.min(link.bandwidth)), nic);
            let mut hops = path.hops;
            hops.insert(if to == NodeId::Network { hops.len() } else { 0 }, hop);
            Some((near, hops))
        });
        ways.min_by_key(|(near, _)| *near).map(|(_, hops)| Path::of(self, from, hops))
    }

    /// Ways over links of GPUs: directly, or over the switches between them.
    fn gpu_hops(&self, from: NodeId, to: NodeId) -> Vec<Vec<Hop>> {
        let is_gpu = |node: NodeId| matches!(node, NodeId::Gpu(_));
        let over = |a: NodeId, b: NodeId| {
            let links = self.links_of(a).filter(move |link| matches!(link.kind, LinkKind::GpuLink { .. }));
            links.filter(move |link| link.other(a) == b).map(move |link| Hop { link: *link, to: b })
        };
        let mut ways: Vec<Vec<Hop>> = over(from, to).map(|hop| vec![hop]).collect();
        if is_gpu(from) && is_gpu(to) {
            let switch = over(from, NodeId::NvSwitch).zip(over(NodeId::NvSwitch, to));
            ways.extend(switch.map(|(up, down)| vec![up, down]));
        }
        ways
    }

    /// Ways up to a NUMA node: over PCIe, and for a GPU that is one with a processor, over C2C.
    fn ascents(&self, node: NodeId) -> Vec<Vec<Hop>> {
        let mut tree = Vec::new();
        let mut here = node;
        while !matches!(here, NodeId::Cpu(_)) {
            let above = self.links_of(here).find(|link| link.b == here && link.is_towards_host());
            let Some(link) = above else { break };
            tree.push(Hop { link: *link, to: link.a });
            here = link.a;
        }
        let mut ways = Vec::new();
        if matches!(here, NodeId::Cpu(_)) {
            ways.push(tree);
        }
        if matches!(node, NodeId::Gpu(_)) {
            let own = self.links_of(node).filter(|link| matches!(link.kind, LinkKind::GpuLink { .. }));
            let own = own.map(|link| Hop { link: *link, to: link.other(node) });
            ways.extend(own.filter(|hop| matches!(hop.to, NodeId::Cpu(_))).map(|hop| vec![hop]));
        }
        ways
    }

    /// Joins the ways up from both ends where they first meet, or over the link between the NUMA
    /// nodes that they end at.
    fn meet(&self, from: NodeId, mut up: Vec<Hop>, to: NodeId, other: &[Hop]) -> Option<Vec<Hop>> {
        let others: Vec<NodeId> = std::iter::once(to).chain(other.iter().map(|hop| hop.to)).collect();
        let mut ups = std::iter::once(from).chain(up.iter().map(|hop| hop.to)).enumerate();
        let meeting = ups.find_map(|(place, node)| Some((place, others.iter().position(|&o| o == node)?)));
        let kept = if let Some((place, length)) = meeting {
            up.truncate(place);
            length
        } else {
            let (top, beyond) = (up.last().map_or(from, |hop| hop.to), *others.last()?);
            let between = |link: &&Link| matches!(link.kind, LinkKind::Package | LinkKind::Socket);
            let link = self.links_of(top).filter(between).find(|link| link.other(top) == beyond)?;
            up.push(Hop { link: *link, to: beyond });
            other.len()
        };
        // Downwards each link leads to where the way up came from.
        up.extend(other[..kept].iter().zip(&others).rev().map(|(hop, &below)| Hop { link: hop.link, to: below }));
        Some(up)
    }
}

fn classify(machine: &Machine, from: NodeId, hops: &[Hop]) -> PathClass {
    let any = |wanted: fn(&LinkKind) -> bool| hops.iter().any(|hop| wanted(&hop.link.kind));
    let nodes = || std::iter::once(from).chain(hops.iter().map(|hop| hop.to));
    if any(|kind| matches!(kind, LinkKind::Network)) {
        return PathClass::Net;
    }
    if any(|kind| matches!(kind, LinkKind::Socket)) {
        return PathClass::Sys;
    }
    if any(|kind| matches!(kind, LinkKind::Package)) {
        return PathClass::Node;
    }
    if hops.iter().all(|hop| matches!(hop.link.kind, LinkKind::GpuLink { .. })) {
        return PathClass::Nvl;
    }
    match nodes().filter(|node| matches!(node, NodeId::HostBridge(_))).count() {
        2.. => return PathClass::Node,
        1 => return PathClass::Phb,
        0 => {}
    }
    if nodes().any(|node| matches!(node, NodeId::Cpu(_))) {
        return PathClass::Phb;
    }
    let is_switch = |node: NodeId| match node {
        NodeId::Bridge(place) => machine.bridges()[usize::from(place)].role == BridgeRole::Switch,
        _ => false,
    };
    if nodes().filter(|&node| is_switch(node)).count() > 1 { PathClass::Pxb } else { PathClass::Pix }
}
