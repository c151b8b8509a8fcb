//! Memory of another process that can neither be mapped nor copied by system call: it goes through a bounce area.

use std::time::{Duration, Instant};

use qpair_verbs::calc::{Calc, DataType, ReduceOp, combine};
use qpair_verbs::{Access, GRH_BYTES, QpType, WcOpcode, WcStatus};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use crate::harness::{
    Command, CqId, Done, Env, Fill, LIMIT, Mem, Op, Origin, Pair, Piece, Promise, QpId, QpSpec, Region, Side, Work,
    connect_pair,
};

two_processes! {
    guarded_memory_goes_another_way,
    requests_of_every_kind_follow_each_other,
    lists_are_gathered_and_scattered,
    shared_receives_are_filled,
    unreliable_messages_and_writes_arrive,
    reads_are_combined,
    a_message_that_has_begun_leaves_nothing_for_the_next,
    a_write_whose_key_goes_midway_leaves_nothing_for_the_next,
    patience_is_for_each_part,
    a_peer_killed_midway_is_noticed,
    datagrams_into_guarded_memory_take_no_receive,
}

/// A side here that may not reach into the memory of the peer process, and that. `None` where nothing can be forbidden.
fn guarded(env: &Env) -> Option<(Side, Side)> {
    if !env.promises(Promise::ServedByProcesses) {
        return None;
    }
    // Rights belong to threads: this one's and those it starts, not those of other cases.
    let mut rights = capabilities(None).expect("this thread's rights");
    rights.effective.remove(CapabilitySet::SYS_PTRACE);
    rights.permitted.remove(CapabilitySet::SYS_PTRACE);
    set_capabilities(None, rights).expect("fewer rights");
    let (near, mut far) = (Side::open(env.device()), env.far());
    far.ask::<()>(Command::Guard);
    let pid = far.peer().expect("a process").pid();
    let forbidden = std::fs::File::open(format!("/proc/{pid}/mem")).is_err();
    env.able("being refused access to other processes", forbidden).then_some((near, far))
}

fn connected(env: &Env, near_spec: &QpSpec, far_spec: &QpSpec) -> Option<Pair> {
    let (mut near, mut far) = guarded(env)?;
    connect_pair(&mut near, near_spec, &mut far, far_spec);
    Some(Pair { near, far })
}

/// Memory that only its own process reaches.
fn vector(len: usize, fill: Fill) -> Mem {
    Mem::from(Origin::Vector, len, fill)
}

fn blank(len: usize) -> Mem {
    vector(len, Fill::Byte(0xee))
}

fn expose(side: &mut Side, len: usize, fill: Fill) -> Region {
    side.expose_piece(Piece { origin: Origin::Vector, len, fill }, Access::REMOTE_ALL)
}

fn list(lens: &[usize], fill: Fill) -> Mem {
    Mem::List(lens.iter().map(|len| Piece { origin: Origin::Vector, len: *len, fill }).collect())
}

fn guarded_memory_goes_another_way(env: &Env) {
    if let Some(mut pair) = connected(env, &QpSpec::rc(), &QpSpec::rc()) {
        crate::memory::every_origin(&mut pair);
    }
}

/// All are posted at once, so that each begins where the one before has just ended.
fn requests_of_every_kind_follow_each_other(env: &Env) {
    let Some(Pair { mut near, mut far }) = connected(env, &QpSpec::rc(), &QpSpec::rc()) else { return };
    for len in [8, 220, 221, 65_536, 200_000] {
        let target = expose(&mut far, len, Fill::Seed(1));
        let other = expose(&mut far, len, Fill::Seed(2));
        let word = expose(&mut far, 16, Fill::Byte(0));
        let aligned = word.remote.addr.next_multiple_of(8) - word.remote.addr;
        let word_slice = word.part(aligned, aligned + 8);
        far.recv(blank(len), 1);
        far.recv(Mem::None, 2);
        far.recv(blank(len), 3);
        let works = [
            Work::read(target.remote),
            Work::send(Mem::seeded(len, 3)),
            Work::write(Mem::seeded(len, 4), target.remote),
            Work::fetch_add(word_slice, 5),
            Work::read(target.remote),
            Work::write(Mem::seeded(len, 6), other.remote).imm(7),
            Work::compare_swap(word_slice, 5, 9),
            Work::read(other.remote),
            Work::send(Mem::seeded(len, 8)),
        ];
        for work in works {
            near.post(work.signaled());
        }
        let done: Vec<Done> = (0..9).map(|_| near.done().assert_status(WcStatus::SUCCESS)).collect();
        for (place, seed) in [(0, 1), (4, 4), (7, 6)] {
            done[place].memory.assert_is(&Fill::Seed(seed).bytes(len));
        }
        assert_eq!((done[3].memory.word(), done[6].memory.word()), (0, 5));
        far.done().assert_success(WcOpcode::RECV).memory.assert_is(&Fill::Seed(3).bytes(len));
        assert_eq!(far.done().assert_success(WcOpcode::RECV_RDMA_WITH_IMM).imm, Some(7));
        far.done().assert_success(WcOpcode::RECV).memory.assert_is(&Fill::Seed(8).bytes(len));
        far.look(&target).assert_is(&Fill::Seed(4).bytes(len));
        far.look(&other).assert_is(&Fill::Seed(6).bytes(len));
        assert_eq!(far.look_at(&word, aligned as usize, aligned as usize + 8).word(), 9);
    }
}

