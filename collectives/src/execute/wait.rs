//! How a rank waits: it spins, then gives way, then sleeps.

use std::time::{Duration, Instant};

use crate::deadline::Deadline;

/// How long to do what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Patience {
    /// Polls without giving way.
    pub(crate) spins: u32,
    /// Then, polls between which it gives way. Then it sleeps.
    pub(crate) yields: u32,
    /// Whether it sleeps for a moment now and then instead of giving way. Who gives way may be chosen again at once, for
    /// milliseconds, while the one that is waited for is not: the system deals a core's time by how much each has had. Who sleeps
    /// is not chosen.
    pub(crate) rests: bool,
}

/// How long an operation may take, from when it was started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeLimit {
    pub(super) limit: Duration,
    until: Deadline,
}

impl TimeLimit {
    /// So long from now on.
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, until: Deadline::after(limit) }
    }

    pub(crate) fn left(&self) -> Duration {
        self.until.left().unwrap_or(Duration::MAX)
    }

    pub(super) fn is_over(&self) -> bool {
        self.until.is_over()
    }
}

/// How far a wait is.
#[derive(Debug, Default)]
pub(crate) struct Wait {
    polls: u32,
    since: Option<Instant>,
    /// How often there was something to do.
    pub(super) moves: u32,
    /// Whether others were told where this rank waits.
    pub(crate) told: bool,
    /// When it last told others where it waits, as it looked.
    said: Option<Instant>,
    /// How long it had waited when it last asked those whom it waits for whether they do the same.
    asked: Duration,
    /// How often it did.
    pub(super) rounds: usize,
    /// A rank that left before it connected to this one, and since when it is waited for all the same.
    pub(super) absent: Option<(u32, Instant)>,
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Pause {
    /// Poll again.
    Poll,
    /// The same, after others were told where this rank waits.
    Tell,
    /// Sleep for so long at most.
    Sleep(Duration),
    /// Give up.
    Over,
}

impl Patience {
    /// For `ranks` ranks that share `cores` cores.
    ///
    /// Where each has its own, it spins for some half a millisecond, since being woken takes 30 us and more. Where they
    /// share, spinning keeps the awaited rank from running, if it is on this core; if it is on another, giving way too
    /// soon costs two switches for nothing. Eight polls are about 100 ns, the time of a message between cores: all-reduce
    /// of 16 B on 4 ranks and 2 cores takes 2.2 us with 8, 2.6 with none, 2.9 with 24. To give way takes half a
    /// microsecond where nobody else wants to run, so that it comes to a millisecond before it sleeps. Where some ranks are
    /// `apart`, on other nodes, a poll asks the system for packets, and takes some microseconds: then each gives way.
    pub(crate) fn new(ranks: usize, cores: usize, apart: bool) -> Self {
        match (ranks <= cores, apart) {
            (true, _) => Patience { spins: 20_000, yields: 500, rests: false },
            (false, false) => Patience { spins: 8, yields: 2_000, rests: false },
            (false, true) => Patience { spins: 1, yields: 2_000, rests: true },
        }
    }

    /// The same for who waits for a rank on its own core, which does not run meanwhile: on two cores an all-to-all of 256 B takes
    /// 15 us instead of 18 among 8 ranks, an all-reduce 4.0 instead of 4.4 among 4.
    pub(crate) fn at_once(self) -> Self {
        Patience { spins: 1, ..self }
    }

    /// Why it is so, for people.
    pub(crate) fn reason(self) -> &'static str {
        if self.spins > SOON { "as each rank here has a core" } else { "as ranks here share cores" }
    }
}

impl Wait {
    /// Something happened, or a wait begins.
    #[inline]
    pub(crate) fn reset(&mut self) {
        self.polls = 0;
        self.since = None;
    }

    /// Nothing happened.
    #[inline]
    pub(super) fn pause(&mut self, patience: Patience, limit: Duration) -> Pause {
        self.polls = self.polls.saturating_add(1);
        if self.polls < patience.spins {
            if self.polls > EAGER {
                std::hint::spin_loop();
            }
            return Pause::Poll;
        }
        self.give_way(patience, limit)
    }

    /// The same, for a wait that is to be short. False if it was not, and nothing has been done yet.
    #[inline]
    pub(super) fn pause_briefly(&mut self, patience: Patience) -> bool {
        self.polls < patience.spins + BRIEF && self.pause(patience, Duration::MAX) == Pause::Poll
    }

    /// Whether nothing has happened for so long, as far as it was looked.
    pub(super) fn is_over(&mut self, limit: Duration) -> bool {
        self.waited() >= limit
    }

