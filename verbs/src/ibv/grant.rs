//! The right of peers to a region: a registration of its own, beside the one that its memory has for local use.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, Weak};

use qpair_verbs_sys as sys;

use super::mw::Mw;
use super::pd::Pd;
use super::registered::{NotRegistered, Registered};
use crate::error::{PostError, RevokeBlocked};
use crate::memory::Backing;
use crate::sync::lock;
use crate::types::{Access, Rkey};

/// A registration that peers may use.
#[derive(Debug)]
pub(crate) struct Grant {
    rkey: Rkey,
    registered: Mutex<Registered>,
    /// Windows that were bound to the region, with their keys.
    windows: Mutex<Vec<(Rkey, Weak<Mw>)>>,
}

impl Grant {
    /// Registers a block for peers.
    ///
    /// # Errors
    /// [`NotRegistered`] as the device refuses it.
    pub(crate) fn register(pd: &Arc<Pd>, backing: &Backing, access: Access) -> Result<Self, NotRegistered> {
        let (base, len) = (backing.base(), backing.len());
        // SAFETY: the region keeps the block until the registration is ended, and leaks it where that fails or a device keeps it;
        // while it lasts all access to the block is by copies and atomics that bear the device's, or nobody writes it at all.
        let registered = unsafe {
            if let Some(allocation) = backing.gpu() {
                pd.register_gpu(allocation, access).map(|(registered, _)| registered)
            } else if backing.is_read_only() {
                pd.register_read_only(base, len)
            } else if backing.is_on_demand() {
                pd.register_on_demand(base, len, access)
            } else {
                pd.register(base, len, access)
            }
        }?;
        Ok(Grant { rkey: registered.rkey(), registered: Mutex::new(registered), windows: Mutex::default() })
    }

    pub(crate) fn rkey(&self) -> Rkey {
        self.rkey
    }

    /// The key that peers present to the device of a further domain.
    pub(crate) fn rkey_in(&self, domain: u64) -> Option<Rkey> {
        lock(&self.registered).rkey_in(domain)
    }

    /// Whether the registration has ended.
    pub(crate) fn is_withdrawn(&self) -> bool {
        lock(&self.registered).raw().is_none()
    }

    /// Runs `bind` with the library's object, which is not ended meanwhile.
    ///
    /// # Errors
    /// [`PostError::Withdrawn`] if it has ended before, and those of `bind`.
    pub(super) fn with_mr<R>(
        &self,
        bind: impl FnOnce(NonNull<sys::ibv_mr>) -> Result<R, PostError>,
    ) -> Result<R, PostError> {
        let registered = lock(&self.registered);
        bind(registered.raw().ok_or(PostError::Withdrawn)?)
    }

    /// Notes a window that is bound to the region from now on.
    pub(super) fn add_window(&self, rkey: Rkey, window: &Arc<Mw>) {
        let mut windows = lock(&self.windows);
        windows.retain(is_bound);
        windows.push((rkey, Arc::downgrade(window)));
    }

    pub(crate) fn has_windows(&self) -> bool {
        let mut windows = lock(&self.windows);
        windows.retain(is_bound);
        !windows.is_empty()
    }

    /// Ends the registration. The device has finished what was under way when it returns.
    ///
    /// # Errors
    /// [`RevokeBlocked`] as the device refuses: of a window that is bound it knows before this side does.
    pub(crate) fn withdraw(&self) -> Result<(), RevokeBlocked> {
        lock(&self.registered).end().map_err(|error| match error.raw_os_error() {
            Some(libc::EBUSY | libc::EINVAL) if !lock(&self.windows).is_empty() => RevokeBlocked::BoundWindows,
            errno => RevokeBlocked::Refused { errno: errno.unwrap_or_default() },
        })
    }

    /// Ends windows and registration; false if the device refuses.
    pub(crate) fn end(&mut self) -> bool {
        let windows = std::mem::take(&mut *lock(&self.windows));
        for (rkey, window) in windows {
            if let Some(window) = window.upgrade() {
                window.end(rkey);
            }
        }
        match self.withdraw() {
            Ok(()) => true,
            Err(why) => {
                tracing::error!(rkey = %self.rkey, %why, "a region is not given back by the device");
                false
            }
        }
    }
}

fn is_bound((rkey, window): &(Rkey, Weak<Mw>)) -> bool {
    window.upgrade().is_some_and(|window| window.is_bound_as(*rkey))
}
