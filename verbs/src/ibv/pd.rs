//! Protection domains, the thread domains of single queue pairs beside them, and registering memory.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use qpair_verbs_sys as sys;

use super::device::Device;
use super::handle::made;
use super::mr::Mr;
use super::pd_handle::PdHandle;
use super::registered::{NotRegistered, Registered, take_back};
use crate::error::{CreateError, MemoryError};
use crate::gpu::{self, Allocation, RegistrationPath, Way};
use crate::memory::{ArenaPool, Registrar};
use crate::types::Access;

/// A protection domain, with the memory that was allocated in it.
#[derive(Debug)]
pub(crate) struct Pd {
    id: u64,
    arenas: Arc<ArenaPool>,
    handle: Arc<PdHandle>,
    /// The domains of other devices that it spans.
    further: Further,
    device: Arc<Device>,
}

/// Further domains, with their numbers.
type Further = Box<[(u64, Arc<PdHandle>)]>;

impl Pd {
    /// Allocates a domain, which is number `id` among those of this process.
    pub(crate) fn alloc(device: &Arc<Device>, id: u64) -> Result<Arc<Self>, CreateError> {
        let handle = Arc::new(PdHandle::alloc(device.handle())?);
        Ok(Self::with(id, handle, device.clone(), Box::default()))
    }

    /// The same domain, whose memory is registered with the devices of the others too, and with those that it spans already.
    pub(crate) fn spanning(&self, others: impl IntoIterator<Item = Arc<Pd>>) -> Arc<Self> {
        let mut further: Vec<_> = self.further.to_vec();
        for other in others {
            if other.id != self.id && further.iter().all(|(domain, _)| *domain != other.id) {
                further.push((other.id, other.handle.clone()));
            }
        }
        Self::with(self.id, self.handle.clone(), self.device.clone(), further.into())
    }

    fn with(id: u64, handle: Arc<PdHandle>, device: Arc<Device>, further: Further) -> Arc<Self> {
        let (first, others) = (handle.clone(), further.clone());
        // SAFETY: an arena gives its registrations back before its memory, and keeps memory that a device keeps.
        let register = move |base, len| unsafe { with_each(&first, &others, base, len, writable(Access::NONE)) };
        let arenas = ArenaPool::registering(Registrar(Box::new(register)));
        Arc::new(Pd { id, arenas, handle, further, device })
    }

