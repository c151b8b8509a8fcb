//! RDMA devices, their ports, and which of them can be opened.

use std::collections::BTreeMap;

use super::pci::{Devices, Speed, device_folder};
use super::source::Probe;
use super::tree::{Tree, join};
use crate::guid::guid;
use crate::{BondMember, LinkLayer, MachineBuilder, Nic, NicKind, Parent, PcieLink, Port, PortState, Warning, limits};

/// Adds the RDMA devices that this process can open.
pub(super) fn read(probe: &Probe<'_>, devices: &mut Devices<'_>, machine: &mut MachineBuilder) {
    let tree = probe.tree;
    let mut verbs = BTreeMap::new();
    let mut full = false;
    for (name, path) in tree.entries("class/infiniband_verbs") {
        // Beside the devices there is a file, `abi_version`.
        verbs.extend(path.and_then(|path| tree.read(&path, "ibdev")).map(|device| (device, name)));
    }
    let mut all = tree.entries("class/infiniband");
    if all.len() > limits::NICS {
        // Virtual functions are for virtual machines; the physical ones go first.
        let device = |path: &String| tree.resolve_folder(&join(path, "device"));
        all.sort_by_cached_key(|(_, path)| path.as_ref().and_then(device).and_then(|at| devices.physfn(&at)).is_some());
    }
    for (name, path) in all {
        if full {
            machine.warn(Warning::new(name, "there are too many RDMA devices; the rest was left out"));
            break;
        }
        let Some(path) = path else {
            machine.warn(Warning::new(name, "its link leads nowhere: it is broken, or the device went away meanwhile"));
            continue;
        };
        tree.keep(&path);
        let node_type = tree.read(&path, "node_type").unwrap_or_default();
        // The switch that a driver shows of itself.
        if node_type.starts_with("2:") {
            continue;
        }
        let closed = match verbs.get(&name) {
            Some(device) => Some(format!("infiniband/{device}")).filter(|device| !probe.can_open(device)),
            None => probe.checks().then(|| "infiniband/uverbs*".to_owned()),
        };
        if let Some(closed) = closed {
            let problem = format!("/dev/{closed} can not be opened; the device was passed over");
            machine.warn(Warning::new(name, problem + ". Give the container the device, or load ib_uverbs"));
            continue;
        }
        let nic = Nic { kind: kind(&node_type), ..nic(tree, devices, name, &path, machine) };
        machine.nic(nic);
        full = machine.parts().nics.len() == limits::NICS;
    }
}

fn nic(tree: &Tree<'_>, devices: &mut Devices<'_>, name: String, path: &str, machine: &mut MachineBuilder) -> Nic {
    let ports = ports(tree, path, &name, machine);
    let guid = tree.read(path, "node_guid").and_then(|text| guid(&text));
    let device = tree.resolve_folder(&join(path, "device")).unwrap_or_else(|| path.to_owned());
    let Some((address, folder)) = device_folder(&device).filter(|_| !device.starts_with("devices/virtual/")) else {
        return software_driver(tree, devices, Nic { ports, guid, ..Nic::software(name, 0) }, path);
    };
    let place = devices.place(folder, Speed::Current);
    Nic {
        numa: place.numa,
        bond: bond(tree, path),
        ports,
        guid,
        pcie: place.pcie,
        physfn: place.physfn,
        ..Nic::at(name, address, place.parent)
    }
}

/// An RDMA device that the kernel makes of a network interface, which it may name: it is where the
/// interface is, and can not reach the memory of GPUs.
fn software_driver(tree: &Tree<'_>, devices: &Devices<'_>, nic: Nic, path: &str) -> Nic {
    let interface = tree.read(path, "parent").filter(|name| is_name(name));
    let interface = interface.and_then(|name| tree.resolve(&join("class/net", &name)));
    let device = interface.and_then(|folder| tree.resolve(&join(&folder, "device")));
    let numa = device.as_deref().and_then(device_folder).and_then(|(_, folder)| devices.numa(folder));
    let parent = numa.map_or(Parent::Unknown, Parent::Numa);
    Nic { numa, parent, pcie: PcieLink::UNKNOWN, gpu_direct: Some(false), software: false, ..nic }
}

fn ports(tree: &Tree<'_>, path: &str, name: &str, machine: &mut MachineBuilder) -> Vec<Port> {
    let mut ports = Vec::new();
    for (number, path) in tree.entries(&join(path, "ports")) {
        path.iter().for_each(|path| tree.keep(path));
        let (Ok(number), Some(path)) = (number.parse(), path) else {
            machine.warn(Warning::new(format!("{name} port {number}"), "it is no port; it was passed over"));
            continue;
        };
        ports.push(Port {
            number,
            mbit: tree.read(&path, "rate").and_then(|text| mbit(&text)),
            link_layer: match tree.read(&path, "link_layer").as_deref() {
                Some("InfiniBand") => LinkLayer::InfiniBand,
                Some("Ethernet") => LinkLayer::Ethernet,
                _ => LinkLayer::Unknown,
            },
            state: tree.read(&path, "state").map_or(PortState::Unknown, |text| state(&text)),
        });
        if ports.len() == MOST_PORTS {
            break;
        }
    }
    ports
}

