//! The clock of the cost model: runs a plan without data, in the order in which things become possible.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::price::READ;
use super::timeline::Moment;
use super::{Cost, CostModel, LinkClass, Seats, Spread};
use crate::plan::{Graph, Plan, StepKind};
use crate::verify::Matching;

/// A step of a rank, as (rank, step).
type Node = (u32, u32);

/// When a step began its work and ended, and what held it up. A send ends when its message was taken, which is not kept here.
#[derive(Clone, Copy, Default)]
struct Record {
    begin: f64,
    end: f64,
    latency: f64,
    work: f64,
    cause: Option<Node>,
}

/// Something that becomes possible: earliest first, then by rank and step.
#[derive(PartialEq)]
struct Possible {
    time: f64,
    node: Node,
    /// The step starts, or else both sides of its message have started.
    start: bool,
    cause: Option<Node>,
    latency: f64,
    /// Its rank has its turn on the core that it shares, once it had waited.
    has_turn: bool,
}

impl Eq for Possible {}

impl Ord for Possible {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let key = |p: &Self| (p.node, p.start);
        let time = self.time.total_cmp(&other.time);
        time.then_with(|| key(self).cmp(&key(other)))
    }
}

impl PartialOrd for Possible {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

pub(super) struct Clock<'a> {
    plan: &'a Plan,
    matching: &'a Matching,
    model: CostModel,
    /// At which a rank copies a message.
    copy: f64,
    graphs: Vec<Graph>,
    counts: Vec<Vec<u32>>,
    /// Whether messages are copied from rank to rank.
    copied: bool,
    started: Vec<Vec<Option<f64>>>,
    records: Vec<Vec<Record>>,
    /// By rank: its node, its island, and the core that it runs on.
    places: Vec<Place>,
    /// By core: until when it is busy, and with what.
    busy: Vec<(f64, Option<Node>)>,
    /// By core: how many ranks share it.
    sharing: Vec<u32>,
    /// By rank: until when it has had something to do, and to send.
    active: Vec<f64>,
    sending: Vec<f64>,
    /// By node: until when its rails are full, out and in; by island, its links to the others.
    rails: Vec<(f64, f64)>,
    beside: Vec<(f64, f64)>,
    queue: BinaryHeap<Reverse<Possible>>,
}

impl<'a> Clock<'a> {
    pub(super) fn new(plan: &'a Plan, matching: &'a Matching, model: &CostModel, seats: &Seats, copied: bool) -> Self {
        let graphs: Vec<_> = plan.programs.iter().map(Graph::of).collect();
        let counts: Vec<_> = graphs.iter().map(|g| g.dep_counts().to_vec()).collect();
        let started = counts.iter().map(|c| vec![None; c.len()]).collect();
        let records = counts.iter().map(|c| vec![Record::default(); c.len()]);
        let places = places(seats, graphs.len() as u32);
        let most = |of: fn(&Place) -> usize| places.iter().map(of).max().map_or(0, |most| most + 1);
        let [nodes, islands, cores] = [most(|place| place.node), most(|place| place.island), most(|place| place.core)];
        let mut sharing = vec![0; cores];
        places.iter().for_each(|place| sharing[place.core] += 1);
        let (model, copy) = model.among(&Spread::of(seats, graphs.len() as u32));
        let mut clock = Self {
            plan,
            matching,
            model,
            copy,
            copied,
            started,
            records: records.collect(),
            places,
            busy: vec![(0.0, None); cores],
            sharing,
            active: vec![0.0; graphs.len()],
            sending: vec![0.0; graphs.len()],
            rails: vec![(0.0, 0.0); nodes],
            beside: vec![(0.0, 0.0); islands],
            queue: BinaryHeap::new(),
            graphs,
            counts,
        };
        for (rank, program) in plan.by_rank() {
            // Where peers reach into its memory, each is told that it has begun.
            let mut peers: Vec<u32> = program.steps().iter().filter_map(|step| step.kind.peer()).collect();
            peers.sort_unstable();
            peers.dedup();
            let word = |peer: &u32| model.send + clock.packet(rank, *peer);
            let words = if copied { 0.0 } else { peers.iter().map(word).sum() };
            for (step, _) in program.numbered().filter(|(_, step)| step.deps.is_empty()) {
                clock.possible(model.start + words, (rank, step), true, None, 0.0);
            }
        }
        clock
    }

