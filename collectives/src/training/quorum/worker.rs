//! A worker.

use std::fmt;

use qpair_verbs::calc::Element;

use super::{END, GIVE, JOIN};
use crate::communicator::{CommBuffer, Communicator};
use crate::error::CollectiveError;

/// A rank that gives contributions to a [server](super::serve).
pub struct Worker<'a, T: Element> {
    comm: &'a Communicator,
    server: usize,
    word: CommBuffer<u64>,
    vector: CommBuffer<T>,
}

impl<'a, T: Element> Worker<'a, T> {
    /// Joins the server on that rank, whose parameters are `len` elements.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn new(comm: &'a Communicator, server: usize, len: usize) -> Result<Self, CollectiveError> {
        let mut worker = Self { comm, server, word: comm.buffer(1)?, vector: comm.buffer(len)? };
        worker.say(JOIN)?;
        Ok(worker)
    }

    /// Gives a contribution, waits until it is applied, and gets the parameters. It is applied in the step that closes next,
    /// whichever that is.
    ///
    /// # Errors
    /// [`CollectiveError`]; [`Length`](CollectiveError::Length) if either has another length.
    pub fn give(&mut self, contribution: &[T], parameters: &mut [T]) -> Result<(), CollectiveError> {
        let expected = self.vector.len();
        for (what, len) in [("contribution", contribution.len()), ("vector of parameters", parameters.len())] {
            if len != expected {
                return Err(CollectiveError::Length { what, len, expected, hint: "see what the worker was made for" });
            }
        }
        self.say(GIVE)?;
        self.vector.copy_from_slice(contribution);
        self.comm.send(&mut self.vector, self.server)?;
        self.comm.recv(&mut self.vector, self.server)?;
        parameters.copy_from_slice(&self.vector);
        Ok(())
    }

    /// Gives no more, and waits until the other workers do neither.
    ///
    /// # Errors
    /// [`CollectiveError`].
    pub fn end(mut self) -> Result<(), CollectiveError> {
        self.say(END)?;
        self.comm.barrier()
    }

    fn say(&mut self, word: u64) -> Result<(), CollectiveError> {
        self.word[0] = word;
        self.comm.send(&mut self.word, self.server)
    }
}

impl<T: Element> fmt::Debug for Worker<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Worker(of rank {}, {} {})", self.server, self.vector.len(), T::TYPE)
    }
}
