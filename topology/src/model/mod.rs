//! A machine as a graph: the parts it is described by, the builder that puts them together, and the
//! nodes and links that come of it.

mod assemble;
mod builder;
mod construct;
mod estimate;
mod machine;
mod names;
mod node;
mod parts;
mod place;
#[cfg(test)]
mod tests;

pub use builder::{Description, MachineBuilder};
pub use machine::Machine;
pub use node::{CpuId, GpuId, Link, LinkKind, NicId, NodeId, Warning};
pub use parts::{
    BondMember, Bridge, BridgeRole, Cpu, Gpu, GpuLink, GpuLinkKind, GpuPeer, GpuVendor, HostBridge, LinkLayer, Nic,
    NvSwitch, Parent, Port, PortState, SocketLink,
};

/// How large a machine can be: several times what is built, and small enough that a hostile
/// description costs megabytes and seconds at most.
pub mod limits {
    /// NUMA nodes.
    pub const CPUS: usize = 128;
    /// Host bridges, and likewise bridges.
    pub const BRIDGES: usize = 4096;
    /// GPUs, and likewise NVSwitches.
    pub const GPUS: usize = 256;
    /// RDMA devices, with all virtual functions.
    pub const NICS: usize = 1024;
    /// Descriptions of links between GPUs, and likewise between NUMA nodes.
    pub const LINKS: usize = 65_536;
    /// Warnings that are kept.
    pub const WARNINGS: usize = 1000;
    /// Bridges one under the other.
    pub const DEPTH: usize = 64;
    /// The number of a NUMA node is less than this.
    pub const NUMA: u32 = 4096;
    /// Characters of the name of a NIC or an interface. Linux allows 63.
    pub const NAME: usize = 64;
    /// Characters of the name of a machine, and of models. Host names have up to 64, NVML's names up to 96.
    pub const TEXT: usize = 128;
}
