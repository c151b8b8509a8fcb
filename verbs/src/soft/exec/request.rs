//! A request as the executor sees it, and what can come of it.

use std::ops::Range;
use std::sync::Arc;

use crate::gpu::Place;
use crate::memory::{Local, Spot};
use crate::qp::{Borrowed, Op};
use crate::soft::home::Home;
use crate::soft::send_queue::Stalled;
use crate::status::WcStatus;
use crate::sync::AtomicU32;
use crate::types::{QpType, Rkey};

/// This side of a request: what the executor needs of its own queue pair.
#[derive(Clone, Copy)]
pub(crate) struct Own<'a> {
    pub(crate) home: &'a Arc<Home>,
    pub(crate) hazard: &'a AtomicU32,
    /// Its [`QpState`](crate::QpState), as a code.
    pub(crate) state: &'a AtomicU32,
    pub(crate) domain: u64,
    pub(crate) qpn: u32,
    pub(crate) qp_type: QpType,
}

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// The peer to be set up.
    Peer,
    /// A receive to be posted.
    Receive,
    /// Room in the peer's ring.
    Room,
    /// Memory of the peer to be mapped, or accessed on its side.
    Memory,
}

/// What came of an attempt.
pub(crate) enum Outcome {
    /// Over, with so many bytes moved into or out of local memory.
    // Wide, though no message is so long: two halves of a word that were just written would be read back as one, which the
    // processor does not forward (some 5 ns a post).
    Done(WcStatus, u64),
    /// To be tried again.
    Wait(Wait),
}

/// A request as the executor sees it.
pub(crate) struct Request<'a> {
    pub(crate) op: &'a Op,
    pub(crate) local: &'a Local,
    pub(crate) range: Option<&'a Range<usize>>,
    pub(crate) with: &'a Borrowed<'a>,
    pub(crate) imm: Option<u32>,
    pub(crate) invalidate: Option<Rkey>,
    pub(crate) solicited: bool,
}

/// A piece of local memory.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) ptr: *mut u8,
    pub(crate) len: usize,
    pub(crate) place: Place,
}

impl Piece {
    /// Memory of the processor.
    #[inline(always)]
    pub(crate) fn host(ptr: *mut u8, len: usize) -> Self {
        Piece { ptr, len, place: Place::HOST }
    }

    /// Where it begins.
    #[inline(always)]
    pub(crate) fn spot(self) -> Spot {
        Spot::new(self.ptr, self.place)
    }
}

impl<'a> Request<'a> {
    /// One that was kept, with `with` of what it borrowed.
    pub(crate) fn kept(stalled: &'a Stalled, local: &'a Local, with: &'a Borrowed<'a>) -> Self {
        Request {
            op: &stalled.op,
            local,
            range: stalled.range.as_ref(),
            with,
            imm: stalled.imm,
            invalidate: stalled.invalidate,
            solicited: stalled.solicited,
        }
    }

    /// A message of bytes that `with` has inline.
    pub(crate) const fn of_bytes(with: &'a Borrowed<'a>) -> Self {
        Request { op: &Op::Send, local: &Local::None, range: None, with, imm: None, invalidate: None, solicited: false }
    }
}

impl Request<'_> {
    /// Length of the local side.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        match (self.with.inline, self.range) {
            (Some(data), _) => data.len(),
            (None, Some(range)) => range.end - range.start,
            (None, None) => self.local.len(),
        }
    }

    /// The pieces of the local side, as `(offset, piece)`, until `f` gives `Some`.
    #[inline(always)]
    pub(crate) fn pieces<R>(&self, mut f: impl FnMut(usize, Piece) -> Option<R>) -> Option<R> {
        if let Some(data) = self.with.inline {
            return f(0, Piece::host(data.as_ptr().cast_mut(), data.len()));
        }
        let window = self.range.cloned().unwrap_or(0..usize::MAX);
        let (mut start, mut done) = (0, 0);
        for index in 0..self.local.pieces() {
            let piece = self.local.piece(index)?;
            let from = window.start.clamp(start, start + piece.len);
            let to = window.end.clamp(from, start + piece.len);
            if to > from {
                let ptr = piece.ptr.wrapping_add(from - start);
                if let Some(result) = f(done, Piece { ptr, len: to - from, place: piece.place }) {
                    return Some(result);
                }
                done += to - from;
            }
            start += piece.len;
        }
        None
    }
}

impl Request<'_> {
    /// The pieces of bytes `from..from + len` of the local side, with offsets from `from` on.
    pub(crate) fn part(&self, from: usize, len: usize, mut f: impl FnMut(usize, Piece)) {
        let end = from + len;
        self.pieces(|offset, piece| {
            let start = from.clamp(offset, offset + piece.len);
            let stop = end.clamp(start, offset + piece.len);
            if stop > start {
                let ptr = piece.ptr.wrapping_add(start - offset);
                f(start - from, Piece { ptr, len: stop - start, place: piece.place });
            }
            None::<()>
        });
    }

    /// Whether the local side is memory of a GPU.
    pub(crate) fn is_on_gpu(&self) -> bool {
        self.with.inline.is_none() && self.local.is_on_gpu()
    }
}

pub(crate) const LOST: Outcome = Outcome::Done(WcStatus::RETRY_EXC_ERR, 0);
pub(crate) const FLUSHED: Outcome = Outcome::Done(WcStatus::WR_FLUSH_ERR, 0);

impl Own<'_> {
    /// An unreliable connection drops what a reliable one waits with.
    #[inline(always)]
    pub(crate) fn or_dropped(&self, wait: Wait) -> Outcome {
        if self.qp_type == QpType::Rc { Outcome::Wait(wait) } else { Outcome::Done(WcStatus::SUCCESS, 0) }
    }

    /// The peer is gone: an unreliable connection does not notice.
    pub(crate) fn or_lost(&self) -> Outcome {
        if self.qp_type == QpType::Rc { LOST } else { Outcome::Done(WcStatus::SUCCESS, 0) }
    }
}
