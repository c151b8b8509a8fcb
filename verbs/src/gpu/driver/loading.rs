//! Finding the driver's library, and what it has to have.

use std::ffi::CStr;
use std::sync::OnceLock;

use cudarc::driver::sys;
use libloading::Library;

use super::Driver;
use crate::error::GpuError;

/// Environment variable with the path of another `libcuda.so`.
const PATH: &str = "QPAIR_LIBCUDA";
/// The oldest version that has all the functions: 11.8.
const OLDEST: i32 = 11_080;

/// What is called. The binding looks a function up when it is first called, and panics if it is not there.
const NEEDED: &[&str] = &[
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceGetUuid_v2",
    "cuDeviceGetPCIBusId",
    "cuDeviceTotalMem_v2",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuCtxEnablePeerAccess",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuMemcpyAsync",
    "cuMemsetD8Async",
    "cuStreamCreate",
    "cuStreamSynchronize",
    "cuModuleLoadData",
    "cuModuleGetFunction",
    "cuLaunchKernel",
    "cuPointerGetAttribute",
    "cuMemGetHandleForAddressRange",
    "cuFlushGPUDirectRDMAWrites",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemAddressReserve",
    "cuMemAddressFree",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
    "cuMemExportToShareableHandle",
    "cuMemImportFromShareableHandle",
    "cuMemGetAllocationGranularity",
    "cuGetErrorName",
];

static LOADED: OnceLock<Result<(), GpuError>> = OnceLock::new();

pub(super) fn load() -> Result<Driver, GpuError> {
    LOADED.get_or_init(try_load).clone().map(|()| Driver { _loaded: () })
}

fn try_load() -> Result<(), GpuError> {
    if let Some(path) = std::env::var_os(PATH) {
        // SAFETY: whoever starts the program names the driver; its initialisers are its own affair.
        match unsafe { Library::new(&path) } {
            // It stays loaded: the binding finds it by its name within the process.
            Ok(library) => std::mem::forget(library),
            Err(error) => return Err(GpuError::NoDriver { why: format!("{PATH}: {error}") }),
        }
    }
    // SAFETY: loading the driver runs its initialisers, which is what was asked for.
    if !unsafe { sys::is_culib_present() } {
        return Err(GpuError::NoDriver { why: "there is no libcuda.so".into() });
    }
    // SAFETY: it was just found.
    let library = unsafe { sys::culib() };
    let is_there = |name: &&&str| {
        // SAFETY: the function is looked up, not called.
        unsafe { library.get::<unsafe extern "C" fn()>(name.as_bytes()) }.is_ok()
    };
    let missing = NEEDED.iter().find(|name| !is_there(name)).copied();
    let mut version = 0;
    if missing != Some("cuDriverGetVersion") {
        // SAFETY: the function is there, and may be called before all others.
        super::check("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&mut version) } as i32)?;
    }
    if missing.is_some() || version < OLDEST {
        return Err(GpuError::OldDriver { version, missing });
    }
    // SAFETY: the first call.
    super::check("cuInit", unsafe { sys::cuInit(0) } as i32)
}

/// The name of an error, as in `cuda.h`.
pub(super) fn error_name(code: i32) -> Option<String> {
    let mut name = std::ptr::null();
    // SAFETY: the function was found when the driver was loaded; it takes any number, though the binding's type does not.
    let look_up = unsafe {
        sys::culib().get::<unsafe extern "C" fn(i32, *mut *const std::ffi::c_char) -> i32>(b"cuGetErrorName")
    };
    // SAFETY: `name` is a place for a pointer to a text that is never freed.
    if unsafe { look_up.ok()?(code, &mut name) } != 0 || name.is_null() {
        return None;
    }
    // SAFETY: the driver gave a text that ends with 0.
    Some(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
}
