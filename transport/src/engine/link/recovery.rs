//! Another queue pair takes the place of one that failed: the connection stands still, then what the peer may not have goes
//! out again, with the numbers that it had, and then all goes on.

use std::time::Duration;

use super::{CloseSent, Link, Phase};
use crate::engine::credits::Credits;
use crate::engine::rail_keys::RemoteMemory;
use crate::engine::retained::{Retained, UNCONFIRMED, Unconfirmed};
use crate::engine::slots::{Work, is_past};
use crate::engine::step::{Frame, PeerTerms};
use crate::engine::violation::Violation;
use crate::engine::wire::{Header, Kind};

/// What a connection has that can go on over another queue pair.
#[derive(Debug)]
pub(super) struct Recovery {
    retained: Retained,
    /// In which phase it goes on.
    then: Phase,
    /// Messages that are still to go out again.
    to_repeat: u32,
    /// Requests by the time when all had gone out again, until they are acknowledged.
    repeated: Option<u32>,
    /// The first message of the peer's that it does not send again, until those before it have come.
    peers_first: Option<u32>,
    /// The queue pair has carried something since it took the place of another, which was after so many requests.
    carries: bool,
    resumed: u32,
    first: First,
}

/// The first of what goes out again: where one queue pair failed by it, others may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum First {
    /// It has not gone out.
    Due,
    /// It has, by that request.
    Posted(u32),
    /// The peer's device has acknowledged it, or there was none.
    Through,
}

impl Recovery {
    /// The peer's device has acknowledged the first `count` requests.
    pub(super) fn retire(&mut self, count: u32) {
        self.repeated.take_if(|repeated| is_past(count, *repeated));
        self.retained.retire(count);
        self.carries |= is_past(count, self.resumed.wrapping_add(1));
        if matches!(self.first, First::Posted(number) if is_past(count, number)) {
            self.first = First::Through;
        }
    }
}

impl<P> Link<P> {
    /// From now on, what goes out is kept until the peer has it.
    pub(crate) fn retain(&mut self) {
        let retained = Retained::default();
        self.recovery = Some(Box::new(Recovery {
            retained,
            then: Phase::Closed,
            to_repeat: 0,
            repeated: None,
            peers_first: None,
            carries: true,
            resumed: 0,
            first: First::Through,
        }));
    }

    /// True if the connection can go on over another queue pair.
    #[inline(always)]
    pub(crate) fn retains(&self) -> bool {
        self.recovery.is_some()
    }

    /// A message was posted, by that request. By value, so that the frame need not be in memory.
    #[inline(always)]
    pub(crate) fn keep(&mut self, kind: Kind, number: u32, sequence: u32, message: &[u8]) {
        if let Some(recovery) = &mut self.recovery
            && kind.is_sequenced()
        {
            recovery.retained.message(number, sequence, message);
        }
    }

    /// The peer has so many messages, modulo 2^16, as the header of one of its own says.
    ///
    /// # Errors
    /// It has said so of too few for too long.
    #[inline(always)]
    pub(crate) fn confirm(&mut self, acknowledged: u16) -> Result<(), Violation> {
        match &mut self.recovery {
            Some(recovery) => {
                recovery.carries = true;
                recovery.retained.confirm(acknowledged)
            }
            None => Ok(()),
        }
    }

    /// A write of a copy was posted.
    #[inline(always)]
    pub(crate) fn keep_write(&mut self, work: Work, remote: RemoteMemory, data: &[u8]) {
        if let Some(recovery) = &mut self.recovery {
            recovery.retained.write(work.number, remote, data);
        }
    }

    /// The queue pair failed: nothing goes out until another takes its place.
    pub(crate) fn suspend(&mut self) {
        let Some(recovery) = &mut self.recovery else { return };
        if !matches!(self.phase, Phase::Repeating | Phase::Suspended) {
            recovery.then = self.phase;
        }
        self.phase = Phase::Suspended;
        self.flushes.restart();
    }

    /// Another queue pair was made, with receives for the peer's own slots; all that came over the one before was accepted.
    /// This side's session goes on under another epoch.
    pub(crate) fn renew(&mut self, epoch: u32) {
        self.our_epoch = epoch;
        self.grants.restart();
        self.owed = 0;
    }

