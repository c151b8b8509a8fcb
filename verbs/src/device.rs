//! The devices of this machine, and what each can do.

use crate::soft;
use crate::types::{GidEntry, Mtu};

/// An RDMA device that can be opened.
#[derive(Clone, Debug)]
pub struct Device {
    name: String,
}

/// Limits and abilities of a device.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceAttributes {
    /// Globally unique number of the node.
    pub node_guid: u64,
    /// Version of the firmware, or of the software device.
    pub firmware: String,
    /// Number of ports; numbered from 1.
    pub ports: u8,
    /// Greatest number of queue pairs, if their queues are shallow.
    pub max_qp: u32,
    /// Greatest number of work requests in one queue.
    pub max_qp_wr: u32,
    /// Greatest number of memory pieces in one work request.
    pub max_sge: u32,
    /// Greatest number of completion queue entries.
    pub max_cqe: u32,
    /// Greatest number of remote keys (regions and windows).
    pub max_mr: u32,
    /// Greatest number of work requests in a shared receive queue.
    pub max_srq_wr: u32,
    /// Longest region in bytes.
    pub max_mr_size: u64,
    /// Longest message in bytes.
    pub max_message: u32,
    /// Longest inline data in bytes.
    pub max_inline: u32,
    /// True if atomics are atomic towards the CPU too.
    pub atomics_with_cpu: bool,
    /// True if READs can be combined into the local buffer ([`QueuePair::read_reduce`](crate::QueuePair::read_reduce)).
    pub read_reduce: bool,
}

/// What a port is and does now.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PortAttributes {
    /// State of the port.
    pub state: PortState,
    /// Greatest MTU.
    pub max_mtu: Mtu,
    /// Present MTU.
    pub active_mtu: Mtu,
    /// Local identifier; 0 where there is none.
    pub lid: u16,
    /// What it is made of.
    pub link_layer: LinkLayer,
    /// Identifiers.
    pub gids: Vec<GidEntry>,
}

/// State of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortState {
    /// No link.
    Down,
    /// A link that is not configured yet.
    Init,
    /// A link that is configured but does not carry data.
    Armed,
    /// Carries data.
    Active,
    /// A code that this crate does not know.
    Unknown(u32),
}

/// What a port is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet (RoCE, iWARP).
    Ethernet,
    /// Memory of this host.
    SharedMemory,
    /// A code that this crate does not know.
    Unknown(u32),
}

impl Device {
    /// The devices of this machine. The software device `soft0` is always there.
    pub fn list() -> Vec<Device> {
        vec![Device { name: soft::DEVICE_NAME.to_owned() }]
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.name
    }
}
