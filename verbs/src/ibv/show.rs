//! What a completion of the device stands for: found by its tag, taken out of its queue, and put where the owner sees it.

use std::sync::Arc;

use qpair_verbs_sys as sys;

use super::device::Device;
use super::numbers::Tag;
use super::qp::QpShared;
use super::recv_slots::RecvSlots;
use super::send_queue::{self, Meant, SendQueue};
use crate::status::{WcOpcode, WcStatus};
use crate::types::{QpType, Qpn, Rkey};
use crate::wc::{Current, Unsignaled, WorkCompletion};

/// What became of a completion of the device.
pub(super) enum Shown {
    Completion,
    Nothing,
    /// Its request is being posted at this moment.
    Presently,
}

/// A queue pair, and what the tags of its sends have in their upper half.
pub(super) struct Sender {
    pub(super) key: u32,
    pub(super) qpn: Qpn,
    pub(super) queue: Arc<SendQueue>,
}

/// A queue of receives, and what the tags of its receives have in their upper half.
pub(super) struct Receiver {
    pub(super) key: u32,
    pub(super) datagrams: bool,
    pub(super) receives: Arc<RecvSlots>,
}

/// Puts the completion of a queue pair's oldest send that holds no more than memory where the owner sees it, if it is one
/// and went well; false otherwise, with nothing done. Most are so.
#[inline(always)]
pub(super) fn show_oldest_send(into: &mut Current, senders: &[Option<Sender>], wc: &sys::ibv_wc) -> bool {
    // That of a receive is beyond all numbers.
    let Some(Some(Sender { key, qpn, queue })) = senders.get(Tag::sender(wc.wr_id)) else { return false };
    let index = wc.wr_id as u32;
    let known = *key == Tag::key(wc.wr_id) && wc.status == sys::IBV_WC_SUCCESS;
    if !known || !queue.is_oldest(index) {
        return false;
    }
    // SAFETY: the oldest one, found just now by the poller; the place was cleared.
    let Some((wr_id, opcode, len)) = (unsafe { queue.take_oldest(index, &mut into.memory) }) else { return false };
    into.wc = WorkCompletion {
        wr_id,
        status: WcStatus::SUCCESS,
        opcode,
        qpn: *qpn,
        byte_len: len,
        imm: None,
        invalidated: None,
        src_qpn: None,
        vendor_err: 0,
    };
    true
}

/// Puts the completion of any send where the owner sees it, if it is one that is under way.
pub(super) fn show_send(
    into: &mut Current,
    device: &Device,
    qp: &Arc<QpShared>,
    wc: &sys::ibv_wc,
    index: u32,
) -> Shown {
    match qp.send.meaning(index) {
        Meant::UnderWay => {}
        Meant::Presently => return Shown::Presently,
        Meant::Nothing => return Shown::Nothing,
    }
    let success = wc.status == sys::IBV_WC_SUCCESS;
    let taken = send_queue::take(&qp.send, device.hub(), index, success);
    into.memory = taken.local;
    into.unsignaled = taken.unsignaled.map(Unsignaled::Ibv);
    // Operation and length are those of the request, whatever the device says: on errors it says nothing of them.
    into.wc = WorkCompletion {
        wr_id: taken.wr_id,
        status: WcStatus(wc.status),
        opcode: taken.opcode,
        qpn: qp.qpn,
        byte_len: if success { taken.len } else { 0 },
        imm: None,
        invalidated: None,
        src_qpn: None,
        vendor_err: if success { 0 } else { wc.vendor_err },
    };
    if !success && qp.qp_type == QpType::Rc {
        qp.fail();
    }
    Shown::Completion
}

/// Puts the completion of a receive where the owner sees it, if it went well and withdrew no key; false otherwise, with
/// nothing done. Most are so.
#[inline(always)]
pub(super) fn show_good_receive(
    into: &mut Current,
    receivers: &[Option<Receiver>],
    wc: &sys::ibv_wc,
    with_inv: u32,
) -> bool {
    let Some(Some(Receiver { key, datagrams, receives })) = receivers.get(Tag::receiver(wc.wr_id)) else {
        return false;
    };
    // The key of a receive; that of a send is another.
    let known = *key == Tag::key(wc.wr_id) && wc.status == sys::IBV_WC_SUCCESS && wc.wc_flags & with_inv == 0;
    if !known {
        return false;
    }
    let Some((wr_id, len)) = receives.take(wc.wr_id as u32, &mut into.memory) else { return false };
    into.wc = received(wc, (wr_id, len), *datagrams);
    true
}

/// The values of a receive that went well.
#[inline(always)]
fn received(wc: &sys::ibv_wc, (wr_id, len): (u64, u32), datagram: bool) -> WorkCompletion {
    // SAFETY: 32 bits that the device wrote; all are valid.
    let imm = unsafe { wc.__bindgen_anon_1.imm_data };
    let with_imm = WcOpcode(wc.opcode) == WcOpcode::RECV_RDMA_WITH_IMM;
    WorkCompletion {
        wr_id,
        status: WcStatus::SUCCESS,
        opcode: if with_imm { WcOpcode::RECV_RDMA_WITH_IMM } else { WcOpcode::RECV },
        qpn: Qpn(wc.qp_num),
        // What was received is never longer than the memory for it; a device that says so is not believed. A WRITE with
        // immediate data puts its bytes elsewhere.
        byte_len: if with_imm { wc.byte_len } else { wc.byte_len.min(len) },
        imm: (wc.wc_flags & sys::IBV_WC_WITH_IMM != 0).then(|| u32::from_be(imm)),
        invalidated: None,
        src_qpn: datagram.then_some(Qpn(wc.src_qp)),
        vendor_err: 0,
    }
}

/// Puts the completion of any receive where the owner sees it, if it is one that is posted.
pub(super) fn show_receive(
    into: &mut Current,
    receives: &RecvSlots,
    wc: &sys::ibv_wc,
    (own, with_inv): (u32, u32),
    ud: bool,
) -> Shown {
    let Some(taken) = receives.take(own, &mut into.memory) else { return Shown::Nothing };
    into.wc = if wc.status == sys::IBV_WC_SUCCESS {
        // SAFETY: 32 bits that the device wrote; all are valid.
        let invalidated = unsafe { wc.__bindgen_anon_1.invalidated_rkey };
        let invalidated = (wc.wc_flags & with_inv != 0).then_some(Rkey(invalidated));
        WorkCompletion { invalidated, ..received(wc, taken, ud) }
    } else {
        WorkCompletion {
            wr_id: taken.0,
            status: WcStatus(wc.status),
            opcode: WcOpcode::RECV,
            qpn: Qpn(wc.qp_num),
            vendor_err: wc.vendor_err,
            ..WorkCompletion::default()
        }
    };
    Shown::Completion
}
