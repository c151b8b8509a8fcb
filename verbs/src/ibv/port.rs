//! What a port says of itself.

use std::io;
use std::mem::MaybeUninit;

use qpair_verbs_sys as sys;

use super::gid::{self, Names};
use super::handle::{Handle, outcome};
use crate::device::{LinkLayer, PhysicalState, PortAttributes, PortState};
use crate::error::CreateError;
use crate::types::{GidEntry, Mtu};

/// What the paths from a port rest on, and no more: each queue pair, each address handle and each inquiry asks for it.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) lid: u16,
    pub(super) active_mtu: Mtu,
    pub(super) link_layer: LinkLayer,
    pub(super) max_message: u32,
    /// Packets need a global route header, also to peers of the same subnet.
    pub(super) grh_required: bool,
    /// The rows of the GID table that are used, without the names of interfaces.
    pub(super) gids: Vec<GidEntry>,
}

/// The side of port `number`, of so many, as it is now.
pub(super) fn side(handle: &Handle, ports: u8, number: u8) -> io::Result<Side> {
    let of = ask(handle, number)?;
    let rows = gid::Table { handle, ports, port: number };
    Ok(Side {
        lid: of.lid,
        active_mtu: mtu(of.active_mtu),
        link_layer: link_layer(handle, of.link_layer),
        max_message: longest(of.max_msg_sz),
        grh_required: u32::from(of.flags) & sys::IBV_QPF_GRH_REQUIRED != 0,
        gids: rows.rows(count(of.gid_tbl_len), Names::No),
    })
}

/// Port `number`, of so many, as it is now; `None` if there is none.
pub(super) fn whole(handle: &Handle, ports: u8, number: u8) -> Option<PortAttributes> {
    let of = ask(handle, number).ok()?;
    let gid_table_len = count(of.gid_tbl_len);
    let rows = gid::Table { handle, ports, port: number };
    Some(PortAttributes {
        state: match of.state {
            sys::IBV_PORT_DOWN => PortState::Down,
            sys::IBV_PORT_INIT => PortState::Init,
            sys::IBV_PORT_ARMED => PortState::Armed,
            sys::IBV_PORT_ACTIVE => PortState::Active,
            other => PortState::Unknown(other),
        },
        physical_state: PhysicalState::from_code(of.phys_state),
        max_mtu: mtu(of.max_mtu),
        active_mtu: mtu(of.active_mtu),
        lid: of.lid,
        lid_mask_bits: of.lmc,
        subnet_manager_lid: of.sm_lid,
        subnet_manager_level: of.sm_sl,
        link_layer: link_layer(handle, of.link_layer),
        max_message: of.max_msg_sz,
        capability_flags: of.port_cap_flags,
        lanes: lanes(of.active_width),
        lane_rate_mbps: lane_rate(of.active_speed),
        bad_pkeys: of.bad_pkey_cntr,
        qkey_violations: of.qkey_viol_cntr,
        gid_table_len,
        pkeys: pkeys(handle, number, of.pkey_tbl_len).into_iter().map(|(_, key)| key).collect(),
        gids: rows.rows(gid_table_len, Names::Yes),
    })
}

/// The library's own attributes of a port.
pub(super) fn ask(handle: &Handle, number: u8) -> io::Result<sys::ibv_port_attr> {
    let mut of = MaybeUninit::<sys::ibv_port_attr>::zeroed();
    // SAFETY: the context is open, and the attributes are written to.
    outcome(unsafe { sys::ibv_query_port(handle.library, handle.ctx(), number, of.as_mut_ptr()) })?;
    if number == 0 {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: zeroed, which is valid, and filled by the library.
    Ok(unsafe { of.assume_init() })
}

/// The row of port `number`'s table that has a partition's key: with full membership, where there is one, as the kernel has it.
///
/// # Errors
/// [`CreateError::NoPkey`] if there is none.
pub(super) fn pkey_index(handle: &Handle, number: u8, pkey: u16) -> Result<u16, CreateError> {
    let asked = ask(handle, number);
    let of = asked.map_err(|source| CreateError::System { what: "ask the device for its port", source })?;
    let rows = pkeys(handle, number, of.pkey_tbl_len);
    let of_partition = rows.iter().filter(|(_, key)| (key ^ pkey) & !FULL_MEMBER == 0);
    // Of several the first.
    let row = of_partition.min_by_key(|(_, key)| !key & FULL_MEMBER);
    row.map(|&(index, _)| index).ok_or_else(|| {
        let keys = rows.iter().map(|&(_, key)| key).collect();
        CreateError::NoPkey { port: number, pkey, keys }
    })
}

/// Partition keys that are set, with their rows.
fn pkeys(handle: &Handle, port: u8, len: u16) -> Vec<(u16, u16)> {
    let keys = (0..len).filter_map(|index| {
        let mut key = 0;
        // SAFETY: the context is open; the key is written to.
        let status = unsafe { (handle.library.ibv_query_pkey)(handle.ctx(), port, index.into(), &raw mut key) };
        (status == 0).then(|| (index, u16::from_be(key))).filter(|&(_, key)| key != 0)
    });
    keys.collect()
}

fn link_layer(handle: &Handle, code: u8) -> LinkLayer {
    match u32::from(code) {
        // Before there was anything else, this field was zero; so it is where the device is of neither, as EFA's are.
        0 if transport_type(handle) == sys::IBV_TRANSPORT_IB => LinkLayer::InfiniBand,
        1 => LinkLayer::InfiniBand,
        2 => LinkLayer::Ethernet,
        other => LinkLayer::Unknown(other),
    }
}

fn transport_type(handle: &Handle) -> sys::ibv_transport_type {
    // SAFETY: the context is open, and has its device.
    unsafe { (*(*handle.ctx()).device).transport_type }
}

pub(super) fn mtu(code: u32) -> Mtu {
    match code {
        1 => Mtu::B256,
        2 => Mtu::B512,
        4 => Mtu::B2048,
        5 => Mtu::B4096,
        // 3 is 1024, the least that RoCE has over Ethernet frames of 1500 bytes; a code that is not known is taken for it.
        _ => Mtu::B1024,
    }
}

/// Longest message of a port; one that says nothing has the longest that there is.
pub(super) fn longest(told: u32) -> u32 {
    if told == 0 { 1 << 31 } else { told }
}

/// Lanes of a link: `enum ib_port_width`.
fn lanes(code: u8) -> Option<u8> {
    match code {
        1 => Some(1),
        2 => Some(4),
        4 => Some(8),
        8 => Some(12),
        16 => Some(2),
        _ => None,
    }
}

/// Rate of a lane in Mbit/s: `enum ib_port_speed`.
fn lane_rate(code: u8) -> Option<u32> {
    match code {
        1 => Some(2_500),
        2 => Some(5_000),
        4 | 8 => Some(10_000),
        16 => Some(14_000),
        32 => Some(25_000),
        64 => Some(50_000),
        128 => Some(100_000),
        _ => None,
    }
}

/// The bit of a partition key that says whether its port may talk to all of the partition.
const FULL_MEMBER: u16 = 1 << 15;

/// A limit that devices give as a signed number.
pub(super) fn count(value: i32) -> u32 {
    u32::try_from(value).unwrap_or(0)
}
