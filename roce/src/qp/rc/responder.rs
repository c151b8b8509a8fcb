//! Does what the peer asks for, in order and once, and answers. IBA 9.7.5.1, 9.7.8.

use std::collections::VecDeque;

use super::incoming::{Assembly, Refusal};
use super::replay::{Answered, Done, Replay};
use super::{FLUSHED, Failure, Outgoing, ReliableConfig, emit};
use crate::counters::Counters;
use crate::host::{Change, Host, Remote, Right};
use crate::types::{Psn, Qpn};
use crate::wire::{Action, Aeth, Bth, Extension, Meaning, Nak, Opcode, Packet, Position, Syndrome};
use crate::work::Outcome;

/// The answering half of a connection.
#[derive(Debug)]
pub(super) struct Responder<L> {
    /// Sequence number of the next request.
    expected: Psn,
    /// Messages done.
    msn: u32,
    assembly: Assembly<L>,
    /// What is behind the expected request is passed over: the peer was told to send again from there.
    skips: bool,
    answers: VecDeque<Answer>,
    replay: Replay,
    /// Memory that was being read could not be read any more.
    broken: bool,
}

/// An answer that the peer is owed.
#[derive(Clone, Copy, Debug)]
enum Answer {
    /// All up to there is done.
    Done(Psn),
    /// That one was not done.
    Refused(Psn, Syndrome),
    /// Bytes of memory, so many from there on; true if none of this answer was sent.
    Read(Psn, Remote, u32, bool),
    /// What was there before an atomic.
    Atomic(Psn, u64),
}

