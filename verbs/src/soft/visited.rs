//! A queue pair as its home and the control thread know it, and looks at it, which whoever closes it waits for.

use std::ops::Deref;
use std::sync::Arc;

use super::bell::Rope;
use super::control::Link;
use super::filler::{Filled, Filler};
use super::layout::{FaultKind, QpInfo};
use super::withdrawal::PeerSighting;
use crate::address::NodeId;
use crate::sync::{AtomicU32, Ordering};
use crate::types::Access;

/// A queue pair that is looked at; whoever closes it waits for that. Made under the lock of the members, so that none begins
/// once it is removed.
pub(crate) struct Visited {
    member: Arc<dyn Member>,
    // After the member, so that it ends last.
    _visit: Visit,
}

/// A look at a queue pair, counted as long as it lives.
struct Visit(Arc<AtomicU32>);

/// A queue pair, as its home and the control thread know it.
pub(crate) trait Member: Send + Sync {
    /// How many look at it.
    fn visits(&self) -> &Arc<AtomicU32>;
    /// Where its parts lie, for peers.
    fn info(&self) -> QpInfo;
    /// Its parts are told over a link.
    fn note_asker(&self, link: &Link);
    /// What the bell of its receive completion queue is rung by.
    fn rope(&self) -> &Rope;
    /// Protection domain.
    fn domain(&self) -> u64;
    /// Rights of its peer.
    fn access(&self) -> Access;
    /// True if its peer is on that device.
    fn is_peer(&self, node: NodeId) -> bool;
    /// Its own hazard.
    fn hazard(&self) -> &AtomicU32;
    /// A glance at its peer's hazard.
    fn sight_peer(&self) -> Option<PeerSighting>;
    /// For who fills its receives within this process.
    fn filler(&self) -> Option<Filler>;
    /// Marks a posted receive that a peer may fill, and says where a piece of it lies, as address, length and arena; valid
    /// inside the engine's hazard.
    fn fill(&self, receive: u32, piece: u32) -> Option<(Filled, (u64, u64, u32))>;
    /// A peer's word that its own request was not valid.
    fn fault(&self, from: NodeId, from_qpn: u32, kind: FaultKind);
    /// The link of that number, to that device, is over. Unless the device is `gone` too, it may be inside an access, or fill what
    /// it claimed.
    fn link_lost(&self, link: u64, peer: NodeId, gone: bool);
    /// True once it has failed: nobody begins an access by it any more.
    fn is_failed(&self) -> bool;
    /// Its device has failed.
    fn device_failed(&self);
    /// Tries stalled work again; true if there is more to do.
    fn tick(&self) -> bool;
}

impl Visited {
    pub(super) fn new(member: Arc<dyn Member>) -> Self {
        let visits = member.visits().clone();
        visits.fetch_add(1, Ordering::Relaxed);
        Visited { member, _visit: Visit(visits) }
    }
}

impl Deref for Visited {
    type Target = dyn Member + 'static;

    fn deref(&self) -> &(dyn Member + 'static) {
        &*self.member
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}
