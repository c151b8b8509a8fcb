//! Reductions where the device can not combine what it reads.

use qpair_verbs::calc::{Calc, ReduceOp};

use super::*;

/// Where the device can not combine what it reads, payloads go through memory of the pool; a receive that has to wait for
/// that does not keep the worker from anything.
#[test]
fn staged_receives_wait_for_memory_and_hold_nothing_up() {
    let (mut worker, ep, back) = mirror(Config::default().pool_limit(32 << 10));
    worker.read_reduce = false;
    let sum = Some(Calc::of::<i32>(ReduceOp::Sum));
    let mut receives = Vec::new();
    for tag in [1, 2] {
        let mut memory = worker.domain().alloc(20_000).unwrap();
        memory.copy_from_slice(&3i32.to_le_bytes().repeat(5000));
        receives.push(worker.recv_into(back, Tag(tag), memory, sum).unwrap());
    }
    let region = worker.domain().expose(20_000, Access::REMOTE_READ).unwrap();
    region.write(0, &4i32.to_le_bytes().repeat(5000)).unwrap();
    // Takes the one slab of the pool, and keeps it.
    worker.send(ep, Tag(3), region.remote(0..20_000)).unwrap();
    let mut kept = None;
    while kept.is_none() {
        if let Some(Event::Received { message, .. }) = worker.wait(Some(PATIENCE)).unwrap() {
            kept = Some(message);
        }
    }
    for tag in [1, 2] {
        worker.send(ep, Tag(tag), region.remote(0..20_000)).unwrap();
    }
    worker.send(ep, Tag(4), &b"short"[..]).unwrap();
    loop {
        match worker.wait(Some(PATIENCE)).unwrap().expect("the short one comes in time") {
            Event::Received { tag: Tag(4), .. } => break,
            Event::Sent { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    drop(kept);
    let mut done = Vec::new();
    while done.len() < 2 {
        match worker.wait(Some(PATIENCE)).unwrap().expect("the long ones come in time") {
            Event::ReceivedInto { op, memory: Local::Buffer(memory), .. } => {
                assert!(memory[..] == 7i32.to_le_bytes().repeat(5000)[..]);
                done.push(op);
            }
            Event::Sent { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(done, receives);
}

/// Where the device can not combine what it reads, it is read into memory of the pool and combined from there.
#[test]
fn a_get_is_combined_where_the_device_can_not() {
    let (mut worker, ep, _) = mirror(Config::default());
    worker.read_reduce = false;
    let sum = Some(Calc::of::<i32>(ReduceOp::Sum));
    let region = worker.domain().expose(20_000, Access::REMOTE_READ).unwrap();
    region.write(0, &4i32.to_le_bytes().repeat(5000)).unwrap();
    let filled = |worker: &Worker, len: usize| {
        let mut memory = worker.domain().alloc(len).unwrap();
        memory.fill(0);
        memory
    };
    let memory = filled(&worker, 20_000);
    let op = worker.get(ep, region.remote(4..20_000), memory, sum).unwrap();
    let Some(Event::Got { op: got, memory: Local::Buffer(memory), .. }) = worker.wait(Some(PATIENCE)).unwrap() else {
        panic!("it is there in time")
    };
    assert_eq!(got, op);
    assert!(memory[..19_996] == 4i32.to_le_bytes().repeat(4999)[..] && memory[19_996..] == [0; 4]);

    let refused = worker.get(ep, region.remote(0..6), memory, sum).unwrap_err();
    assert_eq!(refused.error, OneSidedFailure::Post(PostError::PartialElement { len: 6, size: 4 }));
    let refused = worker.get(ep, region.remote(0..8), filled(&worker, 4), sum).unwrap_err();
    assert_eq!(refused.error, OneSidedFailure::Post(PostError::Range { start: 0, end: 8, len: 4 }));
    let list = vec![filled(&worker, 8), filled(&worker, 8)];
    let refused = worker.get(ep, region.remote(0..8), list, sum).unwrap_err();
    assert!(matches!(refused.error, OneSidedFailure::Post(PostError::NotSupported { .. })));
    assert_eq!(refused.memory.len(), 16, "it is handed back");
}
