//! Links of GPUs, and which GPUs and NICs a container has.

use super::*;

/// A driver that a test tells what to say.
struct Says(Vec<DriverGpu>);

impl GpuDriver for Says {
    fn gpus(&self) -> Option<Vec<DriverGpu>> {
        Some(self.0.clone())
    }
}

fn gpu(address: &str, index: u32, links: &[(&str, u32)]) -> DriverGpu {
    let links =
        links.iter().map(|(remote, generation)| DriverLink { remote: remote.parse().ok(), generation: *generation });
    DriverGpu { address: at(address), index: Some(index), name: Some("A GPU".to_owned()), links: links.collect() }
}

fn two_switches() -> Lines {
    let mut lines = Lines::two_nodes();
    lines.switch(0x10, "0", "mlx5_0");
    lines.switch(0x40, "1", "mlx5_1");
    lines
}

fn gpu_links(machine: &Machine, id: u16) -> Vec<(NodeId, LinkKind, Bandwidth)> {
    let node = NodeId::Gpu(GpuId(id));
    let links = machine.links_of(node).filter(|link| matches!(link.kind, LinkKind::GpuLink { .. }));
    links.map(|link| (link.other(node), link.kind, link.bandwidth)).collect()
}

#[test]
fn nvlinks_lead_to_gpus_that_are_there_and_to_switches_otherwise() {
    let mut lines = two_switches();
    lines.pci("devices/pci0000:00/0000:00:05.0", "0x068000", "0x10de", "0");
    let says = Says(vec![
        gpu("0000:13:00.0", 1, &[("0000:43:00.0", 3), ("0000:43:00.0", 3), ("0000:00:05.0", 3), ("none", 3)]),
        gpu("0000:43:00.0", 0, &[("0000:13:00.0", 3), ("0000:13:00.0", 3)]),
    ]);
    let machine = Machine::discover(&lines.sysfs().gpu_driver(says));
    let kind = LinkKind::GpuLink { kind: GpuLinkKind::NvLink, count: 2 };
    let two = Bandwidth::from_gb(42);
    assert_eq!(gpu_links(&machine, 0), [(NodeId::Gpu(GpuId(1)), kind, two), (NodeId::NvSwitch, kind, two)]);
    assert_eq!(machine.nv_switch().unwrap().addresses, [at("0000:00:05.0")]);
    assert_eq!((machine.gpus()[0].device, machine.gpus()[0].model.as_deref()), (Some(1), Some("A GPU")));
}

#[test]
fn a_switch_without_a_driver_that_tells_nvlinks_is_told() {
    let mut lines = two_switches();
    lines.pci("devices/pci0000:00/0000:00:05.0", "0x068000", "0x10de", "0");
    let told = warnings(&lines.machine());
    assert!(told.len() == 1 && told[0].contains("0000:00:05.0: NVSwitch is there, but NVML did not"), "{told:?}");
    let says = Says(vec![gpu("0000:13:00.0", 1, &[]), gpu("0000:43:00.0", 0, &[])]);
    assert_eq!(Machine::discover(&lines.sysfs().gpu_driver(says)).warnings(), []);
}

#[test]
fn nvlinks_to_what_has_none_are_told_and_to_gpus_of_others_are_not() {
    let mut lines = two_switches();
    lines.pci("devices/pci0000:00/0000:00:05.0", "0x020000", "0x15b3", "0");
    lines.pci("devices/pci0000:00/0000:00:06.0", "0x068001", "0x1014", "-1");
    // The driver gives one GPU of the two.
    let links = [("0000:43:00.0", 3), ("0000:00:05.0", 3), ("0000:00:05.0", 3), ("0000:00:06.0", 3)];
    let machine = Machine::discover(&lines.sysfs().gpu_driver(Says(vec![gpu("0000:13:00.0", 0, &links)])));
    assert_eq!(gpu_links(&machine, 0), []);
    let told = warnings(&machine);
    assert_eq!(told.len(), 3, "{told:?}");
    assert_eq!(
        &told[..2],
        [
            "0000:13:00.0: NVLinks to 0000:00:05.0, which is neither a GPU nor an NVSwitch: 2; they were left out",
            "0000:13:00.0: NVLinks to 0000:00:06.0, a processor of which the NUMA node is not known: 1; they were left out"
        ]
    );
    assert!(told[2].starts_with("0000:43:00.0: its driver"), "{told:?}");
}

