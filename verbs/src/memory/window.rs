//! Memory windows (type 2): a part of a region under a key of its own, bound and withdrawn by work requests.

use std::sync::{Arc, Mutex};

use crate::ibv;
use crate::memory::{ExposedRegion, RemoteSlice};
use crate::soft::Home;
use crate::sync::lock;
use crate::types::{Access, Rkey};

/// A memory window. [`QueuePair::bind`](crate::QueuePair::bind) gives it a range, rights and a fresh key; the key works
/// only over the queue pair that bound it. It ends by rebinding, by a local invalidate, by a peer's
/// SEND with invalidate, or when the window or its region is dropped.
#[derive(Debug)]
pub struct MemoryWindow {
    window: Window,
}

/// Registered memory that a window can open a part of: an [`ExposedRegion`], or a [`GpuRegion`](crate::GpuRegion). Sealed.
pub trait Bindable: sealed::Whole {}

pub(crate) mod sealed {
    use crate::memory::ExposedRegion;

    /// What the window opens a part of.
    pub trait Whole {
        /// For this crate alone: on memory of a GPU not all is safe that a region does.
        fn whole(&self, _: Here) -> &ExposedRegion;
    }

    /// What only this crate has.
    #[derive(Debug)]
    pub struct Here(pub(crate) ());
}

impl Bindable for ExposedRegion {}

impl sealed::Whole for ExposedRegion {
    fn whole(&self, _: sealed::Here) -> &ExposedRegion {
        self
    }
}

/// A window of one of the providers.
#[derive(Clone, Debug)]
pub(crate) enum Window {
    Soft(Arc<WindowShared>),
    Ibv(Arc<ibv::Mw>),
}

/// A window of the software device.
#[derive(Debug)]
pub(crate) struct WindowShared {
    home: Arc<Home>,
    domain: u64,
    bound: Mutex<Option<Bound>>,
}

pub(crate) struct Bound {
    pub(crate) rkey: Rkey,
    pub(crate) remote: RemoteSlice,
    pub(crate) access: Access,
    /// The queue pair that bound it, whose peer alone uses the key.
    pub(crate) qpn: u32,
    /// Bound by a queue pair on the network: the protocol alone uses the key, and no peer in shared memory can.
    pub(crate) on_network: bool,
}

impl Bound {
    /// Withdraws the key, and waits for those who may be in an access that it granted; false if one does not leave.
    pub(crate) fn withdraw(&self, home: &Home) -> bool {
        if self.on_network { home.withdraw_on_network(self.rkey) } else { home.withdraw_bound(self.rkey, self.qpn) }
    }
}

impl std::fmt::Debug for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bound").field("remote", &self.remote).field("access", &self.access).finish()
    }
}

impl MemoryWindow {
    pub(crate) fn new(window: Window) -> Self {
        MemoryWindow { window }
    }

    /// The bound range as peers name it, while it is bound.
    pub fn remote(&self) -> Option<RemoteSlice> {
        match &self.window {
            Window::Soft(window) => window.bound(|bound| bound.remote),
            Window::Ibv(window) => window.remote(),
        }
    }

    /// The rights of the bound range, while it is bound.
    pub fn access(&self) -> Option<Access> {
        match &self.window {
            Window::Soft(window) => window.bound(|bound| bound.access),
            Window::Ibv(window) => window.access(),
        }
    }

    pub(crate) fn window(&self) -> &Window {
        &self.window
    }
}

impl WindowShared {
    pub(crate) fn new(home: Arc<Home>, domain: u64) -> Arc<Self> {
        Arc::new(WindowShared { home, domain, bound: Mutex::new(None) })
    }

    fn bound<T>(&self, what: impl FnOnce(&Bound) -> T) -> Option<T> {
        let bound = lock(&self.bound);
        bound.as_ref().filter(|bound| self.home.keys().is_live(bound.rkey)).map(what)
    }

    pub(crate) fn domain(&self) -> u64 {
        self.domain
    }

    /// Replaces what is bound; the former key is withdrawn first, by `withdraw`, unless it is dead already. False if a peer sits in
    /// an access to it. Memory is safe without: it is its owner's again only once its region has looked for itself who is inside
    /// an access.
    pub(crate) fn rebind(&self, next: Option<Bound>, withdraw: impl FnOnce(&Bound) -> bool) -> bool {
        let mut bound = lock(&self.bound);
        let former = bound.as_ref().filter(|old| self.home.keys().is_live(old.rkey));
        if former.is_some_and(|old| !withdraw(old)) {
            return false;
        }
        *bound = next;
        true
    }
}

impl Drop for WindowShared {
    fn drop(&mut self) {
        if !self.rebind(None, |old| old.withdraw(&self.home)) {
            tracing::error!("a peer sits in the middle of an access to a window; its region stays in use");
        }
    }
}
