//! The network's thread: it drives the protocol while nobody polls, so that peers are answered and what is lost is sent
//! again. While somebody polls it sleeps by the clock, and no packet wakes it.

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
    loop {
        let Some(awake) = network.upgrade().filter(|network| !network.closing.load(Ordering::SeqCst)) else { return };
        let is_polled = awake.is_polled.swap(false, Ordering::Relaxed);
        awake.dozes.store(is_polled, Ordering::SeqCst);
        let rest = if is_polled {
            Rest { until: Some(Instant::now() + DOZE), hears: false }
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
