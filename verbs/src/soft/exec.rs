//! Carrying out send requests: the initiator does the NIC's work for both sides.

use std::ops::Range;
use std::time::Instant;

use super::bounce::Bouncing;
use super::claims::NoClaim;
use super::control::{BounceOp, FaultKind};
use super::hazard::Hazard;
use super::layout::{MAX_SGE, RecvPiece};
use super::link::Reach;
use super::peer::{Gate, PeerView, Settled};
use super::qp::Own;
use super::ring::{
    Entry, FLAG_IMM, FLAG_INLINE, FLAG_INVALIDATE, FLAG_SOLICITED, KIND_SEND, KIND_WRITE_IMM, RING_INLINE, lines_for,
};
use super::{device_copy, vm};
use crate::calc::{self, Calc};
use crate::memory::{Local, RemoteSlice};
use crate::qp::{Borrowed, Op};
use crate::sync::{AtomicU64, Ordering};
use crate::types::{Access, QpType, Rkey};
use crate::wc::WcStatus;

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

    fn send(&mut self, own: &Own, request: &Request<'_>, invalidate: Option<Rkey>) -> Outcome {
        let len = request.len();
        let Some(peer) = &mut self.peer else { return LOST };
        let mut flags = if request.solicited { FLAG_SOLICITED } else { 0 };
        let mut word = 0;
        if let Some(imm) = request.imm {
            (flags, word) = (flags | FLAG_IMM, imm);
        } else if let Some(rkey) = invalidate {
            (flags, word) = (flags | FLAG_INVALIDATE, rkey.0);
        }
        let lines = lines_for(len.min(RING_INLINE));
        if !peer.has_room(lines) {
            return own.or_dropped(Wait::Room);
        }
        self.hazard.enter_light(own.hazard());
        super::barrier::light(peer.link.asymmetric());
        if let Some(outcome) = own.gate(peer) {
            self.hazard.leave(own.hazard());
            return outcome;
        }
        let receive = match peer.next_receive(peer.qpn) {
            Ok(receive) => receive,
            Err(NoClaim::Empty) => {
                self.hazard.leave(own.hazard());
                return own.or_dropped(Wait::Receive);
            }
            Err(NoClaim::Closed) => {
                self.hazard.leave(own.hazard());
                return LOST;
            }
        };
        let mut entry = Entry { kind: KIND_SEND, flags, byte_len: len as u32, imm: word, receive, ..Entry::default() };
        if len <= RING_INLINE && peer.takes_any_short() {
            entry.flags |= FLAG_INLINE;
            push_inline(peer, entry, request);
            self.hazard.leave(own.hazard());
        } else {
            // The light entry is not ordered before the copy for owners who do not pay for a heavy barrier, but a
            // receive's owner does (`enter_error`).
            let fits = len as u64 <= u64::from(peer.wqe(receive).total.load(Ordering::Relaxed));
            if fits && let Some(waiting) = self.place(own, request, receive) {
                return waiting;
            }
            let Some(peer) = &mut self.peer else { return LOST };
            peer.producer.push(entry, &[]);
            self.hazard.leave(own.hazard());
            if !fits {
                peer.took_receive();
                peer.wake(true);
                return own.refused(peer, WcStatus::REM_INV_REQ_ERR, None);
            }
        }
        let Some(peer) = &mut self.peer else { return LOST };
        peer.took_receive();
        peer.wake(request.solicited);
        Outcome::Done(WcStatus::SUCCESS, len as u32)
    }

    /// Puts the message into the receive `receive`. `Some` if it has to wait or failed; the hazard is left then.
    fn place(&mut self, own: &Own, request: &Request<'_>, receive: u32) -> Option<Outcome> {
        let peer = self.peer.as_ref()?;
        if self.bouncing.is_none() {
            let result = scatter(peer, receive, 0, request, |to, piece| {
                // SAFETY: the receive is ours until we publish its completion, its owner waits for the hazard, and the
                // local piece is posted memory.
                unsafe { put(peer, to, piece.ptr, piece.len) }
            });
            match result {
                Ok(()) => return None,
                Err(NotPut::Pending) => return Some(self.leave(own, Outcome::Wait(Wait::Memory))),
                Err(NotPut::Fault) => {
                    self.hazard.leave(own.hazard());
                    let peer = self.peer.as_ref()?;
                    return Some(own.refused(peer, WcStatus::REM_OP_ERR, Some(FaultKind::Operation)));
                }
                Err(NotPut::Bounce) => {}
            }
        }
        self.hazard.leave(own.hazard());
        let waiting = self.bounce_out(own, request, |peer, done, want, slot| {
            let (piece, offset, room) = locate(peer, receive, done)?;
            let len = room.min(want);
            Some((len, BounceOp::Receive { qpn: peer.qpn, receive, piece, offset, len: len as u32, slot }))
        });
        waiting.or_else(|| self.enter_again(own))
    }

    /// Enters the peer's memory again after a bounce. `Some`, with the hazard left, if the peer closed meanwhile.
    fn enter_again(&mut self, own: &Own) -> Option<Outcome> {
        self.hazard.enter(own.hazard());
        let outcome = own.gate(self.peer.as_mut()?);
        if outcome.is_some() {
            self.hazard.leave(own.hazard());
        }
        outcome
    }

    fn write(&mut self, own: &Own, request: &Request<'_>, remote: RemoteSlice) -> Outcome {
        let Some(peer) = &mut self.peer else { return LOST };
        let len = remote.len;
        if request.imm.is_some() && !peer.has_room(1) {
            return own.or_dropped(Wait::Room);
        }
        self.hazard.enter(own.hazard());
        let settled = match peer.gate(own.qpn()) {
            Gate::Open(settled) => settled,
            Gate::NotYet => return self.leave(own, own.or_dropped(Wait::Peer)),
            Gate::Closed => return self.leave(own, own.or_lost()),
        };
        let mut receive = None;
        if request.imm.is_some() {
            match peer.next_receive(peer.qpn) {
                Ok(index) => receive = Some(index),
                Err(NoClaim::Empty) => return self.leave(own, own.or_dropped(Wait::Receive)),
                Err(NoClaim::Closed) => return self.leave(own, LOST),
            }
        }
        if len > 0 {
            match reach(peer, settled, remote, Access::REMOTE_WRITE) {
                Found::At(to) => {
                    request.pieces(|offset, piece| {
                        // SAFETY: the key granted `len` bytes at `to`, its owner waits for the hazard, and the pieces
                        // add up to `len` bytes of posted memory.
                        unsafe { device_copy(to.add(offset), piece.ptr, piece.len) };
                        None::<()>
                    });
                }
                Found::Vm(pid) => {
                    let failed = request.pieces(|offset, piece| {
                        // SAFETY: the piece is posted memory.
                        unsafe { vm::write(pid, remote.addr + offset as u64, piece.ptr, piece.len) }.err()
                    });
                    if let Some(error) = failed {
                        self.hazard.leave(own.hazard());
                        return self.vm_failed(own, &error);
                    }
                }
                Found::Pending => return self.leave(own, Outcome::Wait(Wait::Memory)),
                Found::Bounce => {
                    self.hazard.leave(own.hazard());
                    let waiting = self.bounce_out(own, request, |peer, done, want, slot| {
                        let (addr, rkey) = (remote.addr + done as u64, remote.rkey.0);
                        Some((want, BounceOp::Write { qpn: peer.qpn, rkey, addr, len: want as u32, slot }))
                    });
                    if let Some(outcome) = waiting.or_else(|| self.enter_again(own)) {
                        return outcome;
                    }
                }
                Found::Refused => {
                    self.hazard.leave(own.hazard());
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
        self.hazard.leave(own.hazard());
        if request.imm.is_some() {
            peer.wake(request.solicited);
        }
        Outcome::Done(WcStatus::SUCCESS, len as u32)
    }

    fn read(&mut self, own: &Own, request: &Request<'_>, remote: RemoteSlice, calc: Option<Calc>) -> Outcome {
        let Some(peer) = &mut self.peer else { return LOST };
        let len = remote.len;
        self.hazard.enter(own.hazard());
        let settled = match peer.gate(own.qpn()) {
            Gate::Open(settled) => settled,
            Gate::NotYet => return self.leave(own, Outcome::Wait(Wait::Peer)),
            Gate::Closed => return self.leave(own, LOST),
        };
        if len == 0 {
            return self.leave(own, Outcome::Done(WcStatus::SUCCESS, 0));
        }
        match reach(peer, settled, remote, Access::REMOTE_READ) {
            Found::At(from) => {
                request.pieces(|offset, piece| {
                    // SAFETY: the key granted `len` bytes at `from`, its owner waits for the hazard; the pieces are
                    // posted memory and add up to `len` bytes.
                    unsafe { take(piece, from.add(offset), calc) };
                    None::<()>
                });
                self.leave(own, Outcome::Done(WcStatus::SUCCESS, len as u32))
            }
            Found::Vm(pid) => {
                let failed = request.pieces(|offset, piece| {
                    // SAFETY: the piece is posted memory.
                    unsafe { take_vm(pid, piece, remote.addr + offset as u64, calc) }.err()
                });
                self.hazard.leave(own.hazard());
                match failed {
                    Some(error) => self.vm_failed(own, &error),
                    None => Outcome::Done(WcStatus::SUCCESS, len as u32),
                }
            }
            Found::Pending => self.leave(own, Outcome::Wait(Wait::Memory)),
            Found::Bounce => {
                self.hazard.leave(own.hazard());
                self.bounce_in(own, request, remote, calc)
            }
            Found::Refused => {
                self.hazard.leave(own.hazard());
                let Some(peer) = &self.peer else { return LOST };
                own.refused(peer, WcStatus::REM_ACCESS_ERR, Some(FaultKind::Access))
            }
        }
    }

    fn atomic(&mut self, own: &Own, request: &Request<'_>, remote: RemoteSlice, atomic: Atomic) -> Outcome {
        let Some(peer) = &mut self.peer else { return LOST };
        if !remote.addr.is_multiple_of(8) || remote.len != 8 {
            return own.refused(peer, WcStatus::REM_INV_REQ_ERR, Some(FaultKind::Request));
        }
        self.hazard.enter(own.hazard());
        let settled = match peer.gate(own.qpn()) {
            Gate::Open(settled) => settled,
            Gate::NotYet => return self.leave(own, Outcome::Wait(Wait::Peer)),
            Gate::Closed => return self.leave(own, LOST),
        };
        let old = match reach(peer, settled, remote, Access::REMOTE_ATOMIC) {
            Found::At(at) => {
                // SAFETY: the key granted 8 bytes at `at`; arenas and caller memory keep the alignment of the address,
                // which was checked; all access to exposed memory is atomic or by `device_copy`.
                let word = unsafe { AtomicU64::from_ptr(at.cast()) };
                self.hazard_result(own, atomic.apply(word))
            }
            Found::Pending => return self.leave(own, Outcome::Wait(Wait::Memory)),
            Found::Vm(_) | Found::Bounce => {
                self.hazard.leave(own.hazard());
                match self.bounce_atomic(own, remote, atomic) {
                    Ok(old) => old,
                    Err(outcome) => return outcome.unwrap_or_else(|| self.bounce_refused(own)),
                }
            }
            Found::Refused => {
                self.hazard.leave(own.hazard());
                let Some(peer) = &self.peer else { return LOST };
                return own.refused(peer, WcStatus::REM_ACCESS_ERR, Some(FaultKind::Access));
            }
        };
        request.pieces(|_, piece| {
            // SAFETY: the posted memory holds 8 bytes, checked when posting.
            unsafe { device_copy(piece.ptr, old.to_ne_bytes().as_ptr(), 8.min(piece.len)) };
            Some(())
        });
        Outcome::Done(WcStatus::SUCCESS, 8)
    }

    fn hazard_result(&mut self, own: &Own, value: u64) -> u64 {
        self.hazard.leave(own.hazard());
        value
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

/// An atomic operation.
#[derive(Clone, Copy)]
pub(crate) enum Atomic {
    CompareSwap(u64, u64),
    FetchAdd(u64),
}

impl Atomic {
    /// Does it; the value before.
    pub(crate) fn apply(self, word: &AtomicU64) -> u64 {
        match self {
            Atomic::CompareSwap(compare, swap) => {
                match word.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(old) | Err(old) => old,
                }
            }
            Atomic::FetchAdd(add) => word.fetch_add(add, Ordering::AcqRel),
        }
    }
}

/// Where the memory that a key grants can be touched.
enum Found {
    At(*mut u8),
    Vm(i32),
    Pending,
    Bounce,
    Refused,
}

/// Checks the key for one access. The caller is inside its hazard.
#[inline(always)]
fn reach(peer: &PeerView, settled: Settled, remote: RemoteSlice, right: Access) -> Found {
    let may = settled.access & right.bits() == right.bits();
    let keys = peer.link.keys();
    let granted = keys.check(remote.rkey, remote.addr, remote.len, right, settled.domain, peer.qpn);
    let Some(grant) = granted.filter(|_| may) else { return Found::Refused };
    match peer.link.reach(grant.arena, grant.arena_offset, remote.len, remote.addr) {
        Reach::Mapped(at) => Found::At(at.as_ptr()),
        Reach::Pending => Found::Pending,
        Reach::Unmapped => match peer.link.pid() {
            Some(pid) if peer.link.vm_allowed() => Found::Vm(pid),
            _ => Found::Bounce,
        },
    }
}

/// Why a piece was not put into a receive.
pub(crate) enum NotPut {
    Pending,
    Bounce,
    Fault,
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
            if let Err(error) = put((to, used), Piece { ptr: piece.ptr, len: part }) {
                return Some(error);
            }
            used += part as u64;
            // SAFETY: `part` is at most the piece's length.
            piece = Piece { ptr: unsafe { piece.ptr.add(part) }, len: piece.len - part };
        }
        None
    });
    failed.map_or(Ok(()), Err)
}

