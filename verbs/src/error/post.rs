//! Posting.

use std::io;

use thiserror::Error;

use super::LOOK;
use crate::memory::Local;
use crate::types::{QpState, QpType};

/// Posting failed. `SendQueueFull` and `ReceiveQueueFull` can be tried again after polling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PostError {
    /// All slots are taken.
    #[error(
        "the send queue is full ({depth} requests); poll the completion queue, and signal at least one request in {depth}"
    )]
    SendQueueFull {
        /// Slots.
        depth: u32,
    },
    /// All slots are taken.
    #[error("the receive queue is full ({depth} requests); poll the completion queue first")]
    ReceiveQueueFull {
        /// Slots.
        depth: u32,
    },
    /// The queue pair takes its receives from a shared receive queue.
    #[error("this queue pair receives through a shared receive queue; post there")]
    UsesSharedReceiveQueue,
    /// The memory is a GPU's, and no protection domain has it.
    #[error(
        "the memory of the GPU is not registered; register it with the queue pair's domain, or send it as a message"
    )]
    NotRegistered,
    /// The memory or the address handle belongs to another protection domain.
    #[error("the memory or address handle belongs to another protection domain; make it from the queue pair's own")]
    WrongDomain,
    /// What peers may do with the region has been withdrawn, by an attempt to revoke it that could not finish.
    #[error("peers' access to this region has been withdrawn; revoke it, and expose its memory anew")]
    Withdrawn,
    /// A slab still has `Bytes` of it alive.
    #[error("`Bytes` of this slab are still alive; drop them before posting it")]
    StillShared,
    /// The length can not be sent in this way.
    #[error("{len} bytes exceed the limit of {limit} for {what}")]
    TooLong {
        /// Length of the request.
        len: usize,
        /// Limit.
        limit: usize,
        /// The kind of request.
        what: &'static str,
    },
    /// Local and remote lengths differ.
    #[error("the local part has {local} bytes, the remote {remote}; they must agree")]
    LengthMismatch {
        /// Local bytes.
        local: usize,
        /// Remote bytes.
        remote: usize,
    },
    /// A range does not lie within the buffer.
    #[error("bytes {start}..{end} lie outside a buffer of {len} bytes")]
    Range {
        /// First byte.
        start: usize,
        /// End.
        end: usize,
        /// Length of the buffer.
        len: usize,
    },
    /// The completion of something else was to be posted as a receive again.
    #[error("this is the completion of no receive; only what completed as a receive can be posted again")]
    NotAReceive,
    /// The service or device does not have this operation.
    #[error("{qp_type:?} queue pairs of this device can not do {what}")]
    NotSupported {
        /// Operation.
        what: &'static str,
        /// Service.
        qp_type: QpType,
    },
    /// The state does not allow it.
    #[error("nothing can be posted in state {0:?}; connect the queue pair first")]
    State(QpState),
    /// A piece of memory is no whole number of elements.
    #[error("a piece of {len} bytes is no whole number of elements of {size} bytes; cut the memory between elements")]
    PartialElement {
        /// Length of the piece.
        len: usize,
        /// Size of an element.
        size: usize,
    },
    /// The device refused the request.
    #[error(
        "the device refused the request: {}; connect again if its queue pair failed, else {LOOK}",
        io::Error::from_raw_os_error(*errno)
    )]
    Refused {
        /// Its error number.
        errno: i32,
    },
    /// Memory of a GPU where the processor has to reach it.
    #[error("{what} can not be of GPU memory; copy it through memory of the processor")]
    OnGpu {
        /// The kind of request.
        what: &'static str,
    },
    /// A receive into memory that the processor does not reach, where the device's library may have the processor write it.
    #[error(
        "the device's library copies short messages by the processor, which can not write {form}; receive into memory of \
         the processor, have the peer WRITE, or (with libmlx5) set MLX5_SCATTER_TO_CQE=0 before the program starts"
    )]
    CopiedByProcessor {
        /// What the memory is.
        form: &'static str,
    },
    /// Too many pieces.
    #[error("{count} pieces of memory exceed the limit of {limit}")]
    TooManyPieces {
        /// Pieces given.
        count: usize,
        /// Limit.
        limit: usize,
    },
}

impl PostError {
    /// True if the same call can succeed after completions were polled.
    pub const fn is_retryable(&self) -> bool {
        matches!(self, PostError::SendQueueFull { .. } | PostError::ReceiveQueueFull { .. })
    }
}

/// A refused post, with the memory that was to be posted.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct Rejected {
    /// Why.
    #[source]
    pub error: PostError,
    /// The memory.
    pub memory: Local,
}

impl Rejected {
    /// The parts.
    pub fn into_parts(self) -> (PostError, Local) {
        (self.error, self.memory)
    }
}
