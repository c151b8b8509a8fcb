//! Protection domains: what belongs together, and where memory and queue pairs are made.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::cq::CompletionQueue;
use crate::error::{CreateError, MemoryError};
use crate::memory::{Backing, Buffer, ExposedRegion, HugePages, MemoryWindow};
use crate::qp::{AddressHandle, QpBuilder};
use crate::soft::{self, Node};
use crate::srq::SharedReceiveQueue;
use crate::types::{Access, QpType};
use crate::{ConnectError, QpAddress};

/// A protection domain. Queue pairs reach only memory of their own domain. Clones share it.
#[derive(Clone, Debug)]
pub struct ProtectionDomain {
    node: Arc<Node>,
    id: u64,
}

impl ProtectionDomain {
    pub(crate) fn new(node: Arc<Node>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        ProtectionDomain { node, id: NEXT.fetch_add(1, Ordering::Relaxed) }
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
        check_length(len)?;
        let backing = self.node.home().arenas().alloc(self.id, len, huge).map_err(|source| match huge {
            HugePages::Require => MemoryError::NoHugePages { len, source },
            HugePages::No | HugePages::Try => MemoryError::NoMemory { len, source },
        })?;
        Ok(Buffer::new(self.node.home().clone(), backing))
    }

    /// Registers a vector of the caller's. [`Buffer::into_vec`] gives it back.
    ///
    /// Peers can not map such memory: transfers between processes take a system call, so memory from
    /// [`alloc`](ProtectionDomain::alloc) is faster.
    ///
    /// # Errors
    /// [`MemoryError::Length`] if it is empty or too long.
    pub fn register(&self, vector: Vec<u8>) -> Result<Buffer, MemoryError> {
        check_length(vector.len())?;
        Ok(Buffer::new(self.node.home().clone(), Backing::from_vec(self.id, vector)))
    }

    /// Registers memory that `owner` keeps alive, such as a mapping of another library.
    ///
    /// # Errors
    /// [`MemoryError::Length`] if the length is 0 or too large.
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
        // SAFETY: passed on to the caller.
        let backing = unsafe { Backing::foreign(self.id, base, len, owner) };
        Ok(Buffer::new(self.node.home().clone(), backing))
    }

    /// Allocates `len` zeroed bytes that peers may access as `access` says.
    ///
    /// # Errors
    /// As [`alloc`](ProtectionDomain::alloc), and [`MemoryError::NoKeys`].
    pub fn expose(&self, len: usize, access: Access) -> Result<ExposedRegion, MemoryError> {
        self.alloc(len)?.expose(access).map_err(|failed| failed.error)
    }

    /// A memory window, to be bound by a queue pair of this domain.
    ///
    /// # Errors
    /// [`CreateError`] if the device has no more.
    pub fn create_window(&self) -> Result<MemoryWindow, CreateError> {
        Ok(MemoryWindow::new(self.node.home().clone(), self.id))
    }

    /// A shared receive queue for `depth` receives.
    ///
    /// # Errors
    /// [`CreateError`] if the depth is not possible.
    pub fn create_srq(&self, depth: u32) -> Result<SharedReceiveQueue, CreateError> {
        SharedReceiveQueue::new(self.node.home(), self.id, depth)
    }

    /// A reliable connection, whose completions go to `cq`.
    pub fn rc(&self, cq: &CompletionQueue) -> QpBuilder {
        QpBuilder::new(self, QpType::Rc, cq)
    }

    /// An unreliable connection, whose completions go to `cq`.
    pub fn uc(&self, cq: &CompletionQueue) -> QpBuilder {
        QpBuilder::new(self, QpType::Uc, cq)
    }

    /// A datagram queue pair, whose completions go to `cq`.
    pub fn ud(&self, cq: &CompletionQueue) -> QpBuilder {
        QpBuilder::new(self, QpType::Ud, cq)
    }

    /// A handle for sending datagrams to the queue pair at `address`.
    ///
    /// # Errors
    /// [`ConnectError`] if it is no datagram queue pair, or no wire leads there.
    pub fn address_handle(&self, address: &QpAddress) -> Result<AddressHandle, ConnectError> {
        AddressHandle::new(&self.node, self.id, address)
    }

    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.node
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }
}

fn check_length(len: usize) -> Result<(), MemoryError> {
    if len == 0 || len > soft::MAX_REGION {
        return Err(MemoryError::Length { len, limit: soft::MAX_REGION });
    }
    Ok(())
}
