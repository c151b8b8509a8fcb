//! Sends requests, and sends them again until they are answered. IBA 9.7.5, 9.7.6, 9.9.

use std::collections::VecDeque;
use std::time::Instant;

use super::credit::Credit;
use super::recovery::Recovery;
use super::request::Request;
use super::window::Window;
use super::{Failure, Outgoing, ReliableConfig};
use crate::counters::Counters;
use crate::host::{AccessError, Cause, Host};
use crate::types::{Msn, Psn, Qpn};
use crate::wire::{Action, Aeth, Bth, Extension, Meaning, Nak, Packet, Syndrome};
use crate::work::{Completion, MAX_MESSAGE, Op, Outcome, PostError, Send};

/// The sending half of a connection.
///
/// Requests lie in a queue, oldest first. Three marks move over their packets: `unacked`, the oldest packet that was not
/// answered; the cursor, the next one to send; and `frontier`, behind the last one that was ever sent. To send again is to
/// move the cursor back to `unacked`.
#[derive(Debug)]
pub(super) struct Requester<L> {
    requests: VecDeque<Request<L>>,
    /// Number of the oldest request; the others count on.
    first: u64,
    cursor: Cursor,
    unacked: Psn,
    frontier: Psn,
    next_psn: Psn,
    next_ssn: Msn,
    /// READs and atomics before the cursor.
    pending: u8,
    /// So many may be there: after a loss half as many as before, one where the peer says nothing, and one more with each that is
    /// answered. A peer may send all the answers that it was asked for before those that are asked for again.
    reads: u8,
    most_reads: u8,
    /// Packets that may be under way.
    window: Window,
    /// Packets since one asked for an acknowledgment.
    unasked: u32,
    credit: Credit,
    recovery: Recovery,
    /// The peer had no receive: nothing is sent before.
    rnr_until: Option<Instant>,
    /// An answer is due.
    deadline: Option<Instant>,
}

/// The next packet to send: a request's number, and the packet within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cursor {
    request: u64,
    packet: u32,
}

/// An answer came to a packet behind a READ or an atomic whose own answer did not come.
struct Missing;

impl<L: Copy> Requester<L> {
    pub(super) fn new(config: &ReliableConfig) -> Self {
        Requester {
            requests: VecDeque::with_capacity(config.send_depth as usize),
            first: 0,
            cursor: Cursor { request: 0, packet: 0 },
            unacked: config.send_psn,
            frontier: config.send_psn,
            next_psn: config.send_psn,
            next_ssn: Msn::new(1),
            pending: 0,
            reads: config.max_reads,
            most_reads: config.max_reads,
            window: Window::new(config.window),
            unasked: 0,
            credit: Credit::default(),
            recovery: Recovery::new(config),
            rnr_until: None,
            deadline: None,
        }
    }

    pub(super) fn post(&mut self, work: Send<L>, config: &ReliableConfig) -> Result<(), PostError> {
        let len = work.len;
        if self.requests.len() >= config.send_depth as usize {
            return Err(PostError::SendQueueFull);
        }
        if len > MAX_MESSAGE {
            return Err(PostError::TooLong { len, limit: MAX_MESSAGE });
        }
        let is_atomic = matches!(work.op, Op::CompareSwap { .. } | Op::FetchAdd { .. });
        if is_atomic && len != ATOMIC_LEN {
            return Err(PostError::AtomicLength { len });
        }
        if config.max_reads == 0 && (is_atomic || matches!(work.op, Op::Read(_))) {
            return Err(PostError::Unsupported);
        }
        let request = Request::new(work, self.next_psn, self.next_ssn, self.window.longest_read(), config);
        self.next_psn = self.next_psn.advance(request.packets);
        self.next_ssn = request.ssn.advance(1);
        self.requests.push_back(request);
        Ok(())
    }

