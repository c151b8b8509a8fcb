//! A registration of memory with a device.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use qpair_verbs_sys as sys;

use super::handle::made;
use super::memlock;
use super::pd_handle::PdHandle;
use crate::error::MemoryError;
use crate::types::Rkey;

/// A registration. [`close`](Mr::close) ends it; whoever owns the memory looks at what that says before freeing it.
#[derive(Debug)]
pub(crate) struct Mr {
    mr: Option<NonNull<sys::ibv_mr>>,
    lkey: u32,
    rkey: Rkey,
    /// Registered without being locked: the device faults pages in.
    on_demand: bool,
    pd: Arc<PdHandle>,
}

// SAFETY: the library's functions on a registration may be called from any thread.
unsafe impl Send for Mr {}
// SAFETY: as above.
unsafe impl Sync for Mr {}

impl Mr {
    /// Registers memory in a domain, with those flags of ibv_reg_mr(3).
    ///
    /// # Errors
    /// [`MemoryError`] if the device refuses or a limit forbids it.
    ///
    /// # Safety
    /// As [`Pd::register`](super::Pd::register).
    pub(super) unsafe fn register(
        pd: &Arc<PdHandle>,
        base: NonNull<u8>,
        len: usize,
        flags: libc::c_int,
    ) -> Result<Self, MemoryError> {
        let on_demand = flags & sys::IBV_ACCESS_ON_DEMAND.cast_signed() != 0;
        // SAFETY: the domain is alive; the memory is valid, by the caller.
        let mr = unsafe { (pd.device().library.ibv_reg_mr)(pd.pd(), base.as_ptr().cast(), len, flags) };
        match made(mr) {
            Ok(mr) => Ok(Mr::new(mr, on_demand, pd.clone())),
            Err(source) => Err(memlock::explain(base.as_ptr().addr(), len, source)),
        }
    }

    pub(super) fn new(mr: NonNull<sys::ibv_mr>, on_demand: bool, pd: Arc<PdHandle>) -> Self {
        // SAFETY: the library just made it.
        let (lkey, rkey) = unsafe { ((*mr.as_ptr()).lkey, (*mr.as_ptr()).rkey) };
        Mr { mr: Some(mr), lkey, rkey: Rkey(rkey), on_demand, pd }
    }

    pub(crate) fn lkey(&self) -> u32 {
        self.lkey
    }

    pub(crate) fn rkey(&self) -> Rkey {
        self.rkey
    }

    pub(crate) fn is_on_demand(&self) -> bool {
        self.on_demand
    }

    /// The library's object; `None` once it has ended.
    pub(super) fn raw(&self) -> Option<NonNull<sys::ibv_mr>> {
        self.mr
    }

    /// Ends the registration: no device and no peer reaches the memory by it any more.
    ///
    /// # Errors
    /// What the device says. It may reach the memory still then, for ever.
    pub(crate) fn close(mut self) -> io::Result<()> {
        self.end()
    }

    /// The same, to be tried again where it fails.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        let Some(mr) = self.mr else { return Ok(()) };
        // SAFETY: made by the library and not ended yet.
        let status = unsafe { (self.pd.device().library.ibv_dereg_mr)(mr.as_ptr()) };
        self.pd.device().given_back(status)?;
        self.mr = None;
        Ok(())
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // What could not be ended before is not tried again: who owns the memory has been told, and keeps it.
        if self.mr.is_some() {
            std::mem::forget(self.pd.clone());
        }
    }
}
