//! Work requests under construction: each names its memory, is refined, and is posted.

use std::ops::Range;
use std::sync::Arc;

use crate::calc::Calc;
use crate::error::Rejected;
use crate::memory::{Local, RegionShared, RemoteSlice, Window};
use crate::qp::{OwnedQp, Target};
use crate::status::WcOpcode;
use crate::types::{Access, Rkey};

/// A send request under construction; nothing happens before [`post`](SendRequest::post).
#[must_use = "a request does nothing until it is posted"]
#[derive(Debug)]
pub struct SendRequest<'a> {
    qp: &'a mut OwnedQp,
    wr: SendWr,
    with: Borrowed<'a>,
}

/// What a send request borrows until it is posted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Borrowed<'a> {
    pub(crate) inline: Option<&'a [u8]>,
    /// Where a datagram goes.
    pub(crate) to: Option<&'a Target>,
    /// The window that is bound, and the region that it is bound to.
    pub(crate) bind: Option<(&'a Window, &'a Arc<RegionShared>)>,
}

/// A receive request under construction; nothing happens before [`post`](RecvRequest::post).
#[must_use = "a request does nothing until it is posted"]
#[derive(Debug)]
pub struct RecvRequest<'a> {
    qp: &'a OwnedQp,
    memory: Local,
    wr_id: u64,
}

/// What a send request shall do.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    Send,
    Write(RemoteSlice),
    Read(RemoteSlice),
    ReadReduce(RemoteSlice, Calc),
    CompareSwap {
        remote: RemoteSlice,
        compare: u64,
        swap: u64,
    },
    FetchAdd {
        remote: RemoteSlice,
        add: u64,
    },
    /// Binds a window to the bytes `start..end` of a region, which the request borrows.
    Bind {
        start: usize,
        end: usize,
        access: Access,
    },
    Invalidate(Rkey),
}

/// A send request but for what it borrows.
#[derive(Debug)]
pub(crate) struct SendWr {
    pub(crate) op: Op,
    pub(crate) local: Local,
    pub(crate) range: Option<Range<usize>>,
    pub(crate) imm: Option<u32>,
    /// A key of the peer's that the message withdraws.
    pub(crate) invalidate: Option<Rkey>,
    pub(crate) wr_id: u64,
    pub(crate) signaled: bool,
    pub(crate) solicited: bool,
    pub(crate) fenced: bool,
}

impl Op {
    pub(crate) fn opcode(&self) -> WcOpcode {
        match self {
            Op::Send => WcOpcode::SEND,
            Op::Write(_) => WcOpcode::RDMA_WRITE,
            Op::Read(_) => WcOpcode::RDMA_READ,
            Op::ReadReduce(..) => WcOpcode::READ_REDUCE,
            Op::CompareSwap { .. } => WcOpcode::COMP_SWAP,
            Op::FetchAdd { .. } => WcOpcode::FETCH_ADD,
            Op::Bind { .. } => WcOpcode::BIND_MW,
            Op::Invalidate(_) => WcOpcode::LOCAL_INV,
        }
    }
}

impl<'a> SendRequest<'a> {
    #[inline(always)]
    pub(crate) fn new(qp: &'a mut OwnedQp, op: Op, local: Local, with: Borrowed<'a>) -> Self {
        let wr = SendWr {
            op,
            local,
            range: None,
            imm: None,
            invalidate: None,
            wr_id: 0,
            signaled: false,
            solicited: false,
            fenced: false,
        };
        SendRequest { qp, wr, with }
    }

    /// A number that comes back with the completion.
    #[inline(always)]
    pub fn id(mut self, wr_id: u64) -> Self {
        self.wr.wr_id = wr_id;
        self
    }

    /// Asks for a completion. Without it the request retires with the next one that is signaled; errors always complete.
    #[inline(always)]
    pub fn signaled(mut self) -> Self {
        self.wr.signaled = true;
        self
    }

    /// Wakes a receiver that armed its queue for solicited completions.
    #[inline(always)]
    pub fn solicited(mut self) -> Self {
        self.wr.solicited = true;
        self
    }

    /// Starts only after all earlier READs and atomics of this queue pair are done. Between queue pairs of one host the software
    /// device does every request in order, so that a fence has nothing to wait for there; on the network it has.
    #[inline(always)]
    pub fn fenced(mut self) -> Self {
        self.wr.fenced = true;
        self
    }

    /// Sends immediate data along; an RDMA WRITE then takes a receive of the peer. SEND and WRITE; others are refused with
    /// it.
    #[inline(always)]
    pub fn imm(mut self, imm: u32) -> Self {
        self.wr.imm = Some(imm);
        self
    }

    /// Uses the bytes `range` of the local memory only. Refused for inline data, which can be cut before.
    #[inline(always)]
    pub fn range(mut self, range: Range<usize>) -> Self {
        self.wr.range = Some(range);
        self
    }

    /// Withdraws the peer's `rkey` with the message. SEND without immediate data, on a connection; others are refused with
    /// it.
    #[inline(always)]
    pub fn invalidating(mut self, rkey: Rkey) -> Self {
        self.wr.invalidate = Some(rkey);
        self
    }

    /// Posts the request. The memory is with the device until its completion.
    ///
    /// # Errors
    /// [`Rejected`] with the memory; [`PostError::is_retryable`](crate::PostError::is_retryable) tells whether polling
    /// helps.
    #[inline(always)]
    pub fn post(self) -> Result<(), Rejected> {
        let SendRequest { qp, wr, with } = self;
        qp.post_send(wr, with)
    }
}

impl<'a> RecvRequest<'a> {
    #[inline(always)]
    pub(crate) fn new(qp: &'a OwnedQp, memory: Local) -> Self {
        RecvRequest { qp, memory, wr_id: 0 }
    }

    /// A number that comes back with the completion.
    #[inline(always)]
    pub fn id(mut self, wr_id: u64) -> Self {
        self.wr_id = wr_id;
        self
    }

    /// Posts the receive.
    ///
    /// # Errors
    /// [`Rejected`] with the memory.
    #[inline(always)]
    pub fn post(self) -> Result<(), Rejected> {
        self.qp.post_recv(self.memory, self.wr_id)
    }
}
