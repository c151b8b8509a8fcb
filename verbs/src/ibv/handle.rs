//! An open context of the library: what every other object stands on.

use std::ffi::{CStr, c_int};
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

use qpair_verbs_sys::{HotOps, Ibverbs, ibv_context, ibv_device};

use crate::error::{OpenError, PostError};

/// An open context. Objects made from it keep it open.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) library: &'static Ibverbs,
    pub(super) context: NonNull<ibv_context>,
    pub(super) ops: HotOps,
    pub(super) name: String,
    /// A [`Fate`].
    fate: AtomicU8,
}

/// What has become of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Fate {
    Works,
    /// It has failed for good.
    Failed,
    /// The kernel has taken it away, and with it all that was made from it.
    Removed,
}

// SAFETY: the library's functions on a context may be called from any thread; what its structures share is locked there.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    /// Opens the device of that name.
    pub(super) fn open(library: &'static Ibverbs, name: &str) -> Result<Self, OpenError> {
        let not_found = |others: Vec<String>, note| {
            let known: Vec<_> = std::iter::once(crate::soft::DEVICE_NAME.to_owned()).chain(others).collect();
            OpenError::NotFound { name: name.to_owned(), known: known.join(", "), note }
        };
        let list = DeviceList::new(library).map_err(|error| {
            let advice = "is the module ib_uverbs loaded, and /dev/infiniband there?";
            not_found(Vec::new(), format!("; libibverbs finds none ({error}): {advice}"))
        })?;
        let Some(device) = list.iter().find(|&device| list.name(device) == name) else {
            return Err(not_found(list.iter().map(|device| list.name(device)).collect(), String::new()));
        };
        // SAFETY: the device is of the list, which is not freed yet.
        let context = NonNull::new(unsafe { (library.ibv_open_device)(device) });
        let refused = || OpenError::Refused { name: name.to_owned(), source: io::Error::last_os_error() };
        let context = context.ok_or_else(refused)?;
        // SAFETY: the context was just opened.
        match unsafe { HotOps::of(context.as_ptr()) } {
            Ok(ops) => {
                Ok(Handle { library, context, ops, name: name.to_owned(), fate: AtomicU8::new(Fate::Works as u8) })
            }
            Err(missing) => {
                // SAFETY: opened above, and nothing was made from it.
                unsafe { (library.ibv_close_device)(context.as_ptr()) };
                Err(OpenError::Incomplete { name: name.to_owned(), what: missing.what })
            }
        }
    }

    pub(super) fn ctx(&self) -> *mut ibv_context {
        self.context.as_ptr()
    }

    pub(super) fn note(&self, fate: Fate) {
        self.fate.fetch_max(fate as u8, Ordering::AcqRel);
    }

    /// True once it does nothing any more.
    pub(super) fn has_failed(&self) -> bool {
        self.fate.load(Ordering::Acquire) >= Fate::Failed as u8
    }

    /// What the library says of an object that is given back: 0 or an errno. A device that was taken away says EIO of each, which
    /// the kernel has destroyed by then: it stopped the device from reaching any memory before it said that it is gone
    /// (uverbs_destroy_ufile_hw in its drivers/infiniband/core/rdma_core.c).
    pub(super) fn given_back(&self, status: c_int) -> io::Result<()> {
        match outcome(status) {
            Err(error) if error.raw_os_error() == Some(libc::EIO) && self.is_removed() => Ok(()),
            outcome => outcome,
        }
    }

    fn is_removed(&self) -> bool {
        self.fate.load(Ordering::Acquire) == Fate::Removed as u8
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: open until now; every object made from the context held this handle and is gone.
        let status = unsafe { (self.library.ibv_close_device)(self.ctx()) };
        if status != 0 {
            tracing::error!(device = self.name, error = %io::Error::last_os_error(), "the device does not close");
        }
    }
}

/// The devices that the library finds.
pub(super) struct DeviceList {
    library: &'static Ibverbs,
    list: NonNull<*mut ibv_device>,
    len: usize,
}

impl DeviceList {
    pub(super) fn new(library: &'static Ibverbs) -> io::Result<Self> {
        let mut len: c_int = 0;
        // SAFETY: `len` is written to.
        let list = unsafe { (library.ibv_get_device_list)(&raw mut len) };
        let list = NonNull::new(list).ok_or_else(io::Error::last_os_error)?;
        Ok(DeviceList { library, list, len: usize::try_from(len).unwrap_or(0) })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = *mut ibv_device> {
        // SAFETY: the library says that so many pointers follow, and keeps them until the list is freed.
        unsafe { std::slice::from_raw_parts(self.list.as_ptr(), self.len) }.iter().copied()
    }

    /// The name of a device of this list; empty where the library has none for it.
    pub(super) fn name(&self, device: *mut ibv_device) -> String {
        // SAFETY: the device is of this list.
        let name = unsafe { (self.library.ibv_get_device_name)(device) };
        if name.is_null() {
            return String::new();
        }
        // SAFETY: the library keeps the name, which ends with a zero byte, as long as the list.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: made by this library, and freed once.
        unsafe { (self.library.ibv_free_device_list)(self.list.as_ptr()) };
    }
}

/// What a function of the library says that returns 0 or an errno; some return -1 and set errno.
pub(super) fn outcome(status: c_int) -> io::Result<()> {
    match status {
        0 => Ok(()),
        errno if errno > 0 => Err(io::Error::from_raw_os_error(errno)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// What a function of the library made, or errno.
pub(super) fn made<T>(object: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(object).ok_or_else(io::Error::last_os_error)
}

/// A request that the device did not take.
pub(super) fn refused(error: io::Error) -> PostError {
    PostError::Refused { errno: error.raw_os_error().unwrap_or_default() }
}
