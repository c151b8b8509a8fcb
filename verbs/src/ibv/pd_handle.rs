//! The library's own protection domain, and one with a thread domain that stands on it.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use qpair_verbs_sys as sys;

use super::handle::{Handle, made};
use crate::error::CreateError;

/// A protection domain of the library.
#[derive(Debug)]
pub(super) struct PdHandle {
    pd: NonNull<sys::ibv_pd>,
    /// Of a parent domain: the thread domain and the domain it stands on.
    parent: Option<(NonNull<sys::ibv_td>, Arc<PdHandle>)>,
    device: Arc<Handle>,
}

// SAFETY: the library's functions on these objects may be called from any thread.
unsafe impl Send for PdHandle {}
// SAFETY: as above.
unsafe impl Sync for PdHandle {}

impl PdHandle {
    pub(super) fn alloc(device: &Arc<Handle>) -> Result<Self, CreateError> {
        // SAFETY: the context is open.
        let pd = made(unsafe { (device.library.ibv_alloc_pd)(device.ctx()) })
            .map_err(|source| CreateError::System { what: "allocate a protection domain", source })?;
        Ok(PdHandle { pd, parent: None, device: device.clone() })
    }

    /// The same domain with a thread domain of its own: queue pairs in it are not locked by the provider. `None` where the
    /// provider has none.
    pub(super) fn with_thread_domain(self: &Arc<Self>) -> Option<Arc<PdHandle>> {
        let context = self.device.ctx();
        let mut attributes = sys::ibv_td_init_attr { comp_mask: 0 };
        // SAFETY: the context is open.
        let td = made(unsafe { sys::ibv_alloc_td(context, &raw mut attributes) }.ok()?).ok()?;
        let mut attributes = sys::ibv_parent_domain_init_attr {
            pd: self.pd(),
            td: td.as_ptr(),
            comp_mask: 0,
            alloc: None,
            free: None,
            pd_context: std::ptr::null_mut(),
        };
        // SAFETY: context, domain and thread domain are alive.
        let parent = unsafe { sys::ibv_alloc_parent_domain(context, &raw mut attributes) };
        match parent.ok().and_then(NonNull::new) {
            Some(pd) => Some(Arc::new(PdHandle { pd, parent: Some((td, self.clone())), device: self.device.clone() })),
            None => {
                // SAFETY: allocated above, and nothing stands on it.
                let _ = unsafe { sys::ibv_dealloc_td(td.as_ptr()) };
                None
            }
        }
    }

    pub(super) fn pd(&self) -> *mut sys::ibv_pd {
        self.pd.as_ptr()
    }

    pub(super) fn device(&self) -> &Handle {
        &self.device
    }

    /// True if the provider takes no locks for queue pairs made in it.
    pub(super) fn has_thread_domain(&self) -> bool {
        self.parent.is_some()
    }
}

impl Drop for PdHandle {
    fn drop(&mut self) {
        // SAFETY: alive until now; what stood on it held this handle and is gone.
        let gone = self.device.given_back(unsafe { (self.device.library.ibv_dealloc_pd)(self.pd()) });
        if let Err(error) = &gone {
            // What it stands on stays too.
            std::mem::forget((self.device.clone(), self.parent.take()));
            tracing::error!(%error, device = self.device.name, "a protection domain is not given back");
        }
        if let Some((td, below)) = self.parent.take() {
            // SAFETY: as above; the parent domain, which stood on it, is gone.
            let gone = unsafe { sys::ibv_dealloc_td(td.as_ptr()) }.map_err(io::Error::other);
            let gone = gone.and_then(|status| self.device.given_back(status));
            if let Err(error) = gone {
                std::mem::forget(self.device.clone());
                tracing::error!(%error, device = self.device.name, "a thread domain is not given back");
            }
            drop(below);
        }
    }
}
