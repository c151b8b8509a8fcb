//! GPU memory of another process, mapped here.

use std::os::fd::{AsRawFd, OwnedFd};

use super::allocation::{map, unmap};
use super::device::{Device, Gpu};
use super::driver::Address;
use super::place::Place;
use crate::aside;
use crate::error::GpuError;

/// Memory that another process exported, unmapped on drop. It stays while it is mapped, whatever becomes of its owner.
#[derive(Debug)]
pub(crate) struct Imported {
    gpu: Gpu,
    address: Address,
    len: usize,
    source: Source,
}

#[derive(Debug)]
enum Source {
    /// Physical memory, mapped.
    Physical(u64),
    /// An allocation that begins there, opened by its handle. Its owner keeps it until all have closed it.
    Handle(Address),
    /// Unmapped by another value.
    Gone,
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
                Ok(address) => Ok(Imported { gpu, address, len, source: Source::Physical(physical) }),
                Err(error) => {
                    let _ = device.driver.release(physical);
                    Err(error)
                }
            }
        }
    }

    /// Opens the allocation that `handle` stands for, and gives the `len` bytes at `offset` of it.
    ///
    /// # Errors
    /// [`GpuError::OwnerGone`] if it is not there any more, [`GpuError::Range`] if it is shorter; else as [`open`](Imported::open).
    pub(crate) fn open_handle(
        uuid: [u8; 16],
        handle: [[u8; 32]; 2],
        offset: u64,
        len: usize,
    ) -> Result<Self, GpuError> {
        let gpu = Gpu::by_uuid(uuid)?;
        let device: &Device = gpu.device();
        let _entered = device.enter()?;
        let mut bytes = [0; 64];
        bytes.copy_from_slice(handle.as_flattened());
        // SAFETY: the context is this thread's; the driver checks the handle, which may be anything.
        let opened = unsafe { device.driver.ipc_open(bytes) };
        let base = opened.map_err(|error| match error {
            GpuError::Driver { code, name, .. } if GONE.contains(&code) => GpuError::OwnerGone { name },
            other => other,
        })?;
        let imported = Imported { gpu, address: base.wrapping_add(offset), len, source: Source::Handle(base) };
        // SAFETY: just opened. What is refused from here on is closed by the value's drop.
        let (_, whole) = unsafe { device.driver.extent(base) }?;
        match usize::try_from(offset).ok().and_then(|start| start.checked_add(len)) {
            Some(end) if end <= whole => Ok(imported),
            end => Err(GpuError::Range { start: offset as usize, end: end.unwrap_or(usize::MAX), len: whole }),
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
        let source = std::mem::replace(&mut self.source, Source::Gone);
        if matches!(source, Source::Gone) {
            return;
        }
        // The driver may wait for what the GPU does.
        let device = self.gpu.device();
        if !(aside::may_wait_here() && device.is_unheld()) {
            let imported = Imported { gpu: self.gpu, address: self.address, len: self.len, source };
            return aside::give_once(|| device.is_unheld(), imported);
        }
        // SAFETY: mapped by `open` or `open_handle`; whoever keeps addresses in it keeps this value.
        let closed = device.enter().and_then(|_entered| unsafe {
            match source {
                Source::Physical(physical) => {
                    let unmapped = unmap(device, self.address, self.len);
                    device.driver.release(physical).and(unmapped)
                }
                Source::Handle(base) => device.driver.ipc_close(base),
                Source::Gone => Ok(()),
            }
        });
        if let Err(error) = closed {
            tracing::error!(%error, len = self.len, "GPU memory of another process could not be unmapped");
        }
    }
}

/// What the driver answers to a handle whose memory was freed, or whose process ended: `CUDA_ERROR_INVALID_VALUE`,
/// `CUDA_ERROR_MAP_FAILED`, `CUDA_ERROR_INVALID_HANDLE`.
const GONE: [i32; 3] = [1, 205, 400];

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use super::*;

    #[test]
    fn a_handle_of_nothing_says_so() {
        let fake = qpair_fake_cuda::control::add_device().unwrap();
        let gpu = Gpu::open(fake.ordinal() as usize).unwrap();
        let open = |handle| Imported::open_handle(gpu.attributes().uuid, handle, 0, 1).unwrap_err();
        let error = open([[7; 32]; 2]);
        assert!(matches!(error, GpuError::OwnerGone { .. }) && error.to_string().contains("connect again"), "{error}");
        fake.fail("cuIpcOpenMemHandle_v2", 1, qpair_fake_cuda::code::MAP_FAILED).unwrap();
        assert!(matches!(open([[7; 32]; 2]), GpuError::OwnerGone { .. }));
        assert!(!fake.live().contains("opening"), "{}", fake.live());
    }
}
