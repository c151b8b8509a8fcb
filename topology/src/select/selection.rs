//! The question: which consumers, which NICs are allowed, what is told.

use std::fmt;

use thiserror::Error;

use super::candidates::{Allowed, Candidate, Resources, Verdict, candidates};
use super::choice::{Assignment, Choice, Proven};
use super::consumer::Consumer;
use super::problem::Problem;
use super::search::search;
use crate::PciAddress;
use crate::model::{CpuId, GpuId, Machine, Nic, NicId};
use crate::path::PathClass;

/// Chooses the NICs of GPUs and NUMA nodes.
///
/// Without more said, all GPUs of the machine take part at once, and all NUMA nodes at once, each
/// group as if it were alone. Name those that take part where not all do: a group of two GPUs does
/// not share a NIC while another is idle.
///
/// ```
/// use qpair_topology::{Cpu, Gpu, GpuId, LinkLayer, Machine, Nic, NicId, Parent, Port, Selection};
///
/// let mut machine = Machine::builder();
/// machine.cpu(Cpu::numa(0));
/// for (gpu, nic) in [("0000:17:00.0", "0000:18:00.0"), ("0000:65:00.0", "0000:66:00.0")] {
///     machine.gpu(Gpu::at(gpu.parse()?, Parent::Numa(0)));
///     machine.nic(Nic {
///         ports: vec![Port::active(1, 200_000, LinkLayer::InfiniBand)],
///         ..Nic::at(format!("mlx5_{}", &nic[5..7]), nic.parse()?, Parent::Numa(0))
///     });
/// }
/// let machine = machine.build();
/// let choice = Selection::of(&machine).choose()?;
/// assert_eq!(choice.nics(GpuId(1)), [NicId(1)]);
///
/// let choice = Selection::of(&machine).gpus([GpuId(1)]).exclude("0000:66:00.0").choose()?;
/// assert_eq!(choice.nics(GpuId(1)), [NicId(0)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Selection<'a> {
    machine: &'a Machine,
    gpus: Option<Vec<GpuId>>,
    cpus: Option<Vec<CpuId>>,
    exclude: Vec<String>,
    only: Vec<String>,
    pins: Vec<(Consumer, String)>,
    farthest: PathClass,
}

/// The selection can not be made as asked.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SelectError {
    /// No NIC has this name or address.
    #[error("no NIC is called or at `{wanted}`: there {known}")]
    NoSuchNic {
        /// What was asked for.
        wanted: String,
        /// The NICs that there are.
        known: Known,
    },
    /// There is no such GPU or NUMA node.
    #[error("there is no {wanted}: there {known}")]
    NoSuchConsumer {
        /// What was asked for.
        wanted: String,
        /// Those that there are.
        known: Known,
    },
    /// A NIC is both to be used and not to be used.
    #[error("NIC {nic} is both to be used and excluded: take back one of the two; there {known}")]
    Contradiction {
        /// The NIC.
        nic: String,
        /// The NICs that there are.
        known: Known,
    },
    /// A NIC is pinned to what takes no part.
    #[error("NIC {nic} is pinned to {consumer}, which takes no part: name it in the group, or take back the pin")]
    PinnedOutside {
        /// The NIC.
        nic: String,
        /// What it is pinned to.
        consumer: String,
    },
    /// A NIC is pinned that can not be used.
    #[error("NIC {nic} is pinned to {consumer}, but can not be used from there: {why}; choose another: there {known}")]
    PinnedUnusable {
        /// The NIC.
        nic: String,
        /// What it is pinned to.
        consumer: String,
        /// The reason.
        why: String,
        /// The NICs that there are.
        known: Known,
    },
}

/// Names of what a machine has, as an error lists them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known(pub Vec<String>);

impl fmt::Display for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 40;
        match self.0.as_slice() {
            [] => f.write_str("is none"),
            [only] => write!(f, "is {only}"),
            many => {
                write!(f, "are {}", many[..many.len().min(SHOWN)].join(", "))?;
                if many.len() > SHOWN { write!(f, ", and {} more", many.len() - SHOWN) } else { Ok(()) }
            }
        }
    }
}

impl<'a> Selection<'a> {
    /// For all GPUs and all NUMA nodes of a machine.
    pub fn of(machine: &'a Machine) -> Self {
        Self {
            machine,
            gpus: None,
            cpus: None,
            exclude: Vec::new(),
            only: Vec::new(),
            pins: Vec::new(),
            farthest: PathClass::Pxb,
        }
    }

    /// Only these GPUs take part. The order does not matter.
    #[must_use]
    pub fn gpus(mut self, gpus: impl IntoIterator<Item = GpuId>) -> Self {
        self.gpus = Some(gpus.into_iter().collect());
        self
    }

