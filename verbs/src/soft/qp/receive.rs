//! The poller's way from ring entries to completions of receives.

use super::core::SoftQp;
use crate::events::AsyncEvent;
use crate::memory::{Local, Spot};
use crate::qp::GRH_BYTES;
use crate::soft::entry::{Entry, FLAG_IMM, FLAG_INLINE, FLAG_INVALIDATE, KIND_SEND, KIND_VOID, KIND_WRITE_IMM};
use crate::soft::receiver::Poller;
use crate::soft::recv_queue::{RecvSlot, Taken};
use crate::soft::ring::Consumer;
use crate::soft::srq::SoftSrq;
use crate::status::{WcOpcode, WcStatus};
use crate::sync::Ordering;
use crate::types::{QpType, Qpn, Rkey};
use crate::wc::{Current, Origin, WorkCompletion};

impl SoftQp {
    /// The next completion of a receive. For the owner of the receive completion queue.
    #[inline]
    pub(crate) fn poll_receive(&self, into: &mut Current) -> bool {
        // SAFETY: the caller owns the receive completion queue; nobody else touches `poller`.
        let poller = unsafe { &mut *self.receiver.poller.get() };
        let Some(poller) = poller else { return false };
        match poller.peek() {
            Some(entry) => self.complete_short(poller, &entry, into) || self.complete(poller, &entry, into),
            None if self.has_failed() => self.last(poller, into),
            None if self.claims.is_some() => self.complete_void(poller, into).is_some(),
            None => false,
        }
    }

    /// The same of a message that came, and of nothing that is flushed: what has the queue pair fail is told before that.
    #[inline]
    pub(crate) fn poll_message(&self, into: &mut Current) -> bool {
        // SAFETY: as in `poll_receive`.
        let poller = unsafe { &mut *self.receiver.poller.get() };
        let Some(poller) = poller else { return false };
        poller
            .peek()
            .is_some_and(|entry| self.complete_short(poller, &entry, into) || self.complete(poller, &entry, into))
    }

    /// The next completion of a failed queue pair: what came before its peer had left, then what nobody will fill.
    #[cold]
    fn last(&self, poller: &mut Poller, into: &mut Current) -> bool {
        // First that the peer has left, then that nothing of it is there.
        if !self.is_settled() {
            return false;
        }
        match poller.peek() {
            Some(entry) => self.complete(poller, &entry, into),
            None => self.flush(poller, into).is_some(),
        }
    }

    pub(crate) fn has_receive(&self) -> bool {
        // SAFETY: as in `poll_receive`.
        let poller = unsafe { &mut *self.receiver.poller.get() };
        let Some(poller) = poller else { return false };
        let next = self.receiver.own.as_ref().map_or(0, |own| own.filling.retired());
        if poller.peek().is_some() {
            return true;
        }
        if !self.has_failed() {
            return self.receiver.is_void(next);
        }
        if !self.is_settled() {
            return false;
        }
        match (&self.receiver.own, &self.receiver.srq) {
            (Some(own), _) => own.filling.retired() != own.posted.load(Ordering::Acquire),
            (None, Some(srq)) => !self.unfinished(poller, srq).is_empty(),
            (None, None) => false,
        }
    }

