//! The choice, from what is known: no system is asked here.

use std::cmp::Reverse;

use qpair_topology::{
    Assignment, Bandwidth, Candidate, Consumer, CpuId, LinkLayer, Machine, Nic, NicId, Rail as TopologyRail,
    SelectError, Selection,
};

use qpair_verbs::Device;

use super::here::Here;
use super::{Near, NearError, Placement, What};
use crate::cm::RAILS_LIMIT;
use crate::worker::rails::Rail;

/// The software device, for that reason.
pub(super) fn software(reason: String) -> Placement {
    let (device, rails) = (Device::SOFTWARE.to_owned(), vec![Rail::device(Device::SOFTWARE)]);
    Placement { device, rails, is_chosen: true, reason, through: None }
}

/// The rails of what is near to something.
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
    let choice = selection.choose().map_err(|source| refused(here, source))?;
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

/// The same, of which a choice can be made.
pub(super) fn sound_selection<'a>(here: &Here<'a>) -> Result<(Selection<'a>, Vec<LeftOut>), NearError> {
    let found = selection(here)?;
    found.0.clone().choose().map_err(|source| refused(here, source))?;
    Ok(found)
}

/// Why no choice can be made: by what the user said, if it may be.
fn refused(here: &Here<'_>, source: SelectError) -> NearError {
    match (here.nics.value(), source) {
        (_, source @ SelectError::NoSuchConsumer { .. }) | ("", source) => NearError::Select(source),
        (value, source) => NearError::Nics { value: value.to_owned(), source },
    }
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
    Ok(match near.what {
        // It needs no NIC.
        What::Software => Vec::new(),
        What::Thread => nodes(here).into_iter().map(Consumer::Cpu).collect(),
        What::Numa(node) => vec![Consumer::numa(machine, node)?],
        What::Gpu(gpu) => vec![Consumer::gpu(machine, gpu)?],
        What::GpuAt(address) => vec![Consumer::gpu_at(machine, address)?],
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
    let (mut out, mut left) = (Vec::new(), Vec::new());
    let real = machine.nic_ids().zip(machine.nics()).filter(|(_, nic)| !nic.software);
    for (id, nic) in real.filter(|(_, nic)| !here.nics.excludes(nic)) {
        if !here.lists(&nic.name) {
            if here.nics.names(nic) {
                return Err(NearError::NotListed { nic: nic.name.clone() });
            }
            out.push(LeftOut { nic: id, why: Why::Unlisted });
        } else if nic.has_reliable_connections() {
            left.push((id, nic));
        } else {
            out.push(LeftOut { nic: id, why: Why::Kind });
        }
    }
    if !here.nics.names_any() {
        let [infiniband, ethernet] = [LinkLayer::InfiniBand, LinkLayer::Ethernet].map(|layer| {
            let of_layer = left.iter().filter(|(_, nic)| layer_of(nic) == Some(layer));
            of_layer.map(|(_, nic)| nic.bandwidth()).sum::<Bandwidth>()
        });
        // Where there is one layer alone, nothing is of the other.
        let lesser = if infiniband >= ethernet { LinkLayer::Ethernet } else { LinkLayer::InfiniBand };
        let others = left.iter().filter(|(_, nic)| layer_of(nic) == Some(lesser));
        out.extend(others.map(|&(nic, _)| LeftOut { nic, why: Why::Layer }));
    }
    Ok(out)
}

/// The link layer of a NIC's ports that carry data.
fn layer_of(nic: &Nic) -> Option<LinkLayer> {
    nic.ports.iter().find(|port| port.carries_data()).map(|port| port.link_layer)
}

pub(super) fn placement(near: &Near, machine: &Machine, own: &[&Assignment], left_out: &[LeftOut]) -> Placement {
    let mut ways: Vec<&TopologyRail> = Vec::new();
    for assignment in own {
        // The fastest first, since that is for messages.
        let mut rails: Vec<&TopologyRail> = assignment.rails.iter().collect();
        rails.sort_by_key(|rail| (Reverse(rail.bandwidth), rail.path.class, rail.nic));
        let known: Vec<NicId> = ways.iter().map(|way| way.nic).collect();
        ways.extend(rails.into_iter().filter(|rail| !known.contains(&rail.nic)));
    }
    // Bytes that go by another GPU's memory can not go by rails that their own GPU has, nor the other way round: those are taken
    // that carry most together, the own ones where that is the same.
    let carried = |via| ways.iter().filter(|way| way.via == via).map(|way| way.bandwidth).sum::<Bandwidth>();
    let via = ways.iter().map(|way| way.via).max_by_key(|&via| (carried(via), Reverse(via))).flatten();
    let apart: Vec<String> = ways.iter().filter(|way| way.via != via).map(|way| machine.label(way.nic)).collect();
    ways.retain(|way| way.via == via);
    let mut rails: Vec<Rail> = ways.iter().filter_map(|way| machine.nic(way.nic)).flat_map(rails_of).collect();
    let all = rails.len();
    // Those beyond the rails begin again.
    let part = near.share.map(|(number, of)| (number, (all / of.max(1)).max(1)));
    let (begin, most) =
        part.map_or((near.turn, near.at_most), |(number, each)| (number * each, each.min(near.at_most)));
    let (begin, most) = (begin.checked_rem(all).unwrap_or(0), most.clamp(1, RAILS_LIMIT));
    rails.rotate_left(begin);
    let why = |one: &&Assignment| format!("{}: {}", machine.label(one.consumer), one.reason);
    let mut reason: Vec<String> = own.iter().map(why).collect();
    if begin > 0 || all > most {
        reason.push(format!("{} of {all} rails, from {} on", most.min(all), rails[0]));
    }
    if !apart.is_empty() {
        reason.push(format!("without {}, which are reached by the memory of another GPU than these", apart.join(", ")));
    }
    reason.extend(told(machine, left_out));
    let Some(device) = rails.first().and_then(Rail::device_name).map(str::to_owned) else {
        reason.push("no NIC can be used, so the software device".to_owned());
        return software(reason.join("; "));
    };
    rails.truncate(most);
    let through = via.and_then(|gpu| machine.gpu(gpu)).map(|gpu| gpu.address);
    Placement { device, rails, is_chosen: true, reason: reason.join("; "), through }
}

/// A rail for each port that carries data.
fn rails_of(nic: &Nic) -> Vec<Rail> {
    if nic.software {
        // One device, whatever node it is shown at.
        return vec![Rail::device(Device::SOFTWARE)];
    }
    let usable = nic.ports.iter().filter(|port| port.carries_data());
    let numbers = usable.filter_map(|port| u8::try_from(port.number).ok());
    numbers.map(|number| Rail::device(&nic.name).on_port(number)).collect()
}
