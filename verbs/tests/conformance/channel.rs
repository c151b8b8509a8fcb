//! Completion channels: when they wake, as mio tells.

use qpair_verbs::{Access, Arm, GRH_BYTES, QpType, WcOpcode, WcStatus};

use crate::harness::{
    Command, CqId, Env, LIMIT, Mem, Pair, QpId, QpSpec, Work, at_once, connect_pair, is_soft, take, too_long, too_small,
};

two_sided! {
    an_unarmed_queue_does_not_wake,
    an_armed_queue_wakes_once,
    a_sleeper_is_woken_by_a_message,
    only_solicited_messages_wake_a_queue_armed_for_them,
    failures_wake_a_queue_armed_for_solicited,
    what_is_posted_to_a_failed_queue_pair_wakes,
    a_datagram_that_does_not_fit_wakes_a_queue_armed_for_solicited,
    a_solicited_write_with_immediate_wakes,
    completions_of_sends_wake,
    no_wake_up_is_lost,
}

one_sided! {
    one_channel_serves_two_queues,
    waiting_for_one_queue_leaves_the_events_of_another,
    queues_that_did_not_ring_stay_armed,
    a_sleep_leaves_no_queue_armed,
    a_dropped_queue_rings_no_more,
    a_dropped_queue_leaves_the_events_of_another,
    waiting_ends_in_time,
}

const CQ: CqId = CqId(1);

/// A connection whose far end receives into a queue with a channel.
fn pair(env: &Env) -> Pair {
    let (mut near, mut far) = (env.near(), env.far());
    assert_eq!(far.new_cq_with_channel(64), CQ);
    connect_pair(&mut near, &QpSpec::rc(), &mut far, &QpSpec { recv_cq: Some(CQ), ..QpSpec::rc() });
    for wr_id in 0..16 {
        far.recv(Mem::blank(64), wr_id);
    }
    Pair { near, far }
}

fn send(pair: &mut Pair, solicited: bool) {
    let work = Work::send(Mem::seeded(8, 1)).signaled();
    pair.near.post(if solicited { work.solicited() } else { work });
    pair.near.done().assert_success(WcOpcode::SEND);
}

fn an_unarmed_queue_does_not_wake(env: &Env) {
    let mut pair = pair(env);
    send(&mut pair, false);
    send(&mut pair, true);
    assert!(pair.far.sleeps_on(CQ));
    pair.far.done_on(CQ).assert_success(WcOpcode::RECV);
}

fn an_armed_queue_wakes_once(env: &Env) {
    let mut pair = pair(env);
    for _ in 0..3 {
        pair.far.arm(CQ, false);
        assert!(pair.far.sleeps_on(CQ), "nothing came yet");
        send(&mut pair, false);
        assert!(pair.far.woken(CQ));
        pair.far.ask::<()>(Command::ClearChannel { cq: CQ });
        pair.far.done_on(CQ).assert_success(WcOpcode::RECV);
        send(&mut pair, false);
        assert!(pair.far.sleeps_on(CQ), "it was not armed again");
        pair.far.done_on(CQ).assert_success(WcOpcode::RECV);
    }
}

fn a_sleeper_is_woken_by_a_message(env: &Env) {
    let mut pair = pair(env);
    for _ in 0..5 {
        pair.far.arm(CQ, false);
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| pair.far.woken(CQ));
            pair.near.assert_quiet();
            pair.near.post(Work::send(Mem::seeded(8, 1)).signaled());
            assert!(sleeper.join().expect("the sleeper"));
        });
        pair.near.done().assert_success(WcOpcode::SEND);
        pair.far.ask::<()>(Command::ClearChannel { cq: CQ });
        pair.far.done_on(CQ).assert_success(WcOpcode::RECV);
    }
}

fn only_solicited_messages_wake_a_queue_armed_for_them(env: &Env) {
    let mut pair = pair(env);
    for _ in 0..3 {
        pair.far.arm(CQ, true);
        send(&mut pair, false);
        assert!(pair.far.sleeps_on(CQ));
        send(&mut pair, true);
        assert!(pair.far.woken(CQ));
        pair.far.ask::<()>(Command::ClearChannel { cq: CQ });
        for _ in 0..2 {
            pair.far.done_on(CQ).assert_success(WcOpcode::RECV);
        }
    }
}

