//! A piece of GPU memory, and how it is given back.

use std::any::Any;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, Weak};

use super::attributes::GpuAttributes;
use super::capture::{is_refusal, until_allowed};
use super::device::Device;
use super::driver::{Address, OUT_OF_MEMORY};
use super::place::Place;
use crate::aside;
use crate::error::GpuError;
use crate::memory::{ArenaPool, GpuArena};
use crate::sync::lock;

/// Memory of one GPU. It is freed when this is dropped, or once peers have closed it that may have opened it by a handle.
pub(crate) struct Allocation {
    /// Its numbers at the software devices that it was registered with. Dropped first: peers are told before it is freed.
    arenas: Mutex<Vec<GpuArena>>,
    memory: Arc<Memory>,
}

/// The memory, freed when it is dropped.
struct Memory {
    device: &'static Device,
    address: Address,
    len: usize,
    kind: Kind,
}

/// What another process maps memory by.
pub(crate) enum Export {
    /// A descriptor of physical memory of that length.
    Descriptor(OwnedFd, usize),
    /// A handle of an allocation, which has the memory at that distance from its beginning.
    Handle(Box<[u8; 64]>, u64),
}

enum Kind {
    /// Physical memory mapped at an address of its own, which can be passed on as a descriptor.
    Mapped { physical: u64, mapped: usize },
    /// Of `cuMemAlloc`.
    Plain,
    /// Memory that another keeps alive.
    Foreign { _owner: Box<dyn Any + Send + Sync> },
    /// Given back by another value.
    Gone,
}

impl Allocation {
    /// # Errors
    /// As [`Gpu::alloc`](super::Gpu::alloc).
    pub(super) fn new(device: &'static Device, len: usize) -> Result<Self, GpuError> {
        if len == 0 || len > crate::soft::MAX_REGION {
            return Err(GpuError::Length { len });
        }
        let entered = device.enter()?;
        let made = if device.attributes().shared_by_descriptor {
            Self::mapped(device, len)
        } else {
            // SAFETY: the device's context is this thread's.
            let address = unsafe { device.driver.alloc(len) };
            address.map(|address| Self::with(device, address, len, Kind::Plain))
        };
        let made = made.map_err(|error| match error {
            GpuError::Driver { code: OUT_OF_MEMORY, .. } => {
                // SAFETY: the device's context is this thread's.
                let free = unsafe { device.driver.free_memory() }.unwrap_or(0);
                GpuError::OutOfMemory { len, ordinal: device.ordinal(), free }
            }
            other => other,
        });
        drop(entered);
        made
    }

    fn mapped(device: &'static Device, len: usize) -> Result<Self, GpuError> {
        let (driver, number) = (device.driver, device.number());
        let rdma = device.attributes().gpu_direct_rdma_with_sharing;
        // SAFETY: the device's context is this thread's; what was made is undone in the other order where a call fails.
        unsafe {
            let mapped = len.next_multiple_of(driver.granularity(number, rdma)?);
            let physical = driver.create(number, rdma, mapped)?;
            match map(device, physical, mapped) {
                Ok(address) => Ok(Self::with(device, address, len, Kind::Mapped { physical, mapped })),
                Err(error) => {
                    let _ = driver.release(physical);
                    Err(error)
                }
            }
        }
    }

    /// # Errors
    /// As [`Gpu::adopt`](super::Gpu::adopt).
    ///
    /// # Safety
    /// As there.
    pub(super) unsafe fn foreign(
        device: &'static Device,
        address: Address,
        len: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Self, GpuError> {
        if len == 0 || len > crate::soft::MAX_REGION {
            return Err(GpuError::Length { len });
        }
        let _entered = device.enter()?;
        // The last byte too, so that what is no memory is not found out by a copy.
        for address in [address, address.saturating_add(len as u64 - 1)] {
            // SAFETY: the driver takes any address, and says what it does not know.
            let kind = unsafe { device.driver.pointer_attribute(MEMORY_TYPE, address) };
            if kind.map_or(true, |kind| kind & 0xffff_ffff != MEMORY_TYPE_DEVICE) {
                return Err(GpuError::NotGpuMemory { address });
            }
            // SAFETY: as above.
            let found = unsafe { device.driver.pointer_attribute(DEVICE_ORDINAL, address) }? as u32 as usize;
            if found != device.ordinal() {
                return Err(GpuError::OtherGpu { address, ordinal: device.ordinal(), found });
            }
        }
        Ok(Self::with(device, address, len, Kind::Foreign { _owner: owner }))
    }

    fn with(device: &'static Device, address: Address, len: usize, kind: Kind) -> Self {
        let memory = Arc::new(Memory { device, address, len, kind });
        Allocation { arenas: Mutex::default(), memory }
    }

    /// Its number among the arenas of a device, given by `add` if it has none.
    pub(crate) fn arena_in(&self, pool: &Weak<ArenaPool>, add: impl FnOnce() -> GpuArena) -> u32 {
        let mut arenas = lock(&self.arenas);
        if let Some(arena) = arenas.iter().find(|arena| arena.is_of(pool)) {
            return arena.id();
        }
        let arena = add();
        let id = arena.id();
        // Of devices that were closed nobody asks any more.
        arenas.retain(GpuArena::is_known);
        arenas.push(arena);
        id
    }

    pub(super) fn device(&self) -> &'static Device {
        self.memory.device
    }

