//! Connecting: addresses, states, and connecting to what is not there.

use std::net::{IpAddr, Ipv4Addr};
use std::task::Waker;
use std::time::{Duration, Instant};

use qpair_verbs::{
    ConnectError, Gid, Inquiry, NodeId, QpAddress, QpState, QpType, Qpn, SoftAddress, WcOpcode, WcStatus,
};

use crate::harness::{
    Command, Env, Fill, Mem, Placement, Promise, QpId, QpSpec, Side, Work, connect_pair, is_ours, is_soft, turns,
};

two_sided! {
    addresses_survive_json,
    a_half_connected_queue_pair_receives,
    the_wire_is_explained,
    a_closed_queue_pair_is_not_there,
    a_number_made_up_is_not_there,
    a_closed_device_is_not_there,
    kinds_must_agree,
    other_hosts_are_out_of_reach,
    a_third_queue_pair_does_not_disturb_a_pair,
    who_is_connected_over_the_network_takes_nothing_through_shared_memory,
    sending_to_a_closed_queue_pair_fails,
    both_sides_can_connect_at_the_same_time,
    many_queue_pairs_share_a_completion_queue,
    the_smallest_queues_work,
}

two_processes! {
    connecting_to_a_stopped_process_times_out,
}

one_sided! {
    a_port_that_nobody_has_is_unreachable,
    a_queue_pair_can_be_connected_to_itself,
    wrong_kinds_of_activation_are_refused,
}

fn addresses_survive_json(env: &Env) {
    let mut far = env.far();
    let made = far.new_qp(&QpSpec::rc());
    let text = serde_json::to_string(&made.address).unwrap();
    assert_eq!(serde_json::from_str::<QpAddress>(&text).unwrap(), made.address);
    assert!(made.address.qpn.0 < 1 << 24 && made.address.psn.get() < 1 << 24);
    assert_eq!(made.address.qkey, 0);
}

fn a_half_connected_queue_pair_receives(env: &Env) {
    let (mut near, mut far) = (env.near(), env.far());
    let (a, b) = (near.new_qp(&QpSpec::rc()), far.new_qp(&QpSpec::rc()));
    far.recv_on(b.qp, Mem::blank(5000), 1);
    far.recv_on(b.qp, Mem::blank(8), 2);
    let ready = Command::ReadyToReceive { qp: b.qp, address: a.address };
    far.ask::<Result<(), String>>(ready).expect("the peer is there");
    assert_eq!(far.state(), QpState::Rtr);
    near.connect(a.qp, b.address);
    assert_eq!(near.state(), QpState::Rts);
    near.post(Work::send(Mem::seeded(5000, 1)).signaled());
    near.post(Work::send(Mem::seeded(8, 2)).signaled());
    far.done().assert_success(WcOpcode::RECV).memory.assert_is(&Fill::Seed(1).bytes(5000));
    far.done().assert_success(WcOpcode::RECV).memory.assert_is(&Fill::Seed(2).bytes(8));
    near.done().assert_success(WcOpcode::SEND);
    near.done().assert_success(WcOpcode::SEND);
    far.ask::<Result<(), String>>(Command::ReadyToSend { qp: b.qp }).expect("it is in RTR");
    assert_eq!(far.state(), QpState::Rts);
    near.recv(Mem::blank(8), 3);
    far.post(Work::send(Mem::seeded(8, 3)).signaled());
    near.done().assert_success(WcOpcode::RECV).memory.assert_is(&Fill::Seed(3).bytes(8));
}

fn the_wire_is_explained(env: &Env) {
    let mut pair = env.rc();
    let text: String = pair.near.ask(Command::Explain { qp: QpId(0) });
    assert!(text.len() > 10, "{text:?} explains nothing");
}

fn connect_error(near: &mut Side, spec: &QpSpec, address: QpAddress) -> String {
    let made = near.new_qp(spec);
    near.try_connect(made.qp, address).expect_err("nothing is there")
}

/// Asserts that nobody is at the address: connecting says so where it asks, and else the first message has no answer.
#[track_caller]
fn assert_nobody(near: &mut Side, address: QpAddress, want: &str) {
    if is_soft() {
        return assert_eq!(connect_error(near, &QpSpec::rc(), address), want);
    }
    let made = near.new_qp(&QpSpec::rc().impatient());
    match near.try_connect(made.qp, address) {
        Ok(()) => {
            near.post_on(made.qp, Work::send(Mem::seeded(8, 1)).signaled());
            near.done().assert_status(WcStatus::RETRY_EXC_ERR);
            near.assert_qp_failed(made.qp);
        }
        Err(error) => assert_eq!(error, "Refused"),
    }
}

