//! Waiting by polling, without hanging when the other side is gone and without keeping it from its core.

use std::time::Instant;

use qpair::verbs::{QpState, QueuePair};

use super::error::PerfError;
use super::exchange::Exchange;

/// Counts polls that found nothing, and now and then looks whether waiting still makes sense.
#[derive(Debug)]
pub struct Watch<'a> {
    exchange: &'a Exchange,
    idle: u32,
    /// When it began to look; no matter while nothing is waited for.
    since: Option<Instant>,
}

impl<'a> Watch<'a> {
    /// A watch over the side at the other end of `exchange`.
    pub fn new(exchange: &'a Exchange) -> Self {
        Watch { exchange, idle: 0, since: None }
    }

    /// Something came.
    #[inline]
    pub fn progress(&mut self) {
        self.idle = 0;
    }

    /// A poll found nothing.
    ///
    /// # Errors
    /// [`PerfError::PeerClosed`] if the other side is gone, [`PerfError::Silent`] if nothing came for too long,
    /// [`PerfError::QueuePairFailed`] if `qp` is in the error state.
    #[inline]
    pub fn idle(&mut self, qp: Option<&QueuePair>) -> Result<(), PerfError> {
        self.idle += 1;
        if self.idle < SPINS { Ok(()) } else { self.look(qp) }
    }

    #[cold]
    fn look(&mut self, qp: Option<&QueuePair>) -> Result<(), PerfError> {
        // The other side may need this core.
        std::thread::yield_now();
        if self.idle == SPINS {
            self.since = Some(Instant::now());
        }
        if self.idle >= SPINS + YIELDS {
            self.idle = SPINS;
            self.exchange.check_open()?;
            if qp.is_some_and(|qp| qp.state() == QpState::Err) {
                return Err(PerfError::QueuePairFailed);
            }
            if self.since.is_some_and(|since| since.elapsed() > self.exchange.patience()) {
                return Err(PerfError::Silent);
            }
        }
        Ok(())
    }
}

/// About a microsecond of polling: some times a shared-memory round trip. What takes longer is little disturbed by yields.
const SPINS: u32 = 1_000;
/// A look costs a system call; this many yields make it rare and still take only milliseconds.
const YIELDS: u32 = 1_000;