    /// What peers claimed of the shared receive queue and left unfinished, of a failed queue pair.
    fn unfinished<'p>(&self, poller: &'p mut Poller, srq: &SoftSrq) -> &'p mut Vec<u32> {
        poller.unfinished.get_or_insert_with(|| srq.unfinished(self.number()))
    }

    /// Number of receive completions that wait, counted up to `limit`.
    pub(crate) fn waiting_receives(&self, limit: u32) -> u32 {
        // SAFETY: as in `poll_receive`.
        unsafe { &*self.receiver.poller.get() }.as_ref().map_or(0, |poller| poller.count(limit))
    }

    /// Posts the receive again that completed with a short message, which stays where it is. False, with nothing done, if
    /// that is not a receive of this queue pair's own queue, or it can not be posted now. For the one poster.
    #[inline(always)]
    pub(crate) fn post_again(&self, at: &mut Current) -> bool {
        let Some(Origin { receive, len, .. }) = at.short.origin.filter(|origin| origin.of == self.name()) else {
            return false;
        };
        let Some(room) = self.receiver.room() else { return false };
        let (memory, wr_id) = (&mut at.memory, at.wc.wr_id);
        let again = || RecvSlot { memory: std::mem::take(memory), wr_id, len };
        let is_posted = room.post_again(receive, again, &self.public().receives);
        if is_posted {
            self.posted_recv();
        }
        is_posted
    }

    /// What tells it from all other queue pairs as long as it lives: where it lies.
    #[inline(always)]
    fn name(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Turns the entry of a message that is short enough, and without anything else to it, into a completion, if it took a buffer
    /// or slab of this queue pair's own queue: the bytes stay beside the memory. False, with nothing done, if it is not so: that
    /// is [`complete`](SoftQp::complete)'s.
    #[inline(always)]
    fn complete_short(&self, poller: &mut Poller, entry: &Entry, into: &mut Current) -> bool {
        let Some(own) = self.receiver.own.as_ref().filter(|_| self.claims.is_none()) else { return false };
        let receive = own.filling.retired();
        let is_next = entry.receive == receive && receive != own.posted.load(Ordering::Acquire);
        if !is_next || !entry.is_short() || entry.byte_len > into.short.most {
            return false;
        }
        // SAFETY: published and not retired, so it is the poller's.
        let slot = unsafe { own.slots.slot(receive) };
        let (wr_id, len) = (slot.wr_id, slot.len);
        let fits = len >= entry.byte_len as usize && matches!(slot.memory, Local::Buffer(_) | Local::Slab(_));
        if !fits || !own.filling.take(receive) {
            return false;
        }
        // SAFETY: the completion before this one was dropped, with its memory.
        unsafe { slot.take_into_empty(&mut into.memory) };
        poller.consumer.read_short(entry, &mut into.short.bytes);
        poller.consumer.advance(entry, &self.public().consumed.0);
        own.filling.retire(receive);
        into.short.origin = Some(Origin { of: self.name(), receive, len });
        into.wc = WorkCompletion {
            wr_id,
            status: WcStatus::SUCCESS,
            opcode: WcOpcode::RECV,
            qpn: self.qpn(),
            byte_len: entry.byte_len,
            ..WorkCompletion::default()
        };
        true
    }

    /// Turns any ring entry into a completion.
    #[inline(never)]
    fn complete(&self, poller: &mut Poller, entry: &Entry, into: &mut Current) -> bool {
        if !entry.is_sound() {
            return self.nonsense(poller, into);
        }
        let is_datagram = self.qp_type() == QpType::Ud;
        if is_datagram && !matches!(entry.kind, KIND_SEND | KIND_VOID) {
            return self.nonsense(poller, into);
        }
        let Some(slot) = self.take_slot(entry.receive, &mut into.memory) else { return self.nonsense(poller, into) };
        let total = entry.byte_len as usize + if is_datagram { GRH_BYTES } else { 0 };
        let mut status = WcStatus::SUCCESS;
        let mut invalidated = None;
        match entry.kind {
            KIND_SEND if total > slot.len => status = WcStatus::LOC_LEN_ERR,
            KIND_SEND if entry.flags & FLAG_INLINE == 0 || place_inline(&poller.consumer, entry, &into.memory) => {}
            KIND_SEND => status = WcStatus::GENERAL_ERR,
            KIND_VOID => status = WcStatus::GENERAL_ERR,
            _ => {}
        }
        if entry.flags & FLAG_INVALIDATE != 0 && status.is_success() {
            let rkey = Rkey(entry.imm);
            if self.invalidate_for_peer(rkey) { invalidated = Some(rkey) } else { status = WcStatus::LOC_ACCESS_ERR }
        }
        poller.consumer.advance(entry, &self.public().consumed.0);
        self.retire(entry.receive);
        if !status.is_success() && !is_datagram {
            self.fail();
        }
        let opcode = if entry.kind == KIND_WRITE_IMM { WcOpcode::RECV_RDMA_WITH_IMM } else { WcOpcode::RECV };
        into.wc = WorkCompletion {
            wr_id: slot.wr_id,
            status,
            opcode,
            qpn: self.qpn(),
            byte_len: if status.is_success() { total as u32 } else { 0 },
            imm: (entry.flags & FLAG_IMM != 0).then_some(entry.imm),
            invalidated,
            src_qpn: is_datagram.then_some(Qpn(entry.src_qpn)),
            vendor_err: 0,
        };
        true
    }

    /// What the peer wrote can not be: the queue pair fails, and what is posted is flushed.
    #[cold]
    fn nonsense(&self, poller: &mut Poller, into: &mut Current) -> bool {
        tracing::warn!(qpn = %self.qpn(), "the peer's device wrote a completion that can not be; the queue pair fails");
        poller.broken = true;
        if !self.has_failed() {
            self.home().events().raise(AsyncEvent::QpFatal(self.qpn()));
            self.fail();
        }
        self.flush(poller, into).is_some()
    }

    /// The next receive that will not be filled any more, of a failed queue pair.
    #[cold]
    fn flush(&self, poller: &mut Poller, into: &mut Current) -> Option<()> {
        if !self.is_settled() {
            return None;
        }
        let slot = match (&self.receiver.own, &self.receiver.srq) {
            (Some(own), _) => {
                let index = own.filling.retired();
                if index == own.posted.load(Ordering::Acquire) {
                    return None;
                }
                let slot = self.take_slot(index, &mut into.memory)?;
                self.retire(index);
                slot
            }
            (None, Some(srq)) => {
                let list = self.unfinished(poller, srq);
                let found = std::iter::from_fn(|| list.pop()).find_map(|index| srq.take(index, &mut into.memory));
                found?
            }
            (None, None) => return None,
        };
        self.fail_receive(slot, WcStatus::WR_FLUSH_ERR, into);
        Some(())
    }

    /// A receive that a dead sender claimed (UD).
    fn complete_void(&self, poller: &mut Poller, into: &mut Current) -> Option<()> {
        let index = self.receiver.own.as_ref()?.filling.retired();
        if !self.receiver.take_void(index) {
            return None;
        }
        let slot = self.take_slot(index, &mut into.memory)?;
        poller.consumer.advance(&Entry { lines: 1, ..Entry::default() }, &self.public().consumed.0);
        self.retire(index);
        self.fail_receive(slot, WcStatus::GENERAL_ERR, into);
        Some(())
    }

    fn fail_receive(&self, slot: Taken, status: WcStatus, into: &mut Current) {
        into.wc = WorkCompletion {
            wr_id: slot.wr_id,
            status,
            opcode: WcOpcode::RECV,
            qpn: self.qpn(),
            ..WorkCompletion::default()
        };
    }

    /// The receive that a message took: the oldest of the own queue, or the claimed one of the shared.
    #[inline(always)]
    fn take_slot(&self, index: u32, memory: &mut Local) -> Option<Taken> {
        match (&self.receiver.own, &self.receiver.srq) {
            (Some(own), _) => {
                let next = own.filling.retired();
                if index != next || next == own.posted.load(Ordering::Acquire) || !own.filling.take(index) {
                    return None;
                }
                // SAFETY: published and not retired, so it is the poller's.
                Some(unsafe { own.slots.slot(index) }.take(memory))
            }
            (None, Some(srq)) => srq.take(index, memory),
            (None, None) => None,
        }
    }

    #[inline(always)]
    fn retire(&self, index: u32) {
        if let Some(own) = &self.receiver.own {
            own.filling.retire(index);
            // A sender that died after it had filled the receive.
            self.receiver.take_void(index);
        }
    }

    /// Withdraws a window's key on the peer's demand; only a window that this queue pair bound. One that ended since the message
    /// came, by its owner or a message before, is as the peer wants it.
    #[cold]
    fn invalidate_for_peer(&self, rkey: Rkey) -> bool {
        let home = self.home();
        if !home.keys().view().is_bound(rkey, self.number(), self.domain()) {
            return !home.keys().is_live(rkey);
        }
        if self.network().is_some() { home.withdraw_on_network(rkey) } else { home.withdraw_bound(rkey, self.number()) }
    }
}

