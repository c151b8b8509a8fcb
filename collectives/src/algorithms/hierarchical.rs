//! By nodes: within the node, then between ranks of the same place across nodes, then within.
//!
//! All-reduce: each rank of a node reduces one part for the node, then reduces that with the ranks of its place on other
//! nodes, each over its own rail, and gives the result to its node. Reduce-scatter, all-gather and all-to-all likewise:
//! what is for ranks of one place is first brought to the rank of that place, or comes from it last. Where nodes have
//! different numbers of ranks, the first of each speaks for it.
//!
//! - Steps: for an all-reduce 2 in the node, and 2 log2 of the number of nodes between.
//! - On the wire between nodes: S / (ranks of a node) in and out of each rank, (nodes - 1) / nodes of it, twice for an
//!   all-reduce.
//! - Scratch: one vector for a reduce-scatter into another vector, two for an all-to-all.
//! - Wins: where ranks of a node reach each other faster than other nodes.

use super::Task;
use super::builder::Builder;
use super::direct;
use super::dissemination;
use super::extent::Extent;
use super::group::Group;
use super::halving_doubling;
use super::outline::{Outline, Phase, Reach};
use super::parts::Parts;
use super::ring;
use super::tree::{self, Descent, Tree};
use crate::plan::{Buffer, Collective, Slice};

pub(super) fn build(b: &mut Builder, task: &Task<'_>) {
    let layout = Layout::of(task);
    match task.spec.collective {
        Collective::AllReduce => all_reduce(b, task, &layout),
        Collective::Broadcast { root } => broadcast(b, task, &layout, root),
        Collective::Barrier => barrier(b, task, &layout),
        Collective::AllGather if layout.is_even() => all_gather(b, task, &layout),
        Collective::AllGather => ring::all_gather(
            b,
            &task.group,
            task.spec.contribution(task.rank),
            &Parts::blocks(task.spec, Buffer::Data, 0),
        ),
        Collective::ReduceScatter if layout.is_even() => reduce_scatter(b, task, &layout),
        Collective::ReduceScatter => {
            let given = task.spec.contribution(task.rank);
            let from = Parts::blocks(task.spec, given.buffer, given.offset);
            direct::reduce_scatter(b, &task.group, &from, task.spec.output(task.rank), false);
        }
        _ if layout.is_even() => all_to_all(b, task, &layout),
        _ => direct::all_to_all(b, task),
    }
}

/// Who is where.
struct Layout {
    /// The ranks of each node, ascending; nodes in the order of their first ranks.
    nodes: Vec<Vec<u32>>,
    /// This rank's node, and its place in it.
    node: u32,
    place: u32,
}

impl Layout {
    fn of(task: &Task<'_>) -> Self {
        let mut names: Vec<u32> = Vec::new();
        let mut nodes: Vec<Vec<u32>> = Vec::new();
        let (mut node, mut place) = (0, 0);
        for rank in 0..task.spec.ranks.0 {
            let name = task.recipe.shape.nodes.of(rank);
            let at = names.iter().rposition(|&other| other == name).unwrap_or_else(|| {
                names.push(name);
                nodes.push(Vec::new());
                names.len() - 1
            });
            if rank == task.rank {
                (node, place) = (at as u32, nodes[at].len() as u32);
            }
            nodes[at].push(rank);
        }
        Self { nodes, node, place }
    }

    fn is_even(&self) -> bool {
        self.nodes.iter().all(|ranks| ranks.len() == self.nodes[0].len())
    }

    fn rank(&self, node: u32, place: u32) -> u32 {
        self.nodes[node as usize][place as usize]
    }

    fn places(&self) -> u32 {
        self.nodes[self.node as usize].len() as u32
    }

    fn count(&self) -> u32 {
        self.nodes.len() as u32
    }

    /// The ranks of this node.
    fn local(&self) -> Group {
        let ranks = self.nodes[self.node as usize].clone();
        let own = ranks[self.place as usize];
        Group::listed(ranks, own).unwrap_or_else(|| Group::all(1, 0))
    }

    /// The ranks of this place on all nodes; every node must have it.
    fn across(&self) -> Group {
        let ranks: Vec<u32> = self.nodes.iter().map(|ranks| ranks[self.place as usize]).collect();
        let own = ranks[self.node as usize];
        Group::listed(ranks, own).unwrap_or_else(|| Group::all(1, 0))
    }
}

fn all_reduce(b: &mut Builder, task: &Task<'_>, layout: &Layout) {
    let (given, data) = (task.spec.contribution(task.rank), task.spec.output(task.rank));
    let local = layout.local();
    if layout.is_even() {
        let cut = |whole| Parts::split(whole, local.len(), task.spec.element_size);
        let (from, into) = (cut(given), cut(data));
        let own = into.part(local.me());
        reduce_in_node(b, &local, &from, own);
        halving_doubling::all_reduce(b, &layout.across(), own, own);
        direct::all_gather(b, &local, own, &into);
        return;
    }
    let star = star(&local, 0);
    for segment in 0..b.segments(data) {
        reduce_to_first(b, &local, &star, b.part(given, segment), b.part(data, segment));
    }
    if layout.place == 0 {
        halving_doubling::all_reduce(b, &layout.across(), data, data);
    }
    tree::down(b, &local, &star, data);
}

