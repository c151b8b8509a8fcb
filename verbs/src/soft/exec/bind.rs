//! Memory windows: bound and invalidated by requests of the queue pair that they are for.

use std::ops::Range;
use std::sync::Arc;

use super::request::{Outcome, Own};
use crate::memory::{Bound, Grant, RegionShared, RemoteSlice, Window};
use crate::soft::keys::KeySpec;
use crate::soft::withdrawal::Withdrawal;
use crate::status::WcStatus;
use crate::types::{Access, Rkey};

impl Own<'_> {
    /// Gives the window a range of the region under a fresh key, that of a queue pair on the network or not. The former one is
    /// withdrawn by `withdraw`, which is false if a peer does not leave.
    pub(crate) fn bind(
        &self,
        (window, region): (&Window, &Arc<RegionShared>),
        range: &Range<usize>,
        access: Access,
        on_network: bool,
        withdraw: impl FnOnce(&Bound) -> bool,
    ) -> Outcome {
        let backing = region.buffer().backing();
        let domain = self.domain;
        let Window::Soft(window) = window else { return Outcome::Done(WcStatus::MW_BIND_ERR, 0) };
        let fits = range.start < range.end && range.end <= backing.len();
        let may = region.access().contains(Access::WINDOW_BIND) && !access.contains(Access::WINDOW_BIND);
        if !fits || !may || window.domain() != domain || backing.domain() != domain {
            return Outcome::Done(WcStatus::MW_BIND_ERR, 0);
        }
        let spec = KeySpec {
            addr: backing.base().as_ptr() as u64 + range.start as u64,
            len: (range.end - range.start) as u64,
            access,
            domain,
            arena: backing.arena().map(|(arena, offset)| (arena, offset + range.start)),
            bound_qpn: Some(self.qpn),
        };
        let keys = self.home.keys();
        let Ok(rkey) = keys.publish(&spec) else { return Outcome::Done(WcStatus::MW_BIND_ERR, 0) };
        let remote = RemoteSlice { addr: spec.addr, len: spec.len, rkey };
        if window.rebind(Some(Bound { rkey, remote, access, qpn: self.qpn, on_network }), withdraw) {
            if let Grant::Soft(grant) = region.grant() {
                grant.add_window(rkey);
            }
            return Outcome::Done(WcStatus::SUCCESS, 0);
        }
        // It was published: peers may be about to look at its slot.
        let mut withdrawal = Withdrawal::default();
        self.home.withdraw(rkey, &mut withdrawal);
        self.home.abandon(withdrawal);
        Outcome::Done(WcStatus::MW_BIND_ERR, 0)
    }

    /// Withdraws a window's key; only one that this queue pair bound.
    pub(crate) fn invalidate(&self, rkey: Rkey) -> Outcome {
        let node = self.home;
        let ours = node.keys().view().is_bound(rkey, self.qpn, self.domain);
        let status =
            if ours && node.withdraw_bound(rkey, self.qpn) { WcStatus::SUCCESS } else { WcStatus::LOC_ACCESS_ERR };
        Outcome::Done(status, 0)
    }
}
