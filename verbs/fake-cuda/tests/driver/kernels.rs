//! Modules, and the kernels that the fake knows.

use std::ffi::c_void;

use qpair_fake_cuda::code::{self, Code};

use crate::ground::*;

const PTX: &str = "
.version 8.0
.target sm_70
.address_size 64
.visible .entry qpair_sum_f32(
    .param .u64 into
) { ret; }
.visible .entry qpair_bxor_u8 (.param .u64 into) { ret; }
.visible .entry qpair_divide_i32(.param .u64 v) { ret; }
.visible .entry qpair_multiply_f64(.param .u64 v) { ret; }
.visible .entry qpair_multiply_i64(.param .u64 v) { ret; }
.visible .entry another(.param .u64 v) { ret; }
";

#[test]
fn they_calculate() {
    let ground = Ground::new();
    let (result, module) = load(PTX);
    ok(result);
    let (a, b, stream) = (alloc(1000), alloc(1000), stream());
    let floats = |numbers: [f32; 3]| numbers.map(f32::to_ne_bytes).concat();
    put(a, &floats([1.0, 2.0, 3.0]));
    put(b, &floats([0.5, 0.25, -3.0]));
    let sum = function(module, "qpair_sum_f32");
    ok(launch(sum, stream, &[b, a, b, 3]));
    assert_eq!(bytes(b, 12), floats([0.5, 0.25, -3.0]));
    ok(cuStreamSynchronize(stream));
    assert_eq!(bytes(b, 12), floats([1.5, 2.25, 0.0]));

    put(a, &[0xf0, 1]);
    put(b, &[0xff, 1]);
    ok(launch(function(module, "qpair_bxor_u8"), stream, &[a, a, b, 2]));
    ok(cuStreamSynchronize(stream));
    assert_eq!(bytes(a, 2), [0x0f, 0]);

    put(a, &[-7i32, 8].map(i32::to_ne_bytes).concat());
    ok(launch(function(module, "qpair_divide_i32"), stream, &[a, 2, 2]));
    ok(cuStreamSynchronize(stream));
    assert_eq!(bytes(a, 8), [-3i32, 4].map(i32::to_ne_bytes).concat());

    put(a, &1.5f64.to_ne_bytes());
    ok(launch(function(module, "qpair_multiply_f64"), stream, &[a, 1, (-2.0f64).to_bits()]));
    ok(cuStreamSynchronize(stream));
    assert_eq!(bytes(a, 8), (-3.0f64).to_ne_bytes());
    put(a, &5i64.to_ne_bytes());
    ok(launch(function(module, "qpair_multiply_i64"), stream, &[a, 1, -2i64 as u64]));
    ok(cuStreamSynchronize(stream));
    assert_eq!(bytes(a, 8), (-10i64).to_ne_bytes());

    // Pinned host memory is theirs too.
    let mut host = vec![1u8; 2];
    ok(cuMemHostRegister_v2(host.as_mut_ptr().cast(), 2, 0));
    let at = host.as_mut_ptr().expose_provenance() as u64;
    ok(launch(function(module, "qpair_bxor_u8"), stream, &[at, b, at, 1]));
    ok(cuStreamSynchronize(stream));
    ok(cuMemHostUnregister(host.as_mut_ptr().cast()));
    assert_eq!(host, [0xfe, 1]);

    ok(cuModuleUnload(module));
    assert_eq!(launch(sum, stream, &[b, a, b, 3]), code::INVALID_HANDLE);
    ok(cuStreamDestroy_v2(stream));
    ok(cuMemFree_v2(a));
    ok(cuMemFree_v2(b));
    ground.end_with(&["cuLaunchKernel: function1 was destroyed before"]);
}

#[test]
fn modules_are_refused() {
    let ground = Ground::new();
    assert_eq!(load("nonsense").0, code::INVALID_PTX);
    assert_eq!(load(".version 8.0\n.target nothing").0, code::INVALID_PTX);
    assert_eq!(load("\x7fELF").0, code::INVALID_IMAGE);
    assert_eq!(load(".version 8.5\n.target sm_70\n").0, code::UNSUPPORTED_PTX_VERSION);
    assert_eq!(load(".version 8.0\n.target sm_100\n").0, code::NO_BINARY_FOR_GPU);
    let (result, module) = load(".version 8.4\n.target sm_90a\n");
    ok(result);
    ok(cuModuleUnload(module));
    ground.device.set_attribute(75, 10).expect("a device");
    assert_eq!(load(".version 8.0\n.target sm_90a\n").0, code::NO_BINARY_FOR_GPU);
    let (result, module) = load(PTX);
    ok(result);
    assert_eq!(cuModuleGetFunction(&mut 0, module, c"qpair_sum".as_ptr()), code::NOT_FOUND);
    let blocks = |block| {
        let mut blocks = 0;
        let function = function(module, "another");
        (cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, function, block, 0), blocks)
    };
    assert_eq!((blocks(256), blocks(1025).0), ((0, 8), code::INVALID_VALUE));
    ok(cuModuleUnload(module));
    ground.end();
}

