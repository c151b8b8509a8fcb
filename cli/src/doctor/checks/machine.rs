//! Settings of the machine that transfers feel: who may reach into whose memory, CPUs, NUMA, PCI.

use qpair::topology::Hint;

use super::super::finding::{Finding, Section};
use super::super::system::{CAP_SYS_PTRACE, System};

/// What slows transfers down, or forbids ways of making them.
pub fn check(system: &System) -> Vec<Finding> {
    let found = [container(system), ptrace(system), governor(system), numa_balancing(system), access_control(system)];
    found.into_iter().flatten().collect()
}

fn container(system: &System) -> Option<Finding> {
    let sort = system.machine.container.as_deref()?;
    Some(
        Finding::note(Section::Machine, "container", format!("this is a container ({sort})")).because(
            "Limits, devices and the network are what it was started with; what is fixed here is lost with it.",
        ),
    )
}

/// soft0 reaches memory that is not of its allocator with process_vm_writev(2).
fn ptrace(system: &System) -> Option<Finding> {
    let of = Section::Machine;
    let scope = system.machine.ptrace_scope?;
    let free = scope == 0 || scope < 3 && system.user.is_capable(CAP_SYS_PTRACE);
    if free {
        let message = format!("processes of one user reach each other's memory (ptrace_scope {scope})");
        return Some(Finding::ok(of, "ptrace", message));
    }
    let finding = Finding::note(
        of,
        "ptrace",
        format!("processes may not reach into each other's memory (kernel.yama.ptrace_scope is {scope})"),
    )
    .because(
        "On soft0, memory of a program's own is then copied twice, and datagrams from it are lost. Memory that \
         ProtectionDomain::alloc gave is not concerned, nor are other devices.",
    );
    Some(if scope >= 3 {
        finding.fix("it stays so until the machine starts again; then, in /etc/sysctl.d/90-ptrace.conf", [SETTING])
    } else {
        finding.fix("as root, where all processes of a user trust each other", [format!("sysctl {SETTING}")])
    })
}

fn governor(system: &System) -> Option<Finding> {
    let of = Section::Machine;
    let governor = system.machine.governor.as_deref()?;
    if governor == "performance" {
        return Some(Finding::ok(of, "governor", "CPUs keep their full frequency (governor performance)"));
    }
    Some(
        Finding::note(of, "governor", format!("the frequency of CPUs is governed by `{governor}`"))
            .because("Latencies vary while a CPU speeds up.")
            .fix("as root, for measurements", ["cpupower frequency-set -g performance"]),
    )
}

fn numa_balancing(system: &System) -> Option<Finding> {
    let moves = system.machine.numa_balancing? && system.machine.numa_nodes > 1;
    moves.then(|| {
        Finding::note(Section::Machine, "numa-balancing", "the kernel moves pages between NUMA nodes by itself")
            .because("It makes pages fault to see who uses them, which shows as latency.")
            .fix("as root, where ranks are bound to CPUs", ["sysctl kernel.numa_balancing=0"])
    })
}

/// With access control on, switches send traffic between a NIC and a GPU up to the root and down again.
fn access_control(system: &System) -> Option<Finding> {
    let bridges = system.hints.iter().find_map(|hint| match hint {
        Hint::AccessControl(bridges) => Some(bridges),
        _ => None,
    })?;
    let names: Vec<String> = bridges.iter().map(ToString::to_string).collect();
    Some(
        Finding::note(
            Section::Machine,
            "acs",
            format!("PCI bridges redirect traffic between devices to the root (ACS): {}", names.join(", ")),
        )
        .because("Transfers between NICs and GPUs take the long way, or fail in part.")
        .fix(
            "as root, unless virtual machines own devices; or switch ACS off in the firmware",
            names.iter().map(|name| format!("setpci -s {name} ECAP_ACS+6.w=0000")),
        ),
    )
}

const SETTING: &str = "kernel.yama.ptrace_scope=0";

#[cfg(test)]
mod tests {
    use super::super::super::finding::Severity;
    use super::super::super::fixture::Fixture;
    use super::super::{fixes, only};
    use super::*;

