//! Registering, exposing and revoking memory.

use std::fmt;
use std::io;

use thiserror::Error;

use super::{GpuError, LOOK};
use crate::memory::{Buffer, BytesRegion, DmabufRegion, ExposedRegion};

/// Allocating, registering or exposing memory failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The length is zero or above the device's limit.
    #[error("memory of {len} bytes can not be registered; the device takes 1 to {limit}")]
    Length {
        /// Length asked for.
        len: usize,
        /// Greatest length.
        limit: usize,
    },
    /// The system has no memory, or a limit forbids it.
    #[error(
        "no memory of {len} bytes to be had: {source}; raise the limit (`ulimit -l`, the size of /dev/shm) or ask for less"
    )]
    NoMemory {
        /// Length asked for.
        len: usize,
        /// The system's reason.
        source: io::Error,
    },
    /// The limit on locked memory is too low.
    #[error(
        "{len} bytes can not be registered: with what is locked already {needed} bytes are needed and the limit is {limit}; \
         raise it with `ulimit -l`, in /etc/security/limits.conf (memlock), by LimitMEMLOCK= of systemd, or by \
         --ulimit memlock=-1 of a container"
    )]
    Memlock {
        /// Length asked for.
        len: usize,
        /// Bytes that have to be allowed.
        needed: u64,
        /// Bytes that are allowed.
        limit: u64,
    },
    /// The device does not take the memory.
    #[error("the device does not register {len} bytes: {source}; {LOOK}")]
    Refused {
        /// Length asked for.
        len: usize,
        /// The system's reason.
        source: io::Error,
    },
    /// The device or its library can not register memory in this way.
    #[error(
        "{device} can not register {what}{}; copy it through memory of its domain (ProtectionDomain::alloc)",
        .why.as_ref().map_or_else(String::new, |why| format!(": {why}"))
    )]
    NotSupported {
        /// The device.
        device: String,
        /// The kind of memory.
        what: &'static str,
        /// What is missing, where that is known.
        why: Option<String>,
    },
    /// Huge pages were demanded and there are none.
    #[error(
        "no huge pages for {len} bytes: {source}; reserve some in /proc/sys/vm/nr_hugepages, or use HugePages::Try"
    )]
    NoHugePages {
        /// Length asked for.
        len: usize,
        /// The system's reason.
        source: io::Error,
    },
    /// The key table is full.
    #[error("all {limit} remote keys are in use; revoke regions that are not needed")]
    NoKeys {
        /// Size of the table.
        limit: usize,
    },
    /// A range does not lie within the region.
    #[error("bytes {start}..{end} lie outside a region of {len} bytes")]
    Range {
        /// First byte asked for.
        start: usize,
        /// End of the range.
        end: usize,
        /// Length of the region.
        len: usize,
    },
    /// The bytes are no whole number of elements.
    #[error("{len} bytes are no whole number of elements of {size} bytes")]
    Elements {
        /// Bytes given.
        len: usize,
        /// Size of an element.
        size: usize,
    },
    /// What is copied or combined overlaps.
    #[error("slices of {len} bytes overlap; copy between such that lie apart")]
    Overlap {
        /// Length of each.
        len: usize,
    },
    /// A GPU or its driver refused.
    #[error(transparent)]
    Gpu(#[from] Box<GpuError>),
    /// The device reaches no memory of GPUs.
    #[error(
        "{device} does not reach memory of GPU {ordinal}: {why}; load nvidia-peermem, use a driver and a kernel with DMA-buf, or \
         send by a GpuStage, as collectives do with QPAIR_GPU_STAGING=1"
    )]
    GpuUnreachable {
        /// The device.
        device: String,
        /// The GPU.
        ordinal: usize,
        /// Each way, and why it does not do.
        why: String,
    },
    /// An atomic on an address that is not a multiple of 8.
    #[error("offset {offset} is not a multiple of 8, as atomics need")]
    Misaligned {
        /// The offset.
        offset: usize,
    },
}

impl From<GpuError> for MemoryError {
    fn from(error: GpuError) -> Self {
        MemoryError::Gpu(Box::new(error))
    }
}

/// Exposing a buffer failed.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct ExposeFailed {
    /// Why.
    #[source]
    pub error: MemoryError,
    /// The buffer; `None` if a device keeps a registration of it that another refused: the memory is never freed then.
    pub buffer: Option<Buffer>,
}

/// Revoking a region did not finish; the region is handed back.
#[derive(Debug, Error)]
#[error("the region is still in use: {why}")]
pub struct RevokeFailed {
    /// What uses it.
    pub why: RevokeBlocked,
    /// The region.
    pub region: ExposedRegion,
}

/// Taking shared bytes back from peers did not finish; the region is handed back.
#[derive(Debug, Error)]
#[error("the bytes are still in use: {why}")]
pub struct BytesRevokeFailed {
    /// What uses them.
    pub why: RevokeBlocked,
    /// The region.
    pub region: BytesRegion,
}

/// Revoking memory behind a DMA-buf did not finish; the region is handed back.
#[derive(Debug, Error)]
#[error("the DMA-buf is still in use: {why}")]
pub struct DmabufRevokeFailed {
    /// What uses it.
    pub why: RevokeBlocked,
    /// The region.
    pub region: DmabufRegion,
}

/// Why a region could not be revoked yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RevokeBlocked {
    /// Posted work requests of this process name it.
    PostedWork,
    /// Memory windows are bound to it.
    BoundWindows,
    /// A peer is in the middle of an access and did not leave it within the deadline.
    PeerAccess,
    /// The device refuses.
    Refused {
        /// Its error number.
        errno: i32,
    },
}

impl fmt::Display for RevokeBlocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RevokeBlocked::Refused { errno } => {
                let error = io::Error::from_raw_os_error(*errno);
                return write!(f, "the device does not let go of it ({error}); close its queue pairs and revoke again");
            }
            RevokeBlocked::PostedWork => {
                "work requests that name it are posted; poll their completions and revoke again (its key is withdrawn)"
            }
            RevokeBlocked::BoundWindows => "memory windows are bound to it; invalidate or drop them and revoke again",
            RevokeBlocked::PeerAccess => {
                "a peer stays in the middle of an access; revoke again when it goes on or is gone (its key is withdrawn)"
            }
        })
    }
}
