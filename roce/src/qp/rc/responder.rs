//! Does what the peer asks for, in order and once, and answers. IBA 9.7.5.1, 9.7.8.

use std::time::{Duration, Instant};

use super::answers::{Answer, Answers, Kind, Reading};
use super::patience::Patience;
use super::replay::{Answered, Done, Replay};
use super::{Failure, Outgoing, ReliableConfig};
use crate::counters::Counters;
use crate::host::{AccessError, Cause, Change, Host, Right};
use crate::qp::incoming::{Assembly, Piece, Refusal};
use crate::types::{Msn, Psn, Qpn};
use crate::wire::{Action, Aeth, Bth, Extension, Meaning, Nak, Opcode, Packet, Position, Syndrome};
use crate::work::{MAX_MESSAGE, Outcome, Remote};

/// The answering half of a connection.
#[derive(Debug)]
pub(super) struct Responder<L> {
    /// Sequence number of the next request.
    expected: Psn,
    /// Messages done.
    msn: Msn,
    assembly: Assembly<L>,
    /// What is behind the expected request is passed over: the peer was told to send again from there.
    skips: bool,
    /// The furthest request that was passed over, while it is still to come again.
    passed: Option<Psn>,
    answers: Answers,
    patience: Patience,
    replay: Replay,
    /// The READ whose answer the device was told of last, which it may read ahead.
    announced: Option<Psn>,
    /// Memory that was being read could not be read any more.
    broken: bool,
}

impl<L: Copy> Responder<L> {
    pub(super) fn new(config: &ReliableConfig) -> Self {
        Responder {
            expected: config.receive_psn,
            msn: Msn::new(0),
            assembly: Assembly::new(),
            skips: false,
            passed: None,
            answers: Answers::new(config.reads_answered),
            patience: Patience::default(),
            replay: Replay::new(config.reads_answered),
            announced: None,
            broken: false,
        }
    }

    /// True once a request was taken, though not many million ones.
    pub(super) fn has_heard(&self, config: &ReliableConfig) -> bool {
        self.expected != config.receive_psn
    }

    /// Handles a request of the peer.
    pub(super) fn handle<H: Host<Local = L>>(
        &mut self,
        packet: &Packet<'_>,
        meaning: Meaning,
        config: &ReliableConfig,
        host: &mut H,
        counters: &mut Counters,
    ) -> Result<(), Failure> {
        let psn = packet.headers.bth.psn;
        match psn.relative_to(self.expected) {
            ..0 => {
                counters.duplicate_request += 1;
                self.again(packet, meaning, config);
                Ok(())
            }
            0 => {
                self.skips = false;
                let taken = self.take(packet, meaning, config, host);
                self.passed.take_if(|passed| passed.relative_to(self.expected) < 0);
                taken.or_else(|refusal| self.refuse(psn, refusal, config, counters))
            }
            1.. => {
                counters.out_of_sequence += 1;
                if self.passed.is_none_or(|passed| psn.relative_to(passed) > 0) {
                    self.passed = Some(psn);
                }
                if !self.skips {
                    self.ask_again();
                }
                Ok(())
            }
        }
    }

    /// Has the peer send again from the expected request on.
    fn ask_again(&mut self) {
        self.skips = true;
        self.answers.refused(self.expected, self.msn, Syndrome::Nak(Nak::Sequence));
    }

    /// Owes an acknowledgment of all up to `last`.
    fn acknowledge(&mut self, last: Psn) {
        let was_to_retry = self.answers.done(last, self.msn);
        // The peer was not told to send again, and hears that all is done: what was passed over is lost all the same.
        if was_to_retry && self.passed.is_some_and(|passed| passed.relative_to(self.expected) >= 0) {
            self.ask_again();
        }
    }

    /// Owes an acknowledgment once more of a request that came twice, and of those behind it up to a READ or an atomic: the
    /// peer takes that for answered by an acknowledgment, and misses its bytes. Linux' rdma_rxe does, where it is of one packet.
    fn acknowledge_again(&mut self, psn: Psn) {
        let end = self.replay.first_between(psn, self.expected).unwrap_or(self.expected);
        self.acknowledge(end.back(1));
    }

