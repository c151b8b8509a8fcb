//! The last receive of a failed queue pair that takes them from a shared queue: a device may be at work on one after the queue
//! pair has failed, and tells by an event when it is not any more. Only then is nothing of the shared queue lost with the
//! queue pair.

use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use super::listeners::QpListener;
use crate::sync::lock;

/// What a device tells of last receives, and who waits for that.
#[derive(Debug, Default)]
pub(super) struct LastReceives {
    habit: Mutex<Habit>,
    told: Condvar,
}

/// Whether it is any use to wait.
#[derive(Debug, Default)]
struct Habit {
    /// The device has told of a queue pair.
    tells: bool,
    /// It was waited for in vain.
    missed: bool,
    /// Its events are not read any more, or it is gone.
    unheard: bool,
}

impl Habit {
    /// A device that once let the time pass, and never told of any queue pair, is not waited for again.
    fn is_worth_a_wait(&self) -> bool {
        !self.unheard && (self.tells || !self.missed)
    }
}

impl LastReceives {
    /// The device has told of a queue pair.
    pub(super) fn tell(&self, qp: &dyn QpListener) {
        let mut habit = lock(&self.habit);
        habit.tells = true;
        qp.reach_last_receive();
        self.told.notify_all();
    }

    /// The device's events are not read any more, or it is gone.
    pub(super) fn close(&self) {
        lock(&self.habit).unheard = true;
        self.told.notify_all();
    }

    /// Waits until `told` says that the device has told of a queue pair, which was found to have failed at that time; for
    /// a bounded time.
    pub(super) fn wait(&self, told: impl Fn() -> bool, failed: Instant) {
        let left = LIMIT.saturating_sub(failed.elapsed());
        let waits = |habit: &mut Habit| !told() && habit.is_worth_a_wait();
        let waited = self.told.wait_timeout_while(lock(&self.habit), left, waits);
        let (mut habit, result) = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
        habit.missed |= result.timed_out();
    }

    /// True if that wait would not be one; `told` as there.
    pub(super) fn is_over(&self, told: bool, failed: Instant) -> bool {
        told || failed.elapsed() >= LIMIT || !lock(&self.habit).is_worth_a_wait()
    }
}

/// How long a device may take to tell. It finishes what it has begun, and starts nothing.
const LIMIT: Duration = Duration::from_secs(1);
