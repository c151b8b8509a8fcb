//! Shared receive queues.

use qpair_verbs::{Access, WcOpcode, WcStatus};

use crate::harness::{Command, CqId, Env, Fill, Mem, QpId, QpSpec, Side, SrqId, Work, connect_pair, is_soft};

two_sided! {
    two_queue_pairs_take_from_one_queue,
    messages_of_every_length_arrive,
    a_message_finds_its_receive_where_one_turns_out_to_be_short,
    write_with_immediate_takes_a_shared_receive,
    the_limit_event_comes_once,
    a_full_queue_hands_the_memory_back,
    receives_can_not_be_posted_to_the_queue_pair,
    one_queue_pair_takes_all_of_a_deep_queue,
    as_many_messages_as_asked_for_wait_to_be_polled,
    a_peer_that_does_not_poll_fails_a_finite_retry,
    a_queue_pair_that_fails_before_it_is_polled_ends_the_wait,
    an_empty_queue_is_waited_for,
    an_empty_queue_fails_a_finite_retry,
    a_failed_queue_pair_leaves_the_receives_to_the_others,
}

/// Two connections, whose far ends share a receive queue of this depth.
fn shared(env: &Env, depth: u32) -> (Side, Side, SrqId) {
    let (mut near, mut far) = (env.near(), env.far());
    let srq = far.new_srq(depth);
    for _ in 0..2 {
        let spec = QpSpec { srq: Some(srq), ..QpSpec::rc() };
        connect_pair(&mut near, &QpSpec { rnr_retry: Some(2), ..QpSpec::rc() }.impatient(), &mut far, &spec);
    }
    (near, far, srq)
}

fn available(side: &mut Side, srq: SrqId) -> u32 {
    side.ask(Command::SrqAvailable { srq })
}

fn two_queue_pairs_take_from_one_queue(env: &Env) {
    let (mut near, mut far, srq) = shared(env, 32);
    for round in 0..10_u64 {
        for wr_id in 0..16 {
            far.srq_post(srq, Mem::blank(5000), wr_id);
        }
        assert_eq!(available(&mut far, srq), 16);
        for turn in 0..16 {
            // Uneven: 1, 2, 1, 2, 2, ... so that the queue pairs' receives interleave.
            let qp = QpId(usize::from(turn % 3 != 0));
            let len = [8, 5000][turn as usize % 2];
            near.post_on(qp, Work::send(Mem::seeded(len, round + turn)).imm(turn as u32).signaled());
        }
        let mut ids = Vec::new();
        let mut last = [None, None];
        for _ in 0..16 {
            let done = far.done().assert_success(WcOpcode::RECV);
            let turn = done.imm.expect("immediate data");
            let len = [8, 5000][turn as usize % 2];
            done.memory.assert_is(&Fill::Seed(round + u64::from(turn)).bytes(len));
            let qp = usize::from(turn % 3 != 0);
            assert!(last[qp] < Some(turn), "messages of one queue pair out of order");
            last[qp] = Some(turn);
            ids.push(done.wr_id);
        }
        ids.sort_unstable();
        assert_eq!(ids, (0..16).collect::<Vec<_>>(), "each receive is taken once");
        assert_eq!(available(&mut far, srq), 0);
        (0..16).for_each(|_| _ = near.done().assert_success(WcOpcode::SEND));
    }
}

fn messages_of_every_length_arrive(env: &Env) {
    let (mut near, mut far, srq) = shared(env, 4);
    for size in [0, 1, 40, 41, 220, 221, 4096, 1 << 20] {
        far.srq_post(srq, Mem::blank(size), size as u64);
        near.post(Work::send(Mem::seeded(size, 1)).signaled());
        let done = far.done().assert_success(WcOpcode::RECV);
        assert_eq!((done.wr_id, done.byte_len as usize), (size as u64, size));
        done.memory.assert_is(&Fill::Seed(1).bytes(size));
        near.done().assert_success(WcOpcode::SEND);
    }
}

/// It takes its receive before it knows that it can not travel with its completion, and has to wait then, as it is the first that goes
/// into the memory of the other side. The receive is not where its number says, since others are used again.
fn a_message_finds_its_receive_where_one_turns_out_to_be_short(env: &Env) {
    let (mut near, mut far, srq) = shared(env, 4);
    (0..3).for_each(|wr_id| far.srq_post(srq, Mem::blank(64), wr_id));
    for _ in 0..3 {
        near.post_on(QpId(0), Work::send(Mem::seeded(8, 1)).signaled());
        far.done().assert_success(WcOpcode::RECV);
        near.done().assert_success(WcOpcode::SEND);
    }
    far.srq_post(srq, Mem::blank(600), 3);
    near.post_on(QpId(1), Work::send(Mem::seeded(300, 2)).signaled());
    let done = far.done().assert_success(WcOpcode::RECV);
    assert_eq!((done.wr_id, done.byte_len), (3, 300));
    done.memory.assert_is(&Fill::Seed(2).bytes(300));
    near.done().assert_success(WcOpcode::SEND);
}

