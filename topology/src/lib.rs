//! What hangs where in a machine, and which NIC serves which GPU.
//!
//! A [`Machine`] is a graph of NUMA nodes, PCI bridges and switches, GPUs and NICs, whose links carry
//! their kind and bandwidth. It is made by a [`MachineBuilder`] from parts in any order, and is the
//! same whatever that order was. [`Machine::path`] says how near two parts are and how much passes between
//! them, and [`Selection`] chooses the NICs of all GPUs and NUMA nodes at once. The [`guide`] argues what is
//! chosen for machines that people have.
#![forbid(unsafe_code)]

#[doc = include_str!("guide/machines.md")]
pub mod guide {}

mod bandwidth;
mod cpu_set;
mod escape;
mod formats;
mod guid;
mod hints;
mod model;
mod path;
mod pci;
mod select;
mod show;
mod sysfs;
mod this;

pub use bandwidth::Bandwidth;
pub use cpu_set::{CpuSet, ParseCpuSetError};
#[doc(hidden)] // for the drawings of the command
pub use escape::escape;
pub use formats::{Format, HwlocError, JsonError, LoadError, NcclError, ReadError, XmlError, format_limits};
pub use hints::Hint;
pub use model::{
    BondMember, Bridge, BridgeRole, Cpu, CpuId, Description, Gpu, GpuId, GpuLink, GpuLinkKind, GpuPeer, GpuVendor,
    HostBridge, Link, LinkKind, LinkLayer, Machine, MachineBuilder, Nic, NicId, NicKind, NodeId, NvSwitch, Parent,
    Port, PortState, SocketLink, Warning, limits,
};
pub use path::{Hop, Island, Path, PathClass};
pub use pci::{ParsePciAddressError, PciAddress, PcieGeneration, PcieLink, UnknownPcieGeneration};
pub use select::{
    Assignment, Candidate, Choice, Consumer, Explanation, Known, Proven, Rail, SelectError, Selection, Verdict,
};
pub use show::{Cell, Matrix, Row, draw};
#[cfg(feature = "nvml")]
pub use sysfs::Nvml;
use sysfs::looks_like as looks_like_manifest;
pub use sysfs::{DriverGpu, DriverLink, GpuDriver, ManifestError, NoGpuDriver, Sysfs, sysfs_limits};
