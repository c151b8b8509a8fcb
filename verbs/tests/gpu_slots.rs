//! Slots by which bytes of a GPU come and go where a device does not reach its memory. On a CUDA driver in memory; each test has
//! GPUs of its own.

use std::time::{Duration, Instant};

use qpair_fake_cuda::code;
use qpair_verbs::calc::{Calc, DataType, ReduceOp};
use qpair_verbs::{Context, Gpu, GpuBuffer, GpuError, GpuStage, Local, MemoryError, PostError, ProtectionDomain};

use support::{contents, gpu};

mod support;

const LIMIT: Duration = Duration::from_secs(20);

fn domain() -> ProtectionDomain {
    Context::open("soft0").expect("the software device").alloc_pd().expect("a domain")
}

fn buffer(gpu: Gpu, bytes: &[u8]) -> GpuBuffer {
    let mut buffer = gpu.alloc(bytes.len()).expect("memory");
    buffer.write(0, bytes).expect("its own memory");
    buffer
}

fn slot(stage: &GpuStage, slot: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    stage.local(slot, len).read(0, &mut bytes).expect("its own memory");
    bytes
}

fn until_done(stage: &mut GpuStage, slot: usize) {
    let start = Instant::now();
    while !stage.is_done(slot).expect("no failure") {
        assert!(start.elapsed() < LIMIT, "the copy does not end");
        std::thread::yield_now();
    }
}

#[test]
fn what_is_copied_is_not_behind_what_a_program_has_its_gpu_do() {
    let (near, fake) = gpu();
    // A thread's own, and that of slots.
    let from = buffer(near, &[1; 100]);
    let mut stage = GpuStage::new(&domain(), near, 1, 100).expect("memory");
    stage.fill(0, &from, 0..100).expect("started");
    let made = fake.count("cuStreamCreateWithPriority").unwrap();
    assert!(made >= 2 && fake.get("urgent_streams").unwrap() == made && fake.count("cuStreamCreate").unwrap() == 0);
}

#[test]
fn bytes_come_and_go_by_slots_of_the_processor_and_of_a_neighbour() {
    let ((near, _), (other, other_fake)) = (gpu(), gpu());
    let domain = domain();
    for mut stage in [
        GpuStage::new(&domain, near, 3, 100).expect("memory"),
        GpuStage::through(&domain, near, other, 3, 100).expect("memory"),
    ] {
        assert_eq!((stage.gpu(), stage.count(), stage.slot_len()), (near, 3, 100));
        let from = buffer(near, &(0..200).collect::<Vec<u8>>());
        let mut to = buffer(near, &[7; 200]);
        // At any offsets, some under way together.
        stage.fill(0, &from, 0..100).expect("started");
        stage.fill(2, &from, 101..104).expect("started");
        until_done(&mut stage, 0);
        stage.wait(2).expect("no failure");
        assert_eq!(slot(&stage, 0, 100), (0..100).collect::<Vec<u8>>());
        assert_eq!(slot(&stage, 2, 3), [101, 102, 103]);
        stage.drain(0, &mut to, 99..199, None).expect("started");
        stage.drain(2, &mut to, 0..3, None).expect("started");
        (0..3).for_each(|slot| until_done(&mut stage, slot));
        let there = contents(&to);
        assert_eq!((&there[..4], &there[98..100], there[199]), (&[101, 102, 103, 7][..], &[7, 0][..], 7));
        assert_eq!(there[99..199], (0..100).collect::<Vec<u8>>());
        // What is combined is so with what is there.
        let ones: Vec<u8> = (0..25).flat_map(|at: u32| (1000 * at).to_le_bytes()).collect();
        let (tens, sum) = (buffer(near, &10_u32.to_le_bytes().repeat(25)), Calc::new(DataType::U32, ReduceOp::Sum));
        let mut all = buffer(near, &ones);
        stage.fill(1, &tens, 0..100).expect("started");
        stage.wait(1).expect("no failure");
        stage.drain(1, &mut all, 0..100, Some(sum.expect("there is one"))).expect("started");
        stage.wait(1).expect("no failure");
        let expected: Vec<u8> = (0..25).flat_map(|at: u32| (1000 * at + 10).to_le_bytes()).collect();
        assert_eq!(contents(&all), expected);
    }
    assert_eq!(other_fake.violations(), "");
}

