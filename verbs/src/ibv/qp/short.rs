//! The short way to post: one buffer, a part of an exposed region, or inline data, sent, written or read, with nothing else
//! to it. What is not so goes the [long way](OwnedQp::post_any), which takes all requests and has all the answers to bad ones.

use std::io;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

use qpair_verbs_sys as sys;

use super::create::OwnedQp;
use super::submit::Submit;
use crate::error::Rejected;
use crate::ibv::handle::{outcome, refused};
use crate::ibv::pieces::single;
use crate::ibv::send_queue::{Held, SendSlot};
use crate::memory::{Local, RemoteSlice};
use crate::qp::{Borrowed, Op, SendWr};
use crate::status::WcOpcode;
use crate::types::QpType;

/// An operation that goes the short way.
struct Way {
    opcode: u32,
    shown_as: WcOpcode,
    /// What a SEND has none of.
    remote: Option<RemoteSlice>,
}

impl Way {
    #[inline(always)]
    fn of(op: Op, qp_type: QpType) -> Option<Self> {
        let (opcode, remote) = match op {
            Op::Send => (sys::IBV_WR_SEND, None),
            Op::Write(remote) => (sys::IBV_WR_RDMA_WRITE, Some(remote)),
            Op::Read(remote) if qp_type == QpType::Rc => (sys::IBV_WR_RDMA_READ, Some(remote)),
            _ => return None,
        };
        Some(Way { opcode, shown_as: op.opcode(), remote })
    }
}

impl OwnedQp {
    /// Posts a send request. For the one owner, which has `&mut` of the queue pair.
    ///
    /// The request comes by value and is taken apart at once, so that where it is built it need never be in memory as a
    /// whole.
    #[inline(always)]
    pub(crate) fn post_send(&self, wr: SendWr, with: Borrowed<'_>) -> Result<(), Rejected> {
        let flags = super::post::flags(&wr, with.inline.is_some());
        let SendWr { op, local, range, imm, invalidate, wr_id, signaled, solicited, fenced } = wr;
        let bare = with.to.is_none() && imm.is_none() && invalidate.is_none() && range.is_none();
        if bare
            && let Some(way) = Way::of(op, self.shared.qp_type)
            && let Some(piece) = self.piece(&local, with.inline)
            && let Some(index) = self.takes(&way, &piece)
        {
            let slot = SendSlot { local, wr_id, opcode: way.shown_as, len: piece.length, held: Held::Nothing };
            return self.post_short(&way, (index, slot), (piece, with.inline), flags);
        }
        // Put together anew, so that what came needs no place in memory on the short way.
        let wr = SendWr { op, local, range, imm, invalidate, wr_id, signaled, solicited, fenced };
        let Borrowed { inline, to, bind } = with;
        self.post_any(wr, Borrowed { inline, to, bind })
    }

    /// The local side as the device sees it, where it is one piece. Memory of another domain is for the long way to refuse.
    #[inline(always)]
    fn piece(&self, local: &Local, inline: Option<&[u8]>) -> Option<sys::ibv_sge> {
        match inline {
            None => single(local, self.domain),
            Some(data) if data.len() <= self.inline.len as usize => {
                let addr = data.as_ptr().expose_provenance() as u64;
                Some(sys::ibv_sge { addr, length: data.len() as u32, lkey: 0 })
            }
            Some(_) => None,
        }
    }

    /// The request's count, if it is as long as its remote side, no longer than a message, and there is room. Of the state
    /// there is nothing to ask: a queue pair that can be posted to is in RTS, or was and has failed since, and the device
    /// flushes then.
    #[inline(always)]
    fn takes(&self, way: &Way, piece: &sys::ibv_sge) -> Option<u32> {
        let fits = way.remote.is_none_or(|remote| remote.len == u64::from(piece.length));
        if fits && piece.length <= self.max_message { self.send.next() } else { None }
    }

    /// Posts a request that this queue pair [takes](OwnedQp::takes).
    #[inline(always)]
    fn post_short(
        &self,
        way: &Way,
        (index, slot): (u32, SendSlot),
        (mut piece, inline): (sys::ibv_sge, Option<&[u8]>),
        flags: u32,
    ) -> Result<(), Rejected> {
        let Way { opcode, remote, .. } = *way;
        let (remote_addr, rkey) = remote.map_or((0, 0), |remote| (remote.addr, remote.rkey.0));
        let tag = self.tag(index);
        // SAFETY: `index` is the next one, for which there is room, and this is the one owner.
        unsafe { self.send.begin(index, slot) };
        let status = match &self.submit {
            Submit::Plain(ops) => {
                let mut request = MaybeUninit::<sys::ibv_send_wr>::uninit();
                let (at, mut bad) = (request.as_mut_ptr(), null_mut());
                // SAFETY: all that the operation asks for is set; the queue pair is alive, and the piece is of memory that the
                // slot keeps until the request is done, or inline, to be copied at once.
                unsafe {
                    (*at).wr_id = tag;
                    (*at).next = null_mut();
                    (*at).sg_list = &raw mut piece;
                    (*at).num_sge = 1;
                    (*at).opcode = opcode;
                    (*at).send_flags = flags;
                    (*at).__bindgen_anon_1.imm_data = 0;
                    (*at).wr.rdma.remote_addr = remote_addr;
                    (*at).wr.rdma.rkey = rkey;
                    (ops.post_send)(self.qp.as_ptr(), at, &raw mut bad)
                }
            }
            // SAFETY: the queue pair is alive; the memory as above.
            Submit::Extended(calls) => unsafe {
                calls.post_short(opcode, (remote_addr, rkey), (tag, flags), &piece, inline)
            },
        };
        if status != 0 {
            return Err(self.not_taken(index, status));
        }
        self.send.end(index);
        Ok(())
    }

    #[cold]
    fn not_taken(&self, index: u32, status: i32) -> Rejected {
        let error = outcome(status).err().unwrap_or_else(|| io::Error::from_raw_os_error(libc::EIO));
        // SAFETY: begun just now, by this owner.
        Rejected { error: refused(error), memory: unsafe { self.send.back(index) }.local }
    }
}
