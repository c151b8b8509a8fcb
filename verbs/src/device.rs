//! The devices of this machine, and what each can do.

use std::time::Duration;

use crate::types::{Gid, GidEntry, GidKind, Mtu};
use crate::{ibv, soft};

/// An RDMA device that can be opened.
#[derive(Clone, Debug)]
pub struct Device {
    name: String,
}

/// Limits and abilities of a device. What a device does not tell is zero.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct DeviceAttributes {
    /// Globally unique number of the node.
    pub node_guid: u64,
    /// Globally unique number of the system that the device is part of.
    pub sys_image_guid: u64,
    /// Number of the vendor, by IEEE.
    pub vendor_id: u32,
    /// The vendor's number of the part.
    pub vendor_part_id: u32,
    /// Version of the hardware.
    pub hw_version: u32,
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
    /// Greatest number of memory pieces in a READ.
    pub max_sge_read: u32,
    /// Greatest number of completion queues.
    pub max_cq: u32,
    /// Greatest number of completion queue entries.
    pub max_cqe: u32,
    /// Greatest number of remote keys (regions and windows).
    pub max_mr: u32,
    /// Greatest number of protection domains.
    pub max_pd: u32,
    /// Greatest number of memory windows.
    pub max_mw: u32,
    /// Greatest number of address handles.
    pub max_ah: u32,
    /// Greatest number of shared receive queues.
    pub max_srq: u32,
    /// Greatest number of work requests in a shared receive queue.
    pub max_srq_wr: u32,
    /// Greatest number of memory pieces in a receive of a shared receive queue.
    pub max_srq_sge: u32,
    /// Greatest number of partition keys.
    pub max_pkeys: u32,
    /// READs and atomics that one queue pair answers at once.
    pub max_rd_atomic: u32,
    /// READs and atomics that one queue pair may have under way.
    pub max_init_rd_atomic: u32,
    /// Longest region in bytes.
    pub max_mr_size: u64,
    /// Longest message in bytes.
    pub max_message: u32,
    /// Longest inline data in bytes that a queue pair has room for unless it is told otherwise; in deep queues it may have less
    /// ([`Prepared::max_inline`](crate::Prepared::max_inline)).
    pub max_inline: u32,
    /// Page sizes as bits: bit n for 2^n bytes.
    pub page_sizes: u64,
    /// How long the device takes at most to acknowledge.
    pub ack_delay: Duration,
    /// Abilities as bits, `enum ibv_device_cap_flags` and those above 32 bits.
    pub device_flags: u64,
    /// Completion vectors: interrupts that completion events can be spread over.
    pub completion_vectors: u32,
    /// How far atomics are atomic.
    pub atomics: AtomicAbility,
    /// True if atomics are atomic towards the CPU too.
    pub atomics_with_cpu: bool,
    /// True if READs can be combined into the local buffer ([`QueuePair::read_reduce`](crate::QueuePair::read_reduce)).
    pub read_reduce: bool,
    /// Valid bits of completion timestamps.
    pub timestamp_mask: u64,
    /// Rate of the clock of completion timestamps in kHz.
    pub core_clock_khz: u64,
    /// Registering memory without locking it.
    pub on_demand_paging: OnDemandPaging,
}

/// How far a device's atomics are atomic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AtomicAbility {
    /// There are none.
    #[default]
    None,
    /// Towards atomics of the same device.
    Device,
    /// Towards the CPU and other devices too.
    Everywhere,
    /// A code that this crate does not know.
    Unknown(u32),
}

/// What a device can do with memory that is registered and not locked, as bits of `enum ibv_odp_*_caps`; zero where it
/// can not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OnDemandPaging {
    /// `enum ibv_odp_general_caps`.
    pub general: u64,
    /// On RC, `enum ibv_odp_transport_cap_bits`.
    pub rc: u32,
    /// On UC.
    pub uc: u32,
    /// On UD.
    pub ud: u32,
}

/// What a port is and does now.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PortAttributes {
    /// State of the port.
    pub state: PortState,
    /// State of the link below it.
    pub physical_state: PhysicalState,
    /// Greatest MTU.
    pub max_mtu: Mtu,
    /// Present MTU.
    pub active_mtu: Mtu,
    /// Local identifier; 0 where there is none.
    pub lid: u16,
    /// Low bits of the LID that select a path.
    pub lid_mask_bits: u8,
    /// LID of the subnet manager; 0 where there is none.
    pub subnet_manager_lid: u16,
    /// Service level for the subnet manager.
    pub subnet_manager_level: u8,
    /// What it is made of.
    pub link_layer: LinkLayer,
    /// Longest message in bytes.
    pub max_message: u32,
    /// Abilities as bits, `enum ibv_port_cap_flags`.
    pub capability_flags: u32,
    /// Lanes of the link; `None` if that is not known.
    pub lanes: Option<u8>,
    /// Rate of each lane in Mbit/s; `None` if that is not known.
    pub lane_rate_mbps: Option<u32>,
    /// Packets with a wrong partition key so far.
    pub bad_pkeys: u32,
    /// Packets with a wrong Q_Key so far.
    pub qkey_violations: u32,
    /// Rows of the GID table, used or not.
    pub gid_table_len: u32,
    /// Partition keys.
    pub pkeys: Vec<u16>,
    /// Identifiers: the rows of the GID table that are used.
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