    pub(crate) fn attributes(&self) -> &GpuAttributes {
        self.memory.device.attributes()
    }

    pub(crate) fn ordinal(&self) -> usize {
        self.memory.device.ordinal()
    }

    pub(crate) fn place(&self) -> Place {
        self.memory.device.place()
    }

    pub(crate) fn address(&self) -> Address {
        self.memory.address
    }

    pub(crate) fn len(&self) -> usize {
        self.memory.len
    }

    /// The GPU's number among all there are.
    pub(crate) fn uuid(&self) -> [u8; 16] {
        self.memory.device.attributes().uuid
    }

    /// What processes can map of it that are peers of the device at which its number is `arena`; `None` if none can.
    pub(crate) fn export(&self, arena: u32) -> Option<Export> {
        let Memory { device, .. } = *self.memory;
        let exported = device.enter().and_then(|_entered| match self.memory.kind {
            Kind::Mapped { physical, mapped } => {
                // SAFETY: the physical memory is this allocation's.
                let fd = unsafe { device.driver.export(physical) }?;
                Ok(Some(Export::Descriptor(fd, mapped)))
            }
            Kind::Plain | Kind::Foreign { .. } => self.handle(arena),
            Kind::Gone => Ok(None),
        });
        exported.unwrap_or_else(|error| {
            tracing::info!(%error, "GPU memory is not passed to another process; it is reached by copies");
            None
        })
    }

    /// A handle of the allocation that it is of. From now on it is freed only once peers have closed it.
    fn handle(&self, arena: u32) -> Result<Option<Export>, GpuError> {
        let Memory { device, address, len, .. } = *self.memory;
        // SAFETY: the context is this thread's; the address is that of memory which is alive, and the driver says whether that is
        // of a kind that has handles.
        let (base, whole, handle) = unsafe {
            let (base, whole) = device.driver.extent(address)?;
            (base, whole, device.driver.ipc_handle(base)?)
        };
        let inside = address - base;
        let is_whole = inside.saturating_add(len as u64) <= whole as u64;
        let mut arenas = lock(&self.arenas);
        let known = arenas.iter_mut().filter(|known| known.id() == arena);
        // Devices that are about to close tell nobody any more.
        let is_kept = known.map(|known| known.lend(|| self.memory.clone())).reduce(|all, one| all && one);
        Ok((is_whole && is_kept == Some(true)).then(|| Export::Handle(Box::new(handle), inside)))
    }

    /// Makes what NICs have written visible to the GPU, or to all.
    ///
    /// # Errors
    /// [`GpuError::Driver`].
    pub(super) fn flush(&self, to_all: bool) -> Result<(), GpuError> {
        let _entered = self.memory.device.enter()?;
        // SAFETY: the device's context is this thread's.
        unsafe { self.memory.device.driver.flush(to_all) }
    }

    /// Has CUDA's synchronous copies of it be done when their call returns, also between GPUs, so that a NIC that is told then
    /// finds what was copied (NVIDIA's GPUDirect RDMA, "Synchronization and memory ordering"). For virtual memory drivers may
    /// refuse it; copies by this library wait for their stream in any case.
    pub(crate) fn be_synchronous(&self) {
        if matches!(self.memory.kind, Kind::Mapped { .. }) {
            return;
        }
        let Memory { device, address, .. } = *self.memory;
        let set = device.enter().and_then(|_entered| {
            // SAFETY: the context is this thread's, and the address that of memory which is alive.
            unsafe { device.driver.set_pointer_attribute(SYNC_MEMOPS, 1, address) }
        });
        if let Err(error) = set {
            tracing::debug!(%error, "synchronous copies of GPU memory may return before they are done");
        }
    }

