//! Posting and polling.

use std::ffi::c_int;
use std::slice;

use qpair_verbs_sys::*;

use super::code;
use super::protection::{alloc_mw, dealloc_mw};
use crate::cq::{self, Armed};
use crate::exec;
use crate::memory::Bound;
use crate::qp::{self, Qp, Receive, Request};
use crate::settings::Settings;
use crate::world::{World, world};

/// The functions of a context. A setting of 2 leaves one out.
pub(super) fn fill(ops: &mut ibv_context_ops, settings: &Settings) {
    let there = |name| settings.get(name) != 2;
    ops.post_send = there("post_send").then_some(post_send as _);
    ops.post_recv = Some(post_recv);
    ops.post_srq_recv = there("srq").then_some(post_srq_recv as _);
    ops.poll_cq = there("poll_cq").then_some(poll_cq as _);
    ops.req_notify_cq = Some(req_notify_cq);
    ops.alloc_mw = there("mw").then_some(alloc_mw as _);
    ops.bind_mw = there("mw").then_some(bind_mw as _);
    ops.dealloc_mw = there("mw").then_some(dealloc_mw as _);
}

unsafe extern "C" fn post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    let (mut world, address) = (world(), qp.addr());
    if wr.is_null() {
        world.violation(address, "an empty list was posted");
    }
    let mut next = wr;
    let mut result = world.enter("ibv_post_send", address).map(drop);
    while result.is_ok() && !next.is_null() {
        // SAFETY: the caller's list, to be read.
        let wr = unsafe { &*next };
        result = world.enter("post_send_wr", address).and_then(|_| {
            // SAFETY: as above, with what it points to.
            let request = unsafe { request(&world, address, wr)? };
            accept(&mut world, address, request)
        });
        if result.is_ok() {
            next = wr.next;
        }
    }
    if result.is_err() {
        // SAFETY: the caller's, to be written to.
        unsafe { *bad = next };
    }
    run(&mut world, address);
    code(result)
}

/// Does what can be done of a queue pair, and then of those that waited for it.
pub(super) fn run(world: &mut World, address: usize) {
    exec::run(world, address);
    exec::kick(world);
}

/// Takes a request into the queue, or flushes it at once.
pub(super) fn accept(world: &mut World, address: usize, mut request: Request) -> Result<(), c_int> {
    let qp = world.qp_mut(address).ok_or(libc::EINVAL)?;
    check(qp, &request)?;
    request.number = qp.posted;
    qp.posted += 1;
    let (wr_id, opcode, flags) = (request.wr_id, request.opcode, request.flags);
    // Of registered memory: inline data are none.
    let pieces = if request.inline.is_some() { 0 } else { request.list.len() };
    let failed = qp.state == IBV_QPS_ERR || qp.state == IBV_QPS_SQE;
    if failed {
        let (queue, completion) = (qp.send_cq, qp.sent(address, &request, IBV_WC_WR_FLUSH_ERR, 0));
        cq::complete(world, queue, completion, false);
    } else {
        qp.send.push_back(request);
    }
    world.record(
        "ibv_post_send",
        address,
        format_args!(" wr_id={wr_id:#x} opcode={opcode} flags={flags:#x} sge={pieces}"),
    );
    Ok(())
}

/// Refuses what a provider refuses when it is posted.
fn check(qp: &Qp, request: &Request) -> Result<(), c_int> {
    if matches!(qp.state, IBV_QPS_RESET | IBV_QPS_INIT | IBV_QPS_RTR) {
        return Err(libc::EINVAL);
    }
    if qp.posted - qp.retired >= u64::from(qp.cap.max_send_wr) {
        return Err(libc::ENOMEM);
    }
    let opcode = request.opcode;
    let known = match qp.kind {
        IBV_QPT_RC => opcode <= IBV_WR_SEND_WITH_INV,
        IBV_QPT_UC => matches!(
            opcode,
            IBV_WR_RDMA_WRITE
                | IBV_WR_RDMA_WRITE_WITH_IMM
                | IBV_WR_SEND
                | IBV_WR_SEND_WITH_IMM
                | IBV_WR_SEND_WITH_INV
                | IBV_WR_LOCAL_INV
                | IBV_WR_BIND_MW
        ),
        _ => matches!(opcode, IBV_WR_SEND | IBV_WR_SEND_WITH_IMM),
    };
    let sends = !matches!(
        opcode,
        IBV_WR_RDMA_READ | IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD | IBV_WR_LOCAL_INV | IBV_WR_BIND_MW
    );
    let inline = request.inline.as_ref().map_or(0, Vec::len);
    let too_much = request.list.len() > qp.cap.max_send_sge as usize && request.inline.is_none();
    let bad_inline = request.inline.is_some() && (!sends || inline > qp.cap.max_inline_data as usize);
    if !known || too_much || bad_inline { Err(libc::EINVAL) } else { Ok(()) }
}

