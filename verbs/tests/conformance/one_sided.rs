//! RDMA WRITE and READ: data, ranges, immediate data, order.

use qpair_verbs::{Access, WcOpcode};

use crate::SIZES;
use crate::harness::{Env, Fill, Mem, Origin, Piece, QpSpec, Region, Side, Work, over_network};

two_sided! {
    writes_of_every_size_land,
    reads_of_every_size_return,
    writes_touch_no_byte_beside_their_range,
    reads_of_any_offset_return_exactly_that,
    writes_gather_and_reads_scatter,
    inline_writes_land,
    part_of_a_buffer_can_be_written,
    write_with_immediate_takes_a_receive,
    write_with_immediate_of_no_bytes,
    exposed_memory_is_source_and_target,
    a_write_is_there_when_the_next_message_arrives,
    a_read_sees_the_writes_before_it,
    both_sides_write_at_once,
}

one_sided! {
    source_and_target_may_overlap,
}

two_processes! {
    a_stopped_peer_does_not_hold_up_one_sided_work,
}

/// A region of pseudo-random bytes.
fn seeded(side: &mut Side, len: usize, seed: u64) -> Region {
    side.expose_piece(Piece { origin: Origin::Alloc, len, fill: Fill::Seed(seed) }, Access::REMOTE_ALL)
}

fn writes_of_every_size_land(env: &Env) {
    let mut pair = env.rc();
    let target = pair.far.expose(16 << 20, Access::REMOTE_WRITE);
    for (turn, size) in SIZES.into_iter().enumerate() {
        let data = Mem::seeded(size, turn as u64);
        let work = Work::write(data.clone(), target.part(0, size as u64));
        pair.near.post(work.id(turn as u64).signaled());
        let done = pair.near.done().assert_success(WcOpcode::RDMA_WRITE);
        assert_eq!(done.wr_id, turn as u64);
        done.memory.assert_is(&data.bytes());
        pair.far.look_at(&target, 0, size).assert_is(&data.bytes());
    }
    pair.far.assert_quiet();
}

fn reads_of_every_size_return(env: &Env) {
    let mut pair = env.rc();
    let source = seeded(&mut pair.far, 16 << 20, 1);
    let bytes = Fill::Seed(1).bytes(16 << 20);
    for size in SIZES {
        pair.near.post(Work::read(source.part(0, size as u64)).signaled());
        let done = pair.near.done().assert_success(WcOpcode::RDMA_READ);
        assert_eq!(done.byte_len as usize, size);
        done.memory.assert_is(&bytes[..size]);
    }
    pair.far.assert_quiet();
}

fn writes_touch_no_byte_beside_their_range(env: &Env) {
    let mut pair = env.rc();
    let target = pair.far.expose(600, Access::REMOTE_WRITE);
    for (turn, start) in (0..24).chain([63, 64, 65, 255]).enumerate() {
        let len = [1, 7, 8, 33, 64, 219, 300][turn % 7];
        pair.far.fill(&target, Fill::Byte(0xaa));
        let data = Fill::Seed(turn as u64).bytes(len);
        pair.near.post(Work::write(Mem::seeded(len, turn as u64), target.part(start, start + len as u64)).signaled());
        pair.near.done().assert_success(WcOpcode::RDMA_WRITE);
        let mut want = vec![0xaa; 600];
        want[start as usize..][..len].copy_from_slice(&data);
        pair.far.look(&target).assert_is(&want);
    }
}

fn reads_of_any_offset_return_exactly_that(env: &Env) {
    let mut pair = env.rc();
    let source = seeded(&mut pair.far, 10_000, 2);
    let bytes = Fill::Seed(2).bytes(10_000);
    for (start, end) in [(0, 1), (1, 2), (3, 11), (63, 65), (4095, 4097), (9_999, 10_000), (17, 9_997)] {
        pair.near.post(Work::read(source.part(start, end)).signaled());
        let done = pair.near.done().assert_success(WcOpcode::RDMA_READ);
        done.memory.assert_is(&bytes[start as usize..end as usize]);
    }
}

fn writes_gather_and_reads_scatter(env: &Env) {
    let mut pair = env.rc();
    let most = pair.near.abilities().max_sge;
    if !env.able("lists of four pieces", most >= 4) {
        return;
    }
    let target = pair.far.expose(8192, Access::REMOTE_ALL);
    for lens in [[1, 2, 3, 4], [100, 4096, 1, 999], [64, 64, 64, 64]] {
        let total = lens.iter().sum::<usize>();
        let data = Mem::list(&lens, 3);
        pair.near.post(Work::write(data.clone(), target.part(0, total as u64)).signaled());
        pair.near.done().assert_success(WcOpcode::RDMA_WRITE).memory.assert_is(&data.bytes());
        pair.far.look_at(&target, 0, total).assert_is(&data.bytes());

        let mut back = Work::read(target.part(0, total as u64)).signaled();
        back.mem = Mem::blank_list(&[total - 6, 1, 2, 3]);
        pair.near.post(back);
        pair.near.done().assert_success(WcOpcode::RDMA_READ).memory.assert_is(&data.bytes());
    }
}

