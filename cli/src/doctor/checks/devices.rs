//! Devices and their ports: whether there are any, whether they open, and whether they carry data.

use qpair::verbs::Device;

use super::super::finding::{Finding, Section, Severity};
use super::super::system::{Netdev, Oddity, Port, RdmaDevice, System, WorkerDevice, gigatransfers};

/// Whether there are devices, and what keeps them from carrying data.
pub fn check(system: &System) -> Vec<Finding> {
    let mut findings = vec![presence(system)];
    findings.extend(system.devices.iter().filter_map(|device| rxe_parent(system, device)));
    findings.extend(opening(system));
    for device in &system.devices {
        findings.extend(device.ports.iter().map(|port| state(system, device, port)));
        findings.extend(pci_link(device));
    }
    findings.extend(worker(system));
    findings.extend(system.oddities.iter().map(oddity));
    findings
}

/// Which device workers take that are told none.
fn worker(system: &System) -> Option<Finding> {
    let of = Section::Devices;
    Some(match system.worker.as_ref()? {
        Err(error) => Finding::problem(of, "worker-device", format!("workers that are told no device fail: {error}"))
            .fix("see what there is", ["env -u QPAIR_TOPOLOGY -u QPAIR_NICS qpair topo"]),
        Ok(WorkerDevice { name, reason, closed: Some(error), .. }) => {
            let message = format!("workers that are told no device take {name}, which can not be opened: {error}");
            Finding::problem(of, "worker-device", message)
                .because(format!("They take it for this reason: {reason}."))
                .fix("take the software device, or name another", [format!("export QPAIR_DEVICE={}", Device::SOFTWARE)])
        }
        Ok(device) if device.name == Device::SOFTWARE && device.is_chosen && !system.devices.is_empty() => {
            let message = format!("workers take {}, though there are RDMA devices", device.name);
            Finding::note(of, "worker-device", message)
                .because(format!("They are told no device: {}.", device.reason))
                .fix("see why none is chosen", ["qpair topo -v"])
        }
        Ok(device) => {
            let message = format!("workers that are told no device take {}", device.name);
            Finding::ok(of, "worker-device", message).because(&device.reason)
        }
    })
}

/// `rxe0 port 1`.
pub fn name_of(device: &RdmaDevice, port: &Port) -> String {
    format!("{} port {}", device.name, port.number)
}

fn presence(system: &System) -> Finding {
    let of = Section::Devices;
    if !system.devices.is_empty() {
        let names: Vec<&str> = system.devices.iter().map(|device| device.name.as_str()).collect();
        return Finding::ok(of, "rdma-device", format!("RDMA devices: {}", names.join(", ")));
    }
    let unbound = system.pci.iter().find(|function| function.is_infiniband() && function.driver.is_none());
    if let Some(function) = unbound {
        return Finding::problem(of, "rdma-device", format!("the adapter at {} has no driver", function.address))
            .because("It is an InfiniBand adapter; without its driver it is no RDMA device.")
            .fix("as root: see why, and install its driver", [format!("lspci -k -s {}", function.address)]);
    }
    let idle = system.pci.iter().find_map(|function| Some((function, function.rdma_module()?)));
    let message = "there is no RDMA device; soft0 serves, which takes processors' time";
    let finding = Finding::warning(of, "rdma-device", message);
    let finding = match idle {
        None => finding,
        Some((function, module)) if system.kernel.loaded.contains(module) => finding
            .because(format!(
                "The NIC at {} may be one: its module {module} is loaded, but there is no device of it here.",
                function.address
            ))
            .fix(
                "as root: see whether another network namespace has it, and what the kernel says",
                ["rdma system show".to_owned(), format!("dmesg | grep -i -e {module} -e {}", function.address)],
            ),
        Some((function, module)) => finding
            .because(format!("The NIC at {} may be one: its module {module} is not loaded.", function.address))
            .fix("as root: use the NIC", [format!("modprobe {module}")]),
    };
    soft_roce(finding, system)
}