    /// Only workers at these NUMA nodes take part.
    #[must_use]
    pub fn cpus(mut self, cpus: impl IntoIterator<Item = CpuId>) -> Self {
        self.cpus = Some(cpus.into_iter().collect());
        self
    }

    /// Does not use a NIC, by name or PCI address.
    #[must_use]
    pub fn exclude(mut self, nic: impl Into<String>) -> Self {
        self.exclude.push(nic.into());
        self
    }

    /// Uses this NIC, by name or PCI address, and others that this is said of, and no more.
    #[must_use]
    pub fn only(mut self, nic: impl Into<String>) -> Self {
        self.only.push(nic.into());
        self
    }

    /// Has one GPU or NUMA node use this NIC, by name or PCI address. Said of several NICs, it uses
    /// all of them.
    #[must_use]
    pub fn pin(mut self, consumer: impl Into<Consumer>, nic: impl Into<String>) -> Self {
        self.pins.push((consumer.into(), nic.into()));
        self
    }

    /// How far a NIC may be from a GPU and still read its memory itself. Without it
    /// [`PathClass::Pxb`]: processors pass requests between devices slowly, if at all. A GPU that is
    /// one with its processor may always.
    #[must_use]
    pub fn gpu_direct_up_to(mut self, farthest: PathClass) -> Self {
        self.farthest = farthest;
        self
    }

    /// Makes the selection. It depends on the machine and on what was said, and on nothing else:
    /// every process comes to the same.
    ///
    /// A machine without NICs is no error; then nothing is chosen.
    ///
    /// # Errors
    ///
    /// A NIC, GPU or NUMA node is named that is not there, or what is said contradicts itself. The
    /// message lists what there is.
    pub fn choose(&self) -> Result<Choice, SelectError> {
        let machine = self.machine;
        let gpus = self.consumers(self.gpus.as_deref(), machine.gpu_ids())?;
        // The node for what has no known place has no processors.
        let known = machine.cpu_ids().filter(|&id| machine.cpu(id).is_some_and(|cpu| cpu.numa.is_some()));
        let cpus = self.consumers(self.cpus.as_deref(), known)?;
        let exclude = self.exclude.iter().map(|nic| self.find(nic)).collect::<Result<Vec<_>, _>>()?;
        let only = self.only.iter().map(|nic| self.find(nic)).collect::<Result<Vec<_>, _>>()?;
        let pins = self.pins.iter().map(|(consumer, nic)| Ok((*consumer, self.find(nic)?)));
        let pins = pins.collect::<Result<Vec<_>, _>>()?;
        let used = only.iter().copied().chain(pins.iter().map(|pin| pin.1));
        if let Some(both) = used.clone().find(|nic| exclude.contains(nic)) {
            return Err(SelectError::Contradiction { nic: machine.label(both), known: self.known_nics() });
        }
        if let Some((consumer, nic)) = pins.iter().find(|(who, _)| !gpus.contains(who) && !cpus.contains(who)) {
            let (nic, consumer) = (machine.label(*nic), machine.label(*consumer));
            return Err(SelectError::PinnedOutside { nic, consumer });
        }
        let only = (!only.is_empty()).then_some(only);
        let allowed = Allowed { exclude, only, farthest: self.farthest };
        let home = self.home(&gpus, &allowed);
        let (mut assignments, gpus) = self.assign(&gpus, &pins, &allowed, &home)?;
        let (of_cpus, cpus) = self.assign(&cpus, &pins, &allowed, &[])?;
        assignments.extend(of_cpus);
        Ok(Choice::new(machine, assignments, Proven { gpus, cpus }))
    }

    /// The NICs of each GPU when all take part: its rails, which a group keeps to where it costs
    /// nothing, so that GPUs of the same number on other machines are on the same rail. Empty if all
    /// take part.
    fn home(&self, gpus: &[Consumer], allowed: &Allowed) -> Vec<(Consumer, Vec<NicId>)> {
        let all: Vec<Consumer> = self.machine.gpu_ids().map(Consumer::Gpu).collect();
        if all.len() == gpus.len() || gpus.is_empty() {
            return Vec::new();
        }
        let (assigned, _) = self.assign(&all, &[], allowed, &[]).unwrap_or_default();
        assigned.into_iter().map(|a| (a.consumer, a.rails.into_iter().map(|rail| rail.nic).collect())).collect()
    }

