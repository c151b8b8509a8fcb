//! Protection domains: what belongs together, and where memory and queue pairs are made.

use std::any::Any;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use crate::cq::CompletionQueue;
use crate::error::{CreateError, GpuRegisterFailed, MemoryError};
use crate::gpu::{Gpu, GpuAttributes, GpuBuffer, GpuRegion, RegistrationPath, Way, has_peermem};
use crate::ibv;
use crate::memory::{
    Backing, Buffer, BytesRegion, DmabufRegion, ExposedRegion, HugePages, MemoryWindow, Pages, Reach, Window,
    WindowShared,
};
use crate::qp::{CqHandle, OwnedQp, QpBuilder, QpOptions, SrqHandle};
use crate::soft::{self, Node};
use crate::srq::SharedReceiveQueue;
use crate::types::{Access, QpType};

/// A protection domain. Queue pairs reach only memory of their own domain. Clones share it.
#[derive(Clone, Debug)]
pub struct ProtectionDomain {
    /// Unlike that of any other domain of this process, whoever provides it.
    id: u64,
    provider: Provider,
}

/// A protection domain of one of the providers.
#[derive(Clone, Debug)]
enum Provider {
    Soft(Arc<Node>),
    Ibv(Arc<ibv::Pd>),
}

impl ProtectionDomain {
    pub(crate) fn soft(node: Arc<Node>) -> Self {
        ProtectionDomain { id: fresh_id(), provider: Provider::Soft(node) }
    }

    pub(crate) fn ibv(device: &Arc<ibv::Device>) -> Result<Self, CreateError> {
        let id = fresh_id();
        Ok(ProtectionDomain { id, provider: Provider::Ibv(ibv::Pd::alloc(device, id)?) })
    }

    /// This domain, with memory that other devices reach too, beside those that it spans already: what is allocated or registered by
    /// the value that it gives is registered with all of them, for work requests of this domain's queue pairs and of the others',
    /// and for peers under a key for each device ([`ExposedRegion::rkey_in`]). Queue pairs that it makes are this domain's.
    ///
    /// DMA-bufs are registered with this domain's device alone. Where one of the others fails for good, memory is registered without
    /// it from then on, and has no key for it.
    ///
    /// # Errors
    /// [`CreateError::NotSpanned`] if one of the devices, and not the only one, is the software device.
    pub fn spanning(&self, others: &[ProtectionDomain]) -> Result<ProtectionDomain, CreateError> {
        if others.is_empty() {
            return Ok(self.clone());
        }
        let Provider::Ibv(pd) = &self.provider else { return Err(CreateError::NotSpanned) };
        let other = |other: &ProtectionDomain| match &other.provider {
            Provider::Ibv(other) => Ok(other.clone()),
            Provider::Soft(_) => Err(CreateError::NotSpanned),
        };
        let others = others.iter().map(other).collect::<Result<Vec<_>, _>>()?;
        Ok(ProtectionDomain { id: self.id, provider: Provider::Ibv(pd.spanning(others)) })
    }

    /// Allocates `len` zeroed bytes of registered memory, aligned to 64 bytes, and to a page from 4 KiB on.
    ///
    /// # Errors
    /// [`MemoryError`] if the length is 0 or too large, or the system has no memory.
    pub fn alloc(&self, len: usize) -> Result<Buffer, MemoryError> {
        self.alloc_on(len, HugePages::No)
    }

    /// The same, on huge pages where asked.
    ///
    /// # Errors
    /// As [`alloc`](ProtectionDomain::alloc), and [`MemoryError::NoHugePages`] if they are required.
    pub fn alloc_on(&self, len: usize, huge: HugePages) -> Result<Buffer, MemoryError> {
        self.alloc_pages(len, huge.into())
    }

    /// The same, pinned for all GPUs of this process: copies between it and their memory go straight there, at the speed of
    /// the bus. It is not write-combined, so that the processor reads it as any other. A buffer of more than
    /// 256 KiB is unpinned when it is dropped, or once no stream of a GPU is held any more ([`GpuHold`](crate::GpuHold));
    /// smaller ones share arenas of some MiB, which are pinned whole, and stay so as long as the device is open, with
    /// libibverbs as long as the domain is there.
    ///
    /// Processes of the host that map it pin their mapping on its first long copy between it and a GPU, whether or not it is
    /// pinned here; where their driver refuses, they copy as from any memory, and log that.
    ///
    /// ```no_run
    /// # use qpair_verbs::{Context, Gpu};
    /// let pd = Context::open("soft0")?.alloc_pd()?;
    /// let batch = pd.alloc_pinned(64 << 20, Gpu::open(0)?)?; // posted as any other buffer, also to GPU memory
    /// assert!(batch.is_pinned());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`alloc`](ProtectionDomain::alloc), and [`MemoryError::Gpu`] with
    /// [`GpuError::NotPinned`](crate::GpuError::NotPinned) if the driver refuses.
    pub fn alloc_pinned(&self, len: usize, gpu: Gpu) -> Result<Buffer, MemoryError> {
        self.alloc_pages(len, Pages { pinned: Some(gpu), ..Pages::default() })
    }

