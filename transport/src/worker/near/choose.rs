//! The choice, from what is known: no system is asked here.

use std::cmp::Reverse;

use qpair_topology::{
    Assignment, Bandwidth, Candidate, Consumer, CpuId, Known, LinkLayer, Machine, Nic, NicId, Rail as TopologyRail,
    SelectError, Selection,
};

use super::here::Here;
use super::{Near, NearError, Placement, SOFTWARE, What};
use crate::cm::RAILS_LIMIT;
use crate::worker::rails::Rail;

/// The rails of `near`.
pub(super) fn choose(near: &Near, here: &Here<'_>) -> Result<Placement, NearError> {
    let machine = here.machine;
    let consumers = consumers(near, here)?;
    let (mut selection, left_out) = selection(here)?;
    match (consumers.first(), &near.among, &near.nodes) {
        (Some(&Consumer::Gpu(own)), Some(among), _) => {
            selection = selection.gpus(among.iter().copied().chain([own]));
        }
        (Some(&Consumer::Cpu(own)), _, Some(nodes)) => {
            let nodes = nodes.iter().filter_map(|&node| machine.cpu_numa(node));
            selection = selection.cpus(nodes.chain([own]));
        }
        _ => {}
    }
    let choice = selection.choose().map_err(|source| match (here.nics.value(), source) {
        (_, source @ SelectError::NoSuchConsumer { .. }) | ("", source) => NearError::Select(source),
        (value, source) => NearError::Nics { value: value.to_owned(), source },
    })?;
    let own: Vec<&Assignment> = consumers.iter().filter_map(|&consumer| choice.of(consumer)).collect();
    if here.nics.names_any() && own.iter().all(|assignment| assignment.rails.is_empty()) {
        return Err(none_left(here, &own));
    }
    Ok(placement(near, machine, &own, &left_out))
}

/// What is chosen of, and what not.
pub(super) fn selection<'a>(here: &Here<'a>) -> Result<(Selection<'a>, Vec<LeftOut>), NearError> {
    let left_out = left_out(here)?;
    let selection = here.nics.limit(Selection::of(here.machine));
    let without = |selection: Selection<'a>, out: &LeftOut| selection.exclude(here.machine.label(out.nic));
    Ok((left_out.iter().fold(selection, without), left_out))
}

/// None of the NICs that the user named can be used.
fn none_left(here: &Here<'_>, own: &[&Assignment]) -> NearError {
    let machine = here.machine;
    let named = |candidate: &&Candidate| machine.nic(candidate.nic).is_some_and(|nic| here.nics.names(nic));
    let named = own.iter().flat_map(|assignment| &assignment.candidates).filter(named);
    let mut why: Vec<String> =
        named.map(|candidate| format!("{}: {}", machine.label(candidate.nic), candidate.verdict)).collect();
    why.dedup();
    NearError::NoneLeft { value: here.nics.value().to_owned(), why: why.join(", ") }
}

/// Whose NICs these are to be; several if it is not known which.
fn consumers(near: &Near, here: &Here<'_>) -> Result<Vec<Consumer>, SelectError> {
    let machine = here.machine;
    let (found, wanted) = match near.what {
        What::Thread => return Ok(nodes(here).into_iter().map(Consumer::Cpu).collect()),
        What::Numa(node) => (machine.cpu_numa(node).map(Consumer::Cpu), format!("NUMA node {node}")),
        What::Gpu(gpu) => (machine.gpu(gpu).map(|_| Consumer::Gpu(gpu)), format!("GPU {}", gpu.0)),
        What::GpuAt(address) => (machine.gpu_at(address).map(Consumer::Gpu), format!("GPU at {address}")),
    };
    found.map(|found| vec![found]).ok_or_else(|| {
        let nodes = machine.cpus().iter().filter_map(|cpu| cpu.numa).map(|numa| format!("NUMA {numa}"));
        let gpus = machine.gpu_ids().zip(machine.gpus()).map(|(id, gpu)| format!("GPU {} at {}", id.0, gpu.address));
        let known = if matches!(near.what, What::Numa(_)) { nodes.collect() } else { gpus.collect() };
        SelectError::NoSuchConsumer { wanted, known: Known(known) }
    })
}

/// The NUMA node of the thread: of all processors that it may run on, else of the one that it is on; if the machine does
/// not tell, all nodes.
fn nodes(here: &Here<'_>) -> Vec<CpuId> {
    let machine = here.machine;
    let places: Vec<_> = machine.cpu_ids().zip(machine.cpus()).filter(|(_, node)| node.numa.is_some()).collect();
    let mut allowed = places.iter().filter(|(_, node)| node.cpus.iter().any(|cpu| here.cpus.contains(cpu)));
    if let (Some((only, _)), None) = (allowed.next(), allowed.next()) {
        return vec![*only];
    }
    let now = places.iter().find(|(_, node)| node.cpus.contains(here.cpu));
    now.map_or_else(|| places.iter().map(|(id, _)| *id).collect(), |(id, _)| vec![*id])
}

/// A NIC that workers do not take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeftOut {
    nic: NicId,
    why: Why,
}

/// Why workers do not take a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Why {
    Unlisted,
    Kind,
    Layer,
}