    /// The next packet, if one may be sent now.
    pub(super) fn next(
        &mut self,
        now: Instant,
        config: &ReliableConfig,
        counters: &mut Counters,
    ) -> Option<Outgoing<L>> {
        if self.rnr_until.is_some_and(|until| now < until) {
            return None;
        }
        self.rnr_until = None;
        let Cursor { request: number, packet } = self.cursor;
        let request = self.requests.get((number - self.first) as usize)?;
        let psn = request.psn.advance(packet);
        if !self.may_send(request, psn) {
            return None;
        }
        let (opcode, extension, (offset, len)) = request.packet(packet, config)?;
        let span = request.span(packet);
        let after = psn.advance(span);
        let is_last = packet + span == request.packets;
        let window = self.window.size();
        let is_full = after.since(self.unacked) >= window;
        let is_limited = packet == 0 && self.credit.lacks(request);
        let asks = self.unasked + 1 >= (window / 4).clamp(1, ASK_EVERY);
        let ack_request = is_last || is_full || asks || is_limited;
        let bth = Bth {
            ack_request,
            solicited: is_last && request.work.solicited && request.takes_receive(),
            ..Bth::new(opcode, config.peer, psn)
        };
        let outgoing = Outgoing { headers: config.headers(bth, extension), payload: (request.work.local, offset), len };
        self.pending += u8::from(request.wants_answer());
        if packet == 0
            && let Some(request) = self.requests.get_mut((number - self.first) as usize)
        {
            request.is_limited = is_limited;
        }
        self.cursor = if is_last {
            Cursor { request: number + 1, packet: 0 }
        } else {
            Cursor { request: number, packet: packet + span }
        };
        self.unasked = if ack_request { 0 } else { self.unasked + 1 };
        if after.since(self.unacked) > self.frontier.since(self.unacked) {
            self.frontier = after;
        }
        if self.deadline.is_none() {
            self.deadline = config.ack_timeout.map(|timeout| now + timeout);
        }
        counters.sent_pkts += 1;
        Some(outgoing)
    }

    fn may_send(&self, request: &Request<L>, psn: Psn) -> bool {
        let under_way = psn.since(self.unacked);
        if request.wants_answer() {
            // The answer is under way too, and whoever sends it does not look whether there is room for it here.
            let span = request.span(psn.since(request.psn));
            // A part that is longer than half of the window, since it has shrunk, waits until half of it is free.
            let window = self.window.size();
            let most = window.max(window / 2 + span);
            if self.pending >= self.reads || under_way > 0 && under_way + span > most {
                return false;
            }
        } else if under_way >= self.window.size() {
            return false;
        }
        if request.work.fence && self.pending > 0 && psn == request.psn {
            return false;
        }
        if psn != request.psn {
            return !request.is_limited || self.unacked != request.psn;
        }
        // Without credit the first packet is sent nevertheless, once all else is answered: its answer tells of new credit.
        under_way == 0 || !self.credit.lacks(request)
    }

    /// Handles an answer of the peer.
    pub(super) fn handle<H: Host<Local = L>>(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        meaning: Meaning,
        config: &ReliableConfig,
        host: &mut H,
        counters: &mut Counters,
    ) -> Result<(), Failure> {
        let psn = packet.headers.bth.psn;
        if psn.since(self.unacked) >= self.frontier.since(self.unacked) {
            // Of a request that is done, or that was never sent.
            counters.unexpected_answer += 1;
            return Ok(());
        }
        let before = self.unacked;
        let result = match (meaning.action, packet.headers.extension) {
            (Action::Acknowledge, Extension::Acknowledge(aeth)) => {
                self.acknowledged(now, psn, aeth, config, host, counters)
            }
            (Action::AtomicAcknowledge, Extension::AtomicAcknowledge(aeth, original)) => {
                self.credit.take(aeth).and_then(|()| self.atomic_answered(psn, original, config, host, counters))
            }
            (Action::ReadResponse, extension) => {
                let fine = if let Extension::Acknowledge(aeth) = extension { self.credit.take(aeth) } else { Ok(()) };
                let part = (packet.payload, meaning.position.is_last());
                fine.and_then(|()| self.read_answered(psn, part, config, host, counters))
            }
            _ => Ok(()),
        }
        .map_err(|outcome| Failure { outcome, psn: Some(psn), cause: Cause::Request });
        if self.unacked != before {
            self.window.answered(self.unacked.since(before));
            self.progressed(now, config);
        } else if self.recovery.is_on() && meaning.action == Action::ReadResponse {
            // Of a READ behind the one that is asked for again: the peer comes to that one once it has sent all these.
            self.deadline = self.deadline.and(config.ack_timeout).map(|timeout| now + timeout);
        }
        result
    }

