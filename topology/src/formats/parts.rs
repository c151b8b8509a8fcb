//! What readers have in common: a list of parts and warnings that becomes a machine.

use crate::{Description, Machine, Warning};

/// Makes a machine of parts, with what was passed over as they were read.
pub(super) fn machine(parts: Description, warnings: Vec<Warning>) -> Machine {
    let mut machine = Machine::builder();
    let Description { name, cpus, host_bridges, bridges, gpus, nics, nv_switch, gpu_links, socket_links, iommu } =
        parts;
    if let Some(name) = name {
        machine.name(name);
    }
    if let Some(translates) = iommu {
        machine.iommu(translates);
    }
    if let Some(switch) = nv_switch {
        machine.nv_switch(switch);
    }
    cpus.into_iter().for_each(|part| _ = machine.cpu(part));
    host_bridges.into_iter().for_each(|part| _ = machine.host_bridge(part));
    bridges.into_iter().for_each(|part| _ = machine.bridge(part));
    gpus.into_iter().for_each(|part| _ = machine.gpu(part));
    nics.into_iter().for_each(|part| _ = machine.nic(part));
    gpu_links.into_iter().for_each(|part| _ = machine.gpu_link(part));
    socket_links.into_iter().for_each(|part| _ = machine.socket_link(part));
    warnings.into_iter().for_each(|part| _ = machine.warn(part));
    machine.build()
}

/// A number that may be written in hexadecimal, with `0x`.
pub(super) fn number(text: &str) -> Option<u64> {
    let text = text.trim();
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Adds a part, unless there is one more than there may be already, which the builder tells. What
/// looks through a list then takes a bounded time, whatever a file has.
pub(super) fn push<T>(list: &mut Vec<T>, part: T, limit: usize) {
    if list.len() <= limit {
        list.push(part);
    }
}
