//! Access to memory that can neither be mapped nor copied by system call: in parts through a bounce area of the
//! initiator's shared mapping, which the owner's control thread copies from or to.

use std::sync::Arc;

use super::control::{BounceOp, FaultKind};
use super::device_copy;
use super::exec::{Atomic, LOST, Outcome, Piece, Request, Sender, Wait, take};
use super::link::Link;
use super::node::Node;
use super::peer::PeerView;
use super::qp::Own;
use crate::calc::Calc;
use crate::memory::RemoteSlice;
use crate::status::WcStatus;
use crate::sync::AtomicU64;
use crate::types::{Access, Rkey};

/// A request under way through the bounce area.
#[derive(Debug)]
pub(crate) struct Bouncing {
    node: Arc<Node>,
    /// Offset of the area in our shared mapping; `None` for atomics, which need none.
    area: Option<usize>,
    done: usize,
    part: usize,
    request: Option<u32>,
}

impl Bouncing {
    fn new(own: &Own, with_area: bool) -> Option<Self> {
        let node = own.qp.node().clone();
        let area = if with_area { Some(node.take_shared(AREA)?) } else { None };
        Some(Bouncing { node, area, done: 0, part: 0, request: None })
    }

    fn area_ptr(&self) -> Option<*mut u8> {
        // SAFETY: bytes have no invalid pattern; the area is ours and, during a part, the peer's.
        unsafe { self.node.shared().array::<u8>(self.area?, AREA) }.map(std::ptr::NonNull::as_ptr)
    }

    /// Ends it. The area is kept from others for good if the peer may still be writing it.
    pub(crate) fn abandon(self, link: &Link) {
        match (self.request, self.area) {
            (Some(request), _) if !link.is_dead() => link.forget_bounce(request),
            (_, Some(area)) => self.node.give_shared(area, AREA),
            (_, None) => {}
        }
    }
}

impl Sender {
    /// Moves the local side out through the area. `None` once all of it is there.
    pub(super) fn bounce_out(
        &mut self,
        own: &Own,
        request: &Request<'_>,
        next: impl Fn(&PeerView, usize, usize, u32) -> Option<(usize, BounceOp)>,
    ) -> Option<Outcome> {
        let total = request.len();
        if let Err(outcome) = self.bounce_start(own, true) {
            return Some(outcome);
        }
        loop {
            match self.bounce_answer() {
                Answer::Waiting => return Some(Outcome::Wait(Wait::Memory)),
                Answer::Refused => return Some(self.bounce_refused(own)),
                Answer::Done(_) => {}
            }
            let (Some(peer), Some(bouncing)) = (&self.peer, &mut self.bouncing) else { return Some(LOST) };
            bouncing.done += std::mem::take(&mut bouncing.part);
            if bouncing.done >= total {
                self.bounce_end();
                return None;
            }
            let want = AREA.min(total - bouncing.done);
            let (Some(area), Some(to)) = (bouncing.area, bouncing.area_ptr()) else { return Some(LOST) };
            let Some((part, op)) = next(peer, bouncing.done, want, area as u32) else {
                return Some(self.bounce_refused(own));
            };
            request.part(bouncing.done, part, |offset, piece| {
                // SAFETY: the area holds `part` bytes and nobody uses it between parts; the piece is posted memory.
                unsafe { device_copy(to.add(offset), piece.ptr, piece.len) };
            });
            bouncing.part = part;
            bouncing.request = peer.link.bounce(op);
        }
    }

    /// Reads `remote` through the area into the local side.
    pub(super) fn bounce_in(
        &mut self,
        own: &Own,
        request: &Request<'_>,
        remote: RemoteSlice,
        calc: Option<Calc>,
    ) -> Outcome {
        let total = request.len();
        if let Err(outcome) = self.bounce_start(own, true) {
            return outcome;
        }
        loop {
            match self.bounce_answer() {
                Answer::Waiting => return Outcome::Wait(Wait::Memory),
                Answer::Refused => return self.bounce_refused(own),
                Answer::Done(_) => {}
            }
            let (Some(peer), Some(bouncing)) = (&self.peer, &mut self.bouncing) else { return LOST };
            let (Some(area), Some(from)) = (bouncing.area, bouncing.area_ptr()) else { return LOST };
            let part = std::mem::take(&mut bouncing.part);
            request.part(bouncing.done, part, |offset, piece| {
                // SAFETY: the peer filled `part` bytes of the area; the piece is posted memory.
                unsafe { take(piece, from.add(offset), calc) };
            });
            bouncing.done += part;
            if bouncing.done >= total {
                self.bounce_end();
                return Outcome::Done(WcStatus::SUCCESS, total as u32);
            }
            let (addr, len) = (remote.addr + bouncing.done as u64, AREA.min(total - bouncing.done));
            bouncing.part = len;
            bouncing.request = peer.link.bounce(BounceOp::Read {
                qpn: peer.qpn,
                rkey: remote.rkey.0,
                addr,
                len: len as u32,
                slot: area as u32,
            });
        }
    }

