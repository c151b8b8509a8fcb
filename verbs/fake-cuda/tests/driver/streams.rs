//! Streams do what they are given when somebody waits, and events order them.

use std::time::{Duration, Instant};

use qpair_fake_cuda::{code, control};

use crate::ground::*;

#[test]
fn who_does_not_wait_reads_old_bytes() {
    let ground = Ground::new();
    let (a, stream) = (alloc(4), stream());
    put(a, &[1; 4]);
    let mut host = [0u8; 4];
    let pointer = host.as_mut_ptr();
    ok(cuMemHostRegister_v2(pointer.cast(), 4, 0));
    ok(cuMemsetD8Async(a, 2, 4, stream));
    ok(cuMemcpyDtoHAsync_v2(pointer.cast(), a, 4, stream));
    // SAFETY: the array above, which the stream has not written yet.
    assert_eq!(unsafe { pointer.cast::<[u8; 4]>().read() }, [0; 4]);
    // The stream 0 does not wait for one that does not block.
    assert_eq!(bytes(a, 4), [1; 4]);
    assert_eq!(cuStreamQuery(stream), code::NOT_READY);
    ok(cuStreamQuery(stream));
    ok(cuStreamQuery(stream));
    // SAFETY: as above, and it has.
    assert_eq!(unsafe { pointer.cast::<[u8; 4]>().read() }, [2; 4]);
    ok(cuMemHostUnregister(pointer.cast()));
    ok(cuStreamDestroy_v2(stream));
    assert_eq!(cuStreamSynchronize(stream), code::INVALID_HANDLE);
    ok(cuMemFree_v2(a));
    ground.end_with(&["cuStreamSynchronize: stream1 was destroyed before"]);
}

#[test]
fn a_copy_to_memory_that_is_not_pinned_waits() {
    let ground = Ground::new();
    let (a, stream) = (alloc(1), stream());
    let mut host = [0u8; 1];
    let pointer = host.as_mut_ptr();
    ok(cuMemsetD8Async(a, 1, 1, stream));
    ok(cuMemcpyDtoHAsync_v2(pointer.cast(), a, 1, stream));
    // SAFETY: the array above, which nothing writes now.
    assert_eq!(unsafe { pointer.read() }, 1);
    ground.device.set("pageable_waits", 0).expect("a setting");
    ok(cuMemsetD8Async(a, 2, 1, stream));
    ok(cuMemcpyDtoHAsync_v2(pointer.cast(), a, 1, stream));
    // SAFETY: as above.
    assert_eq!(unsafe { pointer.read() }, 1);
    ok(cuStreamSynchronize(stream));
    // SAFETY: as above.
    assert_eq!(unsafe { pointer.read() }, 2);
    ok(cuStreamDestroy_v2(stream));
    ok(cuMemFree_v2(a));
    ground.end();
}

#[test]
fn queries_are_as_set() {
    let ground = Ground::new();
    let (a, stream) = (alloc(4), stream());
    ground.device.set("queries", 4).expect("a setting");
    ok(cuMemsetD8Async(a, 2, 4, stream));
    assert_eq!([(); 4].map(|()| cuStreamQuery(stream)), [600, 600, 600, 0]);
    ground.device.set("queries", 0).expect("a setting");
    ok(cuMemsetD8Async(a, 3, 4, stream));
    assert_eq!(bytes(a, 4), [3; 4]);
    ok(cuStreamQuery(stream));
    ok(cuStreamDestroy_v2(stream));
    ok(cuMemFree_v2(a));
    ground.end();
}

#[test]
fn events_order_streams() {
    let ground = Ground::new();
    let (a, b) = (alloc(1), alloc(1));
    let (one, two) = (stream(), stream());
    let event = get(|to| cuEventCreate(to, 2));
    ok(cuEventQuery(event));
    ok(cuMemsetD8Async(a, 7, 1, one));
    ok(cuEventRecord(event, one));
    // What comes later is not waited for.
    ok(cuMemsetD8Async(a, 8, 1, one));
    ok(cuStreamWaitEvent(two, event, 0));
    ok(cuMemcpyDtoDAsync_v2(b, a, 1, two));
    assert_eq!(cuEventQuery(event), code::NOT_READY);
    ok(cuStreamSynchronize(two));
    ok(cuEventQuery(event));
    assert_eq!((bytes(b, 1), bytes(a, 1)), (vec![7], vec![7]));
    ok(cuCtxSynchronize());
    assert_eq!(bytes(a, 1), [8]);
    assert_eq!(cuEventElapsedTime(&mut 0.0, event, event), code::INVALID_HANDLE);
    let times = [0, 0].map(|flags| get(|to| cuEventCreate(to, flags)));
    ok(cuEventRecord(times[0], one));
    ok(cuEventRecord(times[1], one));
    assert_eq!(cuEventElapsedTime(&mut 0.0, times[0], times[1]), code::NOT_READY);
    ok(cuEventSynchronize(times[1]));
    assert!(get(|to| cuEventElapsedTime(to, times[0], times[1])) >= 0.0);
    for event in [event, times[0], times[1]] {
        ok(cuEventDestroy_v2(event));
    }
    for stream in [one, two] {
        ok(cuStreamDestroy_v2(stream));
    }
    for address in [a, b] {
        ok(cuMemFree_v2(address));
    }
    ground.end();
}

