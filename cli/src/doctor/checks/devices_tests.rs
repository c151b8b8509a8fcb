//! Each finding on devices and ports, with its message and fix.

use super::super::super::fixture::Fixture;
use super::super::super::system::{OpenedDevice, PciFunction, WorkerDevice};
use super::super::{fixes, only};
use super::*;

/// A host with interfaces and no RDMA device.
fn bare() -> System {
    let fixture = Fixture::rxe_host();
    fixture.remove("sys/class/infiniband").remove("sys/class/infiniband_verbs");
    fixture.netdev("docker0", 1500).remove("sys/class/net/docker0/device").system()
}

#[test]
fn without_a_device_soft_roce_is_offered_on_the_interface_there_is() {
    let mut system = bare();
    let findings = check(&system);
    let finding = only(&findings, "rdma-device");
    assert_eq!(finding.severity, Severity::Warning);
    assert_eq!(fixes(finding), "as root, for Soft-RoCE| rdma link add rxe0 type rxe netdev eth0\n");
    system.kernel.loaded.clear();
    system.kernel.has_rdma_command = false;
    let text = fixes(only(&check(&system), "rdma-device"));
    let lines: Vec<&str> = text.lines().map(|line| line.split("| ").nth(1).expect("a line")).collect();
    assert_eq!(lines, ["apt install iproute2", "modprobe rdma_rxe", "rdma link add rxe0 type rxe netdev eth0"]);
    assert!(text.contains("its modules are not to be seen here"), "{text}");
}

#[test]
fn a_kernel_without_soft_roce_is_told() {
    let mut system = bare();
    system.kernel.loaded.clear();
    system.kernel.shipped = Some([].into());
    assert!(fixes(only(&check(&system), "rdma-device")).contains("linux-modules-extra-6.12.0-test"));
    system.kernel.release = Some("6.1.0-18-cloud-amd64".to_owned());
    assert!(fixes(only(&check(&system), "rdma-device")).contains("apt install linux-image-amd64"));
    system.kernel.shipped = None;
    system.netdevs.clear();
    assert!(fixes(only(&check(&system), "rdma-device")).contains("no Ethernet interface for Soft-RoCE"));
}

#[test]
fn hardware_that_is_not_in_use_is_told() {
    let mut system = bare();
    let nic = PciFunction {
        address: "0000:c1:00.0".to_owned(),
        class: 0x020000,
        gpu: None,
        driver: Some("mlx5_core".to_owned()),
    };
    system.pci = vec![nic];
    let findings = check(&system);
    assert!(fixes(only(&findings, "rdma-device")).contains("modprobe mlx5_ib"));
    // One that is loaded is not what is missing.
    system.kernel.loaded.insert("mlx5_ib".to_owned());
    let text = fixes(only(&check(&system), "rdma-device"));
    assert!(text.contains("rdma system show") && !text.contains("modprobe mlx5_ib"), "{text}");
    system.pci = vec![PciFunction { address: "0000:c1:00.0".to_owned(), class: 0x020700, gpu: None, driver: None }];
    let findings = check(&system);
    let finding = only(&findings, "rdma-device");
    assert_eq!(finding.severity, Severity::Problem);
    assert!(fixes(finding).contains("lspci -k -s 0000:c1:00.0"), "{finding:?}");
}

#[test]
fn soft_roce_without_its_interface_is_made_anew_on_another() {
    let fixture = Fixture::rxe_host();
    let mut system = fixture.file("sys/class/infiniband/rxe0/parent", "eth7\n").system();
    let findings = check(&system);
    let finding = only(&findings, "rxe-netdev");
    assert_eq!((finding.severity, finding.subject.as_deref()), (Severity::Problem, Some("rxe0")));
    assert!(finding.message.contains("it is on eth7, which is no interface"), "{finding:?}");
    assert!(fixes(finding).ends_with("make it anew| rdma link add rxe0 type rxe netdev eth0\n"), "{finding:?}");
    system.netdevs.clear();
    assert!(fixes(only(&check(&system), "rxe-netdev")).contains("ip link"));
}

#[test]
fn a_device_that_does_not_open_says_why() {
    let mut system = Fixture::rxe_host().system();
    system.opened = vec![OpenedDevice { name: "rxe0".to_owned(), ports: Err("no memory".to_owned()) }];
    let findings = check(&system);
    let finding = only(&findings, "device-open");
    assert_eq!((finding.severity, finding.message.as_str()), (Severity::Problem, "it does not open: no memory"));
    assert!(fixes(finding).contains("RUST_LOG=debug"), "{finding:?}");
    // The file is the cause, and a finding of its own.
    system.files.iter_mut().for_each(|file| file.refused = Some(13));
    assert!(check(&system).iter().all(|finding| finding.check != "device-open"));
}

