//! What the tests that cross layers share.

use std::fs;
use std::time::{Duration, Instant};

use qpair::{CompletionQueue, Event, Worker};

/// What a process holds of its system.
#[derive(Debug)]
pub struct Holdings {
    descriptors: usize,
    threads: usize,
    shared_mappings: usize,
}

impl Holdings {
    pub fn now() -> Self {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        Holdings {
            descriptors: fs::read_dir("/proc/self/fd").unwrap().count(),
            threads: fs::read_dir("/proc/self/task").unwrap().count(),
            shared_mappings: maps.lines().filter(|line| line.contains("memfd:")).count(),
        }
    }

    /// Waits until this process holds no more than it did then: threads that end, and a peer's side, take a moment.
    pub fn wait_for_again(&self) {
        let deadline = Instant::now() + LIMIT;
        while Self::now().exceeds(self) {
            assert!(Instant::now() < deadline, "before {self:?}, now {:?}", Self::now());
            std::thread::yield_now();
        }
    }

    fn exceeds(&self, other: &Self) -> bool {
        self.descriptors > other.descriptors
            || self.threads > other.threads
            || self.shared_mappings > other.shared_mappings
    }
}

/// The next event of a worker.
pub fn next(worker: &mut Worker) -> Event {
    worker.wait(Some(LIMIT)).unwrap().expect("an event within the limit")
}

/// Waits for one completion, which must be good.
pub fn done(cq: &mut CompletionQueue) {
    cq.wait_for(LIMIT).unwrap().ok().unwrap();
}

/// Bounds each wait.
pub const LIMIT: Duration = Duration::from_secs(20);
