//! One side of one connection: what may be sent, what an arriving message means, and how the connection ends.

use std::collections::VecDeque;
use std::time::Duration;

use qpair_verbs::{RemoteSlice, Rkey};

use super::credits::{Credits, Grants};
use super::exposed::{self, Exposed, Exposures};
use super::flush::Flushes;
use super::inbox::EntryKey;
use super::keepalive::{Keepalive, Pulse};
use super::slots::{Work, WorkSlots};
use super::step::{Blocked, Cancelled, Frame, LinkConfig, PeerTerms, Pending, Step};
use super::violation::Violation;
use super::wire::{Envelope, Header, Kind, Offer};

/// The protocol of one connection.
///
/// `P` is a payload on its way out.
#[derive(Debug)]
pub(crate) struct Link<P> {
    phase: Phase,
    peer_closed: bool,
    /// The CLOSE of this side: its work number, then that it is done.
    close: CloseSent,
    our_epoch: u32,
    peer_epoch: u32,
    next_out: u32,
    next_in: u32,
    credits: Credits,
    grants: Grants,
    /// Offers whose slots are not given back yet, since too many wait.
    owed: u32,
    /// Offers of the peer that are not read, and how many of them may wait.
    offers: usize,
    offers_limit: usize,
    slots: WorkSlots,
    queue: VecDeque<Pending<P>>,
    words: VecDeque<Word>,
    /// Words among them that answer offers.
    answers: usize,
    /// Payloads that can be read, in the order in which they were offered.
    startable: VecDeque<EntryKey>,
    exposures: Exposures<P>,
    flushes: Flushes,
    keepalive: Keepalive,
}

/// A message of the protocol's own that waits for a credit.
#[derive(Clone, Copy, Debug)]
enum Word {
    /// A payload of the peer was read.
    Finished { id: u32, len: u64 },
    /// A payload of the peer will not be read.
    Withdrawn { id: u32 },
    /// A payload of this side is no longer wanted.
    Cancel { id: u32 },
}

impl Word {
    /// True if it answers an offer of the peer.
    fn is_answer(self) -> bool {
        !matches!(self, Word::Cancel { .. })
    }
}

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Not connected yet; sends queue. `closing`: the application closed it already.
    Opening { closing: bool },
    /// Messages flow.
    Open,
    /// This side or the peer closes: no new sends; what was accepted goes out.
    Flushing,
    /// CLOSE is sent. The peer may still be flushing.
    Closing,
    /// Both sides are done, or the connection failed.
    Closed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CloseSent {
    No,
    Posted(u32),
    Done,
}

/// Receive slots of a connection beyond those that credits count: two for credit messages (see `Grants::is_due`),
/// one for CLOSE, one to spare.
pub(crate) const RESERVED_SLOTS: u32 = 4;

impl<P> Link<P> {
    pub(crate) fn new(config: &LinkConfig) -> Self {
        Link {
            phase: Phase::Opening { closing: false },
            peer_closed: false,
            close: CloseSent::No,
            our_epoch: config.epoch,
            peer_epoch: 0,
            next_out: 0,
            next_in: 0,
            credits: Credits::default(),
            grants: Grants::new(config.window),
            owed: 0,
            offers: 0,
            offers_limit: config.offers,
            slots: WorkSlots::new(config.depth),
            queue: VecDeque::new(),
            words: VecDeque::new(),
            answers: 0,
            startable: VecDeque::new(),
            exposures: Exposures::new(),
            flushes: Flushes::new(),
            keepalive: Keepalive::new(config.keepalive, config.detection),
        }
    }

    /// Both sides are connected.
    pub(crate) fn open(&mut self, terms: &PeerTerms, now: Duration) -> Result<(), Violation> {
        let Phase::Opening { closing } = self.phase else { return Ok(()) };
        self.peer_epoch = terms.epoch;
        self.credits.start(terms.credits)?;
        self.keepalive.start(now);
        self.phase = if closing { Phase::Flushing } else { Phase::Open };
        Ok(())
    }

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