/// How to get a software RDMA device, where the kernel can have one.
fn soft_roce(finding: Finding, system: &System) -> Finding {
    let release = system.kernel.release.as_deref().unwrap_or("running");
    if system.kernel.ships("rdma_rxe") == Some(false) && !system.kernel.loaded.contains("rdma_rxe") {
        let install = match release {
            _ if release.contains("cloud") => {
                "apt install linux-image-amd64    # in place of the cloud kernel".to_owned()
            }
            _ => format!("# the rest of its modules, such as linux-modules-extra-{release}"),
        };
        return finding.fix("this kernel has no rdma_rxe (Soft-RoCE); install what has", [install]);
    }
    let Some(netdev) = system.best_netdev() else {
        return finding.fix("there is no Ethernet interface for Soft-RoCE; see which there are", ["ip link"]);
    };
    let mut lines = Vec::new();
    if !system.kernel.has_rdma_command {
        lines.push(system.kernel.packages.install_rdma_command().to_owned());
    }
    if !system.kernel.loaded.contains("rdma_rxe") {
        lines.push("modprobe rdma_rxe".to_owned());
    }
    lines.push(format!("rdma link add rxe0 type rxe netdev {}", netdev.name));
    let place = if system.kernel.shipped.is_none() && !system.kernel.loaded.contains("rdma_rxe") {
        "as root, for Soft-RoCE, if the kernel has it (its modules are not to be seen here)"
    } else {
        "as root, for Soft-RoCE"
    };
    finding.fix(place, lines)
}

/// Soft-RoCE lives on an interface, and is of no use without.
fn rxe_parent(system: &System, device: &RdmaDevice) -> Option<Finding> {
    if !device.is_rxe() {
        return None;
    }
    let parent = device.parent.as_deref().unwrap_or("nothing");
    if system.netdev(parent).is_some() {
        return Some(Finding::ok(Section::Devices, "rxe-netdev", format!("it is on {parent}")).on(&device.name));
    }
    let message = format!("it is on {parent}, which is no interface of this network namespace");
    let finding = Finding::problem(Section::Devices, "rxe-netdev", message)
        .on(&device.name)
        .because("Its packets go nowhere; without an interface it has no address.");
    Some(match system.best_netdev() {
        None => finding.fix("see which interfaces there are", ["ip link"]),
        Some(netdev) => finding.fix(
            "as root: make it anew",
            [
                format!("rdma link delete {}", device.name),
                format!("rdma link add {} type rxe netdev {}", device.name, netdev.name),
            ],
        ),
    })
}

/// What came of opening each device. Where its file can not be opened, that is told instead.
fn opening(system: &System) -> Vec<Finding> {
    let of = Section::Devices;
    let file_opens = |name: &str| {
        let file = system.devices.iter().find(|device| device.name == name).and_then(|device| device.uverbs.as_ref());
        file.is_none_or(|name| system.files.iter().any(|file| file.name == *name && file.refused.is_none()))
    };
    let told_here = system.opened.iter().filter(|opened| opened.ports.is_ok() || file_opens(&opened.name));
    let each = told_here.map(|opened| match &opened.ports {
        Ok(_) => Finding::ok(of, "device-open", "it opens").on(&opened.name),
        Err(error) => Finding::problem(of, "device-open", format!("it does not open: {error}"))
            .on(&opened.name)
            .fix("see what happens", [format!("RUST_LOG=debug qpair devices -v    # {}", opened.name)]),
    });
    each.collect()
}

fn state(system: &System, device: &RdmaDevice, port: &Port) -> Finding {
    let of = Section::Devices;
    let subject = name_of(device, port);
    if port.is_active() {
        let rate = port.rate.as_deref().map_or(String::new(), |rate| format!(", {rate}"));
        return Finding::ok(of, "port-state", format!("active{rate}")).on(subject);
    }
    // A card's second port is often not in use. That other hardware works is no comfort.
    let of_card = system.devices.iter().filter(|other| other.name == device.name || on_one_card(other, device));
    let others_work = of_card.flat_map(|other| &other.ports).any(Port::is_active);
    let severity = if others_work { Severity::Warning } else { Severity::Problem };
    let words = format!("{}, physically {}", state_name(port.state), physical_state_name(port.physical_state));
    let finding = Finding::new(severity, of, "port-state", words).on(subject);
    if port.is_ethernet() { ethernet_down(finding, system, port) } else { infiniband_down(finding, port) }
}

/// Whether two devices are functions of one PCI card, as drivers that make a device of each port have them.
fn on_one_card(one: &RdmaDevice, other: &RdmaDevice) -> bool {
    let slot = |device: &RdmaDevice| Some(device.pci.as_ref()?.rsplit_once('.')?.0.to_owned());
    slot(one).is_some() && slot(one) == slot(other)
}