impl Why {
    fn words(self) -> &'static str {
        match self {
            Why::Unlisted => "libibverbs does not list",
            Why::Kind => "has no reliable connections of the InfiniBand kind",
            Why::Layer => "is of another link layer than most of the host's bandwidth",
        }
    }
}

/// What was left out and why, in words.
pub(super) fn told(machine: &Machine, left_out: &[LeftOut]) -> Vec<String> {
    let mut words = Vec::new();
    for why in [Why::Unlisted, Why::Kind, Why::Layer] {
        let names = left_out.iter().filter(|out| out.why == why).map(|out| machine.label(out.nic));
        let names: Vec<String> = names.collect();
        if !names.is_empty() {
            words.push(format!("without {}, which {}", names.join(", "), why.words()));
        }
    }
    words
}

/// NICs that can not be opened, that messages can not go over, or that are of another link layer than the rest: the two
/// layers do not reach each other, and each worker of the host is to reach each of another. Those that the user names are
/// not left out for their layer.
fn left_out(here: &Here<'_>) -> Result<Vec<LeftOut>, NearError> {
    let machine = here.machine;
    let mut out = Vec::new();
    let mut rates = [(LinkLayer::InfiniBand, Bandwidth::ZERO), (LinkLayer::Ethernet, Bandwidth::ZERO)];
    let real = machine.nic_ids().zip(machine.nics()).filter(|(_, nic)| !nic.software);
    for (id, nic) in real.filter(|(_, nic)| !here.nics.excludes(nic)) {
        if !here.lists(&nic.name) {
            if here.nics.names(nic) {
                return Err(NearError::NotListed { nic: nic.name.clone() });
            }
            out.push(LeftOut { nic: id, why: Why::Unlisted });
        } else if !nic.has_reliable_connections() {
            out.push(LeftOut { nic: id, why: Why::Kind });
        } else if let Some((_, rate)) = rates.iter_mut().find(|(layer, _)| Some(*layer) == layer_of(nic)) {
            *rate = [*rate, nic.bandwidth()].into_iter().sum();
        }
    }
    let [(_, infiniband), (_, ethernet)] = rates;
    let minor = if infiniband >= ethernet { LinkLayer::Ethernet } else { LinkLayer::InfiniBand };
    if !here.nics.names_any() && infiniband != Bandwidth::ZERO && ethernet != Bandwidth::ZERO {
        let is_left = |id: NicId| out.iter().all(|out| out.nic != id);
        let others =
            machine.nic_ids().zip(machine.nics()).filter(|(id, nic)| is_left(*id) && layer_of(nic) == Some(minor));
        let others: Vec<_> = others.filter(|(_, nic)| !nic.software).map(|(id, _)| id).collect();
        out.extend(others.into_iter().map(|nic| LeftOut { nic, why: Why::Layer }));
    }
    Ok(out)
}

/// The link layer of a NIC's ports that carry data.
fn layer_of(nic: &Nic) -> Option<LinkLayer> {
    nic.ports.iter().find(|port| port.carries_data()).map(|port| port.link_layer)
}

fn placement(near: &Near, machine: &Machine, own: &[&Assignment], left_out: &[LeftOut]) -> Placement {
    let mut ways: Vec<&TopologyRail> = Vec::new();
    for assignment in own {
        // The fastest first, since that is for messages.
        let mut rails: Vec<&TopologyRail> = assignment.rails.iter().collect();
        rails.sort_by_key(|rail| (Reverse(rail.bandwidth), rail.path.class, rail.nic));
        let known: Vec<NicId> = ways.iter().map(|way| way.nic).collect();
        ways.extend(rails.into_iter().filter(|rail| !known.contains(&rail.nic)));
    }
    let mut rails: Vec<Rail> = ways.iter().filter_map(|way| machine.nic(way.nic)).flat_map(rails_of).collect();
    let available = rails.len();
    rails.rotate_left(near.turn.checked_rem(available).unwrap_or(0));
    let most = near.at_most.clamp(1, RAILS_LIMIT);
    let why = |one: &&Assignment| format!("{}: {}", machine.label(one.consumer), one.reason);
    let mut reason: Vec<String> = own.iter().map(why).collect();
    if available > 1 && near.turn > 0 {
        reason.push(format!("begun with {}, as turn {} of {available}", rails[0], near.turn % available));
    }
    if available > most {
        reason.push(format!("{most} of {available} rails, from {} on", rails[0]));
    }
    reason.extend(told(machine, left_out));
    let Some(device) = rails.first().and_then(Rail::device_name).map(str::to_owned) else {
        reason.push("no NIC can be used, so the software device".to_owned());
        let (device, rails) = (SOFTWARE.to_owned(), vec![Rail::device(SOFTWARE)]);
        return Placement { device, rails, available: 1, is_chosen: true, reason: reason.join("; ") };
    };
    rails.truncate(most);
    Placement { device, rails, available, is_chosen: true, reason: reason.join("; ") }
}

/// A rail for each port that carries data.
fn rails_of(nic: &Nic) -> Vec<Rail> {
    if nic.software {
        // One device, whatever node it is shown at.
        return vec![Rail::device(SOFTWARE)];
    }
    let usable = nic.ports.iter().filter(|port| port.carries_data());
    let numbers = usable.filter_map(|port| u8::try_from(port.number).ok());
    numbers.map(|number| Rail::device(&nic.name).on_port(number)).collect()
}
