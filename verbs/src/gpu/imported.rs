//! GPU memory of another process, mapped here.

use std::os::fd::{AsRawFd, OwnedFd};

use super::allocation::{map, unmap};
use super::device::{Device, Gpu};
use super::driver::Address;
use super::place::Place;
use crate::error::GpuError;

/// Memory that another process exported, unmapped on drop. It stays while it is mapped, whatever becomes of its owner.
#[derive(Debug)]
pub(crate) struct Imported {
    gpu: Gpu,
    address: Address,
    len: usize,
    physical: u64,
}

impl Imported {
    /// Maps `len` bytes of what `fd` stands for, on the GPU of that number.
    ///
    /// # Errors
    /// [`GpuError`] if this process does not see the GPU, or the driver refuses: what a peer sends may be anything.
    pub(crate) fn open(uuid: [u8; 16], fd: OwnedFd, len: usize) -> Result<Self, GpuError> {
        let gpu = Gpu::by_uuid(uuid)?;
        let device: &Device = gpu.device();
        let _entered = device.enter()?;
        // SAFETY: the context is this thread's; the driver checks the descriptor and the length.
        unsafe {
            let physical = device.driver.import(fd.as_raw_fd())?;
            match map(device, physical, len) {
                Ok(address) => Ok(Imported { gpu, address, len, physical }),
                Err(error) => {
                    let _ = device.driver.release(physical);
                    Err(error)
                }
            }
        }
    }

    pub(crate) fn place(&self) -> Place {
        self.gpu.device().place()
    }

    pub(crate) fn address(&self) -> Address {
        self.address
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Imported {
    fn drop(&mut self) {
        let device = self.gpu.device();
        // SAFETY: mapped by `open`; whoever keeps addresses in it keeps this value.
        let closed = device.enter().and_then(|_entered| unsafe {
            let unmapped = unmap(device, self.address, self.len);
            device.driver.release(self.physical).and(unmapped)
        });
        if let Err(error) = closed {
            tracing::error!(%error, len = self.len, "GPU memory of another process could not be unmapped");
        }
    }
}
