//! Posting and carrying out: at once by the poster, or later by whoever holds the progress lock.

use std::sync::{MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use super::core::{NETWORK, POSTER, PROGRESS, SoftQp};
use crate::error::{PostError, Rejected};
use crate::memory::{Local, MAX_SGE};
use crate::qp::{Borrowed, Limits, Op, RNR_FOREVER, SendWr, Target};
use crate::soft::exec::{Outcome, Own, Piece, Request, Sender, Wait};
use crate::soft::recv_queue::RecvSlot;
use crate::soft::send_queue::{Inline, SendSlot, Stalled};
use crate::soft::{MAX_INLINE, MAX_MESSAGE};
use crate::status::{WcOpcode, WcStatus};
use crate::sync::{Ordering, lock};
use crate::types::{Mtu, QpType};

/// What the completion of a request tells.
struct Kept {
    wr_id: u64,
    opcode: WcOpcode,
    byte_len: u32,
}

/// A request as the executor sees it.
#[inline(always)]
fn request<'a>(wr: &'a SendWr, with: &'a Borrowed<'a>) -> Request<'a> {
    Request {
        op: &wr.op,
        local: &wr.local,
        range: wr.range.as_ref(),
        with,
        imm: wr.imm,
        invalidate: wr.invalidate,
        solicited: wr.solicited,
    }
}

impl SoftQp {
    /// Posts a send request. For one poster at a time: `QueuePair` is not shared and takes `&mut self`.
    ///
    /// One piece of memory, or inline data, to be written or sent with nothing else to it, goes the short way while all is as it
    /// should be; all else goes the [long way](SoftQp::post_any), which has the answers to what is not. The request comes by
    /// value and is taken apart at once, so that where it is built it need never be in memory as a whole.
    #[inline(always)]
    pub(crate) fn post_send(&self, wr: SendWr, with: Borrowed<'_>) -> Result<(), Rejected> {
        let SendWr { op, local, range, imm, invalidate, wr_id, signaled, solicited, fenced } = wr;
        let bare = with.to.is_none() && imm.is_none() && invalidate.is_none() && range.is_none();
        if bare
            && let Some(piece) = self.short_piece(&local, with.inline)
            && self.carry_out_short(&op, piece, solicited)
        {
            self.done_short(local, Kept { wr_id, opcode: op.opcode(), byte_len: piece.len as u32 }, signaled);
            return Ok(());
        }
        // Put together anew, so that what came needs no place in memory on the short way.
        let mut wr = SendWr { op, local, range, imm, invalidate, wr_id, signaled, solicited, fenced };
        let Borrowed { inline, to, bind } = with;
        self.post_any(&mut wr, &Borrowed { inline, to, bind })
    }

    /// The local side, if it is inline data or one buffer.
    #[inline(always)]
    fn short_piece(&self, local: &Local, inline: Option<&[u8]>) -> Option<Piece> {
        match (inline, local) {
            (Some(data), _) if data.len() <= MAX_INLINE => Some(Piece::host(data.as_ptr().cast_mut(), data.len())),
            (None, Local::Buffer(buffer)) => {
                let backing = buffer.backing();
                let is_own = backing.domain() == self.spec.domain && backing.len() <= MAX_MESSAGE as usize;
                is_own.then(|| Piece::host(backing.base().as_ptr(), backing.len()))
            }
            _ => None,
        }
    }

    /// Carries out a request the short way, if there is a slot for it and nothing waits before it.
    #[inline(always)]
    fn carry_out_short(&self, op: &Op, piece: Piece, solicited: bool) -> bool {
        let is_free = !self.send.is_full(self.send.posted()) && self.carrier.load(Ordering::Acquire) == POSTER;
        if !is_free {
            return false;
        }
        let own = (self.hazard_word(), &self.state);
        // SAFETY: `carrier` is POSTER, and only the poster, which we are, changes that.
        let sender = unsafe { &mut *self.sender.get() };
        match op {
            Op::Write(remote) if remote.len == piece.len as u64 && piece.len > 0 => {
                sender.write_short(own, piece, *remote)
            }
            // SAFETY: the piece is memory that is posted, and that nobody else touches.
            Op::Send => unsafe { sender.send_short(own, piece, solicited) },
            _ => false,
        }
    }

    /// Notes a request that was carried out the short way.
    #[inline(always)]
    fn done_short(&self, local: Local, kept: Kept, signaled: bool) {
        let index = self.send.posted();
        // SAFETY: the slot at `posted` is the poster's, since the queue is not full; and so is `sender`, since it carried the
        // request out.
        let (slot, sender) = unsafe { (self.send.slot(index), &mut *self.sender.get()) };
        if !matches!(local, Local::None) {
            slot.local = local;
        } else {
            std::mem::forget(local);
        }
        slot.wr_id = kept.wr_id;
        slot.opcode = kept.opcode;
        slot.status = WcStatus::SUCCESS;
        slot.byte_len = kept.byte_len;
        slot.completes = signaled;
        let next = index.wrapping_add(1);
        sender.executed = next;
        self.send.publish(next);
        if signaled {
            self.finished(next, WcStatus::SUCCESS);
        }
    }

