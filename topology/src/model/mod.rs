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
    NicKind, NvSwitch, Parent, Port, PortState, SocketLink,
};

/// How large a machine can be: at least twice what is built, and small enough that what is made of a
/// hostile description, choices among all GPUs and NICs included, is bounded. Time grows with the product
/// of GPUs, NICs and how deep they hang.
pub mod limits {
    /// NUMA nodes. Two sockets cut into four each are 8, and 32 are 128.
    pub const CPUS: usize = 128;
    /// Host bridges, and likewise bridges: three above each GPU and NIC, though most are shared.
    pub const BRIDGES: usize = 1024;
    /// GPUs, and likewise NVSwitches. Servers have 16 GPUs, and with a chassis beside them 32.
    pub const GPUS: usize = 64;
    /// RDMA devices, with virtual functions: 32 cards, or 16 with 15 functions each. A host may make more
    /// functions, for virtual machines, and uses few itself; discovery then takes physical ones first.
    pub const NICS: usize = 256;
    /// Descriptions of links between GPUs, and likewise between NUMA nodes.
    pub const LINKS: usize = 16_384;
    /// Warnings that are kept.
    pub const WARNINGS: usize = 1000;
    /// Bridges one under the other. Each switch is two, and below a root port three switches are seven.
    pub const DEPTH: usize = 16;
    /// The number of a NUMA node is less than this.
    pub const NUMA: u32 = 4096;
    /// Characters of the name of a NIC or an interface. Linux allows 63.
    pub const NAME: usize = 64;
    /// Characters of the name of a machine, and of models. Host names have up to 64, NVML's names up to 96.
    pub const TEXT: usize = 128;
}