fn a_closed_queue_pair_is_not_there(env: &Env) {
    let (mut near, mut far) = (env.near(), env.far());
    let made = far.new_qp(&QpSpec::rc());
    far.drop_qp(made.qp);
    assert_nobody(&mut near, made.address, "NoSuchQueuePair");
}

fn a_number_made_up_is_not_there(env: &Env) {
    let (mut near, mut far) = (env.near(), env.far());
    let made = far.new_qp(&QpSpec::rc());
    for qpn in [0, 1, made.address.qpn.0 ^ 1, made.address.qpn.0 ^ 0x80_0000, 0xff_ffff, u32::MAX] {
        if is_soft() || qpn ^ 1 != made.address.qpn.0 {
            // The next number may be that of another case, and the network does not tell who is meant.
            assert_nobody(&mut near, QpAddress { qpn: Qpn(qpn), ..made.address }, "NoSuchQueuePair");
        }
    }
    let fine = near.new_qp(&QpSpec::rc());
    near.connect(fine.qp, made.address);
}

fn a_closed_device_is_not_there(env: &Env) {
    let (mut near, mut far) = (env.near(), env.far());
    let address = far.new_qp(&QpSpec::rc()).address;
    drop(far);
    let want = if env.placement() == Placement::OneContext { "NoSuchQueuePair" } else { "PeerGone" };
    assert_nobody(&mut near, address, want);
    let soft = address.soft.map(|soft| SoftAddress { node: NodeId([7; 16]), ..soft });
    assert_nobody(&mut near, QpAddress { soft, ..address }, "PeerGone");
}

fn kinds_must_agree(env: &Env) {
    let (mut near, mut far) = (env.near(), env.far());
    let kinds = [QpType::Rc, QpType::Uc, QpType::Ud];
    for (ours, theirs) in kinds.into_iter().flat_map(|a| kinds.map(|b| (a, b))).filter(|(a, b)| a != b) {
        if ours == QpType::Ud {
            continue; // has no peer
        }
        let made = far.new_qp(&QpSpec::new(theirs));
        assert_eq!(connect_error(&mut near, &QpSpec::new(ours), made.address), "TypeMismatch", "{ours:?} {theirs:?}");
        // An address that lies about its kind leads nowhere either.
        let lie = QpAddress { qp_type: ours, ..made.address };
        if !is_soft() {
            if ours == QpType::Rc {
                assert_nobody(&mut near, lie, "");
            }
            continue;
        }
        let spec = QpSpec::new(ours);
        let liar = near.new_qp(&spec);
        let error = near.try_connect(liar.qp, lie).expect_err("the kinds differ");
        assert!(["TypeMismatch", "NoSuchQueuePair", "BadAnswer"].contains(&error.as_str()), "{error}");
    }
}

fn other_hosts_are_out_of_reach(env: &Env) {
    let (mut near, mut far) = (env.near(), env.far());
    let address = far.new_qp(&QpSpec::rc()).address;
    let Some(soft) = address.soft.filter(|_| is_ours()) else {
        _ = env.able("addresses within a host", false);
        return;
    };
    let mut elsewhere = vec![None, Some(SoftAddress { host: [1; 16], ..soft })];
    if env.placement() == Placement::TwoProcesses {
        // Within a process the namespace does not matter.
        elsewhere.push(Some(SoftAddress { namespace: soft.namespace ^ 1, ..soft }));
    }
    for soft in elsewhere {
        let elsewhere = QpAddress { soft, gid: Gid([9; 16]), ..address };
        assert_eq!(connect_error(&mut near, &QpSpec::rc(), elsewhere), "NoRoute");
    }
}

fn a_third_queue_pair_does_not_disturb_a_pair(env: &Env) {
    let (mut near, mut far, mut third) = (env.near(), env.far(), env.far());
    let (a, b) = (near.new_qp(&QpSpec::rc()), far.new_qp(&QpSpec::rc()));
    near.connect(a.qp, b.address);
    far.connect(b.qp, a.address);
    let c = third.new_qp(&QpSpec { rnr_retry: Some(0), ..QpSpec::rc() }.impatient());
    far.recv(Mem::blank(8), 1);
    third.connect(c.qp, b.address); // nobody asks the other side
    third.post(Work::send(Mem::seeded(8, 9)).signaled());
    let status = third.done().status();
    assert!(!status.is_success(), "a queue pair took a message of a stranger");
    near.post(Work::send(Mem::seeded(8, 1)).signaled());
    near.done().assert_success(WcOpcode::SEND);
    far.done().assert_success(WcOpcode::RECV).memory.assert_is(&Fill::Seed(1).bytes(8));
}