fn write_with_immediate_takes_a_shared_receive(env: &Env) {
    let (mut near, mut far, srq) = shared(env, 4);
    let target = far.expose(64, Access::REMOTE_WRITE);
    far.srq_post(srq, Mem::None, 3);
    near.post(Work::write(Mem::seeded(64, 1), target.remote).imm(9).signaled());
    let done = far.done().assert_success(WcOpcode::RECV_RDMA_WITH_IMM);
    assert_eq!((done.wr_id, done.imm, done.byte_len), (3, Some(9), 64));
    far.look(&target).assert_is(&Fill::Seed(1).bytes(64));
}

fn the_limit_event_comes_once(env: &Env) {
    let (mut near, mut far, srq) = shared(env, 16);
    for wr_id in 0..8 {
        far.srq_post(srq, Mem::blank(8), wr_id);
    }
    far.ask::<()>(Command::SrqLimit { srq, limit: 5 });
    let quiet = std::time::Duration::from_millis(20);
    for left in (0..8).rev() {
        near.post(Work::send(Mem::inline(8, 0)).signaled());
        far.done().assert_success(WcOpcode::RECV);
        near.done().assert_success(WcOpcode::SEND);
        assert_eq!(available(&mut far, srq), left);
        match left {
            4 => far.assert_event("SrqLimitReached", None),
            _ => assert!(!far.event_within("SrqLimitReached", None, quiet), "an event at {left} left"),
        }
    }
    // One that is below the limit when that is set: Soft-RoCE looks when a receive is taken.
    if is_soft() {
        far.srq_post(srq, Mem::blank(8), 8);
        far.ask::<()>(Command::SrqLimit { srq, limit: 2 });
        far.assert_event("SrqLimitReached", None);
    }
}

fn a_full_queue_hands_the_memory_back(env: &Env) {
    let (_near, mut far, srq) = shared(env, 8);
    let mut posted = 0;
    let refused = loop {
        let post = Command::SrqPost { srq, mem: Mem::blank(8), wr_id: posted };
        match far.ask::<Result<(), crate::harness::Refused>>(post) {
            Ok(()) => posted += 1,
            Err(refused) => break refused,
        }
        assert!(posted < 1000, "the queue never runs full");
    };
    assert!(posted >= 8, "only {posted} of 8");
    assert_eq!((refused.kind.as_str(), refused.retryable, refused.memory_len), ("ReceiveQueueFull", true, 8));
}

fn receives_can_not_be_posted_to_the_queue_pair(env: &Env) {
    let (_near, mut far, _) = shared(env, 8);
    let refused = far.try_recv(QpId(0), Mem::blank(77), 0).expect_err("it has a shared receive queue");
    assert_eq!((refused.kind.as_str(), refused.memory_len), ("UsesSharedReceiveQueue", 77));
}

/// A receive is all that a message needs: nobody has to poll what came before it.
fn one_queue_pair_takes_all_of_a_deep_queue(env: &Env) {
    let (mut near, mut far) = (env.near(), env.far());
    let (srq, cq) = (far.new_srq(1024), far.new_cq(1024));
    let spec = QpSpec { srq: Some(srq), recv_cq: Some(cq), ..QpSpec::rc() };
    connect_pair(&mut near, &QpSpec { rnr_retry: Some(0), ..QpSpec::rc() }, &mut far, &spec);
    // In one piece, as GPUs have no more than some hundred.
    let region = far.expose(700 * 300, Access::REMOTE_WRITE);
    for (wr_id, start) in (0..700).zip((0..).step_by(300)) {
        far.srq_post(srq, Mem::Region { region: region.id, start, end: start + 300 }, wr_id);
    }
    let len = |turn: u32| [8, 100, 300][turn as usize % 3];
    for turn in 0..700 {
        near.post(Work::send(Mem::seeded(len(turn), turn.into())).imm(turn).signaled());
        near.done().assert_success(WcOpcode::SEND);
    }
    for turn in 0..700 {
        let done = far.done_on(cq).assert_success(WcOpcode::RECV);
        assert_eq!(done.imm, Some(turn));
        let start = done.wr_id as usize * 300;
        far.look_at(&region, start, start + len(turn)).assert_is(&Fill::Seed(turn.into()).bytes(len(turn)));
    }
}

