//! WRITE, READ, READ with reduction, and atomics: the key is checked, then the peer's memory is touched directly.

use super::request::{FLUSHED, LOST, Outcome, Own, Piece, Request, Wait};
use super::sender::{Sender, Whose, take};
use crate::calc::{self, Calc};
use crate::gpu::Place;
use crate::memory::{Atomic, RemoteSlice, Spot};
use crate::soft::claims::NoClaim;
use crate::soft::control::{BounceOp, Reach};
use crate::soft::entry::{Entry, FLAG_IMM, FLAG_SOLICITED, KIND_WRITE_IMM};
use crate::soft::layout::FaultKind;
use crate::soft::peer::{Gate, PeerView, Settled};
use crate::soft::{device_copy, vm};
use crate::status::WcStatus;
use crate::sync::AtomicU32;
use crate::types::Access;

impl Sender {
    /// Writes one piece, if the peer's memory is mapped and nothing is in the way. False, with nothing done, if not: see
    /// [`write`](Sender::write).
    #[inline(always)]
    pub(crate) fn write_short(
        &mut self,
        (hazard, state): (&AtomicU32, &AtomicU32),
        piece: Piece,
        remote: RemoteSlice,
    ) -> bool {
        let Some(peer) = &self.peer else { return false };
        self.hazard.enter(hazard);
        let found =
            peer.settled(state).map(|settled| reach(peer, settled, remote, Access::REMOTE_WRITE, Place::HOST, false));
        let Some(Found::At(to)) = found else {
            self.hazard.leave(hazard);
            return false;
        };
        let Some(to) = to.on_host() else {
            self.hazard.leave(hazard);
            return false;
        };
        // SAFETY: the key granted the piece's length at `to`, its owner waits for the hazard, and the piece is posted memory.
        unsafe { device_copy(to, piece.ptr, piece.len) };
        self.hazard.leave(hazard);
        true
    }

    pub(super) fn write(&mut self, own: &Own, request: &Request<'_>, remote: RemoteSlice) -> Outcome {
        let begun = self.bouncing.is_some();
        let Some(peer) = &mut self.peer else { return LOST };
        let len = remote.len;
        self.hazard.enter(own.hazard);
        let settled = match peer.gate(own.state) {
            Gate::Open(settled) => settled,
            Gate::NotYet => return self.leave(own, own.or_dropped(Wait::Peer)),
            Gate::Closed => return self.leave(own, own.or_lost()),
            Gate::Failed => return self.leave(own, FLUSHED),
        };
        // Behind the gate, as for a SEND.
        if request.imm.is_some() && !peer.has_room(1) {
            return self.leave(own, own.or_dropped(Wait::Room));
        }
        let receive = match request.imm.map(|_| peer.next_receive(peer.who.qpn, false)).transpose() {
            Ok(receive) => receive.map(|receive| receive.index),
            Err(NoClaim::Empty) => return self.leave(own, own.or_dropped(Wait::Receive)),
            Err(NoClaim::Closed) => return self.leave(own, LOST),
        };
        if len > 0 {
            match reach(peer, settled, remote, Access::REMOTE_WRITE, request.local.place(), begun) {
                Found::At(to) => {
                    let failed = request.pieces(|offset, piece| {
                        // SAFETY: the key granted `len` bytes at `to`, its owner waits for the hazard, and the pieces
                        // add up to `len` bytes of posted memory.
                        unsafe { to.add(offset).copy_from(piece.spot(), piece.len) }.err()
                    });
                    if let Some(error) = failed {
                        self.hazard.leave(own.hazard);
                        return self.gpu_failed(own, &error, Whose::at_work(to.place(), Whose::Peers));
                    }
                }
                Found::Vm(pid) => {
                    if let Some(outcome) = self.write_by_call(own, request, remote, pid) {
                        return outcome;
                    }
                }
                Found::Pending => return self.leave(own, Outcome::Wait(Wait::Memory)),
                Found::Bounce => {
                    if let Some(outcome) = self.write_by_bounce(own, request, remote) {
                        return outcome;
                    }
                }
                Found::Refused => {
                    self.hazard.leave(own.hazard);
                    let Some(peer) = &self.peer else { return LOST };
                    return own.refused(peer, WcStatus::REM_ACCESS_ERR, Some(FaultKind::Access));
                }
            }
        }
        let Some(peer) = &mut self.peer else { return LOST };
        if let (Some(imm), Some(receive)) = (request.imm, receive) {
            let flags = FLAG_IMM | if request.solicited { FLAG_SOLICITED } else { 0 };
            let entry = Entry { kind: KIND_WRITE_IMM, flags, byte_len: len as u32, imm, receive, ..Entry::default() };
            peer.producer.push(entry, &[]);
            peer.took_receive();
        }
        self.hazard.leave(own.hazard);
        if request.imm.is_some() {
            peer.wake(request.solicited);
        }
        Outcome::Done(WcStatus::SUCCESS, len)
    }

