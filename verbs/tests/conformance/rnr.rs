//! Receiver not ready: a message for which no receive is posted.

use qpair_verbs::{Access, QpState, WcOpcode, WcStatus};

use crate::harness::{Env, Fill, Mem, QpId, QpSpec, Work};

two_sided! {
    finite_retries_end_in_an_error,
    retries_without_end_wait_for_the_receive,
    the_message_goes_on_though_the_sender_does_not_poll,
    a_receive_in_time_saves_the_message,
    what_follows_a_waiting_message_waits,
    many_waiting_messages_arrive_in_order,
    a_waiting_write_with_immediate_arrives,
    a_waiting_message_is_flushed,
    a_waiting_message_fails_when_the_receiver_closes,
}

fn finite_retries_end_in_an_error(env: &Env) {
    for rnr_retry in 0..=6 {
        let mut pair = env.pair(&QpSpec { rnr_retry: Some(rnr_retry), ..QpSpec::rc() }, &QpSpec::rc());
        let len = [8, 5000][usize::from(rnr_retry) % 2];
        pair.near.recv(Mem::blank(8), 1);
        pair.near.post(Work::send(Mem::seeded(len, 1)).id(2).signaled());
        pair.near.post(Work::send(Mem::seeded(len, 1)).id(3).signaled());
        let mut done: Vec<_> = (0..3).map(|_| pair.near.done()).map(|done| (done.wr_id, done.status())).collect();
        assert_eq!(done.iter().find(|(wr_id, _)| *wr_id != 1), Some(&(2, WcStatus::RNR_RETRY_EXC_ERR)));
        done.sort_by_key(|(wr_id, _)| *wr_id);
        assert_eq!([done[0], done[2]], [(1, WcStatus::WR_FLUSH_ERR), (3, WcStatus::WR_FLUSH_ERR)]);
        pair.near.assert_failed();
        assert_eq!(pair.far.state(), QpState::Rts, "the receiver has done nothing wrong");
    }
}

fn retries_without_end_wait_for_the_receive(env: &Env) {
    let mut pair = env.rc();
    for len in [0, 8, 5000, 1 << 20] {
        pair.near.post(Work::send(Mem::seeded(len, 1)).signaled());
        pair.near.assert_quiet();
        pair.far.recv(Mem::blank(len), 0);
        pair.near.done().assert_success(WcOpcode::SEND);
        pair.far.done().assert_success(WcOpcode::RECV).memory.assert_is(&Fill::Seed(1).bytes(len));
    }
}

fn the_message_goes_on_though_the_sender_does_not_poll(env: &Env) {
    let mut pair = env.rc();
    for len in [8, 5000, 1 << 20] {
        pair.near.post(Work::send(Mem::seeded(len, 1)).signaled());
        pair.far.assert_quiet();
        pair.far.recv(Mem::blank(len), 0);
        pair.far.done().assert_success(WcOpcode::RECV).memory.assert_is(&Fill::Seed(1).bytes(len));
        pair.near.done().assert_success(WcOpcode::SEND);
    }
}

fn a_receive_in_time_saves_the_message(env: &Env) {
    let near = QpSpec { rnr_retry: Some(6), ..QpSpec::rc() };
    let mut pair = env.pair(&near, &QpSpec { min_rnr_timer_us: Some(490_000), ..QpSpec::rc() });
    pair.near.post(Work::send(Mem::seeded(5000, 1)).signaled());
    pair.far.recv(Mem::blank(5000), 0);
    pair.far.done().assert_success(WcOpcode::RECV).memory.assert_is(&Fill::Seed(1).bytes(5000));
    pair.near.done().assert_success(WcOpcode::SEND);
}

fn what_follows_a_waiting_message_waits(env: &Env) {
    let mut pair = env.rc();
    let target = pair.far.expose(64, Access::REMOTE_ALL);
    pair.near.post(Work::send(Mem::seeded(8, 1)).id(1).signaled());
    pair.near.post(Work::write(Mem::seeded(64, 2), target.remote).id(2).signaled());
    pair.near.post(Work::read(target.remote).id(3).signaled());
    pair.near.assert_quiet();
    pair.far.look(&target).assert_is(&[0; 64]);
    pair.far.recv(Mem::blank(8), 0);
    assert_eq!(pair.near.done().assert_success(WcOpcode::SEND).wr_id, 1);
    assert_eq!(pair.near.done().assert_success(WcOpcode::RDMA_WRITE).wr_id, 2);
    pair.near.done().assert_success(WcOpcode::RDMA_READ).memory.assert_is(&Fill::Seed(2).bytes(64));
    pair.far.done().assert_success(WcOpcode::RECV);
}

fn many_waiting_messages_arrive_in_order(env: &Env) {
    let mut pair = env.rc();
    let len = |turn: u64| [8, 5000, 221][turn as usize % 3];
    for turn in 0..60 {
        pair.near.post(Work::send(Mem::seeded(len(turn), turn)).id(turn).signaled());
    }
    for turn in 0..60 {
        pair.far.recv(Mem::blank(len(turn)), turn);
        let done = pair.far.done().assert_success(WcOpcode::RECV);
        assert_eq!(done.wr_id, turn);
        done.memory.assert_is(&Fill::Seed(turn).bytes(len(turn)));
    }
    for turn in 0..60 {
        assert_eq!(pair.near.done().assert_success(WcOpcode::SEND).wr_id, turn);
    }
}

fn a_waiting_write_with_immediate_arrives(env: &Env) {
    let mut pair = env.rc();
    let target = pair.far.expose(5000, Access::REMOTE_WRITE);
    pair.near.post(Work::write(Mem::seeded(5000, 1), target.remote).imm(5).signaled());
    pair.near.assert_quiet();
    pair.far.recv(Mem::None, 0);
    assert_eq!(pair.far.done().assert_success(WcOpcode::RECV_RDMA_WITH_IMM).imm, Some(5));
    pair.far.look(&target).assert_is(&Fill::Seed(1).bytes(5000));
    pair.near.done().assert_success(WcOpcode::RDMA_WRITE);
}

fn a_waiting_message_is_flushed(env: &Env) {
    let mut pair = env.rc();
    pair.near.post(Work::send(Mem::seeded(5000, 1)).id(1).signaled());
    pair.near.post(Work::send(Mem::seeded(8, 1)).id(2));
    pair.near.assert_quiet();
    pair.near.fail_qp(QpId(0));
    for wr_id in [1, 2] {
        assert_eq!(pair.near.done().assert_status(WcStatus::WR_FLUSH_ERR).wr_id, wr_id);
    }
    // The message is not carried out any more.
    pair.far.recv(Mem::blank(5000), 7);
    pair.far.fail_qp(QpId(0));
    assert_eq!(pair.far.done().assert_status(WcStatus::WR_FLUSH_ERR).wr_id, 7);
}

fn a_waiting_message_fails_when_the_receiver_closes(env: &Env) {
    let mut pair = env.pair(&QpSpec::rc().impatient(), &QpSpec::rc());
    pair.near.post(Work::send(Mem::seeded(5000, 1)).signaled());
    pair.near.assert_quiet();
    pair.far.drop_qp(QpId(0));
    let status = pair.near.done().status();
    assert!([WcStatus::RETRY_EXC_ERR, WcStatus::WR_FLUSH_ERR].contains(&status), "{status}");
    pair.near.assert_failed();
}
