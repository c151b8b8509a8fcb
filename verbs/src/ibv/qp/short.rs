//! The short way to post: one buffer, or a part of an exposed region, sent, written or read, with nothing else to it. What
//! is not so goes the [long way](OwnedQp::post_any), which takes all requests and has all the answers to bad ones.

use std::mem::MaybeUninit;
use std::ptr::null_mut;

use qpair_verbs_sys as sys;

use super::create::OwnedQp;
use super::submit::Submit;
use crate::error::Rejected;
use crate::ibv::handle::outcome;
use crate::ibv::srq::refused;
use crate::memory::{Local, RemoteSlice};
use crate::qp::{Borrowed, Op, SendWr};
use crate::status::WcOpcode;
use crate::types::{QpState, QpType, Rkey};

/// A request that goes the short way, once more.
struct Short {
    opcode: u32,
    shown_as: WcOpcode,
    remote: RemoteSlice,
}

impl OwnedQp {
    /// Posts a send request. For the one owner, which has `&mut` of the queue pair.
    #[inline(always)]
    pub(crate) fn post_send(&self, wr: &mut SendWr, with: &Borrowed<'_>) -> Result<(), Rejected> {
        match self.short(wr, with) {
            Some((short, index, piece)) => self.post_short(wr, &short, index, piece),
            None => self.post_any(wr, with),
        }
    }

    /// The request as the short way takes it, the count that it gets, and its memory as the device sees it; `None` if it
    /// goes the long way.
    #[inline(always)]
    fn short(&self, wr: &SendWr, with: &Borrowed<'_>) -> Option<(Short, u32, sys::ibv_sge)> {
        if with.inline.is_some() || with.to.is_some() {
            return None;
        }
        if wr.imm.is_some() || wr.invalidate.is_some() || wr.range.is_some() {
            return None;
        }
        let Local::Buffer(buffer) = &wr.local else { return None };
        let block = buffer.backing();
        let len = block.len();
        let short = match &wr.op {
            Op::Send => Short { opcode: sys::IBV_WR_SEND, shown_as: WcOpcode::SEND, remote: nowhere(len) },
            Op::Write(remote) => {
                Short { opcode: sys::IBV_WR_RDMA_WRITE, shown_as: WcOpcode::RDMA_WRITE, remote: *remote }
            }
            Op::Read(remote) if self.shared.qp_type == QpType::Rc => {
                Short { opcode: sys::IBV_WR_RDMA_READ, shown_as: WcOpcode::RDMA_READ, remote: *remote }
            }
            _ => return None,
        };
        let fits = len <= self.max_message as usize && short.remote.len == len as u64;
        if !fits || block.domain() != self.domain || !self.shared.is(QpState::Rts) {
            return None;
        }
        let addr = block.base().as_ptr().expose_provenance() as u64;
        Some((short, self.shared.send.next()?, sys::ibv_sge { addr, length: len as u32, lkey: block.lkey() }))
    }

    #[inline(always)]
    fn post_short(&self, wr: &mut SendWr, short: &Short, index: u32, mut piece: sys::ibv_sge) -> Result<(), Rejected> {
        let (tag, flags) = (self.tag(index), super::post::flags(wr));
        // SAFETY: `index` is the next one, and this is the one owner.
        unsafe { self.shared.send.begin(index, &mut wr.local, wr.wr_id, (short.shown_as, piece.length)) };
        let status = match &self.submit {
            Submit::Plain(ops) => {
                let mut request = MaybeUninit::<sys::ibv_send_wr>::uninit();
                let (at, mut bad) = (request.as_mut_ptr(), null_mut());
                // SAFETY: all that the operation asks for is set; the queue pair is alive, and the piece is of memory that the
                // slot keeps until the request is done.
                unsafe {
                    (*at).wr_id = tag;
                    (*at).next = null_mut();
                    (*at).sg_list = &raw mut piece;
                    (*at).num_sge = 1;
                    (*at).opcode = short.opcode;
                    (*at).send_flags = flags;
                    (*at).__bindgen_anon_1.imm_data = 0;
                    (*at).wr.rdma.remote_addr = short.remote.addr;
                    (*at).wr.rdma.rkey = short.remote.rkey.0;
                    (ops.post_send)(self.qp.as_ptr(), at, &raw mut bad)
                }
            }
            // SAFETY: the queue pair is alive; the memory as above.
            Submit::Extended(calls) => unsafe { calls.post_short(short.opcode, &short.remote, (tag, flags), &piece) },
        };
        if status != 0 {
            return Err(self.not_taken(index, status));
        }
        self.shared.send.end(index);
        Ok(())
    }

    #[cold]
    fn not_taken(&self, index: u32, status: i32) -> Rejected {
        let error = outcome(status).err().unwrap_or_else(|| std::io::Error::from_raw_os_error(libc::EIO));
        // SAFETY: begun just now, by this owner.
        Rejected { error: refused(error), memory: unsafe { self.shared.send.back(index) } }
    }
}

/// The remote side of what has none.
#[inline(always)]
fn nowhere(len: usize) -> RemoteSlice {
    RemoteSlice { addr: 0, len: len as u64, rkey: Rkey(0) }
}