    /// The assignments of a group, and whether they are proven to be the best.
    fn assign(
        &self,
        consumers: &[Consumer],
        pins: &[(Consumer, NicId)],
        allowed: &Allowed,
        home: &[(Consumer, Vec<NicId>)],
    ) -> Result<(Vec<Assignment>, bool), SelectError> {
        let machine = self.machine;
        let pinned = consumers.iter().map(|consumer| {
            let own: Vec<NicId> = pins.iter().filter(|pin| pin.0 == *consumer).map(|pin| pin.1).collect();
            (!own.is_empty()).then_some(own)
        });
        let pinned: Vec<_> = pinned.collect();
        let mut lists = candidates(machine, consumers, &pinned, allowed);
        let mut resources = Resources::default();
        let mut ways = Vec::with_capacity(lists.len());
        let mut places = Vec::with_capacity(lists.len());
        for (consumer, list) in consumers.iter().zip(&lists) {
            let home = home.iter().find(|(who, _)| who == consumer).map(|(_, nics)| nics.as_slice());
            let open = list.iter().enumerate().filter(|(_, c)| matches!(c.verdict, Verdict::NotChosen(_)));
            let mut open: Vec<_> = open.collect();
            if open.len() > WAYS {
                open.sort_by_key(|(place, candidate)| (super::candidates::cost(candidate), *place));
                open.truncate(WAYS);
                open.sort_by_key(|(place, _)| *place);
            }
            ways.push(open.iter().map(|(_, c)| resources.way(machine, c, home)).collect::<Vec<_>>());
            places.push(open.into_iter().map(|(place, _)| place).collect::<Vec<_>>());
        }
        self.check_pins(consumers, &pinned, &lists)?;
        let pinned_nics: Vec<Option<Vec<u16>>> =
            pinned.iter().map(|pins| pins.as_ref().map(|nics| nics.iter().map(|nic| nic.0).collect())).collect();
        let problem = Problem { capacity: resources.capacity, ways, pinned: pinned_nics };
        let bundles = problem.bundles();
        let answer = search(&problem, &bundles);
        for (user, list) in lists.iter_mut().enumerate() {
            let Some(bundle) = bundles[user].get(answer.bundles[user]) else { continue };
            for &way in &bundle.ways {
                list[places[user][usize::from(way)]].verdict = Verdict::Chosen;
            }
        }
        Ok((Assignment::of(machine, consumers, lists, &problem, &bundles, &answer), answer.proven))
    }

    /// Pins that lead to nothing that can be used.
    fn check_pins(
        &self,
        consumers: &[Consumer],
        pins: &[Option<Vec<NicId>>],
        lists: &[Vec<Candidate>],
    ) -> Result<(), SelectError> {
        for ((consumer, pins), list) in consumers.iter().zip(pins).zip(lists) {
            for &nic in pins.iter().flatten() {
                let mut ways = list.iter().filter(|candidate| candidate.nic == nic);
                if ways.clone().any(|candidate| matches!(candidate.verdict, Verdict::NotChosen(_))) {
                    continue;
                }
                let why = ways.next().map_or_else(|| "nothing joins them".to_owned(), |way| way.verdict.to_string());
                let (nic, consumer) = (self.machine.label(nic), self.machine.label(*consumer));
                return Err(SelectError::PinnedUnusable { nic, consumer, why, known: self.known_nics() });
            }
        }
        Ok(())
    }

    /// Those that take part, in the order of `all`.
    fn consumers<T: Into<Consumer> + Copy + PartialEq>(
        &self,
        wanted: Option<&[T]>,
        all: impl Iterator<Item = T>,
    ) -> Result<Vec<Consumer>, SelectError> {
        for &wanted in wanted.unwrap_or_default() {
            wanted.into().checked(self.machine)?;
        }
        Ok(all.filter(|id| wanted.is_none_or(|wanted| wanted.contains(id))).map(Into::into).collect())
    }

    fn find(&self, wanted: &str) -> Result<NicId, SelectError> {
        let wanted = wanted.trim();
        let at = |address: PciAddress| {
            self.machine.nic_ids().find(|&id| self.machine.nic(id).and_then(|nic| nic.address) == Some(address))
        };
        let found = self.machine.nic_named(wanted).or_else(|| at(wanted.parse().ok()?));
        found.ok_or_else(|| SelectError::NoSuchNic {
            wanted: wanted.chars().take(80).collect(),
            known: self.known_nics(),
        })
    }

    fn known_nics(&self) -> Known {
        let name = |nic: &Nic| match nic.address {
            Some(address) => format!("{} at {address}", nic.name),
            None => nic.name.clone(),
        };
        Known(self.machine.nics().iter().map(name).collect())
    }
}

/// A consumer is offered at most this many ways, the nearest; machines with more NICs than that are
/// hosts of hundreds of virtual functions.
const WAYS: usize = 128;
