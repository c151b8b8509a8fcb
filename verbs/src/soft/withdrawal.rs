//! Withdrawing a key: what is left to wait for, once nobody can begin an access with it any more.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::hazard::Sighting;
use super::layout::{Identity, QpPublic};
use crate::memory::Segment;
use crate::types::Rkey;

/// A key that is withdrawn, and the accesses that were under way at that moment. One can be used again and again.
#[derive(Debug, Default)]
pub(crate) struct Withdrawal {
    /// The key, once it is withdrawn.
    pub(super) rkey: Option<Rkey>,
    /// This withdrawal killed the key, and gives its slot back in the end.
    pub(super) killed: bool,
    /// Peers that were inside an access.
    pub(super) peers: Vec<PeerSighting>,
    /// The control thread, as initiator on behalf of peers.
    pub(super) engine: Sighting,
}

impl Withdrawal {
    pub(crate) fn reset(&mut self) {
        self.rkey = None;
        self.peers.clear();
    }
}

/// A glance at a peer's hazard.
#[derive(Clone)]
pub(crate) struct PeerSighting {
    /// Keeps what the peer shows mapped.
    _memory: Arc<Segment>,
    /// True once the peer's process is gone, or has told that it is in no access any more.
    dead: Arc<AtomicBool>,
    public: NonNull<QpPublic>,
    who: Identity,
    sight: Sighting,
}

// SAFETY: the pointer names atomics in a mapping that `_memory` keeps.
unsafe impl Send for PeerSighting {}
// SAFETY: as above.
unsafe impl Sync for PeerSighting {}

impl PeerSighting {
    /// Of the queue pair `who`, which shows `public`.
    ///
    /// # Safety
    /// `public` lies in `memory`.
    pub(crate) unsafe fn take(
        memory: Arc<Segment>,
        dead: Arc<AtomicBool>,
        public: NonNull<QpPublic>,
        who: Identity,
    ) -> Self {
        // SAFETY: mapped as long as `memory` lives.
        let sight = Sighting::take(unsafe { &public.as_ref().hazard.0 });
        PeerSighting { _memory: memory, dead, public, who, sight }
    }

    /// True if both saw one access.
    pub(crate) fn is_same(&self, other: &PeerSighting) -> bool {
        (self.public, self.who, self.sight) == (other.public, other.who, other.sight)
    }

    /// True once the access seen is over.
    pub(crate) fn is_over(&self) -> bool {
        // SAFETY: mapped as long as `_memory` lives.
        let public = unsafe { self.public.as_ref() };
        // One that is closed has left, and its memory may be another's.
        self.dead.load(Ordering::Acquire)
            || self.sight.is_over(&public.hazard.0)
            || !self.who.has(public.gate.load(Ordering::Acquire))
    }
}

impl std::fmt::Debug for PeerSighting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PeerSighting({})", if self.is_over() { "over" } else { "inside" })
    }
}
