//! Streams that wait for a word which somebody else writes.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use qpair_fake_cuda::abi::AllocationProp;
use qpair_fake_cuda::{code, control};

use crate::ground::*;

/// Pinned memory of the host, and its address for devices.
fn pinned(len: usize) -> (*mut c_void, u64) {
    let mut made = null_mut();
    ok(cuMemHostAlloc(&mut made, len, 3));
    (made, get(|to| cuMemHostGetDevicePointer_v2(to, made, 0)))
}

fn write(word: u64, value: u32) {
    control::poke(word, &value.to_ne_bytes()).expect("memory");
}

#[test]
fn a_stream_does_what_is_behind_once_the_word_is_written() {
    let ground = Ground::new();
    let (a, stream, (made, word)) = (alloc(1), stream(), pinned(4));
    ok(cuMemsetD8Async(a, 1, 1, stream));
    ok(cuStreamWaitValue32_v2(stream, word, 5, AT_LEAST));
    ok(cuMemsetD8Async(a, 2, 1, stream));
    // What is before it is done.
    assert_eq!([(); 9].map(|()| cuStreamQuery(stream)), [code::NOT_READY; 9]);
    assert_eq!(bytes(a, 1), [1]);
    write(word, 4);
    assert_eq!(cuStreamQuery(stream), code::NOT_READY);
    write(word, 6);
    ok(cuStreamQuery(stream));
    assert_eq!(bytes(a, 1), [2]);
    ok(cuMemFreeHost(made));
    ok(cuStreamDestroy_v2(stream));
    ok(cuMemFree_v2(a));
    ground.end();
}

#[test]
fn who_waits_for_the_stream_waits_for_the_word() {
    let ground = Ground::new();
    let (a, stream, (made, word)) = (alloc(1), stream(), pinned(4));
    ok(cuStreamWaitValue32_v2(stream, word, 1, EQUAL));
    ok(cuMemsetD8Async(a, 2, 1, stream));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            ok(cuCtxSetCurrent(ground.context));
            ok(cuStreamSynchronize(stream));
            assert_eq!(control::peek(a, 1).expect("memory"), [2]);
        });
        let deadline = Instant::now() + Duration::from_secs(10);
        while ground.device.count("cuStreamSynchronize").expect("a device") == 0 {
            assert!(Instant::now() < deadline, "it is called");
            std::thread::yield_now();
        }
        assert_eq!(control::peek(a, 1).expect("memory"), [0]);
        write(word, 1);
    });
    ok(cuMemFreeHost(made));
    ok(cuStreamDestroy_v2(stream));
    ok(cuMemFree_v2(a));
    ground.end();
}

#[test]
fn other_streams_go_on_but_for_those_that_wait_for_its_events() {
    let ground = Ground::new();
    let (a, b, (made, word)) = (alloc(1), alloc(1), pinned(8));
    let [held, behind, other] = [stream(), stream(), stream()];
    let event = get(|to| cuEventCreate(to, 2));
    ok(cuStreamWaitValue64_v2(held, word, 1 << 40, AT_LEAST));
    ok(cuEventRecord(event, held));
    ok(cuStreamWaitEvent(behind, event, 0));
    ok(cuMemsetD8Async(a, 1, 1, behind));
    ok(cuMemsetD8Async(b, 1, 1, other));
    ok(cuStreamSynchronize(other));
    assert_eq!([(); 4].map(|()| cuStreamQuery(behind)), [code::NOT_READY; 4]);
    assert_eq!([bytes(a, 1), bytes(b, 1)], [[0], [1]]);
    control::poke(word, &(1u64 << 40).to_ne_bytes()).expect("memory");
    ok(cuStreamSynchronize(behind));
    assert_eq!(bytes(a, 1), [1]);
    ok(cuMemFreeHost(made));
    ok(cuEventDestroy_v2(event));
    for stream in [held, behind, other] {
        ok(cuStreamDestroy_v2(stream));
    }
    for address in [a, b] {
        ok(cuMemFree_v2(address));
    }
    ground.end();
}

#[test]
fn the_stream_0_and_blocking_streams_wait_for_one_that_is_held() {
    let ground = Ground::new();
    let (a, (made, word)) = (alloc(1), pinned(4));
    let blocking = get(|to| cuStreamCreate(to, 0));
    ok(cuStreamWaitValue32_v2(0, word, 1, AT_LEAST));
    ok(cuMemsetD8Async(a, 1, 1, blocking));
    assert_eq!([(); 4].map(|()| cuStreamQuery(blocking)), [code::NOT_READY; 4]);
    write(word, 1);
    ok(cuStreamQuery(blocking));
    assert_eq!(bytes(a, 1), [1]);
    ok(cuMemFreeHost(made));
    ok(cuStreamDestroy_v2(blocking));
    ok(cuMemFree_v2(a));
    ground.end();
}

