//! What a device and its ports say of themselves.

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::ptr::null_mut;

use qpair_verbs_sys as sys;

use super::gid;
use super::handle::{Handle, made};
use crate::device::{
    AtomicAbility, DeviceAttributes, LinkLayer, OnDemandPaging, PhysicalState, PortAttributes, PortState,
};
use crate::types::Mtu;

/// Limits and abilities of a device.
pub(super) fn device(handle: &Handle) -> DeviceAttributes {
    let mut extended = MaybeUninit::<sys::ibv_device_attr_ex>::zeroed();
    // SAFETY: the context is open, and the attributes are written to.
    let known = unsafe { sys::ibv_query_device_ex(handle.ctx(), std::ptr::null(), extended.as_mut_ptr()) } == Ok(0);
    if !known {
        // SAFETY: the plain attributes stand in front of the extended ones; they stay zero where the call fails.
        unsafe { (handle.library.ibv_query_device)(handle.ctx(), extended.as_mut_ptr().cast()) };
    }
    // SAFETY: all of it was zeroed, which is valid, and parts of it filled by the library.
    let extended = unsafe { extended.assume_init() };
    let of = &extended.orig_attr;
    DeviceAttributes {
        node_guid: u64::from_be(of.node_guid),
        sys_image_guid: u64::from_be(of.sys_image_guid),
        vendor_id: of.vendor_id,
        vendor_part_id: of.vendor_part_id,
        hw_version: of.hw_ver,
        firmware: text(&of.fw_ver),
        ports: of.phys_port_cnt,
        max_qp: count(of.max_qp),
        max_qp_wr: count(of.max_qp_wr),
        max_sge: count(of.max_sge),
        max_sge_read: count(of.max_sge_rd),
        max_cq: count(of.max_cq),
        max_cqe: count(of.max_cqe),
        max_mr: count(of.max_mr),
        max_pd: count(of.max_pd),
        max_mw: count(of.max_mw),
        max_ah: count(of.max_ah),
        max_srq: count(of.max_srq),
        max_srq_wr: count(of.max_srq_wr),
        max_srq_sge: count(of.max_srq_sge),
        max_pkeys: of.max_pkeys.into(),
        max_rd_atomic: count(of.max_qp_rd_atom),
        max_init_rd_atomic: count(of.max_qp_init_rd_atom),
        max_mr_size: of.max_mr_size,
        max_message: port(handle, 1).map_or(0, |port| port.max_message),
        max_inline: max_inline(handle),
        page_sizes: of.page_size_cap,
        ack_delay: std::time::Duration::from_nanos(4096_u64.checked_shl(of.local_ca_ack_delay.into()).unwrap_or(0)),
        device_flags: if known { extended.device_cap_flags_ex } else { of.device_cap_flags.into() },
        completion_vectors: count(completion_vectors(handle)),
        atomics: match of.atomic_cap {
            sys::IBV_ATOMIC_NONE => AtomicAbility::None,
            sys::IBV_ATOMIC_HCA => AtomicAbility::Device,
            sys::IBV_ATOMIC_GLOB => AtomicAbility::Everywhere,
            other => AtomicAbility::Unknown(other),
        },
        atomics_with_cpu: of.atomic_cap == sys::IBV_ATOMIC_GLOB,
        read_reduce: false,
        timestamp_mask: extended.completion_timestamp_mask,
        core_clock_khz: extended.hca_core_clock,
        on_demand_paging: OnDemandPaging {
            general: extended.odp_caps.general_caps,
            rc: extended.odp_caps.per_transport_caps.rc_odp_caps,
            uc: extended.odp_caps.per_transport_caps.uc_odp_caps,
            ud: extended.odp_caps.per_transport_caps.ud_odp_caps,
        },
    }
}

