//! A reliable connection: a requester, which sends and retries, and a responder, which answers. IBA 9.7.

mod answers;
mod config;
mod credit;
mod halves;
mod patience;
mod recovery;
mod replay;
mod request;
mod requester;
mod responder;
mod window;

pub use config::ReliableConfig;

use std::time::Instant;

use self::halves::Halves;
use self::requester::Requester;
use self::responder::Responder;
use super::outgoing::Outgoing;
use super::state::State;
use crate::counters::Counters;
use crate::host::{Cause, Host};
use crate::types::Psn;
use crate::wire::{Action, Packet, Service};
use crate::work::{Outcome, PostError, Send};

/// One end of a reliable connection.
#[derive(Debug)]
pub struct ReliableConnection<L> {
    config: ReliableConfig,
    state: State,
    arrivals: u64,
    requester: Requester<L>,
    responder: Responder<L>,
    halves: Halves,
}

/// The connection has failed, and with it a request of this side, if one was to blame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Failure {
    outcome: Outcome,
    /// Sequence number of the request to blame; none: the oldest.
    psn: Option<Psn>,
    cause: Cause,
}

impl<L: Copy> ReliableConnection<L> {
    /// A connection that is ready.
    pub fn new(config: ReliableConfig) -> Self {
        let config = ReliableConfig { window: config.window.clamp(1, MAX_WINDOW), ..config };
        ReliableConnection {
            requester: Requester::new(&config),
            responder: Responder::new(&config),
            state: State::Ready,
            arrivals: 0,
            halves: Halves::new(),
            config,
        }
    }

    /// What it was made with.
    pub fn config(&self) -> &ReliableConfig {
        &self.config
    }

    /// Its state.
    pub fn state(&self) -> State {
        self.state
    }

    /// Packets of the peer that came so far.
    pub fn arrivals(&self) -> u64 {
        self.arrivals
    }

    /// True once the peer has sent a request: it is ready.
    pub fn has_heard(&self) -> bool {
        self.responder.has_heard(&self.config)
    }

    /// Takes a request to send. On a connection that has failed it completes as flushed at once.
    ///
    /// # Errors
    /// [`PostError`]. The request is copied; what it names is the caller's still.
    pub fn post<H: Host<Local = L>>(&mut self, work: Send<L>, host: &mut H) -> Result<(), PostError> {
        self.requester.post(work, &self.config)?;
        if self.state == State::Failed {
            self.requester.fail(CLOSED, self.config.qpn, host);
        }
        Ok(())
    }

    /// Handles a packet of the peer. It came from the connection's route, its CRC is right, and the partition too.
    pub fn handle<H: Host<Local = L>>(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        host: &mut H,
        counters: &mut Counters,
    ) {
        if self.state == State::Failed {
            return;
        }
        let meaning = packet.headers.bth.opcode.meaning();
        let Some(meaning) = meaning.filter(|meaning| meaning.service == Service::Rc) else {
            counters.unsupported_opcode += 1;
            return;
        };
        let answers = matches!(meaning.action, Action::ReadResponse | Action::Acknowledge | Action::AtomicAcknowledge);
        counters.rcvd_pkts += 1;
        self.arrivals += 1;
        let handled = if answers {
            self.requester.handle(now, packet, meaning, &self.config, host, counters)
        } else {
            let handled = self.responder.handle(packet, meaning, &self.config, host, counters);
            self.responder.consider(now, &self.config, host);
            handled
        };
        if let Err(failure) = handled {
            // What the peer asked for before its fault is still answered, and then the fault.
            self.fail(failure, !answers, host);
        }
    }

    /// Makes the next packet in `to`, but for its CRC; its length, `None` if there is nothing to send now. One answer to a
    /// peer may be a million packets: whoever drives several connections makes some of each in turn, and says where packets
    /// begin [that go together](ReliableConnection::begin_departure).
    ///
    /// # Panics
    /// If `to` is shorter than [`longest_packet`](ReliableConfig::longest_packet).
    pub fn transmit<H: Host<Local = L>>(
        &mut self,
        now: Instant,
        to: &mut [u8],
        host: &mut H,
        counters: &mut Counters,
    ) -> Option<usize> {
        assert!(to.len() >= self.config.longest_packet(), "{} bytes are too few for a packet", to.len());
        let acknowledges = self.responder.acknowledges();
        if !acknowledges {
            self.halves.owe_nothing();
        }
        // An acknowledgment that waits goes behind what there is to ask for, and not alone.
        if self.state == State::Ready && self.responder.is_patient(now, host) {
            if let Some(made) = self.ask(now, to, host, counters) {
                self.halves.asked_for(made);
                return Some(made);
            }
            let (passed, goes_with_them) = self.halves.take_passed();
            if self.state == State::Ready && (!passed || !goes_with_them && !self.responder.goes_alone()) {
                return None;
            }
            return self.answer(now, to, host, counters);
        }
        if acknowledges {
            let others_wait = self.responder.owes_several();
            if self.halves.may_pass(to.len(), self.config.longest_packet(), others_wait)
                && let Some(made) = self.ask(now, to, host, counters)
            {
                self.halves.asked_before(made, others_wait);
                return Some(made);
            }
            return self.answer(now, to, host, counters);
        }
        let made = self.take_turn(now, to, host, counters);
        made.or_else(|| {
            self.halves.skip();
            self.take_turn(now, to, host, counters)
        })
    }