    /// Posts a send request of any kind.
    #[inline(never)]
    fn post_any(&self, wr: &mut SendWr, with: &Borrowed<'_>) -> Result<(), Rejected> {
        if let Err(error) = self.limits().check_send(wr, with) {
            return Err(Rejected { error, memory: std::mem::take(&mut wr.local) });
        }
        let index = self.send.posted();
        if self.send.is_full(index) {
            let error = PostError::SendQueueFull { depth: self.send.depth() };
            return Err(Rejected { error, memory: std::mem::take(&mut wr.local) });
        }
        if with.to.is_some() && request(wr, with).is_on_gpu() {
            self.post_by_host(index, wr, with);
        } else {
            self.post_checked(index, wr, with);
        }
        Ok(())
    }

    /// Posts a datagram out of GPU memory by way of the processor's: read once, however often it is tried, so that a GPU holds up
    /// nothing of its target. Where that fails, it does when its turn comes.
    #[cold]
    fn post_by_host(&self, index: u32, wr: &mut SendWr, with: &Borrowed<'_>) {
        let mut bytes = [0; Mtu::B4096.bytes() as usize];
        let request = request(wr, with);
        let bytes = &mut bytes[..request.len()];
        match request.copy_to(bytes) {
            Ok(()) => self.post_checked(index, wr, &Borrowed { inline: Some(bytes), to: with.to, bind: None }),
            Err(error) => {
                tracing::error!(%error, qpn = %self.qpn(), "a datagram was not read from GPU memory");
                self.post_checked(index, wr, with);
            }
        }
    }