    /// An atomic by the owner's control thread: the value before, or what to do instead (`None`: it was refused).
    pub(super) fn bounce_atomic(
        &mut self,
        own: &Own,
        remote: RemoteSlice,
        atomic: Atomic,
    ) -> Result<u64, Option<Outcome>> {
        let starting = self.bouncing.is_none();
        self.bounce_start(own, false).map_err(Some)?;
        if starting {
            let (Some(peer), Some(bouncing)) = (&self.peer, &mut self.bouncing) else { return Err(Some(LOST)) };
            let (qpn, rkey, addr) = (peer.qpn, remote.rkey.0, remote.addr);
            bouncing.request = peer.link.bounce(match atomic {
                Atomic::CompareSwap(compare, swap) => BounceOp::CompareSwap { qpn, rkey, addr, compare, swap },
                Atomic::FetchAdd(add) => BounceOp::FetchAdd { qpn, rkey, addr, add },
            });
        }
        match self.bounce_answer() {
            Answer::Waiting => Err(Some(Outcome::Wait(Wait::Memory))),
            Answer::Refused => Err(None),
            Answer::Done(old) => {
                self.bounce_end();
                Ok(old)
            }
        }
    }

    pub(super) fn bounce_refused(&mut self, own: &Own) -> Outcome {
        self.bounce_end();
        match &self.peer {
            Some(peer) => own.refused(peer, WcStatus::REM_ACCESS_ERR, Some(FaultKind::Access)),
            None => LOST,
        }
    }

    fn bounce_start(&mut self, own: &Own, with_area: bool) -> Result<(), Outcome> {
        if self.bouncing.is_none() {
            // A full shared mapping is waited out: areas come back.
            self.bouncing = Some(Bouncing::new(own, with_area).ok_or(Outcome::Wait(Wait::Memory))?);
        }
        Ok(())
    }

    fn bounce_answer(&mut self) -> Answer {
        let (Some(peer), Some(bouncing)) = (&self.peer, &mut self.bouncing) else { return Answer::Refused };
        let Some(request) = bouncing.request else { return Answer::Done(0) };
        match peer.link.bounce_result(request) {
            None => Answer::Waiting,
            Some(result) => {
                bouncing.request = None;
                result.map_or(Answer::Refused, Answer::Done)
            }
        }
    }

    pub(super) fn bounce_end(&mut self) {
        if let (Some(peer), Some(bouncing)) = (&self.peer, self.bouncing.take()) {
            bouncing.abandon(&peer.link);
        }
    }
}

enum Answer {
    Waiting,
    Refused,
    Done(u64),
}

impl Request<'_> {
    /// The pieces of bytes `from..from + len` of the local side, with offsets from `from` on.
    fn part(&self, from: usize, len: usize, mut f: impl FnMut(usize, Piece)) {
        let end = from + len;
        self.pieces(|offset, piece| {
            let start = from.clamp(offset, offset + piece.len);
            let stop = end.clamp(start, offset + piece.len);
            if stop > start {
                // SAFETY: `start - offset` lies within the piece.
                let ptr = unsafe { piece.ptr.add(start - offset) };
                f(start - from, Piece { ptr, len: stop - start });
            }
            None::<()>
        });
    }
}

/// Carries out a bounce for a peer; the caller is inside the engine's hazard. `None` if it is refused.
pub(crate) fn serve(node: &Node, link: &Link, op: BounceOp) -> Option<u64> {
    let granted = |qpn, rkey, addr, len: u32, right: Access| {
        let qp = node.qp(qpn)?;
        let may = qp.is_peer(link.peer()) && qp.access().contains(right);
        node.keys().view().check(Rkey(rkey), addr, len.into(), right, qp.domain(), qpn).filter(|_| may)
    };
    let area = |slot: u32, len: u32| {
        // SAFETY: bytes have no invalid pattern.
        unsafe { link.shared().array::<u8>(slot as usize, len as usize) }.map(std::ptr::NonNull::as_ptr)
    };
    match op {
        BounceOp::Write { qpn, rkey, addr, len, slot } => {
            granted(qpn, rkey, addr, len, Access::REMOTE_WRITE)?;
            // SAFETY: the key grants `len` bytes at `addr` of this process until the engine's hazard is left.
            unsafe { device_copy(addr as *mut u8, area(slot, len)?, len as usize) };
            Some(0)
        }
        BounceOp::Read { qpn, rkey, addr, len, slot } => {
            granted(qpn, rkey, addr, len, Access::REMOTE_READ)?;
            // SAFETY: as above.
            unsafe { device_copy(area(slot, len)?, addr as *const u8, len as usize) };
            Some(0)
        }
        BounceOp::Receive { qpn, receive, piece, offset, len, slot } => {
            let qp = node.qp(qpn).filter(|qp| qp.is_peer(link.peer()))?;
            let (to, room) = qp.posted_piece(receive, piece)?;
            if u64::from(offset) + u64::from(len) > room {
                return None;
            }
            // SAFETY: the receive is posted and stays so until the engine's hazard is left; the range was checked.
            unsafe { device_copy((to + u64::from(offset)) as *mut u8, area(slot, len)?, len as usize) };
            Some(0)
        }
        BounceOp::CompareSwap { qpn, rkey, addr, compare, swap } => {
            granted(qpn, rkey, addr, 8, Access::REMOTE_ATOMIC).filter(|_| addr.is_multiple_of(8))?;
            // SAFETY: the key grants 8 aligned bytes at `addr` until the engine's hazard is left.
            Some(Atomic::CompareSwap(compare, swap).apply(unsafe { AtomicU64::from_ptr(addr as *mut u64) }))
        }
        BounceOp::FetchAdd { qpn, rkey, addr, add } => {
            granted(qpn, rkey, addr, 8, Access::REMOTE_ATOMIC).filter(|_| addr.is_multiple_of(8))?;
            // SAFETY: as above.
            Some(Atomic::FetchAdd(add).apply(unsafe { AtomicU64::from_ptr(addr as *mut u64) }))
        }
    }
}

/// Size of the bounce area: large enough that a part's copying outweighs waking the owner's thread.
const AREA: usize = 64 << 10;