    fn alloc_pages(&self, len: usize, pages: Pages) -> Result<Buffer, MemoryError> {
        check_length(len)?;
        let backing = match &self.provider {
            Provider::Soft(node) => {
                let home = node.home();
                home.arenas().alloc(self.id, Reach::Soft(home.clone()), len, pages)
            }
            Provider::Ibv(pd) => pd.arenas().alloc(self.id, Reach::Ibv(pd.clone()), len, pages),
        }?;
        Ok(Buffer::new(backing))
    }

    /// Registers a vector of the caller's. [`Buffer::into_vec`] gives it back.
    ///
    /// Peers of the software device can not map such memory: transfers between processes take a system call, so memory
    /// from [`alloc`](ProtectionDomain::alloc) is faster.
    ///
    /// # Errors
    /// [`MemoryError`] if it is empty or too long, or the device refuses it; the vector is dropped then, or never where a device
    /// keeps a registration of it that another refused.
    pub fn register(&self, vector: Vec<u8>) -> Result<Buffer, MemoryError> {
        check_length(vector.len())?;
        Ok(Buffer::new(match &self.provider {
            Provider::Soft(node) => {
                Backing::from_vec(self.id, Reach::Soft(node.home().clone()), vector, |_, _| Ok(None))?
            }
            Provider::Ibv(pd) => {
                // SAFETY: the backing owns the vector until the device has let go of it.
                let register = |base, len| unsafe { pd.register(base, len, Access::NONE) }.map(Some);
                Backing::from_vec(self.id, Reach::Ibv(pd.clone()), vector, register)?
            }
        }))
    }

    /// Registers a vector of the caller's without locking it in memory: the device faults pages in as it needs them, so that
    /// no limit on locked memory counts. On devices that have
    /// [`on_demand_paging`](crate::DeviceAttributes::on_demand_paging); the software device needs none of this, and takes
    /// any vector so.
    ///
    /// # Errors
    /// As [`register`](ProtectionDomain::register), and [`MemoryError::NotSupported`].
    pub fn register_on_demand(&self, vector: Vec<u8>) -> Result<Buffer, MemoryError> {
        let Provider::Ibv(pd) = &self.provider else { return self.register(vector) };
        check_length(vector.len())?;
        // SAFETY: the backing owns the vector until the device has let go of it.
        let register = |base, len| unsafe { pd.register_on_demand(base, len, Access::NONE) }.map(Some);
        Ok(Buffer::new(Backing::from_vec(self.id, Reach::Ibv(pd.clone()), vector, register)?))
    }

    /// Registers `len` bytes from `offset` of a DMA-buf, such as a GPU's driver exports; peers may do what `access` says.
    /// `iova` is the address that the first byte has for peers and work requests: the GPU's own, so that addresses agree.
    /// Both it and `offset` begin a page of the device, or lie equally far into one.
    ///
    /// # Errors
    /// [`MemoryError::NotSupported`] on the software device, on devices that can not, and with a libibverbs before
    /// rdma-core 34; else [`MemoryError`] as the device refuses.
    pub fn register_dmabuf(
        &self,
        dmabuf: OwnedFd,
        offset: u64,
        iova: u64,
        len: usize,
        access: Access,
    ) -> Result<DmabufRegion, MemoryError> {
        check_length(len)?;
        match &self.provider {
            Provider::Soft(_) => {
                let device = soft::DEVICE_NAME.to_owned();
                Err(MemoryError::NotSupported { device, what: "a DMA-buf", why: None })
            }
            Provider::Ibv(pd) => {
                let mr = pd.register_dmabuf(dmabuf.as_fd(), offset, (iova, len), access)?;
                Ok(DmabufRegion::new(mr, dmabuf, self.id, (iova, len), access))
            }
        }
    }

