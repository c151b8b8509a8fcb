//! Whether an acknowledgment may wait for a request that it goes with, as a responder may let it: IBA 9.7.5.1.2.

use std::time::{Duration, Instant};

/// Of the acknowledgment that is owed.
#[derive(Debug, Default)]
pub(super) struct Patience {
    /// Until when it may wait; `None` if it may not, or none is owed.
    until: Option<Instant>,
    /// Messages that it is of, and that may wait.
    messages: u32,
    /// Acknowledgments that do not wait, since one has waited in vain.
    hasty: u32,
}

impl Patience {
    /// A message was done whose acknowledgment may wait.
    pub(super) fn done(&mut self) {
        self.messages += 1;
    }

    /// Something was done whose acknowledgment may not.
    pub(super) fn hurry(&mut self) {
        self.messages = MOST;
    }

    /// An acknowledgment is owed, and nothing else: it may wait so long from when the first of its messages was done.
    pub(super) fn owe(&mut self, now: Instant, delay: Duration) {
        if self.hasty > 0 || delay.is_zero() || !(1..MOST).contains(&self.messages) {
            self.until = None;
        } else if self.until.is_none() {
            self.until = Some(now + delay);
        }
    }

    /// Another answer is owed, too.
    pub(super) fn end(&mut self) {
        self.until = None;
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
        if self.until.is_some_and(|until| until <= now) {
            (self.until, self.hasty) = (None, HASTY);
        }
    }

    /// It went.
    pub(super) fn gone(&mut self, now: Instant) {
        self.hasty = self.hasty.saturating_sub(1);
        self.handle_timeout(now);
        (self.until, self.messages) = (None, 0);
    }
}

/// Messages of which an acknowledgment does not wait.
const MOST: u32 = 8;
/// Acknowledgments after one that has waited in vain, until one waits again: a peer that waits for each, and is sent nothing,
/// loses little.
const HASTY: u32 = 128;
