//! The GPUs that this program can use, and the ways by which RDMA devices reach their memory, found by registering some.

use qpair::verbs::{Context, Gpu, GpuError};
use serde::Serialize;

use crate::text::amount;

/// A GPU that opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FoundGpu {
    /// Its ordinal.
    pub gpu: usize,
    /// What it calls itself.
    pub name: String,
    /// Its PCI address.
    pub pci: String,
    /// Bytes of memory.
    pub memory: usize,
    /// Compute capability, such as `9.0`.
    pub capability: String,
    /// For each RDMA device, how it reaches the GPU's memory.
    pub registration: Vec<Registration>,
}

/// How an RDMA device reaches a GPU's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Registration {
    /// The RDMA device.
    pub device: String,
    /// The path's name: `software`, `dma-buf`, `peermem`, or `staging` where it does not reach it; null where that was not found
    /// out.
    pub path: Option<&'static str>,
    /// Why no better path is taken, or none was found out; empty if none is better.
    pub reason: String,
}

/// A GPU that did not open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClosedGpu {
    /// Its ordinal.
    pub gpu: usize,
    /// What stands in the way.
    pub why: String,
}

/// Whether a GPU opened, for each there is.
pub type Found = Vec<Result<FoundGpu, ClosedGpu>>;

/// Opens all GPUs, and registers some memory of each with every one of these RDMA devices that opens.
///
/// # Errors
/// [`GpuError`] where this program has no driver to ask.
pub fn find(devices: &[String]) -> Result<Found, GpuError> {
    let contexts: Vec<(&String, Context)> =
        devices.iter().filter_map(|name| Some((name, Context::open(name).ok()?))).collect();
    let found = |ordinal| {
        let gpu = Gpu::open(ordinal).map_err(|error| ClosedGpu { gpu: ordinal, why: error.to_string() })?;
        let attributes = gpu.attributes();
        let (major, minor) = attributes.capability;
        Ok(FoundGpu {
            gpu: ordinal,
            name: attributes.name.clone(),
            pci: attributes.pci_address.clone(),
            memory: attributes.memory,
            capability: format!("{major}.{minor}"),
            registration: contexts.iter().map(|(name, context)| register(gpu, name, context)).collect(),
        })
    };
    Ok((0..Gpu::count()?).map(found).collect())
}

fn register(gpu: Gpu, device: &str, context: &Context) -> Registration {
    let registration = |path, reason| Registration { device: device.to_owned(), path, reason };
    let domain = match context.alloc_pd() {
        Ok(domain) => domain,
        Err(error) => return registration(None, error.to_string()),
    };
    match domain.gpu_path(gpu) {
        Ok(path) => registration(Some(path.name()), path.reason().to_owned()),
        Err(error) => registration(None, error.to_string()),
    }
}

impl Registration {
    /// `mlx5_0 by dma-buf`, or that it is not known.
    pub fn way(&self) -> String {
        match self.path {
            Some(path) => format!("{} by {path}", self.device),
            None => format!("{} unknown", self.device),
        }
    }
}

impl FoundGpu {
    /// The ways of all devices, in one line.
    pub fn ways(&self) -> String {
        let ways: Vec<String> = self.registration.iter().map(Registration::way).collect();
        ways.join(", ")
    }

    /// Its name and memory, for people.
    pub fn title(&self) -> String {
        format!("GPU {} ({}, {})", self.gpu, self.name, amount(self.memory as u64))
    }
}

/// What can be found, for tests: a GPU with a device for each way to reach it, and for none that is known; and one that does not
/// open.
#[cfg(test)]
pub fn example() -> Found {
    let way =
        |device: &str, path, reason: &str| Registration { device: device.to_owned(), path, reason: reason.to_owned() };
    let gpu = FoundGpu {
        gpu: 0,
        name: "NVIDIA H200".to_owned(),
        pci: "0000:3b:00.0".to_owned(),
        memory: 141 << 30,
        capability: "9.0".to_owned(),
        registration: vec![
            way("soft0", Some("software"), ""),
            way("mlx5_0", Some("peermem"), "no DMA-buf: the kernel is too old"),
            way("mlx5_1", Some("staging"), "the device refuses"),
            way("mlx5_2", None, "no memory is left"),
        ],
    };
    vec![Ok(gpu), Err(ClosedGpu { gpu: 1, why: "out of order".to_owned() })]
}