    pub(crate) fn arenas(&self) -> &ArenaPool {
        &self.arenas
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(super) fn handle(&self) -> &Arc<PdHandle> {
        &self.handle
    }

    /// Registers memory; peers may do what `access` says.
    ///
    /// # Errors
    /// [`NotRegistered`] if the device refuses or a limit forbids it.
    ///
    /// # Safety
    /// The memory stays valid for reads and writes until the registration is closed, and for ever if closing fails or it is
    /// [kept](NotRegistered::kept). Nobody touches it while the device may.
    pub(crate) unsafe fn register(
        &self,
        base: NonNull<u8>,
        len: usize,
        access: Access,
    ) -> Result<Registered, NotRegistered> {
        // SAFETY: passed on to the caller.
        unsafe { with_each(&self.handle, &self.further, base, len, writable(access)) }
    }

    /// Registers memory that nobody writes: peers may read it.
    ///
    /// # Errors
    /// As [`register`](Pd::register).
    ///
    /// # Safety
    /// The memory stays valid for reads until the registration is closed, and for ever if closing fails or it is
    /// [kept](NotRegistered::kept). Nobody writes it.
    pub(crate) unsafe fn register_read_only(&self, base: NonNull<u8>, len: usize) -> Result<Registered, NotRegistered> {
        let flags = Access::REMOTE_READ.bits().cast_signed();
        // SAFETY: passed on to the caller; the device is not allowed to write.
        unsafe { with_each(&self.handle, &self.further, base, len, flags) }
    }

    /// The same without locking the memory, on devices that fault pages in.
    ///
    /// # Errors
    /// As [`register`](Pd::register), and [`MemoryError::NotSupported`].
    ///
    /// # Safety
    /// As [`register`](Pd::register).
    pub(crate) unsafe fn register_on_demand(
        &self,
        base: NonNull<u8>,
        len: usize,
        access: Access,
    ) -> Result<Registered, NotRegistered> {
        let offered = self.device.attributes().on_demand_paging.general & u64::from(sys::IBV_ODP_SUPPORT) != 0;
        if !offered {
            return Err(self.not_supported("memory that is not locked (on-demand paging)", None).into());
        }
        // SAFETY: passed on to the caller.
        unsafe {
            with_each(
                &self.handle,
                &self.further,
                base,
                len,
                writable(access) | sys::IBV_ACCESS_ON_DEMAND.cast_signed(),
            )
        }
    }

    /// Registers memory of a GPU, also with the domains that this one spans: by a DMA-buf, or else by its address where
    /// nvidia-peermem is loaded. Says by which, and why not by the other.
    ///
    /// # Errors
    /// [`MemoryError::GpuUnreachable`] with the reason of each. One that leaves the memory registered is the last that is tried.
    pub(crate) fn register_gpu(
        &self,
        allocation: &Allocation,
        access: Access,
    ) -> Result<(Registered, RegistrationPath), NotRegistered> {
        let flags = writable(access);
        let each = |register: &dyn Fn(&Arc<PdHandle>) -> Result<Mr, MemoryError>| {
            let mut mrs = Vec::with_capacity(1 + self.further.len());
            let domains = [(self.id, &self.handle)].into_iter();
            for (domain, handle) in domains.chain(working(&self.further)) {
                match register(handle) {
                    Ok(mr) => mrs.push((domain, mr)),
                    Err(error) => return Err(take_back(mrs, error)),
                }
            }
            let (_, first) = mrs.remove(0);
            Ok(Registered::new(first, mrs))
        };
        let attributes = allocation.attributes();
        allocation.be_synchronous();
        let (mut why, mut kept) = (String::new(), Vec::new());
        if attributes.dma_buf {
            let registered =
                allocation.dmabuf().map_err(|error| (error.to_string(), Vec::new())).and_then(|(dmabuf, offset)| {
                    let range = (allocation.address(), allocation.len());
                    each(&|handle| dmabuf_mr(handle, dmabuf.as_fd(), offset, range, flags))
                        .map_err(|failed| (failed.error.to_string(), failed.kept))
                });
            match registered {
                Ok(registered) => return Ok((registered, RegistrationPath { way: Way::DmaBuf, why })),
                Err((error, stays)) => (why, kept) = (format!("DMA-buf: {error}"), stays),
            }
        } else {
            why.push_str("DMA-buf: the GPU's driver exports none");
        }
        if !kept.is_empty() {
            why.push_str("; peermem: a device keeps the memory that it has by the DMA-buf");
        } else if !attributes.gpu_direct_rdma {
            why.push_str("; peermem: the GPU does not have it");
        } else if !gpu::has_peermem() {
            why.push_str("; peermem: the kernel module nvidia-peermem is not loaded, as far as /sys/module and QPAIR_PEERMEM say");
        } else if let Some(base) = NonNull::new(std::ptr::without_provenance_mut(allocation.address() as usize)) {
            // SAFETY: the memory is the GPU's, which nobody here reaches but by its driver; who registers it keeps it.
            match each(&|handle| unsafe { Mr::register(handle, base, allocation.len(), flags) }) {
                Ok(registered) => return Ok((registered, RegistrationPath { way: Way::PeerMemory, why })),
                Err(failed) => {
                    why.push_str(&format!("; peermem: {}", failed.error));
                    kept = failed.kept;
                }
            }
        }
        let device = self.device.name().to_owned();
        let error = MemoryError::GpuUnreachable { device, ordinal: allocation.ordinal(), why };
        Err(NotRegistered { error, kept })
    }

    pub(crate) fn device_name(&self) -> &str {
        self.device.name()
    }

    /// Whether the device registers DMA-bufs, also with the domains that this one spans: asked by a descriptor that is none, which
    /// a device that does refuses for that.
    pub(crate) fn takes_dmabufs(&self) -> bool {
        let takes = |handle: &Arc<PdHandle>| {
            let Ok(register) = handle.device().library.ibv_reg_dmabuf_mr() else { return false };
            // SAFETY: the domain is alive; no memory is named.
            let mr = unsafe { register(handle.pd(), 0, rustix::param::page_size(), 0, -1, 0) };
            match made(mr) {
                // It is none that one could use.
                Ok(mr) => Mr::new(mr, false, handle.clone()).close().is_ok(),
                Err(error) => !is_not_supported(&error),
            }
        };
        takes(&self.handle) && working(&self.further).all(|(_, handle)| takes(handle))
    }

    /// Registers `len` bytes from `offset` of a DMA-buf, which peers and work requests address from `iova` on.
    ///
    /// # Errors
    /// [`MemoryError::NotSupported`] where the library or the device has no such registration, else as
    /// [`register`](Pd::register).
    pub(crate) fn register_dmabuf(
        &self,
        dmabuf: BorrowedFd<'_>,
        offset: u64,
        (iova, len): (u64, usize),
        access: Access,
    ) -> Result<Mr, MemoryError> {
        dmabuf_mr(&self.handle, dmabuf, offset, (iova, len), writable(access))
    }

    fn not_supported(&self, what: &'static str, why: Option<String>) -> MemoryError {
        MemoryError::NotSupported { device: self.device.name().to_owned(), what, why }
    }
}

/// Registers part of a DMA-buf with one domain; see [`Pd::register_dmabuf`].
fn dmabuf_mr(
    handle: &Arc<PdHandle>,
    dmabuf: BorrowedFd<'_>,
    offset: u64,
    (iova, len): (u64, usize),
    flags: libc::c_int,
) -> Result<Mr, MemoryError> {
    const WHAT: &str = "a DMA-buf";
    let not_supported = |why| MemoryError::NotSupported { device: handle.device().name.clone(), what: WHAT, why };
    let register = handle.device().library.ibv_reg_dmabuf_mr();
    let register = register.map_err(|missing| not_supported(Some(missing.to_string())))?;
    // SAFETY: the domain is alive; the memory is the DMA-buf's, which the kernel keeps while it is registered.
    let mr = unsafe { register(handle.pd(), offset, len, iova, dmabuf.as_raw_fd(), flags) };
    match made(mr) {
        Ok(mr) => Ok(Mr::new(mr, false, handle.clone())),
        Err(source) if is_not_supported(&source) => Err(not_supported(None)),
        // Nothing is pinned for it: that is the exporter's to do.
        Err(source) => Err(MemoryError::Refused { len, source }),
    }
}

/// Whether a device says so that it does not register DMA-bufs.
fn is_not_supported(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EPROTONOSUPPORT | libc::ENOSYS))
}

