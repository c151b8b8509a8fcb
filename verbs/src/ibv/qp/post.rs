//! Posting: what may be posted is checked, put into its slot, and handed to the device.

use std::ops::Range;
use std::ptr::null_mut;
use std::sync::Arc;

use qpair_verbs_sys as sys;

use super::create::OwnedQp;
use super::submit::{Data, Submission};
use crate::error::{PostError, Rejected};
use crate::ibv::ah::Ah;
use crate::ibv::handle::outcome;
use crate::ibv::hub::lock;
use crate::ibv::mw::Mw;
use crate::ibv::numbers::Tag;
use crate::ibv::quirks;
use crate::ibv::send_queue::{Held, SendSlot};
use crate::ibv::srq::refused;
use crate::memory::{Grant, Local, MAX_SGE, RegionShared, Window};
use crate::qp::{Borrowed, Limits, Op, SendWr, Target};
use crate::status::WcOpcode;
use crate::types::{Access, QpState, Rkey};

/// The pieces of local memory, as the device is told of them.
pub(in crate::ibv) struct Pieces {
    pub(in crate::ibv) pieces: [sys::ibv_sge; MAX_SGE],
    pub(in crate::ibv) count: i32,
}

impl OwnedQp {
    /// Posts a send request of any kind. For the one owner, which has `&mut` of the queue pair.
    #[inline(never)]
    pub(super) fn post_any(&self, mut wr: SendWr, with: Borrowed<'_>) -> Result<(), Rejected> {
        let checked = self.limits().check_send(&wr, &with).and_then(|len| {
            if matches!(self.known_state(), QpState::Rts | QpState::Err | QpState::Sqe | QpState::Sqd) {
                Ok(len)
            } else {
                Err(PostError::State(self.known_state()))
            }
        });
        let len = match checked {
            Ok(len) => len,
            Err(error) => return Err(Rejected { error, memory: wr.local }),
        };
        let Some(index) = self.shared.send.next() else {
            let error = PostError::SendQueueFull { depth: self.shared.send.depth() };
            return Err(Rejected { error, memory: wr.local });
        };
        let to = match with.to {
            Some(Target::Ibv(handle)) => Some(handle),
            // Of another domain, which was refused above.
            Some(Target::Soft(_)) | None => None,
        };
        if let Op::Bind { .. } | Op::Invalidate(_) = wr.op {
            return self.post_key(index, wr, with);
        }
        let (tag, flags, imm, invalidate) = (self.tag(index), flags(&wr), wr.imm, wr.invalidate);
        let (op, range, wr_id, local) = (&wr.op, &wr.range, wr.wr_id, &mut wr.local);
        let fill = |slot: &mut SendSlot| {
            slot.local = std::mem::take(local);
            slot.wr_id = wr_id;
            slot.opcode = op.opcode();
            slot.len = len as u32;
            if let Some(handle) = to {
                slot.held = Held::Handle { _handle: handle.clone() };
            }
        };
        let post = |slot: &SendSlot| {
            let submission = Submission { wr_id: tag, flags, imm, invalidate, to: to.map(|to| &**to) };
            match with.inline {
                Some(data) => self.submit(op, &submission, &Data::Inline(data)),
                None => {
                    let whole = || 0..slot.local.len();
                    let pieces = gather(&slot.local, range.clone().unwrap_or_else(whole))?;
                    self.submit(op, &submission, &Data::Pieces(&pieces))
                }
            }
        };
        hand_over(&self.shared.send, index, fill, post)
    }

    #[inline(always)]
    fn submit(&self, op: &Op, submission: &Submission<'_>, data: &Data<'_>) -> Result<(), PostError> {
        // SAFETY: the queue pair is alive; pieces are of memory that the slot keeps until the request is done, inline data
        // is copied at once.
        unsafe { self.submit.request(self.qp, op, submission, data) }.map_err(refused)
    }

    /// Posts a request that binds or invalidates a key.
    #[cold]
    fn post_key(&self, index: u32, wr: SendWr, with: Borrowed<'_>) -> Result<(), Rejected> {
        let (wr_id, flags, opcode) = (wr.wr_id, flags(&wr), wr.op.opcode());
        let tag = self.tag(index);
        match (wr.op, with.bind) {
            (Op::Invalidate(rkey), _) => {
                let fill = |slot: &mut SendSlot| {
                    *slot = SendSlot { local: Local::None, wr_id, opcode, len: 0, held: Held::Invalidate(rkey) };
                };
                // SAFETY: the queue pair is alive.
                let post = |_: &SendSlot| unsafe { self.submit.invalidate(self.qp, tag, flags, rkey) }.map_err(refused);
                hand_over(&self.shared.send, index, fill, post)
            }
            (Op::Bind { start, end, access }, Some((Window::Ibv(window), region))) => {
                let bound = self.bind(index, (wr_id, flags), window, region, start..end, access);
                bound.map_err(|error| Rejected { error, memory: Local::None })
            }
            _ => Err(Rejected { error: PostError::WrongDomain, memory: Local::None }),
        }
    }

