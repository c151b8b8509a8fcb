//! Unreliable connections: what is lost is lost silently.

use qpair_verbs::{Access, QpState, QpType, RemoteSlice, Rkey, WcOpcode, WcStatus};

use crate::SIZES;
use crate::harness::{Env, Fill, Mem, Pair, QpId, Work};

two_sided! {
    messages_and_writes_arrive,
    a_message_without_a_receive_is_lost,
    a_write_with_immediate_without_a_receive_is_lost,
    a_write_without_right_is_lost,
    reads_and_atomics_are_refused,
    failing_the_queue_pair_flushes_it,
}

fn messages_and_writes_arrive(env: &Env) {
    let mut pair = env.uc();
    let target = pair.far.expose(1 << 20, Access::REMOTE_WRITE);
    for (turn, size) in SIZES.into_iter().filter(|size| *size <= 1 << 20).enumerate() {
        let seed = turn as u64;
        let bytes = Fill::Seed(seed).bytes(size);
        pair.far.recv(Mem::blank(size), seed);
        pair.near.post(Work::send(Mem::seeded(size, seed)).imm(8).signaled());
        let received = pair.far.done().assert_success(WcOpcode::RECV);
        assert_eq!((received.wr_id, received.imm), (seed, Some(8)));
        received.memory.assert_is(&bytes);
        pair.near.done().assert_success(WcOpcode::SEND);

        pair.far.recv(Mem::None, seed);
        pair.near.post(Work::write(Mem::seeded(size, seed), target.part(0, size as u64)).imm(7).signaled());
        let received = pair.far.done().assert_success(WcOpcode::RECV_RDMA_WITH_IMM);
        assert_eq!((received.imm, received.byte_len as usize), (Some(7), size));
        pair.far.look_at(&target, 0, size).assert_is(&bytes);
        pair.near.done().assert_success(WcOpcode::RDMA_WRITE);
    }
}

/// Waits until what was sent so far has arrived or is lost: the sender is done before. What is sent last arrives last.
fn settle(pair: &mut Pair) {
    let marker = pair.far.expose(8, Access::REMOTE_WRITE);
    pair.near.post(Work::write(Mem::seeded(8, 5), marker.remote).signaled());
    pair.near.done().assert_success(WcOpcode::RDMA_WRITE);
    pair.far.assert_becomes(&marker, &Fill::Seed(5).bytes(8));
}

fn a_message_without_a_receive_is_lost(env: &Env) {
    let mut pair = env.uc();
    for seed in 0..5 {
        pair.near.post(Work::send(Mem::seeded([8, 5000][seed as usize % 2], seed)).signaled());
        pair.near.done().assert_success(WcOpcode::SEND);
    }
    settle(&mut pair);
    pair.far.recv(Mem::blank(5000), 1);
    pair.near.post(Work::send(Mem::seeded(100, 77)).signaled());
    pair.far.done().assert_success(WcOpcode::RECV).memory.assert_is(&Fill::Seed(77).bytes(100));
    pair.near.done().assert_success(WcOpcode::SEND);
    pair.far.assert_quiet();
}

fn a_write_with_immediate_without_a_receive_is_lost(env: &Env) {
    let mut pair = env.uc();
    let target = pair.far.expose(64, Access::REMOTE_WRITE);
    pair.near.post(Work::write(Mem::seeded(64, 1), target.remote).imm(1).signaled());
    pair.near.done().assert_success(WcOpcode::RDMA_WRITE);
    settle(&mut pair);
    pair.far.recv(Mem::None, 1);
    pair.near.post(Work::write(Mem::seeded(64, 2), target.remote).imm(2).signaled());
    assert_eq!(pair.far.done().assert_success(WcOpcode::RECV_RDMA_WITH_IMM).imm, Some(2));
    pair.far.look(&target).assert_is(&Fill::Seed(2).bytes(64));
}

fn a_write_without_right_is_lost(env: &Env) {
    let mut pair = env.uc();
    let readable = pair.far.expose(64, Access::REMOTE_READ);
    let target = pair.far.expose(64, Access::REMOTE_WRITE);
    let wrong = [
        readable.remote,
        RemoteSlice { rkey: Rkey(target.remote.rkey.0 ^ 1), ..target.remote },
        RemoteSlice { addr: target.remote.addr + 1, ..target.remote },
        RemoteSlice { addr: u64::MAX - 8, ..target.remote },
    ];
    for remote in wrong {
        pair.near.post(Work::write(Mem::seeded(64, 1), remote).signaled());
        pair.near.done().assert_success(WcOpcode::RDMA_WRITE);
    }
    settle(&mut pair);
    pair.far.look(&readable).assert_is(&[0; 64]);
    pair.far.look(&target).assert_is(&[0; 64]);
    pair.near.post(Work::write(Mem::seeded(64, 2), target.remote).signaled());
    pair.near.done().assert_success(WcOpcode::RDMA_WRITE);
    assert_eq!((pair.near.state(), pair.far.state()), (QpState::Rts, QpState::Rts));
    pair.far.assert_becomes(&target, &Fill::Seed(2).bytes(64));
}

fn reads_and_atomics_are_refused(env: &Env) {
    let mut pair = env.uc();
    let target = pair.far.expose(64, Access::REMOTE_ALL);
    let word = target.part(0, 8);
    for work in [Work::read(target.remote), Work::fetch_add(word, 1), Work::compare_swap(word, 0, 1)] {
        let len = work.mem.bytes().len();
        let refused = pair.near.try_post(QpId(0), work).expect_err("UC can not do it");
        assert_eq!((refused.kind.as_str(), refused.memory_len), ("NotSupported", len));
    }
    let made = pair.near.new_qp(&crate::harness::QpSpec::new(QpType::Uc));
    assert_eq!(made.address.qp_type, QpType::Uc);
}

fn failing_the_queue_pair_flushes_it(env: &Env) {
    let mut pair = env.uc();
    pair.near.recv(Mem::blank(8), 1);
    pair.near.fail_qp(QpId(0));
    assert_eq!(pair.near.done().assert_status(WcStatus::WR_FLUSH_ERR).wr_id, 1);
    pair.near.post(Work::send(Mem::seeded(8, 0)).id(2).signaled());
    assert_eq!(pair.near.done().assert_status(WcStatus::WR_FLUSH_ERR).wr_id, 2);
    // The other side does not learn of it: its messages are lost.
    pair.far.post(Work::send(Mem::seeded(8, 0)).signaled());
    pair.far.done().assert_success(WcOpcode::SEND);
}
