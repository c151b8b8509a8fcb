//! Waiting by polling or by events, without hanging when the other side is gone or has gone on.

use std::time::{Duration, Instant};

use qpair::verbs::Arm;

use super::bench::Bench;
use super::error::{ExchangeError, Step};
use super::link::{Link, Peer};
use super::progress::Progress;
use crate::perf::error::PerfError;
use crate::perf::idle::{Idle, Pace};

/// Counts polls that found nothing, and now and then looks whether waiting still makes sense.
#[derive(Debug)]
pub struct Watch<'a> {
    link: &'a Link,
    idle: Idle,
    /// When the other side was first seen to have gone on.
    ahead: Option<Instant>,
    /// Polls that found something.
    busy: u32,
    progress: Option<Progress>,
}

impl<'a> Watch<'a> {
    /// A watch over the side at the other end of `link`, which tells of the progress where there is one to tell of.
    pub fn new(link: &'a Link, pace: Pace, progress: Option<Progress>) -> Self {
        Watch { link, idle: Idle::new(pace), ahead: None, busy: 0, progress }
    }

    /// Something came.
    #[inline]
    pub fn progress(&mut self) {
        self.idle.progress();
        self.ahead = None;
    }

    /// Something came, so many messages in all, of that which comes also where the other side is gone: datagrams leave
    /// without anybody there.
    ///
    /// # Errors
    /// [`ExchangeError::Closed`].
    #[inline]
    pub fn busy(&mut self, messages: u64) -> Result<(), PerfError> {
        self.progress();
        self.busy = self.busy.wrapping_add(1);
        if self.busy.is_multiple_of(BUSY) {
            self.tell(messages);
            if self.link.look()? == Peer::Gone {
                return Err(ExchangeError::Closed { step: Step::Run }.into());
            }
        }
        Ok(())
    }

    /// A poll found nothing, after so many messages. Tells where the other side is if it has gone on, and nothing came
    /// since.
    ///
    /// # Errors
    /// [`ExchangeError::Silent`] if nothing came for too long, [`PerfError::QueuePairFailed`] if a queue pair failed.
    #[inline]
    pub fn idle(&mut self, bench: &mut Bench, messages: u64) -> Result<Option<Peer>, PerfError> {
        if self.idle.spin() { Ok(None) } else { self.pause(bench, messages) }
    }

    /// Where the other side is, without waiting.
    ///
    /// # Errors
    /// [`PerfError::Exchange`].
    pub fn peer(&self) -> Result<Peer, PerfError> {
        self.link.look()
    }

    /// True now and then while nothing comes: for what costs more than a poll.
    #[inline]
    pub fn now_and_then(&self) -> bool {
        self.idle.now_and_then()
    }

    #[cold]
    fn pause(&mut self, bench: &mut Bench, messages: u64) -> Result<Option<Peer>, PerfError> {
        self.idle.note();
        match &bench.channel {
            Some(_) if !bench.armed => {
                // Something may have come in between: the caller polls once more.
                bench.send_cq.arm(Arm::Any);
                bench.recv_cq.arm(Arm::Any);
                bench.armed = true;
                return Ok(None);
            }
            Some(channel) => {
                let rang = channel.wait(Some(SLEEP)).map_err(PerfError::Exchange)?;
                bench.armed = false;
                if rang {
                    channel.clear();
                    return Ok(None);
                }
            }
            None if !self.idle.rest() => return Ok(None),
            None => {}
        }
        self.tell(messages);
        self.look(bench)
    }

    #[cold]
    fn tell(&mut self, messages: u64) {
        if let Some(progress) = &mut self.progress {
            progress.look(messages);
        }
    }

    fn look(&mut self, bench: &Bench) -> Result<Option<Peer>, PerfError> {
        let peer = self.link.look()?;
        if peer != Peer::Running {
            // What it sent before may still be on its way.
            let since = *self.ahead.get_or_insert_with(Instant::now);
            return Ok((since.elapsed() > GRACE).then_some(peer));
        }
        if bench.has_failed() {
            return Err(PerfError::QueuePairFailed);
        }
        if self.idle.is_over(self.link.patience()) {
            return Err(ExchangeError::Silent { step: Step::Run, seconds: self.link.patience().as_secs() }.into());
        }
        Ok(None)
    }
}

/// Turns with something to do between two looks at the other side: one costs less than a turn.
const BUSY: u32 = 256;
/// A sleep that nothing ends.
const SLEEP: Duration = Duration::from_millis(100);
/// Far above what a message takes that was sent before the other side went on.
const GRACE: Duration = Duration::from_millis(500);