    fn bind(
        &self,
        index: u32,
        (wr_id, flags): (u64, u32),
        window: &Arc<Mw>,
        region: &RegionShared,
        range: Range<usize>,
        access: Access,
    ) -> Result<(), PostError> {
        let backing = region.buffer().backing();
        let Grant::Ibv(grant) = region.grant() else { return Err(PostError::WrongDomain) };
        if backing.domain() != self.pd.id() {
            return Err(PostError::WrongDomain);
        }
        // What does not fit is for the device to refuse.
        let addr = (backing.base().as_ptr().addr() as u64).wrapping_add(range.start as u64);
        let len = range.end.saturating_sub(range.start) as u64;
        let tag = self.tag(index);
        let rkey = grant.with_mr(|mr| {
            window.bind((addr, len), access, |mw, rkey| {
                let bind = sys::ibv_mw_bind_info { mr, addr, length: len, mw_access_flags: access.bits() };
                let held = Held::Bind(window.clone(), rkey);
                let slot = SendSlot { local: Local::None, wr_id, opcode: WcOpcode::BIND_MW, len: 0, held };
                // SAFETY: queue pair, window and region are alive.
                let post = |_: &SendSlot| unsafe { self.submit.bind(self.qp, tag, flags, (mw, rkey), &bind) };
                let handed = self.shared.send.hand_over(index, |place| *place = slot, post);
                handed.map_err(|(error, _)| refused(error))
            })
        })?;
        grant.add_window(rkey, window);
        let mut windows = lock(&self.windows);
        windows.retain(|(rkey, window)| window.upgrade().is_some_and(|window| window.is_bound_as(*rkey)));
        windows.push((rkey, Arc::downgrade(window)));
        Ok(())
    }

    /// Posts a receive. For the one owner.
    #[inline]
    pub(crate) fn post_recv(&self, memory: Local, wr_id: u64) -> Result<(), Rejected> {
        let Some(receives) = &self.shared.receives else {
            return Err(Rejected { error: PostError::UsesSharedReceiveQueue, memory });
        };
        if let Err(error) = memory.check(self.pd.id(), None) {
            return Err(Rejected { error, memory });
        }
        let (queue, post_recv) = (self.shared.id, self.pd.device().handle().ops.post_recv);
        let mut list = match gather(&memory, 0..memory.len()) {
            Ok(list) => list,
            Err(error) => return Err(Rejected { error, memory }),
        };
        let post = |own| {
            let mut wr = sys::ibv_recv_wr {
                wr_id: Tag { queue, receive: true, own }.encode(),
                next: null_mut(),
                sg_list: list.pieces.as_mut_ptr(),
                num_sge: list.count,
            };
            let mut bad = null_mut();
            // SAFETY: the queue pair is alive; the pieces are of memory that the slot keeps until the receive is done.
            outcome(unsafe { post_recv(self.qp.as_ptr(), &raw mut wr, &raw mut bad) }).map_err(refused)
        };
        // SAFETY: the owner is the only poster.
        unsafe { receives.hand_over(memory, wr_id, post) }.map_err(|(error, memory)| {
            let error = error.unwrap_or(PostError::ReceiveQueueFull { depth: receives.depth() });
            Rejected { error, memory }
        })?;
        if self.known_state() == QpState::Err {
            self.flush_late_receive();
        }
        Ok(())
    }

    #[cold]
    fn flush_late_receive(&self) {
        if !quirks::flushes_late_receives(self.pd.device().attributes())
            && let Err(error) = self.to_error()
        {
            tracing::debug!(qpn = %self.qpn(), %error, "a receive waits for its flush");
        }
    }

    #[inline(always)]
    fn limits(&self) -> Limits {
        Limits {
            domain: self.domain,
            qp_type: self.shared.qp_type,
            max_inline: self.max_inline as usize,
            max_message: self.max_message as usize,
            max_datagram: self.max_datagram as usize,
            read_reduce: false,
        }
    }

    #[inline(always)]
    pub(super) fn tag(&self, own: u32) -> u64 {
        self.tags | u64::from(own)
    }
}

#[inline(always)]
fn hand_over(
    queue: &crate::ibv::send_queue::SendQueue,
    index: u32,
    fill: impl FnOnce(&mut SendSlot),
    post: impl FnOnce(&SendSlot) -> Result<(), PostError>,
) -> Result<(), Rejected> {
    queue.hand_over(index, fill, post).map_err(|(error, slot)| Rejected { error, memory: slot.local })
}

#[inline(always)]
pub(super) fn flags(wr: &SendWr) -> u32 {
    let flag = |set, flag| if set { flag } else { 0 };
    flag(wr.signaled, sys::IBV_SEND_SIGNALED)
        | flag(wr.solicited, sys::IBV_SEND_SOLICITED)
        | flag(wr.fenced, sys::IBV_SEND_FENCE)
}

/// The pieces of `range` of local memory.
#[inline(always)]
pub(in crate::ibv) fn gather(memory: &Local, range: Range<usize>) -> Result<Pieces, PostError> {
    let mut list = Pieces { pieces: [sys::ibv_sge { addr: 0, length: 0, lkey: 0 }; MAX_SGE], count: 0 };
    let (mut skip, mut left) = (range.start, range.end - range.start);
    for index in 0..memory.pieces() {
        let Some(piece) = memory.piece(index) else { break };
        let start = skip.min(piece.len);
        skip -= start;
        let len = (piece.len - start).min(left);
        left -= len;
        if len == 0 {
            continue;
        }
        // A piece of 4 GiB and more is longer than any message.
        let too_long = PostError::TooLong { len, limit: u32::MAX as usize, what: "a piece of memory" };
        let length = u32::try_from(len).map_err(|_| too_long)?;
        let Some(place) = list.pieces.get_mut(list.count as usize) else { break };
        *place = sys::ibv_sge { addr: (piece.ptr.expose_provenance() + start) as u64, length, lkey: piece.lkey };
        list.count += 1;
    }
    Ok(list)
}

/// The key of a request's remote side.
#[inline(always)]
pub(super) fn key(rkey: Rkey) -> u32 {
    rkey.0
}

/// The handle's parts that a datagram names.
#[inline(always)]
pub(super) fn datagram(to: &Ah) -> (*mut sys::ibv_ah, u32, u32) {
    (to.raw(), to.qpn(), to.qkey())
}
