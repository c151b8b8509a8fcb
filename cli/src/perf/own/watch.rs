//! Waiting by polling, without hanging when the other side is gone and without keeping it from its core.

use qpair::verbs::{QpState, QueuePair};

use super::exchange::Exchange;
use crate::perf::error::PerfError;
use crate::perf::idle::{Idle, Pace};

/// Counts polls that found nothing, and now and then looks whether waiting still makes sense.
#[derive(Debug)]
pub struct Watch<'a> {
    exchange: &'a Exchange,
    idle: Idle,
}

impl<'a> Watch<'a> {
    /// A watch over the side at the other end of `exchange`.
    pub fn new(exchange: &'a Exchange) -> Self {
        Watch { exchange, idle: Idle::new(Pace::Memory) }
    }

    /// Something came.
    #[inline]
    pub fn progress(&mut self) {
        self.idle.progress();
    }

    /// A poll found nothing.
    ///
    /// # Errors
    /// [`PerfError::PeerClosed`] if the other side is gone, [`PerfError::Silent`] if nothing came for too long,
    /// [`PerfError::QueuePairFailed`] if `qp` is in the error state.
    #[inline]
    pub fn idle(&mut self, qp: Option<&QueuePair>) -> Result<(), PerfError> {
        if self.idle.spin() { Ok(()) } else { self.look(qp) }
    }

    #[cold]
    fn look(&mut self, qp: Option<&QueuePair>) -> Result<(), PerfError> {
        if !self.idle.rest() {
            return Ok(());
        }
        self.exchange.check_open()?;
        if qp.is_some_and(|qp| qp.state() == QpState::Err) {
            return Err(PerfError::QueuePairFailed);
        }
        if self.idle.is_over(self.exchange.patience()) { Err(PerfError::Silent) } else { Ok(()) }
    }
}