fn lists_are_gathered_and_scattered(env: &Env) {
    let Some(Pair { mut near, mut far }) = connected(env, &QpSpec::rc(), &QpSpec::rc()) else { return };
    for (ours, theirs) in [([100, 1, 70_000], [50_000, 20_000, 101]), ([65_536, 65_536, 1], [3, 131_069, 1])] {
        let total = ours.iter().sum::<usize>();
        let source = list(&ours, Fill::Seed(1));
        far.recv(list(&theirs, Fill::Byte(0xee)), 0);
        near.post(Work::send(source.clone()).signaled());
        near.done().assert_success(WcOpcode::SEND);
        far.done().assert_success(WcOpcode::RECV).memory.assert_is(&source.bytes());

        let target = expose(&mut far, total, Fill::Byte(0));
        near.post(Work::write(source.clone(), target.remote).signaled());
        let mut read = Work::read(target.remote).signaled();
        read.mem = list(&theirs, Fill::Byte(0xee));
        near.post(read);
        near.done().assert_success(WcOpcode::RDMA_WRITE);
        near.done().assert_success(WcOpcode::RDMA_READ).memory.assert_is(&source.bytes());
        far.look(&target).assert_is(&source.bytes());
        // Pieces within reach and out of it, in one receive.
        let mut mixed = [60, 300, 140_000].map(|len| Piece { origin: Origin::Vector, len, fill: Fill::Byte(0xee) });
        mixed[1].origin = Origin::Alloc;
        far.recv(Mem::List(mixed.to_vec()), 0);
        near.post(Work::send(source.clone()).signaled());
        near.done().assert_success(WcOpcode::SEND);
        far.done().assert_success(WcOpcode::RECV).memory.assert_is(&source.bytes());
    }
}

fn shared_receives_are_filled(env: &Env) {
    let Some((mut near, mut far)) = guarded(env) else { return };
    let srq = far.new_srq(8);
    let spec = QpSpec { srq: Some(srq), ..QpSpec::rc() };
    let qps = [(); 2].map(|()| connect_pair(&mut near, &QpSpec::rc(), &mut far, &spec).0);
    let target = expose(&mut far, 100_000, Fill::Byte(0));
    for round in 0..4_u64 {
        (0..8).for_each(|wr_id| far.srq_post(srq, blank(100_000), wr_id));
        for turn in 0..8 {
            let len = [100_000, 8, 300][turn as usize % 3];
            let (seed, qp) = (8 * round + turn, qps[turn as usize % 2]);
            let work = if turn % 4 == 3 {
                Work::write(Mem::seeded(len, seed), target.part(0, len as u64))
            } else {
                Work::send(Mem::seeded(len, seed))
            };
            near.post_on(qp, work.imm(turn as u32).signaled());
        }
        let mut ids = Vec::new();
        for _ in 0..8 {
            let done = far.done().assert_status(WcStatus::SUCCESS);
            let turn = u64::from(done.imm.expect("immediate data"));
            let len = [100_000, 8, 300][turn as usize % 3];
            assert_eq!(done.byte_len as usize, len);
            if turn % 4 != 3 {
                done.memory.assert_is(&Fill::Seed(8 * round + turn).bytes(len));
            }
            ids.push(done.wr_id);
            near.done().assert_status(WcStatus::SUCCESS);
        }
        ids.sort_unstable();
        assert_eq!(ids, (0..8).collect::<Vec<_>>(), "each receive is taken once");
    }
}