    /// Registers memory of a GPU; peers may do what `access` says. [`GpuRegion::path`] tells how the device reaches it: the
    /// software device does so itself, one of libibverbs by a DMA-buf of the memory or else by nvidia-peermem. Where `/sys/module` does
    /// not show whether that is loaded, as in some containers, QPAIR_PEERMEM in the environment says so, by 1 or 0.
    ///
    /// # Errors
    /// [`GpuRegisterFailed`] with the memory: [`MemoryError::GpuUnreachable`] if the device does not reach it in any way,
    /// [`MemoryError::NoKeys`]; [`MemoryError::Gpu`] where the software device can not load what does atomics.
    pub fn register_gpu(&self, buffer: GpuBuffer, access: Access) -> Result<GpuRegion, GpuRegisterFailed> {
        let (reach, arena, registered, path) = match &self.provider {
            Provider::Soft(node) => {
                let home = node.home();
                // Not first where a peer asks for one, which may be on a thread that others need.
                let prepared = if access.contains(Access::REMOTE_ATOMIC) { buffer.prepare_atomics() } else { Ok(()) };
                if let Err(error) = prepared {
                    return Err(GpuRegisterFailed { error: error.into(), buffer: Some(buffer) });
                }
                let arena = home.arenas().gpu(buffer.allocation());
                (Reach::Soft(home.clone()), Some(arena), None, RegistrationPath::software())
            }
            Provider::Ibv(pd) => match pd.register_gpu(buffer.allocation(), Access::NONE) {
                Ok((registered, path)) => (Reach::Ibv(pd.clone()), None, Some(registered), path),
                Err(failed) => {
                    let (error, buffer) = failed.leaving(buffer);
                    return Err(GpuRegisterFailed { error, buffer });
                }
            },
        };
        let backing = Backing::of_gpu(self.id, reach, buffer, arena, registered);
        match ExposedRegion::new(Buffer::new(backing), access) {
            Ok(region) => Ok(GpuRegion::new(region, path)),
            Err(failed) => {
                Err(GpuRegisterFailed { error: failed.error, buffer: failed.buffer.and_then(Buffer::into_gpu) })
            }
        }
    }

    /// How the device would reach memory of a GPU, found by registering some: as [`GpuRegion::path`] tells of a region, or
    /// `staging` with the reason why nothing else does. Then [`register_gpu`](ProtectionDomain::register_gpu) fails, and bytes
    /// go by a [`GpuStage`](crate::GpuStage).
    ///
    /// # Errors
    /// [`MemoryError::Gpu`] if there is no memory to register, [`MemoryError::NoKeys`].
    pub fn gpu_path(&self, gpu: Gpu) -> Result<RegistrationPath, MemoryError> {
        let memory = gpu.alloc(PROBE)?;
        match self.register_gpu(memory, Access::REMOTE_WRITE) {
            Ok(region) => Ok(region.path().clone()),
            Err(GpuRegisterFailed { error: MemoryError::GpuUnreachable { why, .. }, .. }) => {
                Ok(RegistrationPath { way: Way::Staging, why })
            }
            Err(failed) => Err(failed.error),
        }
    }

    /// Whether the device reaches the memory of all GPUs that this process sees, and what it writes there can be
    /// [flushed](crate::GpuRegion::flush) without reading it back, by what device, driver and kernel say of themselves: the driver is
    /// initialised for that, where there is one, and no GPU opened. True where there is no GPU or no driver, or it does not say.
    pub fn reaches_gpus(&self) -> bool {
        let Provider::Ibv(pd) = &self.provider else { return true };
        let all = match GpuAttributes::of_all() {
            Ok(all) => all,
            Err(error) if error.is_absence() => return true,
            Err(error) => {
                tracing::warn!(%error, "it is not known how GPUs are reached: their memory is taken to be");
                return true;
            }
        };
        let takes_dmabufs = pd.takes_dmabufs();
        let reaches = |gpu: &GpuAttributes| gpu.dma_buf && takes_dmabufs || gpu.gpu_direct_rdma && has_peermem();
        all.iter().all(|gpu| reaches(gpu) && (gpu.writes_ordered || gpu.flush.host))
    }

    /// The name of its device.
    pub(crate) fn device_name(&self) -> &str {
        match &self.provider {
            Provider::Soft(_) => soft::DEVICE_NAME,
            Provider::Ibv(pd) => pd.device_name(),
        }
    }