#[test]
fn long_chains_of_events_are_reached() {
    let ground = Ground::new();
    let a = alloc(1);
    let streams = [stream(), stream()];
    let event = get(|to| cuEventCreate(to, 2));
    for at in 0..20_000 {
        let (one, two) = (streams[at % 2], streams[(at + 1) % 2]);
        ok(cuEventRecord(event, one));
        ok(cuStreamWaitEvent(two, event, 0));
    }
    ok(cuMemsetD8Async(a, 1, 1, streams[0]));
    ok(cuStreamSynchronize(streams[0]));
    assert_eq!(bytes(a, 1), [1]);
    ok(cuEventDestroy_v2(event));
    for stream in streams {
        ok(cuStreamDestroy_v2(stream));
    }
    ok(cuMemFree_v2(a));
    ground.end();
}

#[test]
fn blocking_streams_and_stream_0_wait_for_each_other() {
    let ground = Ground::new();
    let a = alloc(1);
    let blocking = get(|to| cuStreamCreate(to, 0));
    ok(cuMemsetD8Async(a, 1, 1, blocking));
    assert_eq!(bytes(a, 1), [1]);
    ok(cuMemsetD8Async(a, 2, 1, 0));
    ok(cuMemsetD8Async(a, 3, 1, blocking));
    ok(cuStreamSynchronize(blocking));
    ok(cuCtxSynchronize());
    assert_eq!(bytes(a, 1), [3]);
    ok(cuStreamDestroy_v2(blocking));
    ok(cuMemFree_v2(a));
    ground.end();
}

#[test]
fn what_is_held_waits() {
    let ground = Ground::new();
    let (a, stream) = (alloc(1), stream());
    ground.device.hold().expect("a device");
    ok(cuMemsetD8Async(a, 1, 1, stream));
    assert_eq!([(); 9].map(|()| cuStreamQuery(stream)), [code::NOT_READY; 9]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            ok(cuCtxSetCurrent(ground.context));
            ok(cuStreamSynchronize(stream));
        });
        // The count rises as the call takes hold of the device, which it then gives up only to wait.
        let deadline = Instant::now() + Duration::from_secs(10);
        while ground.device.count("cuStreamSynchronize").expect("a device") == 0 {
            assert!(Instant::now() < deadline, "it is called");
            std::thread::yield_now();
        }
        assert_eq!(control::peek(a, 1).expect("memory"), [0]);
        ground.device.let_go().expect("a device");
    });
    assert_eq!(bytes(a, 1), [1]);
    ground.device.hold_stream(stream, true).expect("a stream");
    ok(cuMemsetD8Async(a, 2, 1, stream));
    assert_eq!(bytes(a, 1), [1]);
    // Freed while the stream is still to write to it.
    ok(cuMemFree_v2(a));
    ground.device.hold_stream(stream, false).expect("a stream");
    assert_eq!(cuStreamSynchronize(stream), code::ILLEGAL_ADDRESS);
    assert_eq!(cuStreamDestroy_v2(stream), code::ILLEGAL_ADDRESS);
    ground.end_with(&["still to be used by stream1", "cuMemsetD8Async: ", "freed before (found when it was done)"]);
}

#[test]
fn a_destroyed_stream_still_does_its_work() {
    let ground = Ground::new();
    let (a, stream) = (alloc(1), stream());
    ok(cuMemsetD8Async(a, 1, 1, stream));
    ok(cuStreamDestroy_v2(stream));
    assert_eq!(bytes(a, 1), [0]);
    ok(cuCtxSynchronize());
    assert_eq!(bytes(a, 1), [1]);
    ok(cuMemFree_v2(a));
    ground.end();
}
