//! A queue pair that is on the network, as the engine knows it: its send queue, and its receives as a peer sees them.
//! For these the engine does what a peer's device does on the shared memory wire.

use std::cell::RefCell;
use std::sync::Arc;

use qpair_roce::{AccessError, Cause, Extra, Incoming, Outcome, Qpn, Receive, Remote, Rkey, Send};

use super::memory::{Memory, Place};
use super::staging::{Bytes, ReadAhead, Source, WriteBehind};
use crate::error::GpuError;
use crate::memory::{Bound, RemoteSlice, Spot};
use crate::qp::{Borrowed, Op};
use crate::soft::control::Reach;
use crate::soft::cq_shared::Seat;
use crate::soft::entry::{Entry, FLAG_IMM, FLAG_INVALIDATE, FLAG_SOLICITED, KIND_SEND, KIND_VOID, KIND_WRITE_IMM};
use crate::soft::exec::{self, NotPut, Own, Piece, Request, find, put_at, scatter, take};
use crate::soft::home::Home;
use crate::soft::peer::{self, PeerView};
use crate::soft::send_queue::{SendQueue, SendSlot};
use crate::soft::withdrawal::Withdrawal;
use crate::status::WcStatus;
use crate::sync::{AtomicU32, Ordering};
use crate::types::{Access, QpState, QpType};

/// A queue pair on the network. Used under the engine's lock.
pub(super) struct Attached {
    qpn: Qpn,
    join: Join,
    /// Requests taken up so far, and those of them that are over, as running counts.
    taken: u32,
    done: u32,
    /// A request that the protocol did not take: it fails once those before it are over.
    refused: Option<u32>,
    /// A completion is not shown to the poller yet.
    is_unseen: bool,
    /// Where the answer ends that is being made, to a READ of the peer.
    answer_ends: u64,
    /// The receive that a message is being put into.
    filling: Option<peer::Receive>,
    /// The protocol gave it up, and is out of its memory.
    pub(super) is_closed: bool,
}

/// What a queue pair brings along.
pub(crate) struct Join {
    pub(crate) qp_type: QpType,
    pub(crate) domain: u64,
    pub(crate) access: Access,
    pub(crate) send: Arc<SendQueue>,
    pub(crate) send_seat: Arc<Seat>,
    /// Its own receives, as a peer on this device sees them.
    pub(crate) inbound: PeerView,
    pub(crate) owner: Arc<dyn Owner>,
}

/// The queue pair itself, which is told what happens seldom.
pub(crate) trait Owner: std::marker::Send + Sync {
    /// The protocol gave it up.
    fn network_failed(&self, cause: Cause);
    /// The protocol is out of its memory, for good.
    fn network_left(&self);
}

/// What is next in a send queue.
pub(super) enum Next {
    /// Nothing, or what has to wait.
    Nothing,
    /// A request for the peer.
    Wire(Send<Memory>),
    /// One that is over already.
    Over(u32, WcStatus),
}

impl Attached {
    pub(super) fn new(qpn: Qpn, join: Join) -> Self {
        let taken = join.send.retired();
        Attached {
            qpn,
            taken,
            done: taken,
            join,
            refused: None,
            is_unseen: false,
            answer_ends: 0,
            filling: None,
            is_closed: false,
        }
    }

    pub(super) fn owner(&self) -> &Arc<dyn Owner> {
        &self.join.owner
    }

    pub(super) fn is_datagrams(&self) -> bool {
        self.join.qp_type == QpType::Ud
    }