/// Ports of a device; the most that drivers give is a handful.
const MOST_PORTS: usize = 256;

/// Of a line such as `4: ACTIVE`. Numbers are those of `enum ib_port_state`.
fn state(text: &str) -> PortState {
    match text.split(':').next().map(str::trim) {
        Some("4" | "5") => PortState::Active,
        Some("1") => PortState::Down,
        Some("2" | "3") => PortState::Init,
        _ => PortState::Unknown,
    }
}

/// Of a line such as `1: CA`. Numbers are those of the kernel's `enum rdma_node_type` (include/rdma/ib_verbs.h).
fn kind(text: &str) -> NicKind {
    match text.split(':').next().map(str::trim) {
        Some("1") => NicKind::ChannelAdapter,
        Some("4") => NicKind::Iwarp,
        Some("5" | "6" | "7") => NicKind::Other,
        _ => NicKind::Unknown,
    }
}

/// Of a line such as `100 Gb/sec (4X EDR)` or `2.5 Gb/sec (1X SDR)`.
fn mbit(text: &str) -> Option<u64> {
    let number = text.split_once(" Gb/sec")?.0;
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    let tenths = u64::from(part.bytes().next().filter(u8::is_ascii_digit)? - b'0');
    whole.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(tenths * 100).filter(|&mbit| mbit > 0)
}

/// The interfaces of a bond that the device's first port is, if it is one.
fn bond(tree: &Tree<'_>, path: &str) -> Vec<BondMember> {
    let interface = tree.resolve(&join(path, "ports/1/gid_attrs/ndevs"));
    let interface = interface.and_then(|folder| tree.read(&folder, "0")).filter(|name| is_name(name));
    let bond = interface.and_then(|name| tree.resolve(&join("class/net", &name)));
    let Some(bond) = bond.map(|folder| join(&folder, "bonding")) else { return Vec::new() };
    let members = tree.read(&bond, "slaves").unwrap_or_default();
    let members = members.split_whitespace().filter(|name| is_name(name)).take(limits::NICS);
    let members = members.map(|name| {
        let member = tree.resolve(&join("class/net", name));
        // An interface that is down has no speed, or -1; of some drivers 0.
        let speed = member.and_then(|folder| tree.number::<i64>(&folder, "speed"));
        let mbit = speed.and_then(|speed| u64::try_from(speed).ok()).filter(|&speed| speed > 0);
        BondMember { name: name.to_owned(), mbit, active: true }
    });
    let mut members: Vec<BondMember> = members.collect();
    // `active-backup 1`, `broadcast 3`, `802.3ad 4`: in the first two the rates of members do not add up.
    let mode = tree.read(&bond, "mode").unwrap_or_default();
    if let Some("active-backup" | "broadcast") = mode.split_whitespace().next() {
        let told = tree.read(&bond, "active_slave").unwrap_or_default();
        let told = members.iter().position(|member| member.name == told);
        // Of equals the first, so that it is the same in all processes.
        let fastest = || (0..members.len()).rev().max_by_key(|&place| members[place].mbit);
        let active = told.or_else(fastest);
        members.iter_mut().enumerate().for_each(|(place, member)| member.active = Some(place) == active);
    }
    members
}

/// True of what can be the name of a network interface, and is no way to elsewhere.
fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() < 64 && !name.contains('/') && name != "." && name != ".."
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_in_megabits() {
        assert_eq!(mbit("100 Gb/sec (4X EDR)"), Some(100_000));
        assert_eq!(mbit("2.5 Gb/sec (1X SDR)"), Some(2_500));
        assert_eq!(mbit("0 Gb/sec"), None);
        assert_eq!(mbit("99999999999999999999 Gb/sec"), None);
        assert_eq!(mbit(""), None);
    }

    #[test]
    fn states_of_ports_are_read_by_number() {
        assert_eq!(state("4: ACTIVE"), PortState::Active);
        assert_eq!(state("1: DOWN"), PortState::Down);
        assert_eq!(state("2: INIT"), PortState::Init);
        assert_eq!(state("3: ARMED"), PortState::Init);
        let kinds = ["1: CA", "4: RNIC", "7: unspecified node", "", "9: new"].map(kind);
        let unknown = NicKind::Unknown;
        assert_eq!(kinds, [NicKind::ChannelAdapter, NicKind::Iwarp, NicKind::Other, unknown, unknown]);
        assert_eq!(state("nonsense"), PortState::Unknown);
    }
}
