//! Errors, one type per operation. Each message says what to do next.

use std::fmt;
use std::io;

use thiserror::Error;

use crate::address::NodeId;
use crate::ibv::LibraryError;
use crate::memory::{Buffer, DmabufRegion, ExposedRegion, Local};
use crate::status::{WcOpcode, WcStatus};
use crate::types::{QpState, QpType, Qpn};

/// Opening a device failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No device has that name.
    #[error("no RDMA device is called `{name}`; there are: {known}{note}")]
    NotFound {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
        /// Why there are no others, as text that begins with `; `, or empty.
        note: String,
    },
    /// The device needs libibverbs, which can not be used.
    #[error("`{name}` is none of the devices without libibverbs (soft0), and there is no libibverbs: {source}")]
    Library {
        /// The name asked for.
        name: String,
        /// What is the matter with the library.
        source: LibraryError,
    },
    /// libibverbs does not open the device.
    #[error("{name} can not be opened: {source}; `qpair doctor` looks at drivers and permissions")]
    Refused {
        /// The device.
        name: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The device's provider lacks what every device has.
    #[error("{name} can not be used: its provider has no {what}; update rdma-core")]
    Incomplete {
        /// The device.
        name: String,
        /// The function that it lacks.
        what: &'static str,
    },
    /// The system refused a resource.
    #[error("{name} can not be opened: could not {what}: {source}")]
    System {
        /// The device.
        name: String,
        /// The step that failed.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// The software device could not set itself up.
    #[error("the software device could not {what}: {source}")]
    Soft {
        /// The step that failed.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}

/// Making a control object (PD, CQ, QP, SRQ) failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CreateError {
    /// A size is zero or above the device's limit.
    #[error("{what} of {asked} is not possible; the greatest is {limit}")]
    OutOfRange {
        /// The attribute.
        what: &'static str,
        /// The value asked for.
        asked: u64,
        /// The greatest value.
        limit: u64,
    },
    /// The device has no more of these.
    #[error("the device has no room for another {what}; close some that are not used any more")]
    Exhausted {
        /// The kind of object.
        what: &'static str,
    },
    /// Objects of different contexts were combined.
    #[error("{what} belongs to another context; make both from the same `Context`")]
    ForeignObject {
        /// The object that does not belong.
        what: &'static str,
    },
    /// The combination is not defined.
    #[error("{what} is not supported on {qp_type:?} queue pairs")]
    NotSupported {
        /// The attribute.
        what: &'static str,
        /// The service.
        qp_type: QpType,
    },
    /// The device can not tell when completions were.
    #[error("{device} has no completion timestamps that can be relied upon; make the queue without")]
    NoTimestamps {
        /// The device.
        device: String,
    },
    /// The port has no address.
    #[error("port {port} has no GID: bring its network interface up and give it an address, or name another port")]
    NoGid {
        /// The port.
        port: u8,
    },
    /// The device refused a state transition.
    #[error(
        "the device does not bring a queue pair to {to:?}{}: {source}",
        attribute.as_ref().map_or_else(String::new, |attribute| format!("; it does not take {attribute}"))
    )]
    Transition {
        /// Wanted state.
        to: QpState,
        /// The attribute that it does not take, with its value, if that was found out.
        attribute: Option<String>,
        /// The system's reason.
        source: io::Error,
    },
    /// The system refused a resource.
    #[error("could not {what}: {source}")]
    System {
        /// The step that failed.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}

/// Allocating, registering or exposing memory failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The length is zero or above the device's limit.
    #[error("memory of {len} bytes can not be registered; the device takes 1 to {limit}")]
    Length {
        /// Length asked for.
        len: usize,
        /// Greatest length.
        limit: usize,
    },
    /// The system has no memory, or a limit forbids it.
    #[error(
        "no memory of {len} bytes to be had: {source}; raise the limit (`ulimit -l`, the size of /dev/shm) or ask for less"
    )]
    NoMemory {
        /// Length asked for.
        len: usize,
        /// The system's reason.
        source: io::Error,
    },
    /// The limit on locked memory is too low.
    #[error(
        "{len} bytes can not be registered: with what is locked already {needed} bytes are needed and the limit is {limit}; \
         raise it with `ulimit -l`, in /etc/security/limits.conf (memlock), by LimitMEMLOCK= of systemd, or by \
         --ulimit memlock=-1 of a container"
    )]
    Memlock {
        /// Length asked for.
        len: usize,
        /// Bytes that have to be allowed.
        needed: u64,
        /// Bytes that are allowed.
        limit: u64,
    },
    /// The device does not take the memory.
    #[error("the device does not register {len} bytes: {source}")]
    Refused {
        /// Length asked for.
        len: usize,
        /// The system's reason.
        source: io::Error,
    },
    /// The device or its library can not register memory in this way.
    #[error("{device} can not register {what}{}", .why.as_ref().map_or_else(String::new, |why| format!(": {why}")))]
    NotSupported {
        /// The device.
        device: String,
        /// The kind of memory.
        what: &'static str,
        /// What is missing, where that is known.
        why: Option<String>,
    },
    /// Huge pages were demanded and there are none.
    #[error(
        "no huge pages for {len} bytes: {source}; reserve some in /proc/sys/vm/nr_hugepages, or use HugePages::Try"
    )]
    NoHugePages {
        /// Length asked for.
        len: usize,
        /// The system's reason.
        source: io::Error,
    },
    /// The key table is full.
    #[error("all {limit} remote keys are in use; revoke regions that are not needed")]
    NoKeys {
        /// Size of the table.
        limit: usize,
    },
    /// A range does not lie within the region.
    #[error("bytes {start}..{end} lie outside a region of {len} bytes")]
    Range {
        /// First byte asked for.
        start: usize,
        /// End of the range.
        end: usize,
        /// Length of the region.
        len: usize,
    },
    /// The bytes are no whole number of elements.
    #[error("{len} bytes are no whole number of elements of {size} bytes")]
    Elements {
        /// Bytes given.
        len: usize,
        /// Size of an element.
        size: usize,
    },
    /// An atomic on an address that is not a multiple of 8.
    #[error("offset {offset} is not a multiple of 8, as atomics need")]
    Misaligned {
        /// The offset.
        offset: usize,
    },
}

