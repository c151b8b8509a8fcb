//! What a plan takes, by the alpha-beta model: a latency per message and a time per byte.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::plan::{Graph, Plan};
use crate::verify::{Matching, VerifyError};

/// What a message and a byte cost. All in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CostModel {
    /// From the start of a send until the receiver can take the message.
    pub latency: f64,
    /// To receive or copy a byte.
    pub copy_byte: f64,
    /// To receive and combine, or combine, a byte.
    pub reduce_byte: f64,
}

impl Default for CostModel {
    /// The size of things in shared memory: 0.3 us, 20 GB/s copied, 15 GB/s reduced.
    fn default() -> Self {
        Self { latency: 0.3e-6, copy_byte: 1.0 / 20e9, reduce_byte: 1.0 / 15e9 }
    }
}

/// What a plan takes, and why.
///
/// ```
/// use qpair_collectives::cost::{CostModel, Work};
/// use qpair_collectives::{Algorithm, Elements, Ranks, Recipe, Spec};
///
/// let recipe = Recipe::new(Spec::all_reduce(Ranks(2), Elements(1 << 20), 4), Algorithm::Direct)?;
/// let cost = recipe.plan().cost(&CostModel::default())?;
/// assert_eq!(cost.bottleneck().1, Work::Reduce);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// From the common start to the last rank's end, in seconds.
    pub seconds: f64,
    /// Seconds of these that went for latency, copies and reductions: the sum along the chain of
    /// steps, each of which held up the next, that ends last.
    pub latency: f64,
    /// See `latency`.
    pub copy: f64,
    /// See `latency`.
    pub reduce: f64,
    /// The rank at which most time of that chain was spent.
    pub rank: u32,
}

/// What a rank spends time on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    /// Waiting for messages to arrive.
    Latency,
    /// Copying bytes.
    Copy,
    /// Combining bytes.
    Reduce,
}

impl Cost {
    /// The rank and the work that most of the time is spent at.
    pub fn bottleneck(&self) -> (u32, Work) {
        let work = if self.latency >= self.copy.max(self.reduce) {
            Work::Latency
        } else if self.copy >= self.reduce {
            Work::Copy
        } else {
            Work::Reduce
        };
        (self.rank, work)
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rank, work) = self.bottleneck();
        let us = 1e6;
        write!(
            f,
            "{:.2} us: latency {:.2}, copies {:.2}, reductions {:.2}; most of it {work:?} at rank \
             {rank}",
            self.seconds * us,
            self.latency * us,
            self.copy * us,
            self.reduce * us,
        )
    }
}

impl Plan {
    /// Predicts the plan's time. Each rank does one thing at a time, in the order in which things
    /// become possible; the receiver does the work of a message, and a send ends with it.
    ///
    /// A plan that does not verify may give less than its time.
    ///
    /// # Errors
    /// Messages that do not match, as [`Plan::verify`] would say.
    pub fn cost(&self, model: &CostModel) -> Result<Cost, VerifyError> {
        let matching = Matching::of(self)?;
        let mut clock = Clock::new(self, &matching, model);
        clock.run();
        Ok(clock.cost())
    }
}

/// A step of a rank, as (rank, step).
type Node = (u32, u32);

/// When a step ended, and what held it up.
#[derive(Clone, Copy, Default)]
struct Record {
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

struct Clock<'a> {
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
    fn new(plan: &'a Plan, matching: &'a Matching, model: &'a CostModel) -> Self {
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
            for step in 0..program.len() as u32 {
                if program.deps(step).is_empty() {
                    clock.possible(0.0, (rank, step), true, None, 0.0);
                }
            }
        }
        clock
    }

    fn possible(&mut self, time: f64, node: Node, start: bool, cause: Option<Node>, latency: f64) {
        self.queue.push(Reverse(Possible { time, node, start, cause, latency }));
    }

    fn run(&mut self) {
        while let Some(Reverse(next)) = self.queue.pop() {
            let peer = self.kind(next.node).and_then(|kind| kind.peer());
            match peer {
                Some(peer) if next.start => self.start(next, peer),
                _ => self.work(next),
            }
        }
    }

    fn kind(&self, (rank, step): Node) -> Option<&'a crate::plan::StepKind> {
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
        let Some(&kind) = self.kind(next.node) else {
            return;
        };
        let bytes = kind.elements() as f64 * f64::from(self.plan.spec.element_size);
        let work = bytes * if kind.is_reduction() { self.model.reduce_byte } else { self.model.copy_byte };
        let (free, last) = self.busy[rank as usize];
        let (begin, cause, latency) =
            if free > next.time { (free, last, 0.0) } else { (next.time, next.cause, next.latency) };
        let end = begin + work;
        self.busy[rank as usize] = (end, Some(next.node));
        self.records[rank as usize][step as usize] = Record { end, latency, work, cause };
        self.complete(next.node, end, next.node);
        if let Some(peer) = kind.peer() {
            let send = (peer, self.matching.partner(rank, step));
            self.complete(send, end, next.node);
        }
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
    fn cost(&self) -> Cost {
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