    /// True if this side or the peer closes: nobody posts receives for what comes.
    pub(crate) fn is_closing(&self) -> bool {
        !matches!(self.phase, Phase::Opening { closing: false } | Phase::Open)
    }

    /// True if messages are taken, to go out at once or later.
    pub(crate) fn takes_messages(&self) -> bool {
        matches!(self.phase, Phase::Opening { closing: false } | Phase::Open)
    }

    /// A ready-to-send that goes out at once; else the payload comes back, to be queued. Messages are taken, as the caller
    /// has seen.
    pub(crate) fn offer(
        &mut self,
        op: u64,
        envelope: Envelope,
        remote: RemoteSlice,
        payload: P,
    ) -> Result<(Frame, Offer), P> {
        debug_assert!(self.takes_messages());
        match self.may_send(1) {
            Ok(()) if !self.exposures.is_full() => Ok(self.offer_frame(op, envelope, remote, payload)),
            _ => Err(payload),
        }
    }

    /// Queues a message; [`next_step`](Link::next_step) gives it when it may go out.
    pub(crate) fn enqueue(&mut self, pending: Pending<P>) {
        self.queue.push_back(pending);
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
        !self.queue.is_empty() || !self.words.is_empty() || !self.startable.is_empty() || self.phase == Phase::Flushing
    }

    /// What to post next, if anything can be.
    pub(crate) fn next_step(&mut self) -> Option<Step<P>> {
        if matches!(self.phase, Phase::Opening { .. } | Phase::Closed) || self.slots.available() == 0 {
            return None;
        }
        if self.credits.available() > 0 {
            if let Some(word) = self.words.pop_front() {
                self.answers -= usize::from(word.is_answer());
                let (kind, id, len) = match word {
                    Word::Finished { id, len } => (Kind::Finished, id, len),
                    Word::Withdrawn { id } => (Kind::Withdrawn, id, 0),
                    Word::Cancel { id } => (Kind::Cancel, id, 0),
                };
                return Some(Step::Control(self.frame(kind, Envelope::bare(id.into()), len, false)));
            }
            let offers = self.queue.front().is_some_and(|next| next.remote.is_some());
            if !(offers && self.exposures.is_full())
                && let Some(next) = self.queue.pop_front()
            {
                return Some(match next.remote {
                    None => {
                        let frame = self.frame(Kind::Eager, next.envelope, next.len, false);
                        Step::Eager { frame, op: next.op, payload: next.payload }
                    }
                    Some(remote) => {
                        let (frame, offer) = self.offer_frame(next.op, next.envelope, remote, next.payload);
                        Step::Offer { frame, offer }
                    }
                });
            }
        }
        if let Some(key) = self.startable.pop_front() {
            return Some(Step::Pull(key));
        }
        if self.phase == Phase::Flushing && self.queue.is_empty() && self.exposures.is_empty() {
            let frame = self.frame(Kind::Close, Envelope::bare(0), 0, true);
            self.phase = Phase::Closing;
            self.close = CloseSent::Posted(frame.work.number);
            return Some(Step::Control(frame));
        }
        None
    }

    /// A credit message, if one is due and nothing else carries the credits.
    #[inline]
    pub(crate) fn credit(&mut self) -> Option<Frame> {
        // A peer that has closed still needs credits to say what it has read, as long as this side waits for that.
        let flows = match self.phase {
            Phase::Open | Phase::Flushing => true,
            Phase::Closing => !self.peer_closed,
            Phase::Opening { .. } | Phase::Closed => false,
        };
        if !self.grants.is_due() || !flows || self.slots.available() == 0 {
            return None;
        }
        Some(self.frame(Kind::Credit, Envelope::bare(0), 0, false))
    }