/// Reads a request.
///
/// # Safety
/// The request is one as C wants it, with a list of as many entries as it says, and inline data that can be read.
unsafe fn request(world: &World, address: usize, wr: &ibv_send_wr) -> Result<Request, c_int> {
    let kind = world.qp(address).ok_or(libc::EINVAL)?.kind;
    let mut request = blank(wr.wr_id, wr.opcode, wr.send_flags);
    let datagram = kind == IBV_QPT_UD;
    // SAFETY: each part of the unions is numbers and pointers; which one counts follows from the opcode. The list and
    // the inline data are the caller's.
    unsafe {
        request.list = entries(wr.sg_list, wr.num_sge)?;
        request.immediate = wr.__bindgen_anon_1.imm_data;
        match wr.opcode {
            IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
                let atomic = wr.wr.atomic;
                (request.address, request.rkey) = (atomic.remote_addr, atomic.rkey);
                (request.compare_add, request.swap) = (atomic.compare_add, atomic.swap);
            }
            IBV_WR_BIND_MW => {
                let bind = wr.__bindgen_anon_2.bind_mw;
                request.bind = Some((bind.mw.addr(), bind.rkey, bound(address, &bind.bind_info)));
            }
            _ if datagram => {
                let ud = wr.wr.ud;
                (request.ah, request.remote_qpn, request.remote_qkey) = (ud.ah.addr(), ud.remote_qpn, ud.remote_qkey);
            }
            _ => (request.address, request.rkey) = (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey),
        }
        if wr.send_flags & IBV_SEND_INLINE != 0 {
            request.inline = Some(read_inline(&request.list));
        }
    }
    Ok(request)
}

pub(super) fn blank(wr_id: u64, opcode: u32, flags: u32) -> Request {
    Request {
        number: 0,
        wr_id,
        opcode,
        flags,
        list: Vec::new(),
        inline: None,
        immediate: 0,
        address: 0,
        rkey: 0,
        compare_add: 0,
        swap: 0,
        ah: 0,
        remote_qpn: 0,
        remote_qkey: 0,
        bind: None,
    }
}

pub(super) fn bound(qp: usize, info: &ibv_mw_bind_info) -> Bound {
    Bound { mr: info.mr.addr(), start: info.addr, length: info.length, access: info.mw_access_flags, qp }
}

/// Reads a scatter-gather list.
///
/// # Safety
/// There are as many entries as it says.
unsafe fn entries(list: *const ibv_sge, count: c_int) -> Result<Vec<ibv_sge>, c_int> {
    match usize::try_from(count) {
        Ok(0) => Ok(Vec::new()),
        Ok(count) if !list.is_null() => {
            // SAFETY: as the caller says.
            Ok(unsafe { slice::from_raw_parts(list, count) }.to_vec())
        }
        _ => Err(libc::EINVAL),
    }
}

/// Copies the data of an inline request.
///
/// # Safety
/// The entries are memory that can be read.
unsafe fn read_inline(list: &[ibv_sge]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in list.iter().filter(|entry| entry.length > 0) {
        let start = std::ptr::with_exposed_provenance::<u8>(entry.addr as usize);
        // SAFETY: as the caller says.
        bytes.extend_from_slice(unsafe { slice::from_raw_parts(start, entry.length as usize) });
    }
    bytes
}

unsafe extern "C" fn post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    let (mut world, address) = (world(), qp.addr());
    // SAFETY: the caller's list, and place for the bad one.
    let result = unsafe { post_receives(&mut world, "ibv_post_recv", address, (wr, bad), receive_on_qp) };
    exec::kick(&mut world);
    code(result)
}

unsafe extern "C" fn post_srq_recv(srq: *mut ibv_srq, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    let (mut world, address) = (world(), srq.addr());
    // SAFETY: the caller's list, and place for the bad one.
    let result = unsafe { post_receives(&mut world, "ibv_post_srq_recv", address, (wr, bad), receive_on_srq) };
    exec::kick(&mut world);
    code(result)
}