#[test]
fn slots_of_a_neighbour_are_of_one_that_is_reached_and_are_so_before_a_stream_is_held() {
    let ((near, fake), (other, other_fake)) = (gpu(), gpu());
    let mut stage = GpuStage::through(&domain(), near, other, 2, 64).unwrap();
    let hold = near.hold().unwrap();
    let from = buffer(near, &[5; 64]);
    stage.fill(0, &from, 0..64).expect("started");
    until_done(&mut stage, 0);
    assert_eq!(slot(&stage, 0, 64), [5; 64]);
    hold.release();
    assert_eq!(fake.count("staged").unwrap() + other_fake.count("staged").unwrap(), 0);
    assert_eq!((fake.violations(), other_fake.violations()), (String::new(), String::new()));
    let (apart, fake) = gpu();
    fake.set("peer", 0).unwrap();
    let refused = GpuStage::through(&domain(), near, apart, 2, 64).unwrap_err().to_string();
    assert!(refused.contains("take pinned slots"), "{refused}");
}

/// The processor does not reach what a neighbour has: a kernel does.
#[test]
fn words_of_slots_are_read_and_written_wherever_they_are() {
    let ((near, fake), (other, other_fake)) = (gpu(), gpu());
    let domain = domain();
    for stage in [GpuStage::new(&domain, near, 2, 64).unwrap(), GpuStage::through(&domain, near, other, 2, 64).unwrap()]
    {
        let region = stage.region();
        region.store(8, 5).unwrap();
        assert_eq!(region.fetch_add(8, 2).unwrap(), 5);
        assert_eq!([0, 8, 16].map(|at| region.load(at).unwrap()), [0, 7, 0]);
        assert!(matches!(region.load(4), Err(MemoryError::Misaligned { offset: 4 })));
    }
    assert_eq!((fake.violations(), other_fake.violations()), (String::new(), String::new()));
}

#[test]
fn elements_are_combined_whatever_the_length_of_a_slot() {
    let (gpu, _) = gpu();
    let mut stage = GpuStage::new(&domain(), gpu, 3, 100).expect("memory");
    stage.prepare_to_combine().expect("memory");
    let sum = Calc::new(DataType::F64, ReduceOp::Sum).expect("there is one");
    let ones = buffer(gpu, &1.0_f64.to_le_bytes().repeat(12));
    let mut twos = buffer(gpu, &2.0_f64.to_le_bytes().repeat(12));
    for slot in 0..3 {
        stage.fill(slot, &ones, 0..96).expect("started");
        stage.wait(slot).expect("no failure");
        stage.drain(slot, &mut twos, 0..96, Some(sum)).expect("started");
    }
    (0..3).for_each(|slot| stage.wait(slot).expect("no failure"));
    assert_eq!(contents(&twos), 5.0_f64.to_le_bytes().repeat(12));
}

