//! NUMA nodes and their processors.

use super::tree::Tree;
use crate::{Cpu, CpuSet, MachineBuilder, Warning, limits};

const NODES: &str = "devices/system/node";
const CPUS: &str = "devices/system/cpu";

/// Adds the NUMA nodes that have processors, and gives them. A kernel without NUMA has one node.
pub(super) fn read(tree: &Tree<'_>, machine: &mut MachineBuilder) -> Vec<Cpu> {
    let make = make(tree);
    let mut cpus = Vec::new();
    for (name, path) in tree.entries(NODES) {
        let number = name.strip_prefix("node").and_then(|number| number.parse::<u32>().ok());
        let (Some(numa), Some(path)) = (number.filter(|&numa| numa < limits::NUMA), path) else { continue };
        tree.keep(&path);
        let Some(list) = tree.read(&path, "cpulist") else {
            machine.warn(Warning::new(name, "its list of processors can not be read; the NUMA node was left out"));
            continue;
        };
        match list.parse::<CpuSet>() {
            // A node of memory alone: of a GPU, or behind CXL.
            Ok(set) if set.is_empty() => {}
            Ok(set) => cpus.push(cpu(tree, &make, numa, set)),
            Err(error) => {
                machine.warn(Warning::new(name, format!("{error}; the NUMA node is kept without processors")));
                cpus.push(cpu(tree, &make, numa, CpuSet::new()));
            }
        }
    }
    if cpus.is_empty() {
        let online = tree.read(CPUS, "online").and_then(|list| list.parse().ok());
        cpus.extend(online.map(|set| cpu(tree, &make, 0, set)));
    }
    cpus.sort();
    // One more than there may be, which the builder tells.
    for cpu in cpus.iter().take(limits::CPUS + 1) {
        machine.cpu(cpu.clone());
    }
    cpus.truncate(limits::CPUS);
    cpus
}

/// What kind of processors there are, and no more of them. From the name by which the kernel would load
/// modules for the processor, which is in sysfs where `/proc/cpuinfo` is not:
/// `cpu:type:x86,ven0000fam0006mod008F:feature:...`. The numbers of makers are those of Linux:
/// `X86_VENDOR_INTEL` and `X86_VENDOR_AMD`.
fn make(tree: &Tree<'_>) -> Cpu {
    // After it come the features of the processor, which are many.
    let Some(alias) = tree.read_part(CPUS, "modalias", |text| &text[..text.find(":feature").unwrap_or(text.len())])
    else {
        return Cpu::default();
    };
    let Some(kind) = alias.strip_prefix("cpu:type:").and_then(|rest| rest.split(':').next()) else {
        return Cpu::default();
    };
    let Some(numbers) = kind.strip_prefix("x86,ven") else {
        let arch = kind.split(',').next().filter(|arch| !arch.is_empty());
        let arch = arch.map(|arch| if arch == "aarch64" { "arm64" } else { arch }.to_owned());
        return Cpu { arch, ..Cpu::default() };
    };
    let field = |name: &str, text: &str| {
        let at = text.find(name)? + name.len();
        u32::from_str_radix(text.get(at..at + 4)?, 16).ok()
    };
    let vendor = match numbers.get(..4) {
        Some("0000") => Some("GenuineIntel"),
        Some("0002") => Some("AuthenticAMD"),
        _ => None,
    };
    Cpu {
        arch: Some("x86_64".to_owned()),
        vendor: vendor.map(str::to_owned),
        family: field("fam", numbers),
        model: field("mod", numbers),
        ..Cpu::default()
    }
}

/// A node with those processors, of that kind.
fn cpu(tree: &Tree<'_>, make: &Cpu, numa: u32, cpus: CpuSet) -> Cpu {
    let first = cpus.iter().next();
    let topology = first.and_then(|cpu| tree.resolve(&format!("{CPUS}/cpu{cpu}/topology")));
    // It is -1 where it is not known.
    let package = topology.and_then(|path| tree.number(&path, "physical_package_id"));
    Cpu { numa: Some(numa), package, cpus, ..make.clone() }
}
