//! The initiator's state of a queue pair, and what all kinds of requests do with it.

use std::time::Instant;

use super::bounce_area::Bouncing;
use super::request::{FLUSHED, Outcome, Own, Piece, Wait};
use crate::calc::Calc;
use crate::error::GpuError;
use crate::gpu::Place;
use crate::memory::Spot;
use crate::soft::hazard::Hazard;
use crate::soft::layout::FaultKind;
use crate::soft::peer::{Gate, PeerView};
use crate::soft::vm;
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

impl Sender {
    pub(crate) const fn new() -> Self {
        Sender { peer: None, hazard: Hazard::new(), executed: 0, waiting: None, bouncing: None }
    }

    #[inline(always)]
    pub(super) fn leave(&mut self, own: &Own, outcome: Outcome) -> Outcome {
        self.hazard.leave(own.hazard);
        outcome
    }

    /// A system-call copy did not work: for good (the memory is gone), or because the system forbids such copies.
    pub(super) fn vm_failed(&mut self, own: &Own, error: &std::io::Error) -> Outcome {
        let Some(peer) = &self.peer else { return super::request::LOST };
        if !vm::is_refused(error) {
            return own.refused(peer, WcStatus::REM_OP_ERR, Some(FaultKind::Operation));
        }
        peer.link.vm_refused();
        Outcome::Wait(Wait::Memory)
    }

    /// A GPU did not copy or combine: the peer's or this side's own.
    #[cold]
    pub(super) fn gpu_failed(&mut self, own: &Own, error: &GpuError, whose: Whose) -> Outcome {
        tracing::error!(%error, qpn = own.qpn, ?whose, "GPU memory of a request was not moved");
        let Some(peer) = &self.peer else { return super::request::LOST };
        match whose {
            Whose::Peers => own.refused(peer, WcStatus::REM_OP_ERR, Some(FaultKind::Operation)),
            Whose::Own => own.failed(peer),
        }
    }

    pub(crate) fn bounce_end(&mut self) {
        if let (Some(peer), Some(bouncing)) = (&self.peer, self.bouncing.take()) {
            bouncing.abandon(&peer.link);
        }
    }
}

/// Whose memory it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    Own,
    Peers,
}

impl Whose {
    /// Whose GPU it is that copies to `at`, where there is `to`, from the other side: the one of `to`, if that is a GPU's memory.
    pub(super) fn at_work(to: Place, at: Whose) -> Whose {
        match (to.is_host(), at) {
            (false, at) => at,
            (true, Whose::Own) => Whose::Peers,
            (true, Whose::Peers) => Whose::Own,
        }
    }
}

impl Own<'_> {
    /// `None` if the peer's gate is open, else what comes of the request. The caller is inside its hazard.
    #[inline(always)]
    pub(super) fn gate(&self, peer: &mut PeerView) -> Option<Outcome> {
        match peer.gate(self.state) {
            Gate::Open(_) => None,
            Gate::NotYet => Some(self.or_dropped(Wait::Peer)),
            Gate::Closed => Some(self.or_lost()),
            Gate::Failed => Some(FLUSHED),
        }
    }

    /// What this side has of a request can not be moved: a reliable connection fails on both sides, and the other learns that the
    /// request was not carried out.
    #[cold]
    pub(crate) fn failed(&self, peer: &PeerView) -> Outcome {
        if self.qp_type == QpType::Rc {
            peer.link.report(self.home.id(), peer.who.qpn, self.qpn, FaultKind::Operation);
        }
        Outcome::Done(WcStatus::LOC_QP_OP_ERR, 0)
    }

    /// The responder refused: a reliable connection fails on both sides, an unreliable one drops the message.
    #[cold]
    pub(crate) fn refused(&self, peer: &PeerView, status: WcStatus, kind: Option<FaultKind>) -> Outcome {
        if self.qp_type != QpType::Rc {
            return Outcome::Done(WcStatus::SUCCESS, 0);
        }
        if let Some(kind) = kind {
            peer.link.report(self.home.id(), peer.who.qpn, self.qpn, kind);
        }
        Outcome::Done(status, 0)
    }
}

/// Takes bytes into a local piece: copied, or combined.
///
/// # Errors
/// What the driver of a GPU says.
///
/// # Safety
/// `from` is readable and the piece writable for the piece's length, and they do not overlap.
#[inline]
pub(crate) unsafe fn take(piece: Piece, from: Spot, calc: Option<Calc>) -> Result<(), Box<GpuError>> {
    // SAFETY: passed on to the caller.
    unsafe {
        match calc {
            None => piece.spot().copy_from(from, piece.len),
            Some(calc) => piece.spot().combine_from(from, piece.len, calc),
        }
    }
}
