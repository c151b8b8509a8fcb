//! One side of one connection: what may be sent, what an arriving message means, and how the connection ends.

use std::collections::VecDeque;
use std::time::Duration;

use qpair_verbs::{RemoteSlice, Rkey};

use super::credits::{Credits, Grants};
use super::exposed::Exposures;
use super::inbox::{Arrival, Held, Inbox, Offered, Placed, Posted, Pulled, Start};
use super::keepalive::{Keepalive, Pulse};
use super::slots::{Work, WorkSlots};
use super::step::{Blocked, Frame, LinkConfig, PeerTerms, Pending, Step};
use super::violation::Violation;
use super::wire::{Header, Kind, Offer};

/// The protocol of one connection.
///
/// `P` is a payload on its way out, `M` memory of a posted receive, `B` the body of a message that must wait.
#[derive(Debug)]
pub(crate) struct Link<P, M, B> {
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
    offers: usize,
    slots: WorkSlots,
    queue: VecDeque<Pending<P>>,
    finished: VecDeque<(u32, u64)>,
    exposures: Exposures<P>,
    inbox: Inbox<M, B>,
    keepalive: Keepalive,
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

impl<P, M, B> Link<P, M, B> {
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
            offers: config.offers,
            slots: WorkSlots::new(config.depth),
            queue: VecDeque::new(),
            finished: VecDeque::new(),
            exposures: Exposures::new(),
            inbox: Inbox::new(config.unmatched),
            keepalive: Keepalive::new(config.keepalive, config.detection),
        }
    }

    /// Both sides are connected.
    pub(crate) fn open(&mut self, terms: &PeerTerms, now: Duration) -> Result<(), Violation> {
        let Phase::Opening { closing } = self.phase else { return Ok(()) };
        self.peer_epoch = terms.epoch;
        self.credits.update(terms.credits)?;
        self.keepalive.start(now);
        self.phase = if closing { Phase::Flushing } else { Phase::Open };
        Ok(())
    }

    /// A header for an eager message that goes out at once.
    #[inline(always)]
    pub(crate) fn eager(&mut self, tag: u64, len: u64) -> Result<Frame, Blocked> {
        self.may_send()?;
        Ok(self.frame(Kind::Eager, tag, len, false))
    }

    /// True if messages are taken, to go out at once or later.
    pub(crate) fn takes_messages(&self) -> bool {
        matches!(self.phase, Phase::Opening { closing: false } | Phase::Open)
    }

    /// A ready-to-send that goes out at once; else the payload comes back, to be queued. Messages are taken, as the caller
    /// has seen.
    pub(crate) fn offer(&mut self, op: u64, tag: u64, remote: RemoteSlice, payload: P) -> Result<(Frame, Offer), P> {
        debug_assert!(self.takes_messages());
        match self.may_send() {
            Ok(()) if !self.exposures.is_full() => Ok(self.offer_frame(op, tag, remote, payload)),
            _ => Err(payload),
        }
    }

    /// Queues a message; [`next_step`](Link::next_step) gives it when it may go out.
    pub(crate) fn enqueue(&mut self, pending: Pending<P>) {
        self.queue.push_back(pending);
    }

    /// Messages that wait for credits.
    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// True if [`next_step`](Link::next_step) may give something.
    #[inline(always)]
    pub(crate) fn has_steps(&self) -> bool {
        !self.queue.is_empty()
            || !self.finished.is_empty()
            || self.inbox.is_startable()
            || self.phase == Phase::Flushing
    }

    /// What to post next, if anything can be.
    pub(crate) fn next_step(&mut self) -> Option<Step<P, M>> {
        if matches!(self.phase, Phase::Opening { .. } | Phase::Closed) || self.slots.available() == 0 {
            return None;
        }
        if self.credits.available() > 0 {
            if let Some((id, len)) = self.finished.pop_front() {
                return Some(Step::Control(self.frame(Kind::Finished, u64::from(id), len, false)));
            }
            let offers = self.queue.front().is_some_and(|next| next.remote.is_some());
            if !(offers && self.exposures.is_full())
                && let Some(next) = self.queue.pop_front()
            {
                return Some(match next.remote {
                    None => {
                        let frame = self.frame(Kind::Eager, next.tag, next.len, false);
                        Step::Eager { frame, op: next.op, payload: next.payload }
                    }
                    Some(remote) => {
                        let (frame, offer) = self.offer_frame(next.op, next.tag, remote, next.payload);
                        Step::Offer { frame, offer }
                    }
                });
            }
        }
        if let Some(start) = self.inbox.start() {
            return Some(Step::Pull(start));
        }
        if self.phase == Phase::Flushing && self.queue.is_empty() && self.exposures.is_empty() {
            let frame = self.frame(Kind::Close, 0, 0, true);
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
        Some(self.frame(Kind::Credit, 0, 0, false))
    }

    /// Checks an arriving header against the session and takes note of its credits.
    #[inline(always)]
    pub(crate) fn accept(&mut self, header: &Header) -> Result<(), Violation> {
        if header.epoch != self.peer_epoch || header.sequence != self.next_in {
            return Err(self.strange(header));
        }
        self.next_in = self.next_in.wrapping_add(1);
        self.credits.update(header.credits)?;
        self.keepalive.heard();
        if header.kind.takes_credit() {
            self.grants.receive()?;
        }
        if self.peer_closed && !matches!(header.kind, Kind::Finished | Kind::Credit) {
            return Err(Violation::AfterClose);
        }
        Ok(())
    }

    /// True if an eager message simply goes to the application, and nothing is to be posted after it.
    #[inline(always)]
    pub(crate) fn is_plain(&self) -> bool {
        self.inbox.is_empty() && !self.has_steps()
    }

    /// Matches an eager message; `body` makes what is kept of it if it must wait.
    #[inline]
    pub(crate) fn on_eager(&mut self, header: &Header, body: impl FnOnce() -> B) -> Arrival<M> {
        self.inbox.eager(header.tag, header.length, body)
    }

    /// Matches a ready-to-send. Its slot is given back here, at once or when fewer wait: a peer can not fill memory with
    /// offers.
    pub(crate) fn on_offer(&mut self, header: &Header, offer: Offer) -> Offered<M> {
        let outcome = self.inbox.offer(header.tag, header.length, offer);
        self.owed += 1;
        self.give_owed();
        outcome
    }

    /// The peer has read a payload, which comes back.
    pub(crate) fn on_finished(&mut self, header: &Header) -> Result<(u64, P), Violation> {
        self.exposures.finish(header.tag, header.length)
    }

    /// The peer sends nothing more.
    pub(crate) fn on_close(&mut self) {
        self.peer_closed = true;
        if self.phase == Phase::Open {
            self.phase = Phase::Flushing;
        }
    }

    /// Posts a receive.
    pub(crate) fn post(&mut self, posted: Posted<M>) -> Placed<M> {
        self.inbox.post(posted)
    }

    /// A payload can not be read into its receive, which fails and is given, with the offer's tag and length if it waits
    /// for another; `None` if it had none.
    pub(crate) fn unmatch(&mut self, key: u32, offer: Offer) -> Option<(u64, Option<(u64, u64)>)> {
        self.inbox.unmatch(key, offer)
    }

    /// A payload will not be read, since the connection broke. Gives the receive.
    pub(crate) fn pull_failed(&mut self, key: u32) -> Option<u64> {
        self.inbox.pulled(key)?.op
    }

    /// A payload was read; the peer is told with the next steps.
    pub(crate) fn pulled(&mut self, key: u32) -> Option<Pulled> {
        let pulled = self.inbox.pulled(key)?;
        self.give_owed();
        if self.phase != Phase::Closed {
            self.finished.push_back((pulled.id, pulled.len));
        }
        Some(pulled)
    }

    /// A payload can not be read for want of memory.
    pub(crate) fn stall(&mut self, start: Start<M>) {
        self.inbox.stall(start);
    }

    /// There is memory again.
    pub(crate) fn resume(&mut self) -> bool {
        self.inbox.resume()
    }

    /// The next message that waited and is to be delivered now.
    #[inline]
    pub(crate) fn next_held(&mut self) -> Option<Held<M, B>> {
        self.inbox.next_held()
    }

    /// A receive slot is free again.
    #[inline]
    pub(crate) fn give_slot(&mut self) {
        self.grants.give();
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

    /// The device did not take the request of the slot that was taken last.
    pub(crate) fn untake_slot(&mut self, work: Work) {
        self.slots.untake(work);
    }

    /// A signaled request completed.
    #[inline]
    pub(crate) fn retire(&mut self, number: u32) {
        self.slots.retire(number);
        self.keepalive.heard();
        if self.close == CloseSent::Posted(number) {
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
        self.inbox.release_offers();
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

    /// Ends the connection. What can not come true any more comes back: sends, then receives.
    pub(crate) fn abort(&mut self) -> (Vec<(u64, P)>, Vec<Posted<M>>) {
        self.phase = Phase::Closed;
        self.finished.clear();
        let mut sends: Vec<_> = self.exposures.drain().collect();
        sends.extend(self.queue.drain(..).map(|pending| (pending.op, pending.payload)));
        (sends, self.inbox.drain())
    }

    /// Session epoch of this side.
    pub(crate) fn epoch(&self) -> u32 {
        self.our_epoch
    }

    /// Credits to send, rendezvous that the peer has to read, posted receives, and arrivals that wait.
    pub(crate) fn counts(&self) -> (u32, usize, usize, usize) {
        let (posted, waiting) = self.inbox.counts();
        (self.credits.available(), self.exposures.len(), posted, waiting)
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
    fn may_send(&self) -> Result<(), Blocked> {
        if self.phase == Phase::Open
            && self.queue.is_empty()
            && self.credits.available() > 0
            && self.slots.available() > 0
        {
            return Ok(());
        }
        if self.takes_messages() { Err(Blocked::Later) } else { Err(Blocked::Closed) }
    }

    #[inline(always)]
    fn frame(&mut self, kind: Kind, tag: u64, length: u64, signal: bool) -> Frame {
        if kind.takes_credit() {
            self.credits.take();
        }
        let sequence = self.next_out;
        self.next_out = sequence.wrapping_add(1);
        let header = Header { kind, epoch: self.our_epoch, sequence, credits: self.grants.tell(), tag, length };
        Frame { header, work: self.slots.take(signal) }
    }

    fn give_owed(&mut self) {
        let excess = self.inbox.offers().saturating_sub(self.offers);
        while self.owed as usize > excess {
            self.owed -= 1;
            self.grants.give();
        }
    }

    fn offer_frame(&mut self, op: u64, tag: u64, remote: RemoteSlice, payload: P) -> (Frame, Offer) {
        let id = self.exposures.insert(op, remote.len, payload);
        let frame = self.frame(Kind::ReadyToSend, tag, remote.len, false);
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
