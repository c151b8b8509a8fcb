//! Work requests under construction: each names its memory, is refined, and is posted.

use std::ops::Range;
use std::sync::Arc;

use crate::calc::Calc;
use crate::error::Rejected;
use crate::memory::{Local, RegionShared, RemoteSlice, WindowShared};
use crate::soft::SoftQp;
use crate::types::{Access, Rkey};
use crate::wc::WcOpcode;

/// A send request under construction; nothing happens before [`post`](SendRequest::post).
#[must_use = "a request does nothing until it is posted"]
#[derive(Debug)]
pub struct SendRequest<'a> {
    qp: &'a Arc<SoftQp>,
    wr: SendWr<'a>,
}

/// A receive request under construction; nothing happens before [`post`](RecvRequest::post).
#[must_use = "a request does nothing until it is posted"]
#[derive(Debug)]
pub struct RecvRequest<'a> {
    qp: &'a Arc<SoftQp>,
    memory: Local,
    wr_id: u64,
}

/// What a send request shall do.
#[derive(Debug)]
pub(crate) enum Op<'a> {
    Send { invalidate: Option<Rkey>, to: Option<&'a crate::AddressHandle> },
    Write(RemoteSlice),
    Read(RemoteSlice),
    ReadReduce(RemoteSlice, Calc),
    CompareSwap { remote: RemoteSlice, compare: u64, swap: u64 },
    FetchAdd { remote: RemoteSlice, add: u64 },
    Bind { window: Arc<WindowShared>, region: Arc<RegionShared>, range: Range<usize>, access: Access },
    Invalidate(Rkey),
}

#[derive(Debug)]
pub(crate) struct SendWr<'a> {
    pub(crate) op: Op<'a>,
    pub(crate) local: Local,
    pub(crate) range: Option<Range<usize>>,
    pub(crate) inline: Option<&'a [u8]>,
    pub(crate) imm: Option<u32>,
    pub(crate) wr_id: u64,
    pub(crate) signaled: bool,
    pub(crate) solicited: bool,
    pub(crate) fenced: bool,
}

impl Op<'_> {
    pub(crate) fn opcode(&self) -> WcOpcode {
        match self {
            Op::Send { .. } => WcOpcode::SEND,
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
    #[inline]
    pub(crate) fn new(qp: &'a Arc<SoftQp>, op: Op<'a>, local: Local, inline: Option<&'a [u8]>) -> Self {
        let wr = SendWr {
            op,
            local,
            range: None,
            inline,
            imm: None,
            wr_id: 0,
            signaled: false,
            solicited: false,
            fenced: false,
        };
        SendRequest { qp, wr }
    }

    /// A number that comes back with the completion.
    #[inline]
    pub fn id(mut self, wr_id: u64) -> Self {
        self.wr.wr_id = wr_id;
        self
    }

    /// Asks for a completion. Without it the request retires with the next one that is signaled; errors always complete.
    #[inline]
    pub fn signaled(mut self) -> Self {
        self.wr.signaled = true;
        self
    }

    /// Wakes a receiver that armed its queue for solicited completions.
    #[inline]
    pub fn solicited(mut self) -> Self {
        self.wr.solicited = true;
        self
    }

    /// Starts only after all earlier READs and atomics of this queue pair are done.
    #[inline]
    pub fn fenced(mut self) -> Self {
        self.wr.fenced = true;
        self
    }

    /// Sends immediate data along; an RDMA WRITE then takes a receive of the peer. SEND and WRITE.
    #[inline]
    pub fn imm(mut self, imm: u32) -> Self {
        self.wr.imm = Some(imm);
        self
    }

    /// Uses the bytes `range` of the local memory only.
    #[inline]
    pub fn range(mut self, range: Range<usize>) -> Self {
        self.wr.range = Some(range);
        self
    }

    /// Withdraws the peer's `rkey` with the message. SEND only; other requests ignore it.
    #[inline]
    pub fn invalidating(mut self, rkey: Rkey) -> Self {
        if let Op::Send { invalidate, .. } = &mut self.wr.op {
            *invalidate = Some(rkey);
        }
        self
    }

    /// Posts the request. The memory is with the device until its completion.
    ///
    /// # Errors
    /// [`Rejected`] with the memory; [`PostError::is_retryable`](crate::PostError::is_retryable) tells whether polling
    /// helps.
    #[inline]
    pub fn post(self) -> Result<(), Rejected> {
        self.qp.post_send(self.wr)
    }
}

impl<'a> RecvRequest<'a> {
    #[inline]
    pub(crate) fn new(qp: &'a Arc<SoftQp>, memory: Local) -> Self {
        RecvRequest { qp, memory, wr_id: 0 }
    }

    /// A number that comes back with the completion.
    #[inline]
    pub fn id(mut self, wr_id: u64) -> Self {
        self.wr_id = wr_id;
        self
    }

    /// Posts the receive.
    ///
    /// # Errors
    /// [`Rejected`] with the memory.
    #[inline]
    pub fn post(self) -> Result<(), Rejected> {
        self.qp.post_recv(self.memory, self.wr_id)
    }
}