    fn acknowledged<H: Host<Local = L>>(
        &mut self,
        now: Instant,
        psn: Psn,
        aeth: Aeth,
        config: &ReliableConfig,
        host: &mut H,
        counters: &mut Counters,
    ) -> Result<(), Outcome> {
        match aeth.syndrome {
            Syndrome::Ack(_) => {
                self.credit.take(aeth)?;
                let all = self.advance(psn.advance(1), config.qpn, host);
                all.or_else(|Missing| self.missing(counters))
            }
            Syndrome::ReceiverNotReady(timer) => {
                counters.rcvd_rnr_err += 1;
                let before = self.unacked;
                if self.advance(psn, config.qpn, host).is_err() {
                    return self.missing(counters);
                }
                if self.unacked != before {
                    self.recovery.accepted();
                } else if self.rnr_until.is_some_and(|until| now < until) {
                    // The same once more.
                    return Ok(());
                }
                self.recovery.take_rnr(counters)?;
                self.recovery.answered();
                self.rewind();
                self.rnr_until = Some(now + timer.wait());
                Ok(())
            }
            Syndrome::Nak(Nak::Sequence) => {
                counters.packet_seq_err += 1;
                let _ = self.advance(psn, config.qpn, host);
                let is_again = psn == self.unacked && self.cursor > self.oldest();
                if self.recovery.may_be_told() && is_again {
                    // What is sent again was lost in turn. That may also be of the loss before, or of what the peer passed over
                    // then: it takes no retry.
                    self.window.lost();
                    self.rewind();
                    self.recovery.told();
                    return Ok(());
                }
                self.lost(counters)
            }
            Syndrome::Nak(nak) => {
                let _ = self.advance(psn, config.qpn, host);
                Err(match nak {
                    Nak::InvalidRequest => Outcome::RemoteInvalidRequest,
                    Nak::RemoteAccess => Outcome::RemoteAccess,
                    Nak::RemoteOperation => Outcome::RemoteOperation,
                    Nak::Sequence | Nak::InvalidRdRequest | Nak::Unknown(_) => Outcome::BadResponse,
                })
            }
            Syndrome::Unknown(_) => Err(Outcome::BadResponse),
        }
    }

    fn atomic_answered<H: Host<Local = L>>(
        &mut self,
        psn: Psn,
        original: u64,
        config: &ReliableConfig,
        host: &mut H,
        counters: &mut Counters,
    ) -> Result<(), Outcome> {
        if self.advance(psn, config.qpn, host).is_err() {
            return self.missing(counters);
        }
        let Some(front) = self.requests.front() else { return Ok(()) };
        if !matches!(front.work.op, Op::CompareSwap { .. } | Op::FetchAdd { .. }) {
            return Err(Outcome::BadResponse);
        }
        let there = host.scatter(front.work.local, 0, &original.to_ne_bytes());
        there.map_err(AccessError::outcome)?;
        self.complete(Outcome::Success, config.qpn, host);
        Ok(())
    }

    fn read_answered<H: Host<Local = L>>(
        &mut self,
        psn: Psn,
        (payload, is_last): (&[u8], bool),
        config: &ReliableConfig,
        host: &mut H,
        counters: &mut Counters,
    ) -> Result<(), Outcome> {
        if self.advance(psn, config.qpn, host).is_err() {
            return self.missing(counters);
        }
        let Some(front) = self.requests.front_mut() else { return Ok(()) };
        let Op::Read(_) = front.work.op else { return Err(Outcome::BadResponse) };
        let (offset, len) = front.part(front.answered, config.mtu);
        let ends = front.span(front.answered) == 1;
        if payload.len() != len as usize || is_last != ends {
            return Err(Outcome::BadResponse);
        }
        if len > 0 {
            host.scatter(front.work.local, offset, payload).map_err(AccessError::outcome)?;
        }
        front.answered += 1;
        let is_sent = self.cursor.request > self.first || self.cursor.packet >= front.answered;
        let is_whole = front.answered == front.packets;
        if ends {
            self.one_answered(is_sent);
        }
        if is_whole {
            self.complete(Outcome::Success, config.qpn, host);
        } else {
            self.move_to(psn.advance(1));
        }
        Ok(())
    }

    /// All packets before `to` are done.
    fn advance<H: Host<Local = L>>(&mut self, to: Psn, qpn: Qpn, host: &mut H) -> Result<(), Missing> {
        while let Some(front) = self.requests.front() {
            let left = to.since(self.unacked);
            if left == 0 {
                break;
            }
            // Of what wants an answer the one to `unacked` is next.
            if front.wants_answer() {
                return Err(Missing);
            }
            if front.psn.advance(front.packets).since(self.unacked) <= left {
                self.complete(Outcome::Success, qpn, host);
            } else {
                self.move_to(to);
            }
        }
        Ok(())
    }

    /// A READ, a part of one, or an atomic is answered; `is_sent`, if it was before the cursor.
    fn one_answered(&mut self, is_sent: bool) {
        self.reads = self.reads.saturating_add(1).min(self.most_reads);
        self.pending = self.pending.saturating_sub(u8::from(is_sent));
    }

    /// The oldest request is over.
    fn complete<H: Host<Local = L>>(&mut self, outcome: Outcome, qpn: Qpn, host: &mut H) {
        let Some(request) = self.requests.pop_front() else { return };
        if request.is_atomic() {
            self.one_answered(self.cursor.request > self.first);
        }
        self.first += 1;
        self.move_to(request.psn.advance(request.packets));
        host.complete(qpn, Completion::Sent { id: request.work.id, outcome, local: request.work.local });
    }

