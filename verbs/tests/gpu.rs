//! GPU memory beyond what the conformance suite has: memory of other libraries, of older drivers, of processes that died; kernels that fail; and what is told where there is none. On a CUDA driver in memory; each test has GPUs of its own.

use std::time::Duration;

use qpair_fake_cuda::{code, control};
use qpair_verbs::calc::{Calc, DataType, ReduceOp, Scale};
use qpair_verbs::{
    Access, Completion, CompletionQueue, Gpu, GpuBuffer, GpuError, GpuHold, MemoryError, ProtectionDomain, QueuePair,
    WcStatus,
};

use support::{Far, contents, gpu, hear, introduce, soft, wait_until};

mod support;

fn done(cq: &mut CompletionQueue) -> Completion<'_> {
    cq.wait_for(LIMIT).expect("done in time")
}

/// Two connected queue pairs.
fn pair(pd: &ProtectionDomain, cqs: [&CompletionQueue; 2]) -> (QueuePair, QueuePair) {
    let [a, b] = cqs.map(|cq| pd.rc(cq).build().expect("a queue pair"));
    let (to_a, to_b) = (a.address(), b.address());
    (a.connect(&to_b).expect("connected"), b.connect(&to_a).expect("connected"))
}

/// Writes from a region into another, over queue pairs of one context.
fn write_over(from: GpuBuffer, into: GpuBuffer) -> (GpuBuffer, GpuBuffer) {
    let len = from.len();
    let (ctx, pd) = soft();
    let mut cq = ctx.create_cq(8).expect("a queue");
    let (mut a, _b) = pair(&pd, [&cq; 2]);
    let from = pd.register_gpu(from, Access::NONE).expect("registered");
    let into = pd.register_gpu(into, Access::REMOTE_WRITE).expect("registered");
    a.write(from.local(0..len), into.remote(0..len)).signaled().post().expect("posted");
    done(&mut cq).ok().expect("a success");
    (from.revoke().expect("nobody else has it"), into.revoke().expect("nobody else has it"))
}

#[test]
fn a_unit_of_memory_that_can_not_be_is_an_error() {
    let (gpu, fake) = gpu();
    for unit in [0, 1 << 41, u64::MAX] {
        fake.set("granularity", unit).unwrap();
        let error = gpu.alloc(5000).unwrap_err();
        assert!(matches!(error, GpuError::Nonsense { call: "cuMemGetAllocationGranularity", .. }), "{unit}: {error}");
    }
    fake.set("granularity", 2 << 20).unwrap();
    drop(gpu.alloc(5000).unwrap());
}

#[test]
fn memory_of_another_library_is_used_and_given_back_to_it() {
    let (gpu, fake) = gpu();
    let theirs = gpu.alloc(10_000).unwrap();
    let address = theirs.address();
    // SAFETY: the buffer is the memory's owner, and nobody else uses it.
    let mut adopted = unsafe { gpu.adopt(address + 100, 5000, Box::new(theirs)) }.unwrap();
    adopted.write(0, &[7; 5000]).unwrap();
    let (_, copied) = write_over(adopted, gpu.alloc(5000).unwrap());
    assert_eq!(contents(&copied), [7; 5000]);
    drop(copied);
    assert!(!fake.live().contains("mapping"), "{}", fake.live());
    assert_eq!(fake.violations(), "");
}

#[test]
fn an_event_is_done_once_its_stream_has_come_to_it() {
    let (gpu, fake) = gpu();
    let at_once = gpu.record().unwrap();
    at_once.wait().unwrap();
    assert!(at_once.is_done().unwrap());
    fake.hold().unwrap();
    let held = gpu.record().unwrap();
    assert!(!held.is_done().unwrap() && !held.clone().is_done().unwrap());
    assert_eq!(held.gpu(), gpu);
    fake.let_go().unwrap();
    held.wait().unwrap();
    assert!(held.is_done().unwrap());
    fake.fail("cuEventRecord", 1, code::INVALID_HANDLE).unwrap();
    let refused = gpu.record().unwrap_err();
    assert!(matches!(refused, GpuError::Driver { call: "cuEventRecord", .. }), "{refused}");
    drop((at_once, held));
    assert!(!fake.live().contains("event"), "{}", fake.live());
    assert_eq!(fake.violations(), "");
}