    /// Checks an arriving header against the session and takes note of its credits.
    #[inline(always)]
    pub(crate) fn accept(&mut self, header: &Header) -> Result<(), Violation> {
        if header.epoch != self.peer_epoch || header.sequence != self.next_in {
            return Err(self.strange(header));
        }
        // Before its slot is counted, which is posted again with what is refused.
        if self.peer_closed && !matches!(header.kind, Kind::Finished | Kind::Withdrawn | Kind::Credit) {
            return Err(Violation::AfterClose);
        }
        self.next_in = self.next_in.wrapping_add(header.kind.is_sequenced().into());
        self.credits.update(header.credits)?;
        self.keepalive.heard();
        if header.kind.takes_credit() {
            self.grants.receive()?;
        }
        Ok(())
    }

    /// A ready-to-send came. Its slot is given back here, at once or when fewer wait: a peer can not fill memory with
    /// offers.
    ///
    /// # Errors
    /// A peer that takes no answers could fill memory with these.
    pub(crate) fn offered(&mut self) -> Result<(), Violation> {
        if self.offers + self.answers >= exposed::LIMIT {
            return Err(Violation::TooManyOffers { limit: exposed::LIMIT });
        }
        self.offers += 1;
        self.owed += 1;
        self.give_owed();
        Ok(())
    }

    /// A payload of the peer can be read: [`next_step`](Link::next_step) says when.
    pub(crate) fn want(&mut self, key: EntryKey) {
        self.startable.push_back(key);
    }

    /// A payload was read; the peer is told with the next steps.
    pub(crate) fn read(&mut self, id: u32, len: u64) {
        self.answer(Word::Finished { id, len });
    }

    /// A payload will not be read, as the peer wishes; it is told with the next steps.
    pub(crate) fn withdrawn(&mut self, id: u32) {
        self.answer(Word::Withdrawn { id });
    }

