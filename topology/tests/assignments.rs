//! The NICs of machines that people have, as the guide states and argues them, and how others fare.

mod support;

use qpair_topology::{
    Bandwidth, Cpu, CpuId, GpuId, LinkLayer, Machine, Nic, NicId, Parent, PathClass, PcieGeneration, PcieLink, Port,
    Selection,
};
use support::{machines, model, peers};

/// The assignment of GPUs: for each its NICs, and the class of the farthest.
fn assignment(machine: &Machine) -> Vec<(Vec<u16>, PathClass)> {
    let choice = Selection::of(machine).choose().expect("nothing was asked for");
    let of = |gpu: GpuId| {
        let rails = &choice.of(gpu).expect("all take part").rails;
        let class = rails.iter().map(|rail| rail.path.class).max().unwrap_or(PathClass::Loc);
        (rails.iter().map(|rail| rail.nic.0).collect(), class)
    };
    machine.gpu_ids().map(of).collect()
}

/// One NIC each, all of one class.
fn each(nics: &[u16], class: PathClass) -> Vec<(Vec<u16>, PathClass)> {
    nics.iter().map(|&nic| (vec![nic], class)).collect()
}

use PathClass::{Phb, Pix, Pxn, Sys};

#[test]
fn dgx1_v100_has_two_gpus_on_the_nic_of_their_switch() {
    assert_eq!(assignment(&machines::dgx1_v100()), each(&[0, 0, 1, 1, 2, 2, 3, 3], Pix));
}

#[test]
fn dgx_a100_and_h100_and_mi300x_and_azure_nd_have_a_nic_for_each_gpu() {
    for machine in [machines::dgx_a100(), machines::dgx_h100(), machines::mi300x(), machines::azure_nd()] {
        assert_eq!(assignment(&machine), each(&[0, 1, 2, 3, 4, 5, 6, 7], Pix), "{:?}", machine.name());
    }
}

#[test]
fn p4d_has_a_nic_for_two_gpus() {
    assert_eq!(assignment(&machines::p4d()), each(&[0, 0, 1, 1, 2, 2, 3, 3], Pix));
}

#[test]
fn p5_has_four_nics_for_each_gpu() {
    let four = |gpu: u16| ((gpu * 4..gpu * 4 + 4).collect(), Pix);
    assert_eq!(assignment(&machines::p5()), (0..8).map(four).collect::<Vec<_>>());
}

#[test]
fn hgx_with_two_gpus_per_nic_leaves_the_storage_nic_alone() {
    assert_eq!(assignment(&machines::hgx_two_per_nic()), each(&[1, 1, 2, 2, 3, 3, 4, 4], Pix));
}

#[test]
fn two_sockets_share_the_only_nic_near_and_far() {
    let expected = [each(&[0, 0], Phb), each(&[0, 0], Sys)].concat();
    assert_eq!(assignment(&machines::two_sockets()), expected);
}

#[test]
fn a_vm_that_shows_nothing_gives_each_gpu_the_nic_of_its_number() {
    assert_eq!(assignment(&machines::vm_numa_unknown()), each(&[0, 1, 2, 3], Phb));
}

#[test]
fn physical_functions_are_taken_before_their_virtual_ones() {
    let machine = machines::virtual_functions();
    assert_eq!(assignment(&machine), each(&[0, 0, 3, 3], Pix));
    let text = Selection::of(&machine).choose().unwrap().explain().to_string();
    assert!(text.contains(&format!("a virtual function of {}, which is here too", machine.nics()[0].name)), "{text}");
}

#[test]
fn virtual_functions_alone_share_what_the_physical_one_has() {
    let mut parts = machines::virtual_functions().description().clone();
    parts.nics.retain(|nic| nic.physfn.is_some());
    let machine = parts.build();
    let choice = Selection::of(&machine).choose().unwrap();
    assert_eq!(machine.nics().len(), 4);
    assert_eq!(choice.total(), Bandwidth::from_gb(48), "{}", choice.explain());
}

#[test]
fn a_hopper_uses_the_nic_of_its_grace_and_reads_its_memory_directly() {
    let machine = machines::grace_hopper();
    assert_eq!(assignment(&machine), each(&[0, 1, 2, 3], Phb));
    let choice = Selection::of(&machine).choose().unwrap();
    assert!(choice.of(GpuId(2)).unwrap().rails[0].gpu_direct);
}

