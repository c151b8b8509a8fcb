//! A queue pair of the software device: set-up, posting, failing and closing.

use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU8};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::Instant;

use super::control::{FaultKind, QpInfo};
use super::eventfd::EventFd;
use super::exec::{Outcome, Request, Sender, Wait};
use super::hazard::Sighting;
use super::layout::{QpPublic, gate};
use super::link::Link;
use super::node::Node;
use super::peer::PeerView;
use super::receive::Receiver;
use super::ring::{Lines, RING_INLINE, Slot};
use super::send_queue::{SendQueue, SendSlot, Stalled};
use super::spec::QpSpec;
use super::srq::ClaimTable;
use super::{MAX_INLINE, MAX_MESSAGE};
use crate::QpAddress;
use crate::address::NodeId;
use crate::error::{ConnectError, CreateError, ModifyError, PostError, Rejected};
use crate::events::AsyncEvent;
use crate::memory::{Local, RemoteSlice};
use crate::qp::{Borrowed, Op, SendWr, check};
use crate::sync::{AtomicU32, Ordering};
use crate::types::{Access, Mtu, Psn, QpState, QpType, Qpn};
use crate::wc::WcStatus;

/// A queue pair.
///
/// Three parties use it: the poster (the owner of `QueuePair`, by `&mut`), the pollers (the owners of its completion
/// queues), and the control thread. Requests are carried out by the poster; once one has to wait, by whoever holds
/// `progress`, until none waits.
pub(crate) struct SoftQp {
    spec: QpSpec,
    qpn: u32,
    psn: Psn,
    state: AtomicU32,
    public: NonNull<QpPublic>,
    public_offset: usize,
    ring_offset: usize,
    ring_lines: u32,
    send: SendQueue,
    sender: UnsafeCell<Sender>,
    /// [`POSTER`] or [`PROGRESS`]: who carries requests out.
    carrier: AtomicU8,
    progress: Mutex<()>,
    pub(super) receiver: Receiver,
    pub(super) claims: Option<ClaimTable>,
    peer: OnceLock<Connected>,
    /// The peer as seen when this queue pair failed, until it has left our memory.
    leaving: Mutex<Option<PeerSighting>>,
    /// True once a failed queue pair's peer has left: receives may be flushed and memory freed.
    settled: AtomicBool,
}

// SAFETY: `sender` is used by the poster while `carrier` is POSTER, else under `progress`; `public` names atomics in a
// mapping that the node keeps; the receiver's contract is its own.
unsafe impl Send for SoftQp {}
// SAFETY: as above.
unsafe impl Sync for SoftQp {}

/// The other end, once connected.
struct Connected {
    link: Arc<Link>,
    node: NodeId,
    qpn: u32,
    public: NonNull<QpPublic>,
}

/// A glance at a peer's hazard.
#[derive(Debug)]
pub(crate) struct PeerSighting {
    link: Arc<Link>,
    public: NonNull<QpPublic>,
    sight: Sighting,
}

// SAFETY: the pointer names atomics in a mapping that `link` keeps.
unsafe impl Send for PeerSighting {}

impl PeerSighting {
    pub(crate) fn is_over(&self) -> bool {
        // SAFETY: mapped as long as `link` lives.
        self.link.is_dead() || self.sight.is_over(unsafe { &self.public.as_ref().hazard.0 })
    }
}

/// This side of a request: what the executor needs of its own queue pair.
pub(crate) struct Own<'a> {
    pub(crate) qp: &'a SoftQp,
}

impl Own<'_> {
    #[inline(always)]
    pub(crate) fn hazard(&self) -> &AtomicU32 {
        self.qp.hazard_word()
    }

    #[inline(always)]
    pub(crate) fn qpn(&self) -> u32 {
        self.qp.qpn
    }

    #[inline(always)]
    pub(crate) fn qp_type(&self) -> QpType {
        self.qp.spec.qp_type
    }
}

const POSTER: u8 = 0;
const PROGRESS: u8 = 1;