    /// Writes by system call. Inside the hazard; left if that did not work.
    #[cold]
    fn write_by_call(&mut self, own: &Own, request: &Request<'_>, remote: RemoteSlice, pid: i32) -> Option<Outcome> {
        let error = request.pieces(|offset, piece| {
            // SAFETY: the piece is posted memory.
            unsafe { vm::write(pid, remote.addr + offset as u64, piece.ptr, piece.len) }.err()
        })?;
        self.hazard.leave(own.hazard);
        Some(self.vm_failed(own, &error))
    }

    /// Writes through the bounce area, outside of the hazard. `None`, and inside again, once all of it is there.
    #[cold]
    fn write_by_bounce(&mut self, own: &Own, request: &Request<'_>, remote: RemoteSlice) -> Option<Outcome> {
        self.hazard.leave(own.hazard);
        let waiting = self.bounce_out(own, request, |peer, done, want, slot| {
            let (addr, rkey) = (remote.addr + done as u64, remote.rkey.0);
            Some((want, BounceOp::Write { qpn: peer.who.qpn, rkey, addr, len: want as u32, slot }))
        });
        waiting.or_else(|| self.enter_again(own))
    }

    pub(super) fn read(
        &mut self,
        own: &Own,
        request: &Request<'_>,
        remote: RemoteSlice,
        calc: Option<Calc>,
    ) -> Outcome {
        let begun = self.bouncing.is_some();
        let Some(peer) = &mut self.peer else { return LOST };
        let len = remote.len;
        self.hazard.enter(own.hazard);
        let settled = match peer.gate(own.state) {
            Gate::Open(settled) => settled,
            Gate::NotYet => return self.leave(own, Outcome::Wait(Wait::Peer)),
            Gate::Closed => return self.leave(own, LOST),
            Gate::Failed => return self.leave(own, FLUSHED),
        };
        if len == 0 {
            return self.leave(own, Outcome::Done(WcStatus::SUCCESS, 0));
        }
        match reach(peer, settled, remote, Access::REMOTE_READ, request.local.place(), begun) {
            Found::At(from) => {
                let failed = request.pieces(|offset, piece| {
                    // SAFETY: the key granted `len` bytes at `from`, its owner waits for the hazard; the pieces are
                    // posted memory and add up to `len` bytes.
                    unsafe { take(piece, from.add(offset), calc) }.err()
                });
                self.hazard.leave(own.hazard);
                match failed {
                    Some(error) => self.gpu_failed(own, &error, Whose::at_work(request.local.place(), Whose::Own)),
                    None => Outcome::Done(WcStatus::SUCCESS, len),
                }
            }
            Found::Vm(pid) => {
                let failed = request.pieces(|offset, piece| {
                    // SAFETY: the piece is posted memory.
                    unsafe { take_vm(pid, piece, (remote.addr, offset), calc) }.err()
                });
                self.hazard.leave(own.hazard);
                match failed {
                    Some(error) => self.vm_failed(own, &error),
                    None => Outcome::Done(WcStatus::SUCCESS, len),
                }
            }
            Found::Pending => self.leave(own, Outcome::Wait(Wait::Memory)),
            Found::Bounce => {
                self.hazard.leave(own.hazard);
                self.bounce_in(own, request, remote, calc)
            }
            Found::Refused => {
                self.hazard.leave(own.hazard);
                let Some(peer) = &self.peer else { return LOST };
                own.refused(peer, WcStatus::REM_ACCESS_ERR, Some(FaultKind::Access))
            }
        }
    }