impl<L: Copy> Responder<L> {
    pub(super) fn new(config: &ReliableConfig) -> Self {
        Responder {
            expected: config.receive_psn,
            msn: 0,
            assembly: Assembly::Idle,
            skips: false,
            answers: VecDeque::with_capacity(room(config)),
            replay: Replay::new(config.reads_answered),
            broken: false,
        }
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
                self.take(packet, meaning, config, host, counters)
            }
            1.. => {
                counters.out_of_sequence += 1;
                if !self.skips {
                    self.skips = true;
                    self.answers.push_back(Answer::Refused(self.expected, Syndrome::Nak(Nak::Sequence)));
                }
                Ok(())
            }
        }
    }

    /// Does the next request.
    fn take<H: Host<Local = L>>(
        &mut self,
        packet: &Packet<'_>,
        meaning: Meaning,
        config: &ReliableConfig,
        host: &mut H,
        counters: &mut Counters,
    ) -> Result<(), Failure> {
        let (bth, extension) = (packet.headers.bth, packet.headers.extension);
        let taken = match (meaning.action, extension) {
            (Action::Send | Action::Write, _) => {
                let contents = (extension, packet.payload, bth.solicited);
                self.assembly.take(meaning, contents, (config.qpn, config.mtu), host).map(|ends| {
                    self.expected = bth.psn.advance(1);
                    self.msn = (self.msn + u32::from(ends)) & MSN_MASK;
                    if bth.ack_request {
                        self.acknowledge(bth.psn);
                    }
                })
            }
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
        };
        let (syndrome, failure) = match taken {
            Ok(()) => return Ok(()),
            Err(Refusal::NoReceive) => {
                counters.send_rnr_err += 1;
                self.skips = true;
                (Syndrome::ReceiverNotReady(config.rnr_timer), Ok(()))
            }
            Err(Refusal::Invalid) => {
                counters.resp_local_length_error += 1;
                (Syndrome::Nak(Nak::InvalidRequest), Err(FLUSHED))
            }
            Err(Refusal::Access) => {
                counters.resp_remote_access_errors += 1;
                (Syndrome::Nak(Nak::RemoteAccess), Err(FLUSHED))
            }
        };
        self.answers.push_back(Answer::Refused(bth.psn, syndrome));
        failure
    }

    fn read<H: Host<Local = L>>(
        &mut self,
        psn: Psn,
        from: Remote,
        len: u32,
        config: &ReliableConfig,
        host: &mut H,
    ) -> Result<(), Refusal> {
        if self.assembly.is_open() || self.replay.has_no_room() {
            return Err(Refusal::Invalid);
        }
        if len > 0 {
            host.check(config.qpn, from, len, Right::Read).map_err(|_| Refusal::Access)?;
        }
        let packets = len.div_ceil(config.mtu.bytes()).max(1);
        self.replay.keep(Done { psn, packets, answer: Answered::Read(from, len) });
        self.answers.push_back(Answer::Read(psn, from, len, true));
        self.expected = psn.advance(packets);
        self.msn = (self.msn + 1) & MSN_MASK;
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
        if self.assembly.is_open() || self.replay.has_no_room() || !at.va.is_multiple_of(8) {
            return Err(Refusal::Invalid);
        }
        let original = host.atomic(config.qpn, at, change).map_err(|_| Refusal::Access)?;
        self.replay.keep(Done { psn, packets: 1, answer: Answered::Atomic(original) });
        self.answers.push_back(Answer::Atomic(psn, original));
        self.expected = psn.advance(1);
        self.msn = (self.msn + 1) & MSN_MASK;
        Ok(())
    }

    /// Answers a request again that was done. What was forgotten since is passed over.
    fn again(&mut self, packet: &Packet<'_>, meaning: Meaning, config: &ReliableConfig) {
        let psn = packet.headers.bth.psn;
        let answer = match (meaning.action, packet.headers.extension) {
            (Action::Send | Action::Write, _) => return self.acknowledge(self.expected.advance(0x00ff_ffff)),
            (Action::ReadRequest, Extension::Remote(reth)) => match self.replay.find(psn) {
                Some(Done { psn: first, answer: Answered::Read(from, len), .. }) => {
                    // The peer may ask for what is left of it.
                    let skipped = psn.since(first) * config.mtu.bytes();
                    let (from, left) = (from.advance(skipped.into()), len.saturating_sub(skipped));
                    (reth.len == left && reth.va == from.va && reth.rkey == from.rkey)
                        .then_some(Answer::Read(psn, from, left, true))
                }
                _ => None,
            },
            (Action::CompareSwap | Action::FetchAdd, _) => match self.replay.find(psn) {
                Some(Done { answer: Answered::Atomic(original), .. }) => Some(Answer::Atomic(psn, original)),
                _ => None,
            },
            _ => None,
        };
        // A peer that repeats itself faster than it takes answers is answered later.
        if let Some(answer) = answer.filter(|_| self.answers.len() < room(config)) {
            self.answers.push_back(answer);
        }
    }

    /// Owes the peer an acknowledgment; one that it is owed already goes further.
    fn acknowledge(&mut self, psn: Psn) {
        match self.answers.back_mut() {
            Some(Answer::Done(last)) => *last = psn,
            _ => self.answers.push_back(Answer::Done(psn)),
        }
    }

    /// Makes the next packet of an answer in `to`, but for its CRC.
    pub(super) fn transmit<H: Host<Local = L>>(
        &mut self,
        to: &mut [u8],
        config: &ReliableConfig,
        host: &mut H,
        counters: &mut Counters,
    ) -> Option<usize> {
        let answer = self.answers.pop_front()?;
        let aeth = |syndrome| Aeth { syndrome, msn: self.msn };
        let fine = Syndrome::Ack(host.credits(config.qpn));
        let headers = |opcode, psn, extension| config.headers(Bth::new(opcode, config.peer, psn), extension);
        let bare =
            |opcode, psn, extension| Outgoing { headers: headers(opcode, psn, extension), payload: ((), 0), len: 0 };
        counters.sent_pkts += 1;
        match answer {
            Answer::Done(psn) => {
                let extension = Extension::Acknowledge(aeth(fine));
                emit(&bare(Opcode::RC_ACKNOWLEDGE, psn, extension), to, |(), _, _| {})
            }
            Answer::Refused(psn, syndrome) => {
                let extension = Extension::Acknowledge(aeth(syndrome));
                emit(&bare(Opcode::RC_ACKNOWLEDGE, psn, extension), to, |(), _, _| {})
            }
            Answer::Atomic(psn, original) => {
                let extension = Extension::AtomicAcknowledge(aeth(fine), original);
                emit(&bare(Opcode::RC_ATOMIC_ACKNOWLEDGE, psn, extension), to, |(), _, _| {})
            }
            Answer::Read(psn, from, left, is_first) => {
                let len = left.min(config.mtu.bytes());
                let position = Position::new(is_first, len == left);
                let extension = match position {
                    Position::Middle => Extension::None,
                    _ => Extension::Acknowledge(aeth(fine)),
                };
                let opcode = Opcode::of_read_response(position);
                let packet = Outgoing { headers: headers(opcode, psn, extension), payload: (from, 0), len };
                let mut read = Ok(());
                let made = emit(&packet, to, |from, _, to| read = host.read(config.qpn, from, to));
                if read.is_err() {
                    counters.resp_remote_access_errors += 1;
                    self.broken = true;
                    let extension = Extension::Acknowledge(aeth(Syndrome::Nak(Nak::RemoteAccess)));
                    return emit(&bare(Opcode::RC_ACKNOWLEDGE, psn, extension), to, |(), _, _| {});
                }
                if len < left {
                    let rest = Answer::Read(psn.advance(1), from.advance(len.into()), left - len, false);
                    self.answers.push_front(rest);
                }
                made
            }
        }
    }

    /// True if memory that was being read could not be read any more.
    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    /// The connection has failed: a message that has begun does not end. What the peer is owed it gets, or not.
    pub(super) fn fail<H: Host<Local = L>>(&mut self, answers: bool, qpn: Qpn, host: &mut H) {
        let outcome = if self.assembly.is_too_long() { Outcome::LocalLength } else { Outcome::Flushed };
        self.assembly.fail(outcome, qpn, host);
        if !answers {
            self.answers.clear();
        }
    }
}

/// Answers that may be owed at once: for each READ or atomic one and an acknowledgment before it, twice over for those that
/// are repeated, and what comes last.
fn room(config: &ReliableConfig) -> usize {
    4 * usize::from(config.reads_answered) + 4
}

const MSN_MASK: u32 = 0x00ff_ffff;
