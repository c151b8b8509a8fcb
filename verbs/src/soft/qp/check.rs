//! What can not be posted is refused before anything happens.

use super::core::SoftQp;
use crate::error::PostError;
use crate::memory::{Local, RemoteSlice};
use crate::qp::{Borrowed, Op, SendWr};
use crate::soft::{MAX_INLINE, MAX_MESSAGE};
use crate::types::{Mtu, QpType};

impl SoftQp {
    #[inline(always)]
    pub(super) fn check_send(&self, wr: &SendWr, with: &Borrowed<'_>) -> Result<(), PostError> {
        let qp_type = self.spec.qp_type;
        let len = if let Some(data) = with.inline {
            if data.len() > MAX_INLINE {
                return Err(PostError::TooLong { len: data.len(), limit: MAX_INLINE, what: "inline data" });
            }
            if wr.range.is_some() {
                return Err(PostError::NotSupported { what: "a range of inline data", qp_type });
            }
            data.len()
        } else {
            if !matches!(wr.local, Local::None) || wr.range.is_some() {
                wr.local.check(self.spec.domain, wr.range.as_ref())?;
            }
            wr.range.as_ref().map_or_else(|| wr.local.len(), |range| range.len())
        };
        if len > MAX_MESSAGE as usize {
            return Err(PostError::TooLong { len, limit: MAX_MESSAGE as usize, what: "a message" });
        }
        if with.to.is_some_and(|to| to.domain() != self.spec.domain) {
            return Err(PostError::WrongDomain);
        }
        if wr.imm.is_some() || wr.invalidate.is_some() {
            check_carried(wr, with, qp_type)?;
        }
        let same = |remote: &RemoteSlice| {
            if remote.len == len as u64 {
                Ok(())
            } else {
                Err(PostError::LengthMismatch { local: len, remote: remote.len as usize })
            }
        };
        match &wr.op {
            Op::Send if with.to.is_some() && len > Mtu::B4096.bytes() as usize => {
                Err(PostError::TooLong { len, limit: Mtu::B4096.bytes() as usize, what: "a datagram" })
            }
            Op::Send => Ok(()),
            Op::Write(remote) => same(remote),
            _ if qp_type != QpType::Rc => Err(PostError::NotSupported { what: "this operation", qp_type }),
            Op::Read(remote) => same(remote),
            Op::ReadReduce(remote, calc) => {
                whole_elements(&wr.local, len, calc.data_type.size())?;
                same(remote)
            }
            Op::CompareSwap { remote, .. } | Op::FetchAdd { remote, .. } => same(remote),
            Op::Bind { .. } | Op::Invalidate(_) => Ok(()),
        }
    }
}

/// Refuses what a request can not carry along.
#[cold]
fn check_carried(wr: &SendWr, with: &Borrowed<'_>, qp_type: QpType) -> Result<(), PostError> {
    let what = match (&wr.op, wr.imm, wr.invalidate) {
        (_, None, None) | (Op::Send | Op::Write(_), Some(_), None) => return Ok(()),
        (Op::Send, None, Some(_)) if with.to.is_none() => return Ok(()),
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
