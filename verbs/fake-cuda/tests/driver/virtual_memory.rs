//! Virtual memory management: physical memory mapped to addresses, here and in other processes.

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::os::fd::{FromRawFd, IntoRawFd};
use std::ptr::without_provenance_mut;

use qpair_fake_cuda::abi::AllocationProp;
use qpair_fake_cuda::code;
use qpair_fake_cuda::control::Device;

use crate::ground::*;

fn create(ground: &Ground, size: usize) -> u64 {
    get(|to| cuMemCreate(to, size, &AllocationProp::of(ground.ordinal(), 1), 0))
}

fn export(handle: u64) -> c_int {
    get(|to: *mut c_int| cuMemExportToShareableHandle(to.cast(), handle, 1, 0))
}

/// Another process's descriptor, as if it came over a socket.
fn open(path: &str) -> c_int {
    File::options().read(true).write(true).open(path).expect("it is open there").into_raw_fd()
}

fn close(fd: c_int) {
    // SAFETY: given to the caller, who closes it once.
    drop(unsafe { File::from_raw_fd(fd) });
}

fn reserve(size: usize) -> u64 {
    get(|to| cuMemAddressReserve(to, size, 0, 0, 0))
}

/// Maps a unit at addresses of its own, for the device to read and write.
fn map(ground: &Ground, handle: u64) -> u64 {
    let base = reserve(UNIT);
    ok(cuMemMap(base, UNIT, 0, handle, 0));
    ok(cuMemSetAccess(base, UNIT, &access(ground.ordinal(), 3), 1));
    base
}

fn unmap(base: u64) {
    ok(cuMemUnmap(base, UNIT));
    ok(cuMemAddressFree(base, UNIT));
}

#[test]
fn segments_make_one_range() {
    let ground = Ground::new();
    let handles = [create(&ground, UNIT), create(&ground, 2 * UNIT)];
    let base = reserve(4 * UNIT);
    assert_eq!(base % UNIT as u64, 0);
    ok(cuMemMap(base, UNIT, 0, handles[0], 0));
    ok(cuMemMap(base + UNIT as u64, 2 * UNIT, 0, handles[1], 0));
    assert_eq!(cuMemMap(base, UNIT, 0, handles[0], 0), code::INVALID_VALUE);
    // Nobody may access it yet.
    assert_eq!(cuMemsetD8Async(base, 1, 8, 0), code::INVALID_VALUE);
    ok(cuMemSetAccess(base, 3 * UNIT, &access(ground.ordinal(), 1), 1));
    assert_eq!(bytes(base, 8), [0; 8]);
    assert_eq!(cuMemsetD8Async(base, 1, 8, 0), code::INVALID_VALUE);
    ok(cuMemSetAccess(base, 3 * UNIT, &access(ground.ordinal(), 3), 1));
    put(base + UNIT as u64 - 4, b"over it");
    assert_eq!(bytes(base + UNIT as u64 - 4, 7), b"over it");
    assert_eq!(bytes(base + UNIT as u64, 3), b" it");
    assert_eq!(cuMemcpy(base, base + 3 * UNIT as u64 - 4, 8), code::INVALID_VALUE);
    assert!(rights(base).starts_with("---"));

    let mut range = (0, 0);
    ok(cuMemGetAddressRange_v2(&mut range.0, &mut range.1, base + UNIT as u64 + 5));
    assert_eq!(range, (base + UNIT as u64, 2 * UNIT));
    let number = |attribute, at| get(|to: *mut u64| cuPointerGetAttribute(to.cast(), attribute, at));
    assert_eq!((number(14, base), number(1, base), number(10, base), number(15, base)), (1, 0, 0, 0));
    assert_eq!((number(13, base), number(13, base + 3 * UNIT as u64)), (1, 0));

    // A released handle lives while it is mapped.
    ok(cuMemRelease(handles[0]));
    assert_eq!(cuMemRelease(handles[0]), code::INVALID_VALUE);
    let again = get(|to| cuMemRetainAllocationHandle(to, without_provenance_mut(base as usize + 9)));
    assert_eq!(get(|to| cuMemRetainAllocationHandle(to, without_provenance_mut(base as usize))), again);
    ok(cuMemRelease(again));
    ok(cuMemRelease(again));

    assert_eq!(cuMemUnmap(base, 2 * UNIT), code::INVALID_VALUE);
    assert_eq!(cuMemAddressFree(base, 4 * UNIT), code::INVALID_VALUE);
    assert!(ground.device.live().contains("mapping of 2097152 bytes at "));
    ok(cuMemUnmap(base, 3 * UNIT));
    assert_eq!(cuMemAddressFree(base, UNIT), code::INVALID_VALUE);
    ok(cuMemAddressFree(base, 4 * UNIT));
    ok(cuMemRelease(handles[1]));
    assert_eq!(ground.device.get("used").expect("a device"), 0);
    ground.end_with(&["no right to write", "nothing is mapped", "has mappings", "handle1 was released before"]);
}

