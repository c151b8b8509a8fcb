//! Enhanced connection establishment: abilities of a vendor's devices beyond the specification, used where both ends have
//! them (rdma-core's `ibv_query_ece(3)`, IBTA annex A17's REQ and REP fields).

use qpair_verbs_sys as sys;

use super::create::OwnedQp;
use crate::QpAddress;
use crate::address::Ece;
use crate::ibv::handle::outcome;

impl OwnedQp {
    /// What this end offers; `None` where library or device have no such thing.
    pub(super) fn offered_ece(&self) -> Option<Ece> {
        let query = self.library().ibv_query_ece().ok()?;
        let mut ece = sys::ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 };
        // SAFETY: the queue pair is alive; the answer is written to.
        outcome(unsafe { query(self.qp.as_ptr(), &raw mut ece) }).ok()?;
        (ece.options != 0).then_some(Ece { vendor_id: ece.vendor_id, options: ece.options })
    }

    /// Takes from a peer of the same vendor what both ends have; the device leaves out what it does not know. Without it
    /// the connection works too, so that a refusal is no failure.
    pub(super) fn agree_on_ece(&self, peer: &QpAddress) {
        let (Some(ours), Some(theirs)) = (self.address.ece, peer.ece) else { return };
        if ours.vendor_id != theirs.vendor_id {
            return;
        }
        let Ok(set) = self.library().ibv_set_ece() else { return };
        let mut ece =
            sys::ibv_ece { vendor_id: theirs.vendor_id, options: ours.options & theirs.options, comp_mask: 0 };
        // SAFETY: the queue pair is alive, and in INIT.
        if let Err(error) = outcome(unsafe { set(self.qp.as_ptr(), &raw mut ece) }) {
            tracing::debug!(qpn = %self.qpn(), %error, "no vendor's abilities on this connection");
        }
    }
}
