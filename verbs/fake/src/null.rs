//! Devices that only note what is posted, as cheaply as can be: for counting the instructions of the code above.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};

use qpair_verbs_sys::*;

use crate::cq::CqStructure;

/// What was posted and not polled, in order.
pub(crate) struct Ring {
    entries: Box<[UnsafeCell<Entry>]>,
    head: UnsafeCell<usize>,
    tail: UnsafeCell<usize>,
    mask: usize,
}

#[derive(Clone, Copy, Default)]
struct Entry {
    wr_id: u64,
    qp_num: u32,
    opcode: ibv_wc_opcode,
}

impl Ring {
    /// A ring for so many entries, a power of two.
    pub(crate) fn new(entries: usize) -> Ring {
        let entries = entries.next_power_of_two();
        Ring {
            entries: (0..entries).map(|_| UnsafeCell::default()).collect(),
            head: UnsafeCell::new(0),
            tail: UnsafeCell::new(0),
            mask: entries - 1,
        }
    }
}

/// Replaces the data path of a context.
pub(crate) fn fill(ops: &mut ibv_context_ops) {
    ops.post_send = Some(post_send);
    ops.post_recv = Some(post_recv);
    ops.post_srq_recv = Some(post_srq_recv);
    ops.poll_cq = Some(poll_cq);
}

/// Replaces the builder of a queue pair.
pub(crate) fn fill_ex(ex: &mut ibv_qp_ex) {
    ex.wr_start = Some(start);
    ex.wr_abort = Some(start);
    ex.wr_complete = Some(complete);
    ex.wr_send = Some(plain);
    ex.wr_rdma_write = Some(remote);
    ex.wr_rdma_read = Some(remote);
    ex.wr_send_imm = Some(with_number);
    ex.wr_send_inv = Some(with_number);
    ex.wr_local_inv = Some(with_number);
    ex.wr_rdma_write_imm = Some(remote_with_number);
    ex.wr_atomic_fetch_add = Some(add);
    ex.wr_atomic_cmp_swp = Some(compare_swap);
    ex.wr_bind_mw = Some(bind);
    ex.wr_set_ud_addr = Some(set_ud_addr);
    ex.wr_set_sge_list = Some(set_sge_list);
    ex.wr_set_sge = Some(set_sge);
    ex.wr_set_inline_data = Some(set_inline_data);
}

/// The ring of what completes at a queue.
///
/// # Safety
/// The queue is alive, and no other thread polls it, or posts what completes there.
unsafe fn ring<'a>(cq: *mut ibv_cq) -> &'a Ring {
    // SAFETY: each CQ of this library is such a structure, never freed.
    unsafe { &(*cq.cast::<CqStructure>()).ring }
}

/// Notes one request; false if there is no room.
///
/// # Safety
/// No other thread uses the ring.
#[inline]
unsafe fn note(ring: &Ring, entry: Entry) -> bool {
    // SAFETY: as the caller says; the index is masked.
    unsafe {
        let (head, tail) = (*ring.head.get(), *ring.tail.get());
        if tail.wrapping_sub(head) > ring.mask {
            return false;
        }
        *ring.entries.get_unchecked(tail & ring.mask).get() = entry;
        *ring.tail.get() = tail.wrapping_add(1);
    }
    true
}

unsafe extern "C" fn post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    let mut next = wr;
    // SAFETY: the caller's list and queue pair, in one thread as `null` devices demand.
    unsafe {
        let (ring, qp_num) = (ring((*qp).send_cq), (*qp).qp_num);
        while !next.is_null() {
            let entry = Entry { wr_id: (*next).wr_id, qp_num, opcode: IBV_WC_RDMA_WRITE };
            if (*next).send_flags & IBV_SEND_SIGNALED != 0 && !note(ring, entry) {
                *bad = next;
                return libc::ENOMEM;
            }
            next = (*next).next;
        }
    }
    0
}

