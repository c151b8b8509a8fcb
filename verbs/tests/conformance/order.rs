//! Order of work on one queue pair: completions, fences, unsignaled requests.

use qpair_verbs::{Access, WcOpcode, WcStatus};

use crate::harness::{Env, Fill, Mem, QpId, QpSpec, Work};

two_sided! {
    completions_come_in_the_order_of_posting,
    a_receive_comes_though_there_is_always_a_request_that_is_done,
    unsignaled_memory_comes_back_with_the_next_signaled,
    memory_that_is_not_taken_is_freed,
    a_fenced_request_uses_what_the_read_before_it_brought,
    an_unsignaled_request_that_fails_completes,
    a_failure_flushes_what_follows_and_not_what_went_before,
    what_fails_comes_before_the_receives_that_are_flushed_for_it,
}

fn completions_come_in_the_order_of_posting(env: &Env) {
    let mut pair = env.rc();
    let target = pair.far.expose(100_000, Access::REMOTE_ALL);
    for _ in 0..20 {
        pair.far.recv(Mem::blank(100_000), 0);
    }
    for turn in 0..60_u64 {
        let len = [8, 100_000, 500][turn as usize % 3];
        let work = match turn % 6 {
            0 | 3 => Work::send(Mem::seeded(len, turn)),
            1 => Work::read(target.part(0, len as u64)),
            2 => Work::fetch_add(target.part(0, 8), 1),
            4 => Work::write(Mem::seeded(len, turn), target.part(0, len as u64)),
            _ => Work::compare_swap(target.part(8, 16), 0, 1),
        };
        pair.near.post(work.id(turn).signaled());
    }
    let order: Vec<_> = (0..60).map(|_| pair.near.done().assert_status(WcStatus::SUCCESS).wr_id).collect();
    assert_eq!(order, (0..60).collect::<Vec<_>>());
}

fn a_receive_comes_though_there_is_always_a_request_that_is_done(env: &Env) {
    let mut pair = env.rc();
    let target = pair.far.expose(8, Access::REMOTE_WRITE);
    pair.near.recv(Mem::blank(8), 0);
    pair.far.post(Work::send(Mem::seeded(8, 1)).signaled());
    pair.far.done().assert_success(WcOpcode::SEND);
    // It is there now, and so is one of these whenever it is looked.
    let mut opcodes = Vec::new();
    while opcodes.last() != Some(&WcOpcode::RECV.0) {
        assert!(opcodes.len() < 4, "{opcodes:?}");
        pair.near.post(Work::write(Mem::seeded(8, 1), target.remote).signaled());
        opcodes.push(pair.near.done().assert_status(WcStatus::SUCCESS).opcode);
    }
}

fn unsignaled_memory_comes_back_with_the_next_signaled(env: &Env) {
    let mut pair = env.rc();
    let target = pair.far.expose(4096, Access::REMOTE_ALL);
    for _ in 0..5 {
        for turn in 0..10 {
            let len = 10 + turn as usize;
            pair.near.post(Work::write(Mem::seeded(len, turn), target.part(0, len as u64)).id(turn));
        }
        pair.near.assert_quiet();
        pair.near.post(Work::write(Mem::inline(8, 0), target.part(0, 8)).id(99).signaled());
        let done = pair.near.done().assert_success(WcOpcode::RDMA_WRITE);
        assert_eq!((done.wr_id, done.retired.len()), (99, 10));
        for (turn, content) in (0..).zip(&done.retired) {
            content.assert_is(&Fill::Seed(turn).bytes(10 + turn as usize));
        }
        pair.near.post(Work::read(target.part(0, 8)).signaled());
        assert_eq!(pair.near.done().assert_success(WcOpcode::RDMA_READ).retired.len(), 0);
    }
}

fn memory_that_is_not_taken_is_freed(env: &Env) {
    // Many times the slots of the queue: it would run full if anything stayed behind.
    let spec = QpSpec { send_depth: Some(16), ..QpSpec::rc() };
    let mut pair = env.pair(&spec, &QpSpec::rc());
    let target = pair.far.expose(65_536, Access::REMOTE_ALL);
    for _ in 0..200 {
        for _ in 0..9 {
            pair.near.post(Work::write(Mem::seeded(65_536, 1), target.remote));
        }
        pair.near.post(Work::write(Mem::inline(8, 0), target.part(0, 8)).signaled());
        assert_eq!(pair.near.done().assert_success(WcOpcode::RDMA_WRITE).retired.len(), 9);
    }
}