fn failures_wake_a_queue_armed_for_solicited(env: &Env) {
    let mut pair = pair(env);
    pair.far.arm(CQ, true);
    pair.near.post(Work::send(Mem::seeded(65, 1)).signaled());
    pair.near.done().assert_one_of(too_long());
    if env.sounder_than_rxe("waking for a failed receive where solicited ones only are waited for") {
        assert!(pair.far.woken(CQ));
    }
    pair.far.done_on(CQ).assert_one_of(too_small());
}

/// It completes at once, for whoever sleeps.
fn what_is_posted_to_a_failed_queue_pair_wakes(env: &Env) {
    let mut pair = pair(env);
    pair.far.fail_qp(QpId(0));
    for _ in 0..16 {
        pair.far.done_on(CQ).assert_status(WcStatus::WR_FLUSH_ERR);
    }
    // The failure itself may ring late, once.
    pair.far.arm(CQ, false);
    if !pair.far.sleeps_on(CQ) {
        pair.far.ask::<()>(Command::ClearChannel { cq: CQ });
    }
    for wr_id in 0..3 {
        pair.far.arm(CQ, false);
        assert!(pair.far.sleeps_on(CQ), "nothing is posted");
        pair.far.recv(Mem::blank(64), wr_id);
        assert!(pair.far.woken(CQ));
        pair.far.ask::<()>(Command::ClearChannel { cq: CQ });
        pair.far.done_on(CQ).assert_status(WcStatus::WR_FLUSH_ERR);
    }
}

fn a_datagram_that_does_not_fit_wakes_a_queue_armed_for_solicited(env: &Env) {
    let (mut near, mut far) = (env.near(), env.far());
    assert_eq!(far.new_cq_with_channel(64), CQ);
    let spec = QpSpec { qkey: Some(7), ..QpSpec::new(QpType::Ud) };
    let (own, other) = (near.new_qp(&spec), far.new_qp(&QpSpec { recv_cq: Some(CQ), ..spec }));
    near.ask::<()>(Command::Activate { qp: own.qp });
    far.ask::<()>(Command::Activate { qp: other.qp });
    let to = near.new_handle(other.address);
    far.recv(Mem::blank(GRH_BYTES + 10), 0);
    far.arm(CQ, true);
    near.post(Work::send_to(to, Mem::seeded(100, 1)).signaled());
    near.done().assert_success(WcOpcode::SEND);
    // Other devices may as well lose it.
    if is_soft() {
        assert!(far.woken(CQ));
        far.done_on(CQ).assert_status(WcStatus::LOC_LEN_ERR);
    }
}

fn a_solicited_write_with_immediate_wakes(env: &Env) {
    let mut pair = pair(env);
    let target = pair.far.expose(64, Access::REMOTE_WRITE);
    pair.far.arm(CQ, true);
    pair.near.post(Work::write(Mem::seeded(64, 1), target.remote).solicited().signaled());
    pair.near.done().assert_success(WcOpcode::RDMA_WRITE);
    assert!(pair.far.sleeps_on(CQ), "a WRITE takes no receive");
    pair.near.post(Work::write(Mem::seeded(64, 1), target.remote).imm(1).solicited().signaled());
    assert!(pair.far.woken(CQ));
    pair.far.done_on(CQ).assert_success(WcOpcode::RECV_RDMA_WITH_IMM);
}

fn completions_of_sends_wake(env: &Env) {
    let (mut near, mut far) = (env.near(), env.far());
    assert_eq!(near.new_cq_with_channel(64), CQ);
    connect_pair(&mut near, &QpSpec { cq: CQ, ..QpSpec::rc() }, &mut far, &QpSpec::rc());
    let target = far.expose(64, Access::REMOTE_ALL);
    for work in [Work::write(Mem::seeded(64, 1), target.remote), Work::read(target.remote)] {
        near.arm(CQ, false);
        near.post(work.signaled());
        assert!(near.woken(CQ));
        near.ask::<()>(Command::ClearChannel { cq: CQ });
        near.done_on(CQ).assert_status(WcStatus::SUCCESS);
    }
    // A message that waits for its receive completes later.
    near.arm(CQ, false);
    near.post(Work::send(Mem::seeded(5000, 1)).signaled());
    assert!(near.sleeps_on(CQ));
    far.recv(Mem::blank(5000), 0);
    assert!(near.woken(CQ));
    near.done_on(CQ).assert_success(WcOpcode::SEND);
}

