//! SEND: into the peer's ring if it is short, else straight into its posted receive.

use std::mem::MaybeUninit;

use super::request::{LOST, Outcome, Own, Piece, Request, Wait};
use super::sender::Sender;
use crate::gpu::Place;
use crate::memory::{MAX_SGE, Spot};
use crate::soft::claims::NoClaim;
use crate::soft::control::{BounceOp, Reach};
use crate::soft::entry::{
    Entry, FLAG_IMM, FLAG_INLINE, FLAG_INVALIDATE, FLAG_SOLICITED, KIND_SEND, RING_INLINE, lines_for,
};
use crate::soft::layout::FaultKind;
use crate::soft::layout::RecvPiece;
use crate::soft::peer::{PeerView, Receive};
use crate::soft::{barrier, device_copy, vm};
use crate::status::WcStatus;
use crate::sync::{AtomicU32, Ordering};

impl Sender {
    /// Sends one piece inside the ring, if it is short and nothing is in the way. False, with nothing done, if not: see
    /// [`send`](Sender::send).
    ///
    /// # Safety
    /// The piece is readable, and nobody writes it.
    #[inline(always)]
    pub(crate) unsafe fn send_short(
        &mut self,
        (hazard, state): (&AtomicU32, &AtomicU32),
        piece: Piece,
        solicited: bool,
    ) -> bool {
        let Some(peer) = &mut self.peer else { return false };
        let short = peer.takes_inside(piece.len) && peer.has_room_inside(lines_for(piece.len));
        let Some(receive) = peer.known_receive().filter(|_| short && self.bouncing.is_none()) else { return false };
        self.hazard.enter_light(hazard);
        barrier::light(peer.link.asymmetric());
        if peer.settled(state).is_none() {
            self.hazard.leave(hazard);
            return false;
        }
        let flags = FLAG_INLINE | if solicited { FLAG_SOLICITED } else { 0 };
        let entry = Entry { kind: KIND_SEND, flags, byte_len: piece.len as u32, receive, ..Entry::default() };
        // SAFETY: by the caller's word.
        peer.producer.push(entry, unsafe { std::slice::from_raw_parts(piece.ptr, piece.len) });
        self.hazard.leave(hazard);
        peer.took_receive();
        peer.wake(solicited);
        true
    }

    #[inline(always)]
    pub(super) fn send(&mut self, own: &Own, request: &Request<'_>) -> Outcome {
        let len = request.len();
        let Some(peer) = &mut self.peer else { return LOST };
        let mut flags = if request.solicited { FLAG_SOLICITED } else { 0 };
        let mut word = 0;
        if let Some(imm) = request.imm {
            (flags, word) = (flags | FLAG_IMM, imm);
        } else if let Some(rkey) = request.invalidate {
            (flags, word) = (flags | FLAG_INVALIDATE, rkey.0);
        }
        let short = peer.takes_inside(len) && peer.has_room_inside(lines_for(len));
        // What has begun by bounce goes on so: the peer may be about to copy a part into the receive.
        let inside = short && self.bouncing.is_none() && !request.local.is_on_gpu();
        self.hazard.enter_light(own.hazard);
        barrier::light(peer.link.asymmetric());
        if let Some(outcome) = own.gate(peer) {
            return self.leave(own, outcome);
        }
        // Behind the gate: the ring of one who has failed is never emptied.
        if !inside && !peer.has_room(1) {
            return self.leave(own, own.or_dropped(Wait::Room));
        }
        if let Some(rkey) = request.invalidate
            && !peer.may_withdraw(rkey)
        {
            self.hazard.leave(own.hazard);
            return own.refused(peer, WcStatus::REM_ACCESS_ERR, Some(FaultKind::Access));
        }
        let receive = match peer.next_receive(peer.who.qpn, !inside) {
            Ok(receive) => receive,
            Err(NoClaim::Empty) => return self.leave(own, own.or_dropped(Wait::Receive)),
            Err(NoClaim::Closed) => return self.leave(own, LOST),
        };
        let mut entry = Entry {
            kind: KIND_SEND,
            flags,
            byte_len: len as u32,
            imm: word,
            receive: receive.index,
            ..Entry::default()
        };
        // A look at the receives may have shown a short one just now. Its slot is there to be found, but for a place used
        // again already: then the owner finds out whether the message fits.
        let placed =
            if inside && !peer.takes_inside(len) { peer.described(receive) } else { (!inside).then_some(receive) };
        let Some(receive) = placed else {
            entry.flags |= FLAG_INLINE;
            push_inline(peer, entry, request);
            self.hazard.leave(own.hazard);
            peer.took_receive();
            peer.wake(request.solicited);
            return Outcome::Done(WcStatus::SUCCESS, len as u64);
        };
        self.send_placed(own, request, entry, receive)
    }