    /// The peer has another queue pair too. It says how many messages it sent and received: those that it may not have come
    /// out, with the number of the last request that it has surely seen to. They are to go out again, and then those that an
    /// earlier call gave and that have not.
    ///
    /// # Errors
    /// What it says can not be.
    pub(crate) fn resume(
        &mut self,
        terms: &PeerTerms,
        (sent, received): (u32, u32),
        now: Duration,
    ) -> Result<(Vec<Unconfirmed>, Option<u32>), Violation> {
        let due = self.next_due();
        // What it keeps may have grown to twice the limit by the time when it looks at that.
        if sent.wrapping_sub(self.next_in) > 2 * UNCONFIRMED as u32 {
            return Err(Violation::Sent { said: sent, received: self.next_in });
        }
        let Some(recovery) = &mut self.recovery else { return Ok((Vec::new(), None)) };
        let posted = self.slots.posted();
        let unconfirmed = recovery.retained.take(received, due, (posted, self.slots.depth()))?;
        (recovery.carries, recovery.resumed, recovery.first) = (false, posted, First::Due);
        recovery.peers_first = Some(sent);
        recovery.to_repeat = self.next_out.wrapping_sub(received);
        self.peer_epoch = terms.epoch;
        self.credits = Credits::default();
        self.credits.start(terms.credits)?;
        self.slots.restart();
        self.keepalive.start(now);
        if let CloseSent::Posted { sequence, .. } = self.close
            && is_past(received, sequence.wrapping_add(1))
        {
            self.close = CloseSent::Done;
        }
        self.phase = Phase::Repeating;
        Ok(unconfirmed)
    }

    /// The header and the request with which a message goes out again, if it may now.
    pub(crate) fn repeat(&mut self, header: &Header) -> Option<Frame> {
        let takes_credit = header.takes_credit();
        if self.phase != Phase::Repeating
            || self.slots.available() == 0
            || (takes_credit && self.credits.available() == 0)
        {
            return None;
        }
        if takes_credit {
            self.credits.take();
        }
        if let Some(recovery) = &mut self.recovery {
            recovery.to_repeat = recovery.to_repeat.saturating_sub(1);
        }
        let closes = header.kind == Kind::Close;
        let work = self.slots.take(closes);
        if closes {
            self.close = CloseSent::Posted { number: work.number, sequence: header.sequence };
        }
        let (epoch, credits, acknowledged) = (self.our_epoch, self.grants.tell(), self.next_in as u16);
        Some(Frame { header: Header { epoch, credits, acknowledged, ..*header }, work })
    }

    /// Something went out again, by the last request.
    pub(crate) fn went_again(&mut self) {
        if let Some(recovery) = &mut self.recovery
            && recovery.first == First::Due
        {
            recovery.first = First::Posted(self.slots.posted());
        }
    }

    /// All that had to go out again did.
    pub(crate) fn go_on(&mut self) {
        if let Some(recovery) = &mut self.recovery
            && self.phase == Phase::Repeating
        {
            self.phase = recovery.then;
            if recovery.first == First::Due {
                recovery.first = First::Through;
            }
            let posted = self.slots.posted();
            recovery.repeated = (!self.slots.has_retired(posted)).then_some(posted);
        }
    }

    /// True while nothing new goes out.
    pub(crate) fn is_interrupted(&self) -> bool {
        matches!(self.phase, Phase::Suspended | Phase::Repeating)
    }

    /// True from when the queue pair is known to have failed until another takes its place: nothing is asked of it.
    pub(crate) fn is_suspended(&self) -> bool {
        self.phase == Phase::Suspended
    }

    /// True while messages come that the peer sends again.
    pub(super) fn peer_repeats(&mut self) -> bool {
        let Some(recovery) = &mut self.recovery else { return false };
        recovery.peers_first.take_if(|first| is_past(self.next_in, *first));
        recovery.peers_first.is_some()
    }

    /// True unless the queue pair took the place of another, and nothing has come over it yet.
    pub(crate) fn carries(&self) -> bool {
        self.recovery.as_ref().is_none_or(|recovery| recovery.carries)
    }

    /// True unless the queue pair took the place of another, and nothing shows yet that it does better: where some packets pass and
    /// others do not, it carries this and that, and fails by the same as the one before.
    pub(crate) fn is_proven(&self) -> bool {
        self.recovery.as_ref().is_none_or(|recovery| recovery.carries && recovery.first == First::Through)
    }

    /// True if a request can be posted.
    pub(crate) fn has_slot(&self) -> bool {
        self.slots.available() > 0
    }

    /// The phase, of a connection that stands still the one in which it goes on.
    pub(super) fn flow(&self) -> Phase {
        match &self.recovery {
            Some(recovery) if self.is_interrupted() => recovery.then,
            _ => self.phase,
        }
    }

    /// The phase, of a connection that stands still the one in which it will go on.
    pub(super) fn set_flow(&mut self, phase: Phase) {
        match &mut self.recovery {
            Some(recovery) if matches!(self.phase, Phase::Suspended | Phase::Repeating) => recovery.then = phase,
            _ => self.phase = phase,
        }
    }

    /// Requests by the time when all had gone out again, until they are acknowledged.
    pub(super) fn repeated(&self) -> Option<u32> {
        self.recovery.as_ref().and_then(|recovery| recovery.repeated)
    }

    /// The number of the message that goes out next.
    pub(super) fn next_due(&self) -> u32 {
        self.next_out.wrapping_sub(self.recovery.as_ref().map_or(0, |recovery| recovery.to_repeat))
    }
}
