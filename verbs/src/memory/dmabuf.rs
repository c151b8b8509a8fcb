//! Memory behind a DMA-buf, such as that of a GPU: a device reaches it, this program does not have to.

use std::fmt;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr::without_provenance_mut;
use std::sync::Arc;

use crate::error::{DmabufRevokeFailed, PostError, RevokeBlocked};
use crate::gpu::Place;
use crate::ibv::Mr;
use crate::memory::{RemoteSlice, Sge};
use crate::types::{Access, Rkey};

/// Registered memory behind a DMA-buf, made by
/// [`ProtectionDomain::register_dmabuf`](crate::ProtectionDomain::register_dmabuf).
///
/// It yields no bytes: whoever exported the DMA-buf gives access to them. Work requests name parts of it by
/// [`local`](DmabufRegion::local), peers by [`remote`](DmabufRegion::remote).
#[derive(Debug)]
pub struct DmabufRegion {
    shared: Arc<Shared>,
}

/// Part of such memory, as local memory of a work request.
#[derive(Clone)]
pub struct DmabufSlice {
    shared: Arc<Shared>,
    start: usize,
    len: usize,
}

#[derive(Debug)]
struct Shared {
    /// `None` once it is revoked.
    held: Option<Held>,
    addr: u64,
    len: usize,
    access: Access,
    lkey: u32,
    rkey: Rkey,
    domain: u64,
}

/// What a registration stands on.
#[derive(Debug)]
struct Held {
    mr: Mr,
    dmabuf: OwnedFd,
}

impl DmabufRegion {
    /// `addr` is what peers count addresses from.
    pub(crate) fn new(mr: Mr, dmabuf: OwnedFd, domain: u64, (addr, len): (u64, usize), access: Access) -> Self {
        let (lkey, rkey) = (mr.lkey(), mr.rkey());
        let held = Some(Held { mr, dmabuf });
        DmabufRegion { shared: Arc::new(Shared { held, addr, len, access, lkey, rkey, domain }) }
    }

    /// Length in bytes; never zero.
    #[allow(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.shared.len
    }

    /// The rights that peers have.
    pub fn access(&self) -> Access {
        self.shared.access
    }

    /// The key that peers present.
    pub fn rkey(&self) -> Rkey {
        self.shared.rkey
    }

    /// The name of `range` for peers: plain data to send to them.
    ///
    /// # Panics
    /// If the range lies outside the region, as slices do.
    pub fn remote(&self, range: Range<usize>) -> RemoteSlice {
        let whole = RemoteSlice { addr: self.shared.addr, len: self.shared.len as u64, rkey: self.shared.rkey };
        whole.slice(range.start as u64..range.end as u64)
    }

    /// `range` as the local side of work requests.
    ///
    /// # Panics
    /// If the range lies outside the region, as slices do.
    pub fn local(&self, range: Range<usize>) -> DmabufSlice {
        assert!(range.start <= range.end && range.end <= self.len(), "range outside the region");
        DmabufSlice { shared: self.shared.clone(), start: range.start, len: range.end - range.start }
    }

    /// Ends the registration, so that neither device nor peers reach the memory any more, and gives the DMA-buf back.
    ///
    /// # Errors
    /// [`DmabufRevokeFailed`] with the region, while posted work names it, or the device refuses.
    pub fn revoke(mut self) -> Result<OwnedFd, DmabufRevokeFailed> {
        let Some(shared) = Arc::get_mut(&mut self.shared) else {
            return Err(DmabufRevokeFailed { why: RevokeBlocked::PostedWork, region: self });
        };
        let Some(held) = &mut shared.held else { unreachable!("{TAKEN}") };
        if let Err(error) = held.mr.end() {
            let why = RevokeBlocked::Refused { errno: error.raw_os_error().unwrap_or_default() };
            return Err(DmabufRevokeFailed { why, region: self });
        }
        match shared.held.take() {
            Some(held) => Ok(held.dmabuf),
            None => unreachable!("{TAKEN}"),
        }
    }
}

impl DmabufSlice {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if it holds no byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn sge(&self) -> Sge {
        // A number for the device: nothing here follows it.
        let addr = self.shared.addr.wrapping_add(self.start as u64);
        let (ptr, lkey) = (without_provenance_mut(addr as usize), self.shared.lkey);
        Sge { ptr, len: self.len, lkey, place: Place::HOST, arena: None }
    }

    pub(crate) fn check_domain(&self, domain: u64) -> Result<(), PostError> {
        if self.shared.domain == domain { Ok(()) } else { Err(PostError::WrongDomain) }
    }
}

impl fmt::Debug for DmabufSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DmabufSlice({}, {}..{})", self.shared.rkey, self.start, self.start + self.len)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let Some(mut held) = self.held.take() else { return };
        if let Err(error) = held.mr.end() {
            // Before that is logged, which may panic.
            std::mem::forget(held.dmabuf);
            tracing::error!(%error, len = self.len, "the device keeps a DMA-buf registered; it stays open");
        }
    }
}

/// Why a region always has its registration.
const TAKEN: &str = "only `revoke` takes the registration, and consumes the region that nobody shares";