    /// Takes up the next request. What the device does by itself waits until all before are over, and is done then.
    pub(super) fn next(&mut self, home: &Arc<Home>) -> Next {
        let index = self.taken;
        if self.is_datagrams() || index == self.join.send.posted() {
            return Next::Nothing;
        }
        if self.refused == Some(index) {
            if self.done != index {
                return Next::Nothing;
            }
            self.refused = None;
            self.taken = index.wrapping_add(1);
            let status = if self.is_closed { WcStatus::WR_FLUSH_ERR } else { WcStatus::LOC_QP_OP_ERR };
            return Next::Over(index, status);
        }
        // SAFETY: posted and not ready: it is the engine's, which carries out requests of this queue pair.
        let slot = unsafe { self.join.send.slot(index) };
        let work = self.work(index, slot);
        if work.is_none() && self.done != index {
            return Next::Nothing;
        }
        self.taken = index.wrapping_add(1);
        work.map_or_else(|| Next::Over(index, self.carry_out(slot, home)), Next::Wire)
    }

    /// The protocol does not take request `index`, which was taken up last.
    pub(super) fn refuse(&mut self, index: u32) {
        self.taken = index;
        self.refused = Some(index);
    }

    /// A request in the protocol's words; `None` if it is none for the peer.
    fn work(&self, index: u32, slot: &SendSlot) -> Option<Send<Memory>> {
        let stalled = slot.stalled.as_ref()?;
        let remote = |slice: &RemoteSlice| Remote { va: slice.addr, rkey: slice.rkey };
        let op = match &stalled.op {
            Op::Send => qpair_roce::Op::Send(match (stalled.imm, stalled.invalidate) {
                (Some(immediate), _) => Extra::Immediate(immediate),
                (None, Some(rkey)) => Extra::Invalidate(rkey),
                (None, None) => Extra::Nothing,
            }),
            Op::Write(slice) => qpair_roce::Op::Write(remote(slice), stalled.imm),
            Op::Read(slice) | Op::ReadReduce(slice, _) => qpair_roce::Op::Read(remote(slice)),
            Op::CompareSwap { remote: slice, compare, swap } if is_word(slice) => {
                qpair_roce::Op::CompareSwap { remote: remote(slice), compare: *compare, swap: *swap }
            }
            Op::FetchAdd { remote: slice, add } if is_word(slice) => {
                qpair_roce::Op::FetchAdd { remote: remote(slice), add: *add }
            }
            Op::CompareSwap { .. } | Op::FetchAdd { .. } | Op::Bind { .. } | Op::Invalidate(_) => return None,
        };
        Some(Send {
            id: index.into(),
            op,
            local: Memory { qpn: self.qpn, place: Place::Request(index) },
            len: slot.byte_len,
            solicited: stalled.solicited,
            fence: stalled.fenced,
        })
    }

    /// Does what is no request for the peer.
    fn carry_out(&self, slot: &SendSlot, home: &Arc<Home>) -> WcStatus {
        let (hazard, state) = (AtomicU32::new(0), AtomicU32::new(QpState::Rts.code()));
        let Join { qp_type, domain, .. } = self.join;
        let own = Own { home, hazard: &hazard, state: &state, domain, qpn: self.qpn.0, qp_type };
        let Some(stalled) = &slot.stalled else { return WcStatus::GENERAL_ERR };
        if self.is_closed {
            return WcStatus::WR_FLUSH_ERR;
        }
        let done = match (&stalled.op, &stalled.bind) {
            (Op::Bind { start, end, access }, Some((window, region))) => {
                let withdraw = |old: &Bound| match old.on_network {
                    true => {
                        withdraw_unused(old.rkey, home);
                        true
                    }
                    false => old.withdraw(home),
                };
                own.bind((window, region), &(*start..*end), *access, true, withdraw)
            }
            (Op::Invalidate(rkey), _) => return self.withdraw(*rkey, home),
            (Op::CompareSwap { .. } | Op::FetchAdd { .. }, _) => return WcStatus::REM_INV_REQ_ERR,
            _ => return WcStatus::MW_BIND_ERR,
        };
        match done {
            exec::Outcome::Done(status, _) => status,
            exec::Outcome::Wait(_) => WcStatus::GENERAL_ERR,
        }
    }

