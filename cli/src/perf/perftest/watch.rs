//! Waiting by polling or by events, without hanging when the other side is gone or has gone on.

use std::time::{Duration, Instant};

use qpair::verbs::Arm;

use super::bench::Bench;
use super::error::{ExchangeError, Step};
use super::link::{Link, Peer};
use super::progress::Progress;
use crate::perf::error::PerfError;

/// Counts polls that found nothing, and now and then looks whether waiting still makes sense.
#[derive(Debug)]
pub struct Watch<'a> {
    link: &'a Link,
    idle: u32,
    /// When it began to look; none while something comes.
    since: Option<Instant>,
    /// When the other side was first seen to have gone on.
    ahead: Option<Instant>,
    /// Polls that found something.
    busy: u32,
    progress: Option<Progress>,
}

impl<'a> Watch<'a> {
    /// A watch over the side at the other end of `link`, which tells of the progress where there is one to tell of.
    pub fn new(link: &'a Link, progress: Option<Progress>) -> Self {
        Watch { link, idle: 0, since: None, ahead: None, busy: 0, progress }
    }

    /// Something came.
    #[inline]
    pub fn progress(&mut self) {
        self.idle = 0;
        self.since = None;
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
        self.idle += 1;
        if self.idle < bench.spins { Ok(None) } else { self.pause(bench, messages) }
    }

    /// Polls in a row that may find nothing before there is a pause.
    pub fn spins(soft: bool, events: bool) -> u32 {
        match (events, soft) {
            (true, _) => 0,
            (false, true) => SPINS,
            (false, false) => DEVICE_SPINS,
        }
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
        self.idle.is_multiple_of(SELDOM)
    }

    #[cold]
    fn pause(&mut self, bench: &mut Bench, messages: u64) -> Result<Option<Peer>, PerfError> {
        self.since.get_or_insert_with(Instant::now);
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
            None => {
                // The other side may need this core.
                std::thread::yield_now();
                if bench.spins == DEVICE_SPINS {
                    self.idle = 0;
                } else if self.idle < SPINS + YIELDS {
                    return Ok(None);
                } else {
                    self.idle = SPINS;
                }
            }
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
        if self.since.is_some_and(|since| since.elapsed() > self.link.patience()) {
            return Err(ExchangeError::Silent { step: Step::Run, seconds: self.link.patience().as_secs() }.into());
        }
        Ok(None)
    }
}

/// Polls before a first pause on the software device: about a microsecond, some times a round trip in memory. What takes
/// longer is little disturbed by yields.
const SPINS: u32 = 1_000;
/// Polls between two pauses on other devices, as long as a hundred round trips and more: they work while this side polls, and
/// with a yield in each round trip, one between two processes of a host with two processors took longer.
const DEVICE_SPINS: u32 = 1 << 14;
/// A look costs a system call; this many yields make it rare and still take only milliseconds.
const YIELDS: u32 = 1_000;
const SELDOM: u32 = 64;
/// Turns with something to do between two looks at the other side: one costs less than a turn.
const BUSY: u32 = 256;
/// A sleep that nothing ends.
const SLEEP: Duration = Duration::from_millis(100);
/// Far above what a message takes that was sent before the other side went on.
const GRACE: Duration = Duration::from_millis(500);
