//! Unreliable datagrams.

use std::time::{Duration, Instant};

use qpair_verbs::{GRH_BYTES, QpAddress, QpType, WcOpcode, WcStatus};

use crate::harness::{Command, CqId, Env, Fill, HandleId, LIMIT, Mem, QpId, QpSpec, Side, Work, is_soft, over_network};

two_sided! {
    datagrams_of_every_size_arrive,
    datagrams_carry_immediate_data,
    many_senders_reach_one_queue_pair,
    a_datagram_with_a_wrong_qkey_is_lost,
    a_datagram_without_a_receive_is_lost,
    a_datagram_to_nobody_is_lost,
    a_datagram_longer_than_the_mtu_is_refused,
    handles_are_for_datagram_queue_pairs,
    failing_the_queue_pair_flushes_it,
}

two_processes! {
    a_stopped_target_holds_up_its_senders_once,
}

two_processes! {
    queue_pairs_that_peers_knew_give_their_room_back,
}

const QKEY: u32 = 0x1234_5678;

fn datagram(side: &mut Side) -> (QpId, QpAddress) {
    let made = side.new_qp(&QpSpec { qkey: Some(QKEY), ..QpSpec::new(QpType::Ud) });
    assert_eq!((made.address.qkey, made.address.qp_type), (QKEY, QpType::Ud));
    side.ask::<()>(Command::Activate { qp: made.qp });
    (made.qp, made.address)
}

/// Two datagram queue pairs, and the near one's handle of the far one.
fn sides(env: &Env) -> (Side, QpAddress, Side, QpAddress, HandleId) {
    let (mut near, mut far) = (env.near(), env.far());
    let ((_, ours), (_, theirs)) = (datagram(&mut near), datagram(&mut far));
    let handle = near.new_handle(theirs);
    (near, ours, far, theirs, handle)
}

fn datagrams_of_every_size_arrive(env: &Env) {
    let (mut near, ours, mut far, theirs, to) = sides(env);
    let mtu = ours.mtu.min(theirs.mtu).bytes() as usize;
    for (turn, size) in [0, 1, 40, 41, 180, 181, 221, 256, mtu - 1, mtu].into_iter().enumerate() {
        far.recv(Mem::blank(GRH_BYTES + size + 3), turn as u64);
        near.post(Work::send_to(to, Mem::seeded(size, 1)).signaled());
        let received = far.done().assert_success(WcOpcode::RECV);
        assert_eq!((received.byte_len as usize, received.wr_id), (GRH_BYTES + size, turn as u64));
        assert_eq!((received.src_qpn, received.qpn), (Some(ours.qpn), theirs.qpn));
        received.memory.assert_is(&Fill::Seed(1).bytes(size));
        assert!(received.memory.tail_blank);
        near.done().assert_success(WcOpcode::SEND);
    }
}

fn datagrams_carry_immediate_data(env: &Env) {
    let (mut near, _, mut far, _, to) = sides(env);
    far.recv(Mem::blank(GRH_BYTES + 20), 0);
    near.post(Work::send_to(to, Mem::inline(20, 2)).imm(99).signaled());
    let received = far.done().assert_success(WcOpcode::RECV);
    assert_eq!(received.imm, Some(99));
    received.memory.assert_is(&Fill::Seed(2).bytes(20));
}

fn many_senders_reach_one_queue_pair(env: &Env) {
    if !env.on_host("mapping as fast as datagrams come") {
        return;
    }
    let (mut near, ours, mut far, theirs, to) = sides(env);
    let mut third = env.far();
    let (_, third_address) = datagram(&mut third);
    let third_to = third.new_handle(theirs);
    for wr_id in 0..40 {
        far.recv(Mem::blank(GRH_BYTES + 300), wr_id);
    }
    std::thread::scope(|scope| {
        for (side, to, seed) in [(&mut near, to, 1), (&mut third, third_to, 2)] {
            scope.spawn(move || {
                for _ in 0..20 {
                    side.post(Work::send_to(to, Mem::seeded(300, seed)).signaled());
                    side.done().assert_success(WcOpcode::SEND);
                }
            });
        }
    });
    let mut from = [0, 0];
    for _ in 0..40 {
        let received = far.done().assert_success(WcOpcode::RECV);
        let sender = usize::from(received.src_qpn != Some(ours.qpn));
        assert_eq!(received.src_qpn, Some([ours.qpn, third_address.qpn][sender]));
        received.memory.assert_is(&Fill::Seed(sender as u64 + 1).bytes(300));
        from[sender] += 1;
    }
    assert_eq!(from, [20, 20]);
}