#[test]
fn sizes_and_kinds_are_checked() {
    let ground = Ground::new();
    let device = ground.ordinal();
    let prop = AllocationProp::of(device, 1);
    let create = |size, prop: &AllocationProp| cuMemCreate(&mut 0, size, prop, 0);
    assert_eq!(get(|to| cuMemGetAllocationGranularity(to, &prop, 0)), UNIT);
    assert_eq!(create(UNIT + 4096, &prop), code::INVALID_VALUE);
    assert_eq!(create(0, &prop), code::INVALID_VALUE);
    assert_eq!(create(UNIT, &AllocationProp::of(device, 8)), code::NOT_SUPPORTED);
    assert_eq!(create(UNIT, &AllocationProp::of(4711, 1)), code::INVALID_DEVICE);
    assert_eq!(create(1 << 31, &prop), code::OUT_OF_MEMORY);
    assert_eq!(cuMemAddressReserve(&mut 0, 4096, 0, 0, 0), code::INVALID_VALUE);
    assert_eq!(cuMemAddressReserve(&mut 0, UNIT, 3, 0, 0), code::INVALID_VALUE);
    let aligned = get(|to| cuMemAddressReserve(to, UNIT, 1 << 30, 0, 0));
    assert_eq!(aligned % (1 << 30), 0);
    ok(cuMemAddressFree(aligned, UNIT));
    // What was not asked for can not be exported.
    let private = get(|to| cuMemCreate(to, UNIT, &AllocationProp::of(device, 0), 0));
    let mut fd: c_int = -1;
    assert_eq!(cuMemExportToShareableHandle((&raw mut fd).cast(), private, 1, 0), code::INVALID_VALUE);
    ok(cuMemRelease(private));
    ground.device.set_attribute(103, 0).expect("a device");
    assert_eq!(create(UNIT, &prop), code::NOT_SUPPORTED);
    ground.device.set_attribute(102, 0).expect("a device");
    assert_eq!(create(UNIT, &AllocationProp::of(device, 0)), code::NOT_SUPPORTED);
    ground.end();
}

#[test]
fn an_import_is_the_same_memory() {
    let ground = Ground::new();
    let handle = create(&ground, UNIT);
    let fd = export(handle);
    let imported = get(|to| cuMemImportFromShareableHandle(to, descriptor(fd), 1));
    close(fd);
    let mut prop = AllocationProp::of(0, 0);
    ok(cuMemGetAllocationPropertiesFromHandle(&mut prop, imported));
    assert_eq!((prop.location.id, prop.handle_types), (ground.ordinal(), 1));
    let bases = [handle, imported].map(|handle| {
        let base = map(&ground, handle);
        ok(cuMemRelease(handle));
        base
    });
    put(bases[0], b"shared");
    assert_eq!(bytes(bases[1], 6), b"shared");
    unmap(bases[0]);
    assert_eq!(bytes(bases[1], 6), b"shared");
    unmap(bases[1]);
    // Any other file is none.
    let fd = open("/dev/null");
    assert_eq!(cuMemImportFromShareableHandle(&mut 0, descriptor(fd), 1), code::INVALID_VALUE);
    close(fd);
    assert_eq!(cuMemImportFromShareableHandle(&mut 0, descriptor(-1), 1), code::INVALID_VALUE);
    ground.end();
}

#[test]
fn another_process_imports_it() {
    if let Some(path) = given() {
        let ground = Ground::on(Device::of(7));
        let fd = open(&path);
        let handle = get(|to| cuMemImportFromShareableHandle(to, descriptor(fd), 1));
        close(fd);
        let base = map(&ground, handle);
        assert_eq!(bytes(base, 5), b"hello");
        put(base, b"there");
        unmap(base);
        ok(cuMemRelease(handle));
        return ground.end();
    }
    // In the other process the device has to be there: that with the number 0.
    ok(cuInit(0));
    let handle = get(|to| cuMemCreate(to, UNIT, &AllocationProp::of(0, 1), 0));
    let ground = Ground::new();
    let base = map(&ground, handle);
    put(base, b"hello");
    let fd = export(handle);
    let path = format!("/proc/{}/fd/{fd}", std::process::id());
    went_well(elsewhere("virtual_memory::another_process_imports_it", &path));
    close(fd);
    assert_eq!(bytes(base, 5), b"there");
    unmap(base);
    ok(cuMemRelease(handle));
    ground.end();
}

#[test]
fn what_was_exported_outlives_its_process() {
    if given().is_some() {
        let ground = Ground::on(Device::of(0));
        let handle = create(&ground, UNIT);
        put(map(&ground, handle), b"hello");
        println!("descriptor: {}", export(handle));
        std::io::stdin().read_line(&mut String::new()).expect("piped");
        return;
    }
    let mut child = elsewhere("virtual_memory::what_was_exported_outlives_its_process", "yes");
    let path = format!("/proc/{}/fd/{}", child.id(), told(&mut child, "descriptor: "));
    let fd = open(&path);
    child.kill().and_then(|()| child.wait()).expect("a process");
    let ground = Ground::new();
    let handle = get(|to| cuMemImportFromShareableHandle(to, descriptor(fd), 1));
    close(fd);
    let base = map(&ground, handle);
    assert_eq!(bytes(base, 5), b"hello");
    unmap(base);
    ok(cuMemRelease(handle));
    ground.end();
}

/// A descriptor as the driver takes it.
fn descriptor(fd: c_int) -> *mut c_void {
    without_provenance_mut(fd as isize as usize)
}

/// The granularity.
const UNIT: usize = 2 << 20;
