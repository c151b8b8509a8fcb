//! What may go out, and what goes out next.

use std::collections::VecDeque;

use super::words::Word;
use super::{CloseSent, Link, Phase};
use crate::engine::step::{Blocked, Cancelled, Frame, Pending, Readable, Step};
use crate::engine::wire::{Envelope, Header, Kind, Offer};

impl<P> Link<P> {
    /// A header for an eager message that goes out at once.
    #[inline(always)]
    pub(crate) fn eager(&mut self, envelope: Envelope, len: u64) -> Result<Frame, Blocked> {
        self.may_send(1)?;
        Ok(self.frame(Kind::Eager, envelope, len, false))
    }

    /// True if so many requests can be posted at once, of which the last is a message.
    pub(crate) fn has_room(&self, requests: u32) -> bool {
        self.may_send(requests).is_ok()
    }

    /// A ready-to-send that goes out at once; else the payload comes back, to be queued. Messages are taken, as the caller
    /// has seen.
    pub(crate) fn offer(
        &mut self,
        op: u64,
        envelope: Envelope,
        readable: Readable,
        payload: P,
    ) -> Result<(Frame, Offer), P> {
        debug_assert!(self.takes_messages());
        match self.may_send(1) {
            Ok(()) if !self.exposures.is_full(ROOM) => Ok(self.offer_frame(op, envelope, readable, payload)),
            _ => Err(payload),
        }
    }

    /// Queues a message; [`next_step`](Link::next_step) gives it when it may go out.
    pub(crate) fn enqueue(&mut self, pending: Pending<P>) {
        self.queue.push_back(pending);
    }

    /// Queues part of a payload that the peer wants. The caller sees to it that there are few.
    pub(crate) fn enqueue_part(&mut self, pending: Pending<P>) {
        self.parts.push_back(pending);
    }

    /// Puts a message into the place of a queued one that was taken back.
    pub(crate) fn stand_in(&mut self, pending: Pending<P>) {
        let place = self.queue.partition_point(|queued| queued.op < pending.op);
        self.queue.insert(place, pending);
    }

    /// The messages that wait, to be looked through and put back.
    pub(crate) fn queue_mut(&mut self) -> &mut VecDeque<Pending<P>> {
        &mut self.queue
    }

    /// Messages that wait for credits.
    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// True if [`next_step`](Link::next_step) may give something.
    #[inline(always)]
    pub(crate) fn has_steps(&self) -> bool {
        !self.queue.is_empty()
            || !self.words.is_empty()
            || !self.startable.is_empty()
            || self.phase == Phase::Flushing
            || !self.parts.is_empty()
    }

    /// True if something can be posted that is no answer to the peer.
    fn can_step(&self) -> bool {
        matches!(self.phase, Phase::Open | Phase::Flushing | Phase::Closing) && self.slots.available() > 0
    }

    /// Length of the message that [`next_step`](Link::next_step) may give next for copying.
    pub(crate) fn next_copied(&self) -> Option<u64> {
        let can = self.can_step() && self.credits.available() > 0 && self.words.is_empty();
        self.queue.front().filter(|next| can && next.readable.is_none()).map(|next| next.len)
    }

    /// What to post next, if anything can be. `may_copy`: also what is to be copied.
    pub(crate) fn next_step(&mut self, may_copy: bool) -> Option<Step<P>> {
        if !self.can_step() {
            return None;
        }
        if let Some(frame) = self.next_word() {
            return Some(Step::Control(frame));
        }
        if let Some(Pending { op, envelope, readable: Some(readable), payload, .. }) = self.next_part() {
            let (frame, offer) = self.offer_frame(op, envelope, readable, payload);
            return Some(Step::Offer { frame, offer });
        }
        if self.credits.available() > 0 {
            let goes = match self.queue.front() {
                Some(next) if next.readable.is_some() => !self.exposures.is_full(ROOM),
                _ => may_copy,
            };
            if goes && let Some(next) = self.queue.pop_front() {
                return Some(match next.readable {
                    None => {
                        let frame = self.frame(Kind::Eager, next.envelope, next.len, false);
                        Step::Eager { frame, op: next.op, payload: next.payload }
                    }
                    Some(readable) => {
                        let (frame, offer) = self.offer_frame(next.op, next.envelope, readable, next.payload);
                        Step::Offer { frame, offer }
                    }
                });
            }
        }
        if let Some(key) = self.startable.pop_front() {
            return Some(Step::Pull(key));
        }
        let is_sent = self.queue.is_empty() && self.parts.is_empty() && self.exposures.is_empty();
        if self.phase == Phase::Flushing && is_sent {
            let frame = self.frame(Kind::Close, Envelope::bare(0), 0, true);
            self.phase = Phase::Closing;
            self.close = CloseSent::Posted { number: frame.work.number, sequence: frame.header.sequence };
            return Some(Step::Control(frame));
        }
        None
    }