/// The finding on the state of the one port, after a change to a host.
fn state_after(change: impl FnOnce(&Fixture) -> &Fixture) -> Finding {
    let fixture = Fixture::rxe_host();
    fixture.port("rxe0", 1, "1: DOWN", "Ethernet");
    change(&fixture);
    only(&check(&fixture.system()), "port-state").clone()
}

#[test]
fn an_ethernet_port_that_is_down_names_the_interface() {
    let finding = state_after(|host| host.file("sys/class/net/eth0/flags", "0x1002\n"));
    assert_eq!((finding.severity, finding.subject.as_deref()), (Severity::Problem, Some("rxe0 port 1")));
    assert_eq!(finding.message, "down, physically disabled");
    assert_eq!(fixes(&finding), "as root| ip link set dev eth0 up\n");
    let finding = state_after(|host| host.file("sys/class/net/eth0/carrier", "0\n"));
    assert!(finding.why.as_deref().is_some_and(|why| why.contains("no link")), "{finding:?}");
    assert!(fixes(&finding).contains("ethtool eth0"), "{finding:?}");
    let finding = state_after(|host| host.remove("sys/class/net/eth0"));
    assert!(finding.why.as_deref().is_some_and(|why| why.contains("not in this network namespace")), "{finding:?}");
    assert!(fixes(&finding).contains("rdma link"));
    let finding = state_after(|host| host);
    assert!(finding.why.as_deref().is_some_and(|why| why.contains("up and has a link")), "{finding:?}");
}

#[test]
fn an_infiniband_port_that_is_down_says_what_is_missing() {
    let finding = state_after(|host| host.port("rxe0", 1, "2: INIT", "InfiniBand"));
    assert_eq!(finding.message, "initializing, physically disabled");
    assert!(fixes(&finding).contains("opensm"), "{finding:?}");
    let down = |physical: &'static str| {
        state_after(move |host| {
            let at = "sys/class/infiniband/rxe0/ports/1/phys_state";
            host.port("rxe0", 1, "1: DOWN", "InfiniBand").file(at, physical)
        })
    };
    assert!(fixes(&down("2: Polling\n")).contains("iblinkinfo"));
    assert!(fixes(&down("3: Disabled\n")).contains("ibportstate"));
    assert!(fixes(&down("9: ?\n")).contains("dmesg"));
    assert_eq!(down("9: ?\n").message, "down, physically in state 9");
}

#[test]
fn a_second_port_that_is_down_is_a_warning() {
    let fixture = Fixture::rxe_host();
    let findings = check(&fixture.port("rxe0", 2, "1: DOWN", "Ethernet").system());
    let finding = findings.iter().find(|finding| finding.subject.as_deref() == Some("rxe0 port 2")).expect("a finding");
    assert_eq!((finding.severity, finding.check), (Severity::Warning, "port-state"));
}

#[test]
fn a_port_that_is_down_is_a_problem_whatever_other_hardware_does() {
    let fixture = Fixture::rxe_host();
    fixture.hardware("mlx5_0", "mlx5_core", "0000:c1:00.0").port("mlx5_0", 1, "1: DOWN", "Ethernet");
    let of_port = |fixture: &Fixture, subject: &str| {
        let findings = check(&fixture.system());
        let finding = findings.into_iter().find(|finding| finding.subject.as_deref() == Some(subject));
        finding.expect("a finding on the port").severity
    };
    assert_eq!(of_port(&fixture, "rxe0 port 1"), Severity::Ok);
    assert_eq!(of_port(&fixture, "mlx5_0 port 1"), Severity::Problem);
    // Another card of the same sort.
    fixture.hardware("mlx5_2", "mlx5_core", "0000:c2:00.0").port("mlx5_2", 1, "4: ACTIVE", "Ethernet");
    assert_eq!(of_port(&fixture, "mlx5_0 port 1"), Severity::Problem);
    // The other port of the same card, which is a device of its own.
    fixture.hardware("mlx5_1", "mlx5_core", "0000:c1:00.1").port("mlx5_1", 1, "4: ACTIVE", "Ethernet");
    assert_eq!(of_port(&fixture, "mlx5_0 port 1"), Severity::Warning);
}