    /// Puts the message straight into its receive. Inside the hazard; leaves it.
    #[inline(always)]
    fn send_placed(&mut self, own: &Own, request: &Request<'_>, entry: Entry, receive: Receive) -> Outcome {
        let (Some(peer), len) = (&self.peer, entry.byte_len) else { return self.leave(own, LOST) };
        // The light entry is not ordered before the copy for owners who do not pay for a heavy barrier, but a
        // receive's owner does (`SoftQp::fail`).
        let fits = u64::from(len) <= u64::from(peer.wqe(receive.slot).total.load(Ordering::Relaxed));
        if fits && let Some(waiting) = self.place(own, request, receive) {
            return waiting;
        }
        let Some(peer) = &mut self.peer else { return LOST };
        peer.producer.push(entry, &[]);
        self.hazard.leave(own.hazard);
        peer.took_receive();
        peer.wake(request.solicited || !fits);
        if fits {
            Outcome::Done(WcStatus::SUCCESS, len.into())
        } else {
            own.refused(peer, WcStatus::REM_INV_REQ_ERR, None)
        }
    }

    /// Puts the message into the receive `receive`. `Some` if it has to wait or failed; the hazard is left then.
    fn place(&mut self, own: &Own, request: &Request<'_>, receive: Receive) -> Option<Outcome> {
        let peer = self.peer.as_ref()?;
        if self.bouncing.is_none() {
            if !peer.begin_filling(receive) {
                return Some(self.leave(own, LOST));
            }
            let result = scatter(peer, receive.slot, 0, request, |to, piece| {
                // SAFETY: the receive is ours until we publish its completion, and in this process while it is marked, whatever
                // its owner is told; its owner waits for the hazard; the local piece is posted memory.
                unsafe { put(peer, to, piece) }
            });
            peer.end_filling(receive);
            match result {
                Ok(()) => return None,
                Err(NotPut::Pending) => return Some(self.leave(own, Outcome::Wait(Wait::Memory))),
                Err(NotPut::Fault) => {
                    self.hazard.leave(own.hazard);
                    let peer = self.peer.as_ref()?;
                    return Some(own.refused(peer, WcStatus::REM_OP_ERR, Some(FaultKind::Operation)));
                }
                Err(NotPut::OwnFault) => {
                    self.hazard.leave(own.hazard);
                    return Some(own.failed(self.peer.as_ref()?));
                }
                Err(NotPut::Bounce) => {}
            }
        }
        self.hazard.leave(own.hazard);
        let waiting = self.bounce_out(own, request, |peer, done, want, slot| {
            let (piece, offset, room) = locate(peer, receive.slot, done)?;
            let len = room.min(want);
            Some((
                len,
                BounceOp::Receive { qpn: peer.who.qpn, receive: receive.index, piece, offset, len: len as u32, slot },
            ))
        });
        waiting.or_else(|| self.enter_again(own))
    }

    /// Enters the peer's memory again after a bounce. `Some`, with the hazard left, if the peer closed meanwhile.
    pub(super) fn enter_again(&mut self, own: &Own) -> Option<Outcome> {
        self.hazard.enter(own.hazard);
        let outcome = own.gate(self.peer.as_mut()?);
        if outcome.is_some() {
            self.hazard.leave(own.hazard);
        }
        outcome
    }
}

/// Why a piece was not put into a receive.
pub(crate) enum NotPut {
    Pending,
    Bounce,
    /// What the receive's owner has of it fails.
    Fault,
    /// What the sender has of it does.
    OwnFault,
}

/// Calls `put` for each stretch of the message that lies in one piece of the receive, whose first `start` bytes are left.
#[inline]
pub(crate) fn scatter(
    peer: &PeerView,
    receive: u32,
    start: u64,
    request: &Request<'_>,
    mut put: impl FnMut((&RecvPiece, u64), Piece) -> Result<(), NotPut>,
) -> Result<(), NotPut> {
    let wqe = peer.wqe(receive);
    let count = (wqe.pieces.load(Ordering::Relaxed) as usize).min(MAX_SGE);
    let (mut index, mut used) = (0, start);
    let failed = request.pieces(|_, mut piece| {
        while piece.len > 0 {
            let Some(to) = wqe.piece[..count].get(index) else { return Some(NotPut::Fault) };
            let size = u64::from(to.len.load(Ordering::Relaxed));
            let part = size.saturating_sub(used).min(piece.len as u64) as usize;
            if part == 0 {
                (index, used) = (index + 1, used.saturating_sub(size));
                continue;
            }
            if let Err(error) = put((to, used), Piece { len: part, ..piece }) {
                return Some(error);
            }
            used += part as u64;
            piece = Piece { ptr: piece.ptr.wrapping_add(part), len: piece.len - part, ..piece };
        }
        None
    });
    failed.map_or(Ok(()), Err)
}

