//! The driver's library and its functions, found once.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::sync::OnceLock;

use cudarc::driver::sys;
use libloading::Library;

use super::Driver;
use super::layouts::IpcHandle;
use crate::error::GpuError;

/// Environment variable with the path of another `libcuda.so`.
const PATH: &str = "QPAIR_LIBCUDA";
/// The oldest version that has all the functions: 11.8.
const OLDEST: i32 = 11_080;

/// An object of the driver.
type Object = *mut c_void;

/// A function of it, whatever its type.
type Function = unsafe extern "C" fn();

/// The driver's library, which stays loaded.
enum Source {
    /// What the environment names.
    Named(&'static Library),
    /// What the system has, as the binding finds it.
    System,
}

impl Source {
    /// The function of that name, which ends with 0.
    fn get(&self, name: &str) -> Option<Function> {
        // SAFETY: functions are looked up, not called; the library stays.
        unsafe {
            match self {
                Source::Named(library) => library.get::<Function>(name.as_bytes()).ok().map(|found| *found),
                Source::System => sys::culib().get::<Function>(name.as_bytes()).ok().map(|found| *found),
            }
        }
    }
}

/// Defines the functions that are called, with the types that `cuda.h` gives them; enumerations are numbers.
macro_rules! functions {
    ($($name:ident($($type:ty),* $(,)?);)+) => {
        /// The functions of the driver.
        #[allow(non_snake_case, reason = "the names are the driver's")]
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($type),*) -> c_int,)+
        }

        impl Functions {
            /// All of them, or the name of one that the library does not have.
            ///
            /// # Safety
            /// The library is the driver, and stays loaded.
            unsafe fn find(library: &Source) -> Result<Self, &'static str> {
                Ok(Functions {
                    $(
                        $name: {
                            let found = library.get(concat!(stringify!($name), "\0")).ok_or(stringify!($name))?;
                            // SAFETY: the function of that name has that type.
                            unsafe { std::mem::transmute::<Function, unsafe extern "C" fn($($type),*) -> c_int>(found) }
                        },
                    )+
                })
            }
        }
    };
}

functions! {
    cuInit(c_uint);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut c_int, c_int);
    cuDeviceGetName(*mut c_char, c_int, c_int);
    cuDeviceGetUuid_v2(Object, c_int);
    cuDeviceGetPCIBusId(*mut c_char, c_int, c_int);
    cuDeviceTotalMem_v2(*mut usize, c_int);
    cuDeviceGetAttribute(*mut c_int, c_uint, c_int);
    cuDevicePrimaryCtxRetain(*mut Object, c_int);
    cuDeviceCanAccessPeer(*mut c_int, c_int, c_int);
    cuCtxEnablePeerAccess(Object, c_uint);
    cuCtxPushCurrent_v2(Object);
    cuCtxPopCurrent_v2(*mut Object);
    cuCtxSynchronize();
    cuThreadExchangeStreamCaptureMode(*mut c_uint);
    cuMemAlloc_v2(*mut u64, usize);
    cuMemFree_v2(u64);
    cuMemGetInfo_v2(*mut usize, *mut usize);
    cuMemHostRegister_v2(*mut c_void, usize, c_uint);
    cuMemHostUnregister(*mut c_void);
    cuMemcpyAsync(u64, u64, usize, Object);
    cuMemcpyPeerAsync(u64, Object, u64, Object, usize, Object);
    cuMemsetD8Async(u64, u8, usize, Object);
    cuCtxGetStreamPriorityRange(*mut c_int, *mut c_int);
    cuStreamCreateWithPriority(*mut Object, c_uint, c_int);
    cuStreamSynchronize(Object);
    cuStreamWaitValue32_v2(Object, u64, c_uint, c_uint);
    cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
    cuMemHostGetDevicePointer_v2(*mut u64, *mut c_void, c_uint);
    cuEventCreate(*mut Object, c_uint);
    cuEventRecord(Object, Object);
    cuEventQuery(Object);
    cuEventSynchronize(Object);
    cuEventDestroy_v2(Object);
    cuModuleLoadData(*mut Object, *const c_void);
    cuModuleGetFunction(*mut Object, Object, *const c_char);
    cuLaunchKernel(
        Object, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Object, *mut *mut c_void, *mut *mut c_void,
    );
    cuPointerGetAttribute(*mut c_void, c_uint, u64);
    cuPointerSetAttribute(*const c_void, c_uint, u64);
    cuMemGetHandleForAddressRange(*mut c_void, u64, usize, c_int, c_ulonglong);
    cuFlushGPUDirectRDMAWrites(c_int, c_int);
    cuMemCreate(*mut u64, usize, *const c_void, c_ulonglong);
    cuMemRelease(u64);
    cuMemAddressReserve(*mut u64, usize, usize, u64, c_ulonglong);
    cuMemAddressFree(u64, usize);
    cuMemMap(u64, usize, usize, u64, c_ulonglong);
    cuMemUnmap(u64, usize);
    cuMemSetAccess(u64, usize, *const c_void, usize);
    cuMemExportToShareableHandle(*mut c_void, u64, c_int, c_ulonglong);
    cuMemImportFromShareableHandle(*mut u64, *mut c_void, c_int);
    cuMemGetAllocationGranularity(*mut usize, *const c_void, c_int);
    cuMemGetAddressRange_v2(*mut u64, *mut usize, u64);
    cuIpcGetMemHandle(*mut IpcHandle, u64);
    cuIpcOpenMemHandle_v2(*mut u64, IpcHandle, c_uint);
    cuIpcCloseMemHandle(u64);
    cuGetErrorName(c_int, *mut *const c_char);
}

