//! An open context of the library: what every other object stands on.

use std::ffi::{CStr, c_int};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use qpair_verbs_sys::{HotOps, Ibverbs, ibv_context, ibv_device};

use crate::error::{OpenError, PostError};

/// An open context. Objects made from it keep it open.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) library: &'static Ibverbs,
    pub(super) context: NonNull<ibv_context>,
    pub(super) ops: HotOps,
    pub(super) name: String,
    /// It has failed for good, and does nothing any more.
    has_failed: AtomicBool,
    /// An attribute of the device that the kernel has for as long as it has the device; `None` where it can not be read.
    attribute: Option<File>,
    /// When it first said EIO of something that was given back: before it had failed, and after.
    doubted: [OnceLock<Instant>; 2],
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
                // SAFETY: the device is of the list, which is not freed yet.
                let attribute = unsafe { attribute(device) };
                Ok(Handle {
                    library,
                    context,
                    ops,
                    name: name.to_owned(),
                    has_failed: AtomicBool::new(false),
                    attribute,
                    doubted: [const { OnceLock::new() }; 2],
                })
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

    /// It has failed for good.
    pub(super) fn note_failure(&self) {
        self.has_failed.store(true, Ordering::Release);
    }

    /// True once it does nothing any more.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// What the library says of an object that is given back: 0 or an errno. Of a device that the kernel takes away it says EIO of
    /// each, before the kernel has destroyed it or after: once the device is gone, it has. Waits for that a moment, once.
    pub(super) fn given_back(&self, status: c_int) -> io::Result<()> {
        match outcome(status) {
            Err(error) if error.raw_os_error() == Some(libc::EIO) && self.await_removal() => Ok(()),
            outcome => outcome,
        }
    }

    fn await_removal(&self) -> bool {
        loop {
            if self.is_removed() {
                return true;
            }
            let failed = usize::from(self.has_failed());
            let since = self.doubted[failed].get_or_init(Instant::now);
            if self.attribute.is_none() || since.elapsed() >= REMOVAL[failed] {
                return false;
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// True once the kernel has taken the device away, and with it all that was made from it: programs' objects are destroyed
    /// before the device and its attributes go (__ib_unregister_device in its drivers/infiniband/core/device.c, and
    /// ib_uverbs_remove_one in uverbs_main.c). An attribute that was opened before gives ENODEV then, also where another device has
    /// come by that name.
    fn is_removed(&self) -> bool {
        let Some(attribute) = &self.attribute else { return false };
        match attribute.read_at(&mut [0], 0) {
            // A file of another kind than the kernel's attributes has its contents for as long as it is open.
            Ok(_) => attribute.metadata().is_ok_and(|of| of.nlink() == 0),
            Err(error) => error.raw_os_error() == Some(libc::ENODEV),
        }
    }
}

/// An attribute of a device, opened.
///
/// # Safety
/// The device is the library's.
unsafe fn attribute(device: *mut ibv_device) -> Option<File> {
    // SAFETY: by contract; the library ends the text with a zero byte.
    let folder = unsafe { CStr::from_ptr((*device).ibdev_path.as_ptr()) };
    File::open(Path::new(folder.to_str().ok()?).join("node_guid")).ok()
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

/// What a function of the library says that returns 0 or an errno; some return -1 and set errno, some an errno negated.
pub(super) fn outcome(status: c_int) -> io::Result<()> {
    match status {
        0 => Ok(()),
        -1 => match io::Error::last_os_error() {
            // It failed all the same.
            silent if silent.raw_os_error() == Some(0) => Err(io::Error::from_raw_os_error(libc::EIO)),
            error => Err(error),
        },
        errno => Err(io::Error::from_raw_os_error(errno.saturating_abs())),
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

/// How long a device may take to go once it says EIO of what is given back: one that has not failed, and one that has.
const REMOVAL: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(1)];
const PAUSE: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_an_errno_in_each_way_to_say_it() {
        let said = |status, errno| {
            // SAFETY: sets this thread's error number.
            unsafe { *libc::__errno_location() = errno };
            outcome(status).err().map(|error| error.raw_os_error().unwrap_or_default())
        };
        assert_eq!(said(0, libc::ENOMEM), None);
        for status in [libc::EINVAL, -libc::EINVAL] {
            assert_eq!(said(status, libc::ENOMEM), Some(libc::EINVAL), "{status}");
        }
        assert_eq!(said(-1, libc::ENOMEM), Some(libc::ENOMEM));
        assert_eq!(said(-1, 0), Some(libc::EIO));
        assert_eq!(said(c_int::MIN, 0), Some(c_int::MAX));
    }
}