    /// As [`transmit`](ReliableConnection::transmit), where nothing may be sent but an acknowledgment or a refusal: makes that if it is
    /// due, and before all else. It is short, and the peer waits for it.
    pub(crate) fn acknowledge<H: Host<Local = L>>(
        &mut self,
        now: Instant,
        to: &mut [u8],
        host: &mut H,
        counters: &mut Counters,
    ) -> Option<usize> {
        let is_due = self.responder.acknowledges() && !self.responder.is_patient(now, host);
        if is_due { self.answer(now, to, host, counters) } else { None }
    }

    /// What is made from now on goes in another [departure](crate::Departure) than what was made before: whoever sends packets
    /// together says so before the first of them. Who never does takes all for one.
    pub fn begin_departure(&mut self) {
        self.halves.begin_departure();
    }

    /// True of a connection that has failed and has little left to say: no answer to a READ that came before.
    pub(crate) fn is_nearly_silent(&self) -> bool {
        self.state == State::Failed && !self.responder.owes_reads()
    }

    /// Whether nothing that is made now can go with the packet before.
    pub fn ends_departure(&self) -> bool {
        self.halves.ends_departure()
    }

    fn take_turn<H: Host<Local = L>>(
        &mut self,
        now: Instant,
        to: &mut [u8],
        host: &mut H,
        counters: &mut Counters,
    ) -> Option<usize> {
        if self.halves.answers_next() {
            return self.answer(now, to, host, counters);
        }
        let made = self.ask(now, to, host, counters)?;
        self.halves.asked(made);
        Some(made)
    }

    fn ask<H: Host<Local = L>>(
        &mut self,
        now: Instant,
        to: &mut [u8],
        host: &mut H,
        counters: &mut Counters,
    ) -> Option<usize> {
        if self.state == State::Failed {
            return None;
        }
        let packet = self.requester.next(now, &self.config, counters)?;
        let made = packet.emit(to, |local, offset, to| host.gather(local, offset, to));
        made.inspect_err(|error| {
            let psn = Some(packet.headers.bth.psn);
            self.fail(Failure { outcome: error.outcome(), psn, cause: Cause::Request }, false, host);
        })
        .ok()
    }

    fn answer<H: Host<Local = L>>(
        &mut self,
        now: Instant,
        to: &mut [u8],
        host: &mut H,
        counters: &mut Counters,
    ) -> Option<usize> {
        let acknowledges = self.responder.acknowledges();
        let made = self.responder.transmit(now, to, &self.config, host, counters);
        if made.is_some() {
            self.halves.answered(acknowledges);
        }
        if self.responder.is_broken() {
            self.fail(Failure { outcome: Outcome::Flushed, psn: None, cause: Cause::Memory }, false, host);
        }
        made
    }

    /// When [`handle_timeout`](ReliableConnection::handle_timeout) is due, if nothing comes before.
    pub fn timeout(&self) -> Option<Instant> {
        if self.state == State::Failed {
            return None;
        }
        self.requester.timeout().into_iter().chain(self.responder.timeout()).min()
    }

    /// The time has come that was told, or a later one.
    pub fn handle_timeout<H: Host<Local = L>>(&mut self, now: Instant, host: &mut H, counters: &mut Counters) {
        self.responder.handle_timeout(now);
        if self.state == State::Ready
            && let Err(failure) = self.requester.handle_timeout(now, counters)
        {
            self.fail(failure, false, host);
        }
    }

    /// Answers to what has gone may be here, and not taken in yet: their time is not over before `until`.
    pub fn await_answers_until(&mut self, until: Instant) {
        self.requester.await_answers_until(until);
    }

    /// What was made last waits for the network still: the time for an answer runs from when it goes.
    pub fn still_waits(&mut self, now: Instant) {
        self.requester.still_waits(now, &self.config);
    }

    /// Some of what was made is lost before it went. It is made again, and that is no retry.
    pub fn never_went(&mut self) {
        self.requester.never_went();
    }

    /// Fails the connection: what is posted to the send queue is flushed, and the peer is answered no more. What it was to be
    /// told next, of what is done or refused, it is [still](ReliableConnection::transmit) told.
    pub fn close<H: Host<Local = L>>(&mut self, host: &mut H) {
        self.fail(CLOSED, false, host);
    }

    /// Fails the connection since what its peer has sent is lost after it was taken: [`Cause::Memory`]. The peer is told
    /// nothing any more, so that it takes none of that for done, and gives the connection up after its retries.
    pub fn lose<H: Host<Local = L>>(&mut self, host: &mut H) {
        self.fail(Failure { cause: Cause::Memory, ..CLOSED }, false, host);
        self.responder.fall_silent();
    }

    fn fail<H: Host<Local = L>>(&mut self, failure: Failure, answers: bool, host: &mut H) {
        if !answers {
            self.responder.stop();
        }
        if self.state == State::Failed {
            return;
        }
        self.state = State::Failed;
        self.requester.fail(failure, self.config.qpn, host);
        self.responder.fail(self.config.qpn, host);
        host.failed(self.config.qpn, failure.cause);
    }
}

/// Nothing is to blame.
const CLOSED: Failure = Failure { outcome: Outcome::Flushed, psn: None, cause: Cause::Closed };
/// Half of the half of sequence numbers that are new to the other side.
const MAX_WINDOW: u32 = 1 << 22;
