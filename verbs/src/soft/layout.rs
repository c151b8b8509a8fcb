//! What processes share, byte for byte. Two mappings per opened device: `public`, which its owner writes and peers can
//! only read (the kernel enforces it), and `shared`, which both write.
//!
//! `public`: [`NodeHeader`], the key table, then blocks for queue pairs, completion queues and receive queues.
//! `shared`: inbound rings, claim tables and boards.

use serde::{Deserialize, Serialize};

use super::arming::Arming;
use super::rest::Rest;
use crate::sync::{AtomicU32, AtomicU64};
use crate::types::QpType;

/// Version of everything in this file and of the control messages.
pub(crate) const LAYOUT_VERSION: u32 = 9;
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"qpairshm");

/// Size of the public mapping: header, key table and room for some ten thousand queues. Untouched pages cost nothing.
pub(crate) const PUBLIC_BYTES: usize = 256 << 20;
/// Size of the shared mapping.
pub(crate) const SHARED_BYTES: usize = 1 << 30;
/// Slots of the key table; the low 16 bits of a key are its slot.
pub(crate) const KEY_SLOTS: usize = 1 << 16;
pub(crate) const KEYS_OFFSET: usize = 4096;
/// Start of the blocks in the public mapping.
pub(crate) const PUBLIC_BLOCKS: usize = KEYS_OFFSET + KEY_SLOTS * size_of::<KeyEntry>();

/// Start of the public mapping.
#[repr(C, align(64))]
pub(crate) struct NodeHeader {
    pub(crate) magic: AtomicU64,
    pub(crate) version: AtomicU32,
}

/// One remote key. Fields other than `tag` change only while `tag` is 0 and no initiator is in an access.
#[repr(C, align(64))]
pub(crate) struct KeyEntry {
    /// High 16 bits of the key in the high half, 1 in the low half; 0 while the entry is not live.
    pub(crate) tag: AtomicU32,
    pub(crate) access: AtomicU32,
    pub(crate) domain: AtomicU64,
    pub(crate) addr: AtomicU64,
    pub(crate) len: AtomicU64,
    /// Arena that holds the region, 0 if peers can not map it.
    pub(crate) arena: AtomicU32,
    /// Queue pair that the key is for (windows), `ANY_QPN` if any of the domain.
    pub(crate) bound_qpn: AtomicU32,
    /// Offset of the region in its arena.
    pub(crate) arena_offset: AtomicU64,
}

pub(crate) const ANY_QPN: u32 = u32::MAX;

/// What a queue pair shows to its peer.
#[repr(C, align(64))]
pub(crate) struct QpPublic {
    /// Who this is and how far it is set up: see [`Identity::gate`]. 0 while there is no queue pair.
    pub(crate) gate: AtomicU64,
    /// Protection domain; keys of others are refused.
    pub(crate) domain: AtomicU64,
    /// Rights of peers through this queue pair.
    pub(crate) access: AtomicU32,
    pub(crate) qkey: AtomicU32,
    /// [`Identity::word`] of the queue pair at the other end, 0 before it is known.
    pub(crate) peer: AtomicU64,
    /// Pause that a sender makes when no receive is posted, in microseconds.
    pub(crate) rnr_timer_us: AtomicU32,
    /// Whether its completion queues pass it by: the one for receives, which its peer fills, and the one for sends.
    pub(crate) rests: [Rest; 2],
    pub(crate) receives: Receives,
    /// Slots of the inbound ring that are free again, as a running count.
    pub(crate) consumed: Line<AtomicU32>,
    /// This side as initiator: odd while it is inside the peer's memory.
    pub(crate) hazard: Line<AtomicU32>,
}

/// Posted receives, as senders see them.
#[repr(C, align(64))]
pub(crate) struct Receives {
    /// Running count of posted receives.
    pub(crate) posted: AtomicU32,
    /// By how much the shortest receive ever posted is shorter than `entry::RING_INLINE` bytes; 0 if none is.
    pub(crate) short_by: AtomicU32,
}

/// A value with a cache line of its own.
#[repr(C, align(64))]
pub(crate) struct Line<T>(pub(crate) T);

