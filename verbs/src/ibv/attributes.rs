//! What a device says of itself.

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::ptr::null_mut;

use qpair_verbs_sys as sys;

use super::handle::{Handle, made};
use super::port::{self, count};
use crate::device::{AtomicAbility, DeviceAttributes, OnDemandPaging};

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
        max_message: port::ask(handle, 1).map_or(0, |port| port.max_msg_sz),
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

fn text(bytes: &[c_char]) -> String {
    let bytes: Vec<u8> = bytes.iter().map(|byte| u8::from_ne_bytes(byte.to_ne_bytes())).chain([0]).collect();
    CStr::from_bytes_until_nul(&bytes).map_or_else(|_| String::new(), |text| text.to_string_lossy().into_owned())
}