#[test]
fn a_gpu_without_nic_has_the_software_device() {
    assert_eq!(assignment(&machines::one_gpu()), each(&[0], Phb));
    let mut parts = machines::one_gpu().description().clone();
    parts.nics.clear();
    let machine = parts.build();
    let choice = Selection::of(&machine).choose().unwrap();
    assert_eq!(choice.nics(GpuId(0)), []);
    assert!(choice.explain().to_string().contains("GPU 0: no NIC"), "{}", choice.explain());
}

#[test]
fn without_gpus_each_numa_node_has_its_nic() {
    let machine = machines::nics_only();
    let choice = Selection::of(&machine).choose().unwrap();
    assert_eq!(choice.nics(CpuId(0)), [NicId(0)]);
    assert_eq!(choice.nics(CpuId(1)), [NicId(1)]);
}

#[test]
fn a_near_nic_is_taken_before_a_faster_one_that_costs_gpu_direct() {
    assert_eq!(assignment(&machines::far_and_fast()), each(&[0], Pix));
}

#[test]
fn a_neighbours_nic_is_taken_where_the_own_way_has_no_gpu_direct() {
    let machine = machines::neighbours();
    let choice = Selection::of(&machine).choose().unwrap();
    assert_eq!(assignment(&machine), [(vec![0], Pix), (vec![0], Pxn), (vec![1], Pix), (vec![1], Pxn)]);
    assert_eq!(choice.of(GpuId(1)).unwrap().rails[0].via, Some(GpuId(0)));
}

#[test]
fn gpus_of_a_group_do_not_share_a_nic_while_another_is_idle() {
    let machine = machines::four_on_two();
    for pair in [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]] {
        let choice = Selection::of(&machine).gpus(pair.map(GpuId)).choose().unwrap();
        assert_ne!(choice.nics(GpuId(pair[0])), choice.nics(GpuId(pair[1])), "{pair:?}\n{}", choice.explain());
    }
}

#[test]
fn a_gpu_of_a_group_keeps_its_rail() {
    for machine in [machines::dgx_a100(), machines::azure_nd(), machines::dgx_h100(), machines::vm_numa_unknown()] {
        for gpu in machine.gpu_ids() {
            let choice = Selection::of(&machine).gpus([gpu]).choose().unwrap();
            assert!(choice.nics(gpu).contains(&NicId(gpu.0)), "{:?}\n{}", machine.name(), choice.explain());
        }
    }
}

#[test]
fn no_method_of_others_has_more_bandwidth() {
    for machine in machines::all() {
        let gpus: Vec<GpuId> = machine.gpu_ids().collect();
        let ours = Selection::of(&machine).choose().unwrap().total().bytes();
        for (name, method) in peers::ALL {
            let theirs: u64 = model::bandwidths(&machine, &gpus, &method(&machine, &gpus)).iter().sum();
            // The near NIC has GPUDirect: what its way costs the host is not in the model.
            let gpu_direct = machine.name() == Some("far 400G, near 100G") && name == "NCCL";
            assert!(ours >= theirs || gpu_direct, "{:?}: {name} {theirs}, ours {ours}", machine.name());
        }
    }
}

/// What a method gives the GPUs of a group, and what we do.
fn compare(machine: &Machine, gpus: &[u16], method: peers::Method) -> (u64, u64) {
    let gpus: Vec<GpuId> = gpus.iter().copied().map(GpuId).collect();
    let theirs = model::bandwidths(machine, &gpus, &method(machine, &gpus)).iter().sum();
    (theirs, Selection::of(machine).gpus(gpus).choose().unwrap().total().bytes())
}

#[test]
fn turns_by_number_leave_a_nic_idle_and_we_do_not() {
    let (theirs, ours) = compare(&machines::four_on_two(), &[0, 2], peers::nccl);
    assert!(ours > theirs, "{ours} {theirs}");
}

