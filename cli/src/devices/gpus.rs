//! GPUs as they are listed.

use qpair::verbs::GpuError;

use super::details::section;
use crate::gpus::{Found, FoundGpu};
use crate::output::{PrintError, print, print_object};
use crate::table;
use crate::text::amount;

/// Prints the GPUs that were found, if any, and of one that does not open what stands in the way. Of a machine without a driver, or
/// by a program that was built without, nothing is said: `qpair doctor` does where there is a GPU.
pub fn show(found: &Result<Found, GpuError>, json: bool, verbose: bool) -> Result<(), PrintError> {
    let Ok(found) = found else { return Ok(()) };
    if json {
        found.iter().try_for_each(|gpu| match gpu {
            Ok(gpu) => print_object(gpu),
            Err(gpu) => print_object(gpu),
        })
    } else {
        text(found, verbose).map_or(Ok(()), |text| print(&text))
    }
}

/// The GPUs as a table, or in sections.
fn text(found: &Found, verbose: bool) -> Option<String> {
    let opened: Vec<&FoundGpu> = found.iter().flatten().collect();
    let mut blocks: Vec<String> = if verbose {
        opened.iter().map(|gpu| details(gpu)).collect()
    } else if opened.is_empty() {
        Vec::new()
    } else {
        vec![overview(&opened)]
    };
    let closed = found.iter().filter_map(|gpu| gpu.as_ref().err());
    blocks.extend(closed.map(|gpu| format!("GPU {} can not be used: {}", gpu.gpu, gpu.why)));
    let between = if verbose { "\n\n" } else { "\n" };
    (!blocks.is_empty()).then(|| format!("\n{}", blocks.join(between)))
}

fn overview(gpus: &[&FoundGpu]) -> String {
    let header = ["GPU", "name", "PCI address", "memory", "capability", "registered"];
    let row = |gpu: &&FoundGpu| {
        let memory = amount(gpu.memory as u64);
        vec![gpu.gpu.to_string(), gpu.name.clone(), gpu.pci.clone(), memory, gpu.capability.clone(), gpu.ways()]
    };
    table::whole(&header, gpus.iter().map(row).collect())
}

fn details(gpu: &FoundGpu) -> String {
    let mut text = format!("GPU {}\n", gpu.gpu);
    let rows = [
        ("name", Some(gpu.name.clone())),
        ("PCI address", Some(gpu.pci.clone())),
        ("memory", Some(amount(gpu.memory as u64))),
        ("compute capability", Some(gpu.capability.clone())),
    ];
    section(&mut text, 2, &rows);
    for registration in &gpu.registration {
        let reason = if registration.reason.is_empty() { String::new() } else { format!(": {}", registration.reason) };
        section(&mut text, 2, &[("registered", Some(format!("{}{reason}", registration.way())))]);
    }
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpus::example;

    #[test]
    fn a_gpu_is_a_row_with_the_paths_of_all_devices() {
        let text = text(&example(), false).expect("there is one");
        assert_eq!(
            text.lines().map(str::trim_end).collect::<Vec<_>>()[..3],
            [
                "",
                "GPU  name         PCI address   memory   capability  registered",
                "0    NVIDIA H200  0000:3b:00.0  141 GiB  9.0         soft0 by software, mlx5_0 by peermem, mlx5_1 by staging, mlx5_2 unknown",
            ]
        );
        assert!(text.ends_with("\nGPU 1 can not be used: out of order"), "{text}");
    }

    #[test]
    fn the_details_say_why_no_better_path_is_taken() {
        let text = text(&example(), true).expect("there is one");
        assert!(text.starts_with("\nGPU 0\n  name "), "{text}");
        assert!(text.contains("mlx5_0 by peermem: no DMA-buf:"), "{text}");
        assert!(text.contains("mlx5_1 by staging: the device refuses"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
    }

    #[test]
    fn where_there_are_none_nothing_is_said() {
        assert_eq!(text(&Vec::new(), false), None);
        assert_eq!(text(&Vec::new(), true), None);
    }
}
