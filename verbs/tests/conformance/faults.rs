//! Remote faults: each ends in the right status, both queue pairs in the error state, and harm to nobody else.

use qpair_verbs::{Access, Qpn, RemoteSlice, Rkey, WcOpcode, WcStatus};

use crate::harness::{
    DomainId, Env, Fill, Mem, Origin, Pair, Piece, Promise, QpId, QpSpec, Region, Work, behind_refused, connect_pair,
    is_soft, service_refused, too_long, too_small,
};

two_sided! {
    a_wrong_key_fails,
    a_key_fails_once_its_region_is_revoked,
    a_missing_right_fails,
    the_queue_pair_limits_the_rights,
    a_range_past_the_region_fails,
    an_address_that_overflows_fails,
    memory_of_another_domain_fails,
    a_receive_that_is_too_small_fails_both,
    a_list_that_is_too_small_fails_both,
    a_failed_queue_pair_does_not_harm_others,
    after_a_failure_new_queue_pairs_can_be_connected,
    failing_a_queue_pair_flushes_it_in_order,
    a_refused_request_raises_an_event,
}

/// A connection, its far end's number, and a region of 64 bytes there.
struct Ground {
    pair: Pair,
    far_qpn: Qpn,
    region: Region,
}

impl Ground {
    fn new(env: &Env, far_spec: &QpSpec, access: Access) -> Ground {
        let (mut near, mut far) = (env.near(), env.far());
        let (a, b) = (near.new_qp(&QpSpec::rc()), far.new_qp(far_spec));
        near.connect(a.qp, b.address);
        far.connect(b.qp, a.address);
        let piece = Piece { origin: Origin::Alloc, len: 64, fill: Fill::Seed(42) };
        let region = far.expose_piece(piece, access);
        Ground { pair: Pair { near, far }, far_qpn: b.address.qpn, region }
    }

    /// Posts `work`, which must be refused by the far side, and checks all that follows from it.
    fn refuses(self, work: Work, what: &str) {
        self.refuses_by(&[WcStatus::REM_ACCESS_ERR], work, what);
    }

    fn refuses_by(mut self, statuses: &[WcStatus], work: Work, what: &str) {
        let Pair { near, far } = &mut self.pair;
        far.recv(Mem::blank(8), 70);
        let memory = work.mem.bytes();
        near.post(work.id(1).signaled());
        let done = near.done().assert_one_of(statuses);
        assert_eq!((done.wr_id, done.byte_len), (1, 0), "{what}: {done:?}");
        done.memory.assert_is(&memory);
        near.assert_failed();
        far.assert_failed();
        for (wr_id, later) in [(2, Work::send(Mem::seeded(8, 1))), (3, Work::read(self.region.remote))] {
            near.post(later.id(wr_id).signaled());
            assert_eq!(near.done().assert_status(WcStatus::WR_FLUSH_ERR).wr_id, wr_id, "{what}");
        }
        near.recv(Mem::blank(8), 4);
        assert_eq!(near.done().assert_status(WcStatus::WR_FLUSH_ERR).wr_id, 4, "{what}");
        assert_eq!(far.done().assert_one_of(behind_refused()).wr_id, 70, "{what}");
        if is_soft() {
            far.assert_event("QpAccessError", Some(self.far_qpn));
        }
        far.look(&self.region).assert_is(&Fill::Seed(42).bytes(64));
    }
}

fn write(remote: RemoteSlice) -> Work {
    Work::write(Mem::seeded(remote.len as usize, 1), remote)
}

fn a_refused_request_raises_an_event(env: &Env) {
    if !env.promises(Promise::AccessErrorsAreTold) {
        return;
    }
    let mut ground = Ground::new(env, &QpSpec::rc(), Access::NONE);
    ground.pair.near.post(Work::read(ground.region.remote).signaled());
    ground.pair.far.assert_event("QpAccessError", Some(ground.far_qpn));
}

fn a_wrong_key_fails(env: &Env) {
    for flip in [1, 1 << 15, 1 << 16, 1 << 31, u32::MAX] {
        let ground = Ground::new(env, &QpSpec::rc(), Access::REMOTE_ALL);
        let remote = ground.region.remote;
        ground.refuses(write(RemoteSlice { rkey: Rkey(remote.rkey.0 ^ flip), ..remote }), "a wrong key");
    }
}

