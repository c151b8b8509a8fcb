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
    open: Mutex<Open>,
    came: Condvar,
}

#[derive(Debug)]
pub(super) enum Answer {
    /// It has not come.
    Waiting,
    /// Of a queue pair, with what the bell of its completion queue is rung by.
    Info(Option<(QpInfo, PassedRope)>),
    /// Of a bounce: the former value, or why it was not carried out.
    Bounced(Result<u64, FaultKind>),
}

#[derive(Default)]
struct Open {
    /// Those that somebody waits for.
    answers: HashMap<u32, Answer>,
    /// What is kept for those that were given up and are not answered.
    given_up: HashMap<u32, Box<dyn Send>>,
}

impl std::fmt::Debug for Open {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Open").field("answers", &self.answers).field("given_up", &self.given_up.len()).finish()
    }
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

impl Drop for Answers {
    /// What is kept still, of a link that did not end, peers may be about.
    fn drop(&mut self) {
        std::mem::take(&mut self.lock().given_up).into_values().for_each(std::mem::forget);
    }
}

impl Answers {
    /// A number for a question that is asked now.
    pub(super) fn open(&self) -> u32 {
        let request = self.next.fetch_add(1, Ordering::Relaxed);
        self.lock().answers.insert(request, Answer::Waiting);
        request
    }

    /// Enters an answer. One that nobody waits for any more, or never asked for, is dropped.
    pub(super) fn put(&self, request: u32, answer: Answer) {
        let mut open = self.lock();
        if let Some(place) = open.answers.get_mut(&request) {
            *place = answer;
            self.came.notify_all();
        }
        let kept = open.given_up.remove(&request);
        drop(open);
        drop(kept);
    }

    /// Waits for an answer until `dead` is set or the time is over: [`Answer::Waiting`] then.
    pub(super) fn wait(&self, request: u32, dead: &AtomicBool, limit: Duration) -> Answer {
        let deadline = Instant::now() + limit;
        let mut open = self.lock();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let waiting = matches!(open.answers.get(&request), Some(Answer::Waiting));
            if !waiting || left.is_zero() || dead.load(Ordering::Acquire) {
                return open.answers.remove(&request).unwrap_or(Answer::Waiting);
            }
            open = self.came.wait_timeout(open, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Takes the answer if it is there: `None` while it is under way.
    pub(super) fn take(&self, request: u32) -> Option<Answer> {
        let answers = &mut self.lock().answers;
        match answers.get(&request) {
            Some(Answer::Waiting) => None,
            _ => Some(answers.remove(&request).unwrap_or(Answer::Bounced(Err(FaultKind::Access)))),
        }
    }

    /// Gives up on an answer. What is `kept` is dropped once it comes, or there will be none, as `dead` tells.
    pub(super) fn give_up(&self, request: u32, kept: Option<Box<dyn Send>>, dead: &AtomicBool) {
        let mut open = self.lock();
        let is_open = matches!(open.answers.remove(&request), Some(Answer::Waiting)) && !dead.load(Ordering::Acquire);
        let kept = match kept {
            Some(kept) if is_open => open.given_up.insert(request, kept),
            kept => kept,
        };
        drop(open);
        drop(kept);
    }

    /// No more answers come, as whoever waits finds by `dead`: has all look again, and lets go of what is kept.
    pub(super) fn end(&self) {
        let kept = std::mem::take(&mut self.lock().given_up);
        self.came.notify_all();
        drop(kept);
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        lock(&self.open)
    }
}