/// Copies into a piece of a receive, from `offset` on.
///
/// # Safety
/// `from` is readable; the caller is inside its hazard and has taken the receive.
#[inline]
pub(crate) unsafe fn put(peer: &PeerView, to: (&RecvPiece, u64), from: Piece) -> Result<(), NotPut> {
    // SAFETY: passed on to the caller.
    unsafe { put_at(peer, to.0, find(peer, to, from.len as u64), from) }
}

/// The same where it is known already where that lies, as [`find`] says.
///
/// # Safety
/// As [`put`].
#[inline]
pub(crate) unsafe fn put_at(
    peer: &PeerView,
    piece: &RecvPiece,
    found: (Reach, u64),
    from: Piece,
) -> Result<(), NotPut> {
    match found {
        (Reach::Mapped(to, place), _) => {
            if place.is_host() {
                peer.link.note_copy(piece.arena.load(Ordering::Relaxed), from.len as u64, from.place);
            }
            // SAFETY: the receive's owner lent these bytes until its completion, and waits for the hazard.
            unsafe { Spot::new(to.as_ptr(), place).copy_from(from.spot(), from.len) }.map_err(|error| {
                tracing::error!(%error, "a message from or to GPU memory was not moved");
                if place.is_host() { NotPut::OwnFault } else { NotPut::Fault }
            })
        }
        (Reach::Pending, _) => Err(NotPut::Pending),
        // The system copies between memory of processors only.
        (Reach::Unmapped, addr) if from.place.is_host() && is_on_host(piece) => {
            let pid = peer.link.vm_pid().ok_or(NotPut::Bounce)?;
            // SAFETY: by the caller's word.
            unsafe { vm::write(pid, addr, from.ptr, from.len) }.map_err(|error| {
                if !vm::is_refused(&error) {
                    return NotPut::Fault;
                }
                peer.link.vm_refused();
                NotPut::Bounce
            })
        }
        (Reach::Unmapped, _) => Err(NotPut::Bounce),
    }
}

/// True if a piece of a receive is memory of the processor.
fn is_on_host(piece: &RecvPiece) -> bool {
    Place::of_arena(piece.arena.load(Ordering::Relaxed)).is_host()
}

/// Where `len` bytes of a piece of a receive lie, from `offset` on: here if they can be mapped, and at the peer.
#[inline(always)]
pub(crate) fn find(peer: &PeerView, (piece, offset): (&RecvPiece, u64), len: u64) -> (Reach, u64) {
    let addr = piece.addr.load(Ordering::Relaxed).wrapping_add(offset);
    let at = piece.arena_offset.load(Ordering::Relaxed).wrapping_add(offset);
    (peer.link.reach(piece.arena.load(Ordering::Relaxed), at, len, addr), addr)
}

/// Piece, offset in it and room there of byte `done` of a receive.
fn locate(peer: &PeerView, receive: u32, done: usize) -> Option<(u32, u32, usize)> {
    let wqe = peer.wqe(receive);
    let mut start = 0;
    for (index, piece) in wqe.piece.iter().enumerate().take(wqe.pieces.load(Ordering::Relaxed) as usize) {
        let len = piece.len.load(Ordering::Relaxed) as usize;
        if done < start + len {
            return Some((index as u32, (done - start) as u32, start + len - done));
        }
        start += len;
    }
    None
}

/// Pushes a short message; gathers its pieces first if there are several.
#[inline(always)]
fn push_inline(peer: &mut PeerView, entry: Entry, request: &Request<'_>) {
    if let Some(data) = request.with.inline {
        peer.producer.push(entry, data);
        return;
    }
    let mut bytes = MaybeUninit::<[u8; RING_INLINE]>::uninit();
    let at = bytes.as_mut_ptr().cast::<u8>();
    request.pieces(|offset, piece| {
        // SAFETY: the message has at most RING_INLINE bytes; the pieces are posted memory.
        unsafe { device_copy(at.add(offset), piece.ptr, piece.len) };
        None::<()>
    });
    // SAFETY: the pieces have as many bytes together, one behind the other.
    peer.producer.push(entry, unsafe { std::slice::from_raw_parts(at, entry.byte_len as usize) });
}