/// A message comes for each receive at once.
unsafe extern "C" fn post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    let mut next = wr;
    // SAFETY: as for `post_send`.
    unsafe {
        let (ring, qp_num) = (ring((*qp).recv_cq), (*qp).qp_num);
        while !next.is_null() {
            if !note(ring, Entry { wr_id: (*next).wr_id, qp_num, opcode: IBV_WC_RECV }) {
                *bad = next;
                return libc::ENOMEM;
            }
            next = (*next).next;
        }
    }
    0
}

/// Receives of a shared queue never complete: they are of no queue pair.
unsafe extern "C" fn post_srq_recv(_srq: *mut ibv_srq, _wr: *mut ibv_recv_wr, _bad: *mut *mut ibv_recv_wr) -> c_int {
    0
}

unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, room: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the caller's queue, in one thread, and memory for as many completions.
    unsafe {
        let ring = ring(cq);
        let (head, tail) = (*ring.head.get(), *ring.tail.get());
        let count = tail.wrapping_sub(head).min(room as usize);
        for at in 0..count {
            let entry = *ring.entries.get_unchecked(head.wrapping_add(at) & ring.mask).get();
            let wc = &mut *wc.add(at);
            wc.wr_id = entry.wr_id;
            wc.status = IBV_WC_SUCCESS;
            wc.opcode = entry.opcode;
            wc.byte_len = LENGTH;
            wc.qp_num = entry.qp_num;
            wc.wc_flags = 0;
        }
        *ring.head.get() = head.wrapping_add(count);
        count as c_int
    }
}

unsafe extern "C" fn start(_qp: *mut ibv_qp_ex) {}

unsafe extern "C" fn plain(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's queue pair, in one thread as `null` devices demand. A full ring loses the request.
    unsafe {
        if (*qp).wr_flags & IBV_SEND_SIGNALED != 0 {
            let entry = Entry { wr_id: (*qp).wr_id, qp_num: (*qp).qp_base.qp_num, opcode: IBV_WC_RDMA_WRITE };
            note(ring((*qp).qp_base.send_cq), entry);
        }
    }
}

unsafe extern "C" fn remote(qp: *mut ibv_qp_ex, _rkey: u32, _address: u64) {
    // SAFETY: as for `plain`.
    unsafe { plain(qp) }
}

unsafe extern "C" fn with_number(qp: *mut ibv_qp_ex, _number: u32) {
    // SAFETY: as for `plain`.
    unsafe { plain(qp) }
}

unsafe extern "C" fn remote_with_number(qp: *mut ibv_qp_ex, _rkey: u32, _address: u64, _imm: u32) {
    // SAFETY: as for `plain`.
    unsafe { plain(qp) }
}

unsafe extern "C" fn add(qp: *mut ibv_qp_ex, _rkey: u32, _address: u64, _add: u64) {
    // SAFETY: as for `plain`.
    unsafe { plain(qp) }
}

unsafe extern "C" fn compare_swap(qp: *mut ibv_qp_ex, _rkey: u32, _address: u64, _compare: u64, _swap: u64) {
    // SAFETY: as for `plain`.
    unsafe { plain(qp) }
}

unsafe extern "C" fn bind(qp: *mut ibv_qp_ex, _mw: *mut ibv_mw, _key: u32, _info: *const ibv_mw_bind_info) {
    // SAFETY: as for `plain`.
    unsafe { plain(qp) }
}

unsafe extern "C" fn set_ud_addr(_qp: *mut ibv_qp_ex, _ah: *mut ibv_ah, _remote_qpn: u32, _remote_qkey: u32) {}

unsafe extern "C" fn set_sge_list(_qp: *mut ibv_qp_ex, _count: usize, _list: *const ibv_sge) {}

unsafe extern "C" fn set_sge(_qp: *mut ibv_qp_ex, _lkey: u32, _address: u64, _length: u32) {}

unsafe extern "C" fn set_inline_data(_qp: *mut ibv_qp_ex, _address: *mut c_void, _length: usize) {}

unsafe extern "C" fn complete(_qp: *mut ibv_qp_ex) -> c_int {
    0
}

/// Bytes that each completion tells.
const LENGTH: u32 = 8;