#[test]
fn a_stream_that_is_held_goes_on_once_it_is_released_or_the_hold_is_dropped() {
    let (gpu, fake) = gpu();
    let (mut from, mut into) = (gpu.alloc(8).unwrap(), gpu.alloc(8).unwrap());
    from.write(0, &[7; 8]).unwrap();
    for (round, let_go) in [GpuHold::release, drop::<GpuHold>].into_iter().enumerate() {
        into.write(0, &[0; 8]).unwrap();
        let hold = gpu.hold().unwrap();
        assert_eq!(hold.gpu(), gpu);
        fake.copy_later(into.address(), from.address(), 8).unwrap();
        let behind = gpu.record().unwrap();
        for _ in 0..10 {
            assert!(!behind.is_done().unwrap());
        }
        // This library's own work does not wait for it.
        assert_eq!(contents(&into), [0; 8], "in round {round}");
        let_go(hold);
        behind.wait().unwrap();
        assert_eq!(contents(&into), [7; 8]);
    }
    assert_eq!(fake.violations(), "");
}

/// As where an error ends a function early.
#[test]
fn memory_that_goes_early_is_there_until_kernels_that_use_it_have_ended() {
    for is_mapped in [true, false] {
        let fake = control::add_device().unwrap();
        fake.set_attribute(102, i32::from(is_mapped)).unwrap();
        let gpu = Gpu::open(fake.ordinal() as usize).unwrap();
        let kept = || fake.live().matches("reservation").count() + fake.live().matches("allocation").count();
        for is_held in [false, true] {
            let (from, into) = (gpu.alloc(8).unwrap(), gpu.alloc(8).unwrap());
            let hold = is_held.then(|| gpu.hold().unwrap());
            fake.copy_later(into.address(), from.address(), 8).unwrap();
            drop((from, into));
            if let Some(hold) = hold {
                assert_eq!(kept(), 2, "mapped: {is_mapped}");
                let other = gpu.hold().unwrap();
                hold.release();
                assert_eq!(kept(), 2, "who frees it would wait for the other");
                other.release();
            }
            wait_until(fake, "given back", || kept() == 0);
            assert_eq!(fake.violations(), "", "mapped: {is_mapped}, held: {is_held}");
        }
    }
}

#[test]
fn holds_of_a_stream_are_released_in_any_order_and_take_no_more_words_than_there_are_at_a_time() {
    let (gpu, fake) = gpu();
    let held: Vec<GpuHold> = (0..3).map(|_| gpu.hold().unwrap()).collect();
    let behind = gpu.record().unwrap();
    for hold in held.into_iter().rev() {
        assert!(!behind.is_done().unwrap() && !behind.is_done().unwrap());
        hold.release();
    }
    behind.wait().unwrap();
    let before = fake.count("cuMemHostAlloc").unwrap();
    for _ in 0..1000 {
        gpu.hold().unwrap().release();
    }
    // A stream that comes late sees that words have gone further.
    assert!(gpu.record().unwrap().wait().is_ok());
    assert_eq!((before, fake.count("cuMemHostAlloc").unwrap()), (1, 1));
    let many: Vec<GpuHold> = (0..200).map(|_| gpu.hold().unwrap()).collect();
    assert!(fake.count("cuMemHostAlloc").unwrap() > 1);
    std::thread::scope(|scope| {
        let behind = gpu.record().unwrap();
        scope.spawn(move || behind.wait().unwrap());
        drop(many);
    });
    assert_eq!(fake.violations(), "");
}