fn a_fenced_request_uses_what_the_read_before_it_brought(env: &Env) {
    let mut pair = env.rc();
    let (ours, theirs) = (pair.near.expose(60_000, Access::NONE), pair.far.expose(120_000, Access::REMOTE_ALL));
    let mem = |end| Mem::Region { region: ours.id, start: 0, end };
    for turn in 0..20 {
        pair.far.fill(&theirs, Fill::Seed(turn));
        let bytes = Fill::Seed(turn).bytes(120_000);
        let len = [8, 60_000][turn as usize % 2];
        let mut read = Work::read(theirs.part(0, len as u64));
        read.mem = mem(len);
        pair.near.post(read);
        pair.near.post(Work::write(mem(len), theirs.part(60_000, 60_000 + len as u64)).fenced());
        pair.far.recv(Mem::blank(len), turn);
        pair.near.post(Work::send(mem(len)).fenced().signaled());
        pair.far.done().assert_success(WcOpcode::RECV).memory.assert_is(&bytes[..len]);
        pair.far.look_at(&theirs, 60_000, 60_000 + len).assert_is(&bytes[..len]);
        pair.near.done().assert_success(WcOpcode::SEND);
    }
}

fn an_unsignaled_request_that_fails_completes(env: &Env) {
    let mut pair = env.rc();
    let target = pair.far.expose(64, Access::REMOTE_READ);
    pair.near.post(Work::read(target.remote).id(1));
    pair.near.post(Work::write(Mem::seeded(64, 1), target.remote).id(2));
    let done = pair.near.done().assert_status(WcStatus::REM_ACCESS_ERR);
    assert_eq!((done.wr_id, done.retired.len()), (2, 1));
    pair.near.assert_quiet();
}

fn a_failure_flushes_what_follows_and_not_what_went_before(env: &Env) {
    let mut pair = env.rc();
    let target = pair.far.expose(64, Access::REMOTE_READ);
    pair.near.recv(Mem::blank(8), 50);
    for turn in 0..3 {
        pair.near.post(Work::read(target.remote).id(turn).signaled());
    }
    pair.near.post(Work::write(Mem::seeded(64, 1), target.remote).id(3).signaled());
    for turn in 4..8 {
        // The device may have carried out and failed the WRITE already: it takes these all the same.
        pair.near.try_post(QpId(0), Work::read(target.remote).id(turn).signaled()).expect("flushed, not refused");
    }
    let mut statuses: Vec<_> = (0..9).map(|_| pair.near.done()).map(|done| (done.wr_id, done.status())).collect();
    statuses.retain(|(wr_id, status)| {
        // The receive may be flushed at any place in between.
        if *wr_id == 50 {
            assert_eq!(*status, WcStatus::WR_FLUSH_ERR);
        }
        *wr_id != 50
    });
    let want = (0..8).map(|turn| match turn {
        0..3 => (turn, WcStatus::SUCCESS),
        3 => (turn, WcStatus::REM_ACCESS_ERR),
        _ => (turn, WcStatus::WR_FLUSH_ERR),
    });
    assert_eq!(statuses, want.collect::<Vec<_>>());
    pair.far.look(&target).assert_is(&[0; 64]);
}

fn what_fails_comes_before_the_receives_that_are_flushed_for_it(env: &Env) {
    let mut pair = env.rc();
    let target = pair.far.expose(8, Access::REMOTE_WRITE);
    pair.near.recv(Mem::blank(8), 1);
    pair.near.post(Work::write(Mem::seeded(8, 1), target.remote).signaled());
    pair.near.done().assert_success(WcOpcode::RDMA_WRITE);
    pair.near.post(Work::read(target.remote).id(2).signaled());
    let failed = pair.near.done().assert_status(WcStatus::REM_ACCESS_ERR);
    let flushed = pair.near.done().assert_status(WcStatus::WR_FLUSH_ERR);
    assert_eq!((failed.wr_id, flushed.wr_id), (2, 1));
}
