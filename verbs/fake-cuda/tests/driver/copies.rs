//! Copies between the host and devices, and what they find out.

use std::ffi::c_int;
use std::fs::File;
use std::os::fd::FromRawFd;
use std::os::unix::fs::FileExt;

use qpair_fake_cuda::{code, control};

use crate::ground::*;

#[test]
fn bytes_go_there_and_back() {
    let ground = Ground::new();
    let (a, b) = (alloc(100), alloc(100));
    let data: Vec<u8> = (0..100).collect();
    put(a, &data);
    ok(cuMemcpy(b + 10, a, 90));
    assert_eq!(bytes(b + 10, 90), data[..90]);
    assert_eq!(bytes(b, 10), [0; 10]);
    ok(cuMemsetD8Async(b, 7, 100, 0));
    // The stream 0 is in order.
    assert_eq!(bytes(b, 100), [7; 100]);
    assert_eq!(control::peek(a + 1, 3).expect("memory"), [1, 2, 3]);
    control::poke(a, &[9]).expect("memory");
    assert_eq!(bytes(a, 2), [9, 1]);
    assert_eq!(ground.device.count("cuMemAlloc").expect("a device"), 2);
    assert_eq!(ground.device.get("used").expect("a device"), 200);
    ok(cuMemFree_v2(a));
    ok(cuMemFree_v2(b));
    ground.end();
}

#[test]
fn a_cpu_has_no_right_to_device_memory() {
    let ground = Ground::new();
    let a = alloc(10_000);
    for address in [a, a + 9_999, a + 16_384] {
        assert!(rights(address).starts_with("---"), "{}", rights(address));
    }
    ok(cuMemFree_v2(a));
    // The address stays taken, so that it is nobody else's.
    assert!(rights(a).starts_with("---"));
    ground.end();
}

#[test]
fn addresses_that_were_freed_or_run_over_the_end_are_found() {
    let ground = Ground::new();
    let (a, b) = (alloc(100), alloc(100));
    let copy = |to, from, len| cuMemcpyAsync(to, from, len, 0);
    assert_eq!(copy(a, b, 101), code::INVALID_VALUE);
    assert_eq!(copy(a + 50, b, 51), code::INVALID_VALUE);
    assert_eq!(copy(a - 1, b, 1), code::INVALID_VALUE);
    assert_eq!(copy(8, b, 1), code::INVALID_VALUE);
    let host = [0u8; 4];
    assert_eq!(cuMemcpyDtoDAsync_v2(a, host.as_ptr().expose_provenance() as u64, 4, 0), code::INVALID_VALUE);
    assert_eq!(cuMemFree_v2(a + 1), code::INVALID_VALUE);
    ok(cuMemFree_v2(a));
    assert_eq!(copy(a, b, 1), code::INVALID_VALUE);
    assert_eq!(cuMemFree_v2(a), code::INVALID_VALUE);
    // Host memory that is not there is found too.
    assert_eq!(cuMemcpyHtoDAsync_v2(b, std::ptr::without_provenance(1 << 46), 1, 0), code::INVALID_VALUE);
    ok(cuMemFree_v2(b));
    ground.end_with(&[
        "101 bytes",
        "run over the end of allocation1",
        "belongs to nothing",
        "is no address",
        "is not memory of a device",
        "allocation1, which was freed before",
        "cuMemFree: ",
    ]);
}

#[test]
fn memory_ends() {
    let ground = Ground::new();
    ground.device.set("memory", 1000).expect("a setting");
    let a = alloc(600);
    assert_eq!(cuMemAlloc_v2(&mut 0, 401), code::OUT_OF_MEMORY);
    assert_eq!(cuMemAlloc_v2(&mut 0, usize::MAX), code::OUT_OF_MEMORY);
    assert_eq!(cuMemAlloc_v2(&mut 0, 0), code::INVALID_VALUE);
    let (mut free, mut total) = (0, 0);
    ok(cuMemGetInfo_v2(&mut free, &mut total));
    assert_eq!((free, total), (400, 1000));
    ok(cuMemFree_v2(a));
    ok(cuMemFree_v2(alloc(1000)));
    ground.end();
}