#[test]
fn a_narrow_slot_is_told() {
    let fixture = Fixture::rxe_host();
    fixture.hardware("mlx5_0", "mlx5_core", "0000:01:00.0");
    let at = "sys/devices/pci0000:00/0000:01:00.0";
    fixture.file(&format!("{at}/current_link_width"), "8\n").file(&format!("{at}/max_link_width"), "16\n");
    fixture.file(&format!("{at}/current_link_speed"), "16.0 GT/s PCIe\n");
    fixture.file(&format!("{at}/max_link_speed"), "16.0 GT/s PCIe\n");
    let mut system = fixture.system();
    let findings = check(&system);
    let finding = only(&findings, "pci-link");
    assert_eq!(finding.message, "its PCI link is x8 at 16.0 GT/s PCIe, and could be x16 at 16.0 GT/s PCIe");
    assert!(fixes(finding).contains("lspci -vv -s 0000:01:00.0"), "{finding:?}");
    system.devices[0].link.now = Some((16, "16.0 GT/s PCIe".to_owned()));
    assert_eq!(only(&check(&system), "pci-link").severity, Severity::Ok);
}

#[test]
fn a_virtual_function_is_in_no_narrow_slot() {
    let fixture = Fixture::rxe_host();
    fixture.hardware("mlx5_2", "mlx5_core", "0000:01:00.2");
    let at = "sys/devices/pci0000:00/0000:01:00.2";
    fixture.file(&format!("{at}/current_link_width"), "0\n").file(&format!("{at}/max_link_width"), "16\n");
    fixture.file(&format!("{at}/current_link_speed"), "Unknown\n");
    fixture.file(&format!("{at}/max_link_speed"), "32.0 GT/s PCIe\n");
    let findings = check(&fixture.system());
    assert!(findings.iter().all(|finding| finding.check != "pci-link"), "{findings:?}");
}

#[test]
fn nonsense_in_sysfs_is_a_finding() {
    let fixture = Fixture::rxe_host();
    let findings = check(&fixture.file("sys/class/infiniband/rxe0/ports/1/state", "99999999999: ?\n").system());
    let finding = only(&findings, "nonsense");
    assert_eq!(finding.subject.as_deref(), Some("/sys/class/infiniband/rxe0/ports/1/state"));
    assert!(fixes(finding).contains("cat /sys/class/infiniband/rxe0/ports/1/state"), "{finding:?}");
    assert_eq!(only(&findings, "port-state").message, "in a state that it does not tell, physically up");
}

#[test]
fn the_device_that_workers_take_is_told_with_the_reason() {
    let mut system = Fixture::rxe_host().system();
    let mut of = |worker: Result<(&str, &str, bool), &str>| {
        let device = |(name, reason, is_chosen): (&str, &str, bool)| WorkerDevice {
            name: name.to_owned(),
            reason: reason.to_owned(),
            is_chosen,
            closed: None,
        };
        system.worker = Some(worker.map(device).map_err(str::to_owned));
        only(&check(&system), "worker-device").clone()
    };
    let finding = of(Ok(("rxe0", "NUMA 0: rxe0 (PHB)", true)));
    assert_eq!((finding.severity, finding.why.as_deref()), (Severity::Ok, Some("NUMA 0: rxe0 (PHB)")));
    let finding = of(Ok(("soft0", "without rxe0, which libibverbs does not list", true)));
    assert_eq!(finding.severity, Severity::Note);
    assert!(finding.why.as_ref().is_some_and(|why| why.contains("without rxe0")), "{finding:?}");
    assert_eq!(of(Ok(("soft0", "as QPAIR_DEVICE says", false))).severity, Severity::Ok);
    let finding = of(Err("QPAIR_NICS is `mlx5_9`: no NIC is called that"));
    assert_eq!(finding.severity, Severity::Problem);
    assert!(finding.message.contains("mlx5_9") && fixes(&finding).contains("qpair topo"), "{finding:?}");
    let (name, reason) = ("nope0".to_owned(), "as QPAIR_DEVICE says".to_owned());
    let closed = Some("there is no such device".to_owned());
    system.worker = Some(Ok(WorkerDevice { name, reason, is_chosen: false, closed }));
    let finding = only(&check(&system), "worker-device").clone();
    assert_eq!(finding.severity, Severity::Problem);
    assert!(fixes(&finding).contains("export QPAIR_DEVICE=soft0"), "{finding:?}");
}
