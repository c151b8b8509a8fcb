//! Posting and carrying out: at once by the poster, or later by whoever holds the progress lock.

use std::sync::{MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use super::core::{POSTER, PROGRESS, SoftQp, lock};
use crate::error::{PostError, Rejected};
use crate::memory::{Local, RemoteSlice};
use crate::qp::{Borrowed, Op, SendWr};
use crate::soft::exec::{Outcome, Own, Request, Sender, Wait};
use crate::soft::send_queue::{SendSlot, Stalled};
use crate::soft::spec::RNR_FOREVER;
use crate::soft::{MAX_INLINE, MAX_MESSAGE};
use crate::status::WcStatus;
use crate::sync::Ordering;
use crate::types::{Mtu, QpType};

impl SoftQp {
    /// Posts a send request. For one poster at a time: `QueuePair` is not shared and takes `&mut self`.
    #[inline]
    pub(crate) fn post_send(&self, wr: &mut SendWr, with: &Borrowed<'_>) -> Result<(), Rejected> {
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
                self.home().attend();
            }
        }
        Ok(())
    }

    /// Posts behind requests that wait.
    #[cold]
    fn post_behind(&self, index: u32, wr: &mut SendWr, with: &Borrowed<'_>) {
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
    fn store(&self, index: u32, wr: &mut SendWr, with: &Borrowed<'_>) {
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
            with: &Borrowed { inline: stalled.inline.as_deref(), to: None },
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
        let own = Own {
            home: self.home(),
            hazard: self.hazard_word(),
            domain: self.spec.domain,
            qpn: self.qpn,
            qp_type: self.spec.qp_type,
        };
        sender.run(&own, request)
    }

    /// The status of a request that has waited as long as the queue pair's attributes allow.
    fn out_of_patience(&self, sender: &Sender, since: Instant, wait: Wait) -> Option<WcStatus> {
        let spec = &self.spec;
        match wait {
            Wait::Receive => {
                let pause = sender.peer.as_ref()?.public().rnr_timer_us.load(Ordering::Relaxed);
                let limit = Duration::from_micros(pause.into()) * (u32::from(spec.rnr_retry) + 1);
                let over = spec.rnr_retry < RNR_FOREVER && since.elapsed() > limit;
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
    fn check_send(&self, wr: &SendWr, with: &Borrowed<'_>) -> Result<(), PostError> {
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
            Op::Read(remote) => same(remote),
            Op::ReadReduce(remote, calc) => {
                whole_elements(&wr.local, len, calc.data_type.size())?;
                same(remote)
            }
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
}

/// Refuses memory that cuts an element.
fn whole_elements(local: &Local, len: usize, size: usize) -> Result<(), PostError> {
    let pieces = (0..local.pieces()).filter_map(|index| local.piece(index)).map(|piece| piece.len);
    let mut all = pieces.filter(|_| local.pieces() > 1).chain([len]);
    all.find(|len| !len.is_multiple_of(size)).map_or(Ok(()), |len| Err(PostError::PartialElement { len, size }))
}
