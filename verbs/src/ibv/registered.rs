//! Memory as all devices of a domain know it: a registration with each.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use qpair_verbs_sys as sys;

use super::mr::Mr;
use crate::error::MemoryError;
use crate::memory::FurtherKey;
use crate::types::Rkey;

/// The registrations of one piece of memory: with the domain's own device, and with those of the domains that it spans.
#[derive(Debug)]
pub(crate) struct Registered {
    first: Mr,
    /// With the numbers of their domains.
    further: Box<[(u64, Mr)]>,
}

impl Registered {
    pub(super) fn new(first: Mr, further: Vec<(u64, Mr)>) -> Self {
        Registered { first, further: further.into() }
    }

    /// The key by which the domain's own device knows the memory in work requests.
    pub(crate) fn lkey(&self) -> u32 {
        self.first.lkey()
    }

    /// The same of the other devices, if there are any.
    pub(crate) fn further_lkeys(&self) -> Option<Arc<[FurtherKey]>> {
        let keys = self.further.iter().map(|(domain, mr)| FurtherKey { domain: *domain, lkey: mr.lkey() });
        (!self.further.is_empty()).then(|| keys.collect())
    }

    /// The key that peers present to the domain's own device.
    pub(super) fn rkey(&self) -> Rkey {
        self.first.rkey()
    }

    /// The same to the device of a further domain.
    pub(super) fn rkey_in(&self, domain: u64) -> Option<Rkey> {
        self.further.iter().find(|(number, _)| *number == domain).map(|(_, mr)| mr.rkey())
    }

    /// The registration with the domain's own device; `None` once it has ended.
    pub(super) fn raw(&self) -> Option<NonNull<sys::ibv_mr>> {
        self.first.raw()
    }

    /// True if the device faults pages in as it needs them.
    pub(crate) fn is_on_demand(&self) -> bool {
        self.first.is_on_demand()
    }

    /// Ends all of them.
    ///
    /// # Errors
    /// The first reason of a device that keeps the memory; the others have let go of it.
    pub(crate) fn close(mut self) -> io::Result<()> {
        self.end()
    }

    /// The same. Those that have not ended can be ended again.
    pub(super) fn end(&mut self) -> io::Result<()> {
        let first = self.first.end();
        self.further.iter_mut().map(|(_, mr)| mr.end()).fold(first, |all, one| all.and(one))
    }
}

/// Memory that was not registered with all of its devices.
#[derive(Debug)]
pub(crate) struct NotRegistered {
    pub(crate) error: MemoryError,
    /// The domains whose devices had it registered and do not let go of it, and why: where there are any it is to be
    /// leaked.
    pub(crate) kept: Vec<(u64, io::Error)>,
}

impl NotRegistered {
    /// Why, and what owns the memory; leaked where a device keeps that.
    pub(crate) fn leaving<T>(self, owner: T) -> (MemoryError, Option<T>) {
        if self.kept.is_empty() {
            return (self.error, Some(owner));
        }
        // Before that is logged, which may panic.
        std::mem::forget(owner);
        for (domain, error) in self.kept {
            tracing::error!(%error, domain, "a device keeps memory registered that another refuses; it is leaked");
        }
        (self.error, None)
    }
}

impl From<MemoryError> for NotRegistered {
    fn from(error: MemoryError) -> Self {
        NotRegistered { error, kept: Vec::new() }
    }
}

/// What could not be registered with one device, for that reason, is given back by those that have it.
pub(super) fn take_back(registered: Vec<(u64, Mr)>, error: MemoryError) -> NotRegistered {
    // Nobody was told its keys, but a peer may guess them.
    let ended = registered.into_iter().map(|(domain, mr)| (domain, mr.close()));
    let kept = ended.filter_map(|(domain, ended)| Some((domain, ended.err()?))).collect();
    NotRegistered { error, kept }
}
