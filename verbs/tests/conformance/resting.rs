//! Completion queues of many queue pairs, of which few have anything to say: a poll need not look at the others.

use std::time::{Duration, Instant};

use qpair_verbs::{WcOpcode, WcStatus};

use crate::harness::{Command, CqId, Env, LIMIT, Mem, QpId, QpSpec, Side, Work, connect_pair, is_soft};

two_sided! {
    messages_to_queue_pairs_that_were_long_idle_arrive,
    a_sleeper_whose_queue_pairs_were_all_idle_is_woken,
    queue_pairs_go_and_come_among_idle_ones,
    a_request_that_waits_is_done_though_its_queue_pair_was_idle,
    receives_and_sends_of_idle_queue_pairs_complete_in_queues_of_their_own,
    a_queue_pair_that_was_idle_is_flushed_when_it_fails,
}

two_processes! {
    a_peer_killed_while_all_are_idle_is_noticed,
    many_connections_take_few_descriptors,
}

const COUNT: u64 = 24;
const CQ: CqId = CqId(1);
/// Queue pairs that the software device always looks at.
const AWAKE: usize = 4;

/// Connections of two sides, a receive posted at each end.
struct Crowd {
    near: Side,
    far: Side,
    qps: Vec<(QpId, QpId)>,
}

fn spec() -> QpSpec {
    QpSpec { send_depth: Some(4), recv_depth: Some(4), ..QpSpec::rc().impatient() }
}

impl Crowd {
    fn new(env: &Env, spec: &QpSpec) -> Crowd {
        let (near, far) = (env.near(), env.far());
        let mut crowd = Crowd { near, far, qps: Vec::new() };
        if spec.recv_cq.is_some() {
            assert_eq!((crowd.near.new_cq_with_channel(256), crowd.far.new_cq_with_channel(256)), (CQ, CQ));
        }
        (0..COUNT).for_each(|_| crowd.join(spec));
        crowd
    }

    fn join(&mut self, spec: &QpSpec) {
        let wr_id = self.qps.len() as u64;
        let (a, b) = connect_pair(&mut self.near, spec, &mut self.far, spec);
        self.near.recv_on(a, Mem::blank(64), wr_id);
        self.far.recv_on(b, Mem::blank(64), wr_id);
        self.qps.push((a, b));
    }

    /// Polls until all that are idle are known to be, and rest where the device lets them.
    fn calm(&mut self, cq: CqId) {
        let least = if is_soft() { COUNT as usize - AWAKE } else { 0 };
        for side in [&mut self.near, &mut self.far] {
            let begin = Instant::now();
            // Each wait looks some hundred times at each.
            for wait in 0.. {
                assert!(side.try_done(cq, Duration::from_millis(1)).is_none());
                let resting: usize = side.ask(Command::Resting { cq });
                if wait >= 24 && resting >= least {
                    break;
                }
                assert!(begin.elapsed() < LIMIT, "{resting} of {COUNT} rest");
            }
        }
    }

    /// A message from the near end of a connection to the far one.
    fn pass(&mut self, place: u64, cq: CqId) {
        let (a, b) = self.qps[place as usize];
        self.near.post_on(a, Work::send(Mem::seeded(8, place)).id(1000 + place).signaled());
        let received = self.far.done_on(cq).assert_success(WcOpcode::RECV);
        assert_eq!(received.wr_id, place);
        let sent = self.near.done().assert_success(WcOpcode::SEND);
        assert_eq!(sent.wr_id, 1000 + place);
        self.far.recv_on(b, Mem::blank(64), place);
    }
}

fn messages_to_queue_pairs_that_were_long_idle_arrive(env: &Env) {
    let mut crowd = Crowd::new(env, &spec());
    for _ in 0..2 {
        crowd.calm(CqId(0));
        (0..COUNT).for_each(|place| crowd.pass(place, CqId(0)));
    }
    crowd.calm(CqId(0));
    // One that is busy among those that are not.
    (0..200).for_each(|_| crowd.pass(COUNT / 2, CqId(0)));
    // All at once.
    for &(a, _) in &crowd.qps {
        crowd.near.post_on(a, Work::send(Mem::seeded(8, 1)));
    }
    let mut came: Vec<u64> = crowd.qps.iter().map(|_| crowd.far.done().wr_id).collect();
    came.sort_unstable();
    assert_eq!(came, (0..COUNT).collect::<Vec<_>>());
}

