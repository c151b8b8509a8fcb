//! Memory windows of type 2: bound and withdrawn by work requests.

use std::collections::VecDeque;
use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use qpair_verbs_sys as sys;

use super::handle::{made, refused};
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
    bindings: Bindings,
}

/// What a window is bound to: first what holds as far as is known, then the binds that are under way, in their order. Each of those
/// takes the place of all before it once it is carried out, and leaves them as they were if it fails.
#[derive(Debug, Default)]
struct Bindings(VecDeque<(RemoteSlice, Access)>);

impl Bindings {
    /// The binding that holds once all binds under way are carried out.
    fn last(&self) -> Option<(RemoteSlice, Access)> {
        self.0.back().copied()
    }

    fn contains(&self, rkey: Rkey) -> bool {
        self.place(rkey).is_some()
    }

    /// A bind is under way.
    fn begin(&mut self, remote: RemoteSlice, access: Access) {
        self.0.push_back((remote, access));
    }

    /// A bind was carried out, or failed.
    fn end(&mut self, rkey: Rkey, success: bool) {
        match self.place(rkey) {
            Some(place) if success => drop(self.0.drain(..place)),
            Some(place) => drop(self.0.remove(place)),
            None => {}
        }
    }

    /// A key was withdrawn.
    fn remove(&mut self, rkey: Rkey) {
        self.0.retain(|(remote, _)| remote.rkey != rkey);
    }

    fn place(&self, rkey: Rkey) -> Option<usize> {
        self.0.iter().position(|(remote, _)| remote.rkey == rkey)
    }
}

// SAFETY: the library's functions on a window may be called from any thread; its fields are under the lock.
unsafe impl Send for Mw {}
// SAFETY: as above.
unsafe impl Sync for Mw {}

impl Mw {
    pub(crate) fn alloc(pd: &Arc<Pd>) -> Result<Arc<Self>, CreateError> {
        let mw = alloc(pd).map_err(|source| CreateError::System { what: "allocate a memory window", source })?;
        Ok(Arc::new(Mw { pd: pd.clone(), state: Mutex::new(State { mw: Some(mw), bindings: Bindings::default() }) }))
    }

    /// Number of its domain.
    pub(super) fn domain(&self) -> u64 {
        self.pd.id()
    }

    pub(crate) fn remote(&self) -> Option<RemoteSlice> {
        lock(&self.state).bindings.last().map(|(remote, _)| remote)
    }

    pub(crate) fn access(&self) -> Option<Access> {
        lock(&self.state).bindings.last().map(|(_, access)| access)
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
        state.bindings.begin(RemoteSlice { addr, len, rkey }, access);
        drop(state);
        self.pd.device().hub().enter_window(rkey, Arc::downgrade(self) as _);
        Ok(rkey)
    }

    pub(super) fn is_bound_as(&self, rkey: Rkey) -> bool {
        lock(&self.state).bindings.contains(rkey)
    }

    /// The bind that gave the key was carried out, or failed and left everything as it was.
    pub(super) fn bind_ended(&self, rkey: Rkey, success: bool) {
        lock(&self.state).bindings.end(rkey, success);
    }

    /// Ends the window, since its region or its queue pair goes; unless it is bound elsewhere meanwhile.
    pub(super) fn end(&self, rkey: Rkey) {
        let mut state = lock(&self.state);
        if !state.bindings.contains(rkey) {
            return;
        }
        state.bindings = Bindings::default();
        let mw = state.mw.take();
        // Giving it back may wait: not with the lock.
        drop(state);
        dealloc(mw, &self.pd);
    }
}

impl WindowListener for Mw {
    fn unbound(&self, rkey: Rkey) {
        lock(&self.state).bindings.remove(rkey);
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
    let gone = unsafe { sys::ibv_dealloc_mw(mw.as_ptr()) }.map_err(io::Error::other);
    let gone = gone.and_then(|status| pd.device().handle().given_back(status));
    if let Err(error) = gone {
        std::mem::forget(pd.clone());
        tracing::error!(%error, "a memory window is not given back");
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        dealloc(lock(&self.state).mw.take(), &self.pd);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Those that hold or are under way after binds with keys from 0 up to `count`.
    fn bound(count: u32) -> Bindings {
        let mut bindings = Bindings::default();
        for key in 0..count {
            bindings.begin(RemoteSlice { addr: 0, len: 1, rkey: Rkey(key) }, Access::REMOTE_READ);
        }
        bindings
    }

    fn keys(bindings: &Bindings) -> Vec<u32> {
        bindings.0.iter().map(|(remote, _)| remote.rkey.0).collect()
    }

    #[test]
    fn binds_that_fail_one_after_the_other_leave_what_held_before() {
        let mut bindings = bound(4);
        bindings.end(Rkey(0), true);
        (1..4).for_each(|key| bindings.end(Rkey(key), false));
        assert_eq!(keys(&bindings), [0]);
    }

    #[test]
    fn a_bind_that_is_carried_out_ends_those_before_it_alone() {
        let mut bindings = bound(4);
        bindings.end(Rkey(2), true);
        assert_eq!((keys(&bindings), bindings.last().unwrap().0.rkey), (vec![2, 3], Rkey(3)));
        // Also where it is heard of after the next has failed.
        bindings.end(Rkey(3), false);
        bindings.end(Rkey(1), true);
        assert_eq!(keys(&bindings), [2]);
        bindings.remove(Rkey(2));
        assert!(bindings.last().is_none() && !bindings.contains(Rkey(2)));
    }
}
