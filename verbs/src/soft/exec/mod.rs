//! Carrying out send requests: the initiator does the NIC's work for both sides.
//! Messages stand in `message`, WRITE, READ and atomics in `one_sided`.

mod message;
mod one_sided;

pub(crate) use message::{NotPut, put, scatter};
pub(crate) use one_sided::{Atomic, take};

use std::ops::Range;
use std::time::Instant;

use crate::memory::Local;
use crate::qp::{Borrowed, Op};
use crate::soft::bounce::Bouncing;
use crate::soft::control::FaultKind;
use crate::soft::hazard::Hazard;
use crate::soft::peer::{Gate, PeerView};
use crate::soft::qp::Own;
use crate::status::WcStatus;
use crate::types::QpType;

/// The initiator's state of one queue pair. Used by one thread at a time: the poster, or who holds the progress lock.
#[derive(Debug)]
pub(crate) struct Sender {
    pub(crate) peer: Option<PeerView>,
    pub(crate) hazard: Hazard,
    /// Requests carried out so far, as a running count.
    pub(crate) executed: u32,
    /// Since when the request in front waits, and for what.
    pub(crate) waiting: Option<(Instant, Wait)>,
    pub(crate) bouncing: Option<Bouncing>,
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
    Done(WcStatus, u32),
    /// To be tried again.
    Wait(Wait),
}

/// A request as the executor sees it.
pub(crate) struct Request<'a> {
    pub(crate) op: &'a Op,
    pub(crate) local: &'a Local,
    pub(crate) range: Option<&'a Range<usize>>,
    pub(crate) with: Borrowed<'a>,
    pub(crate) imm: Option<u32>,
    pub(crate) solicited: bool,
}

/// A piece of local memory.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) ptr: *mut u8,
    pub(crate) len: usize,
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
            return f(0, Piece { ptr: data.as_ptr().cast_mut(), len: data.len() });
        }
        let window = self.range.cloned().unwrap_or(0..usize::MAX);
        let (mut start, mut done) = (0, 0);
        for index in 0..self.local.pieces() {
            let piece = self.local.piece(index)?;
            let from = window.start.clamp(start, start + piece.len);
            let to = window.end.clamp(from, start + piece.len);
            if to > from {
                // SAFETY: `from - start` lies within the piece.
                let ptr = unsafe { piece.ptr.add(from - start) };
                if let Some(result) = f(done, Piece { ptr, len: to - from }) {
                    return Some(result);
                }
                done += to - from;
            }
            start += piece.len;
        }
        None
    }
}

impl Sender {
    pub(crate) const fn new() -> Self {
        Sender { peer: None, hazard: Hazard::new(), executed: 0, waiting: None, bouncing: None }
    }

    /// Carries out one request, or says what it waits for.
    #[inline]
    pub(crate) fn run(&mut self, own: &Own, request: &Request<'_>) -> Outcome {
        match request.op {
            Op::Send { invalidate } => match request.with.to {
                None => self.send(own, request, *invalidate),
                Some(handle) => handle.target().send(own, &mut self.hazard, request),
            },
            Op::Write(remote) => self.write(own, request, *remote),
            Op::Read(remote) => self.read(own, request, *remote, None),
            Op::ReadReduce(remote, calc) => self.read(own, request, *remote, Some(*calc)),
            Op::CompareSwap { remote, compare, swap } => {
                self.atomic(own, request, *remote, Atomic::CompareSwap(*compare, *swap))
            }
            Op::FetchAdd { remote, add } => self.atomic(own, request, *remote, Atomic::FetchAdd(*add)),
            Op::Bind { window, region, range, access } => own.bind(window, region, range, *access),
            Op::Invalidate(rkey) => own.invalidate(*rkey),
        }
    }

    #[inline(always)]
    fn leave(&mut self, own: &Own, outcome: Outcome) -> Outcome {
        self.hazard.leave(own.hazard());
        outcome
    }

    /// A system-call copy did not work: for good (the memory is gone), or because the system forbids such copies.
    fn vm_failed(&mut self, own: &Own, error: &std::io::Error) -> Outcome {
        let Some(peer) = &self.peer else { return LOST };
        match error.raw_os_error() {
            Some(libc::EPERM | libc::ENOSYS | libc::EACCES) => {
                peer.link.vm_refused();
                Outcome::Wait(Wait::Memory)
            }
            Some(libc::ESRCH) => LOST,
            _ => own.refused(peer, WcStatus::REM_OP_ERR, Some(FaultKind::Operation)),
        }
    }
}

pub(crate) const LOST: Outcome = Outcome::Done(WcStatus::RETRY_EXC_ERR, 0);

impl Own<'_> {
    /// `None` if the peer's gate is open, else what comes of the request. The caller is inside its hazard.
    #[inline(always)]
    fn gate(&self, peer: &mut PeerView) -> Option<Outcome> {
        match peer.gate(self.qpn()) {
            Gate::Open(_) => None,
            Gate::NotYet => Some(self.or_dropped(Wait::Peer)),
            Gate::Closed => Some(self.or_lost()),
        }
    }

    /// An unreliable connection drops what a reliable one waits with.
    #[inline(always)]
    pub(crate) fn or_dropped(&self, wait: Wait) -> Outcome {
        if self.qp_type() == QpType::Rc { Outcome::Wait(wait) } else { Outcome::Done(WcStatus::SUCCESS, 0) }
    }

    fn or_lost(&self) -> Outcome {
        if self.qp_type() == QpType::Rc { LOST } else { Outcome::Done(WcStatus::SUCCESS, 0) }
    }

    /// The responder refused: a reliable connection fails on both sides, an unreliable one drops the message.
    #[cold]
    pub(crate) fn refused(&self, peer: &PeerView, status: WcStatus, kind: Option<FaultKind>) -> Outcome {
        if self.qp_type() != QpType::Rc {
            return Outcome::Done(WcStatus::SUCCESS, 0);
        }
        if let Some(kind) = kind {
            peer.link.report(self.qp.node().id(), peer.qpn, self.qpn(), kind);
        }
        Outcome::Done(status, 0)
    }
}
