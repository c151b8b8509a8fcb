//! Whether an acknowledgment may wait for a request that it goes with, as a responder may let it: IBA 9.7.5.1.2.
//!
//! Packets go by one call, and through the network as one, where all are as long as the first and the last may be shorter. So an
//! acknowledgment goes with a message of one packet for nothing, and needs a call of its own behind a longer one, whose last
//! packet is short. Behind such ones it waits for the next, a few times.

use std::time::{Duration, Instant};

/// Of the acknowledgment that is owed.
#[derive(Debug)]
pub(super) struct Patience {
    /// Until when it may wait; `None` if it may not, or none is owed.
    until: Option<Instant>,
    /// Until when the peer counts as one that goes on: half the time after its last message.
    lively: Option<Instant>,
    /// Messages that it is of, and that may wait.
    messages: u32,
    /// Acknowledgments that do not wait, since one has waited in vain.
    hasty: u32,
    /// Requests that it did not go with, since it would have gone behind them alone; and how many it may let go.
    passed: u32,
    may_pass: u32,
    /// Acknowledgments until it may let one more go.
    until_more: u32,
}

impl Default for Patience {
    fn default() -> Self {
        Self { until: None, lively: None, messages: 0, hasty: 0, passed: 0, may_pass: MOST, until_more: HASTY }
    }
}

impl Patience {
    /// A message was done whose acknowledgment may wait.
    pub(super) fn done(&mut self) {
        self.messages += 1;
    }

    /// The peer sent again what was done, as it would where it had waited for the acknowledgment.
    pub(super) fn waited(&mut self) {
        self.hurry();
        (self.hasty, self.may_pass, self.until_more) = (HASTY, 0, HASTY);
    }

    /// Something was done whose acknowledgment may not.
    pub(super) fn hurry(&mut self) {
        self.messages = MOST;
    }

    /// An acknowledgment is owed, and nothing else: it may wait so long from when the first of its messages was done.
    pub(super) fn owe(&mut self, now: Instant, delay: Duration) {
        if self.hasty > 0 || delay.is_zero() || !(1..MOST).contains(&self.messages) {
            self.until = None;
            return;
        }
        if self.until.is_none() {
            self.until = Some(now + delay);
        }
        self.lively = Some(now + delay / 2);
    }

    /// Another answer is owed, too.
    pub(super) fn end(&mut self) {
        self.until = None;
    }

    /// Requests go with which it does not go for nothing. True if it goes behind them all the same.
    pub(super) fn goes_alone(&mut self) -> bool {
        let alone = self.passed >= self.may_pass;
        self.passed += u32::from(!alone);
        alone
    }

    /// True while it waits.
    pub(super) fn waits(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// When it is not to wait any more.
    pub(super) fn timeout(&self) -> Option<Instant> {
        self.until
    }

    /// The time has come, or not yet.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.until.is_none_or(|until| now < until) {
            return;
        }
        // A peer that goes on sends without it.
        if self.until.take() < self.lively {
            return;
        }
        // Whoever waits for it sends nothing meanwhile: it could have gone with the last request.
        match self.passed.checked_sub(1) {
            Some(fewer) => (self.may_pass, self.until_more) = (fewer, HASTY),
            None => self.hasty = HASTY,
        }
    }

    /// It went.
    pub(super) fn gone(&mut self, now: Instant) {
        self.hasty = self.hasty.saturating_sub(1);
        self.handle_timeout(now);
        self.until_more -= 1;
        if self.until_more == 0 {
            (self.may_pass, self.until_more) = (MOST.min(self.may_pass + 1), HASTY);
        }
        (self.until, self.messages, self.passed) = (None, 0, 0);
    }
}

/// Messages of which an acknowledgment does not wait.
const MOST: u32 = 8;
/// Acknowledgments after one that has waited in vain, until one waits again: a peer that waits for each, and is sent nothing,
/// loses little.
const HASTY: u32 = 128;
