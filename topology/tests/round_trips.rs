//! Machines that people have come back from the formats that are written.

mod support;

use qpair_topology::{Machine, PathClass, Selection};
use support::machines;

#[test]
fn each_machine_is_the_same_after_json() {
    for machine in machines::all() {
        assert_eq!(Machine::from_json(&machine.to_json()).unwrap(), machine, "{:?}", machine.name());
    }
}

#[test]
fn for_nccl_each_machine_keeps_its_devices_and_how_near_they_are() {
    for machine in machines::all() {
        let written = machine.to_nccl_xml();
        let read = Machine::from_nccl_xml(&written).unwrap();
        let name = machine.name();
        assert_eq!(read.warnings(), [], "{name:?}");
        assert!(read.gpus().iter().map(|gpu| gpu.address).eq(machine.gpus().iter().map(|gpu| gpu.address)), "{name:?}");
        let usable =
            machine.nic_ids().filter(|&id| machine.nic(id).is_some_and(|nic| !nic.software && nic.is_usable()));
        for nic in usable {
            let same = read.nic_named(&machine.nic(nic).unwrap().name).unwrap();
            for gpu in machine.gpu_ids() {
                let class = |machine: &Machine, nic| machine.path(gpu, nic).map(|path| path.class);
                let (before, after) = (class(&machine, nic), class(&read, same));
                // The format has no host bridges and no sockets: what differs in them alone is not told apart.
                let coarse = |class| match class {
                    Some(PathClass::Phb | PathClass::Node | PathClass::Sys) => Some(PathClass::Phb),
                    class => class,
                };
                assert_eq!(coarse(after), coarse(before), "{name:?} {gpu:?} {nic:?}\n{written}");
            }
        }
        let again = Machine::from_nccl_xml(&read.to_nccl_xml()).unwrap();
        assert_eq!(again.description(), read.description(), "{name:?}");
    }
}

#[test]
fn what_is_chosen_is_the_same_after_json() {
    for machine in machines::all() {
        let read = Machine::from_json(&machine.to_json()).unwrap();
        let choice = |machine| format!("{:?}", Selection::of(machine).choose());
        assert_eq!(choice(&read), choice(&machine), "{:?}", machine.name());
    }
}