#[test]
fn pointers_say_what_they_are() {
    let ground = Ground::new();
    let a = alloc(1000);
    let mut range = (0, 0);
    ok(cuMemGetAddressRange_v2(&mut range.0, &mut range.1, a + 999));
    assert_eq!(range, (a, 1000));
    assert_eq!(cuMemGetAddressRange_v2(&mut range.0, &mut range.1, a + 1000), code::NOT_FOUND);
    let number = |attribute, at| get(|to: *mut u32| cuPointerGetAttribute(to.cast(), attribute, at));
    let word = |attribute, at| get(|to: *mut u64| cuPointerGetAttribute(to.cast(), attribute, at));
    assert_eq!((number(2, a), number(9, a + 1), number(10, a), number(15, a)), (2, ground.ordinal() as u32, 1, 1));
    assert_eq!((word(1, a), word(11, a + 1), word(12, a), word(14, a)), (ground.context, a, 1000, 0));
    let b = alloc(1);
    assert_ne!(word(7, a), word(7, b));
    let set = |attribute, value: u32, at| cuPointerSetAttribute((&raw const value).cast(), attribute, at);
    ok(set(6, 1, a + 1));
    assert_eq!((number(6, a), number(6, b)), (1, 0));
    assert_eq!([set(6, 2, a), set(2, 1, a), set(6, 1, a + 1000)], [code::INVALID_VALUE; 3]);
    // Memory that the driver does not know.
    let host = [0u8; 1].as_ptr().expose_provenance() as u64;
    assert_eq!(cuPointerGetAttribute((&raw mut range).cast(), 2, host), code::INVALID_VALUE);
    let (mut kind, mut ordinal) = (9u32, 9i32);
    let mut to = [(&raw mut kind).cast(), (&raw mut ordinal).cast()];
    ok(cuPointerGetAttributes(2, [2, 9].as_mut_ptr(), to.as_mut_ptr(), host));
    assert_eq!((kind, ordinal), (0, -2));
    ok(cuMemFree_v2(a));
    ok(cuMemFree_v2(b));
    ground.end();
}

#[test]
fn other_devices_on_the_bus_get_the_memory() {
    let ground = Ground::new();
    ground.device.set("alloc_offset", 512).expect("a setting");
    let a = alloc(10_000);
    assert_eq!(a % 4096, 512);
    let export = |at, len| {
        let mut fd: c_int = -1;
        (cuMemGetHandleForAddressRange((&raw mut fd).cast(), at, len, 1, 0), fd)
    };
    assert_eq!(export(a, 4096).0, code::INVALID_VALUE);
    assert_eq!(export(a - 512, 10_000).0, code::INVALID_VALUE);
    assert_eq!(export(a - 512, 4096 * 4).0, code::INVALID_VALUE);
    let (result, fd) = export(a - 512, 4096 * 3);
    ok(result);
    // SAFETY: it is given to the caller.
    let file = unsafe { File::from_raw_fd(fd) };
    file.write_all_at(b"written", 512).expect("memory");
    assert_eq!(bytes(a, 7), b"written");
    ok(cuFlushGPUDirectRDMAWrites(0, 100));
    ground.device.set_attribute(117, 0).expect("a device");
    assert_eq!(cuFlushGPUDirectRDMAWrites(0, 100), code::NOT_SUPPORTED);
    ground.device.set_attribute(124, 0).expect("a device");
    assert_eq!(export(a - 512, 4096).0, code::NOT_SUPPORTED);
    ok(cuMemFree_v2(a));
    ground.end();
}

#[test]
fn devices_copy_to_each_other() {
    let (other, ground) = (Ground::new(), Ground::new());
    let a = alloc(8);
    let b = other.within(|| {
        let b = alloc(8);
        put(b, &[5; 8]);
        b
    });
    ok(cuMemcpyPeerAsync(a, ground.context, b, other.context, 8, 0));
    assert_eq!(bytes(a, 8), [5; 8]);
    ok(cuCtxEnablePeerAccess(other.context, 0));
    assert_eq!(cuCtxEnablePeerAccess(other.context, 0), code::PEER_ACCESS_ALREADY_ENABLED);
    assert_eq!(cuCtxEnablePeerAccess(ground.context, 0), code::INVALID_CONTEXT);
    ok(cuMemFree_v2(a));
    ok(cuMemFree_v2(b));
    ground.end();
    other.end();
}
