//! Keepalive: when to probe a silent peer, and when to give it up.

use std::time::Duration;

/// Decides from the time and the signs of life what to do. Times count from any fixed moment.
///
/// A peer is given up for the time that this side watched, and not for that which the clock says: the clock jumps when this
/// host was suspended, or this process stopped, and the answer may be there, unread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keepalive {
    interval: Duration,
    detection: Duration,
    /// How much longer the answer may take, behind what is under way.
    grace: Duration,
    /// Something came since the last look at the clock.
    heard: bool,
    last: Duration,
    probe: Option<Probe>,
}

/// A question without an answer so far.
#[derive(Clone, Copy, Debug)]
struct Probe {
    /// The last look at the clock.
    looked: Duration,
    /// How long it has been watched for.
    watched: Duration,
    /// Looks that came too late to tell what was before.
    gaps: u32,
}

impl Probe {
    fn new(now: Duration) -> Self {
        Probe { looked: now, watched: Duration::ZERO, gaps: 0 }
    }

    /// Time has passed. True if the peer had so much of it, and this side watched.
    fn is_over(&mut self, now: Duration, patience: Duration) -> bool {
        let gap = now.saturating_sub(std::mem::replace(&mut self.looked, now));
        if gap <= patience / 2 {
            self.watched += gap;
        } else {
            self.gaps += 1;
        }
        self.watched >= patience || self.gaps > GAPS
    }
}

/// What is to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pulse {
    /// Nothing.
    Quiet,
    /// Post a probe: a zero-byte WRITE, whose completion is the sign of life.
    Probe,
    /// The probe was not answered in time.
    Lost,
}

impl Keepalive {
    pub(crate) fn new(interval: Duration, detection: Duration) -> Self {
        Keepalive { interval, detection, grace: Duration::ZERO, heard: false, last: Duration::ZERO, probe: None }
    }

    /// A sign of life.
    #[inline]
    pub(crate) fn heard(&mut self) {
        self.heard = true;
    }

    /// The peer lives as of now, and no probe is under way.
    pub(crate) fn start(&mut self, now: Duration) {
        (self.last, self.probe) = (now, None);
    }

    /// The answer to a probe may take that much longer: it comes behind what is under way.
    pub(crate) fn allow(&mut self, grace: Duration) {
        self.grace = grace;
    }

    /// The probe completed.
    pub(crate) fn answered(&mut self) {
        self.probe = None;
        self.heard = true;
    }

    /// True if no probe waits for its answer.
    pub(crate) fn is_answered(&self) -> bool {
        self.probe.is_none()
    }

    pub(crate) fn tick(&mut self, now: Duration) -> Pulse {
        if std::mem::take(&mut self.heard) {
            self.last = now;
            // The peer lives; its answer comes behind what it is about.
            if let Some(probe) = &mut self.probe {
                *probe = Probe::new(now);
            }
        }
        let patience = self.patience();
        match &mut self.probe {
            Some(probe) => match probe.is_over(now, patience) {
                true => Pulse::Lost,
                false => Pulse::Quiet,
            },
            None if now.saturating_sub(self.last) >= self.interval => {
                self.probe = Some(Probe::new(now));
                Pulse::Probe
            }
            None => Pulse::Quiet,
        }
    }

    /// Time since the last sign of life that [`tick`](Keepalive::tick) saw.
    pub(crate) fn silence(&self, now: Duration) -> Duration {
        now.saturating_sub(self.last)
    }

    /// The probe could not be posted; it will be tried again.
    pub(crate) fn postponed(&mut self) {
        self.probe = None;
    }

    fn patience(&self) -> Duration {
        self.detection.saturating_add(self.grace)
    }

    /// When [`tick`](Keepalive::tick) has something to do next.
    pub(crate) fn due(&self) -> Duration {
        match (&self.probe, self.patience()) {
            (Some(_), Duration::MAX) => Duration::MAX,
            (Some(probe), patience) => probe.looked.saturating_add(patience / LOOKS),
            (None, _) => self.last.saturating_add(self.interval),
        }
    }
}