fn who_is_connected_over_the_network_takes_nothing_through_shared_memory(env: &Env) {
    let (mut near, mut far, mut third) = (env.near(), env.far(), env.far());
    let (a, b) = (near.new_qp(&QpSpec::rc()), far.new_qp(&QpSpec::rc()));
    if !env.able("two ways to a peer", b.address.soft.is_some() && is_ours()) {
        return;
    }
    near.connect(a.qp, QpAddress { soft: None, ..b.address });
    far.connect(b.qp, QpAddress { soft: None, ..a.address });
    let c = third.new_qp(&QpSpec { rnr_retry: Some(0), ..QpSpec::rc() }.impatient());
    far.recv(Mem::blank(8), 1);
    third.connect(c.qp, b.address);
    third.post(Work::send(Mem::seeded(8, 9)).signaled());
    assert!(!third.done().status().is_success(), "a queue pair took a message of a stranger");
    near.post(Work::send(Mem::seeded(8, 1)).signaled());
    near.done().assert_success(WcOpcode::SEND);
    far.done().assert_success(WcOpcode::RECV).memory.assert_is(&Fill::Seed(1).bytes(8));
}

fn sending_to_a_closed_queue_pair_fails(env: &Env) {
    let mut pair = env.pair(&QpSpec::rc().impatient(), &QpSpec::rc());
    pair.near.recv(Mem::blank(8), 1);
    let target = pair.far.expose(64, qpair_verbs::Access::REMOTE_ALL);
    pair.far.drop_qp(QpId(0));
    pair.near.post(Work::write(Mem::seeded(64, 1), target.remote).id(2).signaled());
    let done = [pair.near.done(), pair.near.done()];
    for one in &done {
        let allowed = [WcStatus::RETRY_EXC_ERR, WcStatus::WR_FLUSH_ERR];
        assert!(allowed.contains(&one.status()), "{one:?}");
    }
    pair.near.assert_failed();
    pair.far.look(&target).assert_is(&[0; 64]);
    pair.far.revoke(&target).expect("nobody uses it");
    connect_pair(&mut pair.near, &QpSpec::rc(), &mut pair.far, &QpSpec::rc());
}

fn both_sides_can_connect_at_the_same_time(env: &Env) {
    for round in 0..u64::from(turns(8)) {
        let (mut near, mut far) = (Side::open(env.device()), env.far());
        let pairs: Vec<_> = (0..4).map(|_| (near.new_qp(&QpSpec::rc()), far.new_qp(&QpSpec::rc()))).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| pairs.iter().for_each(|(a, b)| near.connect(a.qp, b.address)));
            scope.spawn(|| pairs.iter().for_each(|(a, b)| far.connect(b.qp, a.address)));
        });
        for (a, b) in &pairs {
            far.recv_on(b.qp, Mem::blank(5000), round);
            near.post_on(a.qp, Work::send(Mem::seeded(5000, round)).signaled());
            near.done().assert_success(WcOpcode::SEND);
            far.done().assert_success(WcOpcode::RECV).memory.assert_is(&Fill::Seed(round).bytes(5000));
            near.recv_on(a.qp, Mem::blank(8), round);
            far.post_on(b.qp, Work::send(Mem::seeded(8, round)).signaled());
            far.done().assert_success(WcOpcode::SEND);
            near.done().assert_success(WcOpcode::RECV).memory.assert_is(&Fill::Seed(round).bytes(8));
        }
    }
}

fn many_queue_pairs_share_a_completion_queue(env: &Env) {
    let (mut near, mut far) = (env.near(), env.far());
    let cq = far.new_cq_with_channel(4096);
    let ours = QpSpec { recv_depth: Some(4), send_depth: Some(4), ..QpSpec::rc() };
    let theirs = QpSpec { cq, ..ours.clone() };
    let pairs: Vec<_> = (0..turns(200)).map(|_| connect_pair(&mut near, &ours, &mut far, &theirs)).collect();
    for (wr_id, (a, b)) in (0..).zip(&pairs).step_by(7) {
        far.recv_on(*b, Mem::blank(8), wr_id);
        near.post_on(*a, Work::send(Mem::seeded(8, wr_id)).signaled());
        near.done().assert_success(WcOpcode::SEND);
        // What came before the arming wakes nobody: one poll has to find it, whichever queue pair it is of.
        far.arm(cq, false);
        let done = far.try_done(cq, Duration::ZERO).expect("a poll found nothing, though something waits");
        assert_eq!((done.wr_id, done.status()), (wr_id, WcStatus::SUCCESS));
        assert!(far.try_done(cq, Duration::ZERO).is_none());
    }
}

