//! The clock of the cost model: runs a plan without data, in the order in which things become possible.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::timeline::Moment;
use super::{Cost, CostModel};
use crate::plan::{Graph, Plan, StepKind};
use crate::verify::Matching;

/// A step of a rank, as (rank, step).
type Node = (u32, u32);

/// When a step began its work and ended, and what held it up. Of a send, the latter alone.
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
    model: &'a CostModel,
    graphs: Vec<Graph>,
    counts: Vec<Vec<u32>>,
    started: Vec<Vec<Option<f64>>>,
    records: Vec<Vec<Record>>,
    /// By rank: until when it is busy, and with what.
    busy: Vec<(f64, Option<Node>)>,
    queue: BinaryHeap<Reverse<Possible>>,
}

impl<'a> Clock<'a> {
    pub(super) fn new(plan: &'a Plan, matching: &'a Matching, model: &'a CostModel) -> Self {
        let graphs: Vec<_> = plan.programs.iter().map(Graph::of).collect();
        let counts: Vec<_> = graphs.iter().map(|g| g.dep_counts().to_vec()).collect();
        let started = counts.iter().map(|c| vec![None; c.len()]).collect();
        let records = counts.iter().map(|c| vec![Record::default(); c.len()]);
        let mut clock = Self {
            plan,
            matching,
            model,
            started,
            records: records.collect(),
            busy: vec![(0.0, None); graphs.len()],
            queue: BinaryHeap::new(),
            graphs,
            counts,
        };
        for (rank, program) in plan.by_rank() {
            for (step, _) in program.numbered().filter(|(_, step)| step.deps.is_empty()) {
                clock.possible(0.0, (rank, step), true, None, 0.0);
            }
        }
        clock
    }

    fn possible(&mut self, time: f64, node: Node, start: bool, cause: Option<Node>, latency: f64) {
        self.queue.push(Reverse(Possible { time, node, start, cause, latency }));
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
        self.started[rank as usize][step as usize] = Some(next.time);
        self.records[rank as usize][step as usize].cause = next.cause;
        let other = (peer, self.matching.partner(rank, step));
        let Some(other_time) = self.started[peer as usize][other.1 as usize] else {
            return;
        };
        let send = self.kind(next.node).is_some_and(|kind| kind.is_send());
        let (send, sent, recv, ready) =
            if send { (next.node, next.time, other, other_time) } else { (other, other_time, next.node, next.time) };
        let arrived = sent + self.model.latency;
        if arrived >= ready {
            self.possible(arrived, recv, false, Some(send), self.model.latency);
        } else {
            let cause = self.records[recv.0 as usize][recv.1 as usize].cause;
            self.possible(ready, recv, false, cause, 0.0);
        }
    }

    /// A receive, a copy or a reduction is done, as soon as the rank is free.
    fn work(&mut self, next: Possible) {
        let (rank, step) = next.node;
        let Some(kind) = self.kind(next.node) else {
            return;
        };
        let bytes = kind.elements() as f64 * f64::from(self.plan.spec.element_size);
        let work = bytes * if kind.is_reduction() { self.model.reduce_byte } else { self.model.copy_byte };
        let (free, last) = self.busy[rank as usize];
        let (begin, cause, latency) =
            if free > next.time { (free, last, 0.0) } else { (next.time, next.cause, next.latency) };
        let end = begin + work;
        self.busy[rank as usize] = (end, Some(next.node));
        self.records[rank as usize][step as usize] = Record { begin, end, latency, work, cause };
        self.complete(next.node, end, next.node);
        if let Some(peer) = kind.peer() {
            let send = (peer, self.matching.partner(rank, step));
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
                    let begin = self.started[rank as usize][step as usize].unwrap_or(taken.end);
                    Moment { begin: begin.min(taken.end), end: taken.end }
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
                if record.end > cost.seconds {
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