    pub(super) fn atomic(&mut self, own: &Own, request: &Request<'_>, remote: RemoteSlice, atomic: Atomic) -> Outcome {
        let begun = self.bouncing.is_some();
        let Some(peer) = &mut self.peer else { return LOST };
        if !remote.addr.is_multiple_of(8) || remote.len != 8 {
            return own.refused(peer, WcStatus::REM_INV_REQ_ERR, Some(FaultKind::Request));
        }
        self.hazard.enter(own.hazard);
        let settled = match peer.gate(own.state) {
            Gate::Open(settled) => settled,
            Gate::NotYet => return self.leave(own, Outcome::Wait(Wait::Peer)),
            Gate::Closed => return self.leave(own, LOST),
            Gate::Failed => return self.leave(own, FLUSHED),
        };
        let old = match reach(peer, settled, remote, Access::REMOTE_ATOMIC, Place::HOST, begun) {
            // The peer says where the word lies, whatever its address.
            Found::At(at) if !at.is_aligned(8) => {
                self.hazard.leave(own.hazard);
                return own.refused(peer, WcStatus::REM_ACCESS_ERR, Some(FaultKind::Access));
            }
            Found::At(at) => {
                // SAFETY: the key granted 8 bytes at `at`, which are aligned; all access to exposed memory is atomic or by
                // `device_copy`.
                let done = unsafe { at.atomic(atomic) };
                self.hazard.leave(own.hazard);
                match done {
                    Ok(old) => old,
                    Err(error) => return self.gpu_failed(own, &error, Whose::Peers),
                }
            }
            Found::Pending => return self.leave(own, Outcome::Wait(Wait::Memory)),
            Found::Vm(_) | Found::Bounce => {
                self.hazard.leave(own.hazard);
                match self.bounce_atomic(own, remote, atomic) {
                    Ok(old) => old,
                    Err(outcome) => return outcome,
                }
            }
            Found::Refused => {
                self.hazard.leave(own.hazard);
                let Some(peer) = &self.peer else { return LOST };
                return own.refused(peer, WcStatus::REM_ACCESS_ERR, Some(FaultKind::Access));
            }
        };
        let old = old.to_ne_bytes();
        let failed = request.pieces(|offset, piece| {
            // SAFETY: the pieces are posted memory and add up to 8 bytes, checked when posting.
            unsafe { piece.spot().copy_from(Spot::host(old[offset..].as_ptr().cast_mut()), piece.len) }.err()
        });
        match failed {
            Some(error) => self.gpu_failed(own, &error, Whose::Own),
            None => Outcome::Done(WcStatus::SUCCESS, 8),
        }
    }
}

/// Where the memory that a key grants can be touched.
enum Found {
    At(Spot),
    Vm(i32),
    Pending,
    Bounce,
    Refused,
}

/// Checks the key for one access, whose local side is at `local`. The caller is inside its hazard. What has `begun` by bounce
/// goes on so: the owner's thread may be about to copy a part, or to change a word.
#[inline(always)]
fn reach(peer: &PeerView, settled: Settled, remote: RemoteSlice, right: Access, local: Place, begun: bool) -> Found {
    let may = settled.access & right.bits() == right.bits();
    let keys = peer.link.keys();
    let granted = keys.check(remote.rkey, remote.addr, remote.len, right, settled.domain, peer.who.qpn);
    let Some(grant) = granted.filter(|_| may) else { return Found::Refused };
    if begun {
        return Found::Bounce;
    }
    match peer.link.reach(grant.arena, grant.arena_offset, remote.len, remote.addr) {
        Reach::Mapped(at, place) => {
            if place.is_host() {
                peer.link.note_copy(grant.arena, remote.len, local);
            }
            Found::At(Spot::new(at.as_ptr(), place))
        }
        Reach::Pending => Found::Pending,
        // The system copies between memory of processors only.
        Reach::Unmapped if local.is_host() && Place::of_arena(grant.arena).is_host() => {
            peer.link.vm_pid().map_or(Found::Bounce, Found::Vm)
        }
        Reach::Unmapped => Found::Bounce,
    }
}

/// Takes bytes from `offset` on of memory of another process that is not mapped.
///
/// # Safety
/// The piece is writable for its length.
unsafe fn take_vm(pid: i32, piece: Piece, (start, offset): (u64, usize), calc: Option<Calc>) -> std::io::Result<()> {
    let from = start + offset as u64;
    let Some(calc) = calc else {
        // SAFETY: passed on to the caller.
        return unsafe { vm::read(pid, piece.ptr, from, piece.len) };
    };
    let mut part = [0u8; 4096];
    let mut done = 0;
    while done < piece.len {
        let len = part.len().min(piece.len - done);
        // SAFETY: `part` holds `len` bytes, and `done + len` stays within the piece.
        unsafe {
            let read = vm::read(pid, part.as_mut_ptr(), from + done as u64, len);
            read.map_err(|error| midway(error, offset + done))?;
            let to = piece.ptr.add(done);
            calc::combine_raw(calc, to, to, part.as_ptr(), len);
        }
        done += len;
    }
    Ok(())
}

/// Why a reduction went no further, of which so many bytes are done: it is not to be begun again by another way.
fn midway(error: std::io::Error, done: usize) -> std::io::Error {
    if done == 0 { error } else { std::io::Error::other(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reduction_that_is_refused_half_way_is_not_begun_again() {
        let refused = || std::io::Error::from_raw_os_error(libc::EPERM);
        assert!(vm::is_refused(&midway(refused(), 0)));
        assert!(!vm::is_refused(&midway(refused(), 4096)));
    }
}