    /// Does the next request.
    fn take<H: Host<Local = L>>(
        &mut self,
        packet: &Packet<'_>,
        meaning: Meaning,
        config: &ReliableConfig,
        host: &mut H,
    ) -> Result<(), Refusal> {
        let (bth, extension) = (packet.headers.bth, packet.headers.extension);
        match (meaning.action, extension) {
            (Action::Send | Action::Write, _) => {
                let piece = Piece { extension, payload: packet.payload, solicited: bth.solicited };
                let ends = self.assembly.take(meaning, piece, (config.qpn, config.mtu), host)?;
                self.expected = bth.psn.advance(1);
                self.msn = self.msn.advance(ends.into());
                if bth.ack_request {
                    self.acknowledge(bth.psn);
                    if ends && meaning.action == Action::Send { self.patience.done() } else { self.patience.hurry() }
                }
                Ok(())
            }
            _ if self.assembly.is_open() || self.answers.are_all_taken() => Err(Refusal::Invalid),
            (Action::ReadRequest, Extension::Remote(reth)) => {
                let from = Remote { va: reth.va, rkey: reth.rkey };
                self.read(bth.psn, from, reth.len, config, host)
            }
            (Action::CompareSwap | Action::FetchAdd, Extension::Atomic(atomic)) => {
                let at = Remote { va: atomic.va, rkey: atomic.rkey };
                let change = match meaning.action {
                    Action::CompareSwap => Change::CompareSwap { compare: atomic.compare, swap: atomic.swap_or_add },
                    _ => Change::FetchAdd(atomic.swap_or_add),
                };
                self.atomic(bth.psn, at, change, config, host)
            }
            _ => Err(Refusal::Invalid),
        }
    }

    /// Tells the peer that a request was not done, and whether that is the end of the connection.
    fn refuse(
        &mut self,
        psn: Psn,
        refusal: Refusal,
        config: &ReliableConfig,
        counters: &mut Counters,
    ) -> Result<(), Failure> {
        let (nak, cause) = match refusal {
            Refusal::NoReceive => {
                counters.send_rnr_err += 1;
                self.skips = true;
                self.answers.refused(psn, self.msn, Syndrome::ReceiverNotReady(config.rnr_timer));
                return Ok(());
            }
            Refusal::Invalid => {
                counters.resp_local_length_error += 1;
                (Nak::InvalidRequest, Cause::PeerRequest)
            }
            Refusal::Access => {
                counters.resp_remote_access_errors += 1;
                (Nak::RemoteAccess, Cause::PeerAccess)
            }
            Refusal::Memory => (Nak::RemoteOperation, Cause::Memory),
        };
        self.answers.refused(psn, self.msn, Syndrome::Nak(nak));
        Err(Failure { outcome: Outcome::Flushed, psn: None, cause })
    }

    fn read<H: Host<Local = L>>(
        &mut self,
        psn: Psn,
        from: Remote,
        len: u32,
        config: &ReliableConfig,
        host: &mut H,
    ) -> Result<(), Refusal> {
        if len > MAX_MESSAGE {
            return Err(Refusal::Invalid);
        }
        host.check(config.qpn, from, len, Right::Read)?;
        let packets = len.div_ceil(config.mtu.bytes()).max(1);
        self.expected = psn.advance(packets);
        self.msn = self.msn.advance(1);
        self.replay.keep(Done { psn, packets, msn: self.msn, answer: Answered::Read(from, len) });
        let reading = Reading { of: psn, from, left: len, is_first: true, is_repeat: false };
        self.answers.answer(Answer { psn, msn: self.msn, kind: Kind::Read(reading) });
        Ok(())
    }

