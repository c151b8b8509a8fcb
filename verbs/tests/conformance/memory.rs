//! Memory of every origin, as source and target of everything; exposing and revoking.

use std::panic::{AssertUnwindSafe, catch_unwind};

use qpair_verbs::{Access, HugePages, MemoryError, WcOpcode, WcStatus};

use crate::harness::{Env, Fill, Mem, Origin, Pair, Piece, Work, is_soft};

two_sided! {
    memory_of_every_origin_is_source_and_target,
    bytes_are_read_where_they_lie_and_not_written,
    revoked_memory_holds_what_was_written,
    revoking_waits_for_posted_work,
}

one_sided! {
    exposing_again_gives_another_key,
    vectors_come_back_as_they_were_given,
    lengths_out_of_range_are_refused,
    huge_pages_are_used_or_refused,
    access_to_exposed_memory_is_checked,
    words_of_exposed_memory_are_atomic,
    allocations_are_zeroed_and_aligned,
}

const SIZES: [usize; 5] = [64, 221, 5000, 300_000, 3 << 20];

fn memory_of_every_origin_is_source_and_target(env: &Env) {
    every_origin(&mut env.rc());
}

/// SENDs, WRITEs and READs between memory of every origin.
pub fn every_origin(pair: &mut Pair) {
    for (ours, theirs) in Origin::ALL.into_iter().flat_map(|a| Origin::ALL.map(|b| (a, b))) {
        for (turn, size) in SIZES.into_iter().enumerate() {
            // A device takes each length in one way, whatever the memory.
            if size > 1 << 20 && ours != theirs && !is_soft() {
                continue;
            }
            let context = format!("{ours:?} here, {theirs:?} there, {size} bytes");
            let seed = turn as u64;
            let bytes = Fill::Seed(seed).bytes(size);
            let source = || Mem::from(ours, size, Fill::Seed(seed));

            pair.far.recv(Mem::from(theirs, size, Fill::Byte(0xee)), 0);
            pair.near.post(Work::send(source()).signaled());
            let received = pair.far.done().assert_success(WcOpcode::RECV);
            assert_eq!(received.memory.len, size, "{context}");
            received.memory.assert_is(&bytes);
            pair.near.done().assert_success(WcOpcode::SEND);

            let target = Piece { origin: theirs, len: size, fill: Fill::Byte(0) };
            let target = pair.far.expose_piece(target, Access::REMOTE_ALL);
            pair.near.post(Work::write(source(), target.remote).signaled());
            pair.near.done().assert_success(WcOpcode::RDMA_WRITE);
            pair.far.look(&target).assert_is(&bytes);

            let mut read = Work::read(target.remote).signaled();
            read.mem = Mem::from(ours, size, Fill::Byte(0xee));
            pair.near.post(read);
            pair.near.done().assert_success(WcOpcode::RDMA_READ).memory.assert_is(&bytes);
            pair.far.revoke(&target).expect("nobody uses it").assert_is(&bytes);
        }
    }
}

fn bytes_are_read_where_they_lie_and_not_written(env: &Env) {
    let mut pair = env.rc();
    for (seed, size) in SIZES.into_iter().enumerate() {
        let fill = Fill::Seed(seed as u64);
        let (bytes, remote) = pair.far.expose_bytes(size, fill);
        for part in [remote, remote.slice(1..remote.len - 1)] {
            pair.near.post(Work::read(part).signaled());
            let read = pair.near.done().assert_success(WcOpcode::RDMA_READ);
            let start = (part.addr - remote.addr) as usize;
            read.memory.assert_is(&fill.bytes(size)[start..start + part.len as usize]);
        }
        pair.far.revoke_bytes(bytes).assert_is(&fill.bytes(size));
    }
    let fill = Fill::Seed(77);
    let (bytes, remote) = pair.far.expose_bytes(5000, fill);
    pair.near.post(Work::write(Mem::from(Origin::Alloc, 5000, Fill::Byte(1)), remote).signaled());
    pair.near.done().assert_status(WcStatus::REM_ACCESS_ERR);
    pair.far.revoke_bytes(bytes).assert_is(&fill.bytes(5000));
    let mut pair = env.rc();
    let (bytes, remote) = pair.far.expose_bytes(64, fill);
    pair.far.revoke_bytes(bytes);
    pair.near.post(Work::read(remote).signaled());
    pair.near.done().assert_status(WcStatus::REM_ACCESS_ERR);
}

fn revoked_memory_holds_what_was_written(env: &Env) {
    let mut pair = env.rc();
    let target = pair.far.expose(100, Access::REMOTE_WRITE);
    pair.near.post(Work::write(Mem::seeded(100, 1), target.remote).signaled());
    pair.near.done().assert_success(WcOpcode::RDMA_WRITE);
    pair.far.revoke(&target).expect("nobody uses it").assert_is(&Fill::Seed(1).bytes(100));
}

fn revoking_waits_for_posted_work(env: &Env) {
    let mut pair = env.rc();
    let region = pair.near.expose(100, Access::REMOTE_WRITE);
    pair.near.recv(Mem::Region { region: region.id, start: 0, end: 100 }, 1);
    assert_eq!(pair.near.revoke(&region).expect_err("a receive is posted"), "PostedWork");
    pair.far.post(Work::send(Mem::seeded(100, 2)).signaled());
    pair.near.done().assert_success(WcOpcode::RECV);
    pair.near.revoke(&region).expect("nothing is posted any more").assert_is(&Fill::Seed(2).bytes(100));
}

