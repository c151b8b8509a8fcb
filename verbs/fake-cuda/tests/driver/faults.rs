//! What tests let go wrong, and what they find left.

use qpair_fake_cuda::code;

use crate::ground::*;

#[test]
fn calls_fail_as_told() {
    let ground = Ground::new();
    let device = ground.device;
    device.fail("cuMemAlloc", 2, code::OUT_OF_MEMORY).expect("a device");
    let results = [(); 3].map(|()| {
        let mut address = 0;
        (cuMemAlloc_v2(&mut address, 1), address)
    });
    assert_eq!(results.map(|(code, _)| code), [0, code::OUT_OF_MEMORY, 0]);
    device.fail_times("cuStreamCreate", 1, 0, code::UNKNOWN).expect("a device");
    assert_eq!([(); 3].map(|()| cuStreamCreate(&mut 0, 0)), [code::UNKNOWN; 3]);
    assert_eq!(device.count("cuStreamCreate").expect("a device"), 3);
    assert!(device.calls().contains("cuMemAlloc_v2\ncuMemAlloc_v2 -> CUDA_ERROR_OUT_OF_MEMORY\ncuMemAlloc_v2\n"));
    qpair_fake_cuda::control::fail_here("cuMemFree", 1, code::UNKNOWN).expect("it is loaded");
    assert_eq!(cuMemFree_v2(results[0].1), code::UNKNOWN);
    ok(cuMemFree_v2(results[0].1));
    ok(cuMemFree_v2(results[2].1));
    device.reset().expect("a device");
    ok(cuStreamDestroy_v2(stream()));
    assert_eq!(device.calls(), "cuStreamCreate\ncuStreamDestroy_v2");
    assert!(device.set("nonsense", 1).is_err());
    ground.end();
}

#[test]
fn a_fault_is_its_contexts_from_then_on() {
    let ground = Ground::new();
    let (result, module) = load(".version 8.0\n.target sm_70\n.entry qpair_sum_u8()");
    ok(result);
    let sum = function(module, "qpair_sum_u8");
    let (a, stream) = (alloc(1), stream());
    let event = get(|to| cuEventCreate(to, 2));
    ground.device.fault(2, code::LAUNCH_FAILED).expect("a device");
    ok(launch(sum, stream, &[a, a, a, 1]));
    ok(cuStreamSynchronize(stream));
    ok(launch(sum, stream, &[a, a, a, 1]));
    ok(cuEventRecord(event, stream));
    assert_eq!(cuEventQuery(event), code::NOT_READY);
    assert_eq!(cuEventQuery(event), code::LAUNCH_FAILED);
    assert_eq!(cuMemcpy(a, a, 1), code::LAUNCH_FAILED);
    let ends = [cuEventDestroy_v2(event), cuStreamDestroy_v2(stream), cuModuleUnload(module), cuMemFree_v2(a)];
    assert_eq!(ends, [code::LAUNCH_FAILED; 4]);
    let device = ground.device;
    ground.end();
    // The next context is another.
    let ground = Ground::on(device);
    ok(cuMemFree_v2(alloc(1)));
    ground.end();
}

#[test]
fn what_is_left_is_listed() {
    let ground = Ground::new();
    let (a, one, event) = (alloc(7), stream(), get(|to| cuEventCreate(to, 0)));
    let live = ground.device.live();
    for line in ["primary context retained 1 times", "allocation1 of 7 bytes at ", "stream1", "event1"] {
        assert!(live.contains(line), "no {line:?} in:\n{live}");
    }
    assert_eq!(live.lines().count(), 4);
    ok(cuMemFree_v2(a));
    ok(cuStreamDestroy_v2(one));
    ok(cuEventDestroy_v2(event));
    ground.end();
}
