//! How one queue pair finds another: plain data, sent by any means.

use serde::{Deserialize, Serialize};

use crate::types::{Gid, Mtu, Psn, QpType, Qpn};

/// The address of a queue pair: all that the other side needs to connect to it.
///
/// Plain data with serde; it names no secret but the unpredictable numbers in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpAddress {
    /// Service; both sides must agree.
    pub qp_type: QpType,
    /// Queue pair number.
    pub qpn: Qpn,
    /// The PSN that this side's first packet carries.
    pub psn: Psn,
    /// Port GID.
    pub gid: Gid,
    /// Port LID; 0 where the link layer is Ethernet or software.
    pub lid: u16,
    /// Greatest path MTU that this side takes; the smaller of both is used.
    pub mtu: Mtu,
    /// Q_Key that datagrams to this queue pair must carry; 0 for RC and UC.
    pub qkey: u32,
    /// READs and atomics that this side answers at once, RC; 0 if it does not say.
    #[serde(default)]
    pub max_rd_atomic: u8,
    /// A vendor's abilities that this side offers beyond the specification.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ece: Option<Ece>,
    /// Where a software device may be reached without a network.
    pub soft: Option<SoftAddress>,
}

/// Abilities of a vendor's devices beyond the specification (enhanced connection establishment).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ece {
    /// The vendor that the options are of.
    pub vendor_id: u32,
    /// The options, as bits.
    pub options: u32,
}

/// The part of an address that leads to a software device on the same host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SoftAddress {
    /// The running system: `/proc/sys/kernel/random/boot_id`.
    pub host: [u8; 16],
    /// Network namespace, in which abstract socket names are unique.
    pub namespace: u64,
    /// The opened device, 128 random bits.
    pub node: NodeId,
}

/// One opened software device (a `Context`); 128 random bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NodeId(pub [u8; 16]);

impl std::fmt::Display for NodeId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for NodeId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NodeId({self})")
    }
}
