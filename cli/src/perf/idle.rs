//! Polling for what the other side sends, on a machine that may have but one core for both.

use std::time::{Duration, Instant};

/// How to poll, by who does the work meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// The other side's process: the software device.
    Memory,
    /// A device.
    Device,
    /// Who polls sleeps after each poll that finds nothing.
    Sleeps,
}

/// Counts polls in a row that found nothing.
#[derive(Debug)]
pub struct Idle {
    pace: Pace,
    /// Polls before a first pause.
    spins: u32,
    polls: u32,
    /// When the first pause was; none while something comes.
    since: Option<Instant>,
}

impl Idle {
    /// At this pace.
    pub fn new(pace: Pace) -> Self {
        let spins = match pace {
            Pace::Memory => SPINS,
            Pace::Device => DEVICE_SPINS,
            Pace::Sleeps => 0,
        };
        Idle { pace, spins, polls: 0, since: None }
    }

    /// Something came.
    #[inline]
    pub fn progress(&mut self) {
        self.polls = 0;
        self.since = None;
    }

    /// A poll found nothing: true if the next one is due at once.
    #[inline]
    pub fn spin(&mut self) -> bool {
        self.polls += 1;
        self.polls < self.spins
    }

    /// True now and then while nothing comes: for what costs more than a poll.
    #[inline]
    pub fn now_and_then(&self) -> bool {
        self.polls.is_multiple_of(SELDOM)
    }

    /// A pause begins: takes note of the time, if it is the first.
    pub fn note(&mut self) {
        self.since.get_or_insert_with(Instant::now);
    }

    /// A pause: leaves the core to others. True if it is time to look whether waiting still makes sense.
    pub fn rest(&mut self) -> bool {
        self.note();
        // The other side may need this core.
        std::thread::yield_now();
        match self.pace {
            Pace::Memory if self.polls < SPINS + YIELDS => return false,
            Pace::Memory => self.polls = SPINS,
            Pace::Device | Pace::Sleeps => self.polls = 0,
        }
        true
    }

    /// True if nothing came for more than `limit`.
    pub fn is_over(&self, limit: Duration) -> bool {
        self.since.is_some_and(|since| since.elapsed() > limit)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Polls that find nothing until it is time to look.
    fn until_a_look(idle: &mut Idle) -> u32 {
        (1..).find(|_| !idle.spin() && idle.rest()).expect("some time")
    }

    #[test]
    fn memory_is_spun_on_then_left_then_looked_after() {
        let mut idle = Idle::new(Pace::Memory);
        assert_eq!((1..).find(|_| !idle.spin()), Some(SPINS));
        idle.progress();
        assert_eq!(until_a_look(&mut idle), SPINS + YIELDS);
        assert_eq!(until_a_look(&mut idle), YIELDS, "it does not spin again");
        idle.progress();
        assert_eq!(until_a_look(&mut idle), SPINS + YIELDS);
    }

    #[test]
    fn a_device_is_left_seldom_and_who_sleeps_does_not_spin() {
        let mut idle = Idle::new(Pace::Device);
        assert_eq!([until_a_look(&mut idle), until_a_look(&mut idle)], [DEVICE_SPINS; 2]);
        assert!(!Idle::new(Pace::Sleeps).spin());
    }

    #[test]
    fn the_wait_counts_from_its_first_pause_over_all_looks() {
        for pace in [Pace::Memory, Pace::Device, Pace::Sleeps] {
            let mut idle = Idle::new(pace);
            assert!(!idle.is_over(Duration::ZERO));
            until_a_look(&mut idle);
            let first = idle.since;
            until_a_look(&mut idle);
            assert!(first.is_some() && idle.since == first, "{pace:?}");
            assert!(!idle.is_over(Duration::from_secs(3600)));
            idle.progress();
            assert!(!idle.is_over(Duration::ZERO), "nothing is waited for");
        }
    }
}