fn inline_writes_land(env: &Env) {
    let mut pair = env.rc();
    let most = pair.near.abilities().max_inline as usize;
    let target = pair.far.expose(most + 8, Access::REMOTE_WRITE);
    for size in [1, 8, 40, 100, most].into_iter().filter(|size| *size <= most) {
        pair.near.post(Work::write(Mem::inline(size, 4), target.part(5, 5 + size as u64)).signaled());
        assert_eq!(pair.near.done().assert_success(WcOpcode::RDMA_WRITE).memory.form, "no memory");
        pair.far.look_at(&target, 5, 5 + size).assert_is(&Fill::Seed(4).bytes(size));
    }
}

fn part_of_a_buffer_can_be_written(env: &Env) {
    let mut pair = env.rc();
    let target = pair.far.expose(100, Access::REMOTE_ALL);
    pair.near.post(Work::write(Mem::seeded(300, 5), target.remote).range(150, 250).signaled());
    pair.near.done().assert_success(WcOpcode::RDMA_WRITE);
    pair.far.look(&target).assert_is(&Fill::Seed(5).bytes(300)[150..250]);

    let mut back = Work::read(target.remote).range(7, 107).signaled();
    back.mem = Mem::blank(200);
    pair.near.post(back);
    let done = pair.near.done().assert_success(WcOpcode::RDMA_READ);
    let mut want = vec![0xee; 200];
    want[7..107].copy_from_slice(&Fill::Seed(5).bytes(300)[150..250]);
    done.memory.assert_is(&want);
}

fn write_with_immediate_takes_a_receive(env: &Env) {
    let mut pair = env.rc();
    let target = pair.far.expose(1 << 20, Access::REMOTE_WRITE);
    for (turn, size) in [1, 40, 221, 5000, 1 << 20].into_iter().enumerate() {
        pair.far.recv(Mem::blank(16), turn as u64);
        let work = Work::write(Mem::seeded(size, turn as u64), target.part(0, size as u64));
        pair.near.post(work.imm(turn as u32 + 100).signaled());
        let done = pair.far.done().assert_success(WcOpcode::RECV_RDMA_WITH_IMM);
        assert_eq!((done.wr_id, done.imm), (turn as u64, Some(turn as u32 + 100)));
        assert_eq!(done.byte_len as usize, size);
        assert!(done.memory.tail_blank, "the receive's own memory was written");
        pair.far.look_at(&target, 0, size).assert_is(&Fill::Seed(turn as u64).bytes(size));
        pair.near.done().assert_success(WcOpcode::RDMA_WRITE);
    }
}

fn write_with_immediate_of_no_bytes(env: &Env) {
    let mut pair = env.rc();
    let target = pair.far.expose(64, Access::REMOTE_WRITE);
    pair.far.recv(Mem::None, 1);
    pair.near.post(Work::write(Mem::None, target.part(0, 0)).imm(7).signaled());
    let done = pair.far.done().assert_success(WcOpcode::RECV_RDMA_WITH_IMM);
    assert_eq!((done.imm, done.byte_len), (Some(7), 0));
    pair.near.done().assert_success(WcOpcode::RDMA_WRITE);
    pair.far.look(&target).assert_is(&[0; 64]);
}

fn exposed_memory_is_source_and_target(env: &Env) {
    let mut pair = env.rc();
    let (ours, theirs) = (seeded(&mut pair.near, 5000, 6), pair.far.expose(5000, Access::REMOTE_ALL));
    let bytes = Fill::Seed(6).bytes(5000);
    let mem = |start, end| Mem::Region { region: ours.id, start, end };
    pair.near.post(Work::write(mem(10, 4010), theirs.part(1000, 5000)).signaled());
    pair.near.done().assert_success(WcOpcode::RDMA_WRITE);
    pair.far.look_at(&theirs, 1000, 5000).assert_is(&bytes[10..4010]);

    let mut back = Work::read(theirs.part(1000, 1100)).signaled();
    back.mem = mem(0, 100);
    pair.near.post(back);
    pair.near.done().assert_success(WcOpcode::RDMA_READ);
    pair.near.look_at(&ours, 0, 100).assert_is(&bytes[10..110]);
}

