//! Files of real machines, where there are some beside the repository: all load, are what they are
//! known to be, and come back from each format that is written.

use std::path::PathBuf;

use qpair_topology::{GpuId, Machine, NodeId};

fn files(kind: &str) -> Vec<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/topologies").join(kind);
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut files: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.sort();
    files
}

fn load(path: &PathBuf) -> Machine {
    Machine::load(path).unwrap_or_else(|error| panic!("{error}"))
}

/// GPUs and NICs of the files that are known.
const COUNTS: [(&str, usize, usize); 12] = [
    ("aws-c5n.18xl.xml", 0, 1),
    ("aws-g5.48xl.xml", 8, 1),
    ("aws-p3dn.24xl.xml", 8, 1),
    ("hwloc/aws-p4d.24xl.xml", 8, 4),
    ("aws-p5.48xl.xml", 8, 32),
    ("nccl/aws-p4d.24xl.xml", 8, 4),
    ("azure-ndv4.xml", 8, 8),
    ("amd-16p1h.xml", 16, 8),
    ("amd-4p1h.xml", 4, 1),
    ("amd-8p6l_4nic.xml", 8, 4),
    ("amd-8p_940.xml", 8, 8),
    ("amd-8p_rome_n4.xml", 8, 1),
];

#[test]
fn each_file_loads_without_a_warning_and_has_the_gpus_and_nics_that_it_names() {
    for path in files("nccl").iter().chain(&files("hwloc")) {
        let machine = load(path);
        assert_eq!(machine.warnings(), [], "{}", path.display());
        let text = path.display().to_string();
        if let Some((_, gpus, nics)) = COUNTS.iter().find(|(name, ..)| text.ends_with(name)) {
            assert_eq!((machine.gpus().len(), machine.nics().len()), (*gpus, *nics), "{text}");
        }
        for gpu in machine.gpu_ids() {
            assert!(machine.cpu_of(gpu).is_some(), "{text}: {gpu:?} hangs nowhere");
        }
    }
}

#[test]
fn each_file_is_the_same_machine_after_json() {
    for path in files("nccl").iter().chain(&files("hwloc")) {
        let machine = load(path);
        assert_eq!(Machine::from_json(&machine.to_json()).unwrap(), machine, "{}", path.display());
    }
}

#[test]
fn a_file_of_nccl_is_the_same_machine_once_it_is_written_and_read() {
    for path in files("nccl") {
        let machine = load(&path);
        let again = Machine::from_nccl_xml(&machine.to_nccl_xml()).unwrap();
        assert_eq!(again, machine, "{}", path.display());
    }
}

#[test]
fn from_hwloc_to_nccl_gpus_and_nics_keep_their_numa_nodes() {
    for path in files("hwloc") {
        let machine = load(&path);
        let again = Machine::from_nccl_xml(&machine.to_nccl_xml()).unwrap();
        let numa =
            |machine: &Machine, node: NodeId| machine.cpu_of(node).map(|cpu| machine.cpus()[usize::from(cpu.0)].numa);
        for gpu in machine.gpu_ids() {
            assert_eq!(numa(&again, gpu.into()), numa(&machine, gpu.into()), "{}", path.display());
        }
        let usable = machine.nics().iter().filter(|nic| nic.is_usable()).count();
        assert_eq!(again.nics().len(), usable, "{}", path.display());
    }
}

#[test]
fn links_of_amd_gpus_are_there() {
    for path in files("nccl").iter().filter(|path| path.display().to_string().contains("amd-")) {
        let machine = load(path);
        let links = machine.links_of(GpuId(0)).filter(|link| matches!(link.other(GpuId(0).into()), NodeId::Gpu(_)));
        assert!(links.count() >= 2, "{}", path.display());
    }
}
