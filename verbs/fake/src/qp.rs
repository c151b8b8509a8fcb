//! Queue pairs, shared receive queues and address handles: their queues and states.

use std::collections::VecDeque;
use std::time::Instant;

use qpair_verbs_sys::*;

use crate::cq::{self, Completion, Retires};
use crate::memory::Bound;
use crate::world::World;

pub(crate) struct Qp {
    pub(crate) c: *mut ibv_qp_ex,
    pub(crate) context: usize,
    pub(crate) device: usize,
    pub(crate) qpn: u32,
    pub(crate) kind: u32,
    /// The domain that counts for protection.
    pub(crate) root: usize,
    pub(crate) send_cq: usize,
    pub(crate) recv_cq: usize,
    pub(crate) srq: Option<usize>,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) signals_all: bool,
    pub(crate) has_ex: bool,
    pub(crate) state: u32,
    pub(crate) attr: ibv_qp_attr,
    pub(crate) ece: ibv_ece,
    pub(crate) send: VecDeque<Request>,
    pub(crate) recv: VecDeque<Receive>,
    /// Sends posted, and those whose place polling has given back.
    pub(crate) posted: u64,
    pub(crate) retired: u64,
    /// Receives posted whose completion was not polled.
    pub(crate) receives_out: u32,
    /// When the first request gives up waiting, and with what status; no time is never.
    pub(crate) waits: Option<(Option<Instant>, u32)>,
    /// Polls of its send queue's completions since its oldest request was posted, where the device lags behind.
    pub(crate) polls: u64,
    /// Requests of an `ibv_wr_start` that is not complete, and an error among them.
    pub(crate) building: Option<(Vec<Request>, i32)>,
    pub(crate) async_unacknowledged: u32,
}

/// A posted request.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) number: u64,
    pub(crate) wr_id: u64,
    pub(crate) opcode: u32,
    pub(crate) flags: u32,
    pub(crate) list: Vec<ibv_sge>,
    /// The data of an inline request.
    pub(crate) inline: Option<Vec<u8>>,
    /// Immediate data, or the key to invalidate.
    pub(crate) immediate: u32,
    pub(crate) address: u64,
    pub(crate) rkey: u32,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    pub(crate) ah: usize,
    pub(crate) remote_qpn: u32,
    pub(crate) remote_qkey: u32,
    pub(crate) bind: Option<(usize, u32, Bound)>,
}

/// A posted receive.
#[derive(Clone)]
pub(crate) struct Receive {
    pub(crate) wr_id: u64,
    pub(crate) list: Vec<ibv_sge>,
}

pub(crate) struct Srq {
    pub(crate) c: *mut ibv_srq,
    pub(crate) context: usize,
    pub(crate) root: usize,
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) limit: u32,
    pub(crate) queue: VecDeque<Receive>,
    pub(crate) async_unacknowledged: u32,
}

pub(crate) struct Ah {
    pub(crate) root: usize,
    pub(crate) attr: ibv_ah_attr,
}

impl Qp {
    /// A queue pair in RESET, still of no context, device and domain.
    pub(crate) fn new(c: *mut ibv_qp_ex, qpn: u32, init: &ibv_qp_init_attr) -> Qp {
        // SAFETY: numbers, for which zero is a value.
        let (attr, ece) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        Qp {
            c,
            context: 0,
            device: 0,
            qpn,
            kind: init.qp_type,
            root: 0,
            send_cq: init.send_cq.addr(),
            recv_cq: init.recv_cq.addr(),
            srq: (!init.srq.is_null()).then_some(init.srq.addr()),
            cap: init.cap,
            signals_all: init.sq_sig_all != 0,
            has_ex: false,
            state: IBV_QPS_RESET,
            attr,
            ece,
            send: VecDeque::new(),
            recv: VecDeque::new(),
            posted: 0,
            retired: 0,
            receives_out: 0,
            waits: None,
            polls: 0,
            building: None,
            async_unacknowledged: 0,
        }
    }

    /// The rights that the queue pair gives to its peer.
    pub(crate) fn access(&self) -> u32 {
        self.attr.qp_access_flags
    }

    /// Gives the places of polled work back.
    pub(crate) fn retire(&mut self, what: Retires) {
        match what {
            Retires::Sends(number) => self.retired = self.retired.max(number + 1),
            Retires::Receive => self.receives_out = self.receives_out.saturating_sub(1),
            Retires::Nothing => {}
        }
    }

    /// A completion of a request of this queue pair.
    pub(crate) fn sent(&self, address: usize, request: &Request, status: u32, byte_len: u32) -> Completion {
        let mut wc = cq::blank();
        wc.wr_id = request.wr_id;
        wc.status = status;
        wc.qp_num = self.qpn;
        if status == IBV_WC_SUCCESS {
            wc.opcode = completed_as(request.opcode);
            wc.byte_len = byte_len;
        } else {
            // What is undefined in C is nonsense here.
            wc.opcode = UNDEFINED;
            wc.byte_len = UNDEFINED;
            wc.vendor_err = 0x60 | status;
        }
        Completion { wc, qp: address, retires: Retires::Sends(request.number) }
    }

