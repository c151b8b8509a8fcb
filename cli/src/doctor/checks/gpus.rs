//! GPUs: whether this program can use them, and how NICs reach their memory.

use qpair::topology::GpuVendor;
use qpair::verbs::GpuError;

use super::super::finding::{Finding, Section};
use super::super::system::System;
use crate::gpus::{ClosedGpu, FoundGpu, Registration};

/// What can be said of GPUs, on a machine that has any.
pub fn check(system: &System) -> Vec<Finding> {
    match &system.gpus {
        None => Vec::new(),
        Some(Err(error)) => no_driver(system, error).into_iter().collect(),
        Some(Ok(found)) => {
            found.iter().flat_map(|gpu| gpu.as_ref().map_or_else(|gpu| vec![closed(gpu)], ways)).collect()
        }
    }
}

/// Where there is no GPU, that there is no driver is as it should be.
fn no_driver(system: &System, error: &GpuError) -> Option<Finding> {
    let of = Section::Gpus;
    let nvidia = |driver: &String| driver.starts_with("nvidia");
    let are_there = system
        .pci
        .iter()
        .any(|function| function.gpu == Some(GpuVendor::Nvidia) && function.driver.as_ref().is_some_and(nvidia));
    match error {
        GpuError::NotBuilt => are_there.then(|| {
            Finding::note(of, "gpu-build", "there are GPUs, and this program was built without their memory")
                .because("Registering it, and collectives on it, are refused.")
                .fix("where qpair is built", ["cargo build --release --features cuda"])
        }),
        // A driver that finds no GPU says so at once.
        error if error.is_absence() && !are_there => None,
        error => Some(
            Finding::warning(of, "gpu-driver", error.to_string())
                .because("Memory of GPUs can not be used.")
                .fix("to see what the driver finds", ["nvidia-smi"]),
        ),
    }
}

fn closed(gpu: &ClosedGpu) -> Finding {
    Finding::warning(Section::Gpus, "gpu", gpu.why.clone())
        .on(format!("GPU {}", gpu.gpu))
        .because("Its memory can not be used.")
        .fix("to see what the driver says of it", ["nvidia-smi -q"])
}

fn ways(gpu: &FoundGpu) -> Vec<Finding> {
    gpu.registration.iter().map(|registration| way(gpu, registration)).collect()
}

fn way(gpu: &FoundGpu, Registration { device, path, reason }: &Registration) -> Finding {
    let (of, check, title) = (Section::Gpus, "gpu-memory", gpu.title());
    let finding = match path {
        Some("staging") => Finding::warning(of, check, format!("{device} does not reach its memory: {reason}"))
            .because("Registering is refused. Collectives go by other memory, with QPAIR_GPU_STAGING=1 in any case.")
            .fix("as root, unless the kernel and the driver can do DMA-buf", ["modprobe nvidia-peermem"]),
        Some(path) if reason.is_empty() => Finding::ok(of, check, format!("{device} reaches its memory by {path}")),
        Some(path) => Finding::note(of, check, format!("{device} reaches its memory by {path}: {reason}"))
            .because("DMA-buf is the path of the kernel itself; all others depend on a module of the vendor's."),
        None => Finding::note(of, check, format!("how {device} reaches its memory was not found out: {reason}"))
            .because("Some of the GPU's memory is registered to see it."),
    };
    finding.on(title)
}

#[cfg(test)]
mod tests {
    use super::super::super::finding::Severity;
    use super::super::super::fixture::Fixture;
    use super::super::super::system::PciFunction;
    use super::super::{fixes, only};
    use super::*;
    use crate::gpus::{Found, example};

    fn machine(gpus: Result<Found, GpuError>) -> System {
        System { gpus: Some(gpus), ..Fixture::rxe_host().system() }
    }

    fn with_a_gpu(mut system: System) -> System {
        let driver = Some("nvidia".to_owned());
        system.pci.push(PciFunction {
            address: "0000:3b:00.0".to_owned(),
            class: 0x03_02_00,
            gpu: Some(GpuVendor::Nvidia),
            driver,
        });
        system
    }

    #[test]
    fn a_machine_without_gpus_hears_nothing_of_them() {
        let none = GpuError::NoDriver { why: "there is no libcuda.so".to_owned() };
        let (call, name) = ("cuInit", "CUDA_ERROR_NO_DEVICE".to_owned());
        let empty = GpuError::Driver { call, code: 100, name };
        for gpus in [Err(GpuError::NotBuilt), Err(none), Err(empty), Ok(Vec::new())] {
            assert_eq!(check(&machine(gpus)), []);
        }
    }

    #[test]
    fn gpus_that_can_not_be_used_are_told_with_what_is_missing() {
        let findings = check(&with_a_gpu(machine(Err(GpuError::NotBuilt))));
        assert!(fixes(only(&findings, "gpu-build")).contains("--features cuda"));
        let none = GpuError::NoDriver { why: "there is no libcuda.so".to_owned() };
        let findings = check(&with_a_gpu(machine(Err(none))));
        assert_eq!(only(&findings, "gpu-driver").severity, Severity::Warning);
        let old = GpuError::OldDriver { version: 11_040, missing: None };
        let findings = check(&machine(Err(old)));
        assert!(only(&findings, "gpu-driver").message.contains("driver of series 520 or newer"), "{findings:?}");
    }

    #[test]
    fn each_device_says_how_it_reaches_the_memory_of_each_gpu() {
        let findings = check(&machine(Ok(example())));
        let severities: Vec<_> = findings.iter().map(|finding| finding.severity).collect();
        let (ok, note, warning) = (Severity::Ok, Severity::Note, Severity::Warning);
        assert_eq!(severities, [ok, note, warning, note, warning]);
        assert_eq!(findings[0].subject.as_deref(), Some("GPU 0 (NVIDIA H200, 141 GiB)"));
        assert!(findings[1].message.contains("by peermem: no DMA-buf"), "{findings:?}");
        assert!(fixes(&findings[2]).contains("modprobe nvidia-peermem"));
        assert_eq!((fixes(&findings[3]), findings[4].subject.as_deref()), (String::new(), Some("GPU 1")));
    }
}
