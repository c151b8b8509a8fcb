//! One side of one connection: what may be sent, what an arriving message means, and how the connection ends.

mod receive;
mod recovery;
mod send;
mod words;

use std::collections::VecDeque;
use std::time::Duration;

use super::credits::{Credits, Grants};
use super::exposed::{Exposed, Exposures};
use super::flush::Flushes;
use super::inbox::EntryKey;
use super::keepalive::{Keepalive, Pulse};
use super::slots::{Work, WorkSlots};
use super::step::{LinkConfig, PeerTerms, Pending};
use super::violation::Violation;
use recovery::Recovery;
use words::Words;

/// The protocol of one connection.
///
/// `P` is a payload on its way out.
#[derive(Debug)]
pub(crate) struct Link<P> {
    phase: Phase,
    peer_closed: bool,
    /// The CLOSE of this side.
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
    /// Parts of payloads that the peer wants. They go before messages, which may wait for what is to be read before them.
    parts: VecDeque<Pending<P>>,
    /// A part that took no credit is not read yet.
    uncredited_part: bool,
    /// The offer of a part of the peer's that took none, until the answer goes out.
    peers_uncredited_part: Option<u32>,
    /// The running number of a want that took none, until the peer is known to have it.
    uncredited_want: Option<u32>,
    words: Words,
    /// Payloads that can be read, in the order in which they were offered.
    startable: VecDeque<EntryKey>,
    exposures: Exposures<P>,
    flushes: Flushes,
    keepalive: Keepalive,
    /// For going on over another queue pair, if it can.
    recovery: Option<Box<Recovery>>,
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
    /// The queue pair failed: nothing goes out.
    Suspended,
    /// What the peer may not have goes out again, over another queue pair.
    Repeating,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CloseSent {
    No,
    /// By that request, as that message.
    Posted {
        number: u32,
        sequence: u32,
    },
    Done,
}

/// Receive slots of a connection beyond those that credits count: two for credit messages (see `Grants::is_due`),
/// one for CLOSE, and one each for a part, a finished and a want that take no credit.
pub(crate) const RESERVED_SLOTS: u32 = 6;

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
            parts: VecDeque::new(),
            uncredited_part: false,
            peers_uncredited_part: None,
            uncredited_want: None,
            words: Words::default(),
            startable: VecDeque::new(),
            exposures: Exposures::new(),
            flushes: Flushes::new(),
            keepalive: Keepalive::new(config.keepalive, config.detection),
            recovery: None,
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

    /// True if this side or the peer closes: nobody posts receives for what comes.
    pub(crate) fn is_closing(&self) -> bool {
        !self.takes_messages()
    }

    /// True if messages are taken, to go out at once or later.
    pub(crate) fn takes_messages(&self) -> bool {
        matches!(self.flow(), Phase::Opening { closing: false } | Phase::Open)
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
        if self.is_interrupted() {
            return None;
        }
        let queued = self.queue.front().map(|pending| pending.op);
        let oldest = [queued, self.exposures.oldest(), one_sided].into_iter().flatten().min();
        self.flushes.next(oldest, &self.slots)
    }

    /// True if a flush waits for an acknowledgment that nothing asks for.
    pub(crate) fn flush_needs_probe(&self) -> bool {
        self.flushes.mark().is_some_and(|mark| !self.slots.will_retire(mark))
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
        !self.is_interrupted() && self.repeated().is_none() && self.slots.has_retired(count)
    }

    /// True if the acknowledgment of the first `count` requests will be seen without posting more.
    pub(crate) fn will_acknowledge(&self, count: u32) -> bool {
        self.slots.will_retire(count) && self.repeated().is_none_or(|count| self.slots.will_retire(count))
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
        if let (Some(recovery), Some(count)) = (&mut self.recovery, retired) {
            recovery.retire(count);
        }
        if let CloseSent::Posted { number, .. } = self.close
            && retired == Some(number)
        {
            self.close = CloseSent::Done;
        }
    }

    /// The application closes: what was accepted still goes out.
    pub(crate) fn close(&mut self) {
        match self.phase {
            Phase::Opening { .. } => self.phase = Phase::Opening { closing: true },
            _ => self.finish_sending(),
        }
    }

    /// No more messages are taken.
    fn finish_sending(&mut self) {
        if self.flow() == Phase::Open {
            self.set_flow(Phase::Flushing);
        }
    }

    /// True once both sides have sent all and know it.
    #[inline]
    pub(crate) fn is_finished(&self) -> bool {
        self.awaits_last_acknowledgment() && self.close == CloseSent::Done
    }

    /// True if both sides have sent all, and this side knows of all of it but whether its last word came.
    pub(crate) fn awaits_last_acknowledgment(&self) -> bool {
        self.peer_closed && self.flow() == Phase::Closing
    }

    /// Ends the connection. The sends that can not come true any more come back, and then the flushes.
    pub(crate) fn abort(&mut self) -> (Vec<Exposed<P>>, Vec<u64>) {
        self.phase = Phase::Closed;
        self.words.clear();
        self.startable.clear();
        let mut sends: Vec<_> = self.exposures.drain().collect();
        let queued = self.parts.drain(..).chain(self.queue.drain(..));
        let queued = queued.filter(|pending| !pending.envelope.is_stand_in());
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
        // Before counts wrap.
        self.peer_repeats();
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
}
