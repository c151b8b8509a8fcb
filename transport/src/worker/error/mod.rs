//! Errors, one type per operation. Each message says what to do next.

mod connection;
mod operation;
mod resources;

pub use connection::{CloseReason, ConnectError, ConnectFailure, ListenError, Lost};
pub use operation::{
    Misfit, NoKey, OneSidedError, OneSidedFailure, OpError, RecvError, RecvFailure, SendCopyError, SendError,
    SendFailure,
};
pub use resources::{ResourceError, WorkerError};
