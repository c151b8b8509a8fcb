//! Bells that are slept upon together (epoll). Each rings on until it is cleared itself.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use super::bell::Bell;

/// A set of bells: its descriptor is readable while any of them rings.
#[derive(Debug)]
pub(crate) struct Bells(OwnedFd);

impl Bells {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Bells(epoll::create(CreateFlags::CLOEXEC)?))
    }

    pub(crate) fn add(&self, bell: &Bell) -> io::Result<()> {
        Ok(epoll::add(&self.0, bell, EventData::new_u64(name(bell)), EventFlags::IN)?)
    }

    /// Takes a bell out.
    pub(crate) fn remove(&self, bell: &Bell) {
        let _ = epoll::delete(&self.0, bell);
    }

    /// Shows each bell that rings now to `clear`, by its [`name`]; `count` are there.
    pub(crate) fn each_ringing(&self, count: usize, mut clear: impl FnMut(u64)) {
        // Those that were shown once come last.
        for _ in 0..count.div_ceil(BATCH) {
            let mut events = [MaybeUninit::<Event>::uninit(); BATCH];
            let now = rustix::event::Timespec::default();
            let Ok((ringing, _)) = epoll::wait(&self.0, &mut events, Some(&now)) else { return };
            ringing.iter().for_each(|event| clear(event.data.u64()));
            if ringing.len() < BATCH {
                return;
            }
        }
    }
}

/// What a bell is called among others of this process.
pub(crate) fn name(bell: &Bell) -> u64 {
    bell.as_raw_fd() as u64
}

impl AsFd for Bells {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Bells {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Bells taken note of at a time.
const BATCH: usize = 16;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::eventfd::wait;
    use super::*;

    #[test]
    fn each_rings_until_it_is_cleared_itself() {
        let bells = Bells::new().unwrap();
        let all: Vec<Bell> = (0..40).map(|_| Bell::new().unwrap()).collect();
        all.iter().for_each(|bell| bells.add(bell).unwrap());
        let rings = || wait(&bells, Some(Duration::ZERO)).unwrap();
        let cleared = |clear: &[usize]| {
            let mut found = Vec::new();
            bells.each_ringing(all.len(), |which| {
                let place = all.iter().position(|bell| name(bell) == which).unwrap();
                if clear.contains(&place) {
                    all[place].clear();
                }
                found.push(place);
            });
            found.sort_unstable();
            found.dedup();
            found
        };
        assert!(!rings());
        (1..40).for_each(|place| all[place].rope().ring());
        assert!(rings());
        assert_eq!(cleared(&(2..40).collect::<Vec<_>>()), (1..40).collect::<Vec<_>>());
        assert!(rings(), "one was not cleared");
        assert_eq!(cleared(&[1]), [1]);
        assert!(!rings());
        all[0].rope().ring();
        bells.remove(&all[0]);
        assert!(!rings(), "it was taken out");
    }
}