    fn possible(&mut self, time: f64, node: Node, start: bool, cause: Option<Node>, latency: f64) {
        self.queue.push(Reverse(Possible { time, node, start, cause, latency, has_turn: false }));
    }

    pub(super) fn run(&mut self) {
        while let Some(Reverse(next)) = self.queue.pop() {
            let peer = self.kind(next.node).and_then(|kind| kind.peer());
            match peer {
                Some(peer) if next.start => self.start(next, peer),
                _ => self.work(next),
            }
        }
    }

    fn kind(&self, (rank, step): Node) -> Option<StepKind> {
        self.plan.programs[rank as usize].kind(step)
    }

    /// One side of a message starts; the second one makes the transfer possible.
    fn start(&mut self, next: Possible, peer: u32) {
        let (rank, step) = next.node;
        let is_send = self.kind(next.node).is_some_and(|kind| kind.is_send());
        let mut time = next.time;
        if is_send {
            time = self.interrupt(&next, self.sending(next.node));
        } else {
            self.records[rank as usize][step as usize].cause = next.cause;
        }
        self.started[rank as usize][step as usize] = Some(time);
        let other = (peer, self.matching.partner(rank, step));
        let Some(other_time) = self.started[peer as usize][other.1 as usize] else {
            return;
        };
        let (send, sent, recv, ready) =
            if is_send { (next.node, time, other, other_time) } else { (other, other_time, next.node, time) };
        let (arrived, latency) = self.carry(send, recv.0, sent);
        if arrived >= ready {
            self.possible(arrived, recv, false, Some(send), latency);
        } else {
            let cause = self.records[recv.0 as usize][recv.1 as usize].cause;
            self.possible(ready, recv, false, cause, 0.0);
        }
    }

    /// When a message that was sent is there, and how long that took.
    fn carry(&mut self, send: Node, to: u32, sent: f64) -> (f64, f64) {
        let bytes = self.bytes(send);
        let (from, into) = (self.places[send.0 as usize], self.places[to as usize]);
        let (class, links, from, into) = if from.node != into.node {
            (LinkClass::Between, &mut self.rails, from.node, into.node)
        } else if from.island != into.island {
            (LinkClass::Beside, &mut self.beside, from.island, into.island)
        } else {
            let latency = self.model.link(LinkClass::Within).latency;
            return (sent + latency, latency);
        };
        let mut link = self.model.link(class);
        if class == LinkClass::Between && !self.copied {
            // What is read is asked for first.
            link.latency *= 2.0;
        }
        // What goes out waits for nothing but what went out before; what comes in may wait on its way.
        let (took, out) = (bytes / link.speed, sent.max(links[from].0));
        let full = out.max(links[into].1) + took;
        links[from].0 = out + took;
        links[into].1 = full;
        (full + link.latency, full + link.latency - sent)
    }

    fn bytes(&self, node: Node) -> f64 {
        self.kind(node).map_or(0.0, |kind| kind.elements() as f64) * f64::from(self.plan.spec.element_size)
    }

    /// What a rank has to do to send.
    fn sending(&self, send: Node) -> f64 {
        let (rank, step) = send;
        let bytes = self.bytes(send);
        let peer = self.kind(send).and_then(|kind| kind.peer()).unwrap_or(rank);
        let (packet, carried) = (self.packet(rank, peer), self.carrying(rank, peer, bytes));
        let word = self.model.send + packet;
        if self.copied || bytes == 0.0 {
            word + bytes / self.copy + carried
        } else if self.plan.programs[rank as usize].deps(step).is_empty() {
            READ * packet + carried
        } else {
            word + READ * packet + carried
        }
    }

