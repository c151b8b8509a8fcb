//! GPUs that reach each other's memory by NVLink or across the bus, so that the driver need not copy by way of the processor's.
//!
//! Memory of `cuMemAlloc`, and what was opened by a handle, another GPU reaches once its context has access to that of the memory
//! (`cuCtxEnablePeerAccess`); mapped memory, once that device was let in to each range (`cuMemSetAccess`). Both are done for two GPUs
//! when memory of the two is copied first, or somebody asks, since each costs all allocations that follow.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::device::Device;
use super::driver::{Address, PEER_ACCESS_ENABLED, PEER_ACCESS_UNSUPPORTED, TOO_MANY_PEERS};
use super::place::MAX_GPUS;
use crate::error::GpuError;
use crate::soft::no_peer_access;
use crate::sync::lock;

/// Whom a GPU's memory is open to.
#[derive(Default)]
pub(super) struct Peers {
    /// GPUs that it has met, as bits by their ordinals.
    met: AtomicU64,
    /// Those of them that reach its memory.
    reaching: AtomicU64,
    /// Ranges of addresses that memory of the GPU is mapped to.
    mapped: Mutex<Vec<(Address, usize)>>,
}

impl Device {
    /// Has each of the two reach the other's memory, if they can. The first time takes the driver some milliseconds.
    #[inline]
    pub(super) fn meet(&self, other: &Device) {
        if self.peers.met.load(Ordering::Acquire) & bit(other) == 0 {
            self.meet_first(other);
        }
    }

    #[cold]
    fn meet_first(&self, other: &Device) {
        let let_in = |one: &Device, another: &Device| {
            let Err(error) = one.let_in(another) else { return true };
            let (one, another) = (one.ordinal(), another.ordinal());
            tracing::info!(%error, "GPU {another} does not reach memory of GPU {one}; the driver copies between them");
            // What may be of the moment is tried again with the next copy.
            matches!(error, GpuError::Driver { code: PEER_ACCESS_UNSUPPORTED | TOO_MANY_PEERS, .. })
        };
        if no_peer_access() || [let_in(self, other), let_in(other, self)] == [true; 2] {
            self.peers.met.fetch_or(bit(other), Ordering::AcqRel);
            other.peers.met.fetch_or(bit(self), Ordering::AcqRel);
        }
    }

    /// Has `other` reach this GPU's memory.
    fn let_in(&self, other: &Device) -> Result<(), GpuError> {
        let _entered = other.enter()?;
        // SAFETY: both are devices of the driver, and their contexts stay with the process; `other`'s is this thread's.
        let enabled = unsafe { other.driver.reach_context(other.number(), (self.number(), self.context())) };
        match enabled {
            // By another library.
            Ok(()) | Err(GpuError::Driver { code: PEER_ACCESS_ENABLED, .. }) => {}
            Err(error) => return Err(error),
        }
        let mapped = lock(&self.peers.mapped);
        self.peers.reaching.fetch_or(bit(other), Ordering::AcqRel);
        for &(address, len) in mapped.iter() {
            // SAFETY: the range is mapped as long as it is listed.
            self.opened(unsafe { self.driver.allow(address, len, other.number()) }, other.ordinal());
        }
        Ok(())
    }

    /// Memory that one device more was to reach.
    fn opened(&self, result: Result<(), GpuError>, other: usize) {
        if let Err(error) = result {
            tracing::info!(%error, "GPU {other} does not reach some memory of GPU {}", self.ordinal());
        }
    }

    /// Lets those in to newly mapped memory that reach the rest.
    ///
    /// # Safety
    /// Memory of this GPU is mapped there, until [`unlist`](Device::unlist).
    pub(super) unsafe fn list(&self, address: Address, len: usize) {
        let mut mapped = lock(&self.peers.mapped);
        mapped.push((address, len));
        let reaching = self.peers.reaching.load(Ordering::Acquire);
        for other in (0..MAX_GPUS).filter(|ordinal| reaching >> ordinal & 1 == 1) {
            // SAFETY: by the caller's word. Who reaches this GPU was opened.
            let allowed =
                unsafe { self.driver.device(other as i32).and_then(|other| self.driver.allow(address, len, other)) };
            self.opened(allowed, other);
        }
    }

    /// It is about to be unmapped.
    pub(super) fn unlist(&self, address: Address) {
        lock(&self.peers.mapped).retain(|&(listed, _)| listed != address);
    }

    /// True if `other` reaches this GPU's memory.
    pub(super) fn is_open_to(&self, other: &Device) -> bool {
        self.peers.reaching.load(Ordering::Acquire) & bit(other) != 0
    }
}

fn bit(device: &Device) -> u64 {
    1 << device.ordinal()
}

const _: () = assert!(MAX_GPUS <= 64);
