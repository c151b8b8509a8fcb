//! Where the ranks of a test wait for each other, as long as none of them has failed.

use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// A barrier that a rank leaves by a panic if the others do not come, since one of them may have panicked before: the test fails
/// then, and does not hang.
pub struct Meeting {
    ranks: usize,
    come: Mutex<usize>,
    all: Condvar,
}

impl Meeting {
    /// For that many.
    pub fn new(ranks: usize) -> Self {
        Meeting { ranks, come: Mutex::new(0), all: Condvar::new() }
    }

    /// Waits until all have come, as often as they like.
    pub fn wait(&self) {
        let mut come = self.come.lock().expect("another rank panicked here");
        *come += 1;
        let full = come.next_multiple_of(self.ranks);
        self.all.notify_all();
        let (come, _) =
            self.all.wait_timeout_while(come, LIMIT, |come| *come < full).expect("another rank panicked here");
        assert!(*come >= full, "of {} ranks {} do not come", self.ranks, full - *come);
    }
}

/// How long a busy machine may take.
const LIMIT: Duration = Duration::from_secs(120);
