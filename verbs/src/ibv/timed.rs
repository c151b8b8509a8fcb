//! Making a completion queue that tells when each completion was.

use std::ptr::null_mut;

use qpair_verbs_sys as sys;

use super::handle::Handle;

/// What each completion is asked for.
pub(super) const WANTED: u64 = (sys::IBV_WC_EX_WITH_BYTE_LEN
    | sys::IBV_WC_EX_WITH_IMM
    | sys::IBV_WC_EX_WITH_QP_NUM
    | sys::IBV_WC_EX_WITH_SRC_QP
    | sys::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP) as u64;

/// Makes an extended queue of so many entries, whose events come by that vector; null with errno where that fails.
pub(super) fn create_timed(
    handle: &Handle,
    (depth, vector): (u32, u32),
    channel: *mut sys::ibv_comp_channel,
    name: *mut std::ffi::c_void,
) -> *mut sys::ibv_cq {
    let mut attributes = sys::ibv_cq_init_attr_ex {
        cqe: depth,
        cq_context: name,
        channel,
        comp_vector: vector,
        wc_flags: WANTED,
        comp_mask: 0,
        flags: 0,
        parent_domain: null_mut(),
    };
    // SAFETY: context and channel are alive.
    match unsafe { sys::ibv_create_cq_ex(handle.ctx(), &raw mut attributes) } {
        Ok(cq) => cq.cast(),
        Err(_) => {
            // SAFETY: sets this thread's error number.
            unsafe { *libc::__errno_location() = libc::EOPNOTSUPP };
            null_mut()
        }
    }
}