/// State of a link, below the port's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PhysicalState {
    /// Looks for nothing.
    Sleep,
    /// Looks for a partner.
    Polling,
    /// Turned off.
    Disabled,
    /// Agrees on lanes and rate with its partner.
    Training,
    /// There.
    LinkUp,
    /// Recovers from errors.
    Recovery,
    /// Tests.
    PhyTest,
    /// A code that this crate does not know.
    Unknown(u8),
}

impl PhysicalState {
    /// The state for a code of the management class (IBA 14.2.5.6).
    pub const fn from_code(code: u8) -> Self {
        match code {
            1 => PhysicalState::Sleep,
            2 => PhysicalState::Polling,
            3 => PhysicalState::Disabled,
            4 => PhysicalState::Training,
            5 => PhysicalState::LinkUp,
            6 => PhysicalState::Recovery,
            7 => PhysicalState::PhyTest,
            other => PhysicalState::Unknown(other),
        }
    }
}

impl PortAttributes {
    /// The row of the GID table to name this side by, towards `peer` if that is known; `None` if there is none.
    ///
    /// RoCEv2 goes before all else. Towards a peer, the row that shares most leading bits with its GID is taken, which is
    /// one of the same subnet if there is one. Without, IPv4 goes before IPv6, and what reaches further than the link
    /// before what does not; among equals the first.
    pub fn preferred_gid(&self, peer: Option<Gid>) -> Option<&GidEntry> {
        preferred_gid(&self.gids, peer)
    }
}

/// The row of a GID table that [`PortAttributes::preferred_gid`] picks.
pub(crate) fn preferred_gid(gids: &[GidEntry], peer: Option<Gid>) -> Option<&GidEntry> {
    let family = |gid: Gid| gid.ipv4().is_some();
    let rank = |row: &GidEntry| {
        let kind = match row.kind {
            GidKind::RoceV2 => 3,
            GidKind::InfiniBand => 2,
            GidKind::RoceV1 => 1,
            GidKind::Unknown(_) => 0,
        };
        let near =
            peer.map_or(0, |peer| u32::from(family(peer) == family(row.gid)) * (1 + peer.common_prefix(row.gid)));
        (kind, near, family(row.gid), !row.gid.is_link_local(), std::cmp::Reverse(row.index))
    };
    gids.iter().max_by_key(|row| rank(row))
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
    /// The name of the software device, which every machine has.
    pub const SOFTWARE: &'static str = soft::DEVICE_NAME;

    /// The devices of this machine: the software device `soft0`, which is always there, and those that libibverbs finds, by
    /// name. Why there is no libibverbs, [`library`](crate::library) tells.
    pub fn list() -> Vec<Device> {
        let names = std::iter::once(soft::DEVICE_NAME.to_owned()).chain(ibv::names());
        names.map(|name| Device { name }).collect()
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(rows: &[(GidKind, &str)]) -> PortAttributes {
        let gids = rows.iter().enumerate().map(|(index, (kind, address))| {
            let gid = Gid(address.parse::<std::net::Ipv6Addr>().unwrap().octets());
            GidEntry { index: index as u32, gid, kind: *kind, netdev: None }
        });
        PortAttributes { gids: gids.collect(), ..crate::Context::open("soft0").unwrap().port(1).unwrap() }
    }

    fn gid(address: &str) -> Gid {
        Gid(address.parse::<std::net::Ipv6Addr>().unwrap().octets())
    }

    #[test]
    fn a_routable_rocev2_gid_is_preferred() {
        use GidKind::{InfiniBand, RoceV1, RoceV2};
        let index =
            |rows: &[(GidKind, &str)], peer: Option<&str>| port(rows).preferred_gid(peer.map(gid)).map(|row| row.index);
        let roce = [
            (RoceV1, "fe80::1"),
            (RoceV2, "fe80::1"),
            (RoceV1, "::ffff:10.0.0.1"),
            (RoceV2, "::ffff:10.0.0.1"),
            (RoceV2, "::ffff:192.168.7.1"),
            (RoceV2, "2001:db8::1"),
        ];
        assert_eq!(index(&roce, None), Some(3));
        assert_eq!(index(&roce[..2], None), Some(1));
        assert_eq!(index(&roce, Some("::ffff:192.168.7.200")), Some(4));
        assert_eq!(index(&roce, Some("::ffff:10.0.0.7")), Some(3));
        assert_eq!(index(&roce, Some("2001:db8::2")), Some(5));
        assert_eq!(index(&roce, Some("fe80::2")), Some(1));
        assert_eq!(index(&[(InfiniBand, "fe80::1")], None), Some(0));
        assert_eq!(index(&[], None), None);
    }
}