fn unreliable_messages_and_writes_arrive(env: &Env) {
    let spec = QpSpec::new(QpType::Uc);
    let Some(Pair { mut near, mut far }) = connected(env, &spec, &spec) else { return };
    for (seed, len) in (1..).zip([1, 220, 221, 5000, 300_000]) {
        let target = expose(&mut far, len, Fill::Byte(0));
        far.recv(blank(len), seed);
        far.recv(Mem::None, seed);
        near.post(Work::send(Mem::seeded(len, seed)).signaled());
        near.post(Work::write(Mem::seeded(len, seed + 50), target.remote).imm(3).signaled());
        near.done().assert_success(WcOpcode::SEND);
        near.done().assert_success(WcOpcode::RDMA_WRITE);
        far.done().assert_success(WcOpcode::RECV).memory.assert_is(&Fill::Seed(seed).bytes(len));
        assert_eq!(far.done().assert_success(WcOpcode::RECV_RDMA_WITH_IMM).imm, Some(3));
        far.look(&target).assert_is(&Fill::Seed(seed + 50).bytes(len));
    }
}

fn reads_are_combined(env: &Env) {
    let Some(Pair { mut near, mut far }) = connected(env, &QpSpec::rc(), &QpSpec::rc()) else { return };
    if !env.able("combining READs", near.abilities().read_reduce) {
        return;
    }
    let sum = Calc::of::<i64>(ReduceOp::Sum);
    for len in [8, 4096, 65_536, 65_544, 400_000] {
        let source = expose(&mut far, len, Fill::Seed(1));
        near.post(
            Work::new(Op::ReadReduce(source.remote, DataType::I64, ReduceOp::Sum), vector(len, Fill::Seed(2)))
                .signaled(),
        );
        near.post(Work::read(source.remote).signaled());
        let mut want = Fill::Seed(2).bytes(len);
        combine(sum, &mut want, &Fill::Seed(1).bytes(len)).expect("whole elements");
        near.done().assert_success(WcOpcode::READ_REDUCE).memory.assert_is(&want);
        near.done().assert_success(WcOpcode::RDMA_READ).memory.assert_is(&Fill::Seed(1).bytes(len));
    }
}

/// A short message goes by bounce since the ring has no room inside; the receiver polls in the middle of it, so that there
/// is room again.
fn a_message_that_has_begun_leaves_nothing_for_the_next(env: &Env) {
    const LEN: usize = 220;
    let Some(Pair { mut near, mut far }) = connected(env, &QpSpec::rc(), &QpSpec::rc()) else { return };
    for round in 0..10 {
        let bytes = |turn: u64| Fill::Seed(100 * round + turn);
        (0..64).for_each(|turn| far.recv(blank(LEN), turn));
        // In four parts: there is time to poll between them.
        far.recv(list(&[55; 4], Fill::Byte(0xee)), 64);
        for turn in 0..64 {
            near.post(Work::send(Mem::from(Origin::Alloc, LEN, bytes(turn))).signaled());
            near.done().assert_success(WcOpcode::SEND);
        }
        let peer = far.peer().expect("a process");
        peer.stop(true);
        near.post(Work::send(Mem::from(Origin::Alloc, LEN, bytes(64))).signaled());
        let peer = far.peer().expect("a process");
        peer.tell(&Command::Drain { cq: CqId(0), count: 48 });
        peer.stop(false);
        let drained = peer.answer().expect("completions");
        let mut done: Vec<Done> = serde_json::from_value(drained).expect("completions");
        done.extend((48..=64).map(|_| far.done()));
        for (turn, done) in (0..).zip(done) {
            let done = done.assert_success(WcOpcode::RECV);
            assert_eq!(done.wr_id, turn);
            done.memory.assert_is(&bytes(turn).bytes(LEN));
        }
        near.done().assert_success(WcOpcode::SEND);
        far.recv(blank(300), 65);
        near.post(Work::send(Mem::from(Origin::Alloc, 300, bytes(65))).signaled());
        near.done().assert_success(WcOpcode::SEND);
        far.done().assert_success(WcOpcode::RECV).memory.assert_is(&bytes(65).bytes(300));
    }
}

fn a_write_whose_key_goes_midway_leaves_nothing_for_the_next(env: &Env) {
    const LEN: usize = 32 << 20;
    let spec = QpSpec::new(QpType::Uc);
    let Some(Pair { mut near, mut far }) = connected(env, &spec, &spec) else { return };
    let next = expose(&mut far, 100_000, Fill::Byte(0));
    let target = expose(&mut far, LEN, Fill::Byte(0));
    near.post(Work::write(vector(LEN, Fill::Byte(1)), target.remote).signaled());
    let start = Instant::now();
    while far.look_at(&target, 0, 1).head == [0] {
        assert!(start.elapsed() < LIMIT, "the transfer does not begin");
    }
    let found = far.revoke(&target).expect("nobody is inside an access for long");
    assert_ne!(found.digest, crate::harness::digest(&Fill::Byte(1).bytes(LEN)), "the key did not go midway");
    near.done().assert_success(WcOpcode::RDMA_WRITE);
    near.post(Work::write(Mem::seeded(100_000, 2), next.remote).signaled());
    near.done().assert_success(WcOpcode::RDMA_WRITE);
    far.look(&next).assert_is(&Fill::Seed(2).bytes(100_000));
}