#[test]
fn a_gpu_that_the_driver_does_not_give_is_passed_over_with_a_warning() {
    let machine = Machine::discover(&two_switches().sysfs().gpu_driver(Says(vec![gpu("0000:43:00.0", 0, &[])])));
    assert_eq!(machine.gpus().iter().map(|gpu| gpu.address).collect::<Vec<_>>(), [at("0000:43:00.0")]);
    assert!(warnings(&machine)[0].starts_with("0000:13:00.0: its driver"), "{machine:?}");
}

#[test]
fn a_driver_that_says_nothing_changes_nothing() {
    assert_eq!(Machine::discover(&two_switches().sysfs().gpu_driver(NoGpuDriver)), two_switches().machine());
    #[cfg(feature = "nvml")]
    assert_eq!(Lines::two_nodes().sysfs().gpu_driver(Nvml).capture(), Lines::two_nodes().sysfs().capture());
}

#[test]
fn the_gpu_of_a_superchip_is_joined_to_its_processor() {
    let mut lines = Lines::two_nodes();
    lines.pci("devices/pci0009:00/0009:00:00.0/0009:01:00.0", "0x030200", "0x10de", "1");
    lines.set("devices/pci0009:00/0009:00:00.0/0009:01:00.0", &[("device", "0x2342")]);
    let machine = lines.machine();
    let kind = LinkKind::GpuLink { kind: GpuLinkKind::C2c, count: 1 };
    assert_eq!(gpu_links(&machine, 0), [(machine.cpu_numa(1).unwrap().into(), kind, GpuLinkKind::c2c())]);
}

/// Two GPUs of AMD, each with nodes of its driver at these locations, all joined to all others by links
/// of this bandwidth.
fn amd(locations: [&[u64]; 2], bandwidth: &str) -> Machine {
    let mut lines = Lines::two_nodes();
    lines.pci("devices/pci0000:00/0000:00:01.0/0000:0c:00.0", "0x120000", "0x1002", "0");
    lines.pci("devices/pci0000:10/0000:10:01.0/0000:1c:00.0", "0x038000", "0x1002", "1");
    let nodes = "devices/virtual/kfd/kfd/topology/nodes";
    lines.set("class/kfd", &[("kfd", "-> /devices/virtual/kfd/kfd")]);
    lines.set(&format!("{nodes}/0"), &[("properties", "cpu_cores_count 8\\nlocation_id 0\\ndomain 0")]);
    let locations = locations.concat();
    for (node, location) in (1..).zip(&locations) {
        let properties = format!("simd_count 304\\nlocation_id {location}\\ndomain 0\\ngfx_target_version 90402");
        lines.set(&format!("{nodes}/{node}"), &[("properties", &properties)]);
        for to in (1..=locations.len()).filter(|&to| to != node) {
            let link = format!("type 11\\nnode_from {node}\\nnode_to {to}\\n{bandwidth}");
            lines.set(&format!("{nodes}/{node}/io_links/{to}"), &[("properties", &link)]);
        }
        lines.set(&format!("{nodes}/{node}/io_links/0"), &[("properties", "type 2\\nnode_to 0")]);
    }
    lines.machine()
}

const TWO_LINKS: &str = "min_bandwidth 64000\\nmax_bandwidth 128000";

