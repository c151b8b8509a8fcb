//! Posting: what may be posted is checked, put into its slot, and handed to the device.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use qpair_verbs_sys as sys;

use super::create::OwnedQp;
use super::submit::{Data, Submission};
use crate::error::{PostError, Rejected};
use crate::ibv::handle::refused;
use crate::ibv::mw::Mw;
use crate::ibv::numbers::Tag;
use crate::ibv::pieces::gather;
use crate::ibv::quirks;
use crate::ibv::send_queue::{Held, SendSlot};
use crate::memory::{Grant, Local, RegionShared, Window};
use crate::qp::{Borrowed, Limits, Op, SendWr, Target};
use crate::status::WcOpcode;
use crate::sync::lock;
use crate::types::{Access, QpState};

impl OwnedQp {
    /// Posts a send request of any kind. For the one owner, which has `&mut` of the queue pair.
    #[inline(never)]
    pub(super) fn post_any(&self, wr: SendWr, with: Borrowed<'_>) -> Result<(), Rejected> {
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
        let Some(index) = self.send.next() else {
            let error = PostError::SendQueueFull { depth: self.send.depth() };
            return Err(Rejected { error, memory: wr.local });
        };
        let to = match with.to {
            Some(Target::Ibv(handle)) => Some(handle),
            // Of another domain, which was refused above.
            Some(Target::Soft(_) | Target::Network(_)) | None => None,
        };
        if let Op::Bind { .. } | Op::Invalidate(_) = wr.op {
            return self.post_key(index, wr, with);
        }
        let pieces;
        let data = match with.inline {
            Some(data) => Data::Inline(data),
            None => {
                let range = wr.range.clone().unwrap_or_else(|| 0..wr.local.len());
                pieces = match gather(&wr.local, range, self.domain) {
                    Ok(pieces) => pieces,
                    Err(error) => return Err(Rejected { error, memory: wr.local }),
                };
                Data::Pieces(&pieces)
            }
        };
        let submission = Submission {
            wr_id: self.tag(index),
            flags: flags(&wr, with.inline.is_some()),
            imm: wr.imm,
            invalidate: wr.invalidate,
            to: to.map(|to| &**to),
        };
        let held = to.map_or(Held::Nothing, |handle| Held::Handle { _handle: handle.clone() });
        let slot = SendSlot { local: wr.local, wr_id: wr.wr_id, opcode: wr.op.opcode(), len: len as u32, held };
        // SAFETY: `index` is the next one, and this is the one owner. The queue pair is alive; the pieces are of memory that
        // the slot keeps until the request is done, inline data is copied at once.
        unsafe { self.hand_over(index, slot, || self.submit.request(self.qp, &wr.op, &submission, &data)) }
    }

    /// Puts a request into its slot, and hands it to the device by `post`.
    ///
    /// # Safety
    /// `index` is that of the next request, and the caller the one owner.
    unsafe fn hand_over(
        &self,
        index: u32,
        slot: SendSlot,
        post: impl FnOnce() -> io::Result<()>,
    ) -> Result<(), Rejected> {
        let queue = &self.send;
        // SAFETY: passed on to the caller.
        unsafe { queue.begin(index, slot) };
        match post() {
            Ok(()) => {
                queue.end(index);
                Ok(())
            }
            // SAFETY: begun just now.
            Err(error) => Err(Rejected { error: refused(error), memory: unsafe { queue.back(index) }.local }),
        }
    }

    /// Posts a request that binds or invalidates a key.
    #[cold]
    fn post_key(&self, index: u32, wr: SendWr, with: Borrowed<'_>) -> Result<(), Rejected> {
        let (wr_id, flags, opcode) = (wr.wr_id, flags(&wr, false), wr.op.opcode());
        let tag = self.tag(index);
        match (wr.op, with.bind) {
            (Op::Invalidate(rkey), _) => {
                let slot = SendSlot { local: Local::None, wr_id, opcode, len: 0, held: Held::Invalidate(rkey) };
                // SAFETY: `index` is the next one, and this is the one owner. The queue pair is alive.
                unsafe { self.hand_over(index, slot, || self.submit.invalidate(self.qp, tag, flags, rkey)) }
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
        if backing.domain() != self.pd.id() || window.domain() != self.pd.id() {
            return Err(PostError::WrongDomain);
        }
        if range.is_empty() || range.end > backing.len() {
            return Err(PostError::Range { start: range.start, end: range.end, len: backing.len() });
        }
        let (addr, len) = (backing.base().as_ptr().addr() as u64 + range.start as u64, range.len() as u64);
        let tag = self.tag(index);
        let rkey = grant.with_mr(|mr| {
            window.bind((addr, len), access, |mw, rkey| {
                let bind = sys::ibv_mw_bind_info { mr: mr.as_ptr(), addr, length: len, mw_access_flags: access.bits() };
                let held = Held::Bind(window.clone(), rkey);
                let slot = SendSlot { local: Local::None, wr_id, opcode: WcOpcode::BIND_MW, len: 0, held };
                // SAFETY: `index` is the next one, and this is the one owner. Queue pair and window are alive, and so is
                // the registration, which `with_mr` holds.
                let handed =
                    unsafe { self.hand_over(index, slot, || self.submit.bind(self.qp, tag, flags, (mw, rkey), &bind)) };
                handed.map_err(|rejected| rejected.error)
            })
        })?;
        grant.add_window(rkey, window);
        let mut windows = lock(&self.windows);
        windows.retain(|(rkey, window)| window.upgrade().is_some_and(|window| window.is_bound_as(*rkey)));
        windows.push((rkey, Arc::downgrade(window)));
        Ok(())
    }

    /// Posts a receive. For the one owner.
    #[inline(always)]
    pub(crate) fn post_recv(&self, memory: Local, wr_id: u64) -> Result<(), Rejected> {
        let Some(receives) = &self.receives else {
            return Err(Rejected { error: PostError::UsesSharedReceiveQueue, memory });
        };
        // SAFETY: the owner is the only poster; the queue pair is alive, and slots and tags are its.
        unsafe {
            let post = |wr, bad| (self.post_recv)(self.qp.as_ptr(), wr, bad);
            receives.post(self.tags | Tag::RECEIVE, self.takes, memory, wr_id, post)
        }?;
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
            max_inline: self.inline.len as usize,
            max_message: self.max_message as usize,
            max_datagram: self.max_datagram as usize,
            max_sge: self.max_sge[0],
            max_sge_read: self.max_sge[1],
            read_reduce: false,
        }
    }

    #[inline(always)]
    pub(super) fn tag(&self, own: u32) -> u64 {
        self.tags | u64::from(own)
    }
}

#[inline(always)]
pub(super) fn flags(wr: &SendWr, inline: bool) -> u32 {
    let flag = |set, flag| if set { flag } else { 0 };
    flag(wr.signaled, sys::IBV_SEND_SIGNALED)
        | flag(wr.solicited, sys::IBV_SEND_SOLICITED)
        | flag(wr.fenced, sys::IBV_SEND_FENCE)
        | flag(inline, sys::IBV_SEND_INLINE)
}
