//! Closing: the device lets go before memory is given back.

use std::io;
use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Instant;

use super::create::OwnedQp;
use crate::sync::lock;
use crate::types::QpState;

impl OwnedQp {
    /// When it was found to have failed, if it may have taken receives from a shared queue by then. However it failed: the device
    /// tells of the last one in any case.
    pub(super) fn failed(&self) -> Option<Instant> {
        let has_failed = self.srq.is_some() && self.shared.has_been_ready() && self.known_state() == QpState::Err;
        has_failed.then(|| *self.failed.get_or_init(Instant::now))
    }

    /// Waits until the device has done with the receives that it took from a shared queue, no longer than a device needs.
    fn await_last_receive(&self) {
        if let Some(failed) = self.failed() {
            self.pd.device().hub().last_receives.wait(|| self.shared.has_reached_last_receive(), failed);
        }
    }

    /// True if it has failed, and dropping it takes no wait.
    pub(crate) fn try_settle(&self) -> bool {
        let last_receives = &self.pd.device().hub().last_receives;
        self.failed().is_none_or(|failed| last_receives.is_over(self.shared.has_reached_last_receive(), failed))
    }

    /// A window that is bound holds on to its queue pair.
    fn end_windows(&self) {
        for (rkey, window) in std::mem::take(&mut *lock(&self.windows)) {
            if let Some(window) = window.upgrade() {
                window.end(rkey);
            }
        }
    }

    /// Destroys it, or leaks what the device may reach. Nothing is logged here.
    fn destroy(&self) -> io::Result<()> {
        let (device, id) = (self.pd.device(), self.shared.id);
        if let Some(leash) = self.leash.get() {
            leash.let_go();
        }
        // Before it goes: another may have its address then.
        device.hub().leave_qp(self.qp.as_ptr());
        // SAFETY: alive until now. When it is gone the device is done with everything that was posted.
        let gone = device.handle().given_back(unsafe { (self.library().ibv_destroy_qp)(self.qp.as_ptr()) });
        if gone.is_err() {
            // The device may be writing into what was posted, for ever, and stands on all of these.
            forget((self.shared.clone(), self.in_domain.clone(), self.pd.clone()));
            forget((self.send_cq.clone(), self.recv_cq.clone(), self.srq.clone()));
        }
        self.send_cq.leave(id);
        if !Arc::ptr_eq(&self.send_cq, &self.recv_cq) {
            self.recv_cq.leave(id);
        }
        gone.inspect(|()| lock(&device.hub().numbers).give(id))
    }
}

impl Drop for OwnedQp {
    /// What logs for the program may panic: the device has let go of what was posted before that goes on, or it is
    /// leaked.
    fn drop(&mut self) {
        let failed = self.fail();
        self.await_last_receive();
        let ended = catch_unwind(AssertUnwindSafe(|| self.end_windows()));
        let gone = self.destroy();
        if let Err(failed) = failed {
            let error = self.not_failed(failed);
            tracing::debug!(qpn = %self.qpn(), %error, "closing goes on");
        }
        if let Err(error) = gone {
            tracing::error!(qpn = %self.qpn(), %error, "a queue pair is not given back; what was posted is leaked");
        }
        if let Err(panic) = ended {
            resume_unwind(panic);
        }
    }
}