#[test]
fn memory_stays_until_its_copy_is_over() {
    let (gpu, fake) = gpu();
    let mut stage = GpuStage::new(&domain(), gpu, 2, 4096).expect("memory");
    let from = buffer(gpu, &[5; 4096]);
    fake.hold().expect("it holds");
    stage.fill(0, &from, 0..4096).expect("started");
    drop(from);
    assert!(!stage.is_done(0).expect("no failure"));
    fake.let_go().expect("it goes on");
    until_done(&mut stage, 0);
    assert_eq!(slot(&stage, 0, 4096), [5; 4096]);
    // So does the stage's own.
    let mut to = buffer(gpu, &[0; 4096]);
    fake.hold().expect("it holds");
    stage.drain(0, &mut to, 0..4096, None).expect("started");
    std::thread::scope(|scope| {
        let dropped = scope.spawn(|| drop(stage));
        let start = Instant::now();
        while fake.count("cuEventSynchronize").expect("a count") == 0 {
            assert!(start.elapsed() < LIMIT, "no copy is waited for");
            std::thread::yield_now();
        }
        fake.let_go().expect("it goes on");
        dropped.join().expect("dropped");
    });
    assert_eq!(contents(&to), [5; 4096]);
    assert_eq!(fake.violations(), "");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let ((near, _), (other, _)) = (gpu(), gpu());
    let mut stage = GpuStage::new(&domain(), near, 1, 64).expect("memory");
    let (mut own, foreign) = (buffer(near, &[0; 64]), buffer(other, &[0; 64]));
    let error = stage.fill(0, &foreign, 0..64).expect_err("another GPU's");
    assert!(matches!(error, GpuError::OtherGpu { .. }), "{error}");
    let error = stage.fill(0, &own, 1..65).expect_err("beyond its end");
    assert!(matches!(error, GpuError::Range { start: 1, end: 65, len: 64 }), "{error}");
    let sum = Calc::new(DataType::F32, ReduceOp::Sum).expect("there is one");
    for part in [0..63, 1..5] {
        let error = stage.drain(0, &mut own, part, Some(sum)).expect_err("no whole elements");
        assert!(matches!(error, GpuError::Elements { .. }), "{error}");
    }
    assert!(stage.is_done(0).expect("nothing was started"));
    let none = GpuStage::new(&domain(), near, 0, 64).expect_err("no slots");
    assert!(matches!(none, MemoryError::Length { len: 0, .. }), "{none}");
    let many = GpuStage::new(&domain(), near, usize::MAX, 64).expect_err("too many");
    assert!(matches!(many, MemoryError::Length { .. }), "{many}");
}

#[test]
fn a_copy_that_fails_is_over_and_told() {
    let (gpu, fake) = gpu();
    let mut stage = GpuStage::new(&domain(), gpu, 2, 64).expect("memory");
    let from = buffer(gpu, &[1; 64]);
    fake.fail_times("cuMemcpyAsync", 1, 1, code::LAUNCH_FAILED).expect("a script");
    let error = stage.fill(0, &from, 0..64).expect_err("it fails");
    assert!(matches!(error, GpuError::Driver { .. }), "{error}");
    assert!(stage.is_done(0).expect("nothing is under way"));
    stage.fill(0, &from, 0..64).expect("the next is well");
    fake.fail_times("cuEventQuery", 1, 1, code::LAUNCH_FAILED).expect("a script");
    assert!(stage.is_done(0).is_err());
    assert!(stage.is_done(0).expect("it is over"));
    assert_eq!(fake.violations(), "");
}

#[test]
fn slots_are_taken_and_given_back() {
    let (near, _) = gpu();
    let mut stage = GpuStage::new(&domain(), near, 3, 100).expect("memory");
    let taken: Vec<_> = std::iter::from_fn(|| stage.take()).collect();
    assert_eq!((taken.len(), stage.free(), stage.take()), (3, 0, None));
    stage.give(taken[1]);
    assert_eq!((stage.free(), stage.take(), stage.take()), (1, Some(taken[1]), None));
    // One that nobody has taken is nobody's to give.
    stage.give(0);
    let twice = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| stage.give(0)));
    assert!(twice.is_err());
}

#[test]
fn memory_that_is_not_registered_is_no_requests() {
    let (near, _) = gpu();
    let (ctx, domain) = support::soft();
    let cq = ctx.create_cq(16).expect("a queue");
    let (a, b) = (domain.rc(&cq).build().expect("a queue pair"), domain.rc(&cq).build().expect("another"));
    let (to_a, to_b) = (a.address(), b.address());
    let (mut qp, _other) = (a.connect(&to_b).expect("connected"), b.connect(&to_a).expect("connected"));
    let refused = qp.send(near.alloc(64).expect("memory")).post().expect_err("no domain has it");
    assert_eq!(refused.error, PostError::NotRegistered);
    assert!(matches!(refused.into_parts().1, Local::Gpu(buffer) if buffer.len() == 64));
}