    /// What either end of a packet takes between two ranks.
    fn packet(&self, one: u32, other: u32) -> f64 {
        if self.are_beside(one, other) { 0.0 } else { self.model.packet }
    }

    /// What either end of so many bytes takes in packets between them.
    fn carrying(&self, one: u32, other: u32, bytes: f64) -> f64 {
        if self.are_beside(one, other) { 0.0 } else { self.model.carrying(bytes) }
    }

    /// Whether two ranks are on one node.
    fn are_beside(&self, one: u32, other: u32) -> bool {
        self.places[one as usize].node == self.places[other as usize].node
    }

    /// What a rank has to do to receive, copy or combine.
    fn working(&self, node: Node, kind: &StepKind) -> f64 {
        let model = &self.model;
        let bytes = self.bytes(node);
        let straight = !self.copied && kind.peer().is_some() && kind.elements() > 0;
        let speed = if kind.is_reduction() {
            model.combine
        } else if straight {
            model.straight
        } else if kind.peer().is_some() {
            self.copy
        } else {
            model.copy
        };
        let message = match kind.peer() {
            None => 0.0,
            Some(peer) if !straight => {
                let (packet, carried) = (self.packet(node.0, peer), self.carrying(node.0, peer, bytes));
                model.receive + packet + carried
            }
            Some(peer) => {
                let (packet, carried) = (self.packet(node.0, peer), self.carrying(node.0, peer, bytes));
                let send = self.matching.partner(node.0, node.1);
                let told = !self.plan.programs[peer as usize].deps(send).is_empty();
                model.transfer + READ * packet + carried + if told { model.receive + packet } else { 0.0 }
            }
        };
        message + bytes / speed
    }

    /// Lets a rank send at once, between other work, which takes so much longer; when it has.
    fn interrupt(&mut self, next: &Possible, work: f64) -> f64 {
        let (rank, step) = next.node;
        let core = self.places[rank as usize].core;
        let (free, last) = self.busy[core];
        // One message after the other.
        let end = next.time.max(self.sending[rank as usize]) + work;
        self.sending[rank as usize] = end;
        self.busy[core] = (free.max(next.time) + work, last.filter(|_| free > next.time).or(Some(next.node)));
        let Possible { time: begin, cause, latency, .. } = *next;
        self.records[rank as usize][step as usize] = Record { begin, end, latency, work, cause };
        end
    }

    /// Gives a step the core of its rank as soon as that is free; when it is done.
    fn occupy(&mut self, next: &Possible, work: f64) -> f64 {
        let (rank, step) = next.node;
        let core = self.places[rank as usize].core;
        let (free, last) = self.busy[core];
        let (begin, cause, latency) =
            if free > next.time { (free, last, 0.0) } else { (next.time, next.cause, next.latency) };
        let end = begin + work;
        self.busy[core] = (end, Some(next.node));
        self.active[rank as usize] = end;
        self.records[rank as usize][step as usize] = Record { begin, end, latency, work, cause };
        end
    }

    /// A receive, a copy or a reduction is done, as soon as the rank is free.
    fn work(&mut self, next: Possible) {
        let Some(kind) = self.kind(next.node) else {
            return;
        };
        // A rank that waited for a message has given way to the others on its core, and finds them before it. On two cores of a Xeon
        // 302 and 306 of 343 choices are within a tenth of the best so, by two measurements of what things cost; where it finds half
        // of them, as by chance, 291 and 288 are. Its message may be of one of those.
        let (rank, core) = (next.node.0 as usize, self.places[next.node.0 as usize].core);
        let turn = self.model.turn * f64::from(self.sharing[core] - 1);
        if turn > 0.0 && kind.peer().is_some() && !next.has_turn && next.time > self.active[rank] {
            let (time, latency) = (next.time + turn, next.latency + turn);
            return self.queue.push(Reverse(Possible { time, latency, has_turn: true, ..next }));
        }
        let end = self.occupy(&next, self.working(next.node, &kind));
        self.complete(next.node, end, next.node);
        if let Some(peer) = kind.peer() {
            let send = (peer, self.matching.partner(next.node.0, next.node.1));
            self.complete(send, end, next.node);
        }
    }