    /// Withdraws the key of a window that this queue pair bound.
    fn withdraw(&self, rkey: Rkey, home: &Arc<Home>) -> WcStatus {
        if !home.keys().view().is_bound(rkey, self.qpn.0, self.join.domain) {
            return WcStatus::LOC_ACCESS_ERR;
        }
        withdraw_unused(rkey, home);
        WcStatus::SUCCESS
    }

    /// A request is over: it and those before may complete.
    pub(super) fn finish(&mut self, index: u32, status: WcStatus) {
        debug_assert_eq!(index, self.done, "requests are over in order");
        // SAFETY: it was taken up and is not ready, so it is the engine's.
        let slot = unsafe { self.join.send.slot(index) };
        slot.stalled = None;
        slot.status = status;
        slot.completes |= !status.is_success();
        if !status.is_success() {
            slot.byte_len = 0;
        }
        let completes = slot.completes;
        self.done = index.wrapping_add(1);
        self.is_unseen |= completes;
        // A failure is seen once the queue pair has failed.
        if completes && status.is_success() {
            self.publish(false);
        }
    }

    /// Shows what is over to the poller.
    pub(super) fn publish(&mut self, solicited: bool) {
        if std::mem::take(&mut self.is_unseen) {
            self.join.send.complete(self.done);
            self.join.send_seat.notify(solicited);
        }
    }

    /// True if a request waits until those before it are over.
    pub(super) fn is_held_up(&self) -> bool {
        self.taken == self.done && self.taken != self.join.send.posted()
    }

    /// Takes bytes of a request for a packet; a GPU's are read ahead.
    pub(super) fn gather(
        &self,
        index: u32,
        offset: u32,
        to: &mut [u8],
        ahead: &RefCell<ReadAhead>,
    ) -> Result<(), AccessError> {
        self.with(index, |request| {
            if request.is_on_gpu() {
                return self.read_ahead(index, request, offset as usize, to, &mut ahead.borrow_mut());
            }
            let mut done = Ok(());
            request.part(offset as usize, to.len(), |at, piece| {
                // SAFETY: the stretch lies within `to`, and the piece is posted memory, which a peer may write at most as
                // `device_copy` bears it.
                let one = unsafe { Spot::host(to[at..].as_mut_ptr()).copy_from(piece.spot(), piece.len) };
                done = done.and(moved(one));
            });
            done
        })
    }

    /// The same of a request whose memory is a GPU's, in one piece.
    fn read_ahead(
        &self,
        index: u32,
        request: &Request<'_>,
        offset: usize,
        to: &mut [u8],
        ahead: &mut ReadAhead,
    ) -> Result<(), AccessError> {
        let mut done = Err(AccessError::Key);
        request.part(offset, request.len().saturating_sub(offset), |_, piece| {
            let source = Source::Request(self.qpn, index);
            // SAFETY: the piece is posted memory. It is given back once the request is over, which `Side::complete` has the
            // read-ahead forget before.
            let taken = unsafe { ahead.take(source, (piece.ptr, piece.place), piece.len, to) };
            done = moved(match taken {
                Some(taken) => taken.map_err(Box::new),
                // SAFETY: as above; the protocol stays within the request, so that the piece has as many bytes.
                None => unsafe { Spot::host(to.as_mut_ptr()).copy_from(piece.spot(), to.len()) },
            });
        });
        done
    }

    /// Puts bytes of an answer where a request wants them; those for a GPU are written behind.
    pub(super) fn answer(
        &self,
        index: u32,
        offset: u32,
        bytes: &[u8],
        behind: &mut WriteBehind,
    ) -> Result<(), AccessError> {
        self.with(index, |request| {
            let calc = if let Op::ReadReduce(_, calc) = request.op { Some(*calc) } else { None };
            let mut done = Ok(());
            request.part(offset as usize, bytes.len(), |at, piece| {
                let bytes = &bytes[at..at + piece.len];
                // SAFETY: the stretch lies within `bytes`, and the piece is posted memory.
                let take = || unsafe { take(piece, Spot::host(bytes.as_ptr().cast_mut()), calc) };
                let one = match piece.spot().on_gpu() {
                    None => take(),
                    Some(to) => {
                        let bytes = Bytes { qpn: self.qpn, request: Some(index), calc, bytes };
                        // SAFETY: the piece is posted memory, given back once the request is over, before which `Side::complete`
                        // settles what is written behind.
                        unsafe { behind.put(to, bytes) }.map_or_else(take, |put| put.map_err(Box::new))
                    }
                };
                done = done.and(moved(one));
            });
            done
        })
    }