/// A completion queue, as senders see it.
#[repr(C, align(64))]
pub(crate) struct CqPublic {
    pub(crate) arming: Arming,
}

/// A posted receive.
#[repr(C, align(64))]
pub(crate) struct RecvWqe {
    pub(crate) total: AtomicU32,
    pub(crate) pieces: AtomicU32,
    pub(crate) piece: [RecvPiece; crate::memory::MAX_SGE],
}

/// One piece of memory of a posted receive.
#[repr(C)]
pub(crate) struct RecvPiece {
    pub(crate) addr: AtomicU64,
    pub(crate) arena_offset: AtomicU64,
    pub(crate) arena: AtomicU32,
    pub(crate) len: AtomicU32,
}

/// Of a shared receive queue or datagram queue pair: who took which receive. In the shared mapping.
#[repr(C, align(64))]
pub(crate) struct ClaimHead {
    /// Claims so far in the low half, the last claimer in the high half; bit 31 of the claimer closes the queue.
    pub(crate) word: AtomicU64,
}

/// Who a queue pair is: its number, and a random one of its own, since numbers are given anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) qpn: u32,
    /// Never 0.
    pub(crate) life: u32,
}

/// Where the parts of a queue pair lie in its device's mappings.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct QpInfo {
    pub(crate) who: Identity,
    pub(crate) qp_type: QpType,
    /// `QpPublic` in the public mapping.
    pub(crate) public: usize,
    /// Inbound ring in the shared mapping.
    pub(crate) ring: usize,
    pub(crate) ring_lines: u32,
    /// `Receives` in the public mapping: the queue pair's own, or its shared receive queue's.
    pub(crate) receives: usize,
    /// Posted receives in the public mapping.
    pub(crate) wqes: usize,
    pub(crate) wqe_count: u32,
    /// Of a shared receive queue: which slot of `wqes` a running number stands for, in the public mapping.
    pub(crate) order: Option<usize>,
    /// Present if receives are claimed.
    pub(crate) claims: Option<ClaimInfo>,
    /// `CqPublic` of the receive completion queue in the public mapping.
    pub(crate) cq: usize,
    /// Which bell goes with this: a number of its device's own, never used again.
    pub(crate) bell: u64,
    /// Where it is called while it rests; without that it never does.
    pub(crate) place: Option<PlaceInfo>,
}

/// A place on a board.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct PlaceInfo {
    /// `Board` in the shared mapping.
    pub(crate) board: usize,
    pub(crate) place: u32,
}

/// Where a claim table lies in the shared mapping.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct ClaimInfo {
    pub(crate) head: usize,
    pub(crate) takers: usize,
    pub(crate) count: u32,
}

/// What was wrong with a request, as the responder's device would find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FaultKind {
    /// Wrong key, range or right.
    Access,
    /// Too long for the receive, or not allowed on this kind of queue pair.
    Request,
    /// The memory could not be written or read, though it may be.
    Operation,
}

/// An entry of a shared receive queue's order: a running number and its slot. 0 stands for none.
pub(crate) const fn ordered(index: u32, slot: u32) -> u64 {
    (index as u64) << 32 | (slot + 1) as u64
}

/// The slot of running number `index`, if the entry is about it.
pub(crate) const fn slot_of(entry: u64, index: u32) -> Option<u32> {
    if (entry >> 32) as u32 == index { (entry as u32).checked_sub(1) } else { None }
}

impl Identity {
    /// All of it in a word, which is not 0.
    pub(crate) const fn word(self) -> u64 {
        (self.life as u64) << 32 | (self.qpn as u64) << 8
    }

    /// The gate word of a queue pair: who it is and how far.
    pub(crate) const fn gate(self, state: u32) -> u64 {
        self.word() | state as u64
    }

    /// True if that gate word is this queue pair's.
    pub(crate) const fn has(self, gate: u64) -> bool {
        gate & !0xff == self.word()
    }
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<KeyEntry>() == 64);
    assert!(size_of::<NodeHeader>() == 64);
    assert!(size_of::<QpPublic>() == 256);
    assert!(size_of::<RecvWqe>() == 128);
    assert!(size_of::<CqPublic>() == 64);
    assert!(size_of::<ClaimHead>() == 64);
};
