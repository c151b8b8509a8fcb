//! Extended completion queues: polled entry by entry, read field by field.

use std::ffi::c_int;
use std::mem::MaybeUninit;

use qpair_verbs_sys::*;

use super::completion::{Wish, create};
use super::pointer;
use crate::cq;
use crate::exec;
use crate::settings::Settings;
use crate::world::world;

/// What an extended context has of it.
pub(super) fn fill(outer: &mut verbs_context, settings: &Settings) {
    outer.create_cq_ex = settings.has("cq_ex").then_some(create_cq_ex as _);
}

unsafe extern "C" fn create_cq_ex(context: *mut ibv_context, attr: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex {
    // SAFETY: the caller's, to be read.
    let attr = unsafe { &*attr };
    let wish = Wish {
        cqe: i64::from(attr.cqe),
        cq_context: attr.cq_context,
        channel: attr.channel,
        comp_vector: i64::from(attr.comp_vector),
    };
    let standard = IBV_WC_EX_WITH_BYTE_LEN
        | IBV_WC_EX_WITH_IMM
        | IBV_WC_EX_WITH_QP_NUM
        | IBV_WC_EX_WITH_SRC_QP
        | IBV_WC_EX_WITH_SLID
        | IBV_WC_EX_WITH_SL
        | IBV_WC_EX_WITH_DLID_PATH_BITS;
    let stamped = u64::from(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP);
    if attr.wc_flags & !(u64::from(standard) | stamped) != 0 {
        return pointer(Err(libc::EOPNOTSUPP));
    }
    let mut world = world();
    pointer(create(&mut world, "ibv_create_cq_ex", context, &wish).inspect(|cq| {
        // SAFETY: made just now.
        let cq = unsafe { &mut **cq };
        cq.start_poll = Some(start_poll);
        cq.next_poll = Some(next_poll);
        cq.end_poll = Some(end_poll);
        cq.read_opcode = Some(read_opcode);
        cq.read_vendor_err = Some(read_vendor_err);
        cq.read_byte_len = Some(read_byte_len);
        cq.read_imm_data = Some(read_imm_data);
        cq.read_qp_num = Some(read_qp_num);
        cq.read_src_qp = Some(read_src_qp);
        cq.read_wc_flags = Some(read_wc_flags);
        // One that was not asked for is not there, and reading it would jump to address zero.
        cq.read_completion_ts = (attr.wc_flags & stamped != 0).then_some(read_completion_ts as _);
    }))
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the caller's, to be read.
    if unsafe { (*attr).comp_mask } != 0 {
        return libc::EINVAL;
    }
    let (mut locked, address) = (world(), cq.addr());
    match locked.enter("ibv_start_poll", address) {
        Ok(device) => exec::polled(&mut locked, device, address),
        Err(errno) => return errno,
    }
    drop(locked);
    // SAFETY: the caller's queue.
    unsafe { next_poll(cq) }
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    let (mut world, address) = (world(), cq.addr());
    exec::tick(&mut world);
    let found = cq::poll(&mut world, address, 1).pop();
    let Some(state) = world.cq_mut(address) else { return libc::EINVAL };
    let Some(wc) = found else { return libc::ENOENT };
    state.current = Some(wc);
    // SAFETY: alive, and written to with the world locked only.
    unsafe { ((*cq).status, (*cq).wr_id) = (wc.status, wc.wr_id) };
    0
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    let (mut world, address) = (world(), cq.addr());
    let skips = world.device_of(address).is_some_and(|device| world.devices[device].settings.has("cq_ex_skips"));
    if let Some(state) = world.cq_mut(address) {
        state.current = None;
    }
    if skips {
        cq::poll(&mut world, address, 1);
    }
}

/// Declares functions that read a field of the current entry.
macro_rules! readers {
    ($($name:ident $field:ident $kind:ty;)*) => { $(
        unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $kind {
            let (mut world, address) = (world(), cq.addr());
            let current = world.cq(address).and_then(|cq| cq.current);
            if current.is_none() {
                world.violation(address, concat!(stringify!($name), " without a completion"));
            }
            current.map_or(0, |wc| wc.$field)
        }
    )* };
}

readers! {
    read_opcode opcode u32;
    read_vendor_err vendor_err u32;
    read_byte_len byte_len u32;
    read_qp_num qp_num u32;
    read_src_qp src_qp u32;
    read_wc_flags wc_flags u32;
}

unsafe extern "C" fn read_imm_data(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: both readings of the union are of an integer.
    world().cq(cq.addr()).and_then(|cq| cq.current).map_or(0, |wc| unsafe { wc.__bindgen_anon_1.imm_data })
}

unsafe extern "C" fn read_completion_ts(_cq: *mut ibv_cq_ex) -> u64 {
    let mut now = MaybeUninit::<libc::timespec>::zeroed();
    // SAFETY: writes to a local, for which zero is a value.
    let now = unsafe {
        libc::clock_gettime(libc::CLOCK_MONOTONIC_RAW, now.as_mut_ptr());
        now.assume_init()
    };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