    fn with(&self, index: u32, f: impl FnOnce(&Request<'_>) -> Result<(), AccessError>) -> Result<(), AccessError> {
        // SAFETY: the protocol asks for requests that are under way only: taken up, and not ready.
        let slot = unsafe { self.join.send.slot(index) };
        let stalled = slot.stalled.as_ref().ok_or(AccessError::Key)?;
        let with = stalled.borrowed();
        f(&Request::kept(stalled, &slot.local, &with))
    }

    /// The next receive, taken for a message: a datagram's has room for so many bytes.
    pub(super) fn take_receive(&mut self, room: u32) -> Option<Receive<Memory>> {
        let inbound = &mut self.join.inbound;
        let receive = if self.join.qp_type == QpType::Ud {
            // The line of a datagram is that of its receive: there is room.
            let index = inbound.claim_now(NETWORK, |wqe| wqe.total.load(Ordering::Relaxed) >= room).ok()?;
            peer::Receive { index, slot: index }
        } else {
            if !inbound.has_room(1) {
                return None;
            }
            let receive = inbound.next_receive(self.qpn.0, true).ok()?;
            inbound.took_receive();
            receive
        };
        // The head of claims is in memory that peers of this host write: it may name one that was taken.
        if !inbound.begin_filling(receive) {
            return None;
        }
        self.filling = Some(receive);
        let local = Memory { qpn: self.qpn, place: Place::Receive(receive.slot) };
        let len = self.join.inbound.wqe(receive.slot).total.load(Ordering::Relaxed);
        Some(Receive { id: receive.index.into(), local, len })
    }

    /// Nothing is put any more into the receive that was taken.
    fn filled(&mut self) {
        if let Some(receive) = self.filling.take() {
            self.join.inbound.end_filling(receive);
        }
    }

    /// Puts bytes of a message into the receive that was taken for it; those for a GPU are written behind.
    pub(super) fn fill(
        &self,
        slot: u32,
        offset: u32,
        bytes: &[u8],
        behind: &mut WriteBehind,
    ) -> Result<(), AccessError> {
        let inbound = &self.join.inbound;
        let with = Borrowed { inline: Some(bytes), ..Borrowed::default() };
        scatter(inbound, slot, offset.into(), &Request::of_bytes(&with), |to, piece: Piece| {
            let found = find(inbound, to, piece.len as u64);
            if let (Reach::Mapped(at, place), _) = found
                && !place.is_host()
            {
                // SAFETY: the piece is part of `bytes`.
                let bytes = unsafe { std::slice::from_raw_parts(piece.ptr, piece.len) };
                let bytes = Bytes { qpn: self.qpn, request: None, calc: None, bytes };
                // SAFETY: the receive is taken and marked, and the queue pair does not take it back before the protocol has
                // left; what is written behind is settled before the receive completes, and after each round.
                if let Some(put) = unsafe { behind.put((at.as_ptr(), place), bytes) } {
                    return moved(put.map_err(Box::new)).map_err(|_| NotPut::Fault);
                }
            }
            // SAFETY: the receive is taken and marked, and the queue pair does not take it back before the protocol has
            // left; the piece is part of `bytes`.
            unsafe { put_at(inbound, to.0, found, piece) }
        })
        .map_err(|_| AccessError::Operation)
    }

    /// A message is in its receive, or failed it.
    pub(super) fn received(&mut self, index: u32, outcome: Outcome, message: &Incoming) {
        self.filled();
        if outcome == Outcome::Flushed {
            return; // What was taken and is not filled is flushed with what was not taken.
        }
        let is_datagram = self.is_datagrams();
        let (extra, imm) = match message.extra {
            Extra::Nothing => (0, 0),
            Extra::Immediate(immediate) => (FLAG_IMM, immediate),
            Extra::Invalidate(Rkey(rkey)) => (FLAG_INVALIDATE, rkey),
        };
        let header = if is_datagram { crate::qp::GRH_BYTES as u32 } else { 0 };
        let (kind, byte_len) = match outcome {
            Outcome::Success if message.is_write => (KIND_WRITE_IMM, message.len),
            Outcome::Success => (KIND_SEND, message.len - header.min(message.len)),
            // More than any receive holds: its owner finds that it does not fit.
            Outcome::LocalLength => (KIND_SEND, u32::MAX),
            _ => (KIND_VOID, 0),
        };
        let solicited = if message.solicited { FLAG_SOLICITED } else { 0 };
        let entry = Entry {
            kind,
            flags: extra | solicited,
            byte_len,
            imm,
            receive: index,
            src_qpn: message.source.map_or(0, |source| source.0),
            ..Entry::default()
        };
        let inbound = &mut self.join.inbound;
        if is_datagram {
            inbound.lines.place(index, entry)
        } else {
            inbound.producer.push(entry, &[])
        }
        inbound.wake(message.solicited || outcome != Outcome::Success);
    }

    /// Where memory of this side lies that the peer may use so; `None` if it may not.
    pub(super) fn reach(&self, home: &Home, at: Remote, len: u64, right: Access) -> Option<Spot> {
        let keys = home.keys().view();
        let grant = keys.check(at.rkey, at.va, len, right, self.join.domain, self.qpn.0)?;
        match self.join.inbound.link.reach(grant.arena, grant.arena_offset, len, at.va) {
            Reach::Mapped(to, place) => Some(Spot::new(to.as_ptr(), place)),
            // The link is the device's to itself.
            Reach::Pending | Reach::Unmapped => None,
        }
    }

    /// An answer to a READ begins that ends there.
    pub(super) fn begin_answer(&mut self, ends: u64) {
        self.answer_ends = ends;
    }

    /// Bytes from `va` on of the answer that is being made.
    pub(super) fn left_of_answer(&self, va: u64) -> u64 {
        self.answer_ends.saturating_sub(va)
    }

    pub(super) fn allows(&self, right: Access) -> bool {
        self.join.access.contains(right)
    }

    /// True if the peer may withdraw that key: a window's that this queue pair bound.
    pub(super) fn may_withdraw(&self, home: &Home, rkey: Rkey) -> bool {
        home.keys().view().is_bound(rkey, self.qpn.0, self.join.domain)
    }
}

/// Withdraws the key of a window that a queue pair on the network bound. Its peer alone has used it, by way of the engine, which
/// is in no access now: nobody is waited for.
fn withdraw_unused(rkey: Rkey, home: &Arc<Home>) {
    let mut withdrawal = Withdrawal::default();
    home.withdraw(rkey, &mut withdrawal);
    // The key's place is given back when keys are withdrawn next, if peers have left by then whatever they are at.
    home.abandon(withdrawal);
}

/// What becomes of bytes that a GPU did not move: what its driver says is logged.
pub(super) fn moved(moved: Result<(), Box<GpuError>>) -> Result<(), AccessError> {
    moved.map_err(|error| {
        tracing::error!(%error, "GPU memory of a packet was not moved");
        AccessError::Operation
    })
}

/// True for what an atomic can be about.
fn is_word(slice: &RemoteSlice) -> bool {
    slice.len == 8
}

/// The name under which the network claims receives of datagram queue pairs. Devices have odd ones.
const NETWORK: u32 = 2;