    /// All before `psn` is answered: moves the cursor on to there, if it was behind.
    fn move_to(&mut self, psn: Psn) {
        self.unacked = psn;
        self.recovery.end();
        self.cursor = self.cursor.max(self.oldest());
    }

    /// The oldest packet that was not answered.
    fn oldest(&self) -> Cursor {
        let packet = self.requests.front().map_or(0, |front| self.unacked.since(front.psn));
        Cursor { request: self.first, packet }
    }

    /// Begins to send again at the oldest packet that was not answered.
    fn rewind(&mut self) {
        self.cursor = self.oldest();
        self.pending = 0;
        self.unasked = 0;
        self.recovery.begin();
        // No answer is due before that packet has gone again, which waits for the network at most, or for a peer's receive.
        self.deadline = None;
    }

    /// What is to be answered waits for the network still.
    pub(super) fn still_waits(&mut self, now: Instant, config: &ReliableConfig) {
        if self.deadline.is_some() {
            self.deadline = config.ack_timeout.map(|timeout| now + timeout);
        }
    }

    /// Sends again what may never have gone. Which packets that are is not looked for: all that are not answered.
    pub(super) fn never_went(&mut self) {
        if self.frontier != self.unacked {
            self.reads = self.most_reads.min(1);
            self.rewind();
        }
    }

    /// The answer to a READ or an atomic was lost.
    fn missing(&mut self, counters: &mut Counters) -> Result<(), Outcome> {
        counters.implied_nak_seq_err += u64::from(!self.recovery.is_on());
        self.lost(counters)
    }

    /// The peer's answers tell that something was lost: sends again, unless that has begun.
    fn lost(&mut self, counters: &mut Counters) -> Result<(), Outcome> {
        if self.recovery.is_on() {
            return Ok(());
        }
        self.window.lost();
        // The answers to READs come as fast as the peer can send, and may be what there was no room for.
        self.reads = (self.reads / 2).max(self.most_reads.min(1));
        self.retry(counters)?;
        self.recovery.told();
        Ok(())
    }

    /// Sends again, unless that was done too often.
    fn retry(&mut self, counters: &mut Counters) -> Result<(), Outcome> {
        self.recovery.take(counters)?;
        self.rewind();
        Ok(())
    }

    fn progressed(&mut self, now: Instant, config: &ReliableConfig) {
        if self.rnr_until.is_none() {
            self.recovery.accepted();
            let waits = self.cursor > self.oldest();
            self.deadline = config.ack_timeout.filter(|_| waits).map(|timeout| now + timeout);
        }
    }

    pub(super) fn timeout(&self) -> Option<Instant> {
        [self.rnr_until, self.deadline].into_iter().flatten().min()
    }

    pub(super) fn await_answers_until(&mut self, until: Instant) {
        self.deadline = self.deadline.map(|deadline| deadline.max(until));
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, counters: &mut Counters) -> Result<(), Failure> {
        if self.rnr_until.is_some_and(|until| until <= now) {
            self.rnr_until = None;
        }
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            counters.local_ack_timeout_err += 1;
            self.deadline = None;
            if self.frontier != self.unacked {
                self.window.unanswered();
                self.reads = self.most_reads.min(1);
                let again = self.retry(counters);
                // The first packet that goes again asks whether the peer is there.
                self.unasked = ASK_EVERY;
                return again.map_err(|outcome| Failure { outcome, psn: None, cause: Cause::Request });
            }
        }
        Ok(())
    }

    /// The request to blame ends so, the one of `psn` or else the oldest; all others are flushed.
    pub(super) fn fail<H: Host<Local = L>>(&mut self, failure: Failure, qpn: Qpn, host: &mut H) {
        let blamed = |request: &Request<L>| failure.psn.is_none_or(|psn| psn.since(request.psn) < request.packets);
        let mut outcome = failure.outcome;
        while let Some(front) = self.requests.front() {
            let mine = if blamed(front) { std::mem::replace(&mut outcome, Outcome::Flushed) } else { Outcome::Flushed };
            self.complete(mine, qpn, host);
        }
        self.frontier = self.unacked;
        (self.deadline, self.rnr_until) = (None, None);
    }
}

/// Packets after which an acknowledgment is asked for at most, in a message of more; a quarter of the window, if that is
/// fewer, so that it never comes to a stop. Half of the window that rdma_rxe has, which asks as often.
const ASK_EVERY: u32 = 64;
const ATOMIC_LEN: u32 = 8;