impl SoftQp {
    /// The count of RNR retries that means: without end.
    pub(crate) const RNR_FOREVER: u8 = 7;

    pub(crate) fn new(spec: QpSpec) -> Result<Arc<Self>, CreateError> {
        spec.check()?;
        let full = || CreateError::Exhausted { what: "queue pair" };
        let node = spec.node.clone();
        let receiver = Receiver::new(&spec)?;
        let claims =
            if spec.qp_type == QpType::Ud { Some(ClaimTable::new(&node, receiver.ring_lines())?) } else { None };
        let public_offset = node.take_public(size_of::<QpPublic>()).ok_or_else(full)?;
        // SAFETY: the type is made of atomics, and the block is ours.
        let public = unsafe { node.public().at::<QpPublic>(public_offset) }.ok_or_else(full)?;
        let ring_lines = receiver.ring_lines();
        let ring_offset = node.take_shared(ring_lines as usize * size_of::<Slot>()).ok_or_else(full)?;
        // SAFETY: the ring's protocol rules all access; the block is ours.
        let ring = unsafe { node.shared().array::<Slot>(ring_offset, ring_lines as usize) }.ok_or_else(full)?;
        // SAFETY: the mapping lives as long as the node, which the spec keeps.
        let lines = unsafe { Lines::new(ring, ring_lines) };
        let qp = node.add_qp(|qpn| {
            Arc::new(SoftQp {
                qpn,
                psn: Psn::new(super::random::u32()),
                state: AtomicU32::new(QpState::Init.code()),
                public,
                public_offset,
                ring_offset,
                ring_lines,
                send: SendQueue::new(spec.send_depth),
                sender: UnsafeCell::new(Sender::new()),
                carrier: AtomicU8::new(POSTER),
                progress: Mutex::new(()),
                receiver: receiver.with_ring(lines),
                claims,
                peer: OnceLock::new(),
                leaving: Mutex::new(None),
                settled: AtomicBool::new(false),
                spec,
            })
        });
        let view = qp.public();
        view.domain.store(qp.spec.domain, Ordering::Relaxed);
        view.access.store(qp.spec.access.bits(), Ordering::Relaxed);
        view.qkey.store(qp.spec.qkey, Ordering::Relaxed);
        let pause = u32::try_from(qp.spec.min_rnr_timer.as_micros()).unwrap_or(u32::MAX);
        view.rnr_timer_us.store(pause, Ordering::Relaxed);
        view.gate.store(gate(qp.qpn, QpState::Init.code()), Ordering::Release);
        let same = Arc::ptr_eq(&qp.spec.send_cq, &qp.spec.recv_cq);
        qp.spec.send_cq.join(&qp, true, same);
        if !same {
            qp.spec.recv_cq.join(&qp, false, true);
        }
        Ok(qp)
    }

    pub(crate) fn number(&self) -> u32 {
        self.qpn
    }

    pub(crate) fn qpn(&self) -> Qpn {
        Qpn(self.qpn)
    }

