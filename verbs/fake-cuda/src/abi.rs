//! The C structures of the driver's interface that its functions take, and the numbers in them.

use std::ffi::{c_int, c_void};

/// `CUmemLocation`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Location {
    /// [`LOCATION_DEVICE`], or what the fake refuses.
    pub kind: u32,
    /// The device's ordinal.
    pub id: c_int,
}

/// `CUmemAllocationProp`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct AllocationProp {
    /// [`ALLOCATION_PINNED`].
    pub kind: u32,
    /// [`HANDLE_POSIX_FD`], or 0.
    pub handle_types: u32,
    /// Whose memory it is.
    pub location: Location,
    /// Of no meaning here.
    pub win32_meta_data: *mut c_void,
    /// `compressionType`.
    pub compression: u8,
    /// `gpuDirectRDMACapable`.
    pub rdma_capable: u8,
    /// `usage`.
    pub usage: u16,
    /// `reserved`.
    pub reserved: [u8; 4],
}

/// `CUmemAccessDesc`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct AccessDesc {
    /// Who gets the access.
    pub location: Location,
    /// 0, 1 to read, 3 to read and write.
    pub flags: u32,
}

/// `CUipcMemHandle`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct IpcHandle {
    /// Of no meaning to anybody else.
    pub bytes: [u8; 64],
}

impl AllocationProp {
    /// Pinned memory of a device, with handles of these types.
    pub fn of(device: c_int, handle_types: u32) -> AllocationProp {
        AllocationProp {
            kind: ALLOCATION_PINNED,
            handle_types,
            location: Location { kind: LOCATION_DEVICE, id: device },
            win32_meta_data: std::ptr::null_mut(),
            compression: 0,
            rdma_capable: 0,
            usage: 0,
            reserved: [0; 4],
        }
    }
}

/// `CU_MEM_LOCATION_TYPE_DEVICE`.
pub const LOCATION_DEVICE: u32 = 1;
/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
pub const ALLOCATION_PINNED: u32 = 1;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub const HANDLE_POSIX_FD: u32 = 1;

// The layouts of the C headers on 64-bit systems.
const _: () = assert!(size_of::<AllocationProp>() == 32 && size_of::<AccessDesc>() == 12);