fn a_write_is_there_when_the_next_message_arrives(env: &Env) {
    let mut pair = env.rc();
    let target = pair.far.expose(70_000, Access::REMOTE_WRITE);
    for turn in 0..40_u64 {
        let len = [8, 3000, 70_000][turn as usize % 3];
        pair.far.recv(Mem::blank(8), turn);
        pair.near.post(Work::write(Mem::seeded(len, turn), target.part(0, len as u64)));
        pair.near.post(Work::send(Mem::inline(8, turn)).signaled());
        assert_eq!(pair.far.done().assert_success(WcOpcode::RECV).wr_id, turn);
        pair.far.look_at(&target, 0, len).assert_is(&Fill::Seed(turn).bytes(len));
        assert_eq!(pair.near.done().assert_success(WcOpcode::SEND).retired.len(), 1);
    }
}

fn a_read_sees_the_writes_before_it(env: &Env) {
    let mut pair = env.rc();
    let target = pair.far.expose(4096, Access::REMOTE_ALL);
    for turn in 0..20 {
        pair.near.post(Work::write(Mem::seeded(4096, turn), target.remote));
        pair.near.post(Work::read(target.remote).signaled());
        pair.near.done().assert_success(WcOpcode::RDMA_READ).memory.assert_is(&Fill::Seed(turn).bytes(4096));
    }
}

fn both_sides_write_at_once(env: &Env) {
    let mut pair = env.rc();
    let len = 50_000;
    let (ours, theirs) = (pair.near.expose(len, Access::REMOTE_WRITE), pair.far.expose(len, Access::REMOTE_WRITE));
    std::thread::scope(|scope| {
        for (side, target, seed) in [(&mut pair.near, theirs, 100), (&mut pair.far, ours, 200)] {
            scope.spawn(move || {
                for turn in 0..50 {
                    side.post(Work::write(Mem::seeded(len, seed + turn), target.remote).signaled());
                    side.done().assert_success(WcOpcode::RDMA_WRITE);
                }
            });
        }
    });
    pair.near.look(&ours).assert_is(&Fill::Seed(249).bytes(len));
    pair.far.look(&theirs).assert_is(&Fill::Seed(149).bytes(len));
}

fn source_and_target_may_overlap(env: &Env) {
    let mut side = env.near();
    let (a, b) = (side.new_qp(&QpSpec::rc()), side.new_qp(&QpSpec::rc()));
    side.connect(a.qp, b.address);
    side.connect(b.qp, a.address);
    let region = seeded(&mut side, 20_000, 8);
    let local = |start: usize, end: usize| Mem::Region { region: region.id, start, end };
    for (from, to, len) in [(0, 1, 8), (0, 7, 100), (100, 0, 5000), (0, 100, 15_000), (50, 50, 9000), (4, 0, 8)] {
        let remote = region.part(to as u64, (to + len) as u64);
        // What the overlap holds afterwards is not defined; that nothing else changes, is.
        side.fill(&region, Fill::Seed(8));
        side.post(Work::write(local(from, from + len), remote).signaled());
        side.done().assert_success(WcOpcode::RDMA_WRITE);
        let mut read = Work::read(remote).signaled();
        read.mem = local(from, from + len);
        side.post(read);
        side.done().assert_success(WcOpcode::RDMA_READ);
        let end = from.max(to) + len;
        side.look_at(&region, end, 20_000).assert_is(&Fill::Seed(8).bytes(20_000)[end..]);
    }
}

fn a_stopped_peer_does_not_hold_up_one_sided_work(env: &Env) {
    if !env.far_is_near() || !env.able("going on while its process is stopped", !over_network()) {
        return;
    }
    let mut pair = env.rc();
    let target = pair.far.expose(1 << 20, Access::REMOTE_ALL);
    // The first access may need the peer's help, to set up its memory.
    pair.near.post(Work::read(target.part(0, 8)).signaled());
    pair.near.done().assert_success(WcOpcode::RDMA_READ);
    pair.far.peer().expect("a process").stop(true);
    for len in [8, 4096, 1 << 20] {
        pair.near.post(Work::write(Mem::seeded(len, 9), target.part(0, len as u64)).signaled());
        pair.near.done().assert_success(WcOpcode::RDMA_WRITE);
        pair.near.post(Work::read(target.part(0, len as u64)).signaled());
        let done = pair.near.done().assert_success(WcOpcode::RDMA_READ);
        done.memory.assert_is(&Fill::Seed(9).bytes(len));
    }
    pair.near.post(Work::fetch_add(target.part(0, 8), 1).signaled());
    pair.near.done().assert_success(WcOpcode::FETCH_ADD);
    pair.far.peer().expect("a process").stop(false);
    let word = u64::from_ne_bytes(Fill::Seed(9).bytes(8).try_into().unwrap()).wrapping_add(1);
    assert_eq!(pair.far.look_at(&target, 0, 8).word(), word);
}