/// Takes a list of receives into a queue, up to one that is refused.
///
/// # Safety
/// The list is one as C wants it, and the place can be written to.
unsafe fn post_receives(
    world: &mut World,
    symbol: &'static str,
    address: usize,
    (wr, bad): (*mut ibv_recv_wr, *mut *mut ibv_recv_wr),
    take: fn(&mut World, usize, Receive) -> Result<(), c_int>,
) -> Result<(), c_int> {
    if wr.is_null() {
        world.violation(address, "an empty list was posted");
    }
    let mut next = wr;
    let mut result = world.enter(symbol, address).map(drop);
    while result.is_ok() && !next.is_null() {
        // SAFETY: as the caller says.
        let (wr, list) = unsafe { (&*next, entries((*next).sg_list, (*next).num_sge)) };
        result = world.enter("post_recv_wr", address).and_then(|device| {
            let list = list?;
            let (pieces, longest) = (list.len(), world.devices[device].settings.get("max_recv_piece"));
            if list.iter().any(|piece| u64::from(piece.length) > longest) {
                return Err(libc::EINVAL);
            }
            take(world, address, Receive { wr_id: wr.wr_id, list })?;
            world.record(symbol, address, format_args!(" wr_id={:#x} sge={pieces}", wr.wr_id));
            Ok(())
        });
        if result.is_ok() {
            next = wr.next;
        }
    }
    if result.is_err() {
        // SAFETY: as the caller says.
        unsafe { *bad = next };
    }
    result
}

fn receive_on_qp(world: &mut World, address: usize, receive: Receive) -> Result<(), c_int> {
    let qp = world.qp_mut(address).ok_or(libc::EINVAL)?;
    let too_long = receive.list.len() > qp.cap.max_recv_sge as usize;
    if qp.srq.is_some() || qp.state == IBV_QPS_RESET || too_long {
        return Err(libc::EINVAL);
    }
    if qp.receives_out >= qp.cap.max_recv_wr {
        return Err(libc::ENOMEM);
    }
    qp.receives_out += 1;
    qp.recv.push_back(receive);
    if qp.state == IBV_QPS_ERR {
        qp::flush(world, address);
    }
    Ok(())
}

fn receive_on_srq(world: &mut World, address: usize, receive: Receive) -> Result<(), c_int> {
    let srq = world.srq_mut(address).ok_or(libc::EINVAL)?;
    if receive.list.len() > srq.max_sge as usize {
        return Err(libc::EINVAL);
    }
    if srq.queue.len() >= srq.max_wr as usize {
        return Err(libc::ENOMEM);
    }
    srq.queue.push_back(receive);
    Ok(())
}

unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, room: c_int, wc: *mut ibv_wc) -> c_int {
    let (mut world, address) = (world(), cq.addr());
    let device = match world.enter("ibv_poll_cq", address) {
        Ok(device) => device,
        Err(errno) => return -errno,
    };
    exec::tick(&mut world);
    exec::polled(&mut world, device, address);
    let found = cq::poll(&mut world, address, usize::try_from(room).unwrap_or(0));
    // SAFETY: the caller's, with room for as many.
    unsafe { std::ptr::copy_nonoverlapping(found.as_ptr(), wc, found.len()) };
    let told = if found.is_empty() { None } else { world.devices[device].script.polled() };
    told.unwrap_or(found.len() as c_int)
}

unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    let mut world = world();
    code(world.enter("ibv_req_notify_cq", cq.addr()).and_then(|_| {
        let state = world.cq_mut(cq.addr()).ok_or(libc::EINVAL)?;
        // Whoever wants to know of all is not content with less, later.
        state.armed = match (state.armed, solicited_only) {
            (Armed::Any, _) | (_, 0) => Armed::Any,
            _ => Armed::Solicited,
        };
        Ok(())
    }))
}

unsafe extern "C" fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    let (mut world, address) = (world(), qp.addr());
    // SAFETY: the caller's, to be read.
    let bind = unsafe { &*bind };
    let posted = world.enter("ibv_bind_mw", address).and_then(|_| {
        let (old, c) = world.mw(mw.addr()).map(|mw| (mw.rkey, mw.c)).ok_or(libc::EINVAL)?;
        let mut request = blank(bind.wr_id, IBV_WR_BIND_MW, bind.send_flags);
        // Windows that are bound again before the first binding is done would share a key: none does here.
        let rkey = ibv_inc_rkey(old);
        request.bind = Some((mw.addr(), rkey, bound(address, &bind.bind_info)));
        accept(&mut world, address, request)?;
        // SAFETY: alive, and written to with the world locked only.
        unsafe { (*c).rkey = rkey };
        Ok(())
    });
    run(&mut world, address);
    code(posted)
}