fn the_smallest_queues_work(env: &Env) {
    let (mut near, mut far) = (env.near(), env.far());
    let (near_cq, far_cq) = (near.new_cq(1), far.new_cq(1));
    let spec = |cq| QpSpec { cq, recv_depth: Some(1), send_depth: Some(1), ..QpSpec::rc() };
    connect_pair(&mut near, &spec(near_cq), &mut far, &spec(far_cq));
    let target = far.expose(5000, qpair_verbs::Access::REMOTE_ALL);
    for turn in 0..50 {
        let len = [8, 221, 5000][turn as usize % 3];
        far.recv(Mem::blank(len), turn);
        near.post(Work::send(Mem::seeded(len, turn)).id(turn).signaled());
        assert_eq!(far.done_on(far_cq).assert_success(WcOpcode::RECV).wr_id, turn);
        assert_eq!(near.done_on(near_cq).assert_success(WcOpcode::SEND).wr_id, turn);
        near.post(Work::write(Mem::seeded(len, turn), target.part(0, len as u64)).signaled());
        near.done_on(near_cq).assert_success(WcOpcode::RDMA_WRITE);
        near.post(Work::read(target.part(0, len as u64)).signaled());
        let done = near.done_on(near_cq).assert_success(WcOpcode::RDMA_READ);
        done.memory.assert_is(&Fill::Seed(turn).bytes(len));
    }
}

fn connecting_to_a_stopped_process_times_out(env: &Env) {
    if !env.promises(Promise::PeersAreLookedUp) {
        return;
    }
    let (mut near, mut far) = (Side::open(env.device()), env.far());
    let made = far.new_qp(&QpSpec::rc());
    let peer = far.peer().expect("a process");
    peer.stop(true);
    let start = Instant::now();
    let error = connect_error(&mut near, &QpSpec::rc(), made.address);
    assert_eq!(error, "TimedOut");
    assert!(start.elapsed() < crate::harness::LIMIT, "{:?}", start.elapsed());
    peer.stop(false);
    let late = near.new_qp(&QpSpec::rc());
    near.connect(late.qp, made.address);
}

fn a_queue_pair_can_be_connected_to_itself(env: &Env) {
    let mut side = env.near();
    let made = side.new_qp(&QpSpec::rc());
    side.connect(made.qp, made.address);
    for len in [8, 5000] {
        side.recv(Mem::blank(len), 1);
        side.post(Work::send(Mem::seeded(len, 4)).id(2).signaled());
        let mut done = [side.done(), side.done()];
        done.sort_by_key(|done| done.wr_id);
        done[0].memory.assert_is(&Fill::Seed(4).bytes(len));
        assert_eq!(done.map(|done| (done.wr_id, done.status())), [(1, WcStatus::SUCCESS), (2, WcStatus::SUCCESS)]);
    }
}

/// The kernel finds that out on a network of Ethernet, after a while: whoever asks before it connects does not wait for that.
fn a_port_that_nobody_has_is_unreachable(env: &Env) {
    let own = env.near().new_qp(&QpSpec::rc()).address;
    let nobody = own.gid.ipv4().map(|address| address.octets()).map(|[a, b, c, _]| Ipv4Addr::new(a, b, c, 254));
    // Who is on another's network nobody here knows.
    let nobody = nobody.filter(|_| env.device().starts_with("rxe"));
    let Some(nobody) = nobody else {
        _ = env.able("asking an Ethernet network who is there", false);
        return;
    };
    let there = QpAddress { gid: Gid::from(IpAddr::from(nobody)), soft: None, ..own };
    let (pd, cq) = (env.ctx().alloc_pd().unwrap(), env.ctx().create_cq(64).unwrap());
    let mut inquiry = Inquiry::new(Waker::noop());
    inquiry.ask(env.ctx(), &there);
    assert!(!inquiry.is_over(), "nobody answers for it as soon as that");
    let start = Instant::now();
    while !inquiry.is_over() {
        std::thread::yield_now();
        assert!(start.elapsed() < Duration::from_secs(60));
    }
    let error = inquiry.connect(pd.rc(&cq).build().unwrap(), &there).unwrap_err();
    assert!(matches!(&error, ConnectError::Unreachable { gid, .. } if *gid == there.gid), "{error}");
    // So it is for one who did not ask.
    assert_eq!(connect_error(&mut env.near(), &QpSpec::rc(), there), "Unreachable");
}

fn wrong_kinds_of_activation_are_refused(env: &Env) {
    let ctx = env.ctx();
    let pd = ctx.alloc_pd().unwrap();
    let cq = ctx.create_cq(4).unwrap();
    for prepared in [pd.rc(&cq).build().unwrap(), pd.uc(&cq).build().unwrap()] {
        let error = prepared.activate().unwrap_err();
        assert!(matches!(error, ConnectError::Modify(_)), "{error}");
    }
    let (a, b) = (pd.ud(&cq).qkey(1).build().unwrap(), pd.ud(&cq).qkey(1).build().unwrap());
    assert!(a.connect(&b.address()).is_err(), "datagram queue pairs have no peer");
}