/// On the network, waits until what was sent so far has come or is lost: the sender is done before.
fn settle(near: &mut Side, far: &mut Side) {
    let counted = |side: &mut Side, names: &[&str]| -> u64 {
        let counters = side.ask::<Vec<(String, u64)>>(Command::Counters);
        counters.iter().filter(|(name, _)| names.contains(&name.as_str())).map(|(_, value)| value).sum()
    };
    let start = Instant::now();
    while over_network() && counted(far, &["rcvd_pkts", "qkey_viol_cntr", "unknown_qp"]) < counted(near, &["sent_pkts"])
    {
        assert!(start.elapsed() < LIMIT, "what was sent neither comes nor is lost");
    }
}

/// What follows arrives: nothing of what was lost did.
fn only_the_next_arrives(near: &mut Side, far: &mut Side, to: HandleId) {
    settle(near, far);
    far.recv(Mem::blank(GRH_BYTES + 8), 1000);
    near.post(Work::send_to(to, Mem::seeded(8, 1000)).signaled());
    near.done().assert_success(WcOpcode::SEND);
    let received = far.done().assert_success(WcOpcode::RECV);
    received.memory.assert_is(&Fill::Seed(1000).bytes(8));
}

fn a_datagram_with_a_wrong_qkey_is_lost(env: &Env) {
    let (mut near, _, mut far, theirs, to) = sides(env);
    let wrong = near.new_handle(QpAddress { qkey: QKEY ^ 1, ..theirs });
    far.recv(Mem::blank(GRH_BYTES + 8), 0);
    near.post(Work::send_to(wrong, Mem::seeded(8, 1)).signaled());
    near.done().assert_success(WcOpcode::SEND);
    far.assert_quiet();
    near.post(Work::send_to(to, Mem::seeded(8, 2)).signaled());
    near.done().assert_success(WcOpcode::SEND);
    let received = far.done().assert_success(WcOpcode::RECV);
    assert_eq!(received.wr_id, 0);
    received.memory.assert_is(&Fill::Seed(2).bytes(8));
}

fn a_datagram_without_a_receive_is_lost(env: &Env) {
    let (mut near, _, mut far, _, to) = sides(env);
    for seed in 0..3 {
        near.post(Work::send_to(to, Mem::seeded(8, seed)).signaled());
        near.done().assert_success(WcOpcode::SEND);
    }
    only_the_next_arrives(&mut near, &mut far, to);
    far.assert_quiet();
}

fn a_datagram_to_nobody_is_lost(env: &Env) {
    let (mut near, _, mut far, theirs, to) = sides(env);
    let (gone, address) = datagram(&mut far);
    let nobody = near.new_handle(address);
    far.drop_qp(gone);
    near.post(Work::send_to(nobody, Mem::seeded(8, 1)).signaled());
    near.done().assert_success(WcOpcode::SEND);
    only_the_next_arrives(&mut near, &mut far, to);
    assert_ne!(theirs.qpn, address.qpn);
}

fn a_datagram_longer_than_the_mtu_is_refused(env: &Env) {
    let (mut near, ours, mut far, theirs, to) = sides(env);
    let mtu = ours.mtu.min(theirs.mtu).bytes() as usize;
    for size in [mtu + 1, 1 << 20] {
        let refused = near.try_post(QpId(0), Work::send_to(to, Mem::seeded(size, 1))).expect_err("too long");
        assert_eq!((refused.kind.as_str(), refused.retryable, refused.memory_len), ("TooLong", false, size));
    }
    only_the_next_arrives(&mut near, &mut far, to);
}