#[test]
fn the_fastest_nic_loses_gpu_direct_and_ours_does_not() {
    let machine = machines::far_and_fast();
    let theirs = peers::nccl(&machine, &[GpuId(0)])[0].unwrap();
    assert_eq!(machine.path(GpuId(0), theirs).unwrap().class, Sys);
    let choice = Selection::of(&machine).choose().unwrap();
    assert!(choice.of(GpuId(0)).unwrap().rails.iter().all(|rail| rail.gpu_direct));
}

#[test]
fn the_nearest_first_puts_eight_gpus_on_four_nics_and_we_do_not() {
    let machine = machines::dgx_a100();
    let gpus: Vec<GpuId> = machine.gpu_ids().collect();
    let mut nics = peers::ucx(&machine, &gpus);
    nics.sort();
    nics.dedup();
    assert_eq!(nics.len(), 4);
    let (theirs, ours) = compare(&machine, &[0, 1, 2, 3, 4, 5, 6, 7], peers::ucx);
    assert_eq!(ours, 2 * theirs);
}

#[test]
fn chance_puts_gpus_on_one_nic_and_we_do_not() {
    let (theirs, ours) = compare(&machines::dgx_a100(), &[0, 1, 2, 3, 4, 5, 6, 7], peers::mooncake);
    assert!(ours > theirs, "{ours} {theirs}");
}

#[test]
fn groups_drop_the_second_gpu_of_a_nic_and_we_do_not() {
    let machine = machines::hgx_two_per_nic();
    let gpus: Vec<GpuId> = machine.gpu_ids().collect();
    let theirs = model::bandwidths(&machine, &gpus, &peers::fabric_lib(&machine, &gpus));
    assert_eq!(theirs.iter().filter(|&&bandwidth| bandwidth == 0).count(), 4);
    assert!(Selection::of(&machine).choose().unwrap().worst() >= Bandwidth::from_gb(24));
}

#[test]
fn the_rates_told_are_those_of_the_model() {
    for machine in machines::all() {
        let choice = Selection::of(&machine).cpus([]).choose().unwrap();
        let mut numbers = model::Numbers::default();
        let rails: Vec<_> = choice.assignments().iter().flat_map(|a| a.rails.iter().map(move |r| (a, r))).collect();
        let over = |(a, rail): &(&qpair_topology::Assignment, &qpair_topology::Rail)| {
            let qpair_topology::Consumer::Gpu(gpu) = a.consumer else { panic!("no NUMA node took part") };
            numbers.of(&model::way(&machine, gpu, rail.via, rail.nic).expect("it was chosen"))
        };
        let over: Vec<Vec<usize>> = rails.iter().map(over).collect();
        let flows: Vec<&[usize]> = over.iter().map(Vec::as_slice).collect();
        let told: Vec<u64> = rails.iter().map(|(_, rail)| rail.bandwidth.bytes()).collect();
        assert_eq!(told, model::rates(&flows, &numbers.capacity), "{:?}", machine.name());
    }
}

/// The table of the guide has a line for each machine; each starts with its name and ends with what
/// is chosen for it.
#[test]
fn the_guide_states_what_is_chosen() {
    let guide = include_str!("../src/guide/machines.md");
    for machine in machines::all() {
        let name = machine.name().unwrap();
        let line = guide.lines().find(|line| line.starts_with(&format!("| {name} |")));
        let line = line.unwrap_or_else(|| panic!("the guide has no line of {name}"));
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let choice = Selection::of(&machine).choose().unwrap();
        assert_eq!(cells[1], summary(&machine), "{name}");
        if !machine.gpus().is_empty() {
            let told = format!("{} / {}", choice.worst(), choice.total());
            assert_eq!(cells[2], told, "{name}");
        }
    }
}

/// `0→0 1→0 2→1`, GPU to NICs, with the class where it changes.
fn summary(machine: &Machine) -> String {
    if machine.gpus().is_empty() {
        let choice = Selection::of(machine).choose().unwrap();
        let nics = |cpu| choice.nics(cpu).iter().map(|nic| nic.0.to_string()).collect::<Vec<_>>().join("+");
        return machine.cpu_ids().map(|cpu| format!("NUMA {}→{}", cpu.0, nics(cpu))).collect::<Vec<_>>().join(" ");
    }
    let mut text = Vec::new();
    let mut last = None;
    for (gpu, (nics, class)) in assignment(machine).into_iter().enumerate() {
        let nics: Vec<String> = nics.iter().map(ToString::to_string).collect();
        let shown = if last == Some(class) { String::new() } else { format!("{class} ") };
        text.push(format!("{shown}{gpu}→{}", nics.join("+")));
        last = Some(class);
    }
    text.join(" ")
}

