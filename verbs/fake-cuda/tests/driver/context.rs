//! The library, its devices and contexts.

use std::ffi::{CStr, c_char};

use qpair_fake_cuda::code;
use qpair_fake_cuda::control::{self, Device};

use crate::ground::*;

#[test]
fn it_is_the_libcuda_of_its_process() {
    let loaded = control::load().expect("it is built");
    // SAFETY: a library that is loaded, and whose initializers have run.
    let named = unsafe { libloading::Library::new("libcuda.so") }.expect("found by its name");
    // SAFETY: only the addresses are looked at.
    let address = |library: &libloading::Library| unsafe {
        *library.get::<*const ()>(b"cuMemAlloc_v2").expect("it is exported").into_raw().as_raw_ptr().cast::<u8>()
    };
    assert_eq!(address(loaded), address(&named));
}

#[test]
fn devices_say_what_they_are() {
    let ground = Ground::new();
    let device = ground.ordinal();
    let attribute = |number| get(|to| cuDeviceGetAttribute(to, number, device));
    assert_eq!((attribute(75), attribute(76), attribute(102), attribute(124)), (9, 0, 1, 1));
    ground.device.set_attribute(124, 0).expect("a device");
    assert_eq!((attribute(124), attribute(99), attribute(144)), (0, 1, 0));
    assert_eq!(cuDeviceGetAttribute(&mut 0, 4711, device), code::INVALID_VALUE);
    assert_eq!(cuDeviceGet(&mut 0, 4711), code::INVALID_DEVICE);
    assert_eq!(cuDeviceGet(&mut 0, -1), code::INVALID_DEVICE);

    let mut text = [0 as c_char; 32];
    ok(cuDeviceGetName(text.as_mut_ptr(), 32, device));
    // SAFETY: the function ends it with a zero.
    assert!(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().starts_with("Fake CUDA device"));
    ok(cuDeviceGetPCIBusId(text.as_mut_ptr(), 8, device));
    // SAFETY: as above.
    assert_eq!(unsafe { CStr::from_ptr(text.as_ptr()) }.to_bytes().len(), 7);
    assert_eq!(get(cuDriverGetVersion), 12040);
    ground.end();
}

#[test]
fn contexts_are_counted_and_current_by_thread() {
    let ground = Ground::new();
    let (device, context) = (ground.ordinal(), ground.context);
    assert_eq!(get(|to| cuDevicePrimaryCtxRetain(to, device)), context);
    assert_eq!(ground.device.live(), "primary context retained 2 times");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(get(cuCtxGetCurrent), 0);
            assert_eq!(cuMemAlloc_v2(&mut 0, 1), code::INVALID_CONTEXT);
            assert_eq!(cuCtxPopCurrent_v2(&mut 0), code::INVALID_CONTEXT);
            ok(cuCtxPushCurrent_v2(context));
            ok(cuMemFree_v2(alloc(1)));
            assert_eq!(get(cuCtxPopCurrent_v2), context);
            assert_eq!(cuMemAlloc_v2(&mut 0, 1), code::INVALID_CONTEXT);
        });
    });
    ok(cuDevicePrimaryCtxRelease_v2(device));
    ok(cuDevicePrimaryCtxRelease_v2(device));
    assert_eq!(cuMemAlloc_v2(&mut 0, 1), code::CONTEXT_IS_DESTROYED);
    assert_eq!(cuCtxPushCurrent_v2(context), code::INVALID_CONTEXT);
    assert_eq!(cuDevicePrimaryCtxRelease_v2(device), code::INVALID_CONTEXT);
    assert!(ground.device.violations().contains("too often"));
}

#[test]
fn nothing_works_before_it_is_initialised() {
    if given().is_none() {
        return went_well(elsewhere("context::nothing_works_before_it_is_initialised", "yes"));
    }
    assert_eq!(cuDeviceGet(&mut 0, 0), code::NOT_INITIALIZED);
    assert_eq!(get(cuDriverGetVersion), 12040);
    control::fail_here("cuInit", 1, code::NO_DEVICE).expect("it is loaded");
    assert_eq!(cuInit(0), code::NO_DEVICE);
    ok(cuInit(0));
    assert_eq!(get(|to| cuDeviceGet(to, 63)), 63);
    let ground = Ground::on(Device::of(5));
    // A fork has no use of what its parent initialised.
    // SAFETY: the child calls the library and ends.
    match unsafe { libc::fork() } {
        0 => {
            let codes = [cuMemAlloc_v2(&mut 0, 1), cuInit(0)];
            std::process::exit(if codes == [code::NOT_INITIALIZED; 2] { 0 } else { 1 });
        }
        child => {
            let mut status = -1;
            // SAFETY: the child forked above.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0);
        }
    }
    ground.end();
}

#[test]
fn errors_have_names() {
    let name = |code| {
        let mut text = std::ptr::null();
        ok(cuGetErrorName(code, &mut text));
        // SAFETY: a constant of the library, which stays loaded.
        unsafe { CStr::from_ptr(text) }.to_str().expect("ASCII")
    };
    assert_eq!(name(code::SUCCESS), "CUDA_SUCCESS");
    assert_eq!(name(code::ILLEGAL_ADDRESS), "CUDA_ERROR_ILLEGAL_ADDRESS");
    assert_eq!(cuGetErrorName(4711, &mut std::ptr::null()), code::INVALID_VALUE);
}
