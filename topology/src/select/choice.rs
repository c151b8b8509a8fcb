//! The answer: who has which NICs, and what they carry.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::candidates::{Candidate, Verdict};
use super::consumer::Consumer;
use super::explain::{Explanation, reasons};
use super::problem::{Bundle, Problem};
use super::search::Answer;
use super::share::Sharing;
use crate::Bandwidth;
use crate::model::{GpuId, LinkKind, Machine, NicId, NodeId};
use crate::path::Path;

/// The NICs of each GPU and NUMA node that took part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    assignments: Vec<Assignment>,
    /// Names of consumers and NICs, so that an explanation needs no machine.
    labels: BTreeMap<NodeId, String>,
    proven: Proven,
}

/// Whether what was chosen is proven to be the best: that no other division is better by the order
/// that the [`guide`](crate::guide) states.
///
/// GPUs and NUMA nodes are two searches. Each is proven where at most eight take part and there are
/// at most eight NICs; beyond, where the search comes to its end within a fixed number of steps. What
/// a consumer can have at all is as the guide says: of more than eight NICs not every set. A group
/// that nobody is in counts as proven.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Proven {
    /// No division among the GPUs is better.
    pub gpus: bool,
    /// No division among the NUMA nodes is better.
    pub cpus: bool,
}

/// What is not proven, in a sentence; nothing where all is.
impl fmt::Display for Proven {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = match (self.gpus, self.cpus) {
            (true, true) => return Ok(()),
            (false, true) => "GPUs",
            (true, false) => "NUMA nodes",
            (false, false) => "GPUs and of NUMA nodes",
        };
        write!(f, "The choice of {who} is good, and not proven to be the best: there are too many to try all.")
    }
}

/// The NICs of one GPU or NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Whose they are.
    pub consumer: Consumer,
    /// Its NICs, in order. Empty if there is none that it can use.
    pub rails: Vec<Rail>,
    /// What it has in one direction while all that take part send, over all of its NICs.
    pub bandwidth: Bandwidth,
    /// All ways there were, by NIC, with what became of each.
    pub candidates: Vec<Candidate>,
    /// Why it is so, in a sentence.
    pub reason: String,
}

/// A NIC of a consumer, and how it gets there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rail {
    /// The NIC.
    pub nic: NicId,
    /// The GPU whose NIC it is, if data first goes there over links of GPUs.
    pub via: Option<GpuId>,
    /// The path to the NIC.
    pub path: Path,
    /// True if the NIC reads and writes the memory of the GPU itself.
    pub gpu_direct: bool,
    /// What it has in one direction while all that take part send.
    pub bandwidth: Bandwidth,
}

impl Rail {
    /// Whether the machine tells a rate that bounds this way: that of a port of the NIC, or those of all PCIe links to it. Where
    /// it tells neither, [`bandwidth`](Self::bandwidth) is a number to choose by and means nothing else.
    pub fn is_rate_bounded(&self, machine: &Machine) -> bool {
        let is_bounded_by_links = || self.path.hops.iter().any(|hop| !hop.link.bandwidth.is_unlimited());
        self.is_port_known(machine) || self.are_links_known() && is_bounded_by_links()
    }

    pub(super) fn is_port_known(&self, machine: &Machine) -> bool {
        machine.nic(self.nic).is_some_and(|nic| !nic.bandwidth().is_unlimited())
    }

    pub(super) fn are_links_known(&self) -> bool {
        self.path.hops.iter().all(|hop| !matches!(hop.link.kind, LinkKind::Pcie(pcie) if !pcie.is_known()))
    }
}

impl Choice {
    pub(super) fn new(machine: &Machine, assignments: Vec<Assignment>, proven: Proven) -> Self {
        let consumers = assignments.iter().map(|assignment| NodeId::from(assignment.consumer));
        let nodes = consumers.chain(machine.nic_ids().map(NodeId::from)).chain(machine.gpu_ids().map(NodeId::from));
        let labels = nodes.map(|node| (node, machine.label(node))).collect();
        Self { assignments, labels, proven }
    }

    /// All assignments: GPUs first, in order, then NUMA nodes.
    pub fn assignments(&self) -> &[Assignment] {
        &self.assignments
    }