    /// A completion of a receive, without length and flags.
    pub(crate) fn received(&self, address: usize, receive: &Receive, status: u32) -> Completion {
        let mut wc = cq::blank();
        wc.wr_id = receive.wr_id;
        wc.status = status;
        wc.qp_num = self.qpn;
        wc.opcode = if status == IBV_WC_SUCCESS { IBV_WC_RECV } else { UNDEFINED };
        wc.byte_len = if status == IBV_WC_SUCCESS { 0 } else { UNDEFINED };
        let retires = if self.srq.is_none() { Retires::Receive } else { Retires::Nothing };
        Completion { wc, qp: address, retires }
    }
}

/// Brings a queue pair to the state of error, and flushes it.
pub(crate) fn fail(world: &mut World, address: usize) {
    let Some(qp) = world.qp_mut(address) else { return };
    if qp.state == IBV_QPS_RESET || qp.state == IBV_QPS_ERR {
        return;
    }
    set_state(world, address, IBV_QPS_ERR);
    flush(world, address);
    let Some(qp) = world.qp(address) else { return };
    if qp.srq.is_some() && world.devices[qp.device].settings.has("last_wqe") {
        let (context, event) = (qp.context, qp_event(qp.c.cast(), IBV_EVENT_QP_LAST_WQE_REACHED));
        cq::raise(world, context, event);
    }
}

/// Stops the sends of a queue pair that is not reliably connected: its receives go on.
pub(crate) fn stop_sending(world: &mut World, address: usize) {
    set_state(world, address, IBV_QPS_SQE);
    flush_sends(world, address);
}

/// Completes all that is posted, as flushed.
pub(crate) fn flush(world: &mut World, address: usize) {
    flush_sends(world, address);
    let Some(qp) = world.qp_mut(address) else { return };
    let receives = std::mem::take(&mut qp.recv);
    for receive in receives {
        let Some(qp) = world.qp(address) else { return };
        let (queue, completion) = (qp.recv_cq, qp.received(address, &receive, IBV_WC_WR_FLUSH_ERR));
        cq::complete(world, queue, completion, false);
    }
}

fn flush_sends(world: &mut World, address: usize) {
    world.waiting.remove(&address);
    let Some(qp) = world.qp_mut(address) else { return };
    qp.waits = None;
    let requests = std::mem::take(&mut qp.send);
    for request in requests {
        let Some(qp) = world.qp(address) else { return };
        let (queue, completion) = (qp.send_cq, qp.sent(address, &request, IBV_WC_WR_FLUSH_ERR, 0));
        cq::complete(world, queue, completion, false);
    }
}

/// Forgets all that is posted, without completions.
pub(crate) fn clear(world: &mut World, address: usize) {
    world.waiting.remove(&address);
    let Some(qp) = world.qp_mut(address) else { return };
    qp.waits = None;
    qp.send.clear();
    qp.recv.clear();
    qp.retired = qp.posted;
    qp.receives_out = 0;
    qp.building = None;
}

pub(crate) fn set_state(world: &mut World, address: usize, state: u32) {
    let Some(qp) = world.qp_mut(address) else { return };
    qp.state = state;
    // SAFETY: the structure is never freed, and only written with the world locked.
    unsafe { (*qp.c).qp_base.state = state };
}

/// An asynchronous event about a queue pair.
pub(crate) fn qp_event(qp: *mut ibv_qp, event_type: u32) -> ibv_async_event {
    ibv_async_event { element: ibv_async_event__bindgen_ty_1 { qp }, event_type }
}

/// An asynchronous event about a shared receive queue.
pub(crate) fn srq_event(srq: *mut ibv_srq, event_type: u32) -> ibv_async_event {
    ibv_async_event { element: ibv_async_event__bindgen_ty_1 { srq }, event_type }
}

pub(crate) fn gid_bytes(gid: &ibv_gid) -> [u8; 16] {
    // SAFETY: both readings of the union are of integers, of the same size.
    unsafe { gid.raw }
}

/// The opcode of a request's completion.
fn completed_as(opcode: u32) -> u32 {
    match opcode {
        IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM => IBV_WC_RDMA_WRITE,
        IBV_WR_RDMA_READ => IBV_WC_RDMA_READ,
        IBV_WR_ATOMIC_CMP_AND_SWP => IBV_WC_COMP_SWAP,
        IBV_WR_ATOMIC_FETCH_AND_ADD => IBV_WC_FETCH_ADD,
        IBV_WR_BIND_MW => IBV_WC_BIND_MW,
        IBV_WR_LOCAL_INV => IBV_WC_LOCAL_INV,
        _ => IBV_WC_SEND,
    }
}

/// What a provider may leave in the fields that C says nothing about.
const UNDEFINED: u32 = 0xdead_beef;