#[test]
fn links_of_amd_gpus_are_those_of_their_kernel_driver() {
    let machine = amd([&[0x0c00], &[0x1c00]], TWO_LINKS);
    let kind = LinkKind::GpuLink { kind: GpuLinkKind::Xgmi, count: 2 };
    assert_eq!(gpu_links(&machine, 0), [(NodeId::Gpu(GpuId(1)), kind, Bandwidth::from_gb(96))]);
    assert_eq!((machine.gpus()[1].vendor, machine.warnings()), (GpuVendor::Amd, &[][..]));
}

#[test]
fn a_bandwidth_that_the_driver_of_amd_does_not_know_is_one_link() {
    let machine = amd([&[0x0c00], &[0x1c00]], "min_bandwidth 0\\nmax_bandwidth 128000");
    let kind = LinkKind::GpuLink { kind: GpuLinkKind::Xgmi, count: 1 };
    assert_eq!(gpu_links(&machine, 0), [(NodeId::Gpu(GpuId(1)), kind, Bandwidth::from_gb(48))]);
}

#[test]
fn partitions_of_an_amd_gpu_are_the_gpu_and_have_its_links() {
    // The number of the partition in the place of the function, or above the address.
    let above = 1 << 28;
    let by_function: [&[u64]; 2] = [&[0x0c00, 0x0c01, 0x0c02], &[0x1c00, 0x1c01]];
    let by_number: [&[u64]; 2] = [&[0x0c00, above | 0x0c00], &[0x1c00]];
    for locations in [by_function, by_number] {
        let machine = amd(locations, TWO_LINKS);
        let kind = LinkKind::GpuLink { kind: GpuLinkKind::Xgmi, count: 2 };
        assert_eq!(gpu_links(&machine, 0), [(NodeId::Gpu(GpuId(1)), kind, Bandwidth::from_gb(96))]);
        let told = warnings(&machine);
        assert!(told.len() == 1 && told[0].contains("2 are divided into"), "{told:?}");
        assert_eq!(machine.gpu_at(at("0000:0c:00.2")), Some(GpuId(0)));
        assert_eq!(machine.gpu_at(at("0000:0d:00.2")), None);
    }
}

#[test]
fn only_devices_that_can_be_opened_are_there() {
    let mut lines = two_switches();
    lines.set("class/infiniband_verbs/uverbs0", &[("ibdev", "mlx5_0")]);
    lines.set("class/infiniband_verbs/uverbs1", &[("ibdev", "mlx5_1")]);
    let amd = "devices/pci0000:70/0000:70:01.0/0000:71:00.0";
    lines.pci(amd, "0x120000", "0x1002", "1").set(&format!("{amd}/drm/renderD128"), &[("dev", "226:128")]);
    assert_eq!((lines.machine().gpus().len(), lines.machine().nics().len()), (3, 2));
    let sysfs = lines.sysfs().openable_if(|name| matches!(name, "infiniband/uverbs1" | "nvidiactl"));
    let machine = Machine::discover(&sysfs);
    assert_eq!(machine.nics().iter().map(|nic| nic.name.as_str()).collect::<Vec<_>>(), ["mlx5_1"]);
    assert_eq!(machine.gpus().len(), 2);
    let warnings = warnings(&machine);
    assert!(
        warnings.iter().any(|w| w.starts_with("mlx5_0: /dev/infiniband/uverbs0 can not be opened")),
        "{warnings:?}"
    );
    assert!(warnings.iter().any(|w| w.starts_with("0000:71:00.0: /dev/dri/renderD128")), "{warnings:?}");
    assert_eq!(Machine::discover(&Sysfs::from_manifest(&sysfs.capture()).unwrap().software_device(false)), machine);
}

#[test]
fn where_devices_are_checked_one_without_a_device_file_is_passed_over() {
    let machine = Machine::discover(&two_switches().sysfs().openable_if(|_| true));
    assert_eq!(machine.nics(), []);
    assert!(warnings(&machine)[0].contains("load ib_uverbs"), "{machine:?}");
}