fn a_sleeper_whose_queue_pairs_were_all_idle_is_woken(env: &Env) {
    let mut crowd = Crowd::new(env, &QpSpec { recv_cq: Some(CQ), ..spec() });
    for place in [0, COUNT - 1, 0, 7] {
        crowd.calm(CQ);
        crowd.far.arm(CQ, false);
        assert!(crowd.far.sleeps_on(CQ), "nothing came yet");
        let (near, (a, _)) = (&mut crowd.near, crowd.qps[place as usize]);
        let far = &mut crowd.far;
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| far.woken(CQ));
            near.post_on(a, Work::send(Mem::seeded(8, place)).signaled());
            assert!(sleeper.join().expect("the sleeper"));
        });
        crowd.far.ask::<()>(Command::ClearChannel { cq: CQ });
        assert_eq!(crowd.far.done_on(CQ).wr_id, place);
        crowd.near.done().assert_success(WcOpcode::SEND);
        crowd.far.recv_on(crowd.qps[place as usize].1, Mem::blank(64), place);
    }
}

fn queue_pairs_go_and_come_among_idle_ones(env: &Env) {
    let mut crowd = Crowd::new(env, &spec());
    for turn in 0..3 {
        crowd.calm(CqId(0));
        for place in (0..COUNT).filter(|place| place % 3 == turn) {
            // The device knows a queue pair by its last place; the new one takes that or another.
            let (a, b) = crowd.qps[place as usize];
            crowd.near.drop_qp(a);
            crowd.far.drop_qp(b);
            let (a, b) = connect_pair(&mut crowd.near, &spec(), &mut crowd.far, &spec());
            crowd.near.recv_on(a, Mem::blank(64), place);
            crowd.far.recv_on(b, Mem::blank(64), place);
            crowd.qps[place as usize] = (a, b);
        }
        (0..COUNT).for_each(|place| crowd.pass(place, CqId(0)));
    }
}

fn a_request_that_waits_is_done_though_its_queue_pair_was_idle(env: &Env) {
    let mut crowd = Crowd::new(env, &QpSpec { rnr_retry: Some(7), ..spec() });
    crowd.calm(CqId(0));
    let (a, b) = crowd.qps[3];
    for _ in 0..2 {
        crowd.near.post_on(a, Work::send(Mem::seeded(8, 1)).signaled());
    }
    crowd.far.done().assert_success(WcOpcode::RECV);
    crowd.near.done().assert_success(WcOpcode::SEND);
    crowd.near.assert_quiet();
    crowd.far.recv_on(b, Mem::blank(64), 3);
    crowd.far.done().assert_success(WcOpcode::RECV);
    crowd.near.done().assert_success(WcOpcode::SEND);
}

fn receives_and_sends_of_idle_queue_pairs_complete_in_queues_of_their_own(env: &Env) {
    let mut crowd = Crowd::new(env, &QpSpec { recv_cq: Some(CQ), ..spec() });
    for _ in 0..2 {
        crowd.calm(CQ);
        crowd.calm(CqId(0));
        (0..COUNT).for_each(|place| crowd.pass(place, CQ));
    }
}

fn a_queue_pair_that_was_idle_is_flushed_when_it_fails(env: &Env) {
    let mut crowd = Crowd::new(env, &spec());
    crowd.calm(CqId(0));
    let (a, _) = crowd.qps[5];
    crowd.near.fail_qp(a);
    let flushed = crowd.near.done();
    assert_eq!((flushed.status(), flushed.wr_id), (WcStatus::WR_FLUSH_ERR, 5));
    // What is posted to it later is flushed too, however long after.
    crowd.calm(CqId(0));
    crowd.near.recv_on(a, Mem::blank(8), 77);
    let flushed = crowd.near.done();
    assert_eq!((flushed.status(), flushed.wr_id), (WcStatus::WR_FLUSH_ERR, 77));
}

fn a_peer_killed_while_all_are_idle_is_noticed(env: &Env) {
    if !env.able("telling of a peer's death", is_soft() && !crate::harness::over_network()) {
        return;
    }
    let mut crowd = Crowd::new(env, &spec());
    crowd.calm(CqId(0));
    let killed = Instant::now();
    crowd.far.peer().expect("a process").kill();
    let mut flushed: Vec<u64> = crowd
        .qps
        .iter()
        .map(|_| {
            let done = crowd.near.try_done(CqId(0), LIMIT).expect("flushed in time");
            assert_eq!(done.status(), WcStatus::WR_FLUSH_ERR);
            done.wr_id
        })
        .collect();
    flushed.sort_unstable();
    assert_eq!(flushed, (0..COUNT).collect::<Vec<_>>());
    assert!(killed.elapsed() < LIMIT);
}

fn many_connections_take_few_descriptors(env: &Env) {
    if !env.on_host("counting descriptors") {
        return;
    }
    if !env.able("sharing the descriptors of connections", is_soft()) {
        return;
    }
    let mut crowd = Crowd { near: env.near(), far: env.far(), qps: Vec::new() };
    crowd.join(&spec());
    crowd.far.ask::<()>(Command::Descriptors { spare: Some(4) });
    (1..COUNT).for_each(|_| crowd.join(&spec()));
    crowd.far.ask::<()>(Command::Descriptors { spare: None });
    (0..COUNT).for_each(|place| crowd.pass(place, CqId(0)));
}
