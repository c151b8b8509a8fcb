//! Address handles: where datagrams go.

use std::ptr::NonNull;
use std::sync::Arc;

use qpair_verbs_sys as sys;

use super::address;
use super::handle::made;
use super::pd::Pd;
use super::qp::Local;
use crate::QpAddress;
use crate::error::ConnectError;
use crate::types::{QpType, Qpn};

/// An address handle, with the queue pair that it is for.
#[derive(Debug)]
pub(crate) struct Ah {
    ah: NonNull<sys::ibv_ah>,
    qpn: Qpn,
    qkey: u32,
    pd: Arc<Pd>,
}

// SAFETY: the library's functions on a handle may be called from any thread.
unsafe impl Send for Ah {}
// SAFETY: as above.
unsafe impl Sync for Ah {}

impl Ah {
    /// A handle for datagrams that take the way of `local` to the queue pair at `peer`.
    pub(super) fn create(pd: &Arc<Pd>, local: &Local, peer: &QpAddress) -> Result<Arc<Self>, ConnectError> {
        if peer.qp_type != QpType::Ud {
            return Err(ConnectError::TypeMismatch { ours: QpType::Ud, theirs: peer.qp_type });
        }
        address::check_peer(peer)?;
        let mut path = local.path_to(peer);
        let library = pd.device().handle().library;
        // SAFETY: the domain is alive.
        let ah = made(unsafe { (library.ibv_create_ah)(pd.handle().pd(), &raw mut path) })
            .map_err(|source| ConnectError::System { what: "make an address handle for the peer's port", source })?;
        Ok(Arc::new(Ah { ah, qpn: peer.qpn, qkey: peer.qkey, pd: pd.clone() }))
    }

    pub(crate) fn domain(&self) -> u64 {
        self.pd.id()
    }

    pub(super) fn raw(&self) -> *mut sys::ibv_ah {
        self.ah.as_ptr()
    }

    pub(super) fn qpn(&self) -> u32 {
        self.qpn.0
    }

    pub(super) fn qkey(&self) -> u32 {
        self.qkey
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        let handle = self.pd.device().handle();
        // SAFETY: alive until now; datagrams under way hold it.
        let gone = handle.given_back(unsafe { (handle.library.ibv_destroy_ah)(self.ah.as_ptr()) });
        if let Err(error) = gone {
            tracing::error!(%error, "an address handle is not given back");
            std::mem::forget(self.pd.clone());
        }
    }
}