    /// Posts a request that may be posted, to the slot of that index.
    #[inline(always)]
    fn post_checked(&self, index: u32, wr: &mut SendWr, with: &Borrowed<'_>) {
        match self.carrier.load(Ordering::Acquire) {
            POSTER => {}
            NETWORK => return self.post_to_network(index, wr, with),
            _ => return self.post_behind(index, wr, with),
        }
        // SAFETY: `carrier` is POSTER, and only the poster, which we are, changes that.
        let sender = unsafe { &mut *self.sender.get() };
        match self.carry_out(sender, &request(wr, with)) {
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
                slot.byte_len = byte_len as u32;
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
                self.stalled();
                self.home().attend();
            }
        }
    }

    #[inline(always)]
    fn limits(&self) -> Limits {
        Limits {
            domain: self.spec.domain,
            qp_type: self.spec.options.qp_type,
            max_inline: MAX_INLINE,
            max_message: MAX_MESSAGE as usize,
            max_datagram: self.mtu.bytes() as usize,
            max_sge: MAX_SGE,
            max_sge_read: MAX_SGE,
            read_reduce: true,
        }
    }

    /// Posts for the protocol of the network.
    fn post_to_network(&self, index: u32, wr: &mut SendWr, with: &Borrowed<'_>) {
        self.store(index, wr, with);
        self.send.publish(index.wrapping_add(1));
        if let Some(network) = self.network() {
            network.posted(self.qpn());
        }
    }

    /// Posts behind requests that wait.
    #[cold]
    pub(super) fn post_behind(&self, index: u32, wr: &mut SendWr, with: &Borrowed<'_>) {
        let guard = lock(&self.progress);
        self.store(index, wr, with);
        self.send.publish(index.wrapping_add(1));
        // The one in front may be done meanwhile, and the carrier the poster again: carrying out under the lock is right
        // in both cases, since the poster is here.
        self.carrier.store(PROGRESS, Ordering::Release);
        self.progress_locked(&guard);
        self.stalled();
        // Who tries what waits may have ended with what was in front, and be asleep.
        if self.is_stalled() {
            self.home().attend();
        }
    }

    /// Has polls look at it, which try what waits.
    #[cold]
    fn stalled(&self) {
        self.seats.send.call();
        self.seats.recv.call();
    }

    /// True if requests wait for polls to try them.
    pub(crate) fn is_stalled(&self) -> bool {
        self.carrier.load(Ordering::Acquire) == PROGRESS
    }

    /// Keeps a request for later.
    fn store(&self, index: u32, wr: &mut SendWr, with: &Borrowed<'_>) {
        let opcode = wr.op.opcode();
        let len = match (with.inline, &wr.range) {
            (Some(data), _) => data.len(),
            (None, Some(range)) => range.len(),
            (None, None) => wr.local.len(),
        };
        let stalled = Stalled {
            op: wr.op,
            range: wr.range.clone(),
            inline: with.inline.map(Inline::copy),
            to: with.to.cloned(),
            bind: with.bind.map(|(window, region)| (window.clone(), region.clone())),
            imm: wr.imm,
            invalidate: wr.invalidate,
            solicited: wr.solicited,
            fenced: wr.fenced,
        };
        // SAFETY: the slot at `posted` is the poster's, since the queue is not full.
        *unsafe { self.send.slot(index) } = SendSlot {
            local: std::mem::take(&mut wr.local),
            wr_id: wr.wr_id,
            opcode,
            status: WcStatus::SUCCESS,
            byte_len: len as u32,
            completes: wr.signaled,
            stalled: Some(stalled),
        };
    }

    /// Tries requests that wait. Cheap if there are none.
    #[inline(always)]
    pub(crate) fn progress(&self) {
        if self.carrier.load(Ordering::Relaxed) == PROGRESS {
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
        if self.carrier.load(Ordering::Acquire) != PROGRESS {
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
        let with = stalled.borrowed();
        let request = Request::kept(stalled, &slot.local, &with);
        let done = match self.carry_out(sender, &request) {
            Outcome::Done(status, byte_len) => (status, byte_len as u32),
            Outcome::Wait(wait) => {
                let since = match sender.waiting {
                    Some((since, before)) if before == wait => since,
                    _ => Instant::now(),
                };
                sender.waiting = Some((since, wait));
                let status = self.out_of_patience(sender, since, wait)?;
                if let Some(Target::Soft(target)) = &stalled.to {
                    target.lose_patience();
                }
                (if self.spec.options.qp_type == QpType::Rc { status } else { WcStatus::SUCCESS }, 0)
            }
        };
        // However it ended: nothing of it is left for the next request.
        sender.bounce_end();
        Some(done)
    }

    #[inline(always)]
    fn carry_out(&self, sender: &mut Sender, request: &Request<'_>) -> Outcome {
        if self.has_failed() {
            return Outcome::Done(WcStatus::WR_FLUSH_ERR, 0);
        }
        let own = Own {
            home: self.home(),
            hazard: self.hazard_word(),
            state: &self.state,
            domain: self.spec.domain,
            qpn: self.who.qpn,
            qp_type: self.spec.options.qp_type,
        };
        match request.with.to {
            // It was not read when it was posted.
            Some(_) if request.is_on_gpu() => Outcome::Done(WcStatus::LOC_QP_OP_ERR, 0),
            Some(Target::Network(target)) => target.send(self.qpn(), request),
            _ => sender.run(&own, request),
        }
    }

    /// The status of a request that has waited as long as the queue pair's attributes allow; an unreliable queue pair drops
    /// it then.
    fn out_of_patience(&self, sender: &Sender, since: Instant, wait: Wait) -> Option<WcStatus> {
        let spec = &self.spec;
        match wait {
            // Datagrams wait for room on the network alone, which no peer's timer tells of.
            Wait::Receive | Wait::Room if spec.options.qp_type != QpType::Ud => {
                let pause = sender.peer.as_ref()?.public().rnr_timer_us.load(Ordering::Relaxed);
                let limit = Duration::from_micros(pause.into()) * (u32::from(spec.options.rnr_retry) + 1);
                let over = spec.options.rnr_retry < RNR_FOREVER && since.elapsed() > limit;
                over.then_some(WcStatus::RNR_RETRY_EXC_ERR)
            }
            Wait::Receive | Wait::Room | Wait::Peer | Wait::Memory => {
                let limit = match spec.options.qp_type {
                    QpType::Ud => DATAGRAM_PATIENCE,
                    QpType::Rc | QpType::Uc => {
                        spec.options.ack_timeout.saturating_mul(u32::from(spec.options.retry_count) + 1)
                    }
                };
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
        self.seats.send.notify(!status.is_success());
    }

    /// Posts a receive. For one poster at a time, as [`post_send`](SoftQp::post_send), and as there the memory comes by value,
    /// so that a buffer or slab need not be in memory before it is in its slot.
    #[inline(always)]
    pub(crate) fn post_recv(&self, memory: Local, wr_id: u64) -> Result<(), Rejected> {
        if let Some(piece) = memory.one_piece()
            && memory.check(self.spec.domain, None, MAX_SGE).is_ok()
            && let Some(room) = self.receiver.room()
        {
            room.post(RecvSlot { memory, wr_id, len: piece.len }, &piece, &self.public().receives);
            self.posted_recv();
            return Ok(());
        }
        self.post_recv_any(memory, wr_id)
    }

    /// After a receive was posted: to a failed queue pair, it completes. Who has it fail tells who polls after that alone.
    #[inline(always)]
    pub(super) fn posted_recv(&self) {
        self.seats.recv.order();
        if self.has_failed() {
            self.posted_to_failed();
        }
    }

    #[cold]
    fn posted_to_failed(&self) {
        self.seats.recv.notify(true);
    }

    /// Posts a receive into memory of any form.
    #[inline(never)]
    fn post_recv_any(&self, memory: Local, wr_id: u64) -> Result<(), Rejected> {
        match memory.check(self.spec.domain, None, MAX_SGE) {
            Ok(()) => {
                self.receiver.post(memory, wr_id, &self.public().receives)?;
                self.posted_recv();
                Ok(())
            }
            Err(error) => Err(Rejected { error, memory }),
        }
    }
}

/// Longest wait of a datagram for its target's memory to be mapped, or for the network to take it: many times what a target takes that
/// runs, and a network that goes on.
const DATAGRAM_PATIENCE: Duration = Duration::from_millis(100);
