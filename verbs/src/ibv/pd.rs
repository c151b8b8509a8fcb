//! Protection domains, the thread domains of single queue pairs beside them, and registering memory.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use qpair_verbs_sys as sys;

use super::device::Device;
use super::handle::{Handle, made, outcome};
use super::memlock;
use super::mr::Mr;
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

/// A protection domain of the library.
#[derive(Debug)]
pub(super) struct PdHandle {
    pd: NonNull<sys::ibv_pd>,
    /// Of a parent domain: the thread domain and the domain it stands on.
    parent: Option<(NonNull<sys::ibv_td>, Arc<PdHandle>)>,
    device: Arc<Handle>,
}

// SAFETY: the library's functions on these objects may be called from any thread.
unsafe impl Send for PdHandle {}
// SAFETY: as above.
unsafe impl Sync for PdHandle {}

impl Pd {
    /// Allocates a domain, which is number `id` among those of this process.
    pub(crate) fn alloc(device: &Arc<Device>, id: u64) -> Result<Arc<Self>, CreateError> {
        let handle = Arc::new(PdHandle::alloc(device.handle())?);
        let registrar = handle.clone();
        // SAFETY: an arena gives its registration back before its memory, and keeps memory that the device keeps.
        let register = move |base, len| unsafe { registrar.register(base, len, Access::NONE, false) };
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
        unsafe { self.handle.register(base, len, access, false) }
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
        unsafe { self.handle.register(base, len, access, true) }
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
        let flags = (sys::IBV_ACCESS_LOCAL_WRITE | access.bits()).cast_signed();
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

impl PdHandle {
    fn alloc(device: &Arc<Handle>) -> Result<Self, CreateError> {
        // SAFETY: the context is open.
        let pd = made(unsafe { (device.library.ibv_alloc_pd)(device.ctx()) })
            .map_err(|source| CreateError::System { what: "allocate a protection domain", source })?;
        Ok(PdHandle { pd, parent: None, device: device.clone() })
    }

    /// The same domain with a thread domain of its own: queue pairs in it are not locked by the provider. `None` where the
    /// provider has none.
    pub(super) fn with_thread_domain(self: &Arc<Self>) -> Option<Arc<PdHandle>> {
        let context = self.device.ctx();
        let mut attributes = sys::ibv_td_init_attr { comp_mask: 0 };
        // SAFETY: the context is open.
        let td = made(unsafe { sys::ibv_alloc_td(context, &raw mut attributes) }.ok()?).ok()?;
        let mut attributes = sys::ibv_parent_domain_init_attr {
            pd: self.pd(),
            td: td.as_ptr(),
            comp_mask: 0,
            alloc: None,
            free: None,
            pd_context: std::ptr::null_mut(),
        };
        // SAFETY: context, domain and thread domain are alive.
        let parent = unsafe { sys::ibv_alloc_parent_domain(context, &raw mut attributes) };
        match parent.ok().and_then(NonNull::new) {
            Some(pd) => Some(Arc::new(PdHandle { pd, parent: Some((td, self.clone())), device: self.device.clone() })),
            None => {
                // SAFETY: allocated above, and nothing stands on it.
                let _ = unsafe { sys::ibv_dealloc_td(td.as_ptr()) };
                None
            }
        }
    }

    pub(super) fn pd(&self) -> *mut sys::ibv_pd {
        self.pd.as_ptr()
    }

    pub(super) fn device(&self) -> &Handle {
        &self.device
    }

    /// True if the provider takes no locks for queue pairs made in it.
    pub(super) fn has_thread_domain(&self) -> bool {
        self.parent.is_some()
    }

    /// As [`Pd::register`].
    ///
    /// # Safety
    /// As there.
    pub(super) unsafe fn register(
        self: &Arc<Self>,
        base: NonNull<u8>,
        len: usize,
        access: Access,
        on_demand: bool,
    ) -> Result<Mr, MemoryError> {
        let paged = if on_demand { sys::IBV_ACCESS_ON_DEMAND } else { 0 };
        let flags = (sys::IBV_ACCESS_LOCAL_WRITE | access.bits() | paged).cast_signed();
        // SAFETY: the domain is alive; the memory is valid, by the caller.
        let mr = unsafe { (self.device.library.ibv_reg_mr)(self.pd(), base.as_ptr().cast(), len, flags) };
        match made(mr) {
            Ok(mr) => Ok(Mr::new(mr, on_demand, self.clone())),
            Err(source) => Err(memlock::explain(base.as_ptr().addr(), len, source)),
        }
    }
}

impl Drop for PdHandle {
    fn drop(&mut self) {
        // SAFETY: alive until now; what stood on it held this handle and is gone.
        let gone = outcome(unsafe { (self.device.library.ibv_dealloc_pd)(self.pd()) });
        if let Err(error) = &gone {
            tracing::error!(%error, device = self.device.name, "a protection domain is not given back");
            // What it stands on stays too.
            std::mem::forget((self.device.clone(), self.parent.take()));
        }
        if let Some((td, below)) = self.parent.take() {
            // SAFETY: as above; the parent domain, which stood on it, is gone.
            let gone = unsafe { sys::ibv_dealloc_td(td.as_ptr()) }.map_err(io::Error::other).and_then(outcome);
            if let Err(error) = gone {
                tracing::error!(%error, device = self.device.name, "a thread domain is not given back");
                std::mem::forget(self.device.clone());
            }
            drop(below);
        }
    }
}