fn exposing_again_gives_another_key(env: &Env) {
    let ctx = env.ctx();
    let pd = ctx.alloc_pd().unwrap();
    let mut buffer = pd.alloc(64).unwrap();
    let mut seen = Vec::new();
    for _ in 0..20 {
        let region = buffer.expose(Access::REMOTE_ALL).unwrap();
        assert!(!seen.contains(&region.rkey()), "a key came back");
        seen.push(region.rkey());
        buffer = region.revoke().unwrap();
    }
}

fn vectors_come_back_as_they_were_given(env: &Env) {
    let pd = env.ctx().alloc_pd().unwrap();
    let mut vector = Vec::with_capacity(1000);
    vector.extend(Fill::Seed(1).bytes(777));
    let pointer = vector.as_ptr();
    let mut buffer = pd.register(vector).unwrap();
    buffer[0] ^= 1;
    let buffer = buffer.expose(Access::REMOTE_ALL).unwrap().revoke().unwrap();
    let mut vector = buffer.into_vec().expect("a vector was registered");
    vector[0] ^= 1;
    assert_eq!(vector, Fill::Seed(1).bytes(777));
    assert_eq!((vector.as_ptr(), vector.capacity()), (pointer, 1000));
    let buffer = pd.alloc(64).unwrap().into_vec().expect_err("no vector was registered");
    assert_eq!(buffer[..], [0; 64]);
}

fn lengths_out_of_range_are_refused(env: &Env) {
    let pd = env.ctx().alloc_pd().unwrap();
    assert!(matches!(pd.alloc(0), Err(MemoryError::Length { len: 0, .. })));
    assert!(matches!(pd.alloc(usize::MAX), Err(MemoryError::Length { len: usize::MAX, .. })));
    assert!(matches!(pd.register(Vec::new()), Err(MemoryError::Length { len: 0, .. })));
    assert!(matches!(pd.expose(0, Access::NONE), Err(MemoryError::Length { len: 0, .. })));
    let limit = usize::try_from(env.ctx().attributes().max_mr_size).unwrap();
    if let Some(over) = limit.checked_add(1) {
        let error = pd.alloc(over).unwrap_err();
        assert!(matches!(error, MemoryError::Length { .. }), "{error}");
        assert!(error.to_string().contains(&limit.to_string()), "{error}");
    }
}

fn huge_pages_are_used_or_refused(env: &Env) {
    let pd = env.ctx().alloc_pd().unwrap();
    for len in [1, 100, 3 << 20] {
        let buffer = pd.alloc_on(len, HugePages::Try).unwrap();
        assert_eq!((buffer.len(), buffer.iter().all(|byte| *byte == 0)), (len, true));
    }
    match pd.alloc_on(4 << 20, HugePages::Require) {
        Ok(buffer) => assert_eq!(buffer.len(), 4 << 20),
        Err(error) => {
            assert!(matches!(error, MemoryError::NoHugePages { len, .. } if len == 4 << 20), "{error}");
            assert!(error.to_string().contains("nr_hugepages"), "{error}");
        }
    }
}

fn access_to_exposed_memory_is_checked(env: &Env) {
    let pd = env.ctx().alloc_pd().unwrap();
    let region = pd.expose(100, Access::REMOTE_READ).unwrap();
    assert_eq!((region.len(), region.access()), (100, Access::REMOTE_READ));
    region.write(90, &[1; 10]).unwrap();
    let mut ten = [0; 10];
    region.read(90, &mut ten).unwrap();
    assert_eq!(ten, [1; 10]);
    for (offset, len) in [(91, 10), (100, 1), (101, 0), (usize::MAX, 10)] {
        let error = region.write(offset, &vec![0; len]).unwrap_err();
        assert!(matches!(error, MemoryError::Range { len: 100, .. }), "{offset}: {error}");
        assert!(matches!(region.read(offset, &mut vec![0; len]), Err(MemoryError::Range { .. })));
    }
    assert!(matches!(region.load(96), Err(MemoryError::Range { .. })));
    assert!(matches!(region.load(4), Err(MemoryError::Misaligned { offset: 4 })));
    assert!(matches!(region.store(usize::MAX - 3, 0), Err(MemoryError::Range { .. })));
    assert!(catch_unwind(AssertUnwindSafe(|| region.remote(50..101))).is_err());
}

fn words_of_exposed_memory_are_atomic(env: &Env) {
    let pd = env.ctx().alloc_pd().unwrap();
    let region = pd.expose(64, Access::REMOTE_ALL).unwrap();
    region.store(8, 40).unwrap();
    assert_eq!(region.fetch_add(8, 2).unwrap(), 40);
    assert_eq!(region.load(8).unwrap(), 42);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| (0..1000).for_each(|_| _ = region.fetch_add(8, 1).unwrap()));
        }
    });
    assert_eq!(region.load(8).unwrap(), 2042);
}

fn allocations_are_zeroed_and_aligned(env: &Env) {
    let pd = env.ctx().alloc_pd().unwrap();
    for len in [1, 63, 64, 65, 4095, 4096, 70_000] {
        let mut buffer = pd.alloc(len).unwrap();
        assert!(buffer.iter().all(|byte| *byte == 0), "{len}: not zeroed");
        let alignment = if len >= 4096 { 4096 } else { 64 };
        assert_eq!(buffer.as_ptr().addr() % alignment, 0, "{len}: not aligned");
        buffer.fill(0xff); // the next allocation may get this block
    }
}