    #[test]
    fn restricted_access_to_processes_says_what_it_means() {
        let mut system = Fixture::rxe_host().system();
        system.machine.ptrace_scope = Some(1);
        let findings = check(&system);
        let finding = only(&findings, "ptrace");
        assert_eq!(finding.severity, Severity::Note);
        assert!(finding.why.as_deref().is_some_and(|why| why.contains("copied twice")), "{finding:?}");
        assert!(fixes(finding).contains("| sysctl kernel.yama.ptrace_scope=0"), "{finding:?}");
        system.user.capabilities = 1 << CAP_SYS_PTRACE;
        assert_eq!(only(&check(&system), "ptrace").severity, Severity::Ok);
        system.machine.ptrace_scope = Some(3);
        let findings = check(&system);
        assert!(fixes(only(&findings, "ptrace")).contains("sysctl.d/90-ptrace.conf"));
    }

    #[test]
    fn circumstances_are_noted() {
        let mut system = Fixture::rxe_host().system();
        system.machine.container = Some("podman".to_owned());
        system.machine.governor = Some("powersave".to_owned());
        system.machine.numa_balancing = Some(true);
        system.machine.numa_nodes = 2;
        let findings = check(&system);
        assert_eq!(only(&findings, "container").message, "this is a container (podman)");
        assert!(fixes(only(&findings, "governor")).contains("cpupower frequency-set -g performance"));
        assert!(fixes(only(&findings, "numa-balancing")).contains("sysctl kernel.numa_balancing=0"));
        system.machine.governor = Some("performance".to_owned());
        system.machine.numa_nodes = 1;
        let findings = check(&system);
        assert_eq!(only(&findings, "governor").severity, Severity::Ok);
        assert!(findings.iter().all(|finding| finding.check != "numa-balancing"));
    }

    #[test]
    fn what_slows_transfers_to_gpus_is_told_with_what_to_do_at_each_place() {
        let fixture = Fixture::rxe_host();
        assert_eq!(fixture.system().hints, [], "there is no GPU");
        // A GPU and a NIC below two ports of a switch, of which the first redirects.
        let switch = "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0";
        let ports = ["0000:02:00.0", "0000:02:01.0"].map(|port| format!("{switch}/{port}"));
        let (gpu, nic) = (format!("{}/0000:03:00.0", ports[0]), format!("{}/0000:04:00.0", ports[1]));
        let functions = [
            ("sys/devices/pci0000:00/0000:00:01.0", "0x060400", "0x8086"),
            (switch, "0x060400", "0x1000"),
            (&ports[0], "0x060400", "0x1000"),
            (&ports[1], "0x060400", "0x1000"),
            (&gpu, "0x030200", "0x10de"),
            (&nic, "0x020700", "0x15b3"),
        ];
        for (path, class, vendor) in functions {
            let address = path.rsplit_once('/').expect("a path").1;
            fixture.file(&format!("{path}/class"), class).file(&format!("{path}/vendor"), vendor);
            fixture.link(&format!("sys/bus/pci/devices/{address}"), &format!("../../../{}", &path["sys/".len()..]));
        }
        fixture.bytes(&format!("{}/config", ports[0]), &port_that_redirects());
        fixture.file(&format!("{nic}/infiniband/mlx5_0/node_guid"), "0000:0000:0000:0001\n");
        fixture.file(&format!("{nic}/infiniband/mlx5_0/ports/1/state"), "4: ACTIVE\n");
        fixture.link("sys/class/infiniband/mlx5_0", &format!("../../{}/infiniband/mlx5_0", &nic["sys/".len()..]));
        let mut system = fixture.system();
        let port = "0000:02:00.0".parse().expect("an address");
        assert_eq!(system.hints, [Hint::AccessControl(vec![port])]);
        let bridges = ["0000:02:00.0", "0000:02:01.0"].map(|address| address.parse().expect("an address"));
        system.hints = vec![Hint::AccessControl(bridges.to_vec())];
        let findings = check(&system);
        let fixes = fixes(only(&findings, "acs"));
        assert!(
            bridges.iter().all(|bridge| fixes.contains(&format!("setpci -s {bridge} ECAP_ACS+6.w=0000"))),
            "{fixes}"
        );
    }

    /// The configuration space of a switch's lower port, with access control on.
    fn port_that_redirects() -> Vec<u8> {
        let mut space = vec![0; 4096];
        space[6] = 0x10;
        space[0x34] = 0x40;
        space[0x40..0x44].copy_from_slice(&[0x10, 0, 0x62, 0]);
        space[0x100..0x104].copy_from_slice(&0x0001_000d_u32.to_le_bytes());
        space[0x106] = 0x1d;
        space
    }
}
