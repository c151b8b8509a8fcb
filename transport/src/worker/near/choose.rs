//! The choice, from what is known: no system is asked here.

use qpair_topology::{
    Assignment, Choice, Consumer, CpuId, Known, Machine, Nic, NicId, PortState, SelectError, Selection,
};

use super::here::Here;
use super::{Near, NearError, Placement, SOFTWARE, What};
use crate::cm::RAILS_LIMIT;
use crate::worker::rails::Rail;

/// The rails of `near`.
pub(super) fn choose(near: &Near, here: &Here<'_>) -> Result<Placement, NearError> {
    let machine = here.machine;
    let consumers = consumers(near, here)?;
    let unlisted = unlisted(here)?;
    let selection = match (consumers.first(), &near.among) {
        (Some(&Consumer::Gpu(own)), Some(among)) => Selection::of(machine).gpus(among.iter().copied().chain([own])),
        _ => Selection::of(machine),
    };
    let selection = here.nics.limit(selection);
    let selection = unlisted.iter().fold(selection, |selection, &nic| selection.exclude(machine.label(nic)));
    let choice = selection.choose().map_err(|source| match (here.nics.value(), source) {
        (_, source @ SelectError::NoSuchConsumer { .. }) | ("", source) => NearError::Select(source),
        (value, source) => NearError::Nics { value: value.to_owned(), source },
    })?;
    Ok(placement(near, machine, &choice, &consumers, &unlisted))
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

/// NICs that the machine has and that can not be opened.
fn unlisted(here: &Here<'_>) -> Result<Vec<NicId>, NearError> {
    let machine = here.machine;
    let mut unlisted = Vec::new();
    for (id, nic) in machine.nic_ids().zip(machine.nics()) {
        if nic.software || here.lists(&nic.name) {
            continue;
        }
        if here.nics.names(nic) {
            return Err(NearError::NotListed { nic: nic.name.clone() });
        }
        unlisted.push(id);
    }
    Ok(unlisted)
}

fn placement(near: &Near, machine: &Machine, choice: &Choice, consumers: &[Consumer], unlisted: &[NicId]) -> Placement {
    let own: Vec<&Assignment> = consumers.iter().filter_map(|&consumer| choice.of(consumer)).collect();
    let mut nics: Vec<NicId> = Vec::new();
    for rail in own.iter().flat_map(|assignment| &assignment.rails) {
        if !nics.contains(&rail.nic) {
            nics.push(rail.nic);
        }
    }
    let all = nics.len();
    nics.rotate_left(near.turn.checked_rem(all).unwrap_or(0));
    let rails: Vec<Rail> = nics.iter().filter_map(|&nic| machine.nic(nic)).flat_map(rails_of).collect();
    let most = near.at_most.clamp(1, RAILS_LIMIT);
    let mut reason =
        own.iter().map(|one| format!("{}: {}", machine.label(one.consumer), one.reason)).collect::<Vec<_>>();
    if all > 1 && near.turn > 0 {
        reason.push(format!("begun with {}, as turn {} of {all}", machine.label(nics[0]), near.turn % all));
    }
    if rails.len() > most {
        reason.push(format!("the first {most} of {} rails", rails.len()));
    }
    if !unlisted.is_empty() {
        let names: Vec<_> = unlisted.iter().map(|&nic| machine.label(nic)).collect();
        reason.push(format!("{} left out, which libibverbs does not list", names.join(", ")));
    }
    let Some(device) = rails.first().and_then(Rail::device_name).map(str::to_owned) else {
        reason.push("no NIC can be used, so the software device".to_owned());
        return Placement {
            device: SOFTWARE.to_owned(),
            rails: vec![Rail::device(SOFTWARE)],
            reason: reason.join("; "),
        };
    };
    Placement { device, rails: rails.into_iter().take(most).collect(), reason: reason.join("; ") }
}

/// A rail for each port that carries data.
fn rails_of(nic: &Nic) -> Vec<Rail> {
    if nic.software {
        // One device, whatever node it is shown at.
        return vec![Rail::device(SOFTWARE)];
    }
    let usable = nic.ports.iter().filter(|port| port.state != PortState::Down);
    let numbers = usable.filter_map(|port| u8::try_from(port.number).ok());
    numbers.map(|number| Rail::device(&nic.name).on_port(number)).collect()
}
