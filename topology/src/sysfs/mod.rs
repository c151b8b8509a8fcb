//! Discovery: what a machine's sysfs says about processors, PCI, GPUs and NICs, and what the driver
//! of the GPUs adds to it.

mod config_space;
mod cpus;
mod driver;
mod fabric;
mod gpus;
mod manifest;
mod memory;
#[cfg(feature = "nvml")]
mod nvml;
mod pci;
mod rdma;
mod source;
#[cfg(test)]
mod tests;
mod tree;
mod xgmi;

pub(crate) use fabric::is_superchip;
pub(crate) use manifest::looks_like;

pub use driver::{DriverGpu, DriverLink, GpuDriver, NoGpuDriver};
pub use manifest::ManifestError;
#[cfg(feature = "nvml")]
pub use nvml::Nvml;
pub use source::Sysfs;

/// How much of a sysfs is looked at. A real one has far less; a hostile one costs no more.
pub mod sysfs_limits {
    /// Entries of a folder. Beyond it they are passed over.
    pub const ENTRIES: usize = 16_384;
    /// Bytes of a file. What is longer is cut.
    pub const FILE: usize = 64 << 10;
    /// Bytes of a manifest.
    pub const MANIFEST: usize = 16 << 20;
    /// Bytes of a path in a manifest.
    pub const PATH: usize = 1024;
    /// Links that one path may lead over.
    pub const HOPS: usize = 8;
}