/// A connection of which the far side polls nothing of its own accord, and keeps no more than `depth` messages, for which there are
/// `receives`. Its receives have a completion queue of their own.
fn unpolled(env: &Env, receives: u32, depth: u32, rnr_retry: Option<u8>) -> (Side, Side, CqId) {
    let (mut near, mut far) = (env.near(), env.far());
    let (srq, cq) = (far.new_srq(receives), far.new_cq(receives));
    let spec = QpSpec { srq: Some(srq), recv_cq: Some(cq), recv_depth: Some(depth), ..QpSpec::rc() };
    connect_pair(&mut near, &QpSpec { rnr_retry, ..QpSpec::rc() }.impatient(), &mut far, &spec);
    (0..receives).for_each(|wr_id| far.srq_post(srq, Mem::None, wr_id.into()));
    (near, far, cq)
}

fn as_many_messages_as_asked_for_wait_to_be_polled(env: &Env) {
    if !is_soft() {
        return; // It has what the shared queue has, and Soft-RoCE less than this.
    }
    let (mut near, mut far, cq) = unpolled(env, 8192, 4096, Some(0));
    for turn in 0..4096 {
        near.post(Work::send(Mem::None).imm(turn).signaled());
        near.done().assert_success(WcOpcode::SEND);
    }
    (0..4096).for_each(|turn| assert_eq!(far.done_on(cq).assert_success(WcOpcode::RECV).imm, Some(turn)));
}

fn a_peer_that_does_not_poll_fails_a_finite_retry(env: &Env) {
    if !is_soft() {
        return; // Its queue pairs keep as many as there are receives.
    }
    let (mut near, _far, _) = unpolled(env, 2048, 256, Some(1));
    let kept = (0..2048).take_while(|_| {
        near.post(Work::send(Mem::None).signaled());
        let status = near.done().status();
        assert!(status == WcStatus::SUCCESS || status == WcStatus::RNR_RETRY_EXC_ERR, "{status}");
        status.is_success()
    });
    assert!((256..2048).contains(&kept.count()));
    near.assert_failed();
}

fn a_queue_pair_that_fails_before_it_is_polled_ends_the_wait(env: &Env) {
    if !is_soft() {
        return; // As above.
    }
    let (mut near, mut far, _) = unpolled(env, 2048, 1, None);
    let quiet = std::time::Duration::from_millis(100);
    let waits = (0..2048).any(|_| {
        near.post(Work::send(Mem::None).signaled());
        near.try_done(CqId(0), quiet).is_none_or(|done| !done.status().is_success())
    });
    assert!(waits, "there is room for all");
    far.fail_qp(QpId(0));
    // It may only have been late.
    let ends = (0..2048).any(|_| {
        let status = near.done().status();
        if status.is_success() {
            near.post(Work::send(Mem::None).signaled());
        }
        !status.is_success()
    });
    assert!(ends, "nobody takes it any more");
}

fn an_empty_queue_is_waited_for(env: &Env) {
    let (mut near, mut far) = (env.near(), env.far());
    let srq = far.new_srq(8);
    connect_pair(&mut near, &QpSpec::rc(), &mut far, &QpSpec { srq: Some(srq), ..QpSpec::rc() });
    near.post(Work::send(Mem::seeded(5000, 1)).signaled());
    near.assert_quiet();
    far.srq_post(srq, Mem::blank(5000), 1);
    far.done().assert_success(WcOpcode::RECV).memory.assert_is(&Fill::Seed(1).bytes(5000));
    near.done().assert_success(WcOpcode::SEND);
}

fn an_empty_queue_fails_a_finite_retry(env: &Env) {
    let (mut near, mut far, srq) = shared(env, 8);
    near.post(Work::send(Mem::seeded(8, 1)).signaled());
    near.done().assert_status(WcStatus::RNR_RETRY_EXC_ERR);
    near.assert_failed();
    far.srq_post(srq, Mem::blank(8), 1);
    near.post_on(QpId(1), Work::send(Mem::seeded(8, 2)).signaled());
    far.done().assert_success(WcOpcode::RECV).memory.assert_is(&Fill::Seed(2).bytes(8));
}

fn a_failed_queue_pair_leaves_the_receives_to_the_others(env: &Env) {
    let (mut near, mut far, srq) = shared(env, 8);
    for wr_id in 0..4 {
        far.srq_post(srq, Mem::blank(8), wr_id);
    }
    let doomed = far.number(QpId(0));
    far.fail_qp(QpId(0));
    far.assert_event("LastWqeReached", Some(doomed));
    assert_eq!(far.try_done(CqId(0), std::time::Duration::from_millis(20)).map(|done| done.status()), None);
    for _ in 0..4 {
        near.post_on(QpId(1), Work::send(Mem::seeded(8, 2)).signaled());
        far.done().assert_success(WcOpcode::RECV);
        near.done().assert_success(WcOpcode::SEND);
    }
    near.post_on(QpId(0), Work::send(Mem::seeded(8, 2)).signaled());
    let status = near.done().status();
    assert!(!status.is_success(), "the peer's queue pair has failed");
}