#[test]
fn to_free_memory_while_a_stream_of_the_device_waits_for_a_word_is_wrong() {
    let ground = Ground::new();
    let (stream, (made, word), [a, b]) = (stream(), pinned(4), [alloc(1), alloc(1)]);
    let physical = get(|to| cuMemCreate(to, UNIT, &AllocationProp::of(ground.ordinal(), 1), 0));
    let [mapped, other] = [(); 2].map(|()| {
        let base = get(|to| cuMemAddressReserve(to, UNIT, 0, 0, 0));
        ok(cuMemMap(base, UNIT, 0, physical, 0));
        base
    });
    // It has not come to the word.
    ok(cuMemsetD8Async(b, 1, 1, stream));
    ok(cuStreamWaitValue32_v2(stream, word, 1, AT_LEAST));
    ok(cuMemFree_v2(a));
    ok(cuMemUnmap(mapped, UNIT));
    let violations = ground.device.violations();
    assert_eq!(violations.lines().count(), 2, "{violations}");
    // The others do not wait for it, nor this one any more.
    let second = Ground::new();
    ok(cuMemFree_v2(alloc(1)));
    second.end();
    ok(cuCtxSetCurrent(ground.context));
    write(word, 1);
    ok(cuMemFree_v2(b));
    ok(cuMemUnmap(other, UNIT));
    assert_eq!(ground.device.violations(), violations);
    for base in [mapped, other] {
        ok(cuMemAddressFree(base, UNIT));
    }
    ok(cuMemRelease(physical));
    ok(cuStreamDestroy_v2(stream));
    ok(cuMemFreeHost(made));
    ground.end_with(&["cuMemFree: it may wait for stream", "cuMemUnmap: it may wait for stream"]);
}

#[test]
fn conditions_are_those_of_the_driver() {
    let ground = Ground::new();
    let (stream, (made, word)) = (stream(), pinned(4));
    for (condition, value, found, is_met) in [
        (AT_LEAST, 5, 5, true),
        (AT_LEAST, 5, 4, false),
        // Cyclically.
        (AT_LEAST, u32::MAX, 1, true),
        (AT_LEAST, 1, u32::MAX, false),
        (EQUAL, 5, 6, false),
        (AND, 0b110, 0b010, true),
        (AND, 0b110, 0b001, false),
        (NOR, 0xf0, 0x0f, true),
        (NOR, 0xf0, 0xffff_ff0f, false),
        (AT_LEAST | FLUSH, 0, 0, true),
    ] {
        write(word, found);
        ok(cuStreamWaitValue32_v2(stream, word, value, condition));
        let queried = [(); 2].map(|()| cuStreamQuery(stream))[1];
        assert_eq!(queried == 0, is_met, "{found:#x} for {value:#x} by {condition}");
        let meets = [value, value, value, 0][(condition & 3) as usize];
        write(word, meets);
        ok(cuStreamSynchronize(stream));
    }
    ok(cuMemFreeHost(made));
    ok(cuStreamDestroy_v2(stream));
    ground.end();
}

#[test]
fn what_is_wrong_is_refused() {
    let ground = Ground::new();
    let (stream, (made, word)) = (stream(), pinned(16));
    assert_eq!(cuStreamWaitValue32_v2(stream, word + 2, 1, AT_LEAST), code::INVALID_VALUE);
    assert_eq!(cuStreamWaitValue32_v2(stream, word, 1, 4), code::INVALID_VALUE);
    assert_eq!(cuStreamWaitValue32_v2(0x1234_5670, word, 1, AT_LEAST), code::INVALID_HANDLE);
    // Host memory that is not pinned.
    let own = [0u32; 2];
    let address = own.as_ptr().expose_provenance() as u64;
    assert_eq!(cuStreamWaitValue32_v2(stream, address, 1, AT_LEAST), code::INVALID_VALUE);
    for (attribute, call) in [
        (122, Box::new(|| cuStreamWaitValue64_v2(stream, word, 0, AT_LEAST)) as Box<dyn Fn() -> u32>),
        (123, Box::new(|| cuStreamWaitValue32_v2(stream, word, 0, NOR))),
        (98, Box::new(|| cuStreamWaitValue32_v2(stream, word, 0, AT_LEAST | FLUSH))),
    ] {
        ok(call());
        ground.device.set_attribute(attribute, 0).expect("a device");
        assert_eq!(call(), code::NOT_SUPPORTED, "without attribute {attribute}");
    }
    ok(cuStreamWaitValue32_v2(stream, word, 0, AT_LEAST));
    // Freed while a stream waits for it.
    ok(cuStreamWaitValue32_v2(stream, word, 1, AT_LEAST));
    ok(cuMemFreeHost(made));
    assert_eq!(cuStreamSynchronize(stream), code::ILLEGAL_ADDRESS);
    assert_eq!(cuStreamDestroy_v2(stream), code::ILLEGAL_ADDRESS);
    ground.end_with(&["is host memory that is not pinned", "still to be used by stream", "found when it was done"]);
}

/// `CU_STREAM_WAIT_VALUE_GEQ`, `_EQ`, `_AND`, `_NOR`, `_FLUSH`.
const AT_LEAST: u32 = 0;
const EQUAL: u32 = 1;
const AND: u32 = 2;
const NOR: u32 = 3;
const FLUSH: u32 = 1 << 30;
/// The granularity of memory that is mapped.
const UNIT: usize = 2 << 20;
