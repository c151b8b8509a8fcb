//! Questions to a peer that wait for their answers.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::soft::layout::{FaultKind, QpInfo};
use crate::sync::lock;

/// Questions asked over one link.
#[derive(Debug, Default)]
pub(super) struct Answers {
    next: AtomicU32,
    open: Mutex<HashMap<u32, Answer>>,
    came: Condvar,
}

#[derive(Debug)]
pub(super) enum Answer {
    Waiting,
    /// Of a queue pair, with what the bell of its completion queue is rung by.
    Info(Option<(QpInfo, PassedRope)>),
    /// Of a bounce: the former value, or why it was not carried out.
    Bounced(Result<u64, FaultKind>),
}

/// What a bell is rung by, a descriptor that goes with an answer.
#[derive(Debug)]
pub(super) enum PassedRope {
    Here(OwnedFd),
    /// The peer sent none.
    Missing,
    /// This process has no room for another descriptor.
    NoRoom,
}

impl Answers {
    /// A number for a question that is asked now.
    pub(super) fn open(&self) -> u32 {
        let request = self.next.fetch_add(1, Ordering::Relaxed);
        self.lock().insert(request, Answer::Waiting);
        request
    }

    /// Enters an answer. One that nobody waits for any more, or never asked for, is dropped.
    pub(super) fn put(&self, request: u32, answer: Answer) {
        if let Some(place) = self.lock().get_mut(&request) {
            *place = answer;
            self.came.notify_all();
        }
    }

    /// Waits for an answer until `dead` is set or the time is over: [`Answer::Waiting`] then.
    pub(super) fn wait(&self, request: u32, dead: &AtomicBool, limit: Duration) -> Answer {
        let deadline = Instant::now() + limit;
        let mut open = self.lock();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let waiting = matches!(open.get(&request), Some(Answer::Waiting));
            if !waiting || left.is_zero() || dead.load(Ordering::Acquire) {
                return open.remove(&request).unwrap_or(Answer::Waiting);
            }
            open = self.came.wait_timeout(open, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Takes the answer if it is there: `None` while it is under way.
    pub(super) fn take(&self, request: u32) -> Option<Answer> {
        let mut open = self.lock();
        match open.get(&request) {
            Some(Answer::Waiting) => None,
            _ => Some(open.remove(&request).unwrap_or(Answer::Bounced(Err(FaultKind::Access)))),
        }
    }

    /// Gives up on an answer.
    pub(super) fn forget(&self, request: u32) {
        self.lock().remove(&request);
    }

    /// Has all who wait look again.
    pub(super) fn wake(&self) {
        drop(self.lock());
        self.came.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Answer>> {
        lock(&self.open)
    }
}
