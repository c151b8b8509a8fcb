//! Host memory for devices.

use std::ffi::c_void;
use std::ptr::null_mut;

use qpair_fake_cuda::code;

use crate::ground::*;

#[test]
fn it_is_made_and_registered() {
    let ground = Ground::new();
    let mut made: *mut c_void = null_mut();
    ok(cuMemHostAlloc(&mut made, 100, 1));
    // SAFETY: memory of the host, of that length.
    unsafe { made.cast::<[u8; 100]>().write([3; 100]) };
    let address = get(|to| cuMemHostGetDevicePointer_v2(to, made, 0));
    assert_eq!(address, made.expose_provenance() as u64);
    assert_eq!(get(|to: *mut u32| cuPointerGetAttribute(to.cast(), 2, address)), 1);
    let a = alloc(100);
    ok(cuMemcpy(a, address, 100));
    assert_eq!(bytes(a, 100), [3; 100]);

    let mut own = vec![0u8; 10_000];
    let pointer = own.as_mut_ptr().cast();
    ok(cuMemHostRegister_v2(pointer, 10_000, 0));
    assert_eq!(cuMemHostRegister_v2(pointer, 1, 0), code::HOST_MEMORY_ALREADY_REGISTERED);
    assert!(ground.device.live().contains("registration1 of 10000 bytes"), "{}", ground.device.live());
    ok(cuMemHostUnregister(pointer));
    assert_eq!(cuMemHostRegister_v2(null_mut(), 1, 0), code::INVALID_VALUE);
    assert_eq!(cuMemHostUnregister(pointer), code::HOST_MEMORY_NOT_REGISTERED);
    ground.device.set_attribute(99, 0).expect("a device");
    assert_eq!(cuMemHostRegister_v2(pointer, 1, 0), code::NOT_SUPPORTED);
    ok(cuMemFree_v2(a));
    ok(cuMemFreeHost(made));
    ground.end_with(&["is not registered"]);
}

#[test]
fn it_is_read_when_the_copy_is_done() {
    let ground = Ground::new();
    let (a, stream) = (alloc(4), stream());
    let mut bytes = vec![1u8; 4];
    ok(cuMemHostRegister_v2(bytes.as_mut_ptr().cast(), 4, 0));
    let pinned = bytes.as_mut_ptr();
    ok(cuMemcpyHtoDAsync_v2(a, pinned.cast(), 4, stream));
    // SAFETY: within the vector.
    unsafe { pinned.write(2) };
    ok(cuStreamSynchronize(stream));
    assert_eq!(crate::ground::bytes(a, 4), [2, 1, 1, 1]);
    // What is not pinned is read at once.
    let mut other = [5u8; 4];
    ok(cuMemcpyHtoDAsync_v2(a, other.as_ptr().cast(), 4, stream));
    other.fill(0);
    ok(cuMemcpyHtoDAsync_v2(a, pinned.cast(), 1, stream));
    ok(cuMemHostUnregister(pinned.cast()));
    ok(cuStreamSynchronize(stream));
    assert_eq!(crate::ground::bytes(a, 4), [2, 5, 5, 5]);
    ok(cuStreamDestroy_v2(stream));
    ok(cuMemFree_v2(a));
    ground.end_with(&["cuMemHostUnregister: 4 bytes", "still to be used by stream"]);
    assert_eq!(other, [0; 4]);
}

#[test]
fn it_stays_mapped_while_it_is_registered() {
    let ground = Ground::new();
    let len = 3 * 4096;
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let at = unsafe { libc::mmap(null_mut(), len, prot, flags, -1, 0) };
    ok(cuMemHostRegister_v2(at, len, 0));
    // SAFETY: the mapping of above, which nobody uses.
    assert_eq!(unsafe { libc::munmap(at.wrapping_byte_add(4096), 4096) }, 0);
    ok(cuMemHostUnregister(at));
    ground.end_with(&["12288 bytes", "were unmapped while they were registered"]);
    // SAFETY: what is left of it.
    unsafe { libc::munmap(at, len) };
}