#[test]
fn a_gpu_whose_streams_can_not_be_held_says_so_and_none_is() {
    let (gpu, fake) = gpu();
    fake.fail("cuStreamWaitValue32", 1, code::NOT_SUPPORTED).unwrap();
    let refused = gpu.hold().unwrap_err();
    assert_eq!(refused, GpuError::NoHold { ordinal: gpu.ordinal() });
    assert!(refused.to_string().contains("wait for the operation there"), "{refused}");
    fake.fail("cuStreamWaitValue32", 1, code::INVALID_HANDLE).unwrap();
    assert!(matches!(gpu.hold(), Err(GpuError::Driver { call: "cuStreamWaitValue32_v2", .. })));
    gpu.record().unwrap().wait().unwrap();
    // Nor does it where NICs write what nobody makes visible.
    let fake = control::add_device().unwrap();
    fake.set_attribute(98, 0).unwrap();
    fake.set_attribute(117, 0).unwrap();
    let gpu = Gpu::open(fake.ordinal() as usize).unwrap();
    gpu.hold().unwrap().release();
    gpu.record().unwrap().wait().unwrap();
    fake.fail("cuMemHostAlloc", 1, code::OUT_OF_MEMORY).unwrap();
    let many: Vec<_> = (0..100).map(|_| gpu.hold()).collect();
    assert_eq!(many.iter().filter(|hold| hold.is_err()).count(), 1);
}

#[test]
fn what_is_no_memory_of_the_gpu_is_not_adopted() {
    let ((gpu, _), (other, _)) = (gpu(), gpu());
    let here = [0_u8; 100];
    // SAFETY: refused, and so never touched.
    let refused = unsafe { gpu.adopt(here.as_ptr() as u64, 100, Box::new(())) };
    assert!(matches!(refused, Err(GpuError::NotGpuMemory { .. })), "{refused:?}");
    let theirs = other.alloc(100).unwrap();
    // SAFETY: as above.
    let refused = unsafe { gpu.adopt(theirs.address(), 100, Box::new(())) }.unwrap_err();
    assert!(matches!(refused, GpuError::OtherGpu { .. }), "{refused}");
    assert!(refused.to_string().contains("open that one"));
    assert_eq!(gpu.alloc(0).unwrap_err(), GpuError::Length { len: 0 });
}

#[test]
fn where_memory_can_not_be_shared_it_is_plain() {
    let fake = control::add_device().unwrap();
    fake.set_attribute(102, 0).unwrap();
    let gpu = Gpu::open(fake.ordinal() as usize).unwrap();
    assert!(!gpu.attributes().shared_by_descriptor);
    let mut from = gpu.alloc(3000).unwrap();
    from.write(0, &[5; 3000]).unwrap();
    let (_, into) = write_over(from, gpu.alloc(3000).unwrap());
    assert_eq!(contents(&into), [5; 3000]);
    assert!(fake.count("cuMemAlloc").unwrap() >= 2);
}

#[test]
fn parts_of_one_memory_are_copied_and_combined_apart_from_each_other() {
    let (gpu, fake) = gpu();
    let mut memory = gpu.alloc(96).unwrap();
    memory.write(0, &(0..96).collect::<Vec<u8>>()).unwrap();
    memory.copy_within(64, 0..32).unwrap();
    memory.combine_within(64, 32..64, Calc::of::<u8>(ReduceOp::Sum)).unwrap();
    let expected: Vec<u8> = (0..64).chain((0..32).map(|at| 2 * at + 32)).collect();
    assert_eq!(contents(&memory), expected);
    // Side by side they may lie, and not one over the other.
    memory.copy_within(0, 1..2).unwrap();
    for (offset, from) in [(0, 31..63), (33, 2..34), (5, 5..6)] {
        let error = memory.copy_within(offset, from.clone()).unwrap_err();
        assert!(matches!(error, GpuError::Overlap { len } if len == from.len()), "{error}");
    }
    #[expect(clippy::reversed_empty_ranges, reason = "what makes no sense")]
    let reversed = 6..5;
    for (offset, from) in [(65, 0..32), (0, 65..97), (0, reversed)] {
        let error = memory.combine_within(offset, from, Calc::of::<u8>(ReduceOp::Sum)).unwrap_err();
        assert!(matches!(error, GpuError::Range { .. }), "{error}");
    }
    assert_eq!(fake.violations(), "");
}

