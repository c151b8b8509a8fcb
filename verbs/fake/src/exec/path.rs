//! Where a connected queue pair's requests go, and how long they wait for one who can take them.

use std::time::{Duration, Instant};

use qpair_verbs_sys::*;

use super::Outcome;
use crate::memory::{self, Span};
use crate::qp::{self, Receive, gid_bytes};
use crate::world::World;

/// What stands between a request and its peer.
pub(crate) enum Blocked {
    /// The peer is not ready or out of reach, which may change.
    Silent,
    /// There is no such peer (any more).
    Gone,
}

/// The peer of a connected queue pair.
pub(crate) fn peer(world: &World, address: usize) -> Result<usize, Blocked> {
    let qp = world.qp(address).ok_or(Blocked::Gone)?;
    let target = *world.qpns.get(&qp.attr.dest_qp_num).ok_or(Blocked::Gone)?;
    let peer = world.qp(target).ok_or(Blocked::Gone)?;
    if peer.kind != qp.kind {
        return Err(Blocked::Gone);
    }
    if !reachable(world, qp.device, &qp.attr.ah_attr, peer.device) {
        return Err(Blocked::Silent);
    }
    match peer.state {
        IBV_QPS_RESET | IBV_QPS_ERR => Err(Blocked::Gone),
        IBV_QPS_INIT => Err(Blocked::Silent),
        _ if peer.attr.dest_qp_num != qp.qpn => Err(Blocked::Gone),
        _ => Ok(target),
    }
}

/// Whether an address leads from one device to another: both ports up, and the GID the other's, of the same type.
pub(crate) fn reachable(world: &World, from: usize, path: &ibv_ah_attr, to: usize) -> bool {
    let (from, to) = (&world.devices[from], &world.devices[to]);
    let up = |device: &crate::device::Device| device.settings.get("port_state") == u64::from(IBV_PORT_ACTIVE);
    let leads_there = if path.is_global == 0 {
        u64::from(path.dlid) == to.settings.get("lid")
    } else {
        let source = from.gid(u32::from(path.grh.sgid_index));
        source.is_some_and(|source| to.owns(&gid_bytes(&path.grh.dgid), source.gid_type))
    };
    up(from) && up(to) && leads_there
}

/// What a request does whose peer does not answer: lost if unreliable, else tried again until the time is up.
pub(crate) fn unanswered(world: &World, address: usize, why: &Blocked, bytes: u32) -> Outcome {
    let Some(qp) = world.qp(address) else { return Outcome::Failed(IBV_WC_GENERAL_ERR) };
    if qp.kind != IBV_QPT_RC {
        return Outcome::Done(bytes);
    }
    if let Blocked::Gone = why {
        return Outcome::Failed(IBV_WC_RETRY_EXC_ERR);
    }
    let until = match qp.attr.timeout & 31 {
        0 => None,
        code => {
            let once = Duration::from_nanos(4096) * 2u32.pow(u32::from(code));
            Some(Instant::now() + once * (u32::from(qp.attr.retry_cnt) + 1))
        }
    };
    Outcome::Wait(until, IBV_WC_RETRY_EXC_ERR)
}

/// What a request does whose peer has no receive.
pub(crate) fn not_ready(world: &World, address: usize, peer: usize, bytes: u32) -> Outcome {
    let (Some(qp), Some(peer)) = (world.qp(address), world.qp(peer)) else {
        return Outcome::Failed(IBV_WC_GENERAL_ERR);
    };
    if qp.kind != IBV_QPT_RC {
        return Outcome::Done(bytes);
    }
    let until = match qp.attr.rnr_retry {
        7.. => None,
        times => {
            let pause = RNR_TIMER[usize::from(peer.attr.min_rnr_timer & 31)];
            Some(Instant::now() + Duration::from_micros(10 * pause) * u32::from(times))
        }
    };
    match qp.attr.rnr_retry {
        0 => Outcome::Failed(IBV_WC_RNR_RETRY_EXC_ERR),
        _ => Outcome::Wait(until, IBV_WC_RNR_RETRY_EXC_ERR),
    }
}

/// Takes the receive that the next message to a queue pair gets.
pub(crate) fn take_receive(world: &mut World, peer: usize) -> Option<Receive> {
    let qp = world.qp_mut(peer)?;
    let Some(address) = qp.srq else { return qp.recv.pop_front() };
    let srq = world.srq_mut(address)?;
    let receive = srq.queue.pop_front();
    if srq.limit > 0 && srq.queue.len() < srq.limit as usize {
        srq.limit = 0;
        let (context, event) = (srq.context, qp::srq_event(srq.c, IBV_EVENT_SRQ_LIMIT_REACHED));
        crate::cq::raise(world, context, event);
    }
    receive
}

/// Whether a message would find a receive.
pub(crate) fn has_receive(world: &World, peer: usize) -> bool {
    let Some(qp) = world.qp(peer) else { return false };
    match qp.srq {
        Some(srq) => world.srq(srq).is_some_and(|srq| !srq.queue.is_empty()),
        None => !qp.recv.is_empty(),
    }
}

/// The memory of a receive, or the status that the receiver gets.
pub(crate) fn receive_spans(world: &World, peer: usize, receive: &Receive, bytes: usize) -> Result<Vec<Span>, u32> {
    let qp = world.qp(peer).ok_or(IBV_WC_GENERAL_ERR)?;
    let root = match qp.srq {
        Some(srq) => world.srq(srq).ok_or(IBV_WC_GENERAL_ERR)?.root,
        None => qp.root,
    };
    let room: u64 = receive.list.iter().map(|entry| u64::from(entry.length)).sum();
    if (bytes as u64) > room {
        return Err(IBV_WC_LOC_LEN_ERR);
    }
    memory::local(world, root, &cut(&receive.list, bytes), true)
}

/// The first bytes of a list.
pub(crate) fn cut(list: &[ibv_sge], bytes: usize) -> Vec<ibv_sge> {
    let mut left = bytes;
    let mut short = Vec::new();
    for entry in list {
        let take = left.min(entry.length as usize);
        short.push(ibv_sge { length: take as u32, ..*entry });
        left -= take;
    }
    short
}

/// Copies bytes into memory that has as much room.
pub(crate) fn scatter(spans: &[Span], bytes: &[u8]) {
    let mut rest = bytes;
    for span in spans {
        let (now, later) = rest.split_at(span.len());
        span.write(now);
        rest = later;
    }
}

/// The RNR timer by its code, in units of 10 us.
const RNR_TIMER: [u64; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
    6144, 8192, 12288, 16384, 24576, 32768, 49152,
];
