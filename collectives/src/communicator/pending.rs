//! Operations that were started to be waited for later.

use std::fmt;

use qpair_verbs::calc::{Element, ReduceOp};

use super::buffer::CommBuffer;
use super::comm::Communicator;
use super::core::Ticket;
use crate::error::CollectiveError;
use crate::execute::{Key, Memory};
use crate::plan::Collective;

/// Starts operations; see [`Communicator::start`].
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    comm: &'a Communicator,
}

/// An operation under way, with its buffer.
///
/// It makes progress within calls of its communicator, and peers read what they need meanwhile. Dropping it does not
/// cancel it, since the other ranks count on it: it is carried out before what comes after it.
#[must_use = "the buffer is inside; `wait` gives it back"]
#[derive(Debug)]
pub struct Pending<'a, T: Element> {
    comm: &'a Communicator,
    /// `None` once it was waited for.
    ticket: Option<Ticket>,
    element: std::marker::PhantomData<T>,
}

/// An operation that did not come about, with its buffer. What is in the buffer is not specified, unless the operation
/// could not even be started.
#[derive(Debug)]
pub struct OperationFailed<T: Element> {
    /// Why.
    pub error: CollectiveError,
    /// The buffer, which is the caller's again.
    pub buffer: CommBuffer<T>,
}

impl Communicator {
    /// Starts an operation and goes on: it is waited for later. Those started are carried out in order.
    ///
    /// ```
    /// # use qpair_collectives::{Communicator, ReduceOp};
    /// # let comm = Communicator::group(1)?.remove(0);
    /// let gradient = comm.buffer::<f64>(1 << 10)?;
    /// let pending = comm.start().all_reduce(gradient, ReduceOp::Sum)?; // the buffer is inside
    /// // compute ...
    /// let gradient = pending.wait()?;
    /// # assert_eq!(gradient.len(), 1 << 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn start(&self) -> Start<'_> {
        Start { comm: self }
    }
}

impl<'a> Start<'a> {
    /// Starts what [`Communicator::all_reduce`] does.
    ///
    /// # Errors
    /// [`OperationFailed`] with the buffer, if it belongs to another communicator.
    pub fn all_reduce<T: Element>(
        self,
        vector: CommBuffer<T>,
        op: ReduceOp,
    ) -> Result<Pending<'a, T>, OperationFailed<T>> {
        let key = self.comm.key(Collective::AllReduce, vector.len(), Some(T::TYPE), Some(op));
        self.begin(vector, key)
    }

    /// Starts what [`Communicator::broadcast`] does.
    ///
    /// # Errors
    /// [`OperationFailed`] with the buffer, if it belongs to another communicator, or there is no such root.
    pub fn broadcast<T: Element>(
        self,
        vector: CommBuffer<T>,
        root: usize,
    ) -> Result<Pending<'a, T>, OperationFailed<T>> {
        let collective = match self.comm.broadcast_from(root) {
            Ok(collective) => collective,
            Err(error) => return Err(OperationFailed { error, buffer: vector }),
        };
        let key = self.comm.key(collective, vector.len(), Some(T::TYPE), None);
        self.begin(vector, key)
    }

    fn begin<T: Element>(self, mut vector: CommBuffer<T>, key: Key) -> Result<Pending<'a, T>, OperationFailed<T>> {
        let comm = self.comm;
        if vector.owner() != comm.id() {
            return Err(OperationFailed { error: CollectiveError::ForeignBuffer, buffer: vector });
        }
        let data = vector.take().map_or(Memory::None, Memory::Plain);
        let ticket = Some(comm.core().borrow_mut().start(key, data));
        Ok(Pending { comm, ticket, element: std::marker::PhantomData })
    }
}

impl<T: Element> Pending<'_, T> {
    /// Does what can be done at once. True if the operation is done, so that [`wait`](Self::wait) returns at once.
    pub fn test(&mut self) -> bool {
        let mut core = self.comm.core().borrow_mut();
        core.progress();
        self.ticket.is_none_or(|ticket| core.is_done(ticket))
    }

    /// Waits until the operation is done, and gives the buffer with the result.
    ///
    /// # Errors
    /// [`OperationFailed`] with the buffer.
    pub fn wait(mut self) -> Result<CommBuffer<T>, OperationFailed<T>> {
        let Some(ticket) = self.ticket.take() else { return Ok(CommBuffer::new(None, self.comm.id())) };
        let (memory, result) = self.comm.core().borrow_mut().wait_for(ticket);
        let buffer = CommBuffer::new(memory, self.comm.id());
        match result {
            Ok(()) => Ok(buffer),
            Err(error) => Err(OperationFailed { error, buffer }),
        }
    }
}

impl<T: Element> Drop for Pending<'_, T> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.comm.core().borrow_mut().forget(ticket);
        }
    }
}

impl<T: Element> fmt::Display for OperationFailed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T: Element> std::error::Error for OperationFailed<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}
