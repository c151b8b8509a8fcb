//! Structures and values of `cuda.h`, mostly for virtual memory.

use std::ffi::c_void;

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Location {
    pub(super) kind: i32,
    pub(super) id: i32,
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct AllocationProp {
    kind: i32,
    handle_types: i32,
    location: Location,
    metadata: *mut c_void,
    compression: u8,
    gpu_direct_rdma: u8,
    usage: u16,
    reserved: [u8; 4],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct AccessDesc {
    pub(super) location: Location,
    pub(super) flags: i32,
}

/// `CUipcMemHandle`, with bytes of no meaning to anybody else.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct IpcHandle {
    pub(super) bytes: [u8; 64],
}

/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
pub(super) const LAZY_PEER_ACCESS: u32 = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`, `CU_MEM_ALLOCATION_TYPE_PINNED`.
pub(super) const DEVICE: i32 = 1;
const PINNED: i32 = 1;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub(super) const FILE_DESCRIPTOR: i32 = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
pub(super) const READ_WRITE: i32 = 3;

/// `CU_MEM_ALLOC_GRANULARITY_MINIMUM`.
pub(super) const MINIMUM: i32 = 0;
/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
pub(super) const DMA_BUF_FD: i32 = 1;
/// `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX`, `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER`, and `_TO_ALL_DEVICES`.
pub(super) const CURRENT_CONTEXT: i32 = 0;
pub(super) const TO_OWNER: i32 = 100;
pub(super) const TO_ALL_DEVICES: i32 = 200;

impl AllocationProp {
    pub(super) fn of(device: i32, gpu_direct_rdma: bool) -> Self {
        AllocationProp {
            kind: PINNED,
            handle_types: FILE_DESCRIPTOR,
            location: Location { kind: DEVICE, id: device },
            metadata: std::ptr::null_mut(),
            compression: 0,
            gpu_direct_rdma: gpu_direct_rdma.into(),
            usage: 0,
            reserved: [0; 4],
        }
    }
}
