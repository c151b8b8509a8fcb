//! Sending again: how often, and why.

use super::ReliableConfig;
use crate::counters::Counters;
use crate::work::Outcome;

/// Whether something is sent again, and how often that may still be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recovery {
    stage: Stage,
    /// Times left; none: without end.
    left: Option<u8>,
    most: Option<u8>,
    /// The same for want of a receive.
    rnr_left: Option<u8>,
    rnr_most: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing is, or something new was answered since.
    Over,
    /// Since no answer came, or the peer had no receive, or it may never have gone.
    Begun,
    /// Since the peer's answers tell of a loss, as they do once for each.
    Told,
}

impl Recovery {
    pub(super) fn new(config: &ReliableConfig) -> Self {
        let (most, rnr_most) = (config.retry_count, config.rnr_retry);
        Recovery { stage: Stage::Over, left: most, most, rnr_left: rnr_most, rnr_most }
    }

    /// True while something is sent again. What else tells of the same loss is passed over.
    pub(super) fn is_on(&self) -> bool {
        self.stage != Stage::Over
    }

    /// True if what tells of a loss tells of one in what is sent again.
    pub(super) fn may_be_told(&self) -> bool {
        self.stage == Stage::Begun
    }

    /// It is sent again.
    pub(super) fn begin(&mut self) {
        self.stage = Stage::Begun;
    }

    /// The peer told of a loss.
    pub(super) fn told(&mut self) {
        self.stage = Stage::Told;
    }

    /// Something new was answered: what is lost behind that has all its retries.
    pub(super) fn end(&mut self) {
        self.stage = Stage::Over;
        self.answered();
    }

    /// The peer is there.
    pub(super) fn answered(&mut self) {
        self.left = self.most;
    }

    /// The peer had a receive.
    pub(super) fn accepted(&mut self) {
        self.rnr_left = self.rnr_most;
    }

    /// Takes a retry.
    pub(super) fn take(&mut self, counters: &mut Counters) -> Result<(), Outcome> {
        if !take_one(&mut self.left) {
            counters.retry_exceeded_err += 1;
            return Err(Outcome::RetriesExceeded);
        }
        Ok(())
    }

    /// Takes a retry for want of a receive.
    pub(super) fn take_rnr(&mut self, counters: &mut Counters) -> Result<(), Outcome> {
        if !take_one(&mut self.rnr_left) {
            counters.rnr_nak_retry_err += 1;
            return Err(Outcome::RnrRetriesExceeded);
        }
        Ok(())
    }
}

/// One less, unless there is none.
fn take_one(left: &mut Option<u8>) -> bool {
    match left {
        Some(0) => false,
        Some(left) => {
            *left -= 1;
            true
        }
        None => true,
    }
}
