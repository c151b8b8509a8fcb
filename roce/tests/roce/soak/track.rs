//! One end of a connection as its program sees it: what it has posted, and how that ends.

use std::collections::VecDeque;

use qpair_roce::{Outcome, Receive};

use super::device::Local;
use super::oracle::Oracle;

/// What there is of a queue pair beside its engine.
#[derive(Debug)]
pub struct Track {
    pub oracle: Oracle,
    /// Requests that have not completed, oldest first.
    pub posted: VecDeque<Posted>,
    /// Receives of its own.
    pub receives: VecDeque<Receive<Local>>,
    /// It takes receives that others take too.
    pub shares: bool,
    /// It tells its peer how many receives there are.
    pub counts: bool,
    pub succeeded: u64,
    pub is_failed: bool,
    /// How requests and receives may end beside success, and being flushed.
    pub allowed: Vec<Outcome>,
    /// A request was flushed; those behind it may not succeed.
    is_flushing: bool,
    /// A request was to blame; no other is.
    blamed: bool,
}

/// A request that was posted.
#[derive(Debug)]
pub struct Posted {
    pub id: u64,
    /// What it is to bring, if anything.
    pub answer: Option<Answer>,
}

/// What a READ or an atomic is to bring.
#[derive(Debug)]
pub struct Answer {
    pub bytes: Vec<u8>,
    /// Where at the peer.
    pub from: u64,
}

impl Track {
    pub fn new(oracle: Oracle, shares: bool, counts: bool) -> Self {
        Track {
            oracle,
            posted: VecDeque::new(),
            receives: VecDeque::new(),
            shares,
            counts,
            succeeded: 0,
            is_failed: false,
            allowed: Vec::new(),
            is_flushing: false,
            blamed: false,
        }
    }

    /// The oldest request has ended.
    pub fn sent(&mut self, id: u64, outcome: Outcome) -> Posted {
        let posted = self.posted.pop_front().expect("a request that was posted");
        assert_eq!(id, posted.id, "requests complete once each, in order");
        match outcome {
            Outcome::Success => {
                assert!(!self.is_flushing, "request {id} is done behind one that is not");
                self.succeeded += 1;
            }
            Outcome::Flushed => self.is_flushing = true,
            other => {
                assert!(self.allowed.contains(&other) && !self.blamed, "request {id} ends by {other:?}");
                (self.is_flushing, self.blamed) = (true, true);
            }
        }
        posted
    }

    /// True if something that is read under way overlaps these bytes of the peer.
    pub fn reads(&self, at: u64, len: u32) -> bool {
        let mut answers = self.posted.iter().filter_map(|posted| posted.answer.as_ref());
        answers.any(|answer| answer.from < at + u64::from(len) && at < answer.from + answer.bytes.len() as u64)
    }

    /// Nothing is left of it.
    pub fn is_over(&self) {
        assert!(self.posted.is_empty(), "{:?} did not complete", self.posted);
        assert!(self.receives.is_empty() && (self.is_failed || !self.is_flushing));
    }
}