fn handles_are_for_datagram_queue_pairs(env: &Env) {
    let (mut near, mut far) = (env.near(), env.far());
    datagram(&mut near);
    let connected = far.new_qp(&QpSpec::rc());
    let made = near.ask::<Result<HandleId, String>>(Command::NewHandle { address: connected.address });
    assert_eq!(made.expect_err("it is no datagram queue pair"), "TypeMismatch");
}

fn failing_the_queue_pair_flushes_it(env: &Env) {
    let (mut near, _, _far, _, to) = sides(env);
    near.recv(Mem::blank(100), 1);
    near.fail_qp(QpId(0));
    assert_eq!(near.done().assert_status(WcStatus::WR_FLUSH_ERR).wr_id, 1);
    near.post(Work::send_to(to, Mem::seeded(8, 0)).id(2).signaled());
    assert_eq!(near.done().assert_status(WcStatus::WR_FLUSH_ERR).wr_id, 2);
}

/// The first use of its memory has to wait for its device; nothing else does.
fn a_stopped_target_holds_up_its_senders_once(env: &Env) {
    if !env.far_is_near() {
        return;
    }
    let (mut near, _, mut far, _, to) = sides(env);
    let mut third = env.far();
    let (_, address) = datagram(&mut third);
    let to_third = near.new_handle(address);
    far.recv(Mem::blank(GRH_BYTES + 8), 1);
    third.recv(Mem::blank(GRH_BYTES + 8), 1);
    far.peer().expect("a process").stop(true);
    let start = Instant::now();
    for seed in 0..100 {
        near.post(Work::send_to(to, Mem::seeded(8, seed)).signaled());
        near.done().assert_success(WcOpcode::SEND);
    }
    assert!(start.elapsed() < Duration::from_secs(3), "they took {:?}", start.elapsed());
    near.post(Work::send_to(to_third, Mem::seeded(8, 1)).signaled());
    near.done().assert_success(WcOpcode::SEND);
    third.done().assert_success(WcOpcode::RECV).memory.assert_is(&Fill::Seed(1).bytes(8));

    far.peer().expect("a process").stop(false);
    let start = Instant::now();
    let received = loop {
        near.post(Work::send_to(to, Mem::seeded(8, 7)).signaled());
        near.done().assert_success(WcOpcode::SEND);
        if let Some(received) = far.try_done(CqId(0), Duration::from_millis(5)) {
            break received.assert_success(WcOpcode::RECV);
        }
        assert!(start.elapsed() < LIMIT, "nothing arrives any more");
    };
    // A device that needs no process of its user's has taken the first of all.
    received.memory.assert_is(&Fill::Seed(if is_soft() { 7 } else { 0 }).bytes(8));
}

fn queue_pairs_that_peers_knew_give_their_room_back(env: &Env) {
    if !env.on_host("mapping as fast as datagrams come") {
        return;
    }
    let (mut near, mut far) = (env.near(), env.far());
    datagram(&mut far);
    // Some dozens that deep are all there is at a time.
    let depth = Some(env.ctx().attributes().max_qp_wr.min(1 << 14));
    for turn in 0..70 {
        let made = near.new_qp(&QpSpec { qkey: Some(QKEY), recv_depth: depth, ..QpSpec::new(QpType::Ud) });
        near.ask::<()>(Command::Activate { qp: made.qp });
        near.recv_on(made.qp, Mem::blank(GRH_BYTES + 8), turn);
        let to = far.new_handle(made.address);
        far.post(Work::send_to(to, Mem::seeded(8, turn)).signaled());
        far.done().assert_success(WcOpcode::SEND);
        near.done().assert_success(WcOpcode::RECV).memory.assert_is(&Fill::Seed(turn).bytes(8));
        near.drop_qp(made.qp);
        far.post(Work::send_to(to, Mem::seeded(8, turn)).signaled());
        far.done().assert_success(WcOpcode::SEND);
    }
}