#[test]
fn launches_are_refused() {
    let ground = Ground::new();
    let (_, module) = load(PTX);
    let function = function(module, "qpair_sum_f32");
    let sized = |grid: [u32; 3], block: [u32; 3], shared| {
        let [gx, gy, gz] = grid;
        let [bx, by, bz] = block;
        let mut word = 0u64;
        let mut params: [*mut c_void; 4] = [(&raw mut word).cast(); 4];
        cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, 0, params.as_mut_ptr(), nothing())
    };
    for (grid, block, shared) in [
        ([0, 1, 1], [1, 1, 1], 0),
        ([1, 1, 1], [0, 1, 1], 0),
        ([1, 65536, 1], [1, 1, 1], 0),
        ([1, 1, 1], [1025, 1, 1], 0),
        ([1, 1, 1], [512, 4, 1], 0),
        ([1, 1, 1], [1, 1, 65], 0),
        ([1, 1, 1], [1, 1, 1], 50_000),
    ] {
        assert_eq!(sized(grid, block, shared), code::INVALID_VALUE, "{grid:?} {block:?} {shared}");
    }
    ok(sized([1, 1, 1], [1024, 1, 1], 0));
    ok(cuCtxSynchronize());
    assert_eq!(launch(crate::ground::function(module, "another"), 0, &[0; 4]), code::NOT_SUPPORTED);
    ok(cuModuleUnload(module));
    ground.end_with(&["no kernel another"]);
}

#[test]
fn what_kernels_may_not_touch_ends_their_context() {
    type Words = fn(u64, u64) -> [u64; 4];
    let cases: [(Words, Code, &str); 4] = [
        (|a, b| [a, a, b, 26], code::ILLEGAL_ADDRESS, "run over the end"),
        (|a, _| [a, a, a + 2, 3], code::MISALIGNED_ADDRESS, "no multiple of 4"),
        (|a, _| [a, a, 1 << 45, 1], code::ILLEGAL_ADDRESS, "not pinned"),
        (|a, b| [a, b - 4, b, 1], code::ILLEGAL_ADDRESS, "belongs to nothing"),
    ];
    for (words, error, why) in cases {
        let ground = Ground::new();
        let (_, module) = load(PTX);
        let (a, b, stream) = (alloc(100), alloc(100), stream());
        ok(launch(function(module, "qpair_sum_f32"), stream, &words(a, b)));
        assert_eq!(cuStreamSynchronize(stream), error);
        // Everything fails from then on; what is to be freed is.
        assert_eq!(cuMemAlloc_v2(&mut 0, 1), error);
        assert_eq!(cuCtxSynchronize(), error);
        let ends = [cuMemFree_v2(a), cuMemFree_v2(b), cuStreamDestroy_v2(stream), cuModuleUnload(module)];
        assert_eq!(ends, [error; 4]);
        ground.end_with(&[why]);
    }
}

#[test]
fn kernels_need_peer_access() {
    let (other, ground) = (Ground::new(), Ground::new());
    let (_, module) = load(PTX);
    let (a, stream) = (alloc(4), stream());
    let b = other.within(|| alloc(4));
    ok(cuCtxEnablePeerAccess(other.context, 0));
    let sum = function(module, "qpair_sum_f32");
    ok(launch(sum, stream, &[a, a, b, 1]));
    ok(cuStreamSynchronize(stream));
    ok(cuMemFree_v2(a));
    ok(cuStreamDestroy_v2(stream));
    ok(cuModuleUnload(module));
    let a = alloc(4);
    other.within(|| {
        let (_, module) = load(PTX);
        let stream = crate::ground::stream();
        ok(launch(function(module, "qpair_sum_f32"), stream, &[a, b, b, 1]));
        assert_eq!(cuStreamSynchronize(stream), code::ILLEGAL_ADDRESS);
        let ends = [cuMemFree_v2(b), cuStreamDestroy_v2(stream), cuModuleUnload(module)];
        assert_eq!(ends, [code::ILLEGAL_ADDRESS; 3]);
    });
    ok(cuMemFree_v2(a));
    ground.end();
    other.end_with(&["peer access is not enabled"]);
}