#[test]
#[ignore = "needs --nocapture and a reader: prints the cells of the guide's table"]
fn print_the_guide() {
    for machine in machines::all() {
        let choice = Selection::of(&machine).choose().unwrap();
        let told = format!("{} / {}", choice.worst(), choice.total());
        println!("| {} | {} | {told} |", machine.name().unwrap(), summary(&machine));
    }
}

#[test]
fn rates_that_are_not_known_are_not_told_as_if_they_were() {
    let reason = |rate: Option<u64>, pcie: PcieLink, bounded: bool| {
        let mut machine = Machine::builder();
        machine.cpu(Cpu::numa(0));
        let ports = vec![Port { mbit: rate, ..Port::active(1, 1, LinkLayer::Ethernet) }];
        let address = "0000:01:00.0".parse().unwrap();
        machine.nic(Nic { ports, pcie, ..Nic::at("efa0", address, Parent::HostBridge { domain: 0, bus: 0 }) });
        let machine = machine.build();
        let choice = Selection::of(&machine).choose().unwrap();
        assert_eq!(choice.assignments()[0].rails[0].is_rate_bounded(&machine), bounded);
        choice.assignments()[0].reason.clone()
    };
    let known = PcieLink::new(PcieGeneration::Gen3, 16);
    assert_eq!(reason(Some(80_000), known, true), "efa0 (PHB), 10 GB/s: there is no other");
    assert_eq!(reason(None, known, true), "efa0 (PHB), at most 12 GB/s: there is no other");
    assert_eq!(reason(Some(80_000), PcieLink::UNKNOWN, true), "efa0 (PHB), at most 10 GB/s: there is no other");
    assert_eq!(reason(None, PcieLink::UNKNOWN, false), "efa0 (PHB), at a rate that is not known: there is no other");
}

#[test]
fn a_nic_of_which_nothing_tells_the_rate_is_for_those_that_have_no_other() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus/json/nvlink.json");
    let machine = Machine::load(file).unwrap();
    let choice = Selection::of(&machine).choose().unwrap();
    // One of its NICs, usnic&0, has no PCI device and no rate of its port.
    let unknown = machine.nics().iter().position(|nic| nic.name == "usnic&0").unwrap();
    let assignments = choice.assignments();
    assert!(
        assignments.iter().all(|a| a.rails.iter().all(|rail| usize::from(rail.nic.0) != unknown)),
        "{assignments:?}"
    );
    let text = choice.explain().to_string();
    assert!(!text.contains("unlimited") && !text.contains("10000 GB/s"), "{text}");
    let line = "  usnic&0: PHB, at a rate that is not known: its rate is not known, and that of another is\n";
    assert!(text.contains(line), "{text}");

    let mut parts = machine.description().clone();
    parts.nics.retain(|nic| nic.name == "usnic&0");
    let machine = parts.build();
    let choice = Selection::of(&machine).choose().unwrap();
    let reason = &choice.of(CpuId(0)).unwrap().reason;
    assert!(reason.starts_with("usnic&0 (PHB, shared with NUMA 1), at a rate that is not known"), "{reason}");
}

#[test]
fn a_nic_that_many_share_names_some_of_them() {
    let mut machine = Machine::builder();
    for numa in 0..8 {
        machine.cpu(Cpu::numa(numa));
    }
    let ports = vec![Port::active(1, 80_000, LinkLayer::Ethernet)];
    machine.nic(Nic { ports, ..Nic::at("mlx5_0", "0000:01:00.0".parse().unwrap(), Parent::Numa(0)) });
    let machine = machine.build();
    let choice = Selection::of(&machine).choose().unwrap();
    let reason = &choice.assignments()[0].reason;
    assert!(reason.contains("shared with NUMA 1, NUMA 2, NUMA 3 and 4 more)"), "{reason}");
}
