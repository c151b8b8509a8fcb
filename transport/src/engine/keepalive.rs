//! Keepalive: when to probe a silent peer, and when to give it up.

use std::time::Duration;

/// Decides from the time and the signs of life what to do. Times count from any fixed moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keepalive {
    interval: Duration,
    detection: Duration,
    /// How much longer the answer may take, behind what is under way.
    grace: Duration,
    /// Something came since the last look at the clock.
    heard: bool,
    last: Duration,
    probe: Option<Duration>,
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

    pub(crate) fn start(&mut self, now: Duration) {
        self.last = now;
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
            if let Some(since) = &mut self.probe {
                *since = now;
            }
        }
        match self.probe {
            Some(since) if now.saturating_sub(since) >= self.patience() => Pulse::Lost,
            Some(_) => Pulse::Quiet,
            None if now.saturating_sub(self.last) >= self.interval => {
                self.probe = Some(now);
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
        match self.probe {
            Some(since) => since.saturating_add(self.patience()),
            None => self.last.saturating_add(self.interval),
        }
    }
}

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
        assert_eq!(keepalive.tick(3 * SECOND), Pulse::Quiet);
        assert_eq!(keepalive.due(), 4 * SECOND);
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
        assert_eq!((keepalive.tick(4 * SECOND), keepalive.due()), (Pulse::Quiet, 5 * SECOND));
        // It is over, and the answer still to come.
        keepalive.heard();
        keepalive.allow(Duration::ZERO);
        assert_eq!((keepalive.tick(6 * SECOND), keepalive.due()), (Pulse::Quiet, 7 * SECOND));
        assert_eq!(keepalive.tick(7 * SECOND), Pulse::Lost);
    }
}