/// Port `number` as it is now; `None` if there is none.
pub(super) fn port(handle: &Handle, number: u8) -> Option<PortAttributes> {
    let mut of = MaybeUninit::<sys::ibv_port_attr>::zeroed();
    // SAFETY: the context is open, and the attributes are written to.
    let status = unsafe { sys::ibv_query_port(handle.library, handle.ctx(), number, of.as_mut_ptr()) };
    if number == 0 || status != 0 {
        return None;
    }
    // SAFETY: zeroed, which is valid, and filled by the library.
    let of = unsafe { of.assume_init() };
    let gid_table_len = count(of.gid_tbl_len);
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
        link_layer: match u32::from(of.link_layer) {
            // Before there was anything else, this field was zero.
            0 | 1 => LinkLayer::InfiniBand,
            2 => LinkLayer::Ethernet,
            other => LinkLayer::Unknown(other),
        },
        max_message: of.max_msg_sz,
        capability_flags: of.port_cap_flags,
        lanes: lanes(of.active_width),
        lane_rate_mbps: lane_rate(of.active_speed),
        bad_pkeys: of.bad_pkey_cntr,
        qkey_violations: of.qkey_viol_cntr,
        gid_table_len,
        pkeys: pkeys(handle, number, of.pkey_tbl_len),
        gids: gid::table(handle, number, gid_table_len),
    })
}

/// Partition keys that are set.
fn pkeys(handle: &Handle, port: u8, len: u16) -> Vec<u16> {
    let keys = (0..len).filter_map(|index| {
        let mut key = 0;
        // SAFETY: the context is open; the key is written to.
        let status = unsafe { (handle.library.ibv_query_pkey)(handle.ctx(), port, index.into(), &raw mut key) };
        (status == 0).then(|| u16::from_be(key)).filter(|&key| key != 0)
    });
    keys.collect()
}

fn completion_vectors(handle: &Handle) -> i32 {
    // SAFETY: the context is open.
    unsafe { (*handle.ctx()).num_comp_vectors }
}

/// The greatest room for inline data up to [`MOST_INLINE`], which devices do not tell: found by making queue pairs.
fn max_inline(handle: &Handle) -> u32 {
    let library = handle.library;
    // SAFETY: the context is open; what is made is given back below, in reverse.
    unsafe {
        let Ok(pd) = made((library.ibv_alloc_pd)(handle.ctx())) else { return 0 };
        let mut found = 0;
        if let Ok(cq) = made((library.ibv_create_cq)(handle.ctx(), 4, null_mut(), null_mut(), 0)) {
            found =
                TRIED_INLINE.into_iter().find_map(|len| try_inline(handle, pd.as_ptr(), cq.as_ptr(), len)).unwrap_or(0);
            (library.ibv_destroy_cq)(cq.as_ptr());
        }
        (library.ibv_dealloc_pd)(pd.as_ptr());
        found
    }
}

/// # Safety
/// Domain and queue are alive.
unsafe fn try_inline(handle: &Handle, pd: *mut sys::ibv_pd, cq: *mut sys::ibv_cq, len: u32) -> Option<u32> {
    // SAFETY: all zeroes is a valid value of these plain attributes.
    let mut attributes = unsafe { MaybeUninit::<sys::ibv_qp_init_attr>::zeroed().assume_init() };
    (attributes.send_cq, attributes.recv_cq, attributes.qp_type) = (cq, cq, sys::IBV_QPT_RC);
    attributes.cap =
        sys::ibv_qp_cap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: len };
    // SAFETY: domain and queue are alive, by the caller.
    let qp = made(unsafe { (handle.library.ibv_create_qp)(pd, &raw mut attributes) }).ok()?;
    // SAFETY: just made, and nothing was posted.
    unsafe { (handle.library.ibv_destroy_qp)(qp.as_ptr()) };
    // Some providers give more than was asked for, and some say 0 where they gave what was asked for.
    Some(attributes.cap.max_inline_data.clamp(len, MOST_INLINE))
}

/// What queue pairs reserve by default at most: room for it makes each slot of a send queue longer.
const MOST_INLINE: u32 = 256;
const TRIED_INLINE: [u32; 4] = [MOST_INLINE, 128, 64, 32];

fn mtu(code: u32) -> Mtu {
    match code {
        1 => Mtu::B256,
        2 => Mtu::B512,
        4 => Mtu::B2048,
        5 => Mtu::B4096,
        // 3 is 1024, the least that RoCE has over Ethernet frames of 1500 bytes; a code that is not known is taken for it.
        _ => Mtu::B1024,
    }
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

/// A limit that devices give as a signed number.
fn count(value: i32) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

fn text(bytes: &[c_char]) -> String {
    let bytes: Vec<u8> = bytes.iter().map(|byte| u8::from_ne_bytes(byte.to_ne_bytes())).chain([0]).collect();
    CStr::from_bytes_until_nul(&bytes).map_or_else(|_| String::new(), |text| text.to_string_lossy().into_owned())
}
