//! Memory windows of type 2: bound and withdrawn by work requests.

use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use qpair_verbs_sys as sys;

use super::handle::{made, outcome, refused};
use super::listeners::WindowListener;
use super::pd::Pd;
use crate::error::{CreateError, PostError};
use crate::memory::RemoteSlice;
use crate::sync::lock;
use crate::types::{Access, Rkey};

/// A memory window.
#[derive(Debug)]
pub(crate) struct Mw {
    pd: Arc<Pd>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// `None` after its region or queue pair went, which it must not outlive while it is bound; the next bind makes another.
    mw: Option<NonNull<sys::ibv_mw>>,
    bound: Option<(RemoteSlice, Access)>,
    /// What it was bound to before, until it is known that the last bind was carried out.
    before: Option<(RemoteSlice, Access)>,
}

impl State {
    fn is_bound_as(&self, rkey: Rkey) -> bool {
        [self.bound, self.before].iter().flatten().any(|(remote, _)| remote.rkey == rkey)
    }
}

// SAFETY: the library's functions on a window may be called from any thread; its fields are under the lock.
unsafe impl Send for Mw {}
// SAFETY: as above.
unsafe impl Sync for Mw {}

impl Mw {
    pub(crate) fn alloc(pd: &Arc<Pd>) -> Result<Arc<Self>, CreateError> {
        let mw = alloc(pd).map_err(|source| CreateError::System { what: "allocate a memory window", source })?;
        Ok(Arc::new(Mw { pd: pd.clone(), state: Mutex::new(State { mw: Some(mw), bound: None, before: None }) }))
    }

    /// Number of its domain.
    pub(super) fn domain(&self) -> u64 {
        self.pd.id()
    }

    pub(crate) fn remote(&self) -> Option<RemoteSlice> {
        lock(&self.state).bound.map(|(remote, _)| remote)
    }

    pub(crate) fn access(&self) -> Option<Access> {
        lock(&self.state).bound.map(|(_, access)| access)
    }

    /// Posts a bind by `post`, which gets the window and its next key, and notes what it is bound to then.
    ///
    /// # Errors
    /// Those of `post`; the window stays as it was.
    pub(super) fn bind(
        self: &Arc<Self>,
        (addr, len): (u64, u64),
        access: Access,
        post: impl FnOnce(*mut sys::ibv_mw, Rkey) -> Result<(), PostError>,
    ) -> Result<Rkey, PostError> {
        let mut state = lock(&self.state);
        let mw = match state.mw {
            Some(mw) => mw,
            None => *state.mw.insert(alloc(&self.pd).map_err(refused)?),
        };
        // SAFETY: the window is alive; its key is read and written under the lock alone.
        let rkey = Rkey(sys::ibv_inc_rkey(unsafe { (*mw.as_ptr()).rkey }));
        post(mw.as_ptr(), rkey)?;
        // SAFETY: as above. The next key is counted from this one.
        unsafe { (*mw.as_ptr()).rkey = rkey.0 };
        state.before = state.bound.replace((RemoteSlice { addr, len, rkey }, access));
        drop(state);
        self.pd.device().hub().enter_window(rkey, Arc::downgrade(self) as _);
        Ok(rkey)
    }

    pub(super) fn is_bound_as(&self, rkey: Rkey) -> bool {
        lock(&self.state).is_bound_as(rkey)
    }

    /// The bind that gave the key was carried out, or failed and left everything as it was.
    pub(super) fn bind_ended(&self, rkey: Rkey, success: bool) {
        let mut state = lock(&self.state);
        if state.bound.is_some_and(|(remote, _)| remote.rkey == rkey) {
            let before = state.before.take();
            if !success {
                state.bound = before;
            }
        }
    }

    /// Ends the window, since its region or its queue pair goes; unless it is bound elsewhere meanwhile.
    pub(super) fn end(&self, rkey: Rkey) {
        let mut state = lock(&self.state);
        if state.is_bound_as(rkey) {
            (state.bound, state.before) = (None, None);
            dealloc(state.mw.take(), &self.pd);
        }
    }
}

impl WindowListener for Mw {
    fn unbound(&self, rkey: Rkey) {
        let mut state = lock(&self.state);
        state.before = state.before.filter(|(remote, _)| remote.rkey != rkey);
        state.bound = state.bound.filter(|(remote, _)| remote.rkey != rkey);
    }
}

fn alloc(pd: &Pd) -> io::Result<NonNull<sys::ibv_mw>> {
    // SAFETY: the domain is alive.
    let mw = unsafe { sys::ibv_alloc_mw(pd.handle().pd(), sys::IBV_MW_TYPE_2) };
    mw.map_err(io::Error::other).and_then(made)
}

fn dealloc(mw: Option<NonNull<sys::ibv_mw>>, pd: &Arc<Pd>) {
    let Some(mw) = mw else { return };
    // SAFETY: allocated by the library, and given back once: it was just taken out of its owner.
    let gone = unsafe { sys::ibv_dealloc_mw(mw.as_ptr()) }.map_err(io::Error::other).and_then(outcome);
    if let Err(error) = gone {
        tracing::error!(%error, "a memory window is not given back");
        std::mem::forget(pd.clone());
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        dealloc(lock(&self.state).mw.take(), &self.pd);
    }
}
