//! `ibv_wr_*`: requests that are built call by call, and posted together.

use std::ffi::{c_int, c_void};
use std::slice;

use qpair_verbs_sys::*;

use super::data::{accept, blank, bound, run};
use crate::null;
use crate::qp::Request;
use crate::world::{World, world};

/// The extended form of a queue pair that was created as one.
pub(super) fn of(world: &World, qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    match world.qp(qp.addr()) {
        Some(state) if state.has_ex => state.c,
        _ => std::ptr::null_mut(),
    }
}

/// Sets the functions for the operations that were asked for; refuses unknown ones.
pub(super) fn fill(ex: &mut ibv_qp_ex, ops: u64, null: bool) -> Result<(), c_int> {
    let offered = [
        IBV_QP_EX_WITH_RDMA_WRITE,
        IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
        IBV_QP_EX_WITH_SEND,
        IBV_QP_EX_WITH_SEND_WITH_IMM,
        IBV_QP_EX_WITH_RDMA_READ,
        IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP,
        IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
        IBV_QP_EX_WITH_LOCAL_INV,
        IBV_QP_EX_WITH_BIND_MW,
        IBV_QP_EX_WITH_SEND_WITH_INV,
    ];
    if ops & !offered.iter().fold(0, |all, op| all | u64::from(*op)) != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    if null {
        null::fill_ex(ex);
        return Ok(());
    }
    let wants = |op: u32| ops & u64::from(op) != 0;
    ex.wr_start = Some(wr_start);
    ex.wr_complete = Some(wr_complete);
    ex.wr_abort = Some(wr_abort);
    ex.wr_set_sge = Some(wr_set_sge);
    ex.wr_set_sge_list = Some(wr_set_sge_list);
    ex.wr_set_inline_data = Some(wr_set_inline_data);
    ex.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    ex.wr_set_ud_addr = Some(wr_set_ud_addr);
    ex.wr_rdma_write = wants(IBV_QP_EX_WITH_RDMA_WRITE).then_some(wr_rdma_write as _);
    ex.wr_rdma_write_imm = wants(IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM).then_some(wr_rdma_write_imm as _);
    ex.wr_send = wants(IBV_QP_EX_WITH_SEND).then_some(wr_send as _);
    ex.wr_send_imm = wants(IBV_QP_EX_WITH_SEND_WITH_IMM).then_some(wr_send_imm as _);
    ex.wr_send_inv = wants(IBV_QP_EX_WITH_SEND_WITH_INV).then_some(wr_send_inv as _);
    ex.wr_rdma_read = wants(IBV_QP_EX_WITH_RDMA_READ).then_some(wr_rdma_read as _);
    ex.wr_atomic_cmp_swp = wants(IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP).then_some(wr_atomic_cmp_swp as _);
    ex.wr_atomic_fetch_add = wants(IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD).then_some(wr_atomic_fetch_add as _);
    ex.wr_local_inv = wants(IBV_QP_EX_WITH_LOCAL_INV).then_some(wr_local_inv as _);
    ex.wr_bind_mw = wants(IBV_QP_EX_WITH_BIND_MW).then_some(wr_bind_mw as _);
    Ok(())
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    let (mut world, address) = (world(), qp.addr());
    let started = world.qp_mut(address).map(|qp| qp.building.replace((Vec::new(), 0)));
    if let Some(Some(_)) = started {
        world.violation(address, "ibv_wr_start within ibv_wr_start");
    }
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    if let Some(state) = world().qp_mut(qp.addr()) {
        state.building = None;
    }
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    let (mut world, address) = (world(), qp.addr());
    let entered = world.enter("ibv_wr_complete", address);
    let built = world.qp_mut(address).and_then(|qp| qp.building.take());
    let Some((requests, error)) = built else {
        world.violation(address, "ibv_wr_complete without ibv_wr_start");
        return libc::EINVAL;
    };
    if let Err(errno) = entered {
        return errno;
    }
    // All or none: whatever is wrong with one, none is posted.
    let room = world.qp(address).map_or(0, |qp| u64::from(qp.cap.max_send_wr) - (qp.posted - qp.retired));
    if error != 0 || requests.len() as u64 > room {
        return if error != 0 { error } else { libc::ENOMEM };
    }
    let mut result = 0;
    for request in requests {
        if let Err(errno) = accept(&mut world, address, request) {
            result = errno;
            break;
        }
    }
    run(&mut world, address);
    result
}