/// Exposing a buffer failed; the buffer is handed back.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct ExposeFailed {
    /// Why.
    #[source]
    pub error: MemoryError,
    /// The buffer.
    pub buffer: Buffer,
}

/// Revoking a region did not finish; the region is handed back.
#[derive(Debug, Error)]
#[error("the region is still in use: {why}")]
pub struct RevokeFailed {
    /// What uses it.
    pub why: RevokeBlocked,
    /// The region.
    pub region: ExposedRegion,
}

/// Revoking memory behind a DMA-buf did not finish; the region is handed back.
#[derive(Debug, Error)]
#[error("the DMA-buf is still in use: {why}")]
pub struct DmabufRevokeFailed {
    /// What uses it.
    pub why: RevokeBlocked,
    /// The region.
    pub region: DmabufRegion,
}

/// Why a region could not be revoked yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RevokeBlocked {
    /// Posted work requests of this process name it.
    PostedWork,
    /// Memory windows are bound to it.
    BoundWindows,
    /// A peer is in the middle of an access and did not leave it within the deadline.
    PeerAccess,
    /// The device refuses.
    Refused {
        /// Its error number.
        errno: i32,
    },
}

impl fmt::Display for RevokeBlocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RevokeBlocked::Refused { errno } => {
                let error = io::Error::from_raw_os_error(*errno);
                return write!(f, "the device does not let go of it ({error}); close its queue pairs and revoke again");
            }
            RevokeBlocked::PostedWork => {
                "work requests that name it are posted; poll their completions and revoke again (its key is withdrawn)"
            }
            RevokeBlocked::BoundWindows => "memory windows are bound to it; invalidate or drop them and revoke again",
            RevokeBlocked::PeerAccess => {
                "a peer stays in the middle of an access; revoke again when it goes on or is gone (its key is withdrawn)"
            }
        })
    }
}

/// Connecting a queue pair failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The two sides are of different kinds.
    #[error("the peer's queue pair is {theirs:?}, this one {ours:?}; both sides must be of one kind")]
    TypeMismatch {
        /// This side.
        ours: QpType,
        /// The other side.
        theirs: QpType,
    },
    /// No wire leads there.
    #[error("no wire leads to that queue pair: {why}")]
    NoRoute {
        /// The reason.
        why: &'static str,
    },
    /// Nobody answers at that address.
    #[error(
        "nothing listens at device {node}: its process has ended, or the address is stale; ask the peer for its address again"
    )]
    PeerGone {
        /// The device asked for.
        node: NodeId,
    },
    /// The device is there, the queue pair is not.
    #[error("the peer has no queue pair {qpn}: it was closed, or the address is stale")]
    NoSuchQueuePair {
        /// The number asked for.
        qpn: Qpn,
    },
    /// The process there belongs to another user.
    #[error("the peer runs as user {theirs}, this process as {ours}; shared memory is for one user only")]
    OtherUser {
        /// This user.
        ours: u32,
        /// That user.
        theirs: u32,
    },
    /// The peer speaks another version.
    #[error("the peer speaks version {theirs} of the shared-memory protocol, this side {ours}; use the same release")]
    Version {
        /// This side.
        ours: u32,
        /// The other side.
        theirs: u32,
    },
    /// No answer in time.
    #[error("the peer did not answer within {seconds} s; is its process stopped?")]
    TimedOut {
        /// The limit.
        seconds: u64,
    },
    /// The peer's answer makes no sense.
    #[error("the peer's answer is not valid: {why}")]
    BadAnswer {
        /// What is wrong.
        why: &'static str,
    },
    /// The transition is not legal.
    #[error(transparent)]
    Modify(#[from] ModifyError),
    /// The device refused a transition.
    #[error(
        "the device does not bring the queue pair from {from:?} to {to:?}{}: {source}",
        attribute.as_ref().map_or_else(String::new, |attribute| format!("; it does not take {attribute}"))
    )]
    Refused {
        /// State before.
        from: QpState,
        /// Wanted state.
        to: QpState,
        /// The attribute that it does not take, with its value, if that was found out.
        attribute: Option<String>,
        /// The system's reason.
        source: io::Error,
    },
    /// The system refused.
    #[error("could not {what}: {source}")]
    System {
        /// The step that failed.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}

/// A state transition that the table does not have, or attributes that it does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a {qp_type:?} queue pair can not go from {from:?} to {to:?}{detail}")]
pub struct ModifyError {
    /// Service.
    pub qp_type: QpType,
    /// Present state.
    pub from: QpState,
    /// Wanted state.
    pub to: QpState,
    /// Missing or forbidden attributes, as text that starts with ": ", or empty.
    pub detail: &'static str,
}

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
    /// The memory or the address handle belongs to another protection domain.
    #[error("the memory or address handle belongs to another protection domain; make it from the queue pair's own")]
    WrongDomain,
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
    #[error("the device refused the request: {}", io::Error::from_raw_os_error(*errno))]
    Refused {
        /// Its error number.
        errno: i32,
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