fn a_key_fails_once_its_region_is_revoked(env: &Env) {
    for operation in [write, Work::read] {
        let mut ground = Ground::new(env, &QpSpec::rc(), Access::REMOTE_ALL);
        let stale = ground.pair.far.expose(64, Access::REMOTE_ALL);
        ground.pair.near.post(operation(stale.remote).signaled());
        ground.pair.near.done().assert_status(WcStatus::SUCCESS);
        ground.pair.far.revoke(&stale).expect("nobody uses it");
        ground.refuses(operation(stale.remote), "a stale key");
    }
}

fn a_missing_right_fails(env: &Env) {
    type Operation = fn(RemoteSlice) -> Work;
    let read: Operation = Work::read;
    let add: Operation = |remote| Work::fetch_add(remote.slice(0..8), 1);
    let swap: Operation = |remote| Work::compare_swap(remote.slice(0..8), 0, 1);
    let inline: Operation = |remote| Work::write(Mem::inline(8, 1), remote.slice(0..8));
    let with_immediate: Operation = |remote| write(remote).imm(1);
    let cases = [
        (Access::NONE, read, "READ"),
        (Access::REMOTE_WRITE | Access::REMOTE_ATOMIC, read, "READ"),
        (Access::NONE, write, "WRITE"),
        (Access::REMOTE_READ | Access::REMOTE_ATOMIC, write, "WRITE"),
        (Access::REMOTE_READ, inline, "inline WRITE"),
        (Access::REMOTE_READ, with_immediate, "WRITE with immediate"),
        (Access::REMOTE_READ | Access::REMOTE_WRITE, add, "FETCH_ADD"),
        (Access::REMOTE_READ | Access::REMOTE_WRITE, swap, "CMP_SWAP"),
    ];
    for (access, operation, what) in cases {
        let ground = Ground::new(env, &QpSpec::rc(), access);
        let work = operation(ground.region.remote);
        if let Mem::Inline { .. } = work.mem {
            inline_is_refused(ground, work);
        } else {
            ground.refuses(work, &format!("{what} with {access:?}"));
        }
    }
}

/// As `refuses`; inline data does not come back.
fn inline_is_refused(mut ground: Ground, work: Work) {
    ground.pair.near.post(work.signaled());
    ground.pair.near.done().assert_status(WcStatus::REM_ACCESS_ERR);
    ground.pair.far.assert_failed();
    ground.pair.far.look(&ground.region).assert_is(&Fill::Seed(42).bytes(64));
}

fn the_queue_pair_limits_the_rights(env: &Env) {
    let spec = QpSpec { access: Some(Access::REMOTE_READ), ..QpSpec::rc() };
    let mut ground = Ground::new(env, &spec, Access::REMOTE_ALL);
    let remote = ground.region.remote;
    ground.pair.near.post(Work::read(remote).signaled());
    ground.pair.near.done().assert_success(WcOpcode::RDMA_READ);
    ground.refuses_by(service_refused(), write(remote), "WRITE over a queue pair for READs");
}

fn a_range_past_the_region_fails(env: &Env) {
    for (shift, len) in [(0, 65), (1, 64), (64, 1), (-1, 64), (-1, 1), (1 << 40, 8)] {
        for operation in [write, Work::read] {
            let ground = Ground::new(env, &QpSpec::rc(), Access::REMOTE_ALL);
            let whole = ground.region.remote;
            let beyond = RemoteSlice { addr: whole.addr.wrapping_add_signed(shift), len, ..whole };
            ground.refuses(operation(beyond), &format!("{len} bytes at {shift}"));
        }
    }
}

fn an_address_that_overflows_fails(env: &Env) {
    for (addr, len) in [(u64::MAX, 1), (u64::MAX - 3, 8), (u64::MAX - 63, 64), (0, 8)] {
        for operation in [write, Work::read] {
            let ground = Ground::new(env, &QpSpec::rc(), Access::REMOTE_ALL);
            let beyond = RemoteSlice { addr, len, ..ground.region.remote };
            ground.refuses(operation(beyond), &format!("{len} bytes at {addr:#x}"));
        }
    }
    let ground = Ground::new(env, &QpSpec::rc(), Access::REMOTE_ALL);
    let beyond = RemoteSlice { addr: u64::MAX - 7, len: 8, ..ground.region.remote };
    ground.refuses(Work::fetch_add(beyond, 1), "an atomic at the end of the address space");
}

