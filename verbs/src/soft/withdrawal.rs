//! Withdrawing a key: what is left to wait for, once nobody can begin an access with it any more.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::hazard::Sighting;
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
    /// Keeps the word mapped.
    _memory: Arc<Segment>,
    /// True once the peer's process is gone.
    dead: Arc<AtomicBool>,
    word: NonNull<AtomicU32>,
    sight: Sighting,
}

// SAFETY: the pointer names an atomic in a mapping that `_memory` keeps.
unsafe impl Send for PeerSighting {}
// SAFETY: as above.
unsafe impl Sync for PeerSighting {}

impl PeerSighting {
    /// # Safety
    /// `word` lies in `memory`.
    pub(crate) unsafe fn take(memory: Arc<Segment>, dead: Arc<AtomicBool>, word: NonNull<AtomicU32>) -> Self {
        // SAFETY: mapped as long as `memory` lives.
        let sight = Sighting::take(unsafe { word.as_ref() });
        PeerSighting { _memory: memory, dead, word, sight }
    }

    /// True once the access seen is over.
    pub(crate) fn is_over(&self) -> bool {
        // SAFETY: mapped as long as `_memory` lives.
        self.dead.load(Ordering::Acquire) || self.sight.is_over(unsafe { self.word.as_ref() })
    }
}

impl std::fmt::Debug for PeerSighting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PeerSighting({})", if self.is_over() { "over" } else { "inside" })
    }
}
