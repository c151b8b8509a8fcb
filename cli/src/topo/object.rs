//! The machine and the choice for programs.

use std::path::Path;

use qpair::topology::{Choice, Consumer, GpuId, Island, Machine, PathClass, Proven, Rail};
use serde::Serialize;

use crate::gpus::{ClosedGpu, Found, FoundGpu};

/// All that is known of a machine, in the form in which `--from` reads it, and what was chosen.
#[derive(Debug, Serialize)]
pub struct Object<'a> {
    #[serde(flatten)]
    machine: &'a Machine,
    /// GPUs that reach each other better than others; one island where that makes no difference.
    gpu_islands: Vec<GpuIsland>,
    choice: Vec<Chosen<'a>>,
    /// Whether no other choice is better.
    proven: Proven,
    /// Settings that slow GPUDirect down, with what to do.
    hints: Vec<String>,
    /// What the environment and the library leave out of the choice.
    limits: &'a [String],
    /// The file that the environment names, if the machine is what that says.
    #[serde(skip_serializing_if = "Option::is_none")]
    topology_file: Option<String>,
    /// Of this machine: GPUs as CUDA counts them, and how each RDMA device reaches their memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu_memory: Option<Vec<Memory<'a>>>,
}

/// GPUs, by their numbers.
#[derive(Debug, Serialize)]
struct GpuIsland {
    gpus: Vec<u16>,
    /// The farthest way between two of them.
    path: PathClass,
    /// To the island that it reaches worst, in one direction, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    outside_bytes_per_second: Option<u64>,
}

/// A GPU that opened, or one that did not.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Memory<'a> {
    Found(&'a FoundGpu),
    Closed(&'a ClosedGpu),
}

/// The NICs of one GPU or NUMA node.
#[derive(Debug, Serialize)]
struct Chosen<'a> {
    consumer: String,
    nics: Vec<Way<'a>>,
    /// In one direction while all send; null where the machine does not tell enough.
    bytes_per_second: Option<u64>,
    reason: &'a str,
}

/// A NIC, and how it is reached.
#[derive(Debug, Serialize)]
struct Way<'a> {
    name: &'a str,
    path: String,
    /// The GPU over which it is reached, if not straight.
    #[serde(skip_serializing_if = "Option::is_none")]
    via: Option<String>,
    /// Of a GPU alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu_direct: Option<bool>,
    /// In one direction while all send; null where the machine does not tell enough.
    bytes_per_second: Option<u64>,
}

impl<'a> Object<'a> {
    /// Of that machine, with what limits the choice; with the GPUs that were found, if it is this one.
    pub fn of(
        machine: &'a Machine,
        (choice, limits): (&'a Choice, &'a [String]),
        topology_file: Option<&'a Path>,
        found: Option<&'a Found>,
    ) -> Self {
        let way = |rail: &'a Rail, is_gpu: bool| Way {
            name: machine.nic(rail.nic).map_or("", |nic| &nic.name),
            path: rail.path.class.to_string(),
            via: rail.via.map(|gpu| machine.label(gpu)),
            gpu_direct: is_gpu.then_some(rail.gpu_direct),
            bytes_per_second: rail.is_rate_bounded(machine).then(|| rail.bandwidth.bytes()),
        };
        let chosen = choice.assignments().iter().map(|assignment| Chosen {
            consumer: machine.label(assignment.consumer),
            nics: {
                let is_gpu = matches!(assignment.consumer, Consumer::Gpu(_));
                assignment.rails.iter().map(|rail| way(rail, is_gpu)).collect()
            },
            bytes_per_second: {
                let is_bounded = assignment.rails.iter().all(|rail| rail.is_rate_bounded(machine));
                is_bounded.then(|| assignment.bandwidth.bytes())
            },
            reason: &assignment.reason,
        });
        Object {
            machine,
            gpu_islands: machine.gpu_islands().iter().map(GpuIsland::of).collect(),
            choice: chosen.collect(),
            proven: choice.proven(),
            hints: machine.hints().iter().map(ToString::to_string).collect(),
            limits,
            // A name that is no UTF-8 is told as far as it is.
            topology_file: topology_file.map(|path| path.display().to_string()),
            gpu_memory: found.map(|found| {
                let memory =
                    |gpu: &'a Result<FoundGpu, ClosedGpu>| gpu.as_ref().map_or_else(Memory::Closed, Memory::Found);
                found.iter().map(memory).collect()
            }),
        }
    }
}

impl GpuIsland {
    fn of(island: &Island<GpuId>) -> Self {
        let outside = Some(island.outside).filter(|outside| !outside.is_unlimited());
        Self {
            gpus: island.members.iter().map(|gpu| gpu.0).collect(),
            path: island.class,
            outside_bytes_per_second: outside.map(|outside| outside.bytes()),
        }
    }
}
