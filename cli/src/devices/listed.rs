//! A device as it is listed: what verbs tells of it, and what only the kernel does.

use std::fmt;

use qpair::verbs::{Context, DeviceAttributes, GidEntry, OnDemandPaging, OpenError, PortAttributes};
use serde::Serialize;

use super::names;
use crate::doctor::system::RdmaDevice;

/// A device, with everything that is known of it. What a device does not tell is zero or null.
#[derive(Clone, Debug, Serialize)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// What it calls itself.
    pub description: Option<String>,
    /// The kernel driver of its hardware.
    pub driver: Option<String>,
    /// The hardware's PCI address.
    pub pci: Option<String>,
    /// The NUMA node that it hangs on.
    pub numa_node: Option<u32>,
    /// Version of the firmware.
    pub firmware: String,
    /// GUID of the node.
    pub node_guid: String,
    /// GUID of the system that it is part of.
    pub sys_image_guid: String,
    /// Number of the vendor, by IEEE.
    pub vendor_id: u32,
    /// The vendor's number of the part.
    pub vendor_part_id: u32,
    /// Version of the hardware.
    pub hw_version: u32,
    /// Abilities.
    pub abilities: Abilities,
    /// Limits.
    pub limits: Limits,
    /// Ports.
    pub ports: Vec<Port>,
}

/// What a device can do.
#[derive(Clone, Debug, Serialize)]
pub struct Abilities {
    /// How far atomics are atomic.
    pub atomics: String,
    /// READs can be combined into memory.
    pub read_reduce: bool,
    /// Sizes of pages in bytes.
    pub page_sizes: Vec<u64>,
    /// Longest time until an acknowledgement, in microseconds.
    pub ack_delay_us: f64,
    /// Interrupts that completion events can be spread over.
    pub completion_vectors: u32,
    /// Valid bits of completion timestamps.
    pub timestamp_bits: u32,
    /// Rate of their clock in kHz.
    pub core_clock_khz: u64,
    /// Registering memory without locking it: what is possible.
    pub on_demand_paging: Vec<String>,
    /// Further abilities, by the names of verbs.
    pub flags: Vec<String>,
}

/// What a device takes at most.
#[derive(Clone, Debug, Serialize)]
pub struct Limits {
    /// Queue pairs.
    pub max_qp: u32,
    /// Work requests in a queue.
    pub max_qp_wr: u32,
    /// Pieces in a work request.
    pub max_sge: u32,
    /// Pieces in a READ.
    pub max_sge_read: u32,
    /// Bytes of inline data.
    pub max_inline: u32,
    /// READs and atomics that a queue pair answers at once.
    pub max_rd_atomic: u32,
    /// READs and atomics that a queue pair may have under way.
    pub max_init_rd_atomic: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Entries of a completion queue.
    pub max_cqe: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Requests in a shared receive queue.
    pub max_srq_wr: u32,
    /// Pieces in a receive of a shared receive queue.
    pub max_srq_sge: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// Remote keys.
    pub max_mr: u32,
    /// Bytes of a region.
    pub max_mr_size: u64,
    /// Memory windows.
    pub max_mw: u32,
    /// Address handles.
    pub max_ah: u32,
    /// Partition keys.
    pub max_pkeys: u32,
    /// Bytes of a message.
    pub max_message: u32,
}