    /// The next word. Without a credit, one that says that a part without one was read goes all the same, and one want: what the
    /// peer sends waits for these.
    fn next_word(&mut self) -> Option<Frame> {
        let has_credit = self.credits.available() > 0;
        let (kind, id, len) = self.words.pop(has_credit, self.uncredited_want.is_none())?.says();
        if kind == Kind::Finished {
            self.peers_uncredited_part.take_if(|part| *part == id);
        }
        let envelope = Envelope::bare(id.into());
        let frame = self.frame(kind, if has_credit { envelope } else { envelope.uncredited() }, len, false);
        if kind == Kind::Want && !has_credit {
            self.uncredited_want = Some(frame.header.sequence);
        }
        Some(frame)
    }

    /// The next part of a payload, if there is room for it. Without a credit, one goes all the same.
    fn next_part(&mut self) -> Option<Pending<P>> {
        let has_credit = self.credits.available() > 0;
        if self.exposures.is_full(0) || (!has_credit && self.uncredited_part) {
            return None;
        }
        let part = self.parts.pop_front()?;
        if has_credit {
            return Some(part);
        }
        self.uncredited_part = true;
        Some(Pending { envelope: part.envelope.uncredited(), ..part })
    }

    /// A credit message, if one is due and nothing else carries the credits.
    #[inline]
    pub(crate) fn credit(&mut self) -> Option<Frame> {
        // A peer that has closed still needs credits to say what it has read, as long as this side waits for that.
        let flows = match self.phase {
            Phase::Open | Phase::Flushing | Phase::Repeating => true,
            Phase::Closing => !self.peer_closed,
            Phase::Opening { .. } | Phase::Closed | Phase::Suspended => false,
        };
        if !self.grants.is_due() || !flows || self.slots.available() == 0 {
            return None;
        }
        Some(self.frame(Kind::Credit, Envelope::bare(0), 0, false))
    }

    /// Gives up slots of the peer that this side does not need, by a message.
    pub(crate) fn give_up_slots(&mut self) -> Option<Frame> {
        if self.phase != Phase::Open || self.slots.available() == 0 {
            return None;
        }
        let slots = self.credits.give_up();
        (slots > 0).then(|| self.frame(Kind::Credit, Envelope::bare(0), slots.into(), false))
    }

    /// Takes back a send: at once while it is queued; if it is offered, the peer is asked to let go of it.
    pub(crate) fn cancel(&mut self, op: u64) -> Cancelled<P> {
        // Messages are queued in the order of their numbers.
        if let Ok(place) = self.queue.binary_search_by_key(&op, |pending| pending.op)
            && !self.queue[place].envelope.is_stand_in()
            && let Some(pending) = self.queue.remove(place)
        {
            return Cancelled::Taken(pending.envelope, pending.payload);
        }
        match self.exposures.cancel(op) {
            Some((id, first)) => {
                if first {
                    self.words.push(Word::Cancel { id });
                }
                Cancelled::Asked
            }
            None => Cancelled::Unknown,
        }
    }

    /// The application does not wait for an offered payload any more. False if it did not before.
    pub(crate) fn disown(&mut self, op: u64) -> bool {
        self.exposures.disown(op)
    }

    #[inline(always)]
    fn may_send(&self, requests: u32) -> Result<(), Blocked> {
        if self.phase == Phase::Open
            && self.queue.is_empty()
            && self.parts.is_empty()
            && self.credits.available() > 0
            && self.slots.available() >= requests
        {
            return Ok(());
        }
        if self.takes_messages() { Err(Blocked::Later) } else { Err(Blocked::Closed) }
    }

    #[inline(always)]
    pub(super) fn frame(&mut self, kind: Kind, envelope: Envelope, length: u64, signal: bool) -> Frame {
        // Of a message that has no number of its own: the one that the peer expects next.
        let sequence = if kind.is_sequenced() { self.next_out } else { self.next_due() };
        self.next_out = self.next_out.wrapping_add(kind.is_sequenced().into());
        let (epoch, credits, acknowledged) = (self.our_epoch, self.grants.tell(), self.next_in as u16);
        let header = Header { kind, envelope, epoch, sequence, credits, length, acknowledged };
        if header.takes_credit() {
            self.credits.take();
        }
        Frame { header, work: self.slots.take(signal) }
    }

    fn offer_frame(&mut self, op: u64, envelope: Envelope, readable: Readable, payload: P) -> (Frame, Offer) {
        let id = self.exposures.insert(op, envelope, readable, payload);
        let offer = match readable {
            Readable::At(at) => {
                let (addr, rkey) = (at.remote.addr, at.remote.rkey);
                Offer { addr, rkey, id, rails: at.rails, in_parts: false }
            }
            Readable::InParts(_) => Offer::in_parts(id),
        };
        (self.frame(Kind::ReadyToSend, envelope, readable.len(), false), offer)
    }
}

/// Of the payloads that wait to be read, places that only parts of others take: these would wait for themselves.
const ROOM: usize = 64;