/// Registers memory with a domain, and with further ones.
///
/// # Safety
/// As [`Mr::register`], for all of them; what is [kept](NotRegistered::kept) stays valid for ever.
unsafe fn with_each(
    first: &Arc<PdHandle>,
    further: &Further,
    base: NonNull<u8>,
    len: usize,
    flags: libc::c_int,
) -> Result<Registered, NotRegistered> {
    // SAFETY: passed on to the caller.
    let mr = unsafe { Mr::register(first, base, len, flags) }?;
    let mut others = Vec::with_capacity(further.len());
    for (domain, handle) in working(further) {
        // SAFETY: passed on to the caller.
        match unsafe { Mr::register(handle, base, len, flags) } {
            Ok(other) => others.push((domain, other)),
            Err(error) => {
                others.push((0, mr));
                return Err(take_back(others, error));
            }
        }
    }
    Ok(Registered::new(mr, others))
}

/// Those whose devices have not failed: one that has registers nothing, and others are not to suffer from it.
fn working(further: &Further) -> impl Iterator<Item = (u64, &Arc<PdHandle>)> {
    further.iter().filter(|(_, handle)| !handle.device().has_failed()).map(|(domain, handle)| (*domain, handle))
}

/// The flags of memory that the device may write, and peers as `access` says.
fn writable(access: Access) -> libc::c_int {
    (sys::IBV_ACCESS_LOCAL_WRITE | access.bits()).cast_signed()
}
