//! A worker.

use std::fmt;
use std::time::Duration;

use qpair_verbs::calc::Element;

use super::{END, GIVE, JOIN, LEAVE, WAIT, pause, with_limit};
use crate::communicator::{CommBuffer, Communicator};
use crate::deadline::Deadline;
use crate::error::CollectiveError;
use crate::training::slot::Slot;

/// A rank that gives contributions to a [server](super::serve).
///
/// Where it is dropped instead of [ended](Self::end), the server is told that it gives no more, and goes on with the others. In the
/// middle of a contribution that did not come about it ends the communicator instead.
#[must_use = "the server is told that a worker that is dropped gives no more"]
pub struct Worker<'a, T: Element> {
    comm: &'a Communicator,
    server: usize,
    word: Slot<'a, CommBuffer<u64>>,
    vector: Slot<'a, CommBuffer<T>>,
    len: usize,
    /// How far its exchange with the server is.
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The server waits for its next word.
    Between,
    /// It has said that it gives a contribution.
    Giving,
    /// It has said that it gives no more.
    Over,
}

impl<'a, T: Element> Worker<'a, T> {
    /// Joins the server on that rank, whose parameters are `len` elements, and waits until that serves.
    ///
    /// # Errors
    /// [`CollectiveError`]; [`TimedOut`](CollectiveError::TimedOut) where that rank does not [serve](super::serve).
    pub fn new(comm: &'a Communicator, server: usize, len: usize) -> Result<Self, CollectiveError> {
        let (word, vector) = (Slot::Here(comm.buffer(1)?), Slot::Here(comm.buffer(len)?));
        let mut worker = Self { comm, server, word, vector, len, stage: Stage::Between };
        worker.say(JOIN)?;
        // Who serves says so at once: what comes later may take long.
        worker.hear(JOIN)?;
        Ok(worker)
    }

    /// Gives a contribution, waits until it is applied, and gets the parameters. It is applied in the step that closes next,
    /// whichever that is. Until that step has its quorum it waits, however long the other workers take: the communicator's
    /// [`set_timeout`](Communicator::set_timeout) counts for the server, which says meanwhile that it is there.
    ///
    /// # Errors
    /// [`CollectiveError`]; [`Length`](CollectiveError::Length) if either has another length,
    /// [`TimedOut`](CollectiveError::TimedOut) where nothing is heard of the server.
    pub fn give(&mut self, contribution: &[T], parameters: &mut [T]) -> Result<(), CollectiveError> {
        let expected = self.len;
        for (what, len) in [("contribution", contribution.len()), ("vector of parameters", parameters.len())] {
            if len != expected {
                return Err(CollectiveError::Length { what, len, expected, hint: "see what the worker was made for" });
            }
        }
        self.stage = Stage::Giving;
        self.say(with_limit(GIVE, self.comm.timeout()))?;
        self.vector.wait()?.copy_from_slice(contribution);
        let (comm, server) = (self.comm, self.server);
        self.vector.start(|vector| comm.start().send(vector, server))?;
        self.vector.wait()?;
        self.hear(GIVE)?;
        self.vector.start(|vector| comm.start().recv(vector, server))?;
        parameters.copy_from_slice(self.vector.wait()?);
        self.stage = Stage::Between;
        Ok(())
    }

    /// Gives no more, and waits until the other workers do neither, however long they take: the communicator's
    /// [`set_timeout`](Communicator::set_timeout) counts for the server, as in [`give`](Self::give).
    ///
    /// # Errors
    /// [`CollectiveError`]; also if the server, or another worker that it waits for, fails meanwhile.
    pub fn end(mut self) -> Result<(), CollectiveError> {
        self.stage = Stage::Over;
        self.say(with_limit(END, self.comm.timeout()))?;
        self.hear(END)
    }

    /// Waits for an answer of the server, for as long as it says that it is there.
    fn hear(&mut self, answer: u64) -> Result<(), CollectiveError> {
        let (comm, server) = (self.comm, self.server);
        loop {
            self.word.start(|word| comm.start().within(comm.timeout()).recv(word, server))?;
            // Not at once: who gave before the others waits as long as they compute, with whom it may share a core.
            let mut idle = 0;
            while !self.word.test() {
                pause(&mut idle);
            }
            match self.word.wait()?[0] {
                WAIT => {}
                word if word == answer => return Ok(()),
                _ => break,
            }
        }
        let reason = format!("rank {server} sent something else than quorum::serve does: use that on it");
        comm.abort(reason.clone());
        Err(CollectiveError::Aborted { rank: comm.rank() as u32, reason: reason.into() })
    }

    fn say(&mut self, word: u64) -> Result<(), CollectiveError> {
        self.begin_to_say(word)?;
        self.word.wait().map(drop)
    }

    fn begin_to_say(&mut self, word: u64) -> Result<(), CollectiveError> {
        self.word.wait()?[0] = word;
        let (comm, server) = (self.comm, self.server);
        self.word.start(|word| comm.start().send(word, server))
    }

    /// Tells the server that it gives no more, within a bounded time: what takes longer is done by what comes after it.
    fn leave(&mut self) {
        let (limit, mut idle) = (Deadline::after(FAREWELL), 0);
        if let Err(error) = self.begin_to_say(LEAVE) {
            tracing::debug!(%error, "a worker leaves, and its server is not told");
        }
        while !self.word.test() && !limit.is_over() {
            pause(&mut idle);
        }
    }
}

impl<T: Element> Drop for Worker<'_, T> {
    fn drop(&mut self) {
        match self.stage {
            Stage::Giving if std::thread::panicking() => self.comm.abort("it panicked while it gave to a quorum"),
            // Also in a panic: where that is caught the communicator stays, and tells the others nothing.
            Stage::Between => self.leave(),
            Stage::Giving => self.comm.abort("a quorum::Worker was dropped in the middle of a contribution"),
            Stage::Over => {}
        }
    }
}

impl<T: Element> fmt::Debug for Worker<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Worker(of rank {}, {} {})", self.server, self.len, T::TYPE)
    }
}

/// How long a server may take to connect to a worker that leaves.
const FAREWELL: Duration = Duration::from_secs(5);