/// Begins a request, with the number and the flags that the structure holds now.
///
/// # Safety
/// The queue pair is one of this library.
unsafe fn begin(qp: *mut ibv_qp_ex, opcode: u32, set: impl FnOnce(&mut Request)) {
    // SAFETY: structures are never freed.
    let mut request = unsafe { blank((*qp).wr_id, opcode, (*qp).wr_flags) };
    set(&mut request);
    let (mut world, address) = (world(), qp.addr());
    match world.qp_mut(address).map(|qp| &mut qp.building) {
        Some(Some((requests, _))) => requests.push(request),
        _ => world.violation(address, "a request outside of ibv_wr_start"),
    }
}

/// Adds to the request that was begun last.
fn add(qp: *mut ibv_qp_ex, set: impl FnOnce(&mut Request)) {
    let (mut world, address) = (world(), qp.addr());
    match world.qp_mut(address).map(|qp| &mut qp.building) {
        Some(Some((requests, error))) => match requests.last_mut() {
            Some(request) => set(request),
            None => *error = libc::EINVAL,
        },
        _ => world.violation(address, "a setter outside of ibv_wr_start"),
    }
}

/// Declares functions that begin a request of one opcode.
macro_rules! operations {
    ($($name:ident($($argument:ident: $kind:ty),*) $opcode:ident { $($field:ident = $value:expr),* })*) => { $(
        unsafe extern "C" fn $name(qp: *mut ibv_qp_ex, $($argument: $kind),*) {
            // SAFETY: the caller's queue pair.
            unsafe {
                begin(qp, $opcode, |request| {
                    let _: &Request = request;
                    $(request.$field = $value;)*
                });
            }
        }
    )* };
}

operations! {
    wr_rdma_write(key: u32, at: u64) IBV_WR_RDMA_WRITE { rkey = key, address = at }
    wr_rdma_write_imm(key: u32, at: u64, data: u32) IBV_WR_RDMA_WRITE_WITH_IMM {
        rkey = key, address = at, immediate = data
    }
    wr_rdma_read(key: u32, at: u64) IBV_WR_RDMA_READ { rkey = key, address = at }
    wr_send() IBV_WR_SEND {}
    wr_send_imm(data: u32) IBV_WR_SEND_WITH_IMM { immediate = data }
    wr_send_inv(key: u32) IBV_WR_SEND_WITH_INV { immediate = key }
    wr_local_inv(key: u32) IBV_WR_LOCAL_INV { immediate = key }
    wr_atomic_cmp_swp(key: u32, at: u64, compare: u64, new: u64) IBV_WR_ATOMIC_CMP_AND_SWP {
        rkey = key, address = at, compare_add = compare, swap = new
    }
    wr_atomic_fetch_add(key: u32, at: u64, operand: u64) IBV_WR_ATOMIC_FETCH_AND_ADD {
        rkey = key, address = at, compare_add = operand
    }
}

unsafe extern "C" fn wr_bind_mw(qp: *mut ibv_qp_ex, mw: *mut ibv_mw, key: u32, info: *const ibv_mw_bind_info) {
    // SAFETY: the caller's queue pair and binding.
    unsafe { begin(qp, IBV_WR_BIND_MW, |request| request.bind = Some((mw.addr(), key, bound(qp.addr(), &*info)))) }
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    add(qp, |request| request.list = vec![ibv_sge { addr, length, lkey }]);
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: the caller's, with as many entries.
    let list = if count == 0 { Vec::new() } else { unsafe { slice::from_raw_parts(list, count) }.to_vec() };
    add(qp, |request| request.list = list);
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, address: *mut c_void, length: usize) {
    let one = ibv_data_buf { addr: address, length };
    // SAFETY: the caller's data.
    unsafe { wr_set_inline_data_list(qp, 1, &raw const one) };
}

unsafe extern "C" fn wr_set_inline_data_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_data_buf) {
    let mut bytes = Vec::new();
    for at in 0..count {
        // SAFETY: the caller's list, with as many entries, each of memory that can be read.
        unsafe {
            let part = &*list.add(at);
            if part.length > 0 {
                bytes.extend_from_slice(slice::from_raw_parts(part.addr.cast::<u8>(), part.length));
            }
        }
    }
    add(qp, |request| request.inline = Some(bytes));
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32) {
    add(qp, |request| {
        (request.ah, request.remote_qpn, request.remote_qkey) = (ah.addr(), remote_qpn, remote_qkey);
    });
}
