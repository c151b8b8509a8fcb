//! What is broken becomes a warning, and the rest is found.

use super::*;

#[test]
fn a_device_that_goes_away_is_told_and_the_others_are_there() {
    let mut lines = Lines::two_nodes();
    lines.switch(0x10, "0", "mlx5_0");
    lines.set("bus/pci/devices", &[("0000:20:00.0", "-> ../../../devices/pci0000:20/0000:20:00.0")]);
    lines.set("bus/pci/devices", &[("0000:21:00.0", "-> 0000:21:00.0"), ("../x", "")]);
    let text = lines.0.replace("bus/pci/devices|../x=\n", "");
    let machine = Machine::discover(&Sysfs::from_manifest(&text).unwrap().software_device(false));
    assert_eq!((machine.gpus().len(), machine.nics().len()), (1, 1));
    let warnings = warnings(&machine);
    assert_eq!(warnings.len(), 2);
    assert!(warnings[0].starts_with("0000:20:00.0: its folder or class can not be read"), "{warnings:?}");
}

#[test]
fn attributes_that_are_nonsense_are_not_known() {
    let mut lines = Lines::two_nodes();
    let (gpu, nic) = lines.switch(0x10, "0", "mlx5_0");
    for path in [&gpu, &nic] {
        lines.set(
            path,
            &[("numa_node", "99999999999999999999"), ("max_link_speed", "fast"), ("current_link_speed", "")],
        );
        lines.set(path, &[("current_link_width", "-1"), ("max_link_width", "x16"), ("physfn", "-> /nowhere")]);
    }
    lines.nic(&nic, "mlx5_0", "very fast", "??");
    lines.set(&format!("{nic}/infiniband/mlx5_0/ports/first"), &[("rate", "1")]);
    let machine = lines.machine();
    assert_eq!((machine.gpus()[0].pcie, machine.gpus()[0].physfn), (PcieLink::UNKNOWN, None));
    assert_eq!((machine.nics()[0].ports[0].mbit, machine.nics()[0].ports[0].state), (None, PortState::Unknown));
    assert_eq!(warnings(&machine).len(), 1);
}

#[test]
fn a_numa_node_whose_list_is_broken_is_told() {
    let mut lines = Lines::two_nodes();
    lines.set("devices/system/node/node1", &[("cpulist", "4-")]);
    lines.set("devices/system/node/node2", &[("meminfo", "none")]);
    let machine = lines.machine();
    assert_eq!(machine.cpus().len(), 2);
    assert_eq!(warnings(&machine).len(), 2);
}

#[test]
fn a_switch_that_a_driver_shows_is_no_nic() {
    let mut lines = Lines::two_nodes();
    let (_, nic) = lines.switch(0x10, "0", "mlx5_0");
    lines.set(&format!("{nic}/infiniband/mlx5_0"), &[("node_type", "2: SWITCH")]);
    assert_eq!(lines.machine().nics(), []);
}

#[test]
fn more_bridges_than_a_tree_can_have_are_told() {
    let tree = |bridges: usize| {
        let mut path = "devices/pci0000:00".to_owned();
        for bus in 0..=bridges {
            path += &format!("/0000:{bus:02x}:00.0");
        }
        let mut lines = Lines::two_nodes();
        lines.pci(&path, "0x030200", "0x10de", "0");
        lines.machine()
    };
    assert_eq!((tree(limits::DEPTH).gpus().len(), tree(limits::DEPTH).warnings()), (1, &[][..]));
    let machine = tree(limits::DEPTH + 1);
    assert_eq!(machine.gpus().len(), 1);
    let told = warnings(&machine);
    assert!(told.len() == 1 && told[0].contains("it is below more than"), "{told:?}");
}

#[test]
fn more_numa_nodes_than_a_machine_can_have_are_told() {
    let mut lines = Lines::default();
    for node in 0..=limits::CPUS {
        lines.set(&format!("devices/system/node/node{node}"), &[("cpulist", &node.to_string())]);
    }
    let machine = lines.machine();
    assert_eq!(machine.cpus().len(), limits::CPUS);
    assert!(warnings(&machine)[0].contains("more parts than a machine can have"), "{machine:?}");
}

#[test]
fn of_more_nics_than_a_machine_can_have_the_physical_ones_stay() {
    let mut lines = Lines::two_nodes();
    let (_, card) = lines.switch(0x10, "0", "z_physical");
    for number in 0..limits::NICS {
        let at = format!("14:{:02x}.{}", number / 8 % 32, number % 8).replace("14:00.0", "15:00.0");
        let function = card.replace("14:00.0", &at);
        lines.pci(&function, "0x020700", "0x15b3", "0").set(&function, &[("physfn", "-> ../0000:14:00.0")]);
        lines.nic(&function, &format!("a_virtual{number}"), "200 Gb/sec (4X HDR)", "4: ACTIVE");
    }
    let sysfs = lines.sysfs();
    let machine = Machine::discover(&sysfs);
    assert_eq!((machine.nics().len(), machine.warnings().len()), (limits::NICS, 1));
    assert!(warnings(&machine)[0].contains("too many RDMA devices"), "{machine:?}");
    assert!(machine.nic_named("z_physical").is_some());
    let again = Machine::discover(&Sysfs::from_manifest(&sysfs.capture()).unwrap().software_device(false));
    assert_eq!(warnings(&again), warnings(&machine));
    assert!(again == machine);
}