#[test]
fn elements_that_are_not_aligned_are_combined_all_the_same() {
    let (gpu, _) = gpu();
    let (mut a, mut b) = (gpu.alloc(101).unwrap(), gpu.alloc(101).unwrap());
    for buffer in [&mut a, &mut b] {
        buffer.write(1, &[1_u32.to_ne_bytes(); 25].concat()).unwrap();
    }
    a.combine_from((1, &b, 1), 100, Calc::of::<u32>(ReduceOp::Sum)).unwrap();
    assert_eq!(contents(&a)[1..], [2_u32.to_ne_bytes(); 25].concat());
    let error = a.combine_from((0, &b, 0), 99, Calc::of::<u32>(ReduceOp::Sum)).unwrap_err();
    assert!(matches!(error, GpuError::Elements { len: 99, size: 4, .. }), "{error}");
}

#[test]
fn what_the_driver_refuses_is_told_and_nothing_is_left_under_way() {
    let (gpu, fake) = gpu();
    let mut buffer = gpu.alloc(64).unwrap();
    fake.fail("cuMemcpyAsync", 1, code::ECC_UNCORRECTABLE).unwrap();
    let error = buffer.write(0, &[1; 64]).unwrap_err();
    assert!(error.to_string().contains("cuMemcpyAsync failed: CUDA_ERROR_ECC_UNCORRECTABLE"), "{error}");
    buffer.write(0, &[2; 64]).unwrap();
    assert_eq!(contents(&buffer), [2; 64]);
    let error = buffer.read(60, &mut [0; 5]).unwrap_err();
    assert_eq!(error, GpuError::Range { start: 60, end: 65, len: 64 });
    assert!(matches!(gpu.alloc(1 << 40), Err(GpuError::OutOfMemory { .. })));
    assert_eq!(fake.violations(), "");
}

#[test]
fn a_gpu_that_is_not_there_is_an_error_with_the_count() {
    let (_, fake) = gpu();
    let error = Gpu::open(fake.ordinal() as usize + 40).unwrap_err();
    assert!(matches!(error, GpuError::NoDevice { .. }) && error.to_string().contains("nvidia-smi -L"), "{error}");
}

#[test]
fn words_of_a_gpu_are_changed_by_its_owner_too() {
    let (gpu, fake) = gpu();
    let (_, pd) = soft();
    let region = pd.register_gpu(gpu.alloc(64).unwrap(), Access::REMOTE_ATOMIC).unwrap();
    assert_eq!([3, 4].map(|add| region.fetch_add(56, add).unwrap()), [0, 3]);
    assert!(matches!(region.fetch_add(57, 1), Err(MemoryError::Range { start: 57, end: 65, len: 64 })));
    assert!(matches!(region.fetch_add(12, 1), Err(MemoryError::Misaligned { offset: 12 })));
    let mut bytes = [0; 64];
    region.read(0, &mut bytes).unwrap();
    assert_eq!((bytes[..56].to_vec(), &bytes[56..]), (vec![0; 56], &7_u64.to_ne_bytes()[..]));
    assert_eq!(fake.violations(), "");
}

#[test]
fn an_atomic_whose_kernel_fails_fails_both_queue_pairs() {
    let (gpu, fake) = gpu();
    let (ctx, pd) = soft();
    let mut cq = ctx.create_cq(8).unwrap();
    let (mut a, mut b) = pair(&pd, [&cq; 2]);
    b.recv(pd.alloc(8).unwrap()).post().unwrap();
    let region = pd.register_gpu(gpu.alloc(64).unwrap(), Access::REMOTE_ATOMIC).unwrap();
    fake.fault(2, code::LAUNCH_FAILED).unwrap();
    a.fetch_add(pd.alloc(8).unwrap(), region.remote(0..8), 5).signaled().post().unwrap();
    let first = done(&mut cq);
    first.ok().expect("the first kernel does not fail");
    let memory = first.into_buffer().unwrap();
    assert_eq!(memory[..], [0; 8]);
    a.compare_swap(memory, region.remote(0..8), 5, 6).signaled().post().unwrap();
    let mut ended = [(); 2].map(|()| done(&mut cq).status());
    ended.sort_by_key(|status| *status != WcStatus::REM_OP_ERR);
    assert_eq!(ended, [WcStatus::REM_OP_ERR, WcStatus::WR_FLUSH_ERR]);
    assert_eq!(fake.violations(), "");
}

