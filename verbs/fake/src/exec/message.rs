//! SEND on connected queue pairs, and the receives that messages and writes with immediate data take.

use qpair_verbs_sys::*;

use super::path::{self, has_receive, not_ready, take_receive, unanswered};
use super::{Outcome, gather};
use crate::cq;
use crate::memory;
use crate::qp::{self, Request};
use crate::world::World;

pub(crate) fn send(world: &mut World, address: usize, request: &Request) -> Result<Outcome, u32> {
    let bytes = gather(world, address, request)?;
    let peer = match path::peer(world, address) {
        Ok(peer) => peer,
        Err(why) => return Ok(unanswered(world, address, &why, bytes.len() as u32)),
    };
    if !has_receive(world, peer) {
        return Ok(not_ready(world, address, peer, bytes.len() as u32));
    }
    let invalidates = request.opcode == IBV_WR_SEND_WITH_INV;
    if invalidates && !memory::invalidate(world, peer, request.immediate) {
        qp::fail(world, peer);
        return Err(IBV_WC_REM_ACCESS_ERR);
    }
    let Some(receive) = take_receive(world, peer) else { return Err(IBV_WC_GENERAL_ERR) };
    let reliable = world.qp(address).is_some_and(|qp| qp.kind == IBV_QPT_RC);
    match path::receive_spans(world, peer, &receive, bytes.len()) {
        Ok(spans) => path::scatter(&spans, &bytes),
        Err(status) => {
            let Some(target) = world.qp(peer) else { return Err(IBV_WC_GENERAL_ERR) };
            let (queue, completion) = (target.recv_cq, target.received(peer, &receive, status));
            cq::complete(world, queue, completion, false);
            qp::fail(world, peer);
            return match (reliable, status) {
                (false, _) => Ok(Outcome::Done(bytes.len() as u32)),
                (true, IBV_WC_LOC_LEN_ERR) => Err(IBV_WC_REM_INV_REQ_ERR),
                (true, _) => Err(IBV_WC_REM_OP_ERR),
            };
        }
    }
    let flags = match request.opcode {
        IBV_WR_SEND_WITH_IMM => IBV_WC_WITH_IMM,
        IBV_WR_SEND_WITH_INV => IBV_WC_WITH_INV,
        _ => 0,
    };
    deliver(world, address, peer, &receive, request, (IBV_WC_RECV, flags, bytes.len()));
    Ok(Outcome::Done(bytes.len() as u32))
}

/// Completes a receive: what it is, flags, and length.
pub(crate) fn deliver(
    world: &mut World,
    sender: usize,
    peer: usize,
    receive: &qp::Receive,
    request: &Request,
    (opcode, flags, len): (u32, u32, usize),
) {
    let (Some(from), Some(target)) = (world.qp(sender), world.qp(peer)) else { return };
    let mut completion = target.received(peer, receive, IBV_WC_SUCCESS);
    completion.wc.opcode = opcode;
    completion.wc.wc_flags = flags;
    completion.wc.byte_len = len as u32;
    completion.wc.src_qp = from.qpn;
    completion.wc.sl = from.attr.ah_attr.sl;
    if flags & (IBV_WC_WITH_IMM | IBV_WC_WITH_INV) != 0 {
        completion.wc.__bindgen_anon_1.imm_data = request.immediate;
    }
    let queue = target.recv_cq;
    cq::complete(world, queue, completion, request.flags & IBV_SEND_SOLICITED != 0);
}