/// Reduces a part for the node, which is not finished by that.
fn reduce_in_node(b: &mut Builder, local: &Group, from: &Parts, own: Slice) {
    let longest = (0..local.len()).map(|part| b.segments(from.part(part))).max().unwrap_or(0);
    for segment in 0..longest {
        for peer in local.others_back() {
            b.send(local.rank(peer), b.part(from.part(peer), segment));
        }
        let reduced = b.part(own, segment);
        b.copy(b.part(from.part(local.me()), segment), reduced);
        for peer in local.others() {
            b.recv_reduce(local.rank(peer), reduced);
        }
    }
}

fn reduce_to_first(b: &mut Builder, local: &Group, star: &Tree, given: Slice, into: Slice) {
    if let Some(parent) = star.parent {
        b.send(local.rank(parent), given);
        return;
    }
    b.copy(given, into);
    for &child in &star.children {
        b.recv_reduce(local.rank(child), into);
    }
}

/// One member above all others.
fn star(group: &Group, root: u32) -> Tree {
    let is_root = group.me() == root;
    Tree { parent: (!is_root).then_some(root), children: if is_root { group.others().collect() } else { Vec::new() } }
}

/// To the first of each node by a binomial tree, and to all there. The root stands for its own node.
fn broadcast(b: &mut Builder, task: &Task<'_>, layout: &Layout, root: u32) {
    let data = task.spec.output(task.rank);
    let speaker = |ranks: &Vec<u32>| if ranks.contains(&root) { root } else { ranks[0] };
    let speakers: Vec<u32> = layout.nodes.iter().map(speaker).collect();
    let local = layout.local();
    let own_speaker = speakers[layout.node as usize];
    let first = (0..local.len()).find(|&member| local.rank(member) == own_speaker).unwrap_or(0);
    let star = star(&local, first);
    let between = Group::listed(speakers.clone(), task.rank).map(|group| {
        let at = speakers.iter().position(|&rank| rank == root).unwrap_or(0) as u32;
        (Tree::binomial(group.len(), at, group.me()), group)
    });
    for segment in 0..b.segments(data) {
        let part = b.part(data, segment);
        if let Some((tree, group)) = &between {
            tree::down(b, group, tree, part);
        }
        tree::down(b, &local, &star, part);
    }
}

fn barrier(b: &mut Builder, task: &Task<'_>, layout: &Layout) {
    let local = layout.local();
    if layout.place > 0 {
        let told = b.signal(local.rank(0));
        b.after([told]);
        b.hear(local.rank(0));
        return;
    }
    let entered: Vec<u32> = local.others().map(|peer| b.hear(local.rank(peer))).collect();
    let speakers: Vec<u32> = layout.nodes.iter().map(|ranks| ranks[0]).collect();
    let between = Group::listed(speakers, task.rank);
    let all = between.map(|group| dissemination::barrier(b, &group, entered.clone())).unwrap_or(entered);
    for peer in local.others() {
        b.after(all.iter().copied());
        b.signal(local.rank(peer));
    }
}

/// Between nodes each place collects its own blocks; then each gives its node what it has.
fn all_gather(b: &mut Builder, task: &Task<'_>, layout: &Layout) {
    let spec = task.spec;
    let into = Parts::blocks(spec, Buffer::Data, 0);
    let (own, across, local) = (spec.contribution(task.rank), layout.across(), layout.local());
    for peer in across.others_back() {
        b.send(across.rank(peer), own);
    }
    for peer in local.others_back() {
        b.send(local.rank(peer), own);
    }
    b.copy(own, into.part(task.rank));
    for node in across.others() {
        let block = into.part(layout.rank(node, layout.place));
        b.recv(across.rank(node), block);
        for peer in local.others_back() {
            b.send(local.rank(peer), block);
        }
    }
    for peer in local.others() {
        b.recv(local.rank(peer), into.part(layout.rank(layout.node, peer)));
        for node in across.others() {
            b.recv(local.rank(peer), into.part(layout.rank(node, peer)));
        }
    }
}

/// Within the node each place reduces the blocks of its place on all nodes; then between nodes each its own.
fn reduce_scatter(b: &mut Builder, task: &Task<'_>, layout: &Layout) {
    let spec = task.spec;
    let given = spec.contribution(task.rank);
    let from = Parts::blocks(spec, given.buffer, given.offset);
    let work = Parts::blocks(spec, if spec.in_place { Buffer::Data } else { Buffer::Scratch }, 0);
    let (across, local, own) = (layout.across(), layout.local(), spec.output(task.rank));
    for node in 0..layout.count() {
        for peer in local.others_back() {
            b.send(local.rank(peer), from.part(layout.rank(node, peer)));
        }
        let block = layout.rank(node, layout.place);
        let reduced = if node == layout.node { own } else { work.part(block) };
        b.copy(from.part(block), reduced);
        for peer in local.others() {
            b.recv_reduce(local.rank(peer), reduced);
        }
        if node != layout.node {
            b.send(across.rank(node), reduced);
        }
    }
    for node in across.others() {
        b.recv_reduce(across.rank(node), own);
    }
    b.finish(own);
}

