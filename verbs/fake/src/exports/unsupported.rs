//! What the devices do not offer, as a provider says that.

use std::ffi::{c_int, c_void};

use qpair_verbs_sys::*;

use super::pointer;

#[unsafe(no_mangle)]
extern "C" fn ibv_rereg_mr(
    _mr: *mut ibv_mr,
    _flags: c_int,
    _pd: *mut ibv_pd,
    _addr: *mut c_void,
    _length: usize,
    _access: c_int,
) -> c_int {
    IBV_REREG_MR_ERR_INPUT
}

#[unsafe(no_mangle)]
extern "C" fn ibv_init_ah_from_wc(
    _context: *mut ibv_context,
    _port: u8,
    _wc: *mut ibv_wc,
    _grh: *mut ibv_grh,
    _attr: *mut ibv_ah_attr,
) -> c_int {
    libc::EOPNOTSUPP
}

#[unsafe(no_mangle)]
extern "C" fn ibv_create_ah_from_wc(_pd: *mut ibv_pd, _wc: *mut ibv_wc, _grh: *mut ibv_grh, _port: u8) -> *mut ibv_ah {
    pointer(Err(libc::EOPNOTSUPP))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_attach_mcast(_qp: *mut ibv_qp, _gid: *const ibv_gid, _lid: u16) -> c_int {
    libc::EOPNOTSUPP
}

#[unsafe(no_mangle)]
extern "C" fn ibv_detach_mcast(_qp: *mut ibv_qp, _gid: *const ibv_gid, _lid: u16) -> c_int {
    libc::EOPNOTSUPP
}