#[test]
fn a_container_without_devices_of_gpus_has_no_gpus() {
    let lines = two_switches();
    let sysfs = || lines.sysfs().openable_if(|name| name != "nvidiactl");
    // Whether the driver is not there, or gives none.
    for sysfs in [sysfs(), sysfs().gpu_driver(Says(Vec::new())), lines.sysfs().gpu_driver(Says(Vec::new()))] {
        let machine = Machine::discover(&sysfs);
        assert_eq!((machine.gpus(), machine.warnings().len() >= 2), (&[][..], true), "{machine:?}");
        assert_eq!(Machine::discover(&Sysfs::from_manifest(&sysfs.capture()).unwrap().software_device(false)), machine);
    }
    let problem = warnings(&Machine::discover(&sysfs()));
    assert!(problem.iter().any(|w| w.starts_with("0000:13:00.0: /dev/nvidiactl can not be opened")), "{problem:?}");
    // What the driver lists it can be asked for in another way.
    let listed = sysfs().gpu_driver(Says(vec![gpu("0000:13:00.0", 0, &[])]));
    assert_eq!(Machine::discover(&listed).gpus().len(), 1);
}

#[test]
fn a_card_of_amd_without_a_render_node_is_passed_over_where_devices_are_checked() {
    let mut lines = Lines::two_nodes();
    lines.pci("devices/pci0000:70/0000:70:01.0/0000:71:00.0", "0x120000", "0x1002", "1");
    assert_eq!(lines.machine().gpus().len(), 1);
    let machine = Machine::discover(&lines.sysfs().openable_if(|_| true));
    assert_eq!(machine.gpus(), []);
    assert!(warnings(&machine)[0].starts_with("0000:71:00.0: it has no render node"), "{machine:?}");
}

#[test]
fn virtual_functions_of_a_gpu_count_only_where_it_does_not() {
    let mut lines = Lines::two_nodes();
    let (card, _) = lines.switch(0x10, "0", "mlx5_0");
    for function in 1..=4 {
        let part = card.replace("13:00.0", &format!("13:00.{function}"));
        lines.pci(&part, "0x030200", "0x10de", "0").set(&part, &[("physfn", "-> ../0000:13:00.0")]);
    }
    let machine = lines.machine();
    assert_eq!(machine.gpus().iter().map(|gpu| gpu.address).collect::<Vec<_>>(), [at("0000:13:00.0")]);
    let expected =
        "virtual functions of GPUs: 4 of them were left out, since the GPUs that they are parts of are there";
    assert_eq!(warnings(&machine), [expected]);
    // The driver gives this process one of the parts and not the whole.
    let part = Machine::discover(&lines.sysfs().gpu_driver(Says(vec![gpu("0000:13:00.2", 0, &[])])));
    assert_eq!(part.gpus().iter().map(|gpu| gpu.address).collect::<Vec<_>>(), [at("0000:13:00.2")]);
    assert_eq!(part.gpus()[0].physfn, Some(at("0000:13:00.0")));
}

#[test]
fn graphics_of_amd_within_a_processor_are_no_gpu() {
    let machine = |class: &str, memory: Option<u64>| {
        let mut lines = Lines::two_nodes();
        let path = "devices/pci0000:00/0000:00:08.1/0000:0c:00.0";
        lines.pci(path, class, "0x1002", "0");
        if let Some(bytes) = memory {
            lines.set(path, &[("mem_info_vram_total", &bytes.to_string())]);
        }
        lines.machine()
    };
    let small = machine("0x030000", Some(512 << 20));
    assert_eq!((small.gpus().len(), small.bridges().len()), (0, 0));
    assert!(warnings(&small)[0].starts_with("0000:0c:00.0: it has little memory"), "{small:?}");
    for (class, memory) in [("0x030000", Some(16 << 30)), ("0x030000", None), ("0x120000", Some(512 << 20))] {
        assert_eq!(machine(class, memory).gpus().len(), 1, "{class} {memory:?}");
    }
}
