//! What the library does on a GPU while another one of the process captures a graph, which forbids much and is spoilt by what is
//! forbidden. On a CUDA driver in memory; each test has GPUs of its own.

use qpair_fake_cuda::{code, control};
use qpair_verbs::calc::{Calc, ReduceOp};
use qpair_verbs::{Context, Gpu, GpuBuffer, GpuStage, ProtectionDomain};

use support::{contents, gpu, wait_until};

mod support;

const LEN: usize = 4096;

fn domain() -> ProtectionDomain {
    Context::open("soft0").expect("the software device").alloc_pd().expect("a domain")
}

/// Two buffers of a GPU, the first with these bytes.
fn buffers(gpu: Gpu, byte: u8) -> [GpuBuffer; 2] {
    let mut from = gpu.alloc(LEN).expect("memory");
    from.write(0, &[byte; LEN]).expect("its own memory");
    [from, gpu.alloc(LEN).expect("memory")]
}

/// Nothing was refused, which would have ended the capture.
#[track_caller]
fn is_undisturbed(fake: control::Device) {
    assert!(!fake.calls().contains("STREAM_CAPTURE"), "{}", fake.calls());
    assert_eq!(fake.violations(), "");
}

#[test]
fn copies_slots_events_and_kernels_do_not_disturb_a_capture() {
    let (gpu, fake) = gpu();
    fake.set("capturing", 1).unwrap();
    let [from, mut to] = buffers(gpu, 3);
    to.copy_from(0, &from, 0, LEN).unwrap();
    to.combine_from((0, &from, 0), LEN, Calc::of::<u32>(ReduceOp::Sum)).unwrap();
    assert_eq!(contents(&to), [6; LEN]);
    let mut stage = GpuStage::new(&domain(), gpu, 2, LEN).unwrap();
    stage.fill(0, &from, 0..LEN).unwrap();
    stage.fill(1, &to, 0..LEN).unwrap();
    while !stage.is_done(0).unwrap() {}
    stage.wait(1).unwrap();
    gpu.record().unwrap().wait().unwrap();
    // In a thread of its own, whose stream is made meanwhile.
    std::thread::scope(|scope| scope.spawn(|| assert_eq!(contents(&from), [3; LEN])).join().unwrap());
    is_undisturbed(fake);
    assert_eq!(control::capture_mode().unwrap(), 0, "the thread has its own mode again");
    fake.set("capturing", 0).unwrap();
}

#[test]
fn memory_is_given_back_once_nothing_is_captured_any_more() {
    let (gpu, fake) = gpu();
    let [buffer, _other] = buffers(gpu, 1);
    let used = fake.get("used").unwrap();
    fake.set("capturing", 1).unwrap();
    drop(buffer);
    assert_eq!(fake.get("used").unwrap(), used);
    fake.set("capturing", 0).unwrap();
    wait_until(fake, "given back", || fake.get("used").unwrap() < used);
    assert_eq!(fake.violations(), "");
}

#[test]
fn what_the_driver_refuses_to_wait_for_is_not_over() {
    let (gpu, fake) = gpu();
    let [from, mut to] = buffers(gpu, 5);
    fake.fail_times("cuStreamSynchronize", 1, 3, code::STREAM_CAPTURE_UNSUPPORTED).unwrap();
    to.copy_from(0, &from, 0, LEN).unwrap();
    assert_eq!(contents(&to), [5; LEN]);
    let mut stage = GpuStage::new(&domain(), gpu, 2, LEN).unwrap();
    let slot = |stage: &GpuStage, slot| {
        let mut bytes = [0; LEN];
        stage.local(slot, LEN).read(0, &mut bytes).expect("its own memory");
        bytes
    };
    fake.set("queries", 1).unwrap();
    fake.fail("cuEventQuery", 1, code::STREAM_CAPTURE_UNSUPPORTED).unwrap();
    stage.fill(0, &from, 0..LEN).unwrap();
    assert!(!stage.is_done(0).unwrap() && stage.is_done(0).unwrap());
    assert_eq!(slot(&stage, 0), [5; LEN]);
    fake.fail("cuEventSynchronize", 1, code::STREAM_CAPTURE_INVALIDATED).unwrap();
    stage.fill(1, &from, 0..LEN).unwrap();
    stage.wait(1).unwrap();
    assert_eq!(slot(&stage, 1), [5; LEN]);
    // What could not be started whole is over when that is told.
    fake.fail("cuEventRecord", 1, code::STREAM_CAPTURE_UNSUPPORTED).unwrap();
    fake.fail("cuStreamSynchronize", 1, code::STREAM_CAPTURE_UNSUPPORTED).unwrap();
    let waits = fake.count("cuStreamSynchronize").unwrap();
    stage.fill(0, &to, 0..LEN).unwrap_err();
    assert_eq!(fake.count("cuStreamSynchronize").unwrap(), waits + 2);
    assert_eq!(fake.violations(), "");
}