/// Copies into a piece of a receive, from `offset` on.
///
/// # Safety
/// `from` is readable for `len` bytes; the caller is inside its hazard and has taken the receive.
#[inline]
pub(crate) unsafe fn put(
    peer: &PeerView,
    (piece, offset): (&RecvPiece, u64),
    from: *const u8,
    len: usize,
) -> Result<(), NotPut> {
    let addr = piece.addr.load(Ordering::Relaxed).wrapping_add(offset);
    let at = piece.arena_offset.load(Ordering::Relaxed).wrapping_add(offset);
    match peer.link.reach(piece.arena.load(Ordering::Relaxed), at, len as u64, addr) {
        Reach::Mapped(to) => {
            // SAFETY: the receive's owner lent these bytes until its completion, and waits for the hazard.
            unsafe { device_copy(to.as_ptr(), from, len) };
            Ok(())
        }
        Reach::Pending => Err(NotPut::Pending),
        Reach::Unmapped => match peer.link.pid() {
            Some(pid) if peer.link.vm_allowed() => {
                // SAFETY: by the caller's word.
                unsafe { vm::write(pid, addr, from, len) }.map_err(|error| match error.raw_os_error() {
                    Some(libc::EPERM | libc::ENOSYS | libc::EACCES) => {
                        peer.link.vm_refused();
                        NotPut::Bounce
                    }
                    _ => NotPut::Fault,
                })
            }
            _ => Err(NotPut::Bounce),
        },
    }
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

/// Takes bytes into a local piece: copied, or combined.
///
/// # Safety
/// `from` is readable and the piece writable for the piece's length, and they do not overlap.
#[inline]
pub(crate) unsafe fn take(piece: Piece, from: *const u8, calc: Option<Calc>) {
    // SAFETY: passed on to the caller.
    unsafe {
        match calc {
            None => device_copy(piece.ptr, from, piece.len),
            Some(calc) => calc::combine_raw(calc, piece.ptr, piece.ptr, from, piece.len),
        }
    }
}

/// The same, from memory of another process that is not mapped.
///
/// # Safety
/// The piece is writable for its length.
unsafe fn take_vm(pid: i32, piece: Piece, from: u64, calc: Option<Calc>) -> std::io::Result<()> {
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
            vm::read(pid, part.as_mut_ptr(), from + done as u64, len)?;
            let to = piece.ptr.add(done);
            calc::combine_raw(calc, to, to, part.as_ptr(), len);
        }
        done += len;
    }
    Ok(())
}

/// Pushes a short message; gathers its pieces first if there are several.
#[inline(always)]
fn push_inline(peer: &mut PeerView, entry: Entry, request: &Request<'_>) {
    if let Some(data) = request.with.inline {
        peer.producer.push(entry, data);
        return;
    }
    let mut bytes = [0u8; RING_INLINE];
    request.pieces(|offset, piece| {
        // SAFETY: the message has at most RING_INLINE bytes; the pieces are posted memory.
        unsafe { device_copy(bytes.as_mut_ptr().add(offset), piece.ptr, piece.len) };
        None::<()>
    });
    peer.producer.push(entry, &bytes[..entry.byte_len as usize]);
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
            peer.link.report(peer.qpn, self.qpn(), kind);
        }
        Outcome::Done(status, 0)
    }
}