fn memory_of_another_domain_fails(env: &Env) {
    let mut ground = Ground::new(env, &QpSpec::rc(), Access::REMOTE_ALL);
    let other: DomainId = ground.pair.far.new_domain();
    let piece = Piece { origin: Origin::Alloc, len: 64, fill: Fill::Byte(0) };
    let foreign = ground.pair.far.expose_in(other, piece, Access::REMOTE_ALL);
    ground.refuses(write(foreign.remote), "memory of another domain");
}

fn a_receive_that_is_too_small_fails_both(env: &Env) {
    for (room, len) in [(0, 1), (7, 8), (100, 101), (220, 221), (4096, 4097), (8, 1 << 20)] {
        let mut ground = Ground::new(env, &QpSpec::rc(), Access::NONE);
        let Pair { near, far } = &mut ground.pair;
        far.recv(Mem::blank(room), 1);
        far.recv(Mem::blank(8), 2);
        near.post(Work::send(Mem::seeded(len, 1)).id(3).signaled());
        let refused = near.done().assert_one_of(too_long());
        assert_eq!(refused.wr_id, 3);
        let received = far.done().assert_one_of(too_small());
        assert_eq!((received.wr_id, received.byte_len), (1, 0));
        assert_eq!(far.done().assert_status(WcStatus::WR_FLUSH_ERR).wr_id, 2);
        near.assert_failed();
        far.assert_failed();
    }
}

fn a_list_that_is_too_small_fails_both(env: &Env) {
    let mut pair = env.rc();
    pair.far.recv(Mem::blank_list(&[10, 20]), 1);
    pair.near.post(Work::send(Mem::seeded(31, 1)).signaled());
    pair.near.done().assert_one_of(too_long());
    pair.far.done().assert_one_of(too_small());
}

fn a_failed_queue_pair_does_not_harm_others(env: &Env) {
    let mut pair = env.rc();
    connect_pair(&mut pair.near, &QpSpec::rc(), &mut pair.far, &QpSpec::rc());
    let target = pair.far.expose(64, Access::REMOTE_WRITE);
    pair.near.post_on(QpId(0), Work::read(target.remote).signaled());
    pair.near.done().assert_status(WcStatus::REM_ACCESS_ERR);
    pair.far.assert_failed();
    for turn in 0..20 {
        pair.far.recv_on(QpId(1), Mem::blank(64), turn);
        pair.near.post_on(QpId(1), write(target.remote));
        pair.near.post_on(QpId(1), Work::send(Mem::seeded(64, turn)).signaled());
        pair.near.done().assert_success(WcOpcode::SEND);
        pair.far.done().assert_success(WcOpcode::RECV).memory.assert_is(&Fill::Seed(turn).bytes(64));
    }
}

fn after_a_failure_new_queue_pairs_can_be_connected(env: &Env) {
    let (mut near, mut far) = (env.near(), env.far());
    for turn in 0..5 {
        let (a, b) = connect_pair(&mut near, &QpSpec::rc(), &mut far, &QpSpec::rc());
        far.recv_on(b, Mem::blank(8), turn);
        near.post_on(a, Work::send(Mem::seeded(8, turn)).signaled());
        far.done().assert_success(WcOpcode::RECV).memory.assert_is(&Fill::Seed(turn).bytes(8));
        near.done().assert_success(WcOpcode::SEND);
        let nowhere = RemoteSlice { addr: 0, len: 8, rkey: Rkey(turn as u32) };
        near.post_on(a, write(nowhere).signaled());
        near.done().assert_status(WcStatus::REM_ACCESS_ERR);
        near.assert_qp_failed(a);
        far.assert_qp_failed(b);
        near.drop_qp(a);
        far.drop_qp(b);
    }
}

fn failing_a_queue_pair_flushes_it_in_order(env: &Env) {
    let mut pair = env.rc();
    for wr_id in 0..10 {
        pair.near.recv(Mem::blank(8 + wr_id as usize), wr_id);
    }
    pair.near.fail_qp(QpId(0));
    pair.near.assert_failed();
    for wr_id in 0..10 {
        let done = pair.near.done().assert_status(WcStatus::WR_FLUSH_ERR);
        assert_eq!((done.wr_id, done.byte_len), (wr_id, 0));
    }
    for wr_id in 0..300 {
        // Far more than the queue has slots: each is given back at once.
        pair.near.post(Work::send(Mem::seeded(8, 1)).id(wr_id));
        let done = pair.near.done().assert_status(WcStatus::WR_FLUSH_ERR);
        assert_eq!(done.wr_id, wr_id);
        done.memory.assert_is(&Fill::Seed(1).bytes(8));
    }
}