    /// A DMA-buf of the whole pages that the memory lies in, and where in it the memory begins.
    ///
    /// # Errors
    /// [`GpuError::Driver`].
    pub(crate) fn dmabuf(&self) -> Result<(OwnedFd, u64), GpuError> {
        let page = rustix::param::page_size() as u64;
        let start = self.memory.address / page * page;
        let end = self.memory.address.checked_add(self.memory.len as u64);
        let end = end.and_then(|end| end.checked_next_multiple_of(page));
        let end = end.ok_or(GpuError::Length { len: self.memory.len })?;
        let _entered = self.memory.device.enter()?;
        // SAFETY: the pages are those of this memory.
        let fd = unsafe { self.memory.device.driver.dmabuf(start, (end - start) as usize) }?;
        Ok((fd, self.memory.address - start))
    }
}

impl Memory {
    /// Waits for the kernels of the program that may use it, if that has to be done here. False if the driver lets nobody wait for all
    /// streams, of which another library captures one: it may be this thread's own affair, and another has to wait.
    fn is_unused(&self) -> bool {
        if !matches!(self.kind, Kind::Mapped { .. }) {
            return true;
        }
        // SAFETY: the context is this thread's.
        let wait = || self.device.enter().and_then(|_entered| unsafe { self.device.driver.synchronize_all() });
        // What it tells else was told to who started them.
        let refused = if aside::is_here() { until_allowed(wait) } else { wait() };
        !refused.is_err_and(|error| is_refusal(&error))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let is_own = matches!(self.kind, Kind::Mapped { .. } | Kind::Plain);
        // Giving it back waits for all streams.
        let device = self.device;
        let may = move || !is_own || device.is_unheld();
        // The driver may wait for what the GPU does, and an owner for anything.
        let is_gone = matches!(self.kind, Kind::Gone);
        if !(is_gone || aside::may_wait_here() && may() && self.is_unused()) {
            let Memory { address, len, .. } = *self;
            let memory = Memory { device, address, len, kind: std::mem::replace(&mut self.kind, Kind::Gone) };
            return aside::give_once(may, memory);
        }
        let driver = self.device.driver;
        let freed = self.device.enter().and_then(|_entered| match self.kind {
            // SAFETY: made so by `mapped`; the last holder is gone, and whoever gave it to a device waited for that. Kernels of the
            // program that use it have ended, by `is_unused`, as they have where `cuMemFree` returns.
            Kind::Mapped { physical, mapped } => unsafe {
                let unmapped = unmap(self.device, self.address, mapped);
                driver.release(physical).and(unmapped)
            },
            // SAFETY: as above, by `new`.
            Kind::Plain => unsafe { driver.free(self.address) },
            Kind::Foreign { .. } | Kind::Gone => Ok(()),
        });
        if let Err(error) = freed {
            tracing::error!(%error, len = self.len, "GPU memory could not be given back");
        }
    }
}

impl fmt::Debug for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.memory.kind {
            Kind::Mapped { .. } => "mapped",
            Kind::Plain => "plain",
            Kind::Foreign { .. } => "foreign",
            Kind::Gone => "gone",
        };
        write!(f, "Allocation({} bytes on GPU {}, {kind})", self.memory.len, self.memory.device.ordinal())
    }
}

/// Maps physical memory at an address of the driver's choice, for its own device to read and write, and those that have met it.
///
/// # Safety
/// The physical memory is alive and has `len` bytes, a multiple of its granularity; the context is this thread's.
pub(super) unsafe fn map(device: &Device, physical: u64, len: usize) -> Result<Address, GpuError> {
    let driver = device.driver;
    // SAFETY: by the caller's word; what was made is undone in the other order where a call fails.
    unsafe {
        let address = driver.reserve(len)?;
        if let Err(error) = driver.map(address, len, physical) {
            let _ = driver.unreserve(address, len);
            return Err(error);
        }
        if let Err(error) = driver.allow(address, len, device.number()) {
            let _ = unmap(device, address, len);
            return Err(error);
        }
        device.list(address, len);
        Ok(address)
    }
}

/// Undoes [`map`].
///
/// # Safety
/// Nobody uses what is mapped any more; the context is this thread's.
pub(super) unsafe fn unmap(device: &Device, address: Address, len: usize) -> Result<(), GpuError> {
    device.unlist(address);
    // SAFETY: by the caller's word.
    unsafe {
        device.driver.unmap(address, len)?;
        device.driver.unreserve(address, len)
    }
}

/// `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`.
const SYNC_MEMOPS: u32 = 6;
/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`, `CU_MEMORYTYPE_DEVICE`, `CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`.
const MEMORY_TYPE: u32 = 2;
const MEMORY_TYPE_DEVICE: u64 = 2;
const DEVICE_ORDINAL: u32 = 9;