    /// Whether it is time for one that only looks to tell others where it waits: if it has for a while, and again as long as it does.
    pub(super) fn is_to_say(&mut self) -> bool {
        let due = self.waited() >= SAY && self.said.is_none_or(|said| said.elapsed() >= SAY);
        if due {
            self.said = Some(Instant::now());
        }
        due
    }

    /// Whether it is time to ask those who are waited for whether they do the same: after [`ASK`], and each time after twice as long.
    pub(super) fn is_to_ask(&mut self) -> bool {
        let waited = self.waited();
        if waited < self.asked {
            // It is another wait.
            self.asked = Duration::ZERO;
        }
        let due = waited >= ASK.max(2 * self.asked);
        if due {
            self.asked = waited;
            self.rounds += 1;
        }
        due
    }

    fn waited(&mut self) -> Duration {
        self.since.get_or_insert_with(Instant::now).elapsed()
    }

    #[cold]
    fn give_way(&mut self, patience: Patience, limit: Duration) -> Pause {
        if self.polls < patience.spins + patience.yields {
            let given = self.polls - patience.spins;
            if patience.rests && given % REST == REST - 1 {
                std::thread::sleep(BREATH);
            } else {
                std::thread::yield_now();
            }
            // Where cores are shared by many, it may be seconds before it sleeps.
            return if self.polls == patience.spins + TELL { Pause::Tell } else { Pause::Poll };
        }
        let waited = self.waited();
        if waited >= limit { Pause::Over } else { Pause::Sleep(NAP.min(limit - waited)) }
    }
}

/// Polls one right after the other, for a microsecond or two: in the pause that a waiting processor makes for its sibling thread, of
/// up to 50 ns, a message would be late. Where ranks share cores they give way before.
const EAGER: u32 = 100;

/// Polls without giving way at most, where ranks share cores.
const SOON: u32 = 8;

/// Times that a rank gives way until it sleeps for a moment instead, if it does, some 0.2 ms. Without that an all-reduce of 1 KiB
/// among four hosts on two cores took 2 ms instead of 0.04 for the first hundred times, in two runs of five.
const REST: u32 = 128;
const BREATH: Duration = Duration::from_micros(20);

/// Times that a rank gives way in a short wait: fewer than before it tells where it waits, or sleeps for a moment.
const BRIEF: u32 = 64;
const _: () = assert!(BRIEF < TELL && BRIEF < REST);

/// Times that a rank gives way before it tells where it waits.
const TELL: u32 = 256;

/// Between two words of a rank that looks now and then.
const SAY: Duration = Duration::from_millis(200);

/// Time without anything after which a rank asks those whom it waits for whether they do the same. Most of those who are waited for
/// are late, and no worse for one message.
const ASK: Duration = Duration::from_millis(200);

/// Between two looks at what the other ranks have to say about faults.
const NAP: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_spins_yields_sleeps_and_gives_up() {
        let patience = Patience { spins: 3, yields: 2, rests: true };
        let mut wait = Wait::default();
        let limit = Duration::from_secs(3600);
        for _ in 0..4 {
            assert_eq!(wait.pause(patience, limit), Pause::Poll);
        }
        assert_eq!(wait.pause(patience, limit), Pause::Sleep(NAP));
        assert_eq!(wait.pause(patience, Duration::ZERO), Pause::Over);
        wait.reset();
        assert_eq!(wait.pause(patience, Duration::ZERO), Pause::Poll);
    }

    #[test]
    fn it_asks_after_a_while_and_then_less_and_less() {
        let mut wait = Wait::default();
        assert!(!wait.is_to_ask());
        let mut waited = |ago: Duration| {
            wait.since = Instant::now().checked_sub(ago);
            wait.is_to_ask()
        };
        assert!(waited(ASK) && !waited(ASK * 3 / 2));
        assert!(waited(ASK * 3) && !waited(ASK * 4) && waited(ASK * 7));
        assert!(!waited(ASK / 2) && waited(ASK), "another wait");
    }

    #[test]
    fn who_only_looks_says_now_and_then_where_it_waits() {
        let mut wait = Wait::default();
        assert!(!wait.is_to_say());
        wait.since = Instant::now().checked_sub(SAY);
        assert!(wait.is_to_say() && !wait.is_to_say());
        wait.said = Instant::now().checked_sub(SAY);
        assert!(wait.is_to_say());
    }

    #[test]
    fn ranks_that_share_cores_give_way_soon() {
        assert!(Patience::new(4, 2, false).spins < 20);
        assert_eq!((Patience::new(4, 2, true).spins, Patience::new(4, 2, true).rests), (1, true));
        assert_eq!(Patience::new(2, 2, true), Patience::new(2, 2, false));
        assert_eq!(Patience::new(4, 2, false).reason(), "as ranks here share cores");
        assert_eq!(Patience::new(2, 2, false).reason(), "as each rank here has a core");
    }
}
