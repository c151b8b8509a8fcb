//! What a device says of itself.

use std::ffi::{CStr, c_char};
use std::io;
use std::mem::MaybeUninit;

use qpair_verbs_sys as sys;

use super::handle::{Handle, outcome};
use super::port::{self, count};
use crate::device::{AtomicAbility, DeviceAttributes, OnDemandPaging};
use crate::error::OpenError;

/// Limits and abilities of a device, but for its room for inline data.
pub(super) fn device(handle: &Handle) -> Result<DeviceAttributes, OpenError> {
    let silent = |what, source| OpenError::Silent { name: handle.name.clone(), what, source };
    let (extended, known) = ask(handle).map_err(|source| silent("its limits", source))?;
    let of = &extended.orig_attr;
    let max_message = match of.phys_port_cnt {
        0 => 0,
        _ => port::ask(handle, 1).map_err(|source| silent("its port", source))?.max_msg_sz,
    };
    Ok(DeviceAttributes {
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
        max_message,
        max_inline: 0,
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
    })
}

/// The library's own attributes, and whether more than the plain ones is known.
fn ask(handle: &Handle) -> io::Result<(sys::ibv_device_attr_ex, bool)> {
    let mut extended = MaybeUninit::<sys::ibv_device_attr_ex>::zeroed();
    // SAFETY: the context is open, and the attributes are written to.
    let status = unsafe { sys::ibv_query_device_ex(handle.ctx(), std::ptr::null(), extended.as_mut_ptr()) };
    let known = match status.map(outcome) {
        Ok(Ok(())) => true,
        // What the device is short of at this moment says nothing of what it can do.
        Ok(Err(error)) if matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::EAGAIN | libc::EINTR)) => {
            return Err(error);
        }
        Ok(Err(_)) | Err(_) => false,
    };
    if !known {
        // SAFETY: the plain attributes stand in front of the extended ones, and are written to.
        outcome(unsafe { (handle.library.ibv_query_device)(handle.ctx(), extended.as_mut_ptr().cast()) })?;
    }
    // SAFETY: all of it was zeroed, which is valid, and parts of it filled by the library.
    Ok((unsafe { extended.assume_init() }, known))
}

fn completion_vectors(handle: &Handle) -> i32 {
    // SAFETY: the context is open.
    unsafe { (*handle.ctx()).num_comp_vectors }
}

fn text(bytes: &[c_char]) -> String {
    let bytes: Vec<u8> = bytes.iter().map(|byte| u8::from_ne_bytes(byte.to_ne_bytes())).chain([0]).collect();
    CStr::from_bytes_until_nul(&bytes).map_or_else(|_| String::new(), |text| text.to_string_lossy().into_owned())
}