/// Copies a short message from the ring into its receive, which has room for it. False if a GPU did not take it.
#[inline(always)]
fn place_inline(consumer: &Consumer, entry: &Entry, memory: &Local) -> bool {
    if let Some(piece) = memory.piece(0)
        && piece.len >= entry.byte_len as usize
        && piece.place.is_host()
    {
        consumer.read(entry, &mut |offset, from, len| {
            // SAFETY: the message fits the piece, which the poller holds now.
            unsafe { std::ptr::copy_nonoverlapping(from, piece.ptr.add(offset), len) };
        });
        return true;
    }
    let mut placed = true;
    consumer.read(entry, &mut |offset, from, len| placed &= scatter_local(memory, offset, from, len));
    placed
}

/// Copies to `offset` of a memory of several pieces, or of a GPU's. False if a GPU refused.
#[cold]
fn scatter_local(memory: &Local, offset: usize, from: *const u8, len: usize) -> bool {
    let (mut start, mut placed) = (0, true);
    for piece in (0..memory.pieces()).filter_map(|index| memory.piece(index)) {
        let first = offset.clamp(start, start + piece.len);
        let last = (offset + len).clamp(first, start + piece.len);
        let to = Spot::new(piece.ptr, piece.place).add(first - start);
        let from = Spot::host(from.wrapping_add(first.saturating_sub(offset)).cast_mut());
        // SAFETY: `first..last` lies within both the piece and the message.
        let moved = unsafe { to.copy_from(from, last - first) };
        placed &= moved.inspect_err(|error| tracing::error!(%error, "a message was not put into GPU memory")).is_ok();
        start += piece.len;
    }
    placed
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use super::*;
    use crate::{Access, Context, Gpu};

    /// A peer that does as it likes puts a message into the ring though the receive is on a GPU.
    #[test]
    fn what_is_in_the_ring_reaches_a_receive_on_a_gpu() {
        qpair_fake_cuda::control::load().unwrap();
        let pd = Context::open("soft0").unwrap().alloc_pd().unwrap();
        let region = pd.register_gpu(Gpu::open(0).unwrap().alloc(16).unwrap(), Access::NONE).unwrap();
        let memory = Local::Region(region.local(4..12));
        assert!(scatter_local(&memory, 3, [1, 2, 3, 4].as_ptr(), 4));
        let mut found = [9; 16];
        region.read(0, &mut found).unwrap();
        assert_eq!(found, [0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 0, 0]);
    }
}