/// A port.
#[derive(Clone, Debug, Serialize)]
pub struct Port {
    /// Its number, from 1.
    pub number: u8,
    /// Its state.
    pub state: String,
    /// The state of the link below it.
    pub physical_state: String,
    /// What it is made of.
    pub link_layer: String,
    /// The network interface beside it.
    pub netdev: Option<String>,
    /// Lanes.
    pub lanes: Option<u8>,
    /// Rate of a lane in Mbit/s.
    pub lane_rate_mbps: Option<u32>,
    /// Greatest MTU in bytes.
    pub max_mtu: u32,
    /// Present MTU in bytes.
    pub active_mtu: u32,
    /// Bytes of a message.
    pub max_message: u32,
    /// Local identifier.
    pub lid: u16,
    /// Bits of it that select a path.
    pub lid_mask_bits: u8,
    /// That of the subnet manager.
    pub subnet_manager_lid: u16,
    /// Service level for it.
    pub subnet_manager_level: u8,
    /// Abilities as bits.
    pub capability_flags: u32,
    /// Packets with a wrong partition key so far.
    pub bad_pkeys: u32,
    /// Packets with a wrong Q_Key so far.
    pub qkey_violations: u32,
    /// Partition keys.
    pub pkeys: Vec<String>,
    /// Rows of the GID table, used or not.
    pub gid_table_len: u32,
    /// The row that stands for the port unless told otherwise.
    pub preferred_gid: Option<u32>,
    /// Rows that are used.
    pub gids: Vec<GidRow>,
}

/// A row of the GID table.
#[derive(Clone, Debug, Serialize)]
pub struct GidRow {
    /// Its position.
    pub index: u32,
    /// The identifier.
    pub gid: String,
    /// Its kind.
    pub kind: String,
    /// The interface that it comes from.
    pub netdev: Option<String>,
}

impl Listed {
    /// Opens the device of that name, and asks it and the kernel.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(name: &str, kernel: &[RdmaDevice]) -> Result<Self, OpenError> {
        let context = Context::open(name)?;
        Ok(Listed::new(&context, kernel.iter().find(|device| device.name == name)))
    }

    fn new(context: &Context, kernel: Option<&RdmaDevice>) -> Self {
        let from = context.attributes();
        let ports = (1..=from.ports).filter_map(|number| {
            let of_kernel = kernel.and_then(|device| device.ports.iter().find(|port| port.number == u32::from(number)));
            let netdev = of_kernel.and_then(|port| port.netdev.clone());
            Some(Port::new(number, &context.port(number)?, netdev))
        });
        Listed {
            name: context.name().to_owned(),
            description: kernel.and_then(|device| device.description.clone()),
            driver: kernel.and_then(RdmaDevice::driver_name),
            pci: kernel.and_then(|device| device.pci.clone()),
            numa_node: kernel.and_then(|device| device.numa_node),
            firmware: from.firmware.clone(),
            node_guid: Guid(from.node_guid).to_string(),
            sys_image_guid: Guid(from.sys_image_guid).to_string(),
            vendor_id: from.vendor_id,
            vendor_part_id: from.vendor_part_id,
            hw_version: from.hw_version,
            abilities: Abilities::new(&from),
            limits: Limits::new(&from),
            ports: ports.collect(),
        }
    }
}

impl Abilities {
    fn new(from: &DeviceAttributes) -> Self {
        Abilities {
            atomics: names::atomics(from.atomics, from.atomics_with_cpu),
            read_reduce: from.read_reduce,
            page_sizes: (0..64).filter(|bit| from.page_sizes >> bit & 1 == 1).map(|bit| 1 << bit).collect(),
            ack_delay_us: from.ack_delay.as_secs_f64() * 1e6,
            completion_vectors: from.completion_vectors,
            timestamp_bits: from.timestamp_mask.count_ones(),
            core_clock_khz: from.core_clock_khz,
            on_demand_paging: on_demand_paging(from.on_demand_paging),
            flags: names::device_flags(from.device_flags),
        }
    }
}

fn on_demand_paging(from: OnDemandPaging) -> Vec<String> {
    if from.general & 1 == 0 {
        return Vec::new();
    }
    let whole = (from.general & 2 != 0).then(|| "whole address space".to_owned());
    let services = [("RC", from.rc), ("UC", from.uc), ("UD", from.ud)];
    let each = services.iter().filter_map(|(service, bits)| names::paged_operations(service, *bits));
    whole.into_iter().chain(each).collect()
}