    /// The peer has read a payload, or will not; it comes back.
    pub(crate) fn on_finished(&mut self, header: &Header) -> Result<Exposed<P>, Violation> {
        // What it was to be asked for has come about; nothing more may be said of it, least of all after CLOSE.
        let over = header.envelope.tag;
        self.words.retain(|word| !matches!(word, Word::Cancel { id } if u64::from(*id) == over));
        match header.kind {
            Kind::Withdrawn => self.exposures.withdraw(header.envelope.tag),
            _ => self.exposures.finish(header.envelope.tag, header.length),
        }
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
                    self.words.push_back(Word::Cancel { id });
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

    /// Waits until all that was posted and queued up to now has come to the peer.
    pub(crate) fn flush(&mut self, op: u64) {
        self.flushes.push(op);
    }

    /// A flush is no longer wanted. False if none of that number waits.
    pub(crate) fn cancel_flush(&mut self, op: u64) -> bool {
        self.flushes.cancel(op)
    }

    /// True if a flush waits.
    #[inline(always)]
    pub(crate) fn is_flushing(&self) -> bool {
        !self.flushes.is_empty()
    }

    /// The next flush that is done. `one_sided`: the number of the oldest one-sided operation that is not.
    pub(crate) fn next_flushed(&mut self, one_sided: Option<u64>) -> Option<u64> {
        let queued = self.queue.front().map(|pending| pending.op);
        let oldest = [queued, self.exposures.oldest(), one_sided].into_iter().flatten().min();
        self.flushes.next(oldest, &self.slots)
    }

    /// True if a flush waits for an acknowledgment that nothing asks for.
    pub(crate) fn flush_needs_probe(&self) -> bool {
        self.flushes.mark().is_some_and(|mark| !self.slots.will_retire(mark))
    }

    /// The peer sends nothing more.
    pub(crate) fn on_close(&mut self) {
        self.peer_closed = true;
        if self.phase == Phase::Open {
            self.phase = Phase::Flushing;
        }
    }

    /// A receive slot is free again.
    #[inline]
    pub(crate) fn give_slot(&mut self) {
        self.grants.give();
    }

    /// Slots that the peer gives up, which has had nothing to send for a while.
    pub(crate) fn on_credit(&mut self, header: &Header) -> Result<u32, Violation> {
        let slots = u32::try_from(header.length).map_err(|_| Violation::NoCredit)?;
        self.grants.given_up(slots)?;
        Ok(slots)
    }

    /// Gives up slots of the peer that this side does not need, by a message.
    pub(crate) fn give_up_slots(&mut self) -> Option<Frame> {
        if self.phase != Phase::Open || self.slots.available() == 0 {
            return None;
        }
        let slots = self.credits.give_up();
        (slots > 0).then(|| self.frame(Kind::Credit, Envelope::bare(0), slots.into(), false))
    }

    /// True if the peer has used all slots that it knows of.
    #[inline(always)]
    pub(crate) fn is_used_up(&self) -> bool {
        self.grants.is_used_up()
    }

    /// Gives the peer so many slots more; it has used all that it knows of.
    pub(crate) fn grow(&mut self, slots: u32) {
        self.grants.grow(slots);
    }

    /// Receive slots of the peer in all.
    pub(crate) fn window(&self) -> u32 {
        self.grants.window()
    }

    /// Receive slots that the peer may still take, now or when it is told of them.
    pub(crate) fn outstanding_slots(&self) -> u32 {
        self.grants.outstanding() + self.owed
    }

    /// Send slots in all.
    pub(crate) fn depth(&self) -> u32 {
        self.slots.depth()
    }

    /// Requests that were posted so far, as a running count.
    pub(crate) fn posted(&self) -> u32 {
        self.slots.posted()
    }

    /// True if the peer's device has acknowledged the first `count` requests.
    pub(crate) fn is_acknowledged(&self, count: u32) -> bool {
        self.slots.has_retired(count)
    }

    /// True if the acknowledgment of the first `count` requests will be seen without posting more.
    pub(crate) fn will_acknowledge(&self, count: u32) -> bool {
        self.slots.will_retire(count)
    }

    /// A slot for a request that carries no header: a READ or a probe; always signaled.
    pub(crate) fn take_slot(&mut self) -> Option<Work> {
        (self.slots.available() > 0).then(|| self.slots.take(true))
    }

    /// A slot for a request that carries no header, and need not be signaled.
    #[inline(always)]
    pub(crate) fn take_send_slot(&mut self) -> Option<Work> {
        (self.slots.available() > 0).then(|| self.slots.take(false))
    }

    /// The device did not take the request of the slot that was taken last.
    pub(crate) fn untake_slot(&mut self, work: Work) {
        self.slots.untake(work);
    }

    /// A signaled request completed.
    #[inline]
    pub(crate) fn retire(&mut self, number: u32) {
        let retired = self.slots.retire(number);
        self.keepalive.heard();
        if retired.is_some_and(|number| self.close == CloseSent::Posted(number)) {
            self.close = CloseSent::Done;
        }
    }

    /// The application closes: what was accepted still goes out.
    pub(crate) fn close(&mut self) {
        match self.phase {
            Phase::Opening { .. } => self.phase = Phase::Opening { closing: true },
            Phase::Open => self.phase = Phase::Flushing,
            Phase::Flushing | Phase::Closing | Phase::Closed => {}
        }
    }

    /// True once both sides have sent all and know it.
    #[inline]
    pub(crate) fn is_finished(&self) -> bool {
        self.awaits_last_acknowledgment() && self.close == CloseSent::Done
    }

    /// True if both sides have sent all, and this side knows of all of it but whether its last word came.
    pub(crate) fn awaits_last_acknowledgment(&self) -> bool {
        self.peer_closed && self.phase == Phase::Closing
    }

    /// Ends the connection. The sends that can not come true any more come back, and then the flushes.
    pub(crate) fn abort(&mut self) -> (Vec<Exposed<P>>, Vec<u64>) {
        self.phase = Phase::Closed;
        self.words.clear();
        self.answers = 0;
        self.startable.clear();
        let mut sends: Vec<_> = self.exposures.drain().collect();
        let queued = self.queue.drain(..).filter(|pending| !pending.envelope.is_stand_in());
        sends.extend(queued.map(|Pending { op, envelope, payload, .. }| Exposed::new(op, envelope, payload)));
        (sends, self.flushes.drain())
    }

    /// Messages sent and received so far, modulo 2^32.
    pub(crate) fn sequences(&self) -> (u32, u32) {
        (self.next_out, self.next_in)
    }

    /// Session epoch of this side.
    pub(crate) fn epoch(&self) -> u32 {
        self.our_epoch
    }

    /// Credits to send, and payloads that the peer has to read.
    pub(crate) fn counts(&self) -> (u32, usize) {
        (self.credits.available(), self.exposures.len())
    }

    /// A sign of life that is none of the protocol's.
    pub(crate) fn heard(&mut self) {
        self.keepalive.heard();
    }

    /// The answer to a probe may take that much longer: it comes behind what is under way.
    pub(crate) fn allow(&mut self, grace: Duration) {
        self.keepalive.allow(grace);
    }

    pub(crate) fn tick(&mut self, now: Duration) -> Pulse {
        self.keepalive.tick(now)
    }

    /// Time since the last sign of life that [`tick`](Link::tick) saw.
    pub(crate) fn silence(&self, now: Duration) -> Duration {
        self.keepalive.silence(now)
    }

    /// The probe completed, or could not be posted.
    pub(crate) fn probe_done(&mut self, posted: bool) {
        if posted { self.keepalive.answered() } else { self.keepalive.postponed() }
    }

    /// True if no probe waits for its answer.
    pub(crate) fn is_answered(&self) -> bool {
        self.keepalive.is_answered()
    }

    /// When [`tick`](Link::tick) has something to do next.
    pub(crate) fn due(&self) -> Duration {
        self.keepalive.due()
    }

    #[inline(always)]
    fn may_send(&self, requests: u32) -> Result<(), Blocked> {
        if self.phase == Phase::Open
            && self.queue.is_empty()
            && self.credits.available() > 0
            && self.slots.available() >= requests
        {
            return Ok(());
        }
        if self.takes_messages() { Err(Blocked::Later) } else { Err(Blocked::Closed) }
    }

    #[inline(always)]
    fn frame(&mut self, kind: Kind, envelope: Envelope, length: u64, signal: bool) -> Frame {
        if kind.takes_credit() {
            self.credits.take();
        }
        let sequence = self.next_out;
        self.next_out = sequence.wrapping_add(kind.is_sequenced().into());
        let (epoch, credits, acknowledged) = (self.our_epoch, self.grants.tell(), self.next_in as u16);
        let header = Header { kind, envelope, epoch, sequence, credits, length, acknowledged };
        Frame { header, work: self.slots.take(signal) }
    }

    fn give_owed(&mut self) {
        let excess = self.offers.saturating_sub(self.offers_limit);
        while self.owed as usize > excess {
            self.owed -= 1;
            self.grants.give();
        }
    }

    fn answer(&mut self, word: Word) {
        self.offers = self.offers.saturating_sub(1);
        self.give_owed();
        if self.phase != Phase::Closed {
            self.words.push_back(word);
            self.answers += 1;
        }
    }

    fn offer_frame(&mut self, op: u64, envelope: Envelope, remote: RemoteSlice, payload: P) -> (Frame, Offer) {
        let id = self.exposures.insert(op, envelope, remote.len, payload);
        let frame = self.frame(Kind::ReadyToSend, envelope, remote.len, false);
        (frame, Offer { addr: remote.addr, rkey: Rkey(remote.rkey.0), id })
    }

    #[cold]
    fn strange(&self, header: &Header) -> Violation {
        if header.epoch != self.peer_epoch {
            return Violation::Epoch { expected: self.peer_epoch, got: header.epoch };
        }
        Violation::Sequence { expected: self.next_in, got: header.sequence }
    }
}
