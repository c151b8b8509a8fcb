//! Address handles: where datagrams go.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use qpair_verbs_sys as sys;

use super::address;
use super::handle::made;
use super::pd::Pd;
use super::pd_handle::PdHandle;
use super::qp::Local;
use super::resolve::is_silence;
use crate::QpAddress;
use crate::error::ConnectError;
use crate::types::{QpType, Qpn};

/// An address handle, with the queue pair that it is for.
#[derive(Debug)]
pub(crate) struct Ah {
    handle: AhHandle,
    qpn: Qpn,
    qkey: u32,
    /// Which domain it is of, for those who ask.
    domain: u64,
}

/// The library's own address handle.
#[derive(Debug)]
pub(super) struct AhHandle {
    ah: NonNull<sys::ibv_ah>,
    domain: Arc<PdHandle>,
}

// SAFETY: the library's functions on a handle may be called from any thread.
unsafe impl Send for AhHandle {}
// SAFETY: as above.
unsafe impl Sync for AhHandle {}

impl AhHandle {
    /// One of that path. It may wait until the kernel has found the peer's port.
    pub(super) fn create(domain: &Arc<PdHandle>, mut path: sys::ibv_ah_attr) -> io::Result<Self> {
        let library = domain.device().library;
        // SAFETY: the domain is alive.
        let ah = made(unsafe { (library.ibv_create_ah)(domain.pd(), &raw mut path) })?;
        Ok(AhHandle { ah, domain: domain.clone() })
    }
}

impl Ah {
    /// A handle for datagrams that take the way of `local` to the queue pair at `peer`.
    pub(super) fn create(pd: &Arc<Pd>, local: &Local, peer: &QpAddress) -> Result<Arc<Self>, ConnectError> {
        if peer.qp_type != QpType::Ud {
            return Err(ConnectError::TypeMismatch { ours: QpType::Ud, theirs: peer.qp_type });
        }
        address::check_peer(peer)?;
        let handle = AhHandle::create(pd.handle(), local.path_to(peer)).map_err(|source| {
            match is_silence(local.link_layer, &source) {
                true => ConnectError::Unreachable { gid: peer.gid, source },
                false => ConnectError::System { what: "make an address handle for the peer's port", source },
            }
        })?;
        Ok(Arc::new(Ah { handle, qpn: peer.qpn, qkey: peer.qkey, domain: pd.id() }))
    }

    pub(crate) fn domain(&self) -> u64 {
        self.domain
    }

    pub(super) fn raw(&self) -> *mut sys::ibv_ah {
        self.handle.ah.as_ptr()
    }

    pub(super) fn qpn(&self) -> u32 {
        self.qpn.0
    }

    pub(super) fn qkey(&self) -> u32 {
        self.qkey
    }
}

impl Drop for AhHandle {
    fn drop(&mut self) {
        let handle = self.domain.device();
        // SAFETY: alive until now; datagrams under way hold it.
        let gone = handle.given_back(unsafe { (handle.library.ibv_destroy_ah)(self.ah.as_ptr()) });
        if let Err(error) = gone {
            std::mem::forget(self.domain.clone());
            tracing::error!(%error, "an address handle is not given back");
        }
    }
}