impl Limits {
    fn new(from: &DeviceAttributes) -> Self {
        Limits {
            max_qp: from.max_qp,
            max_qp_wr: from.max_qp_wr,
            max_sge: from.max_sge,
            max_sge_read: from.max_sge_read,
            max_inline: from.max_inline,
            max_rd_atomic: from.max_rd_atomic,
            max_init_rd_atomic: from.max_init_rd_atomic,
            max_cq: from.max_cq,
            max_cqe: from.max_cqe,
            max_srq: from.max_srq,
            max_srq_wr: from.max_srq_wr,
            max_srq_sge: from.max_srq_sge,
            max_pd: from.max_pd,
            max_mr: from.max_mr,
            max_mr_size: from.max_mr_size,
            max_mw: from.max_mw,
            max_ah: from.max_ah,
            max_pkeys: from.max_pkeys,
            max_message: from.max_message,
        }
    }
}

impl Port {
    fn new(number: u8, from: &PortAttributes, netdev: Option<String>) -> Self {
        Port {
            number,
            state: names::state(from.state),
            physical_state: names::physical_state(from.physical_state),
            link_layer: names::link_layer(from.link_layer),
            netdev: netdev.or_else(|| from.gids.iter().find_map(|row| row.netdev.clone())),
            lanes: from.lanes,
            lane_rate_mbps: from.lane_rate_mbps,
            max_mtu: from.max_mtu.bytes(),
            active_mtu: from.active_mtu.bytes(),
            max_message: from.max_message,
            lid: from.lid,
            lid_mask_bits: from.lid_mask_bits,
            subnet_manager_lid: from.subnet_manager_lid,
            subnet_manager_level: from.subnet_manager_level,
            capability_flags: from.capability_flags,
            bad_pkeys: from.bad_pkeys,
            qkey_violations: from.qkey_violations,
            pkeys: from.pkeys.iter().map(|key| format!("0x{key:04x}")).collect(),
            gid_table_len: from.gid_table_len,
            preferred_gid: from.preferred_gid(None).map(|row| row.index),
            gids: from.gids.iter().map(GidRow::new).collect(),
        }
    }
}

impl GidRow {
    fn new(from: &GidEntry) -> Self {
        GidRow {
            index: from.index,
            gid: from.gid.to_string(),
            kind: names::gid_kind(from.kind),
            netdev: from.netdev.clone(),
        }
    }
}

/// A GUID as the field writes it: `5054:00ff:fe00:0001`.
struct Guid(u64);

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Guid(guid) = self;
        write!(f, "{:04x}:{:04x}:{:04x}:{:04x}", guid >> 48, guid >> 32 & 0xffff, guid >> 16 & 0xffff, guid & 0xffff)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_has_what_the_device_tells() {
        let value = serde_json::to_value(Listed::open("soft0", &[]).expect("always there")).expect("plain data");
        assert_eq!(value["name"], "soft0");
        assert_eq!(value["ports"][0]["state"], "active");
        assert!(value["ports"][0]["preferred_gid"].is_number());
        assert!(value["limits"]["max_inline"].as_u64().expect("a number") > 0);
        assert!(value["driver"].is_null());
    }

    #[test]
    fn a_device_of_no_such_name_is_an_error() {
        assert!(Listed::open("no-such-device", &[]).is_err());
    }

    #[test]
    fn guids_are_in_groups() {
        assert_eq!(Guid(0x5054_00ff_fe00_0001).to_string(), "5054:00ff:fe00:0001");
    }

    #[test]
    fn paging_is_told_by_service() {
        let mut from = OnDemandPaging::default();
        from.rc = 0b1111;
        assert!(on_demand_paging(from).is_empty(), "the device can not at all");
        from.general = 3;
        assert_eq!(on_demand_paging(from), ["whole address space", "RC: SEND, RECV, WRITE, READ"]);
    }
}