fn no_wake_up_is_lost(env: &Env) {
    const COUNT: u64 = 300;
    let mut pair = pair(env);
    std::thread::scope(|scope| {
        let near = &mut pair.near;
        scope.spawn(move || {
            for turn in 0..COUNT {
                near.post(Work::send(Mem::seeded(8, turn)).signaled());
                near.done().assert_success(WcOpcode::SEND);
            }
        });
        let mut count = 0;
        while count < COUNT {
            pair.far.arm(CQ, false);
            let mut found = false;
            while let Some(done) = pair.far.try_done(CQ, std::time::Duration::ZERO) {
                done.assert_success(WcOpcode::RECV);
                pair.far.recv(Mem::blank(64), 0);
                count += 1;
                found = true;
            }
            if !found && count < COUNT {
                assert!(pair.far.woken(CQ), "a wake-up was lost after {count} messages");
                pair.far.ask::<()>(Command::ClearChannel { cq: CQ });
            }
        }
    });
}

fn one_channel_serves_two_queues(env: &Env) {
    let ctx = env.ctx();
    let pd = ctx.alloc_pd().unwrap();
    let channel = ctx.create_channel().unwrap();
    let mut queues = [ctx.create_cq_on(8, &channel).unwrap(), ctx.create_cq_on(8, &channel).unwrap()];
    let (a, b) = (pd.rc(&queues[0]).build().unwrap(), pd.rc(&queues[1]).build().unwrap());
    let addresses = (a.address(), b.address());
    let mut qps = [a.connect(&addresses.1).unwrap(), b.connect(&addresses.0).unwrap()];
    let target = pd.expose(8, Access::REMOTE_WRITE).unwrap();
    for turn in [0, 1, 1, 0] {
        queues.iter_mut().for_each(|queue| queue.arm(Arm::Any));
        assert!(!channel.wait(Some(std::time::Duration::ZERO)).unwrap());
        qps[turn].write_inline(&[1; 8], target.remote(0..8)).signaled().post().unwrap();
        assert!(channel.wait(Some(LIMIT)).unwrap());
        channel.clear();
        let done = queues[turn].poll().unwrap().expect("a completion");
        assert_eq!((done.status(), done.qpn()), (WcStatus::SUCCESS, qps[turn].number()));
        drop(done);
        assert!(queues[1 - turn].poll().unwrap().is_none());
        // The other stays armed; arming it again is harmless.
    }
    assert_eq!(qps[0].state(), qpair_verbs::QpState::Rts);
}

/// Two queues on one channel, each with a queue pair; they are connected to each other.
struct Shared {
    channel: qpair_verbs::CompletionChannel,
    queues: [qpair_verbs::CompletionQueue; 2],
    qps: [qpair_verbs::QueuePair; 2],
    target: qpair_verbs::ExposedRegion,
}

impl Shared {
    fn new(env: &Env) -> Shared {
        let ctx = env.ctx();
        let pd = ctx.alloc_pd().unwrap();
        let channel = ctx.create_channel().unwrap();
        let queues = [(); 2].map(|()| ctx.create_cq_on(8, &channel).unwrap());
        let [a, b] = [0, 1].map(|at: usize| pd.rc(&queues[at]).build().unwrap());
        let addresses = [a.address(), b.address()];
        let qps = [a.connect(&addresses[1]).unwrap(), b.connect(&addresses[0]).unwrap()];
        Shared { channel, queues, qps, target: pd.expose(8, Access::REMOTE_WRITE).unwrap() }
    }

    fn complete(&mut self, turn: usize) {
        self.qps[turn].write_inline(&[1; 8], self.target.remote(0..8)).signaled().post().unwrap();
    }

