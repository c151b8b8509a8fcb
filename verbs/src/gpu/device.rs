//! GPUs of this process, each opened once.

use std::fmt;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::allocation::Allocation;
use super::attributes::GpuAttributes;
use super::buffer::GpuBuffer;
use super::capture::Relaxed;
use super::driver::{Driver, Handle};
use super::hold::Words;
use super::kernels::Kernels;
use super::lane::Lane;
use super::peers::Peers;
use super::place::{MAX_GPUS, Place};
use crate::error::GpuError;
use crate::sync::lock;

/// One of the GPUs that this process sees. Clones name the same.
///
/// What is done on it is done in its primary context, the one that CUDA's runtime and the libraries above it use. It stays
/// with the process once it was opened.
#[derive(Clone, Copy)]
pub struct Gpu(&'static Device);

/// An opened GPU.
pub(super) struct Device {
    pub(super) driver: Driver,
    ordinal: u8,
    /// As the driver numbers it.
    device: i32,
    context: Handle,
    attributes: GpuAttributes,
    /// Ways that no thread uses.
    lanes: Mutex<Vec<Lane>>,
    pub(super) kernels: Kernels,
    /// What its streams wait for.
    pub(super) words: Words,
    pub(super) peers: Peers,
}

/// The opened ones, by ordinal. They are never closed.
static OPENED: [AtomicPtr<Device>; MAX_GPUS] = [const { AtomicPtr::new(ptr::null_mut()) }; MAX_GPUS];
static OPENING: Mutex<()> = Mutex::new(());

impl Gpu {
    /// How many GPUs this process sees.
    ///
    /// # Errors
    /// [`GpuError`] where there is no driver that can be used. A driver that finds no GPU is such a case too.
    pub fn count() -> Result<usize, GpuError> {
        // SAFETY: the driver is loaded.
        let count = unsafe { Driver::load()?.device_count() }?;
        Ok(usize::try_from(count).unwrap_or(0).min(MAX_GPUS))
    }

    /// Opens a GPU by its ordinal, as CUDA counts those that this process sees.
    ///
    /// # Errors
    /// [`GpuError`] where there is no driver or no such GPU, or the driver gives no context on it.
    pub fn open(ordinal: usize) -> Result<Gpu, GpuError> {
        let driver = Driver::load()?;
        let count = Self::count()?;
        if ordinal >= count {
            return Err(GpuError::NoDevice { ordinal, count });
        }
        let _opening = lock(&OPENING);
        let place = Place::gpu(ordinal as u8);
        if let Some(device) = Device::of(place) {
            return Ok(Gpu(device));
        }
        // SAFETY: the driver has as many devices.
        let device = unsafe { driver.device(ordinal as i32) }?;
        let attributes = GpuAttributes::of(driver, device)?;
        let _relaxed = Relaxed::new(driver)?;
        // SAFETY: as above.
        let context = unsafe { driver.retain_primary(device) }?;
        let opened = Box::leak(Box::new(Device {
            driver,
            ordinal: ordinal as u8,
            device,
            context,
            attributes,
            lanes: Mutex::default(),
            kernels: Kernels::new(),
            words: Words::default(),
            peers: Peers::default(),
        }));
        OPENED[ordinal].store(opened, Ordering::Release);
        Ok(Gpu(opened))
    }

    /// Opens the GPU at a PCI address, such as `0000:3b:00.0`, if this process sees it.
    ///
    /// # Errors
    /// As [`open`](Gpu::open).
    pub fn at(pci_address: &str) -> Result<Option<Gpu>, GpuError> {
        let driver = Driver::load()?;
        for ordinal in 0..Self::count()? {
            // SAFETY: the driver has as many devices.
            if unsafe { driver.device_pci(driver.device(ordinal as i32)?) }?.eq_ignore_ascii_case(pci_address) {
                return Gpu::open(ordinal).map(Some);
            }
        }
        Ok(None)
    }

    /// Opens a GPU by its number among all there are: a peer's, which this process may not see.
    pub(super) fn by_uuid(uuid: [u8; 16]) -> Result<Gpu, GpuError> {
        let driver = Driver::load()?;
        let count = Self::count()?;
        for ordinal in 0..count {
            // SAFETY: the driver has as many devices.
            if unsafe { driver.device_uuid(driver.device(ordinal as i32)?) }? == uuid {
                return Gpu::open(ordinal);
            }
        }
        Err(GpuError::Unseen { count })
    }

    /// Its ordinal.
    pub fn ordinal(&self) -> usize {
        self.0.ordinal.into()
    }

    /// What it can do.
    pub fn attributes(&self) -> &GpuAttributes {
        &self.0.attributes
    }

    /// Bytes of its memory that nobody uses now.
    ///
    /// # Errors
    /// [`GpuError::Driver`].
    pub fn free_memory(&self) -> Result<usize, GpuError> {
        let _entered = self.0.enter()?;
        // SAFETY: the context is this thread's.
        unsafe { self.0.driver.free_memory() }
    }

    /// Allocates `len` zeroed bytes of its memory, which other processes of the host can map.
    ///
    /// # Errors
    /// [`GpuError::Length`] of no bytes or too many, [`GpuError::OutOfMemory`], [`GpuError::Driver`].
    pub fn alloc(&self, len: usize) -> Result<GpuBuffer, GpuError> {
        let buffer = GpuBuffer::new(Allocation::new(self.0, len)?);
        buffer.fill(0)?;
        Ok(buffer)
    }

    /// Takes over memory of this GPU that another library allocated, such as a tensor's: `len` bytes at `address`, which
    /// `owner` keeps alive.
    ///
    /// On the software device, processes of the host that reach it open the whole allocation that it is part of, by a handle of
    /// CUDA's IPC; `owner` is dropped once they have closed it, on a thread of this library. Of memory without such handles, as
    /// that of pools, their requests take the way through this process.
    ///
    /// # Errors
    /// [`GpuError::Length`], [`GpuError::NotGpuMemory`], [`GpuError::OtherGpu`], [`GpuError::Driver`].
    ///
    /// # Safety
    /// The bytes are memory of a GPU until `owner` is dropped, and until then nobody relies on what they hold or writes them
    /// but through the value that is given.
    pub unsafe fn adopt(
        &self,
        address: u64,
        len: usize,
        owner: Box<dyn std::any::Any + Send + Sync>,
    ) -> Result<GpuBuffer, GpuError> {
        // SAFETY: passed on to the caller.
        Ok(GpuBuffer::new(unsafe { Allocation::foreign(self.0, address, len, owner) }?))
    }

    /// True if it and `other` reach each other's memory, by NVLink or across the bus, so that copies between the two go straight.
    /// Otherwise the driver takes them by way of the processor's memory, as it does those of [adopted](Gpu::adopt) memory of pools
    /// and of other libraries' mappings that they did not open to the other GPU. Finding out may take milliseconds, once, as the
    /// first copy between the two does else.
    pub fn reaches(&self, other: &Gpu) -> bool {
        if self == other {
            return true;
        }
        self.0.meet(other.0);
        self.0.is_open_to(other.0) && other.0.is_open_to(self.0)
    }

    pub(super) fn device(self) -> &'static Device {
        self.0
    }

    pub(super) fn on(device: &'static Device) -> Gpu {
        Gpu(device)
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gpu({} {} {})", self.0.ordinal, self.0.attributes.name, self.0.attributes.pci_address)
    }
}

