//! Protection domains, the thread domains of single queue pairs beside them, and registering memory.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use qpair_verbs_sys as sys;

use super::device::Device;
use super::handle::made;
use super::mr::Mr;
use super::pd_handle::PdHandle;
use crate::error::{CreateError, MemoryError};
use crate::memory::{ArenaPool, Registrar};
use crate::types::Access;

/// A protection domain, with the memory that was allocated in it.
#[derive(Debug)]
pub(crate) struct Pd {
    id: u64,
    arenas: Arc<ArenaPool>,
    handle: Arc<PdHandle>,
    device: Arc<Device>,
}

impl Pd {
    /// Allocates a domain, which is number `id` among those of this process.
    pub(crate) fn alloc(device: &Arc<Device>, id: u64) -> Result<Arc<Self>, CreateError> {
        let handle = Arc::new(PdHandle::alloc(device.handle())?);
        let registrar = handle.clone();
        // SAFETY: an arena gives its registration back before its memory, and keeps memory that the device keeps.
        let register = move |base, len| unsafe { Mr::register(&registrar, base, len, writable(Access::NONE)) };
        let arenas = ArenaPool::registering(Registrar(Box::new(register)));
        Ok(Arc::new(Pd { id, arenas, handle, device: device.clone() }))
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
    /// [`MemoryError`] if the device refuses or a limit forbids it.
    ///
    /// # Safety
    /// The memory stays valid for reads and writes until the registration is closed, and for ever if closing fails. Nobody
    /// touches it while the device may.
    pub(crate) unsafe fn register(&self, base: NonNull<u8>, len: usize, access: Access) -> Result<Mr, MemoryError> {
        // SAFETY: passed on to the caller.
        unsafe { Mr::register(&self.handle, base, len, writable(access)) }
    }

    /// Registers memory that nobody writes: peers may read it.
    ///
    /// # Errors
    /// As [`register`](Pd::register).
    ///
    /// # Safety
    /// The memory stays valid for reads until the registration is closed, and for ever if closing fails. Nobody writes it.
    pub(crate) unsafe fn register_read_only(&self, base: NonNull<u8>, len: usize) -> Result<Mr, MemoryError> {
        let flags = Access::REMOTE_READ.bits().cast_signed();
        // SAFETY: passed on to the caller; the device is not allowed to write.
        unsafe { Mr::register(&self.handle, base, len, flags) }
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
    ) -> Result<Mr, MemoryError> {
        let offered = self.device.attributes().on_demand_paging.general & u64::from(sys::IBV_ODP_SUPPORT) != 0;
        if !offered {
            return Err(self.not_supported("memory that is not locked (on-demand paging)", None));
        }
        // SAFETY: passed on to the caller.
        unsafe { Mr::register(&self.handle, base, len, writable(access) | sys::IBV_ACCESS_ON_DEMAND.cast_signed()) }
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
        const WHAT: &str = "a DMA-buf";
        let register = self.device.handle().library.ibv_reg_dmabuf_mr();
        let register = register.map_err(|missing| self.not_supported(WHAT, Some(missing.to_string())))?;
        let flags = writable(access);
        // SAFETY: the domain is alive; the memory is the DMA-buf's, which the kernel keeps while it is registered.
        let mr = unsafe { register(self.handle.pd(), offset, len, iova, dmabuf.as_raw_fd(), flags) };
        match made(mr) {
            Ok(mr) => Ok(Mr::new(mr, false, self.handle.clone())),
            Err(source) if matches!(source.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) => {
                Err(self.not_supported(WHAT, None))
            }
            // Nothing is pinned for it: that is the exporter's to do.
            Err(source) => Err(MemoryError::Refused { len, source }),
        }
    }

    fn not_supported(&self, what: &'static str, why: Option<String>) -> MemoryError {
        MemoryError::NotSupported { device: self.device.name().to_owned(), what, why }
    }
}

/// The flags of memory that the device may write, and peers as `access` says.
fn writable(access: Access) -> libc::c_int {
    (sys::IBV_ACCESS_LOCAL_WRITE | access.bits()).cast_signed()
}