    /// Takes a completion of a queue without sleeping on it, for which it would be armed.
    fn polled(&mut self, which: usize) {
        let deadline = std::time::Instant::now() + LIMIT;
        loop {
            if let Some(completion) = self.queues[which].poll().unwrap() {
                return assert_eq!(completion.status(), WcStatus::SUCCESS);
            }
            assert!(std::time::Instant::now() < deadline, "no completion in {LIMIT:?}");
            std::thread::yield_now();
        }
    }

    /// Whether the channel is readable now.
    fn rings(&self) -> bool {
        self.channel.wait(Some(std::time::Duration::ZERO)).unwrap()
    }

    /// Whether it is once what was posted is done.
    fn rings_at_once(&self) -> bool {
        self.channel.wait(Some(at_once())).unwrap()
    }
}

fn waiting_for_one_queue_leaves_the_events_of_another(env: &Env) {
    let mut shared = Shared::new(env);
    shared.queues[1].arm(Arm::Any);
    shared.complete(1);
    let error = shared.queues[0].wait_for(std::time::Duration::from_millis(10)).map(drop).unwrap_err();
    assert!(matches!(error, qpair_verbs::CqError::TimedOut(_)), "{error}");
    assert!(shared.rings_at_once(), "the event of the other queue is gone");
    shared.channel.clear();
    assert!(!shared.rings());
    drop(take(&mut shared.queues[1]));
}

/// What a queue is armed for while it is waited for is over then. Its ring may come as late as just before the queue pair's
/// next completion.
fn a_sleep_leaves_no_queue_armed(env: &Env) {
    let mut shared = Shared::new(env);
    shared.queues[0].wait_for(std::time::Duration::from_millis(1)).map(drop).unwrap_err();
    shared.complete(0);
    shared.polled(0);
    assert!(!shared.rings());
    for _ in 0..200 {
        shared.complete(0);
        drop(take(&mut shared.queues[0]));
        shared.complete(0);
        shared.polled(0);
        shared.channel.clear();
        shared.complete(0);
        shared.polled(0);
        assert!(!shared.rings());
    }
}

fn queues_that_did_not_ring_stay_armed(env: &Env) {
    let mut shared = Shared::new(env);
    shared.queues.iter_mut().for_each(|queue| queue.arm(Arm::Any));
    for turn in [0, 1] {
        shared.complete(turn);
        assert!(shared.rings_at_once(), "queue {turn}");
        shared.channel.clear();
        drop(take(&mut shared.queues[turn]));
        assert!(!shared.rings());
    }
    shared.complete(0);
    shared.polled(0);
    assert!(!shared.rings(), "a queue that rang has to be armed again");
    if !env.able("taking an arming back", is_soft()) {
        return;
    }
    shared.queues[1].arm(Arm::Any);
    shared.queues[1].disarm();
    shared.complete(1);
    assert!(!shared.rings(), "the arming was taken back");
}

fn a_dropped_queue_rings_no_more(env: &Env) {
    let mut shared = Shared::new(env);
    shared.queues[1].arm(Arm::Any);
    shared.complete(1);
    assert!(shared.rings_at_once());
    let [first, second] = shared.queues;
    drop(second);
    assert!(!shared.channel.wait(Some(std::time::Duration::ZERO)).unwrap());
    drop((first, shared.qps));
    assert!(!shared.channel.wait(Some(std::time::Duration::ZERO)).unwrap());
}

fn a_dropped_queue_leaves_the_events_of_another(env: &Env) {
    let mut shared = Shared::new(env);
    shared.queues[0].arm(Arm::Any);
    shared.complete(0);
    assert!(shared.rings_at_once());
    drop(env.ctx().create_cq_on(8, &shared.channel).unwrap());
    assert!(shared.rings(), "the event of the other queue is gone");
    shared.channel.clear();
    assert!(!shared.rings());
    drop(take(&mut shared.queues[0]));
}

fn waiting_ends_in_time(env: &Env) {
    let limit = std::time::Duration::from_millis(20);
    let start = std::time::Instant::now();
    let mut cq = env.ctx().create_cq(4).unwrap();
    let error = cq.wait_for(limit).unwrap_err();
    assert!(matches!(error, qpair_verbs::CqError::TimedOut(it) if it == limit), "{error}");
    assert!(!env.ctx().create_channel().unwrap().wait(Some(limit)).unwrap());
    assert!(start.elapsed() >= 2 * limit);
}
