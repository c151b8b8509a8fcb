//! Datagrams: to whom the request says, lost unless all is right.

use qpair_verbs_sys::*;

use super::path::{self, has_receive, reachable, take_receive};
use super::{Outcome, gather};
use crate::cq;
use crate::device::Device;
use crate::qp::{Request, gid_bytes};
use crate::world::World;

pub(crate) fn send(world: &mut World, address: usize, request: &Request) -> Result<Outcome, u32> {
    let bytes = gather(world, address, request)?;
    let qp = world.qp(address).ok_or(IBV_WC_GENERAL_ERR)?;
    let handle = world.ah(request.ah).filter(|handle| handle.root == qp.root).ok_or(IBV_WC_LOC_QP_OP_ERR)?;
    if bytes.len() > world.devices[qp.device].mtu_bytes() {
        return Err(IBV_WC_LOC_LEN_ERR);
    }
    // The highest bit says: the sender's own.
    let qkey = if request.remote_qkey >> 31 == 1 { qp.attr.qkey } else { request.remote_qkey };
    let path = handle.attr;
    if let Some(peer) = target(world, qp.device, &path, request.remote_qpn, qkey) {
        arrive(world, address, peer, &path, request, &bytes);
    }
    Ok(Outcome::Done(bytes.len() as u32))
}

/// The queue pair that a datagram reaches.
fn target(world: &World, from: usize, path: &ibv_ah_attr, qpn: u32, qkey: u32) -> Option<usize> {
    let address = *world.qpns.get(&qpn)?;
    let peer = world.qp(address)?;
    let receives = !matches!(peer.state, IBV_QPS_RESET | IBV_QPS_INIT | IBV_QPS_ERR);
    let takes = peer.kind == IBV_QPT_UD && peer.attr.qkey == qkey && receives;
    (takes && reachable(world, from, path, peer.device) && has_receive(world, address)).then_some(address)
}

fn arrive(world: &mut World, sender: usize, peer: usize, path: &ibv_ah_attr, request: &Request, bytes: &[u8]) {
    let Some(from) = world.qp(sender).map(|qp| (qp.device, qp.qpn)) else { return };
    let mut message = header(&world.devices[from.0], path, bytes.len());
    message.extend_from_slice(bytes);
    let Some(receive) = take_receive(world, peer) else { return };
    let placed = path::receive_spans(world, peer, &receive, message.len());
    let Some(target) = world.qp(peer) else { return };
    let mut completion = target.received(peer, &receive, *placed.as_ref().err().unwrap_or(&IBV_WC_SUCCESS));
    let queue = target.recv_cq;
    if let Ok(spans) = placed {
        path::scatter(&spans, &message);
        completion.wc.byte_len = message.len() as u32;
        completion.wc.wc_flags = IBV_WC_GRH;
        completion.wc.src_qp = from.1;
        completion.wc.sl = path.sl;
        if request.opcode == IBV_WR_SEND_WITH_IMM {
            completion.wc.wc_flags |= IBV_WC_WITH_IMM;
            completion.wc.__bindgen_anon_1.imm_data = request.immediate;
        }
    }
    let failed = completion.wc.status != IBV_WC_SUCCESS;
    cq::complete(world, queue, completion, request.flags & IBV_SEND_SOLICITED != 0);
    if failed {
        crate::qp::fail(world, peer);
    }
}

/// The 40 bytes in front of a datagram: a GRH, or 20 zeros and an IPv4 header, as the address is.
fn header(from: &Device, path: &ibv_ah_attr, len: usize) -> Vec<u8> {
    let mut header = vec![0; 40];
    let source = from.gid(u32::from(path.grh.sgid_index)).map_or([0; 16], |gid| gid.raw);
    let target = gid_bytes(&path.grh.dgid);
    if is_ipv4(&source) && is_ipv4(&target) {
        let total = (20 + 8 + 12 + 8 + len + 4) as u16;
        header[20] = 0x45;
        header[21] = path.grh.traffic_class;
        header[22..24].copy_from_slice(&total.to_be_bytes());
        header[28] = path.grh.hop_limit;
        header[29] = UDP;
        header[32..36].copy_from_slice(&source[12..]);
        header[36..].copy_from_slice(&target[12..]);
    } else {
        header[0] = 6 << 4;
        header[4..6].copy_from_slice(&((len + 24) as u16).to_be_bytes());
        header[6] = NEXT_IS_BTH;
        header[7] = path.grh.hop_limit;
        header[8..24].copy_from_slice(&source);
        header[24..].copy_from_slice(&target);
    }
    header
}

fn is_ipv4(gid: &[u8; 16]) -> bool {
    gid[..10] == [0; 10] && gid[10..12] == [0xff; 2]
}

const UDP: u8 = 17;
const NEXT_IS_BTH: u8 = 0x1b;
