//! What opened devices say to each other over their socket. One JSON object per packet, descriptors beside it.

use serde::{Deserialize, Serialize};

use crate::address::NodeId;
use crate::soft::barrier;
use crate::soft::layout::{FaultKind, LAYOUT_VERSION, QpInfo};

/// A control message.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Message {
    /// First in both directions. Carries the public and the shared mapping.
    Hello { version: u32, node: NodeId, registered: bool },
    /// Instead of an answer to Hello: why not.
    Refused(Refusal),
    /// Asks for a queue pair.
    Query { request: u32, qpn: u32 },
    /// The answer to Query, `None` if there is no such queue pair. Carries what the bell of its completion queue is rung by.
    Info { request: u32, info: Option<QpInfo> },
    /// Asks for an arena.
    MapArena { arena: u32 },
    /// The answer to MapArena; length 0 if the arena is gone. Carries the arena.
    Arena { arena: u32, len: u64 },
    /// The answer to MapArena of a GPU's memory, with the GPU's number. Carries what it is mapped by.
    GpuArena { arena: u32, len: u64, gpu: [u8; 16] },
    /// The same of memory that has no descriptor: a handle of an allocation, which has the arena at that distance.
    GpuHandle { arena: u32, len: u64, gpu: [u8; 16], handle: [[u8; 32]; 2], offset: u64 },
    /// An arena is gone; unmap it.
    ArenaGone { arena: u32 },
    /// Asks for an answer once all accesses are over that are under way.
    Quiesce { turn: u64 },
    /// The answer to Quiesce.
    Quiet { turn: u64 },
    /// A request to queue pair `qpn` was not valid; it goes to the error state.
    Fault { qpn: u32, from_qpn: u32, kind: FaultKind },
    /// Access to memory that this side can not reach, by the owner on this side's behalf.
    Bounce { request: u32, op: BounceOp },
    /// The answer to Bounce: the former value (atomics, else 0), or why it was not carried out.
    Bounced { request: u32, result: Result<u64, FaultKind> },
}

impl Message {
    /// This side's greeting.
    pub(crate) fn hello(node: NodeId) -> Self {
        let registered = barrier::registered();
        Message::Hello { version: LAYOUT_VERSION, node, registered }
    }
}

/// Why a link was refused.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Refusal {
    /// The peer's user differs.
    User { ours: u32, theirs: u32 },
    /// The peer's version differs.
    Version { ours: u32 },
    /// No room for the descriptors that came with the hello.
    Descriptors,
    /// The hello made no sense.
    Malformed,
}

/// An access by way of the bounce area. Lengths are at most one slot of it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum BounceOp {
    /// Slot to memory named by a key.
    Write { qpn: u32, rkey: u32, addr: u64, len: u32, slot: u32 },
    /// Memory named by a key to slot.
    Read { qpn: u32, rkey: u32, addr: u64, len: u32, slot: u32 },
    /// Slot to a piece of a posted receive that this side has taken.
    Receive { qpn: u32, receive: u32, piece: u32, offset: u32, len: u32, slot: u32 },
    /// Compare and swap.
    CompareSwap { qpn: u32, rkey: u32, addr: u64, compare: u64, swap: u64 },
    /// Fetch and add.
    FetchAdd { qpn: u32, rkey: u32, addr: u64, add: u64 },
}