/// What is for a place goes to the rank of that place in the node, and from there to the nodes, in one message each.
fn all_to_all(b: &mut Builder, task: &Task<'_>, layout: &Layout) {
    let spec = task.spec;
    let block = spec.block(0);
    let from = if spec.in_place { Buffer::Data } else { Buffer::Input };
    let (gives, gets) = (Parts::blocks(spec, from, 0), Parts::blocks(spec, Buffer::Data, 0));
    let (local, across, places) = (layout.local(), layout.across(), layout.places());
    // By node, what the ranks of this node, in order, give to this place there; then what comes, likewise.
    let place = |round: u64, node: u32, member: u32| {
        let at = (u64::from(node) * u64::from(places) + u64::from(member)) * block;
        Slice::scratch(round * spec.total() + at, block)
    };
    let bundle = |round: u64, node: u32| Slice { len: u64::from(places) * block, ..place(round, node, 0) };
    for node in 0..layout.count() {
        for peer in local.others_back() {
            b.send(local.rank(peer), gives.part(layout.rank(node, peer)));
        }
        let own = gives.part(layout.rank(node, layout.place));
        b.copy(own, if node == layout.node { gets.part(task.rank) } else { place(0, node, layout.place) });
        for peer in local.others() {
            b.recv(local.rank(peer), place(0, node, peer));
        }
        if node != layout.node {
            b.send(across.rank(node), bundle(0, node));
        }
    }
    for node in across.others() {
        b.recv(across.rank(node), bundle(1, node));
    }
    for node in 0..layout.count() {
        let round = u64::from(node != layout.node);
        for member in (0..places).filter(|&member| round == 1 || member != layout.place) {
            b.copy(place(round, node, member), gets.part(layout.rank(node, member)));
        }
    }
}

pub(super) fn outline(extent: &Extent<'_>) -> Outline {
    let sizes = extent.nodes.sizes(0..extent.ranks);
    let (nodes, places) = (sizes.len() as u32, sizes.values().copied().max().unwrap_or(1));
    let is_even = sizes.values().all(|&size| size == places);
    let (n, beside) = (extent.n(), f64::from(places - 1));
    let (count, across) = (f64::from(nodes), f64::from(nodes - 1));
    let block = extent.part();
    let outline = Outline::with_peers(beside + across);
    // Each with all others of its node; each with those of its place.
    let near = |messages: f64, bytes: f64| Phase::among(n, beside * messages, beside * bytes, Reach::Near);
    let far = |messages: f64, bytes: f64| Phase::among(n, across * messages, across * bytes, Reach::Across);
    match extent.collective() {
        Collective::AllReduce if is_even => {
            let part = extent.bytes / f64::from(places);
            let between = halving_doubling::all_reduce_outline(extent, nodes, part, |_| Reach::Across);
            let between = between.phases.into_iter().map(|phase| phase.of_groups(places));
            outline
                .then(near(extent.segments(part), part).combining())
                .then_all(between)
                .then(near(1.0, part).passing_on())
        }
        Collective::AllReduce => {
            let bytes = extent.bytes;
            let between = halving_doubling::all_reduce_outline(extent, nodes, bytes, |_| Reach::Across);
            let up = Phase::collect(beside, extent.segments(bytes), bytes, Reach::Near).of_groups(nodes);
            let down = Phase::spread(beside, 1.0, bytes, Reach::Near).of_groups(nodes);
            outline.then(up.combining()).then_all(between.phases).then(down.passing_on())
        }
        Collective::Broadcast { .. } => {
            let between = Descent::binomial(nodes).outline(extent, extent.bytes, Reach::Across);
            let within =
                Phase::spread(beside, extent.segments(extent.bytes), extent.bytes, Reach::Near).of_groups(nodes);
            outline.then_all(between).then(within.passing_on())
        }
        Collective::Barrier => {
            let up = Phase::collect(beside, 1.0, 0.0, Reach::Near).of_groups(nodes);
            let down = Phase::spread(beside, 1.0, 0.0, Reach::Near).of_groups(nodes);
            dissemination::rounds(outline.then(up), nodes, |_| Reach::Across).then(down.passing_on())
        }
        Collective::AllGather if is_even => outline.then(far(1.0, block)).then(near(count, count * block).passing_on()),
        Collective::ReduceScatter if is_even => {
            outline.then(near(count, count * block).combining()).then(far(1.0, block).combining().passing_on())
        }
        Collective::AllGather => ring::outline(extent),
        Collective::ReduceScatter => direct::outline(extent),
        _ if is_even => {
            let bundle = f64::from(places) * block;
            let own = Phase::local(n, count * block);
            let back = Phase::local(n, across * bundle);
            outline.then(own).then(near(count, count * block)).then(far(1.0, bundle).passing_on()).then(back)
        }
        _ => direct::outline(extent),
    }
}