#[test]
fn a_datagram_that_can_not_be_read_from_its_gpu_is_told_to_its_sender() {
    let (gpu, fake) = gpu();
    let (ctx, pd) = soft();
    let mut cq = ctx.create_cq(8).unwrap();
    let [mut a, b] = [(); 2].map(|()| pd.ud(&cq).build().unwrap().activate().unwrap());
    let to = a.address_handle(&b.address()).unwrap();
    let region = pd.register_gpu(gpu.alloc(64).unwrap(), Access::NONE).unwrap();
    fake.fail("cuMemcpyAsync", 1, code::ECC_UNCORRECTABLE).unwrap();
    a.send(region.local(0..64), &to).signaled().post().unwrap();
    assert_eq!(done(&mut cq).status(), WcStatus::LOC_QP_OP_ERR);
    assert_eq!(fake.violations(), "");
}

/// That a kernel failed, as everything says that is asked of its GPU from then on.
fn is_launch_failed(error: &GpuError) -> bool {
    matches!(error, GpuError::Driver { code, .. } if *code == code::LAUNCH_FAILED as i32)
}

#[test]
fn a_kernel_that_fails_is_told_and_its_gpu_is_lost() {
    let (gpu, fake) = gpu();
    let (mut a, b) = (gpu.alloc(64).unwrap(), gpu.alloc(64).unwrap());
    fake.fault(2, code::LAUNCH_FAILED).unwrap();
    let sum = Calc::of::<u32>(ReduceOp::Sum);
    a.combine_from((0, &b, 0), 64, sum).unwrap();
    let error = a.combine_from((0, &b, 0), 64, sum).unwrap_err();
    assert!(is_launch_failed(&error) && error.to_string().contains("the GPU's context is lost"), "{error}");
    let errors = [
        a.write(0, &[0; 64]).unwrap_err(),
        b.read(0, &mut [0; 64]).unwrap_err(),
        a.copy_from(0, &b, 0, 64).unwrap_err(),
        a.scale(0, 64, DataType::U32, Scale::Divide(2)).unwrap_err(),
        gpu.free_memory().unwrap_err(),
        gpu.alloc(64).unwrap_err(),
    ];
    for error in errors {
        assert!(is_launch_failed(&error), "{error}");
    }
    drop((a, b));
    assert_eq!(fake.violations(), "");
}

#[test]
fn a_kernel_that_fails_for_a_request_fails_both_queue_pairs() {
    let (gpu, fake) = gpu();
    let (ctx, pd) = soft();
    let (mut near, mut far) = (ctx.create_cq(8).unwrap(), ctx.create_cq(8).unwrap());
    let (mut a, mut b) = pair(&pd, [&near, &far]);
    let into = pd.register_gpu(gpu.alloc(64).unwrap(), Access::NONE).unwrap();
    let from = pd.register_gpu(gpu.alloc(64).unwrap(), Access::REMOTE_READ).unwrap();
    b.recv(pd.alloc(8).unwrap()).post().unwrap();
    fake.fault(1, code::LAUNCH_FAILED).unwrap();
    let sum = Calc::of::<f32>(ReduceOp::Sum);
    a.read_reduce(into.local(0..64), from.remote(0..64), sum).signaled().post().unwrap();
    a.read(into.local(0..64), from.remote(0..64)).signaled().post().unwrap();
    // It was this side's, where the result was to be.
    for expected in [WcStatus::LOC_QP_OP_ERR, WcStatus::WR_FLUSH_ERR] {
        assert_eq!(done(&mut near).status(), expected);
    }
    assert_eq!(done(&mut far).status(), WcStatus::WR_FLUSH_ERR);
    assert!(matches!(into.read(0, &mut [0; 64]), Err(MemoryError::Gpu(error)) if is_launch_failed(&error)));
    into.revoke().unwrap();
    from.revoke().unwrap();
    assert!(!fake.live().contains("mapping"), "{}", fake.live());
}