/// A long transfer may take longer than the peer's time to answer, as long as it makes progress.
fn patience_is_for_each_part(env: &Env) {
    // A machine that leaves this thread waiting while the peer runs lets a READ be over too soon: then another begins.
    assert!((0..50).any(|_| read_outlasts_patience(env)), "each READ was over before its time");
}

/// A READ whose peer is stopped again and again, so that the whole takes longer than a request's patience, and no part of
/// it does. False if the READ was over before that.
fn read_outlasts_patience(env: &Env) -> bool {
    const PART: usize = 64 << 10;
    const LEN: usize = 64 << 20;
    const PATIENCE: Duration = Duration::from_millis(1500);
    let spec = QpSpec { patience_ms: Some(PATIENCE.as_millis() as u64), ..QpSpec::rc() };
    let Some(Pair { mut near, mut far }) = connected(env, &spec, &QpSpec::rc()) else { return true };
    let source = expose(&mut far, LEN, Fill::Byte(1));
    let landing = near.expose(LEN, Access::NONE);
    let mut read = Work::read(source.remote).signaled();
    read.mem = Mem::Region { region: landing.id, start: 0, end: LEN };
    near.post(read);
    let (mut part, start) = (0, Instant::now());
    let here = |near: &mut Side, part: usize| near.look_at(&landing, part * PART, part * PART + 1).head == [1];
    while start.elapsed() < PATIENCE + PATIENCE / 3 {
        let resumed = Instant::now();
        while !here(&mut near, part) {
            assert!(resumed.elapsed() < LIMIT, "no progress after part {part}");
        }
        far.peer().expect("a process").stop(true);
        while here(&mut near, part) {
            part += 1;
            if part == LEN / PART {
                far.peer().expect("a process").stop(false);
                near.done().assert_success(WcOpcode::RDMA_READ);
                return false;
            }
        }
        // The stop is what takes the time.
        std::thread::sleep(PATIENCE / 4);
        far.peer().expect("a process").stop(false);
    }
    near.done().assert_success(WcOpcode::RDMA_READ);
    near.look(&landing).assert_is(&Fill::Byte(1).bytes(LEN));
    true
}

fn a_peer_killed_midway_is_noticed(env: &Env) {
    for read in [false, true] {
        let Some(Pair { mut near, mut far }) = connected(env, &QpSpec::rc(), &QpSpec::rc()) else { return };
        let target = expose(&mut far, 64 << 20, Fill::Byte(0));
        let write = Work::write(vector(64 << 20, Fill::Byte(1)), target.remote);
        let work = if read { Work::read(target.remote) } else { write };
        near.post(work.signaled());
        near.post(Work::send(Mem::seeded(8, 1)).id(2).signaled());
        far.peer().expect("a process").kill();
        for wr_id in [0, 2] {
            let done = near.done();
            assert_eq!((done.wr_id, done.status().is_success()), (wr_id, false), "{done:?}");
        }
        near.assert_failed();
    }
}

/// They are lost, and the receive is there for senders that reach it.
fn datagrams_into_guarded_memory_take_no_receive(env: &Env) {
    let Some((mut near, mut far)) = guarded(env) else { return };
    let make = |side: &mut Side| {
        let made = side.new_qp(&QpSpec { qkey: Some(1), ..QpSpec::new(QpType::Ud) });
        side.ask::<()>(Command::Activate { qp: made.qp });
        made.address
    };
    let (_, theirs) = (make(&mut near), make(&mut far));
    let to = near.new_handle(theirs);
    far.recv(blank(GRH_BYTES + 500), 1);
    for turn in 0..3 {
        near.post(Work::send_to(to, Mem::seeded(500, turn)).signaled());
        near.done().assert_success(WcOpcode::SEND);
    }
    far.assert_quiet();
    let to_itself = far.new_handle(theirs);
    far.post_on(QpId(0), Work::send_to(to_itself, Mem::seeded(500, 7)).signaled());
    let done = [far.done(), far.done()].into_iter().find(|done| done.opcode() == WcOpcode::RECV).expect("a receive");
    let done = done.assert_success(WcOpcode::RECV);
    assert_eq!(done.wr_id, 1);
    done.memory.assert_is(&Fill::Seed(7).bytes(500));
}
