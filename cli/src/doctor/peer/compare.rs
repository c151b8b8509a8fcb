//! What two machines say of themselves, beside each other.

use super::super::finding::{Finding, Section, Severity};
use super::reach::{met, reach};
use super::summary::{PeerPort, Summary};

/// What is different, and whether connections can come about.
pub fn compare(ours: &Summary, theirs: &Summary, host: &str) -> Vec<Finding> {
    let mut findings = programs(ours, theirs);
    findings.extend(same_machine(ours, theirs));
    findings.extend(ports(ours, theirs));
    findings.into_iter().map(|finding| about(finding, host)).collect()
}

/// Names the peer, where a finding names nothing.
fn about(finding: Finding, host: &str) -> Finding {
    match &finding.subject {
        None => finding.on(host),
        Some(subject) => {
            let both = format!("{host}, {subject}");
            finding.on(both)
        }
    }
}

/// Releases and machines.
fn programs(ours: &Summary, theirs: &Summary) -> Vec<Finding> {
    let of = Section::Peer;
    let mut findings = Vec::new();
    if ours.release != theirs.release {
        let message = format!("it has release {} of qpair, this machine {}", theirs.release, ours.release);
        findings.push(
            Finding::warning(of, "peer-release", message)
                .because("What processes say to each other may differ between releases.")
                .fix(format!("there, in a checkout of qpair {}", ours.release), [INSTALL])
                .fix(format!("here, in a checkout of qpair {}", theirs.release), [INSTALL]),
        );
    } else {
        findings.push(Finding::ok(of, "peer-release", format!("both have release {}", ours.release)));
    }
    if let (Some(here), Some(there)) = (ours.rdma_core, theirs.rdma_core)
        && here != there
    {
        let message = format!("it has rdma-core {there}, this machine {here}");
        let why = "They work together; what only the newer one can do is not used.";
        findings.push(Finding::note(of, "peer-rdma-core", message).because(why));
    }
    if ours.architecture != theirs.architecture {
        let message = format!("its processor is {}, this machine's {}", theirs.architecture, ours.architecture);
        findings.push(Finding::note(of, "peer-architecture", message));
    }
    findings
}

/// Whether soft0, which meets its peers in the network namespace, connects the two; `None` if they are not one machine.
fn soft_connects(ours: &Summary, theirs: &Summary) -> Option<bool> {
    ours.boot.as_ref().filter(|boot| theirs.boot.as_ref() == Some(boot))?;
    Some(ours.namespace.zip(theirs.namespace).is_none_or(|(ours, theirs)| ours == theirs))
}

/// That both are one machine, and what that means.
fn same_machine(ours: &Summary, theirs: &Summary) -> Option<Finding> {
    let of = Section::Peer;
    if soft_connects(ours, theirs)? {
        let finding = Finding::note(of, "same-machine", "it is this machine");
        return Some(finding.because("soft0 connects its processes."));
    }
    Some(
        Finding::warning(of, "same-machine", "it is this machine, in another network namespace")
            .because("soft0 connects processes of one network namespace only: these two it refuses to.")
            .fix("when the containers are started (docker, podman)", ["--network=host"])
            .fix("one of them in the namespace of the other", ["--network=container:OTHER"]),
    )
}

/// The ports of both, and how they reach each other.
fn ports(ours: &Summary, theirs: &Summary) -> Vec<Finding> {
    let of = Section::Peer;
    for (summary, whose, place) in [(ours, "this machine has", "here: see why"), (theirs, "it has", "there: see why")] {
        if summary.ports.is_empty() {
            let message = format!("{whose} no active RDMA port");
            let finding = if soft_connects(ours, theirs) == Some(true) {
                Finding::note(of, "peer-ports", message).because("There is soft0 to connect by, and nothing else.")
            } else {
                Finding::problem(of, "peer-ports", message).because("There is nothing to connect.")
            };
            return vec![finding.fix(place, ["qpair doctor"])];
        }
    }
    let mut findings = Vec::new();
    for port in &ours.ports {
        let alike: Vec<&PeerPort> = theirs.ports.iter().filter(|other| other.transport() == port.transport()).collect();
        findings.push(if alike.is_empty() { other_layers(port, theirs) } else { reach(port, &alike) });
        findings.extend(met(port, &alike).into_iter().flat_map(|other| mtus(port, other)));
    }
    findings
}

/// No port of the other side speaks what this one speaks.
fn other_layers(port: &PeerPort, theirs: &Summary) -> Finding {
    let mut layers: Vec<&str> = theirs.ports.iter().map(PeerPort::transport).collect();
    layers.sort_unstable();
    layers.dedup();
    let message = format!("this one is {}, its ports are {}", port.transport(), layers.join(", "));
    Finding::problem(Section::Peer, "peer-link-layer", message)
        .on(port.name())
        .because("These do not speak with each other.")
        .fix("use ports of one sort; see which there are", ["qpair devices"])
}

/// The MTUs of two ports that reach each other.
fn mtus(port: &PeerPort, other: &PeerPort) -> Vec<Finding> {
    let of = Section::Peer;
    let mut findings = Vec::new();
    let differ = |ours: Option<u32>, theirs: Option<u32>| ours.zip(theirs).filter(|(ours, theirs)| ours != theirs);
    if let Some((ours, theirs)) = differ(port.netdev_mtu, other.netdev_mtu) {
        let message = format!("its interface has MTU {theirs} B ({}), this machine's {ours} B", other.name());
        findings.push(
            Finding::warning(of, "peer-netdev-mtu", message)
                .on(port.name())
                .because("What is sent by the side with the larger one may be dropped.")
                .fix(
                    "as root, on both hosts: the same",
                    [format!("ip link set dev INTERFACE mtu {}", ours.max(theirs))],
                ),
        );
    }
    if let Some((ours, theirs)) = differ(port.active_mtu, other.active_mtu) {
        let message = format!("its active MTU is {theirs} B ({}), this machine's {ours} B", other.name());
        let why = format!("Connections use the lesser, {} B.", ours.min(theirs));
        findings.push(Finding::note(of, "peer-mtu", message).on(port.name()).because(why));
    }
    if findings.is_empty() && (port.netdev_mtu.is_some() || port.active_mtu.is_some()) {
        findings.push(Finding::new(Severity::Ok, of, "peer-mtu", "MTUs are the same").on(port.name()));
    }
    findings
}

/// There is no package of it to install by name.
const INSTALL: &str = "cargo install --path cli";

#[cfg(test)]
#[path = "compare_tests.rs"]
mod tests;
