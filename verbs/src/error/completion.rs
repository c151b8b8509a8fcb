//! Completions and their queues.

use std::io;

use thiserror::Error;

use crate::status::{WcOpcode, WcStatus};
use crate::types::Qpn;

/// A completion with a status other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{opcode} on queue pair {qpn} failed: {status} (vendor code {vendor_err})")]
pub struct CompletionError {
    /// Queue pair.
    pub qpn: Qpn,
    /// Operation.
    pub opcode: WcOpcode,
    /// Status.
    pub status: WcStatus,
    /// Provider's detail.
    pub vendor_err: u32,
}

/// A completion queue that can not be polled any more, or a wait that ended without a completion.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CqError {
    /// More completions than the queue holds; its queue pairs are in the error state.
    #[error("completion queue overrun: more than {depth} completions were waiting; poll more often or make it deeper")]
    Overrun {
        /// Depth of the queue.
        depth: u32,
    },
    /// The device can not be polled.
    #[error("the device's completion queue can not be polled (code {code}); close its queue pairs and open it again")]
    Device {
        /// What the provider returned.
        code: i32,
    },
    /// The device was taken away, or failed for good: nothing that is under way will end.
    #[error("the device is gone; close what was opened on it, and open it again once it is back")]
    DeviceGone,
    /// Nothing completed in time.
    #[error("nothing completed within {0:?}")]
    TimedOut(std::time::Duration),
    /// The system refused to wait.
    #[error("could not wait for completions: {0}")]
    System(#[from] io::Error),
}

/// A completion did not carry the memory that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the completion carries {found}, not {wanted}")]
pub struct NoMemory {
    /// What was asked for.
    pub wanted: &'static str,
    /// What is there.
    pub found: &'static str,
}
