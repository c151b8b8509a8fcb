//! Why a future has no result.

use thiserror::Error;

use crate::worker::{
    CloseReason, ConnectError, OneSidedFailure, OpError, RecvFailure, Returned, SendFailure, WorkerError,
};

/// An operation that did not come about.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct Failed {
    /// Why.
    #[source]
    pub error: Refused,
    /// What belonged to it.
    pub returned: Returned,
}

/// Why an operation did not come about.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Refused {
    /// It began, and failed.
    #[error(transparent)]
    Failed(#[from] OpError),
    /// A message was not taken.
    #[error(transparent)]
    Send(#[from] SendFailure),
    /// A receive was not taken.
    #[error(transparent)]
    Recv(#[from] RecvFailure),
    /// A one-sided operation was not taken.
    #[error(transparent)]
    OneSided(#[from] OneSidedFailure),
    /// Connecting could not begin.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A connection did not come up, or ended.
    #[error(transparent)]
    Closed(#[from] CloseReason),
    /// The worker can not go on: the task that drives it has ended, and tells why, or was dropped, and no other drives it.
    #[error("nobody drives the worker any more; see the result of AsyncWorker::drive")]
    Stopped,
    /// What followed was not what follows such an operation.
    #[error("the operation ended with another's event")]
    Strange,
}

/// Why a worker can not be driven any more.
pub(super) type DriveResult = Result<(), WorkerError>;

impl Failed {
    pub(super) fn new(error: impl Into<Refused>, returned: Returned) -> Self {
        Failed { error: error.into(), returned }
    }

    /// One that nothing belonged to.
    pub(super) fn bare(error: impl Into<Refused>) -> Self {
        Failed::new(error, Returned::Nothing)
    }
}
