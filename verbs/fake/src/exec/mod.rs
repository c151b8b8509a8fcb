//! Does what is posted: one request after the other, each whole, with the world locked.

mod datagram;
mod message;
mod one_sided;
mod path;

use std::time::Instant;

use qpair_verbs_sys::*;

use crate::cq;
use crate::memory;
use crate::qp::{self, Request};
use crate::world::{Kind, World};

/// What became of a request.
pub(crate) enum Outcome {
    /// Done, with so many bytes.
    Done(u32),
    /// Failed, with this status; the queue pair fails with it.
    Failed(u32),
    /// Nothing yet: to be tried again, and to fail with the status when the time comes, if ever.
    Wait(Option<Instant>, u32),
}

/// Does requests of a queue pair until none is left or one has to wait; holds the last ones back if told to.
pub(crate) fn run(world: &mut World, address: usize) {
    loop {
        let Some(qp) = world.qp(address) else { return };
        let settings = &world.devices[qp.device].settings;
        let held_back = settings.get("defer") as usize;
        let sends = qp.state == IBV_QPS_RTS || qp.state == IBV_QPS_SQD;
        if !sends || qp.send.len() <= held_back || qp.polls < settings.get("lag") {
            return;
        }
        if !step(world, address) {
            return;
        }
    }
}

/// Does the first request, whatever is held back; false if it has to wait.
pub(crate) fn step(world: &mut World, address: usize) -> bool {
    let Some(request) = world.qp(address).and_then(|qp| qp.send.front().cloned()) else { return false };
    let outcome = execute(world, address, &request);
    let Some(qp) = world.qp_mut(address) else { return false };
    match outcome {
        Outcome::Wait(until, status) => {
            // The time counts from the first try.
            let waits = qp.waits.filter(|(_, waiting_for)| *waiting_for == status).unwrap_or((until, status));
            qp.waits = Some(waits);
            world.waiting.insert(address);
            false
        }
        Outcome::Done(bytes) => {
            finish(world, address, &request, IBV_WC_SUCCESS, bytes);
            true
        }
        Outcome::Failed(status) => {
            finish(world, address, &request, status, 0);
            false
        }
    }
}

/// A completion queue is polled: a device that lags behind comes nearer to the sends that complete there.
pub(crate) fn polled(world: &mut World, device: usize, queue: usize) {
    let lag = world.devices[device].settings.get("lag");
    if lag == 0 {
        return;
    }
    for (_, address) in world.live(device, Kind::Qp) {
        let Some(qp) = world.qp_mut(address).filter(|qp| qp.send_cq == queue && !qp.send.is_empty()) else { continue };
        qp.polls += 1;
        if qp.polls >= lag {
            run(world, address);
        }
        if let Some(qp) = world.qp_mut(address).filter(|qp| qp.send.is_empty()) {
            qp.polls = 0;
        }
    }
}

/// Tries again what waits.
pub(crate) fn kick(world: &mut World) {
    for address in world.waiting.clone() {
        run(world, address);
    }
}

/// Fails what has waited too long.
pub(crate) fn tick(world: &mut World) {
    if world.waiting.is_empty() {
        return;
    }
    let now = Instant::now();
    for address in world.waiting.clone() {
        let Some(qp) = world.qp(address) else { continue };
        let late = qp.waits.filter(|(until, _)| until.is_some_and(|until| until <= now));
        if let (Some((_, status)), Some(request)) = (late, qp.send.front().cloned()) {
            finish(world, address, &request, status, 0);
        }
    }
}

/// Takes the first request out and completes it; one that failed takes its queue pair along.
fn finish(world: &mut World, address: usize, request: &Request, status: u32, bytes: u32) {
    world.waiting.remove(&address);
    let Some(qp) = world.qp_mut(address) else { return };
    qp.waits = None;
    // A queue pair connected to itself may have failed, and with it flushed the request, as responder.
    if qp.send.front().is_none_or(|first| first.number != request.number) {
        return;
    }
    qp.send.pop_front();
    let failed = status != IBV_WC_SUCCESS;
    let (kind, queue) = (qp.kind, qp.send_cq);
    if failed || qp.signals_all || request.flags & IBV_SEND_SIGNALED != 0 {
        let completion = qp.sent(address, request, status, bytes);
        cq::complete(world, queue, completion, false);
    }
    match (failed, kind) {
        (false, _) => {}
        (true, IBV_QPT_RC) => qp::fail(world, address),
        (true, _) => qp::stop_sending(world, address),
    }
}

fn execute(world: &mut World, address: usize, request: &Request) -> Outcome {
    let Some(kind) = world.qp(address).map(|qp| qp.kind) else { return Outcome::Failed(IBV_WC_GENERAL_ERR) };
    let result = match (request.opcode, kind) {
        (IBV_WR_LOCAL_INV, _) => match memory::invalidate(world, address, request.immediate) {
            true => Ok(Outcome::Done(0)),
            false => Err(IBV_WC_LOC_QP_OP_ERR),
        },
        (IBV_WR_BIND_MW, _) => match &request.bind {
            Some((mw, rkey, bound)) => memory::bind(world, address, *mw, *rkey, bound).map(|()| Outcome::Done(0)),
            None => Err(IBV_WC_LOC_QP_OP_ERR),
        },
        (_, IBV_QPT_UD) => datagram::send(world, address, request),
        (IBV_WR_SEND | IBV_WR_SEND_WITH_IMM | IBV_WR_SEND_WITH_INV, _) => message::send(world, address, request),
        (IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM, _) => one_sided::write(world, address, request),
        (IBV_WR_RDMA_READ, _) => one_sided::read(world, address, request),
        (IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD, _) => one_sided::atomic(world, address, request),
        _ => Err(IBV_WC_LOC_QP_OP_ERR),
    };
    result.unwrap_or_else(Outcome::Failed)
}

/// The bytes that a request sends.
fn gather(world: &World, address: usize, request: &Request) -> Result<Vec<u8>, u32> {
    if let Some(inline) = &request.inline {
        return Ok(inline.clone());
    }
    let qp = world.qp(address).ok_or(IBV_WC_GENERAL_ERR)?;
    let total: u64 = request.list.iter().map(|entry| u64::from(entry.length)).sum();
    if total > world.devices[qp.device].settings.get("max_msg_sz") {
        return Err(IBV_WC_LOC_LEN_ERR);
    }
    let spans = memory::local(world, qp.root, &request.list, false)?;
    let mut bytes = Vec::with_capacity(total as usize);
    for span in spans {
        span.read(&mut bytes);
    }
    Ok(bytes)
}