    /// Registers memory that `owner` keeps alive, such as a mapping of another library.
    ///
    /// # Errors
    /// [`MemoryError`] if the length is 0 or too large, or the device refuses the memory; the owner is dropped then, or never
    /// where a device keeps a registration of it that another refused.
    ///
    /// # Safety
    /// `base..base + len` is initialised, stays valid for reads and writes until `owner` is dropped, and nobody else
    /// touches it until then.
    pub unsafe fn register_raw(
        &self,
        base: NonNull<u8>,
        len: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Buffer, MemoryError> {
        check_length(len)?;
        let (reach, registered) = match &self.provider {
            Provider::Soft(node) => (Reach::Soft(node.home().clone()), None),
            // SAFETY: the caller keeps the memory valid until `owner` is dropped, and the backing drops that last.
            Provider::Ibv(pd) => match unsafe { pd.register(base, len, Access::NONE) } {
                Ok(registered) => (Reach::Ibv(pd.clone()), Some(registered)),
                Err(failed) => return Err(failed.leaving(owner).0),
            },
        };
        // SAFETY: passed on to the caller.
        Ok(Buffer::new(unsafe { Backing::foreign(self.id, reach, (base, len), owner, registered) }))
    }

    /// Allocates `len` zeroed bytes that peers may access as `access` says.
    ///
    /// # Errors
    /// As [`alloc`](ProtectionDomain::alloc), and [`MemoryError::NoKeys`].
    pub fn expose(&self, len: usize, access: Access) -> Result<ExposedRegion, MemoryError> {
        self.alloc(len)?.expose(access).map_err(|failed| failed.error)
    }

    /// Lets peers read `bytes` where they lie; see [`BytesRegion`].
    ///
    /// Peers of the software device can not map such memory, as with [`register`](ProtectionDomain::register). A device of
    /// libibverbs locks the pages of it; those of a file that is mapped read-only, such as a program's constants, are refused
    /// by some kernels before 6.2.
    ///
    /// # Errors
    /// [`MemoryError`] if there is no byte, or the device refuses the memory.
    pub fn expose_bytes(&self, bytes: Bytes) -> Result<BytesRegion, MemoryError> {
        check_length(bytes.len())?;
        let reach = match &self.provider {
            Provider::Soft(node) => Reach::Soft(node.home().clone()),
            Provider::Ibv(pd) => Reach::Ibv(pd.clone()),
        };
        BytesRegion::new(self.id, reach, bytes)
    }

    /// A memory window, to be bound by a queue pair of this domain.
    ///
    /// # Errors
    /// [`CreateError`] if the device has no more.
    pub fn create_window(&self) -> Result<MemoryWindow, CreateError> {
        Ok(MemoryWindow::new(match &self.provider {
            Provider::Soft(node) => Window::Soft(WindowShared::new(node.home().clone(), self.id)),
            Provider::Ibv(pd) => Window::Ibv(ibv::Mw::alloc(pd)?),
        }))
    }

    /// A shared receive queue for `depth` receives. How many of them one queue pair takes while nobody polls, its
    /// [`recv_depth`](crate::QpBuilder::recv_depth) says.
    ///
    /// # Errors
    /// [`CreateError`] if the depth is not possible.
    pub fn create_srq(&self, depth: u32) -> Result<SharedReceiveQueue, CreateError> {
        Ok(SharedReceiveQueue::new(match &self.provider {
            Provider::Soft(node) => SrqHandle::Soft(soft::SoftSrq::new(node.home(), self.id, depth)?),
            Provider::Ibv(pd) => SrqHandle::Ibv(ibv::Srq::create(pd, depth)?),
        }))
    }

    /// A reliable connection, whose completions go to `cq`.
    pub fn rc(&self, cq: &CompletionQueue) -> QpBuilder {
        QpBuilder::new(self, QpType::Rc, cq)
    }

    /// An unreliable connection, whose completions go to `cq`.
    ///
    /// A message that is longer than its receive is dropped where it comes over a network, and the receive is for the next one, as
    /// Linux' rdma_rxe has it; between processes of a host on the software device, where the sender writes into the receive, the
    /// receive fails, and the queue pair with it.
    pub fn uc(&self, cq: &CompletionQueue) -> QpBuilder {
        QpBuilder::new(self, QpType::Uc, cq)
    }

    /// A datagram queue pair, whose completions go to `cq`.
    pub fn ud(&self, cq: &CompletionQueue) -> QpBuilder {
        QpBuilder::new(self, QpType::Ud, cq)
    }

    pub(crate) fn create_qp(
        &self,
        options: &QpOptions,
        cqs: [&CqHandle; 2],
        srq: Option<&SrqHandle>,
    ) -> Result<OwnedQp, CreateError> {
        match &self.provider {
            Provider::Soft(node) => {
                let spec = soft::QpSpec::new(node, self.id, options, cqs, srq)?;
                Ok(OwnedQp::Soft(soft::OwnedQp::new(soft::SoftQp::new(spec)?)))
            }
            Provider::Ibv(pd) => Ok(OwnedQp::Ibv(Box::new(ibv::OwnedQp::create(pd, options, cqs, srq)?))),
        }
    }

    /// The opened software device that it belongs to.
    #[cfg(test)]
    pub(crate) fn node(&self) -> &Arc<Node> {
        match &self.provider {
            Provider::Soft(node) => node,
            Provider::Ibv(_) => panic!("not of the software device"),
        }
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }
}

fn fresh_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn check_length(len: usize) -> Result<(), MemoryError> {
    if len == 0 || len > soft::MAX_REGION {
        return Err(MemoryError::Length { len, limit: soft::MAX_REGION });
    }
    Ok(())
}

/// Bytes of a GPU that are registered to see whether that can be done.
const PROBE: usize = 64 << 10;
