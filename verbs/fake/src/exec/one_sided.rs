//! WRITE, READ and atomics.

use qpair_verbs_sys::*;

use super::message::deliver;
use super::path::{self, has_receive, not_ready, take_receive, unanswered};
use super::{Outcome, gather};
use crate::cq;
use crate::memory;
use crate::qp::{self, Request};
use crate::world::World;

pub(crate) fn write(world: &mut World, address: usize, request: &Request) -> Result<Outcome, u32> {
    let bytes = gather(world, address, request)?;
    let len = bytes.len() as u32;
    let peer = match path::peer(world, address) {
        Ok(peer) => peer,
        Err(why) => return Ok(unanswered(world, address, &why, len)),
    };
    // Nothing is written without memory to check.
    if !bytes.is_empty() {
        let place = (request.rkey, request.address);
        match memory::remote(world, peer, place.0, place.1, bytes.len(), IBV_ACCESS_REMOTE_WRITE) {
            Some(span) => span.write(&bytes),
            None => return refused(world, address, peer, len, IBV_WC_REM_ACCESS_ERR),
        }
    }
    if request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM {
        if !has_receive(world, peer) {
            return Ok(not_ready(world, address, peer, len));
        }
        let Some(receive) = take_receive(world, peer) else { return Err(IBV_WC_GENERAL_ERR) };
        let what = (IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_WITH_IMM, bytes.len());
        deliver(world, address, peer, &receive, request, what);
    }
    Ok(Outcome::Done(len))
}

pub(crate) fn read(world: &mut World, address: usize, request: &Request) -> Result<Outcome, u32> {
    let qp = world.qp(address).ok_or(IBV_WC_GENERAL_ERR)?;
    let total: u64 = request.list.iter().map(|entry| u64::from(entry.length)).sum();
    if total > world.devices[qp.device].settings.get("max_msg_sz") {
        return Err(IBV_WC_LOC_LEN_ERR);
    }
    let spans = memory::local(world, qp.root, &request.list, true)?;
    let peer = match path::peer(world, address) {
        Ok(peer) => peer,
        Err(why) => return Ok(unanswered(world, address, &why, 0)),
    };
    if let Some(refusal) = too_many_reads(world, address, peer) {
        return refused(world, address, peer, 0, refusal);
    }
    if total > 0 {
        let right = IBV_ACCESS_REMOTE_READ;
        let Some(span) = memory::remote(world, peer, request.rkey, request.address, total as usize, right) else {
            return refused(world, address, peer, 0, IBV_WC_REM_ACCESS_ERR);
        };
        let mut bytes = Vec::with_capacity(total as usize);
        span.read(&mut bytes);
        path::scatter(&spans, &bytes);
    }
    Ok(Outcome::Done(total as u32))
}

pub(crate) fn atomic(world: &mut World, address: usize, request: &Request) -> Result<Outcome, u32> {
    let qp = world.qp(address).ok_or(IBV_WC_GENERAL_ERR)?;
    let room: u64 = request.list.iter().map(|entry| u64::from(entry.length)).sum();
    if room < 8 {
        return Err(IBV_WC_LOC_LEN_ERR);
    }
    let spans = memory::local(world, qp.root, &path::cut(&request.list, 8), true)?;
    let peer = match path::peer(world, address) {
        Ok(peer) => peer,
        Err(why) => return Ok(unanswered(world, address, &why, 0)),
    };
    if let Some(refusal) = too_many_reads(world, address, peer) {
        return refused(world, address, peer, 0, refusal);
    }
    if !request.address.is_multiple_of(8) {
        return refused(world, address, peer, 0, IBV_WC_REM_INV_REQ_ERR);
    }
    let right = IBV_ACCESS_REMOTE_ATOMIC;
    let Some(word) = memory::remote(world, peer, request.rkey, request.address, 8, right) else {
        return refused(world, address, peer, 0, IBV_WC_REM_ACCESS_ERR);
    };
    let (operand, swap) = (request.compare_add, request.swap);
    let old = match request.opcode {
        IBV_WR_ATOMIC_FETCH_AND_ADD => word.atomic(|old| old.wrapping_add(operand)),
        _ => word.atomic(|old| if old == operand { swap } else { old }),
    };
    path::scatter(&spans, &old.to_ne_bytes());
    Ok(Outcome::Done(8))
}

/// What is answered to a READ or atomic where one of the sides allows none.
fn too_many_reads(world: &World, address: usize, peer: usize) -> Option<u32> {
    if world.qp(address)?.attr.max_rd_atomic == 0 {
        return Some(IBV_WC_LOC_QP_OP_ERR);
    }
    (world.qp(peer)?.attr.max_dest_rd_atomic == 0).then_some(IBV_WC_REM_INV_REQ_ERR)
}

/// A request that the peer refuses: its queue pair fails too. An unreliable one is lost.
fn refused(world: &mut World, address: usize, peer: usize, len: u32, status: u32) -> Result<Outcome, u32> {
    if world.qp(address).is_some_and(|qp| qp.kind != IBV_QPT_RC) {
        return Ok(Outcome::Done(len));
    }
    if status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_REM_INV_REQ_ERR {
        if let Some(target) = world.qp(peer) {
            let event = match status {
                IBV_WC_REM_ACCESS_ERR => IBV_EVENT_QP_ACCESS_ERR,
                _ => IBV_EVENT_QP_REQ_ERR,
            };
            let (context, event) = (target.context, qp::qp_event(target.c.cast(), event));
            cq::raise(world, context, event);
        }
        if peer != address {
            qp::fail(world, peer);
        }
    }
    Err(status)
}
