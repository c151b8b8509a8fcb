use std::ffi::{CStr, OsStr, OsString, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::{LoadError, MissingSymbol};

/// A library, open until the process ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Library {
    handle: &'static libloading::Library,
}

/// How a library is found, and what to install where it is not.
pub(crate) struct Origin {
    pub(crate) file: &'static str,
    pub(crate) package: &'static str,
    pub(crate) variable: &'static str,
}

impl Library {
    /// Opens a library and leaves it open: objects and threads of it may outlive every handle, and it registers
    /// handlers for fork and exit that must stay mapped.
    pub(crate) fn open(path: &OsStr, origin: &Origin) -> Result<Library, LoadError> {
        // SAFETY: initializers of the library run now. They are those of rdma-core, or of a file that the caller or the
        // environment names as such, which the process trusts as it trusts LD_LIBRARY_PATH.
        match unsafe { libloading::Library::new(path) } {
            Ok(library) => Ok(Library { handle: Box::leak(Box::new(library)) }),
            Err(source) => Err(LoadError::NotFound {
                name: path.to_string_lossy().into_owned(),
                package: origin.package,
                variable: origin.variable,
                source,
            }),
        }
    }

    /// Looks a function up as a pointer of type `F`.
    ///
    /// # Safety
    /// `F` is the type of a pointer to the function of that name.
    pub(crate) unsafe fn function<F: Copy>(&self, name: &'static str) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*const c_void>(), "a function pointer") };
        // SAFETY: the caller says that the symbol has this type; the library is never closed.
        unsafe { self.handle.get::<F>(name.as_bytes()) }.ok().map(|symbol| *symbol)
    }
}

/// The file that a function was loaded from, links resolved.
pub(crate) fn file_of(function: *const c_void) -> Option<PathBuf> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address may be asked about; `info` is of the right type, and an all-zero value of it is valid.
    let info = unsafe { (libc::dladdr(function, info.as_mut_ptr()) != 0).then(|| info.assume_init()) }?;
    if info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader keeps the string as long as the library is loaded, which is for ever.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    let path = Path::new(OsStr::from_bytes(name.to_bytes()));
    Some(path.canonicalize().unwrap_or_else(|_| path.to_path_buf()))
}

/// The package version that rdma-core puts last in the names of its libraries: 44 of `libibverbs.so.1.14.44.0`.
pub(crate) fn rdma_core_version(file: &Path) -> Option<u32> {
    let (_, versions) = file.file_name()?.to_str()?.split_once(".so.")?;
    let mut parts = versions.split('.');
    let package = parts.nth(2)?;
    parts.next()?;
    package.parse().ok()
}

/// The error for a function that a library does not have.
pub(crate) fn missing(name: &'static str, since: u32, library: &Path) -> MissingSymbol {
    MissingSymbol { name, library: library.to_path_buf(), since }
}

/// What the variable names, or else the usual file.
pub(crate) fn usual(origin: &Origin) -> OsString {
    std::env::var_os(origin.variable).filter(|path| !path.is_empty()).unwrap_or_else(|| origin.file.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_rdma_core_stands_in_the_file_name() {
        let version = |name| rdma_core_version(Path::new(name));
        assert_eq!(version("/usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.44.0"), Some(44));
        assert_eq!(version("/usr/lib/librdmacm.so.1.3.28.0"), Some(28));
        assert_eq!(version("/opt/libibverbs.so.1.5.17.4"), Some(17));
        assert_eq!(version("/usr/lib/libibverbs.so.1.0.0"), None, "libibverbs before rdma-core");
        assert_eq!(version("/usr/lib/libibverbs.so.1.14.2404mlnx51.0"), None);
        assert_eq!(version("/usr/lib/libibverbs.so.1"), None);
        assert_eq!(version("/target/debug/deps/libfake.so"), None);
        assert_eq!(version("/"), None);
    }
}
