//! The network's thread: it drives the protocol while nobody polls, so that peers are answered and what is lost is sent
//! again. While somebody polls it sleeps by the clock, and no packet wakes it; it helps who polls too seldom.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::network::Network;

/// How the thread sleeps.
pub(super) struct Rest {
    /// Until then; none: without end.
    pub(super) until: Option<Instant>,
    /// Packets wake it.
    pub(super) hears: bool,
}

/// Starts the thread. It ends with the network.
pub(super) fn start(network: &Arc<Network>) -> io::Result<JoinHandle<()>> {
    let bell = network.bell.as_fd().try_clone_to_owned()?;
    let sockets = network.descriptor()?;
    let network = Arc::downgrade(network);
    std::thread::Builder::new().name("qpair-network".to_owned()).spawn(move || run(&network, &bell, &sockets))
}

fn run(network: &Weak<Network>, bell: &OwnedFd, sockets: &OwnedFd) {
    let mut duty = Duty::new(Instant::now());
    loop {
        let Some(awake) = network.upgrade().filter(|network| !network.closing.load(Ordering::SeqCst)) else { return };
        let now = Instant::now();
        let dozes = duty.is_others(now, awake.polls.swap(0, Ordering::Relaxed));
        awake.dozes.store(dozes, Ordering::SeqCst);
        let rest = if dozes {
            Rest { until: Some(now + DOZE), hears: false }
        } else {
            // As of what logs for the application. What is used then is the device's, which fails.
            let Ok(rest) = catch_unwind(AssertUnwindSafe(|| awake.serve())) else {
                let _ = catch_unwind(AssertUnwindSafe(|| awake.give_up()));
                return;
            };
            rest
        };
        drop(awake);
        sleep(bell, sockets, &rest);
        let _ = rustix::io::read(bell, &mut [0u8; 8]);
    }
}

/// Whether the network is left to those who poll.
#[derive(Debug)]
struct Duty {
    /// It is since then, or is not.
    since: Instant,
    is_others: bool,
    /// They poll too seldom, and so often since then.
    seldom: Option<u32>,
}

impl Duty {
    fn new(now: Instant) -> Self {
        Duty { since: now, is_others: false, seldom: None }
    }

    /// Whether it is from now on, after so many polls more.
    fn is_others(&mut self, now: Instant, polls: u32) -> bool {
        let passed = now.saturating_duration_since(self.since);
        let is_seldom = |polls: u32| passed.saturating_mul(OFTEN) > DOZE.saturating_mul(polls);
        self.is_others = match &mut self.seldom {
            Some(seen) => {
                *seen = seen.saturating_add(polls);
                if passed < DOZE {
                    return false;
                }
                // Nobody, or often: as if there had been nothing.
                self.seldom = (*seen > 0 && is_seldom(*seen)).then_some(0);
                self.seldom.is_none() && polls > 0
            }
            None => {
                // Of those who have just begun, or have gone to sleep meanwhile, it is not known.
                if self.is_others && polls > 0 && passed >= DOZE && is_seldom(polls) {
                    self.seldom = Some(0);
                }
                polls > 0 && self.seldom.is_none()
            }
        };
        self.since = now;
        self.is_others
    }
}

/// Sleeps until the bell rings, a socket has something, or the time has come.
fn sleep(bell: &OwnedFd, sockets: &OwnedFd, rest: &Rest) {
    let mut fds = [bell, sockets].map(|fd| PollFd::new(fd, PollFlags::IN));
    let fds = if rest.hears { &mut fds[..] } else { &mut fds[..1] };
    let left = rest.until.map(|until| until.saturating_duration_since(Instant::now()));
    let limit = left.and_then(|left| Timespec::try_from(left).ok());
    // However it ends, there is a look.
    let _ = poll(fds, limit.as_ref());
}

/// How long the thread leaves alone what others poll: longer than a scheduler's turn, and as long as a peer may wait that
/// writes to a program which polled and then computes.
const DOZE: Duration = Duration::from_millis(2);
/// Polls in that time from which on they are enough. Each takes 64 KiB at most of what comes: 1 GB/s.
const OFTEN: u32 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    /// What becomes of the network in each of so many rounds, which take `round` and in which others poll so often.
    fn rounds(duty: &mut Duty, now: &mut Instant, round: Duration, polls: u32, count: usize) -> Vec<bool> {
        let mut next = || {
            *now += round;
            duty.is_others(*now, polls)
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn who_polls_often_is_left_alone_and_who_polls_seldom_is_helped() {
        let mut now = Instant::now();
        let mut duty = Duty::new(now);
        let short = DOZE / 20;
        assert_eq!(rounds(&mut duty, &mut now, short, 0, 3), [false; 3]);
        assert_eq!(rounds(&mut duty, &mut now, DOZE, OFTEN, 5), [true; 5]);
        // From the first time on that it is known.
        assert_eq!(rounds(&mut duty, &mut now, DOZE, 2, 3), [false; 3]);
        // A poll here and there, while packets wake the thread.
        for _ in 0..100 {
            assert_eq!(rounds(&mut duty, &mut now, short, 0, 9), [false; 9]);
            assert_eq!(rounds(&mut duty, &mut now, short, 1, 1), [false]);
        }
        // Often once more.
        let again = rounds(&mut duty, &mut now, short, 2, 60);
        assert!(again[..10].iter().all(|is_others| !is_others) && again[40..].iter().all(|&is_others| is_others));
        // Nobody.
        assert_eq!(rounds(&mut duty, &mut now, DOZE, 0, 3), [false; 3]);
        // Who has just begun is not known to poll seldom, nor who went to sleep and rang.
        assert_eq!(rounds(&mut duty, &mut now, short, 1, 1), [true]);
        assert_eq!(rounds(&mut duty, &mut now, short, 0, 1), [false]);
        assert_eq!(rounds(&mut duty, &mut now, short, 1, 1), [true]);
    }
}