/// Looks at the clock in the time that an answer may take: enough that one which is late by as much again still counts.
const LOOKS: u32 = 4;
/// Looks in a row that come too late until the peer is given up for all that: a program that rarely polls reads what has come
/// at each of them.
const GAPS: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_silent_peer_is_probed_and_then_lost() {
        let mut keepalive = Keepalive::new(SECOND, 2 * SECOND);
        keepalive.start(SECOND);
        assert_eq!(keepalive.tick(SECOND * 3 / 2), Pulse::Quiet);
        assert_eq!(keepalive.due(), 2 * SECOND);
        assert_eq!(keepalive.tick(2 * SECOND), Pulse::Probe);
        assert_eq!(keepalive.due(), SECOND * 5 / 2);
        assert_eq!(keepalive.tick(3 * SECOND), Pulse::Quiet);
        assert_eq!(keepalive.due(), SECOND * 7 / 2);
        assert_eq!(keepalive.tick(4 * SECOND), Pulse::Lost);
        assert!(!keepalive.is_answered());
        keepalive.answered();
        assert!(keepalive.is_answered(), "late, but not lost");
    }

    #[test]
    fn for_ever_is_a_time_too() {
        let mut keepalive = Keepalive::new(Duration::MAX, Duration::MAX);
        keepalive.start(SECOND);
        assert_eq!((keepalive.tick(Duration::from_secs(1 << 40)), keepalive.due()), (Pulse::Quiet, Duration::MAX));
        let mut keepalive = Keepalive::new(SECOND, Duration::MAX);
        assert_eq!((keepalive.tick(SECOND), keepalive.due()), (Pulse::Probe, Duration::MAX));
    }

    #[test]
    fn an_answer_or_a_message_puts_the_probe_off() {
        let mut keepalive = Keepalive::new(SECOND, SECOND);
        assert_eq!(keepalive.tick(SECOND), Pulse::Probe);
        keepalive.answered();
        assert_eq!(keepalive.tick(SECOND * 3 / 2), Pulse::Quiet);
        keepalive.heard();
        assert_eq!(keepalive.silence(SECOND * 9 / 4), SECOND * 3 / 4);
        assert_eq!(keepalive.tick(SECOND * 9 / 4), Pulse::Quiet);
        assert_eq!(keepalive.silence(SECOND * 9 / 4), Duration::ZERO);
        assert_eq!(keepalive.tick(SECOND * 13 / 4), Pulse::Probe);
    }

    #[test]
    fn a_probe_behind_a_long_transfer_has_longer() {
        let mut keepalive = Keepalive::new(SECOND, SECOND);
        keepalive.allow(3 * SECOND);
        assert_eq!(keepalive.tick(SECOND), Pulse::Probe);
        assert_eq!((keepalive.tick(3 * SECOND), keepalive.due()), (Pulse::Quiet, 4 * SECOND));
        assert_eq!(keepalive.tick(SECOND * 9 / 2), Pulse::Quiet);
        // It is over, and the answer still to come.
        keepalive.heard();
        keepalive.allow(Duration::ZERO);
        assert_eq!((keepalive.tick(6 * SECOND), keepalive.due()), (Pulse::Quiet, SECOND * 25 / 4));
        assert_eq!(keepalive.tick(SECOND * 13 / 2), Pulse::Quiet);
        assert_eq!(keepalive.tick(7 * SECOND), Pulse::Lost);
    }

    const HOUR: Duration = Duration::from_secs(3600);

    /// Looks when it is told to, from `now` on, until something is to be done; and when that was.
    fn watched(keepalive: &mut Keepalive, mut now: Duration) -> (Pulse, Duration) {
        loop {
            match keepalive.tick(now) {
                Pulse::Quiet => now = keepalive.due(),
                pulse => return (pulse, now),
            }
        }
    }

    #[test]
    fn a_jump_of_the_clock_costs_the_peer_none_of_its_time() {
        let mut keepalive = Keepalive::new(SECOND, SECOND);
        // Before a probe, it is the time for one.
        assert_eq!(keepalive.tick(HOUR), Pulse::Probe);
        // While it is under way, again and again.
        for hours in [2, 3, 50] {
            assert_eq!(keepalive.tick(hours * HOUR), Pulse::Quiet);
        }
        let (pulse, at) = watched(&mut keepalive, 50 * HOUR);
        assert_eq!((pulse, at), (Pulse::Lost, 50 * HOUR + SECOND));

        // Or the answer comes in that time, and all is as before.
        let mut keepalive = Keepalive::new(SECOND, SECOND);
        assert_eq!(keepalive.tick(SECOND), Pulse::Probe);
        assert_eq!(keepalive.tick(HOUR), Pulse::Quiet);
        keepalive.answered();
        assert_eq!(watched(&mut keepalive, HOUR + SECOND), (Pulse::Probe, HOUR + 2 * SECOND));
    }

    #[test]
    fn a_clock_that_stands_still_or_goes_back_gives_nobody_up() {
        let mut keepalive = Keepalive::new(SECOND, SECOND);
        assert_eq!(keepalive.tick(HOUR), Pulse::Probe);
        for _ in 0..10_000 {
            assert_eq!(keepalive.tick(HOUR), Pulse::Quiet);
        }
        assert_eq!(keepalive.tick(SECOND), Pulse::Quiet);
        assert_eq!(watched(&mut keepalive, SECOND), (Pulse::Lost, 2 * SECOND));
    }

    #[test]
    fn who_rarely_looks_finds_a_lost_peer_all_the_same() {
        let mut keepalive = Keepalive::new(SECOND, SECOND);
        let looks = (1..).take_while(|look| keepalive.tick(*look * HOUR) != Pulse::Lost).count();
        assert_eq!(looks, 1 + GAPS as usize);
    }
}