static FUNCTIONS: OnceLock<Result<Functions, GpuError>> = OnceLock::new();

/// The functions, for whoever has a [`Driver`].
#[inline]
pub(super) fn functions() -> &'static Functions {
    match FUNCTIONS.get() {
        Some(Ok(functions)) => functions,
        _ => unreachable!("there is a driver once its functions were found"),
    }
}

pub(super) fn load() -> Result<Driver, GpuError> {
    let found = FUNCTIONS.get_or_init(try_load).as_ref();
    found.map(|_| Driver { _loaded: () }).map_err(Clone::clone)
}

fn try_load() -> Result<Functions, GpuError> {
    let library = library()?;
    // SAFETY: it is the driver.
    let functions = unsafe { Functions::find(&library) };
    let mut version = 0;
    if let Some(get) = library.get("cuDriverGetVersion\0") {
        // SAFETY: the function has that type in every version, and may be called before all others; `version` is a place for
        // the number.
        unsafe { std::mem::transmute::<Function, unsafe extern "C" fn(*mut c_int) -> c_int>(get)(&mut version) };
    }
    let functions = match functions {
        Ok(functions) if version >= OLDEST => functions,
        Ok(_) => return Err(GpuError::OldDriver { version, missing: None }),
        Err(name) => return Err(GpuError::OldDriver { version, missing: Some(name) }),
    };
    // SAFETY: the first call.
    match unsafe { (functions.cuInit)(0) } {
        0 => Ok(functions),
        code => {
            let name = name_of(&functions, code).unwrap_or_else(|| format!("error {code}"));
            Err(GpuError::Driver { call: "cuInit", code, name })
        }
    }
}

/// The library: what the environment names, or what the system has.
fn library() -> Result<Source, GpuError> {
    if let Some(path) = std::env::var_os(PATH).filter(|path| !path.is_empty()) {
        // SAFETY: whoever starts the program names the driver; its initialisers are its own affair.
        let library = unsafe { Library::new(&path) };
        return match library {
            Ok(library) => Ok(Source::Named(Box::leak(Box::new(library)))),
            Err(error) => Err(GpuError::NoDriver { why: format!("{PATH}: {error}") }),
        };
    }
    // SAFETY: loading the driver runs its initialisers, which is what was asked for.
    if !unsafe { sys::is_culib_present() } {
        return Err(GpuError::NoDriver { why: "there is no libcuda.so".into() });
    }
    Ok(Source::System)
}

/// The name of an error, as in `cuda.h`.
pub(super) fn error_name(code: i32) -> Option<String> {
    name_of(functions(), code)
}

fn name_of(functions: &Functions, code: i32) -> Option<String> {
    let mut name = std::ptr::null();
    // SAFETY: `name` is a place for a pointer to a text that is never freed; the driver takes any number.
    if unsafe { (functions.cuGetErrorName)(code, &mut name) } != 0 || name.is_null() {
        return None;
    }
    // SAFETY: the driver gave a text that ends with 0.
    Some(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
}
