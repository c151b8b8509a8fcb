//! Sends requests, and sends them again until they are answered. IBA 9.7.5, 9.7.6, 9.9.

use std::collections::VecDeque;
use std::time::Instant;

use super::request::Request;
use super::{Failure, Outgoing, ReliableConfig};
use crate::counters::Counters;
use crate::host::Host;
use crate::types::{Psn, Qpn};
use crate::wire::{Action, Aeth, Bth, Extension, Meaning, Nak, Packet, Syndrome};
use crate::work::{Completion, Op, Outcome, Send};

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
    next_ssn: u32,
    /// READs and atomics before the cursor.
    pending: u8,
    /// Packets since one asked for an acknowledgment.
    unasked: u32,
    /// Number of the last message that the peer has a receive for, if it counts them.
    credit: Option<u32>,
    retries: u8,
    rnr_retries: u8,
    /// The peer had no receive: nothing is sent before.
    rnr_until: Option<Instant>,
    /// An answer is due.
    deadline: Option<Instant>,
}

/// The next packet to send: a request's number, and the packet within it.
#[derive(Clone, Copy, Debug)]
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
            next_ssn: 1,
            pending: 0,
            unasked: 0,
            credit: None,
            retries: config.retry_count,
            rnr_retries: config.rnr_retry,
            rnr_until: None,
            deadline: None,
        }
    }

    pub(super) fn post(&mut self, work: Send<L>, config: &ReliableConfig) -> Result<(), Send<L>> {
        if self.requests.len() >= config.send_depth as usize {
            return Err(work);
        }
        let request = Request::new(work, self.next_psn, self.next_ssn, config.mtu);
        self.next_psn = self.next_psn.advance(request.packets);
        self.next_ssn = (self.next_ssn + 1) & SSN_MASK;
        self.requests.push_back(request);
        Ok(())
    }

    /// The next packet, if one may be sent now.
    pub(super) fn next(
        &mut self,
        now: Instant,
        config: &ReliableConfig,
        counters: &mut Counters,
    ) -> Option<Outgoing<(L, u32)>> {
        if self.rnr_until.is_some_and(|until| now < until) {
            return None;
        }
        self.rnr_until = None;
        let Cursor { request: number, packet } = self.cursor;
        let request = self.requests.get((number - self.first) as usize)?;
        let psn = request.psn.advance(packet);
        if !self.may_send(request, psn, config) {
            return None;
        }
        let (opcode, extension, (offset, len)) = request.packet(packet, config.mtu);
        let span = if let Op::Read(_) = request.work.op { request.packets - packet } else { 1 };
        let after = psn.advance(span);
        let is_last = packet + span == request.packets;
        let is_full = after.since(self.unacked) >= config.window;
        let ack_request = is_last || is_full || self.unasked + 1 >= ASK_EVERY;
        let bth = Bth {
            ack_request,
            solicited: is_last && request.work.solicited && request.takes_receive(),
            ..Bth::new(opcode, config.peer, psn)
        };
        let outgoing = Outgoing { headers: config.headers(bth, extension), payload: (request.work.local, offset), len };
        self.pending += u8::from(request.wants_answer());
        self.cursor = if is_last {
            Cursor { request: number + 1, packet: 0 }
        } else {
            Cursor { request: number, packet: packet + 1 }
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

    fn may_send(&self, request: &Request<L>, psn: Psn, config: &ReliableConfig) -> bool {
        let under_way = psn.since(self.unacked);
        if request.wants_answer() {
            if self.pending >= config.max_reads || under_way >= SPAN {
                return false;
            }
        } else if under_way >= config.window {
            return false;
        }
        if request.work.fence && self.pending > 0 {
            return false;
        }
        // Without credit one message is sent nevertheless, once all else is answered: its answer tells of new ones.
        let beyond = |limit: u32| request.ssn.wrapping_sub(limit + 1) & SSN_MASK <= SSN_MASK / 2;
        !(request.takes_receive() && psn == request.psn && under_way > 0 && self.credit.is_some_and(beyond))
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
                self.take_credit(aeth);
                self.atomic_answered(psn, original, config, host)
            }
            (Action::ReadResponse, extension) => {
                if let Extension::Acknowledge(aeth) = extension {
                    self.take_credit(aeth);
                }
                self.read_answered(psn, packet.payload, meaning.position.is_last(), config, host)
            }
            _ => Ok(()),
        };
        if self.unacked != before {
            self.progressed(now, config);
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
    ) -> Result<(), Failure> {
        let refused = |outcome| Err(Failure { outcome, psn: Some(psn) });
        match aeth.syndrome {
            Syndrome::Ack(_) => {
                self.take_credit(aeth);
                let all = self.advance(psn.advance(1), config.qpn, host);
                all.or_else(|Missing| self.retry(config, counters))
            }
            Syndrome::ReceiverNotReady(timer) => {
                counters.rcvd_rnr_err += 1;
                let all = self.advance(psn, config.qpn, host);
                if self.rnr_retries == 0 {
                    counters.rnr_nak_retry_err += 1;
                    return refused(Outcome::RnrRetriesExceeded);
                }
                if config.rnr_retry < WITHOUT_END {
                    self.rnr_retries -= 1;
                }
                self.rewind();
                self.rnr_until = Some(now + timer.wait());
                self.deadline = None;
                all.or_else(|Missing| self.retry(config, counters))
            }
            Syndrome::Nak(Nak::Sequence) => {
                counters.packet_seq_err += 1;
                let _ = self.advance(psn, config.qpn, host);
                self.retry(config, counters)
            }
            Syndrome::Nak(nak) => {
                let _ = self.advance(psn, config.qpn, host);
                refused(match nak {
                    Nak::InvalidRequest => Outcome::RemoteInvalidRequest,
                    Nak::RemoteAccess => Outcome::RemoteAccess,
                    Nak::RemoteOperation => Outcome::RemoteOperation,
                    Nak::Sequence | Nak::InvalidRdRequest | Nak::Unknown(_) => Outcome::BadResponse,
                })
            }
            Syndrome::Unknown(_) => refused(Outcome::BadResponse),
        }
    }

    fn atomic_answered<H: Host<Local = L>>(
        &mut self,
        psn: Psn,
        original: u64,
        config: &ReliableConfig,
        host: &mut H,
    ) -> Result<(), Failure> {
        if self.advance(psn, config.qpn, host).is_err() {
            self.rewind();
            return Ok(());
        }
        let Some(front) = self.requests.front() else { return Ok(()) };
        if !matches!(front.work.op, Op::CompareSwap { .. } | Op::FetchAdd { .. }) || front.work.len != ATOMIC_LEN {
            return Err(Failure { outcome: Outcome::BadResponse, psn: Some(psn) });
        }
        host.scatter(front.work.local, 0, &original.to_ne_bytes());
        self.complete(Outcome::Success, config.qpn, host);
        Ok(())
    }

    fn read_answered<H: Host<Local = L>>(
        &mut self,
        psn: Psn,
        payload: &[u8],
        is_last: bool,
        config: &ReliableConfig,
        host: &mut H,
    ) -> Result<(), Failure> {
        if self.advance(psn, config.qpn, host).is_err() {
            self.rewind();
            return Ok(());
        }
        let bad = Err(Failure { outcome: Outcome::BadResponse, psn: Some(psn) });
        let Some(front) = self.requests.front_mut() else { return Ok(()) };
        let Op::Read(_) = front.work.op else { return bad };
        if psn != front.psn.advance(front.answered) {
            // One before it is missing.
            self.rewind();
            return Ok(());
        }
        let (offset, len) = front.part(front.answered, config.mtu);
        if payload.len() != len as usize || is_last != (front.answered + 1 == front.packets) {
            return bad;
        }
        let local = front.work.local;
        front.answered += 1;
        let done = front.answered == front.packets;
        if len > 0 {
            host.scatter(local, offset, payload);
        }
        if done {
            self.complete(Outcome::Success, config.qpn, host);
        } else {
            self.unacked = psn.advance(1);
            self.catch_up();
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
            if front.wants_answer() {
                return Err(Missing);
            }
            if front.psn.advance(front.packets).since(self.unacked) <= left {
                self.complete(Outcome::Success, qpn, host);
            } else {
                self.unacked = to;
                self.catch_up();
            }
        }
        Ok(())
    }

    /// The oldest request is over.
    fn complete<H: Host<Local = L>>(&mut self, outcome: Outcome, qpn: Qpn, host: &mut H) {
        let Some(request) = self.requests.pop_front() else { return };
        if request.wants_answer() && self.cursor.request > self.first {
            self.pending = self.pending.saturating_sub(1);
        }
        self.first += 1;
        self.unacked = request.psn.advance(request.packets);
        if self.frontier.relative_to(self.unacked) < 0 {
            self.frontier = self.unacked;
        }
        self.catch_up();
        host.complete(qpn, Completion::Sent { id: request.work.id, outcome, local: request.work.local });
    }

    /// Moves the cursor on to what is not answered, if it was behind.
    fn catch_up(&mut self) {
        let packet = self.requests.front().map_or(0, |front| self.unacked.since(front.psn));
        if self.cursor.request < self.first || (self.cursor.request == self.first && self.cursor.packet < packet) {
            self.cursor = Cursor { request: self.first, packet };
        }
    }

    /// Begins to send again at the oldest packet that was not answered.
    fn rewind(&mut self) {
        let packet = self.requests.front().map_or(0, |front| self.unacked.since(front.psn));
        self.cursor = Cursor { request: self.first, packet };
        self.pending = 0;
        self.unasked = 0;
    }

    /// Sends again, unless that was done too often.
    fn retry(&mut self, config: &ReliableConfig, counters: &mut Counters) -> Result<(), Failure> {
        if self.retries == 0 {
            counters.retry_exceeded_err += 1;
            return Err(Failure { outcome: Outcome::RetriesExceeded, psn: None });
        }
        if config.retry_count < WITHOUT_END {
            self.retries -= 1;
        }
        self.rewind();
        Ok(())
    }

    fn progressed(&mut self, now: Instant, config: &ReliableConfig) {
        self.retries = config.retry_count;
        if self.rnr_until.is_none() {
            self.rnr_retries = config.rnr_retry;
            let waits = self.frontier != self.unacked;
            self.deadline = config.ack_timeout.filter(|_| waits).map(|timeout| now + timeout);
        }
    }

    fn take_credit(&mut self, aeth: Aeth) {
        if let Syndrome::Ack(credits) = aeth.syndrome {
            self.credit = credits.count().map(|count| (aeth.msn + count) & SSN_MASK);
        }
    }

    pub(super) fn timeout(&self) -> Option<Instant> {
        [self.rnr_until, self.deadline].into_iter().flatten().min()
    }

    pub(super) fn handle_timeout(
        &mut self,
        now: Instant,
        config: &ReliableConfig,
        counters: &mut Counters,
    ) -> Result<(), Failure> {
        if self.rnr_until.is_some_and(|until| until <= now) {
            self.rnr_until = None;
        }
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            counters.local_ack_timeout_err += 1;
            self.deadline = None;
            if self.frontier != self.unacked {
                self.retry(config, counters)?;
                self.deadline = config.ack_timeout.map(|timeout| now + timeout);
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
        (self.deadline, self.rnr_until) = (None, None);
    }
}

/// A retry count that does not end. IBA 9.7.5.2.8 has it for receives; Linux' rdma_rxe for all.
const WITHOUT_END: u8 = 7;
/// Packets after which an acknowledgment is asked for, in a message of more; half of the window that rdma_rxe has.
const ASK_EVERY: u32 = 64;
/// Sequence numbers under way at most; with more the two halves of the circle could not be told apart.
const SPAN: u32 = 1 << 22;
const SSN_MASK: u32 = 0x00ff_ffff;
const ATOMIC_LEN: u32 = 8;
