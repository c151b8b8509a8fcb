//! Manifests: what is captured is the same machine once it is read.

use super::*;

fn again(sysfs: &Sysfs) -> Machine {
    Machine::discover(&Sysfs::from_manifest(&sysfs.capture()).unwrap())
}

#[test]
fn this_machine_is_the_same_once_it_is_captured() {
    let this = Sysfs::this_machine();
    assert_eq!(again(&this), Machine::discover(&this));
}

#[test]
fn a_capture_is_the_same_machine_and_captures_as_itself() {
    let mut lines = Lines::two_nodes();
    let (gpu, nic) = lines.switch(0x10, "-1", "mlx5_0");
    lines.set(&gpu, &[("iommu_group", "-> /kernel/iommu_groups/7")]);
    lines.set("kernel/iommu_groups/7", &[("type", "DMA")]);
    lines.set(&nic, &[("local_cpulist", "4-7")]);
    lines.set("bus/pci/devices", &[("0000:ff:00.0", "-> /nowhere"), ("nonsense", "-> /nowhere")]);
    lines.set("class/infiniband", &[("mlx5_9", "-> /nowhere")]);
    let sysfs = Sysfs::from_manifest(&lines.0).unwrap();
    let machine = Machine::discover(&sysfs);
    assert_eq!(machine.warnings().len(), 3);
    assert_eq!(again(&sysfs), machine);
    let captured = sysfs.capture();
    assert_eq!(Sysfs::from_manifest(&captured).unwrap().capture(), captured);
}

#[test]
fn what_a_driver_says_is_captured() {
    struct Says;
    impl GpuDriver for Says {
        fn gpus(&self) -> Option<Vec<DriverGpu>> {
            let links = vec![DriverLink { remote: None, generation: 4 }; 18];
            let name = Some("Ä |=\\ GPU".to_owned());
            Some(vec![DriverGpu { address: at("0000:13:00.0"), index: Some(3), name, links }])
        }
    }
    let mut lines = Lines::two_nodes();
    lines.switch(0x10, "0", "mlx5_0");
    let sysfs = lines.sysfs().gpu_driver(Says).software_device(true);
    let machine = Machine::discover(&sysfs);
    assert_eq!(machine.gpus()[0].model.as_deref(), Some("Ä |=\\ GPU"));
    assert_eq!(again(&sysfs), machine);
}

#[test]
fn a_capture_has_no_more_than_was_asked_for() {
    let mut lines = Lines::two_nodes();
    let (gpu, _) = lines.switch(0x10, "0", "mlx5_0");
    lines.set(&gpu, &[("serial_number", "secret"), ("vbios_version", "secret"), ("unique_id", "secret")]);
    lines.set("class/net/eth0", &[("address", "secret")]).set("class/dmi/id", &[("product_serial", "secret")]);
    let captured = lines.sysfs().capture();
    assert!(!captured.contains("secret") && !captured.contains(":feature"), "{captured}");
}

#[test]
fn what_is_no_manifest_is_told_with_its_line() {
    let error = |text: &str| Sysfs::from_manifest(text).unwrap_err();
    assert!(matches!(error("a|b=c\n\nno manifest"), ManifestError::Line { line: 3, .. }));
    assert!(matches!(error("a/../../etc|b=c"), ManifestError::Path { line: 1, .. }));
    assert!(matches!(error(&format!("{}|b=c", "a/".repeat(1000))), ManifestError::Path { line: 1, .. }));
    assert!(matches!(error("a=b/x|c=d"), ManifestError::Path { line: 1, .. }));
    assert!(matches!(error("# qpair machine manifest 2\n"), ManifestError::Version { .. }));
    assert!(matches!(error(&" ".repeat(sysfs_limits::MANIFEST + 1)), ManifestError::TooLong { .. }));
}

#[test]
fn lines_may_be_written_as_people_write_them() {
    let text = "\n# a comment\n/sys/devices/system/node/node0/|cpulist=0-3\r\n";
    assert_eq!(Machine::discover(&Sysfs::from_manifest(text).unwrap()).cpus()[0].cpus.len(), 4);
}
