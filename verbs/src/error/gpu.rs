//! GPUs and their memory.

use thiserror::Error;

use super::{MemoryError, RevokeBlocked};
use crate::gpu::{GpuBuffer, GpuRegion};

/// A GPU, or memory of one, could not be had or used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GpuError {
    /// The program was built without memory of GPUs.
    #[error("this program was built without GPU memory; build it with the feature `cuda` of qpair")]
    NotBuilt,
    /// There is no driver.
    #[error(
        "no CUDA driver: {why}; install NVIDIA's driver, let the container see it, or name its file in QPAIR_LIBCUDA"
    )]
    NoDriver {
        /// What was not found.
        why: String,
    },
    /// The driver is older than what is used of it.
    #[error(
        "the CUDA driver is too old: it is of CUDA {}.{}{}; 11.8 is needed, install a driver of series 520 or newer",
        .version / 1000, .version % 1000 / 10,
        .missing.map_or_else(String::new, |name| format!(" and has no {name}"))
    )]
    OldDriver {
        /// As the driver counts: 1000 times the major number, 10 times the minor one.
        version: i32,
        /// A function that it does not have.
        missing: Option<&'static str>,
    },
    /// There is no such GPU.
    #[error("there is no GPU {ordinal}: this process sees {count}; see `nvidia-smi -L` and CUDA_VISIBLE_DEVICES")]
    NoDevice {
        /// The one asked for.
        ordinal: usize,
        /// GPUs that this process sees.
        count: usize,
    },
    /// A GPU of a peer's is none of those that this process sees.
    #[error(
        "a peer's GPU is none of the {count} that this process sees: make all GPUs of the host visible to each process, by \
         CUDA_VISIBLE_DEVICES, by the container's devices, or in Slurm by --gpus-per-node in place of --gpus-per-task"
    )]
    Unseen {
        /// GPUs that this process sees.
        count: usize,
    },
    /// The GPU has no memory left.
    #[error("no {len} bytes of memory on GPU {ordinal}: {free} are free; free some, or ask for less")]
    OutOfMemory {
        /// Length asked for.
        len: usize,
        /// The GPU.
        ordinal: usize,
        /// Bytes that were free.
        free: usize,
    },
    /// Zero bytes, or more than any device takes.
    #[error("GPU memory of {len} bytes can not be had; it has at least one byte, and 2^40 at most")]
    Length {
        /// Length asked for.
        len: usize,
    },
    /// Memory of another process that is not there to be opened.
    #[error(
        "GPU memory of another process can not be opened ({name}): it was freed, or its process ended; connect again"
    )]
    OwnerGone {
        /// The driver's answer, by its name in `cuda.h`.
        name: String,
    },
    /// The driver does not pin memory of the processor.
    #[error(
        "{len} bytes of the processor's memory are not pinned for GPUs: cuMemHostRegister answered {name}; pin less, or \
         leave it as it is: GPUs reach it all the same, more slowly"
    )]
    NotPinned {
        /// Length asked for.
        len: usize,
        /// The driver's answer, by its name in `cuda.h`.
        name: String,
    },
    /// An address that is not of a GPU's memory.
    #[error(
        "{address:#x} is no address of GPU memory; register memory of the processor with ProtectionDomain::register"
    )]
    NotGpuMemory {
        /// The address.
        address: u64,
    },
    /// Memory of another GPU than the one that was named.
    #[error("the memory at {address:#x} is of GPU {found}, not of GPU {ordinal}; open that one")]
    OtherGpu {
        /// The address.
        address: u64,
        /// The GPU that was named.
        ordinal: usize,
        /// The GPU whose memory it is.
        found: usize,
    },
    /// What is copied or combined overlaps.
    #[error("parts of {len} bytes of GPU memory overlap; copy between such that lie apart")]
    Overlap {
        /// Length of each.
        len: usize,
    },
    /// A range does not lie within the memory.
    #[error("bytes {start}..{end} lie outside GPU memory of {len} bytes; ask for some within it")]
    Range {
        /// First byte asked for.
        start: usize,
        /// End of the range.
        end: usize,
        /// Length of the memory.
        len: usize,
    },
    /// What GPUs do not calculate.
    #[error("{what} is not done in GPU memory; copy it to memory of the processor first")]
    NotCalculated {
        /// The reduction.
        what: String,
    },
    /// The bytes are no whole number of elements.
    #[error(
        "{len} bytes at {address:#x} are no whole number of elements of {size} bytes; give such as begin and end with one"
    )]
    Elements {
        /// Bytes given.
        len: usize,
        /// Their address.
        address: u64,
        /// Size of an element.
        size: usize,
    },
    /// Streams of the GPU can not wait for a word that the processor writes.
    #[error(
        "streams of GPU {ordinal} can not wait for the processor; wait for the operation there, and give the stream its work then"
    )]
    NoHold {
        /// The GPU.
        ordinal: usize,
    },
    /// The driver answered what can not be.
    #[error(
        "{call} answered {what}, which can not be; see whether the CUDA driver is NVIDIA's, and install a newer one"
    )]
    Nonsense {
        /// The function of the driver.
        call: &'static str,
        /// What it answered.
        what: String,
    },
    /// The driver refused a call, or what ran on the GPU failed.
    #[error("{call} failed: {name}{}", hint(*.code))]
    Driver {
        /// The function of the driver.
        call: &'static str,
        /// Its answer.
        code: i32,
        /// The answer's name in `cuda.h`.
        name: String,
    },
}

/// What to do about an answer of the driver.
fn hint(code: i32) -> &'static str {
    match code {
        2 => "; free memory on the GPU, or ask for less",
        100 | 101 => "; see `nvidia-smi -L`",
        214 | 700 | 702 | 710 | 714 | 715 | 716 | 717 | 718 | 719 => {
            "; the GPU's context is lost: end the process, and see `dmesg` for an Xid"
        }
        801 => "; this GPU or driver does not have it",
        802 => "; the fabric manager of the NVSwitches has to run: see `nvidia-smi -q`",
        _ => "; `nvidia-smi` and `dmesg` may tell more",
    }
}

/// Registering GPU memory failed; the memory is handed back, unless a device keeps it.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct GpuRegisterFailed {
    /// Why.
    #[source]
    pub error: MemoryError,
    /// The memory; `None` if the device keeps a registration of it that it was to end: the memory is never freed then.
    pub buffer: Option<GpuBuffer>,
}

/// Revoking a region of GPU memory did not finish; the region is handed back.
#[derive(Debug, Error)]
#[error("the region of GPU memory is still in use: {why}")]
pub struct GpuRevokeFailed {
    /// Why.
    pub why: RevokeBlocked,
    /// The region, still registered; `None` if the device does not end the registration for this program's own requests: the
    /// memory is never freed then.
    pub region: Option<GpuRegion>,
}

impl GpuError {
    /// Whether it only says that there is no GPU, or no driver for any, as on machines without.
    pub fn is_absence(&self) -> bool {
        matches!(self, GpuError::NotBuilt | GpuError::NoDriver { .. } | GpuError::Driver { code: NO_DEVICE, .. })
    }
}

/// `CUDA_ERROR_NO_DEVICE`.
const NO_DEVICE: i32 = 100;
