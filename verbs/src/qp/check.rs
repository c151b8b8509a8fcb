//! What can not be posted is refused before anything happens.

use crate::error::PostError;
use crate::memory::{Local, RemoteSlice};
use crate::qp::{Borrowed, Op, SendWr};
use crate::types::QpType;

/// What a queue pair takes. Lengths in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) domain: u64,
    pub(crate) qp_type: QpType,
    pub(crate) max_inline: usize,
    pub(crate) max_message: usize,
    pub(crate) max_datagram: usize,
    /// Most pieces of memory.
    pub(crate) max_sge: usize,
    /// The same in a READ.
    pub(crate) max_sge_read: usize,
    pub(crate) read_reduce: bool,
}

impl Limits {
    /// Length of the local side of a request that may be posted.
    #[inline(always)]
    pub(crate) fn check_send(&self, wr: &SendWr, with: &Borrowed<'_>) -> Result<usize, PostError> {
        let qp_type = self.qp_type;
        let len = if let Some(data) = with.inline {
            if data.len() > self.max_inline {
                return Err(PostError::TooLong { len: data.len(), limit: self.max_inline, what: "inline data" });
            }
            if wr.range.is_some() {
                return Err(PostError::NotSupported { what: "a range of inline data", qp_type });
            }
            data.len()
        } else {
            if !matches!(wr.local, Local::None) || wr.range.is_some() {
                let max_sge = if matches!(wr.op, Op::Read(_)) { self.max_sge_read } else { self.max_sge };
                wr.local.check(self.domain, wr.range.as_ref(), max_sge)?;
            }
            wr.range.as_ref().map_or_else(|| wr.local.len(), |range| range.len())
        };
        if len > self.max_message {
            return Err(PostError::TooLong { len, limit: self.max_message, what: "a message" });
        }
        if with.to.is_some_and(|to| to.domain() != self.domain) {
            return Err(PostError::WrongDomain);
        }
        if wr.imm.is_some() || wr.invalidate.is_some() {
            check_carried(wr, qp_type)?;
        }
        let same = |remote: &RemoteSlice| {
            if remote.len == len as u64 {
                Ok(())
            } else {
                Err(PostError::LengthMismatch { local: len, remote: remote.len as usize })
            }
        };
        match &wr.op {
            Op::Send if with.to.is_some() && len > self.max_datagram => {
                Err(PostError::TooLong { len, limit: self.max_datagram, what: "a datagram" })
            }
            Op::Send => Ok(()),
            Op::Write(remote) => same(remote),
            _ if qp_type != QpType::Rc => Err(PostError::NotSupported { what: "this operation", qp_type }),
            Op::Read(remote) => same(remote),
            Op::ReadReduce(..) if !self.read_reduce => {
                Err(PostError::NotSupported { what: "READ with reduction", qp_type })
            }
            Op::ReadReduce(_, calc) if calc.fixed().is_none() && wr.local.is_on_gpu() => {
                Err(PostError::OnGpu { what: "a reduction by a function of the program's own" })
            }
            Op::ReadReduce(remote, calc) => {
                whole_elements(&wr.local, len, calc.data_type().size())?;
                same(remote)
            }
            Op::CompareSwap { remote, .. } | Op::FetchAdd { remote, .. } => same(remote),
            Op::Bind { .. } if with.bind.is_some_and(|(_, region)| region.grant().is_withdrawn()) => {
                Err(PostError::Withdrawn)
            }
            Op::Bind { .. } | Op::Invalidate(_) => Ok(()),
        }?;
        Ok(len)
    }
}

/// Refuses what a request can not carry along.
#[cold]
fn check_carried(wr: &SendWr, qp_type: QpType) -> Result<(), PostError> {
    let what = match (&wr.op, wr.imm, wr.invalidate) {
        (_, None, None) | (Op::Send | Op::Write(_), Some(_), None) => return Ok(()),
        (Op::Send, None, Some(_)) if qp_type == QpType::Rc => return Ok(()),
        (Op::Send, Some(_), Some(_)) => "a message with both immediate data and a key to invalidate",
        (_, Some(_), _) => "this operation with immediate data",
        (_, None, Some(_)) => "this operation with a key to invalidate",
    };
    Err(PostError::NotSupported { what, qp_type })
}

/// Refuses memory that cuts an element.
fn whole_elements(local: &Local, len: usize, size: usize) -> Result<(), PostError> {
    let pieces = (0..local.pieces()).filter_map(|index| local.piece(index)).map(|piece| piece.len);
    let mut all = pieces.filter(|_| local.pieces() > 1).chain([len]);
    all.find(|len| !len.is_multiple_of(size)).map_or(Ok(()), |len| Err(PostError::PartialElement { len, size }))
}