#[test]
fn a_copy_that_fails_is_told_as_of_the_side_whose_gpu_it_was() {
    let (own, theirs) = (WcStatus::LOC_QP_OP_ERR, WcStatus::REM_OP_ERR);
    for (request, on_gpu, expected) in [
        ("write", [true, false], own),
        ("write", [false, true], theirs),
        ("write", [true, true], theirs),
        ("read", [true, false], own),
        ("read", [false, true], theirs),
        ("send", [true, false], own),
        ("send", [false, true], theirs),
    ] {
        let (gpu, fake) = gpu();
        let (ctx, pd) = soft();
        let (mut near, mut far) = (ctx.create_cq(8).unwrap(), ctx.create_cq(8).unwrap());
        let (mut a, mut b) = pair(&pd, [&near, &far]);
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let host = pd.expose(64, access).unwrap();
        let memory = pd.register_gpu(gpu.alloc(64).unwrap(), access).unwrap();
        let local = |on_gpu| if on_gpu { memory.local(0..64) } else { host.local(0..64) };
        let remote = |on_gpu| if on_gpu { memory.remote(0..64) } else { host.remote(0..64) };
        b.recv(local(on_gpu[1])).post().unwrap();
        fake.fail_times("cuMemcpyAsync", 1, 1, code::LAUNCH_FAILED).unwrap();
        match request {
            "write" => a.write(local(on_gpu[0]), remote(on_gpu[1])).signaled().post().unwrap(),
            "read" => a.read(local(on_gpu[0]), remote(on_gpu[1])).signaled().post().unwrap(),
            _ => a.send(local(on_gpu[0])).signaled().post().unwrap(),
        }
        assert_eq!(done(&mut near).status(), expected, "{request} {on_gpu:?}");
        // The other side's queue pair fails with it.
        assert_ne!(done(&mut far).status(), WcStatus::SUCCESS, "{request} {on_gpu:?}");
    }
}

#[test]
#[ignore = "needs a test to start it, as its peer process"]
fn far_process() {
    control::load().unwrap();
    let (ctx, pd) = soft();
    let cq = ctx.create_cq(8).unwrap();
    let mut buffer = Gpu::open(0).unwrap().alloc(64).unwrap();
    buffer.write(0, &[7; 64]).unwrap();
    let region = pd.register_gpu(buffer, Access::REMOTE_READ).unwrap();
    let qp = pd.rc(&cq).build().unwrap();
    let Some(_qp) = introduce(qp, region.remote(0..64)) else { return };
    while hear().is_some() {}
}

#[test]
fn memory_of_a_process_that_died_is_an_error_and_is_unmapped() {
    control::load().unwrap();
    let (gpu, fake) = (Gpu::open(0).unwrap(), control::Device::of(0));
    let (ctx, pd) = soft();
    let mut cq = ctx.create_cq(8).unwrap();
    let own = pd.register_gpu(gpu.alloc(64).unwrap(), Access::NONE).unwrap();
    let mappings = || fake.live().matches("mapping").count();
    // Before its memory was mapped here, and after.
    for reached in [false, true] {
        let mut far = Far::start(&pd, &cq, &[]);
        let read = |far: &mut Far| far.qp.read(own.local(0..64), far.target).signaled().post().unwrap();
        if reached {
            read(&mut far);
            done(&mut cq).ok().unwrap();
            let mut bytes = [0; 64];
            own.read(0, &mut bytes).unwrap();
            assert_eq!(bytes, [7; 64]);
            assert_eq!(mappings(), 2);
        }
        far.qp.recv(pd.alloc(8).unwrap()).post().unwrap();
        far.kill();
        if !reached {
            read(&mut far);
            assert!(!done(&mut cq).status().is_success());
        }
        assert!(!done(&mut cq).status().is_success());
        read(&mut far);
        assert_eq!(done(&mut cq).status(), WcStatus::WR_FLUSH_ERR);
        drop(far);
        // A queue lets go of queue pairs when it is polled.
        wait_until(fake, "unmapped", || cq.poll().unwrap().is_none() && mappings() <= 1);
    }
    assert_eq!(fake.violations(), "");
}

const LIMIT: Duration = Duration::from_secs(20);
