//! A completion queue as its queue pairs know it: whom to wake, and who completes here.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard};

use super::arming::Arming;
use super::barrier;
use super::eventfd::EventFd;
use super::home::Home;
use super::layout::CqPublic;
use crate::error::CreateError;
use crate::sync::{AtomicU32, Ordering, lock};

/// What queue pairs know of their completion queue.
#[derive(Debug)]
pub(crate) struct CqShared {
    home: Arc<Home>,
    depth: u32,
    bell: Arc<EventFd>,
    public: NonNull<CqPublic>,
    offset: usize,
    /// For which arming the bell was rung last, by this process.
    rung: AtomicU32,
    members: Mutex<Vec<Entry>>,
    version: AtomicU32,
    /// True if this process's light barriers do without a fence.
    asymmetric: bool,
}

// SAFETY: the pointer names atomics in a mapping that `home` keeps.
unsafe impl Send for CqShared {}
// SAFETY: as above.
unsafe impl Sync for CqShared {}

/// A queue pair that completes here. Its type stands above this file; the owner's end knows it.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) qp: Arc<dyn Any + Send + Sync>,
    pub(crate) qpn: u32,
    pub(crate) sends: bool,
    pub(crate) receives: bool,
}

impl CqShared {
    pub(crate) fn new(home: &Arc<Home>, depth: u32, bell: Arc<EventFd>) -> Result<Arc<Self>, CreateError> {
        if depth == 0 || depth > MAX_CQE {
            let limit = MAX_CQE.into();
            return Err(CreateError::OutOfRange { what: "a completion queue", asked: depth.into(), limit });
        }
        let full = || CreateError::Exhausted { what: "completion queue" };
        let offset = home.take_public(size_of::<CqPublic>()).ok_or_else(full)?;
        // SAFETY: the type is made of atomics, and the block is ours.
        let public = unsafe { home.public().at::<CqPublic>(offset) }.ok_or_else(full)?;
        Ok(Arc::new(CqShared {
            home: home.clone(),
            depth,
            bell,
            public,
            offset,
            rung: AtomicU32::new(0),
            members: Mutex::default(),
            version: AtomicU32::new(0),
            asymmetric: barrier::registered(),
        }))
    }

    pub(crate) fn home(&self) -> &Arc<Home> {
        &self.home
    }

    pub(crate) fn bell(&self) -> &Arc<EventFd> {
        &self.bell
    }

    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    #[inline(always)]
    fn public(&self) -> &CqPublic {
        // SAFETY: mapped as long as `home` lives.
        unsafe { self.public.as_ref() }
    }

    /// How the owner asks to be woken.
    pub(crate) fn arming(&self) -> &Arming {
        &self.public().arming
    }

    /// Enters a queue pair that completes here.
    pub(crate) fn join(&self, entry: Entry) {
        self.members().push(entry);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Takes a queue pair out.
    pub(crate) fn leave(&self, qpn: u32) {
        let gone: Vec<_> = self.members().extract_if(.., |entry| entry.qpn == qpn).collect();
        self.version.fetch_add(1, Ordering::Release);
        // Dropping the last hold on a queue pair comes back here: not under the lock.
        drop(gone);
    }

    /// Has the owner look at its queue pairs anew.
    pub(crate) fn changed(&self) {
        self.version.fetch_add(1, Ordering::Release);
    }

    /// The queue pairs that complete here, and a count that tells when they change.
    pub(crate) fn snapshot(&self) -> (Vec<Entry>, u32) {
        let members = self.members();
        (members.clone(), self.version.load(Ordering::Acquire))
    }

    #[inline(always)]
    pub(crate) fn version(&self) -> u32 {
        self.version.load(Ordering::Acquire)
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    fn members(&self) -> MutexGuard<'_, Vec<Entry>> {
        lock(&self.members)
    }

    /// Wakes the owner if it sleeps. After publishing a completion of this process's own.
    #[inline(always)]
    pub(crate) fn notify(&self, solicited: bool) {
        barrier::light(self.asymmetric);
        if self.arming().must_ring(solicited, &self.rung) {
            self.bell.ring();
        }
    }
}

impl Drop for CqShared {
    fn drop(&mut self) {
        // Peers look at the arming only inside a connection to a queue pair that completes here, and those are gone.
        self.home.give_public(self.offset, size_of::<CqPublic>());
    }
}

const MAX_CQE: u32 = 1 << 22;