    /// When each step began and ended, by rank. A send lasts until its message is taken.
    pub(super) fn moments(&self) -> Vec<Vec<Moment>> {
        let moment = |node: Node| {
            let (rank, step) = node;
            let record = self.records[rank as usize][step as usize];
            match self.kind(node) {
                Some(StepKind::Send { peer, .. }) => {
                    let taken = self.records[peer as usize][self.matching.partner(rank, step) as usize];
                    Moment { begin: record.begin.min(taken.end), end: taken.end }
                }
                _ => Moment { begin: record.begin, end: record.end },
            }
        };
        let ranks = (0..).zip(&self.records);
        ranks.map(|(rank, records)| (0..records.len() as u32).map(|step| moment((rank, step))).collect()).collect()
    }

    fn complete(&mut self, (rank, step): Node, end: f64, cause: Node) {
        let dependents = self.graphs[rank as usize].dependents(step).to_vec();
        for dependent in dependents {
            let count = &mut self.counts[rank as usize][dependent as usize];
            *count -= 1;
            if *count == 0 {
                self.possible(end, (rank, dependent), true, Some(cause), 0.0);
            }
        }
    }

    /// Adds up along the chain of causes that ends last.
    pub(super) fn cost(&self) -> Cost {
        let mut cost = Cost { seconds: 0.0, latency: 0.0, copy: 0.0, reduce: 0.0, rank: 0 };
        let mut last = None;
        for (rank, records) in (0..).zip(&self.records) {
            for (step, record) in (0..).zip(records) {
                if record.end > cost.seconds && !self.kind((rank, step)).is_some_and(|kind| kind.is_send()) {
                    cost.seconds = record.end;
                    last = Some((rank, step));
                }
            }
        }
        let mut at_rank = vec![0.0; self.records.len()];
        while let Some((rank, step)) = last {
            let record = self.records[rank as usize][step as usize];
            cost.latency += record.latency;
            at_rank[rank as usize] += record.latency + record.work;
            match self.kind((rank, step)) {
                Some(kind) if kind.is_reduction() => cost.reduce += record.work,
                _ => cost.copy += record.work,
            }
            last = record.cause;
        }
        let most = (0..).zip(&at_rank).max_by(|a, b| a.1.total_cmp(b.1));
        cost.rank = most.map_or(0, |(rank, _)| rank);
        cost
    }
}

/// Where a rank is, each numbered from 0.
#[derive(Clone, Copy)]
struct Place {
    node: usize,
    island: usize,
    core: usize,
}

/// By rank: where it is; its core is of those that the ranks of a node share in turn.
fn places(seats: &Seats, ranks: u32) -> Vec<Place> {
    let Spread { nodes, islands, cores, .. } = Spread::of(seats, ranks);
    // Whole cores are a node's own, and what is left beside them is nobody's here; of less than one several nodes have a part.
    let (own, sharing) = (cores.max(1.0) as u32, (1.0 / cores).round().max(1.0) as usize);
    let mut numbers: HashMap<(usize, u32), usize> = HashMap::new();
    let mut seated = HashMap::new();
    let place = |rank| {
        let (node, island) = (nodes.group(rank), islands.group(rank));
        let before = seated.entry(node).or_insert(0);
        let number = numbers.len();
        let core = *numbers.entry((node / sharing, *before % own)).or_insert(number);
        *before += 1;
        Place { node, island, core }
    };
    (0..ranks).map(place).collect()
}