    /// The assignment of a GPU or NUMA node; `None` if it took no part.
    pub fn of(&self, consumer: impl Into<Consumer>) -> Option<&Assignment> {
        let consumer = consumer.into();
        self.assignments.iter().find(|assignment| assignment.consumer == consumer)
    }

    /// The NICs of a GPU or NUMA node, in order; none if it took no part or has none.
    pub fn nics(&self, consumer: impl Into<Consumer>) -> Vec<NicId> {
        self.of(consumer).map(|a| a.rails.iter().map(|rail| rail.nic).collect()).unwrap_or_default()
    }

    /// True if no division is better by the model, neither among the GPUs nor among the NUMA nodes.
    pub fn is_proven(&self) -> bool {
        self.proven.gpus && self.proven.cpus
    }

    /// The same for GPUs and for NUMA nodes. Printed, it is a sentence where something is not proven.
    pub fn proven(&self) -> Proven {
        self.proven
    }

    /// What all GPUs that took part have together in one direction.
    pub fn total(&self) -> Bandwidth {
        self.gpus().map(|assignment| assignment.bandwidth).sum()
    }

    /// What the GPU that has least has; of no GPUs, nothing.
    pub fn worst(&self) -> Bandwidth {
        self.gpus().map(|assignment| assignment.bandwidth).min().unwrap_or_default()
    }

    /// The candidates of each, the path of each, its limit, and the reason for the choice, to be
    /// printed.
    pub fn explain(&self) -> Explanation<'_> {
        Explanation::new(&self.assignments, &self.labels, self.proven)
    }

    /// The best way between two GPUs that took part: links of GPUs or PCIe, or out of the NIC of one
    /// and in by the NIC of the other, where that carries more than the link between their sockets.
    pub fn between(&self, machine: &Machine, a: GpuId, b: GpuId) -> Option<Path> {
        let direct = machine.path(a, b)?;
        // A NIC of its own without GPUDirect would cross the host's memory twice.
        let nearest = |gpu| self.of(gpu)?.rails.iter().find(|rail| rail.gpu_direct && rail.via.is_none());
        let over = nearest(a).zip(nearest(b)).filter(|(out, back)| out.nic != back.nic);
        let over = over.and_then(|(out, back)| machine.path_over_network(a, out.nic, back.nic, b));
        Some(over.filter(|path| path.bandwidth > direct.bandwidth).unwrap_or(direct))
    }

    fn gpus(&self) -> impl Iterator<Item = &Assignment> {
        self.assignments.iter().filter(|assignment| matches!(assignment.consumer, Consumer::Gpu(_)))
    }
}

impl Assignment {
    /// The assignments of an answer.
    pub(super) fn of(
        machine: &Machine,
        consumers: &[Consumer],
        lists: Vec<Vec<Candidate>>,
        problem: &Problem,
        bundles: &[Vec<Bundle>],
        answer: &Answer,
    ) -> Vec<Self> {
        let chosen = |user: usize| bundles[user].get(answer.bundles[user]);
        let flows: Vec<&[u16]> = (0..consumers.len())
            .flat_map(|user| {
                chosen(user).into_iter().flat_map(move |bundle| bundle.ways.iter().map(move |&w| (user, w)))
            })
            .map(|(user, way)| problem.ways[user][usize::from(way)].over.as_slice())
            .collect();
        let mut sharing = Sharing::default();
        let mut rates = sharing.rates(&flows, &problem.capacity).iter();
        let mut assignments: Vec<Self> = Vec::with_capacity(consumers.len());
        for (&consumer, candidates) in consumers.iter().zip(lists) {
            let mut rail = |candidate: &Candidate| Rail {
                nic: candidate.nic,
                via: candidate.via,
                path: candidate.path.clone(),
                gpu_direct: candidate.gpu_direct,
                bandwidth: Bandwidth::from_bytes(rates.next().copied().unwrap_or(0)),
            };
            let rails: Vec<Rail> = candidates.iter().filter(|c| c.verdict == Verdict::Chosen).map(&mut rail).collect();
            let bandwidth = rails.iter().map(|rail| rail.bandwidth).sum();
            assignments.push(Self { consumer, rails, bandwidth, candidates, reason: String::new() });
        }
        reasons(machine, &mut assignments, &problem.pinned);
        assignments
    }
}