    pub(crate) fn qp_type(&self) -> QpType {
        self.spec.qp_type
    }

    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.spec.node
    }

    pub(crate) fn domain(&self) -> u64 {
        self.spec.domain
    }

    pub(crate) fn access(&self) -> Access {
        self.spec.access
    }

    pub(crate) fn recv_depth(&self) -> u32 {
        self.receiver.depth()
    }

    pub(crate) fn send_queue(&self) -> &SendQueue {
        &self.send
    }

    pub(crate) fn recv_bell(&self) -> &Arc<EventFd> {
        self.spec.recv_cq.bell()
    }

    #[inline(always)]
    pub(super) fn public(&self) -> &QpPublic {
        // SAFETY: mapped as long as the node lives, which the spec keeps.
        unsafe { self.public.as_ref() }
    }

    #[inline(always)]
    pub(crate) fn hazard_word(&self) -> &AtomicU32 {
        &self.public().hazard.0
    }

    #[inline(always)]
    pub(crate) fn state(&self) -> QpState {
        QpState::from_code(self.state.load(Ordering::Acquire))
    }

    #[inline(always)]
    pub(super) fn has_failed(&self) -> bool {
        self.state.load(Ordering::Acquire) == QpState::Err.code()
    }

    pub(super) fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Acquire)
    }

    pub(crate) fn address(&self) -> QpAddress {
        QpAddress {
            qp_type: self.spec.qp_type,
            qpn: self.qpn(),
            psn: self.psn,
            gid: self.spec.node.host().gid(),
            lid: 0,
            mtu: Mtu::B4096,
            qkey: self.spec.qkey,
            soft: Some(self.spec.node.address()),
        }
    }

    /// Where the parts of this queue pair lie, for peers.
    pub(crate) fn info(&self) -> QpInfo {
        let (receives, wqes, wqe_count) = match &self.spec.srq {
            Some(srq) => (srq.receives_offset(), srq.wqes().offset(), srq.wqes().count()),
            None => {
                let own = self.public_offset + std::mem::offset_of!(QpPublic, receives);
                let (offset, count) = self.receiver.wqe_ring().map_or((0, 1), |ring| (ring.offset(), ring.count()));
                (own, offset, count)
            }
        };
        let claims = match &self.spec.srq {
            Some(srq) => Some(srq.claim_info()),
            None => self.claims.as_ref().map(|table| table.info),
        };
        QpInfo {
            qpn: self.qpn,
            qp_type: self.spec.qp_type,
            public: self.public_offset,
            ring: self.ring_offset,
            ring_lines: self.ring_lines,
            receives,
            wqes,
            wqe_count,
            claims,
            cq: self.spec.recv_cq.offset(),
        }
    }

    /// Links to the peer and goes to RTR.
    pub(crate) fn connect(&self, address: &QpAddress) -> Result<(), ConnectError> {
        let (ours, theirs) = (self.spec.qp_type, address.qp_type);
        if ours != theirs || ours == QpType::Ud {
            return Err(ConnectError::TypeMismatch { ours, theirs });
        }
        check(ours, self.state(), QpState::Rtr)?;
        let soft = address.soft.as_ref().ok_or(ConnectError::NoRoute {
            why: "it is on a network, and this device reaches software devices of its own host only",
        })?;
        let link = self.spec.node.link_to(soft)?;
        let (info, bell) = link.query(address.qpn.0)?;
        if info.qpn != address.qpn.0 || info.qp_type != theirs {
            return Err(ConnectError::BadAnswer { why: "the peer's device speaks of another queue pair" });
        }
        let view = PeerView::new(link.clone(), &info, bell)?;
        let public = NonNull::from(view.public());
        self.public().peer_qpn.store(address.qpn.0, Ordering::Release);
        // SAFETY: nothing is posted before RTS, so nobody carries out requests yet; set-up is by one owner.
        unsafe { (*self.sender.get()).peer = Some(view) };
        let connected = Connected { link: link.clone(), node: link.peer(), qpn: address.qpn.0, public };
        if self.peer.set(connected).is_err() {
            return Err(ConnectError::BadAnswer { why: "the queue pair is connected already" });
        }
        self.modify(QpState::Rtr)?;
        // Had the peer died before it was entered above, nobody would tell this queue pair.
        if link.is_dead() {
            self.fail();
        }
        Ok(())
    }

    /// Changes the state, if the table allows it.
    pub(crate) fn modify(&self, to: QpState) -> Result<(), ModifyError> {
        let from = self.state();
        check(self.spec.qp_type, from, to)?;
        if to == QpState::Err {
            self.fail();
            return Ok(());
        }
        let moved = self.state.compare_exchange(from.code(), to.code(), Ordering::AcqRel, Ordering::Acquire);
        if moved.is_err() {
            return Err(ModifyError {
                qp_type: self.spec.qp_type,
                from: self.state(),
                to,
                detail: ": it failed meanwhile",
            });
        }
        self.public().gate.store(gate(self.qpn, to.code()), Ordering::Release);
        if self.has_failed() {
            self.public().gate.store(gate(self.qpn, QpState::Err.code()), Ordering::SeqCst);
        }
        Ok(())
    }

    /// Posts a send request. For one poster at a time: `QueuePair` is not shared and takes `&mut self`.
    #[inline]
    pub(crate) fn post_send(&self, wr: &mut SendWr, with: Borrowed<'_>) -> Result<(), Rejected> {
        if let Err(error) = self.check_send(wr, with) {
            return Err(Rejected { error, memory: std::mem::take(&mut wr.local) });
        }
        let index = self.send.posted();
        if self.send.is_full(index) {
            let error = PostError::SendQueueFull { depth: self.send.depth() };
            return Err(Rejected { error, memory: std::mem::take(&mut wr.local) });
        }
        if self.carrier.load(Ordering::Acquire) != POSTER {
            self.post_behind(index, wr, with);
            return Ok(());
        }
        // SAFETY: `carrier` is POSTER, and only the poster, which we are, changes that.
        let sender = unsafe { &mut *self.sender.get() };
        let request = Request {
            op: &wr.op,
            local: &wr.local,
            range: wr.range.as_ref(),
            with,
            imm: wr.imm,
            solicited: wr.solicited,
        };
        match self.carry_out(sender, &request) {
            Outcome::Done(status, byte_len) => {
                // SAFETY: the slot at `posted` is the poster's, since the queue is not full.
                let slot = unsafe { self.send.slot(index) };
                let completes = wr.signaled || !status.is_success();
                if !matches!(wr.local, Local::None) {
                    slot.local = std::mem::take(&mut wr.local);
                }
                slot.wr_id = wr.wr_id;
                slot.opcode = wr.op.opcode();
                slot.status = status;
                slot.byte_len = byte_len;
                slot.completes = completes;
                let next = index.wrapping_add(1);
                sender.executed = next;
                self.send.publish(next);
                if completes {
                    self.finished(next, status);
                }
            }
            Outcome::Wait(wait) => {
                sender.waiting = Some((Instant::now(), wait));
                self.store(index, wr, with);
                self.send.publish(index.wrapping_add(1));
                self.carrier.store(PROGRESS, Ordering::Release);
                self.spec.node.attend();
            }
        }
        Ok(())
    }

    /// Posts behind requests that wait.
    #[cold]
    fn post_behind(&self, index: u32, wr: &mut SendWr, with: Borrowed<'_>) {
        let guard = lock(&self.progress);
        self.store(index, wr, with);
        self.send.publish(index.wrapping_add(1));
        // The one in front may be done meanwhile, and the carrier the poster again: carrying out under the lock is right
        // in both cases, since the poster is here.
        self.carrier.store(PROGRESS, Ordering::Release);
        self.progress_locked(&guard);
    }

    /// Keeps a request for later.
    #[cold]
    fn store(&self, index: u32, wr: &mut SendWr, with: Borrowed<'_>) {
        let opcode = wr.op.opcode();
        let stalled = Stalled {
            op: std::mem::replace(&mut wr.op, Op::Send { invalidate: None }),
            range: wr.range.clone(),
            inline: with.inline.map(Box::from),
            imm: wr.imm,
            solicited: wr.solicited,
        };
        // SAFETY: the slot at `posted` is the poster's, since the queue is not full.
        *unsafe { self.send.slot(index) } = SendSlot {
            local: std::mem::take(&mut wr.local),
            wr_id: wr.wr_id,
            opcode,
            status: WcStatus::SUCCESS,
            byte_len: 0,
            completes: wr.signaled,
            stalled: Some(stalled),
        };
    }

    /// Tries requests that wait. Cheap if there are none.
    #[inline(always)]
    pub(crate) fn progress(&self) {
        if self.carrier.load(Ordering::Relaxed) != POSTER {
            self.progress_slow();
        }
    }

    #[cold]
    fn progress_slow(&self) {
        match self.progress.try_lock() {
            Ok(guard) => self.progress_locked(&guard),
            Err(TryLockError::Poisoned(poisoned)) => self.progress_locked(&poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {}
        }
    }

    fn progress_locked(&self, _guard: &MutexGuard<'_, ()>) {
        if self.carrier.load(Ordering::Acquire) == POSTER {
            return;
        }
        // SAFETY: `carrier` is PROGRESS and we hold the lock.
        let sender = unsafe { &mut *self.sender.get() };
        while sender.executed != self.send.posted() {
            let index = sender.executed;
            // SAFETY: posted and not ready, so it belongs to whoever carries requests out.
            let slot = unsafe { self.send.slot(index) };
            let Some((status, byte_len)) = self.attempt(sender, slot) else { return };
            slot.stalled = None;
            slot.status = status;
            slot.byte_len = byte_len;
            slot.completes |= !status.is_success();
            sender.waiting = None;
            sender.executed = index.wrapping_add(1);
            if slot.completes {
                self.finished(index.wrapping_add(1), status);
            }
        }
        self.carrier.store(POSTER, Ordering::Release);
    }

    /// One attempt at a request that waits; `None` if it goes on waiting.
    fn attempt(&self, sender: &mut Sender, slot: &SendSlot) -> Option<(WcStatus, u32)> {
        let Some(stalled) = &slot.stalled else { return Some((WcStatus::GENERAL_ERR, 0)) };
        let request = Request {
            op: &stalled.op,
            local: &slot.local,
            range: stalled.range.as_ref(),
            with: Borrowed { inline: stalled.inline.as_deref(), to: None },
            imm: stalled.imm,
            solicited: stalled.solicited,
        };
        match self.carry_out(sender, &request) {
            Outcome::Done(status, byte_len) => Some((status, byte_len)),
            Outcome::Wait(wait) => {
                let since = match sender.waiting {
                    Some((since, before)) if before == wait => since,
                    _ => Instant::now(),
                };
                sender.waiting = Some((since, wait));
                let status = self.out_of_patience(sender, since, wait)?;
                sender.bounce_end();
                Some((status, 0))
            }
        }
    }

    #[inline(always)]
    fn carry_out(&self, sender: &mut Sender, request: &Request<'_>) -> Outcome {
        if self.has_failed() {
            return Outcome::Done(WcStatus::WR_FLUSH_ERR, 0);
        }
        sender.run(&Own { qp: self }, request)
    }

    /// The status of a request that has waited as long as the queue pair's attributes allow.
    fn out_of_patience(&self, sender: &Sender, since: Instant, wait: Wait) -> Option<WcStatus> {
        let spec = &self.spec;
        match wait {
            Wait::Receive => {
                let pause = sender.peer.as_ref()?.public().rnr_timer_us.load(Ordering::Relaxed);
                let limit = std::time::Duration::from_micros(pause.into()) * (u32::from(spec.rnr_retry) + 1);
                let over = spec.rnr_retry < Self::RNR_FOREVER && since.elapsed() > limit;
                over.then_some(WcStatus::RNR_RETRY_EXC_ERR)
            }
            Wait::Room => None,
            Wait::Peer | Wait::Memory => {
                let limit = spec.ack_timeout * (u32::from(spec.retry_count) + 1);
                (since.elapsed() > limit).then_some(WcStatus::RETRY_EXC_ERR)
            }
        }
    }

    /// Shows a completion to the poller.
    #[inline(always)]
    fn finished(&self, end: u32, status: WcStatus) {
        self.send.complete(end);
        if !status.is_success() && status != WcStatus::WR_FLUSH_ERR {
            self.fail();
        }
        self.spec.send_cq.notify(!status.is_success());
    }

    #[inline(always)]
    fn check_send(&self, wr: &SendWr, with: Borrowed<'_>) -> Result<(), PostError> {
        let qp_type = self.spec.qp_type;
        let len = if let Some(data) = with.inline {
            if data.len() > MAX_INLINE {
                return Err(PostError::TooLong { len: data.len(), limit: MAX_INLINE, what: "inline data" });
            }
            data.len()
        } else {
            if !matches!(wr.local, Local::None) {
                wr.local.check(self.spec.domain, wr.range.as_ref())?;
            }
            wr.range.as_ref().map_or_else(|| wr.local.len(), |range| range.len())
        };
        if len > MAX_MESSAGE as usize {
            return Err(PostError::TooLong { len, limit: MAX_MESSAGE as usize, what: "a message" });
        }
        let same = |remote: &RemoteSlice| {
            if remote.len == len as u64 {
                Ok(())
            } else {
                Err(PostError::LengthMismatch { local: len, remote: remote.len as usize })
            }
        };
        match &wr.op {
            Op::Send { .. } if with.to.is_some() && len > Mtu::B4096.bytes() as usize => {
                Err(PostError::TooLong { len, limit: Mtu::B4096.bytes() as usize, what: "a datagram" })
            }
            Op::Send { .. } => Ok(()),
            Op::Write(remote) => same(remote),
            _ if qp_type != QpType::Rc => Err(PostError::NotSupported { what: "this operation", qp_type }),
            Op::Read(remote) | Op::ReadReduce(remote, _) => same(remote),
            Op::CompareSwap { remote, .. } | Op::FetchAdd { remote, .. } => same(remote),
            Op::Bind { .. } | Op::Invalidate(_) => Ok(()),
        }
    }

    /// Posts a receive. For one poster at a time, as [`post_send`](SoftQp::post_send).
    #[inline]
    pub(crate) fn post_recv(&self, memory: Local, wr_id: u64) -> Result<(), Rejected> {
        match memory.check(self.spec.domain, None) {
            Ok(()) => self.receiver.post(memory, wr_id, &self.public().receives),
            Err(error) => Err(Rejected { error, memory }),
        }
    }

    /// A glance at the peer's hazard.
    pub(crate) fn sight_peer(&self) -> Option<PeerSighting> {
        let peer = self.peer.get()?;
        // SAFETY: mapped as long as the link lives.
        let sight = Sighting::take(unsafe { &peer.public.as_ref().hazard.0 });
        Some(PeerSighting { link: peer.link.clone(), public: peer.public, sight })
    }

    pub(crate) fn is_peer(&self, node: NodeId) -> bool {
        self.peer.get().is_some_and(|peer| peer.node == node)
    }

    /// Moves the queue pair to the error state.
    #[cold]
    pub(crate) fn fail(&self) {
        if self.state.swap(QpState::Err.code(), Ordering::AcqRel) == QpState::Err.code() {
            return;
        }
        self.public().gate.store(gate(self.qpn, QpState::Err.code()), Ordering::SeqCst);
        if let Some(table) = &self.claims {
            table.claims.close();
        }
        super::barrier::heavy();
        *lock(&self.leaving) = self.sight_peer();
        if !(0..LEAVE_SPINS).any(|_| self.try_settle()) {
            self.spec.node.attend();
        }
        self.spec.send_cq.notify(true);
        self.spec.recv_cq.notify(true);
    }

    /// Notes that the peer has left the memory of a failed queue pair; true once it has.
    fn try_settle(&self) -> bool {
        let mut leaving = lock(&self.leaving);
        if leaving.as_ref().is_some_and(|sighting| !sighting.is_over()) {
            std::hint::spin_loop();
            return false;
        }
        *leaving = None;
        drop(leaving);
        if !self.settled.swap(true, Ordering::AcqRel) {
            self.spec.recv_cq.notify(true);
        }
        true
    }

    /// The control thread's turn; true if there is more to do.
    pub(crate) fn tick(&self) -> bool {
        self.progress();
        let unsettled = self.has_failed() && !self.is_settled() && !self.try_settle();
        unsettled || self.carrier.load(Ordering::Relaxed) != POSTER
    }

    /// A peer says that its own request to us was not valid.
    pub(crate) fn fault(&self, from: NodeId, from_qpn: u32, kind: FaultKind) {
        if !self.peer.get().is_some_and(|peer| peer.node == from && peer.qpn == from_qpn) || self.has_failed() {
            return;
        }
        self.spec.node.events().raise(match kind {
            FaultKind::Access => AsyncEvent::QpAccessError(self.qpn()),
            FaultKind::Request => AsyncEvent::QpRequestError(self.qpn()),
            FaultKind::Operation => AsyncEvent::QpFatal(self.qpn()),
        });
        self.fail();
    }

    /// The process at the other end of `link` is gone; true if this queue pair failed for it.
    pub(crate) fn peer_lost(&self, link: &Arc<Link>) -> bool {
        if let Some(table) = &self.claims {
            self.receiver.void_claims(table, super::ud::taker(link.peer()));
            self.spec.recv_cq.notify(true);
        }
        let ours = self.peer.get().is_some_and(|peer| Arc::ptr_eq(&peer.link, link));
        if ours {
            let failed_before = self.has_failed();
            self.fail();
            self.try_settle();
            return !failed_before;
        }
        false
    }

    /// The piece of a posted receive that a peer may fill, as address and length.
    pub(crate) fn posted_piece(&self, receive: u32, piece: u32) -> Option<(u64, u64)> {
        let ring = match &self.spec.srq {
            Some(srq) => srq.is_outstanding(receive).then(|| srq.wqes())?,
            None => self.receiver.is_outstanding(receive).then(|| self.receiver.wqe_ring())??,
        };
        ring.piece(receive, piece)
    }

    /// Which wire carries the connection, and why.
    pub(crate) fn explain(&self) -> String {
        match self.peer.get() {
            None => "not connected".to_owned(),
            Some(peer) => {
                let where_ = if peer.link.is_local() { "in this process" } else { "in another process of this host" };
                let barrier = if peer.link.asymmetric() { "membarrier" } else { "fences" };
                format!(
                    "shm wire to queue pair {} of device {}: the peer is {where_} (same boot id and network \
                     namespace); messages up to {RING_INLINE} bytes travel in the ring; ordering by {barrier}",
                    Qpn(peer.qpn),
                    peer.node
                )
            }
        }
    }

    /// Fails the queue pair and takes it out of its completion queues. What was not polled is gone with it.
    pub(crate) fn close(&self) {
        self.fail();
        let deadline = Instant::now() + CLOSE;
        while !self.try_settle() && Instant::now() < deadline {
            std::thread::yield_now();
        }
        self.public().gate.store(0, Ordering::SeqCst);
        self.spec.node.remove_qp(self.qpn);
        self.spec.send_cq.leave(self);
        self.spec.recv_cq.leave(self);
    }
}

impl Drop for SoftQp {
    fn drop(&mut self) {
        self.spec.node.remove_qp(self.qpn);
        let sender = self.sender.get_mut();
        sender.bounce_end();
        // Datagram senders come and go without a hazard of ours: their blocks are never used for anything else.
        if !self.is_settled() || self.claims.is_some() {
            if self.claims.is_none() {
                tracing::error!(qpn = %self.qpn(), "the peer sits in an access; the queue pair's memory is leaked");
                self.receiver.leak();
            }
            return;
        }
        let node = &self.spec.node;
        node.give_public(self.public_offset, size_of::<QpPublic>());
        node.give_shared(self.ring_offset, self.ring_lines as usize * size_of::<Slot>());
        if let Some(ring) = self.receiver.wqe_ring() {
            ring.free();
        }
    }
}

impl std::fmt::Debug for SoftQp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SoftQp")
            .field("qpn", &self.qpn())
            .field("type", &self.spec.qp_type)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Some tens of microseconds, the time of a small copy; longer accesses are waited for by the control thread.
const LEAVE_SPINS: u32 = 2000;
/// Longest wait of a closing queue pair for its peer to leave.
const CLOSE: std::time::Duration = std::time::Duration::from_secs(3);