    fn atomic<H: Host<Local = L>>(
        &mut self,
        psn: Psn,
        at: Remote,
        change: Change,
        config: &ReliableConfig,
        host: &mut H,
    ) -> Result<(), Refusal> {
        if !at.va.is_multiple_of(8) {
            return Err(Refusal::Invalid);
        }
        let original = host.atomic(config.qpn, at, change)?;
        self.expected = psn.advance(1);
        self.msn = self.msn.advance(1);
        self.replay.keep(Done { psn, packets: 1, msn: self.msn, answer: Answered::Atomic(original) });
        self.answers.answer(Answer { psn, msn: self.msn, kind: Kind::Atomic(original, false) });
        Ok(())
    }

    /// Answers a request again that was done. What was forgotten since is passed over.
    fn again(&mut self, packet: &Packet<'_>, meaning: Meaning, config: &ReliableConfig) {
        let psn = packet.headers.bth.psn;
        match (meaning.action, packet.headers.extension) {
            (Action::Send | Action::Write, _) => {
                self.acknowledge_again(psn);
                self.patience.waited();
            }
            (Action::ReadRequest, Extension::Remote(reth)) => {
                if let Some(Done { psn: of, msn, answer: Answered::Read(from, len), .. }) = self.replay.find(psn) {
                    // The peer may ask for what is left of it.
                    let skipped = psn.since(of) * config.mtu.bytes();
                    let (from, left) = (from.advance(skipped.into()), len.saturating_sub(skipped));
                    if (reth.va, reth.rkey, reth.len) == (from.va, from.rkey, left) {
                        let reading = Reading { of, from, left, is_first: true, is_repeat: true };
                        self.answers.again(Answer { psn, msn, kind: Kind::Read(reading) });
                    }
                }
            }
            (Action::CompareSwap | Action::FetchAdd, _) => {
                if let Some(Done { msn, answer: Answered::Atomic(original), .. }) = self.replay.find(psn) {
                    self.answers.again(Answer { psn, msn, kind: Kind::Atomic(original, true) });
                }
            }
            _ => {}
        }
    }

    /// Decides whether the acknowledgment that is owed waits for a request, where a request of this side was handled.
    pub(super) fn consider<H: Host<Local = L>>(&mut self, now: Instant, config: &ReliableConfig, host: &H) {
        if !self.answers.is_one_acknowledgment() {
            return self.patience.end();
        }
        let has_room = host.credits(config.qpn).count().is_none_or(|count| count >= ROOM);
        self.patience.owe(now, if has_room { host.patience() } else { Duration::ZERO });
    }

    /// True while the acknowledgment that is owed waits for a request.
    pub(super) fn is_patient<H: Host<Local = L>>(&self, now: Instant, host: &H) -> bool {
        self.patience.waits(now) && !host.patience().is_zero()
    }

    /// Requests go, and the acknowledgment that is owed would go behind them alone. True if it goes all the same.
    pub(super) fn goes_alone(&mut self) -> bool {
        self.patience.goes_alone()
    }

    /// When it does not wait any more.
    pub(super) fn timeout(&self) -> Option<Instant> {
        self.patience.timeout()
    }