impl PartialEq for Gpu {
    fn eq(&self, other: &Self) -> bool {
        self.0.ordinal == other.0.ordinal
    }
}

impl Eq for Gpu {}

impl Device {
    /// The opened GPU that an address is of.
    #[inline]
    pub(super) fn of(place: Place) -> Option<&'static Device> {
        let opened = OPENED.get(usize::from(place.ordinal()?))?.load(Ordering::Acquire);
        // SAFETY: made by `Box::leak`, and never freed.
        unsafe { opened.as_ref() }
    }

    /// All opened GPUs.
    pub(super) fn all() -> impl Iterator<Item = &'static Device> {
        (0..MAX_GPUS as u8).filter_map(|ordinal| Device::of(Place::gpu(ordinal)))
    }

    pub(super) fn place(&self) -> Place {
        Place::gpu(self.ordinal)
    }

    pub(super) fn ordinal(&self) -> usize {
        self.ordinal.into()
    }

    /// As the driver numbers it.
    pub(super) fn number(&self) -> i32 {
        self.device
    }

    pub(super) fn attributes(&self) -> &GpuAttributes {
        &self.attributes
    }

    /// Makes its context this thread's, until the value is dropped. Graphs that are captured meanwhile are not in the way.
    pub(super) fn enter(&self) -> Result<Entered, GpuError> {
        let relaxed = Relaxed::new(self.driver)?;
        // SAFETY: the context stays with the process.
        unsafe { self.driver.push(self.context) }?;
        Ok(Entered { driver: self.driver, _relaxed: relaxed })
    }

    /// A way of its own for a thread.
    pub(super) fn take_lane(&self) -> Result<Lane, GpuError> {
        if let Some(lane) = lock(&self.lanes).pop() {
            return Ok(lane);
        }
        let _entered = self.enter()?;
        // SAFETY: the context is this thread's.
        Ok(Lane::new(unsafe { self.driver.create_stream() }?))
    }

    /// Takes it back. Nothing is under way on it.
    pub(super) fn give_lane(&self, lane: Lane) {
        lock(&self.lanes).push(lane);
    }

    pub(super) fn context(&self) -> Handle {
        self.context
    }
}

/// A thread's stay in a GPU's context.
pub(super) struct Entered {
    driver: Driver,
    _relaxed: Relaxed,
}

impl Drop for Entered {
    fn drop(&mut self) {
        // SAFETY: pushed when this was made, by this thread: the value is not sent.
        if let Err(error) = unsafe { self.driver.pop() } {
            tracing::error!(%error, "a GPU's context could not be left");
        }
    }
}
