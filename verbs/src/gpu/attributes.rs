//! What a GPU can do.

use super::driver::Driver;
use crate::error::GpuError;

/// What the driver says of a GPU. Fields that a newer driver has and this one does not are false or empty.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GpuAttributes {
    /// Its name, such as `NVIDIA H200`.
    pub name: String,
    /// Its PCI address in lower case, such as `0000:3b:00.0`.
    pub pci_address: String,
    /// Its number among all GPUs there are, the same in every process.
    pub uuid: [u8; 16],
    /// Bytes of its memory.
    pub memory: usize,
    /// Major and minor compute capability.
    pub capability: (u32, u32),
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Memory can be exported as a DMA-buf (`CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED`).
    pub dma_buf: bool,
    /// NICs can reach its memory by nvidia-peermem (`CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED`).
    pub gpu_direct_rdma: bool,
    /// How what a NIC wrote is made visible (`CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS`).
    pub flush: FlushOptions,
    /// A NIC's writes are visible to the whole GPU without a flush (`CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING`
    /// of at least `CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER`).
    pub writes_ordered: bool,
    /// So they are to all GPUs (`CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES`).
    pub writes_ordered_for_all: bool,
    /// Memory can be passed to other processes as a file descriptor
    /// (`CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED`).
    pub shared_by_descriptor: bool,
    /// Such memory can be made so that NICs reach it
    /// (`CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED`).
    pub gpu_direct_rdma_with_sharing: bool,
}

/// How what a NIC wrote into GPU memory is made visible to the GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FlushOptions {
    /// By `cuFlushGPUDirectRDMAWrites`.
    pub host: bool,
    /// By operations in a stream.
    pub stream: bool,
}

impl GpuAttributes {
    /// Those of all GPUs that this process sees, none of which is opened for that.
    pub(crate) fn of_all() -> Result<Vec<Self>, GpuError> {
        let driver = Driver::load()?;
        // SAFETY: the driver is loaded, and has as many devices.
        let one = |ordinal| Self::of(driver, unsafe { driver.device(ordinal) }?);
        // SAFETY: as above.
        (0..unsafe { driver.device_count() }?).map(one).collect()
    }

    pub(super) fn of(driver: Driver, device: i32) -> Result<Self, GpuError> {
        // SAFETY: the device is one of the driver's.
        let get = |attribute| unsafe { driver.attribute(device, attribute) };
        let is_set = |attribute| get(attribute).map(|value| value != 0);
        let flush = get(FLUSH_WRITES_OPTIONS)?;
        // SAFETY: as above.
        let (name, pci_address, uuid, memory) = unsafe {
            (
                driver.device_name(device)?,
                driver.device_pci(device)?,
                driver.device_uuid(device)?,
                driver.device_memory(device)?,
            )
        };
        Ok(GpuAttributes {
            name,
            pci_address,
            uuid,
            memory,
            capability: (get(CAPABILITY_MAJOR)?.unsigned_abs(), get(CAPABILITY_MINOR)?.unsigned_abs()),
            multiprocessors: get(MULTIPROCESSORS)?.unsigned_abs(),
            dma_buf: is_set(DMA_BUF_SUPPORTED)?,
            gpu_direct_rdma: is_set(GPU_DIRECT_RDMA_SUPPORTED)?,
            flush: FlushOptions { host: flush & 1 != 0, stream: flush & 2 != 0 },
            writes_ordered: get(WRITES_ORDERING)? >= ORDERING_OWNER,
            writes_ordered_for_all: get(WRITES_ORDERING)? >= ORDERING_ALL,
            shared_by_descriptor: is_set(VIRTUAL_MEMORY_SUPPORTED)? && is_set(FILE_DESCRIPTOR_SUPPORTED)?,
            gpu_direct_rdma_with_sharing: is_set(GPU_DIRECT_RDMA_WITH_VMM)?,
        })
    }
}

/// Numbers of `CUdevice_attribute` in `cuda.h`.
const MULTIPROCESSORS: u32 = 16;
const CAPABILITY_MAJOR: u32 = 75;
const CAPABILITY_MINOR: u32 = 76;
const VIRTUAL_MEMORY_SUPPORTED: u32 = 102;
const FILE_DESCRIPTOR_SUPPORTED: u32 = 103;
const GPU_DIRECT_RDMA_WITH_VMM: u32 = 110;
const GPU_DIRECT_RDMA_SUPPORTED: u32 = 116;
const FLUSH_WRITES_OPTIONS: u32 = 117;
const WRITES_ORDERING: u32 = 118;
const DMA_BUF_SUPPORTED: u32 = 124;
/// `CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER`.
const ORDERING_OWNER: i32 = 100;
/// `CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES`.
const ORDERING_ALL: i32 = 200;
