//! Vectors that are here, or under way in an operation.

use std::mem;

use crate::communicator::{Held, OperationFailed, Pending};
use crate::error::CollectiveError;

/// Where a vector is.
#[derive(Debug)]
pub(super) enum Slot<'a, B: Held> {
    Here(B),
    UnderWay(Pending<'a, B>),
    /// Its operation failed; what is in it is not specified, so each later use gives the error again.
    Failed(CollectiveError),
    /// Between two of these, within a call.
    Moving,
}

impl<'a, B: Held> Slot<'a, B> {
    /// Starts an operation, after the one that is under way.
    pub(super) fn start(
        &mut self,
        start: impl FnOnce(B) -> Result<Pending<'a, B>, OperationFailed<B>>,
    ) -> Result<(), CollectiveError> {
        self.wait()?;
        *self = match mem::replace(self, Slot::Moving) {
            Slot::Here(buffers) => start(buffers).map_or_else(|failed| Slot::Failed(failed.error), Slot::UnderWay),
            other => other,
        };
        match self {
            Slot::Failed(error) => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// The vector, once what is under way is done.
    pub(super) fn wait(&mut self) -> Result<&mut B, CollectiveError> {
        *self = match mem::replace(self, Slot::Moving) {
            Slot::UnderWay(pending) => pending.wait().map_or_else(|failed| Slot::Failed(failed.error), Slot::Here),
            other => other,
        };
        match self {
            Slot::Here(buffers) => Ok(buffers),
            Slot::Failed(error) => Err(error.clone()),
            Slot::UnderWay(_) | Slot::Moving => unreachable!("it was waited for"),
        }
    }

    /// Does what can be done at once. True if [`wait`](Self::wait) returns at once.
    pub(super) fn test(&mut self) -> bool {
        match self {
            Slot::UnderWay(pending) => pending.test(),
            Slot::Here(_) | Slot::Failed(_) | Slot::Moving => true,
        }
    }

    /// What is under way.
    pub(super) fn under_way(&self) -> Option<&Pending<'a, B>> {
        match self {
            Slot::UnderWay(pending) => Some(pending),
            Slot::Here(_) | Slot::Failed(_) | Slot::Moving => None,
        }
    }

    /// The vector, unless it is under way.
    pub(super) fn here(&self) -> Option<&B> {
        match self {
            Slot::Here(buffers) => Some(buffers),
            Slot::UnderWay(_) | Slot::Failed(_) | Slot::Moving => None,
        }
    }
}