fn ethernet_down(finding: Finding, system: &System, port: &Port) -> Finding {
    let Some(name) = port.netdev.as_deref() else {
        return finding.because("Its network interface is not to be found.").fix("see which there are", ["ip link"]);
    };
    match system.netdev(name) {
        None => finding
            .because(format!("Its interface {name} is not in this network namespace."))
            .fix("as root: see where it is", ["ip netns list", "rdma link"]),
        Some(Netdev { up: false, .. }) => finding
            .because(format!("Its interface {name} is down."))
            .fix("as root", [format!("ip link set dev {name} up")]),
        Some(Netdev { carrier: Some(true), .. }) => finding
            .because(format!("Its interface {name} is up and has a link."))
            .fix("as root: see what the driver says", ["rdma link", "dmesg | tail"]),
        Some(_) => finding
            .because(format!("Its interface {name} is up, but has no link: the cable, or the port at the other end."))
            .fix("see what the interface says", [format!("ethtool {name}")]),
    }
}

fn infiniband_down(finding: Finding, port: &Port) -> Finding {
    match (port.state, port.physical_state) {
        (Some(INIT | ARMED), _) => finding
            .because("The link is there, and no subnet manager has configured it.")
            .fix("on one host of the fabric, unless a switch does it", ["systemctl enable --now opensm"]),
        (_, Some(POLLING)) => finding
            .because("It looks for the other end: no cable, or nothing at its end that is on.")
            .fix("see the link from both ends", ["ibstat", "iblinkinfo"]),
        (_, Some(DISABLED)) => {
            finding.because("It was switched off.").fix("as root", ["ibportstate -D 0 PORT enable", "ibstat"])
        }
        _ => finding.fix("see what the port says", ["ibstat", "dmesg | tail"]),
    }
}

/// A card in a slot that is too narrow, or a link that came up badly.
fn pci_link(device: &RdmaDevice) -> Option<Finding> {
    let (now, best) = (device.link.now.as_ref()?, device.link.best.as_ref()?);
    let words = |(lanes, speed): &(u32, String)| format!("x{lanes} at {speed}");
    let rate = |speed: &str| gigatransfers(speed).unwrap_or(0.0);
    let of = Section::Devices;
    if now.0 >= best.0 && rate(&now.1) >= rate(&best.1) {
        return Some(Finding::ok(of, "pci-link", format!("its PCI link is {}", words(now))).on(&device.name));
    }
    let address = device.pci.as_deref().unwrap_or_default();
    Some(
        Finding::warning(of, "pci-link", format!("its PCI link is {}, and could be {}", words(now), words(best)))
            .on(&device.name)
            .because("The slot is narrower than the card, or the link did not come up whole.")
            .fix("see the slot's own abilities; put the card into another", [format!("lspci -vv -s {address}")]),
    )
}

fn oddity(oddity: &Oddity) -> Finding {
    Finding::warning(Section::Devices, "nonsense", format!("makes no sense: {}", oddity.what))
        .on(&oddity.path)
        .because("It was taken for absent. The driver behind it is at fault, or not one that is known here.")
        .fix("see it for yourself", [format!("cat {}", oddity.path)])
}

fn state_name(state: Option<u32>) -> String {
    match state {
        None => "in a state that it does not tell".to_owned(),
        Some(1) => "down".to_owned(),
        Some(INIT) => "initializing".to_owned(),
        Some(ARMED) => "armed".to_owned(),
        Some(4) => "active".to_owned(),
        Some(5) => "active, deferred".to_owned(),
        Some(code) => format!("in state {code}"),
    }
}

fn physical_state_name(state: Option<u32>) -> String {
    match state {
        None => "not told".to_owned(),
        Some(1) => "asleep".to_owned(),
        Some(POLLING) => "polling".to_owned(),
        Some(DISABLED) => "disabled".to_owned(),
        Some(4) => "training".to_owned(),
        Some(5) => "up".to_owned(),
        Some(6) => "recovering from errors".to_owned(),
        Some(7) => "in a test".to_owned(),
        Some(code) => format!("in state {code}"),
    }
}

const INIT: u32 = 2;
const ARMED: u32 = 3;
const POLLING: u32 = 2;
const DISABLED: u32 = 3;

#[cfg(test)]
#[path = "devices_tests.rs"]
mod tests;