    /// The time has come that was told, or not yet.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        self.patience.handle_timeout(now);
    }

    /// True if an acknowledgment is owed before all else, or a refusal.
    pub(super) fn acknowledges(&mut self) -> bool {
        matches!(self.answers.front(), Some(Answer { kind: Kind::Done | Kind::Refused(_), .. }))
    }

    /// True if more than one answer is owed.
    pub(super) fn owes_several(&self) -> bool {
        self.answers.has_several()
    }

    /// True if the peer is owed bytes of memory.
    pub(super) fn owes_reads(&self) -> bool {
        self.answers.have_reads()
    }

    /// Makes the next packet of an answer in `to`, but for its CRC.
    pub(super) fn transmit<H: Host<Local = L>>(
        &mut self,
        now: Instant,
        to: &mut [u8],
        config: &ReliableConfig,
        host: &mut H,
        counters: &mut Counters,
    ) -> Option<usize> {
        let Answer { psn, msn, kind } = *self.answers.front()?;
        let fine = Syndrome::Ack(host.credits(config.qpn));
        let bare = |opcode, extension| {
            let headers = config.headers(Bth::new(opcode, config.peer, psn), extension);
            Outgoing { headers, payload: ((), 0), len: 0 }
        };
        let acknowledgment = |syndrome| bare(Opcode::RC_ACKNOWLEDGE, Extension::Acknowledge(Aeth { syndrome, msn }));
        let packet = match kind {
            Kind::Done => {
                self.patience.gone(now);
                acknowledgment(fine)
            }
            Kind::Refused(syndrome) => acknowledgment(syndrome),
            Kind::Atomic(original, _) => {
                let aeth = Aeth { syndrome: fine, msn };
                bare(Opcode::RC_ATOMIC_ACKNOWLEDGE, Extension::AtomicAcknowledge(aeth, original))
            }
            Kind::Read(reading) => match self.read_on(psn, Aeth { syndrome: fine, msn }, reading, to, config, host) {
                Ok(len) => {
                    counters.sent_pkts += 1;
                    return Some(len);
                }
                Err(error) => {
                    // One that has its answer passes that over; one that has not would ask without end. The request
                    // itself was none to be refused, so that this end goes on.
                    self.broken |= !reading.is_repeat;
                    acknowledgment(Syndrome::Nak(match error {
                        AccessError::Operation => Nak::RemoteOperation,
                        AccessError::QueuePair | AccessError::Key => {
                            counters.resp_remote_access_errors += 1;
                            Nak::RemoteAccess
                        }
                    }))
                }
            },
        };
        self.answers.pop();
        counters.sent_pkts += 1;
        packet.emit(to, |(), _, _| Ok(())).ok()
    }

    /// Makes the next packet of the answer to a READ.
    fn read_on<H: Host<Local = L>>(
        &mut self,
        psn: Psn,
        aeth: Aeth,
        reading: Reading,
        to: &mut [u8],
        config: &ReliableConfig,
        host: &mut H,
    ) -> Result<usize, AccessError> {
        let Reading { from, left, is_first, .. } = reading;
        // One that another came before goes on.
        if left > 0 && (is_first || self.announced != Some(reading.of)) {
            host.begin_read(config.qpn, from, left);
            self.announced = Some(reading.of);
        }
        let len = left.min(config.mtu.bytes());
        let position = Position::new(is_first, len == left);
        let extension = if position == Position::Middle { Extension::None } else { Extension::Acknowledge(aeth) };
        let bth = Bth::new(Opcode::of_read_response(position), config.peer, psn);
        let packet = Outgoing { headers: config.headers(bth, extension), payload: (from, 0), len };
        let made = packet.emit(to, |from, _, to| host.read(config.qpn, from, to))?;
        if len == left {
            self.answers.pop();
        } else if let Some(answer) = self.answers.front() {
            answer.psn = psn.advance(1);
            let rest = Reading { from: from.advance(len.into()), left: left - len, is_first: false, ..reading };
            answer.kind = Kind::Read(rest);
        }
        Ok(made)
    }

    /// True if memory that was being read could not be read any more.
    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Answers the peer no more, but for what is done, or was refused for good, and was to be told next: a peer that is not
    /// told would send it again, to nobody.
    pub(super) fn stop(&mut self) {
        let replay = &self.replay;
        self.answers.cut_short(|psn| replay.find(psn).is_some());
    }

    /// Answers the peer no more, not even of what is done.
    pub(super) fn fall_silent(&mut self) {
        self.answers.clear();
    }

    /// The connection has failed: a message that has begun does not end.
    pub(super) fn fail<H: Host<Local = L>>(&mut self, qpn: Qpn, host: &mut H) {
        let outcome = if self.assembly.is_too_long() { Outcome::LocalLength } else { Outcome::Flushed };
        self.assembly.fail(outcome, qpn, host);
    }
}

/// Receives that a peer has at least whose acknowledgments wait: it is told of new ones by these.
const ROOM: u32 = 8;
