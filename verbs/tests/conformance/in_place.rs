//! Messages that are read where they are, and receives that are posted again.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use qpair_verbs::{
    Access, Completion, CompletionQueue, GRH_BYTES, Local, PostError, ProtectionDomain, QueuePair, Rejected, WcOpcode,
    WcStatus,
};

use crate::SIZES;
use crate::harness::{Command, CqId, Done, Env, Fill, LIMIT, Mem, QpId, QpSpec, Side, Work, is_soft};

two_sided! {
    messages_of_every_size_are_read_in_place,
    receives_posted_again_take_turns_with_others,
}

two_processes! {
    a_peer_killed_while_receives_are_posted_again_leaves_each_of_them,
}

one_sided! {
    what_is_taken_out_after_all_holds_the_message,
    longer_messages_are_read_in_place_too,
    the_memory_of_a_receive_stays_with_its_number,
    only_buffers_and_slabs_have_messages,
    a_completion_of_anything_else_is_no_receive,
    a_full_queue_hands_the_message_back,
    another_queue_pair_may_take_the_receive,
    memory_of_another_domain_is_refused_with_its_message,
    a_message_that_is_forgotten_is_gone,
    a_failed_queue_pair_flushes_what_is_posted_again,
    a_shared_queue_takes_its_receives_again,
    datagrams_are_read_in_place,
}

/// The next completion of a receive at the far side, whose message was read in place.
#[track_caller]
fn read_in_place(side: &mut Side) -> Done {
    let limit = LIMIT.as_millis() as u64;
    side.ask::<Option<Done>>(Command::Repost { qp: QpId(0), cq: CqId(0), limit }).expect("a message in time")
}

fn blank_slab(len: usize) -> Mem {
    match Mem::blank(len) {
        Mem::Buffer(piece) => Mem::Slab(piece),
        other => other,
    }
}

fn messages_of_every_size_are_read_in_place(env: &Env) {
    if !env.on_host("reading in place") {
        return;
    }
    let mut pair = env.rc();
    let sizes: Vec<usize> = SIZES.into_iter().chain([8, 99, 100, 101]).filter(|&size| size <= 64 << 10).collect();
    for wr_id in 0..3 {
        let piece = [Mem::blank(64 << 10), blank_slab(64 << 10)];
        pair.far.recv(piece[wr_id % 2].clone(), wr_id as u64);
    }
    for turn in 0..3 * sizes.len() {
        let size = sizes[turn % sizes.len()];
        let message = Mem::seeded(size, turn as u64);
        pair.near.post(Work::send(message.clone()).signaled());
        let received = read_in_place(&mut pair.far).assert_success(WcOpcode::RECV);
        assert_eq!((received.byte_len as usize, received.wr_id), (size, turn as u64 % 3));
        assert_eq!(received.memory.form, "in place");
        received.memory.assert_is(&message.bytes());
        pair.near.done().assert_success(WcOpcode::SEND);
    }
    // They are posted still, in turn: three messages more, and no fourth.
    for wr_id in 0..3 {
        pair.near.post(Work::send(Mem::seeded(500, wr_id)).signaled());
        let received = pair.far.done().assert_success(WcOpcode::RECV);
        assert_eq!(received.wr_id, (3 * sizes.len() as u64 + wr_id) % 3);
        received.memory.assert_is(&Fill::Seed(wr_id).bytes(500));
        pair.near.done().assert_success(WcOpcode::SEND);
    }
    pair.near.post(Work::send(Mem::seeded(8, 1)).signaled());
    pair.far.assert_quiet();
}

/// Against a model: which numbers are posted, in which order.
fn receives_posted_again_take_turns_with_others(env: &Env) {
    if !env.on_host("reading in place") {
        return;
    }
    for depth in [1_u32, 3, 4, 16] {
        let spec = QpSpec { recv_depth: Some(depth), ..QpSpec::rc() };
        let mut pair = env.pair(&QpSpec::rc(), &spec);
        let mut posted: VecDeque<u64> = (0..depth.into()).collect();
        let mut fresh = u64::from(depth);
        posted.iter().for_each(|&wr_id| pair.far.recv(Mem::blank(300), wr_id));
        let mut random = 12345_u64;
        for turn in 0..200_u64 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let size = [0, 8, 40, 41, 100, 101, 220, 300][(random >> 40) as usize % 8];
            let work = Work::send(Mem::seeded(size, turn));
            pair.near.post(if turn.is_multiple_of(5) { work.imm(turn as u32) } else { work }.signaled());
            let wr_id = posted.pop_front().expect("one is posted at all times");
            let again = !(random >> 50).is_multiple_of(4) || posted.is_empty();
            let received = if again { read_in_place(&mut pair.far) } else { pair.far.done() };
            let received = received.assert_success(WcOpcode::RECV);
            assert_eq!((received.wr_id, received.byte_len as usize), (wr_id, size), "turn {turn}, depth {depth}");
            received.memory.assert_is(&Fill::Seed(turn).bytes(size));
            pair.near.done().assert_success(WcOpcode::SEND);
            if again {
                posted.push_back(wr_id);
            } else if (random >> 60).is_multiple_of(2) {
                pair.far.recv(Mem::blank(300), fresh);
                posted.push_back(fresh);
                fresh += 1;
            }
        }
    }
}

fn a_peer_killed_while_receives_are_posted_again_leaves_each_of_them(env: &Env) {
    // One of another host would hear of its end only between two commands.
    if !env.far_is_near() {
        return;
    }
    let mut pair = env.pair(&QpSpec::rc().impatient(), &QpSpec::rc());
    let target = pair.near.expose(4096, Access::REMOTE_WRITE);
    for wr_id in 0..20 {
        pair.near.recv(blank_slab(4096), wr_id);
    }
    let far = pair.far.peer().expect("a process");
    far.tell(&Command::Stream { qp: QpId(0), remote: target.remote, sends: true });
    for turn in 0..200 {
        let received = read_in_place(&mut pair.near).assert_success(WcOpcode::RECV);
        assert_eq!(received.wr_id, turn % 20);
    }
    pair.far.peer().expect("a process").kill();
    if !is_soft() {
        pair.near.post(Work::send(Mem::None).id(1000).signaled());
    }
    pair.near.assert_failed();
    let mut left: Vec<u64> = (0..20).collect();
    while !left.is_empty() {
        let done = pair.near.done();
        if done.wr_id != 1000 {
            let place = left.iter().position(|&wr_id| wr_id == done.wr_id).expect("each comes back once");
            left.remove(place);
        }
    }
}

/// Two connected queue pairs, which have a completion queue for what they send and one for what they receive.
struct Ground {
    pd: ProtectionDomain,
    sends: CompletionQueue,
    cq: CompletionQueue,
    a: QueuePair,
    b: QueuePair,
}

const DEPTH: u32 = 4;

impl Ground {
    fn new(env: &Env) -> Ground {
        let pd = env.ctx().alloc_pd().unwrap();
        let (sends, cq) = (env.ctx().create_cq(64).unwrap(), env.ctx().create_cq(64).unwrap());
        let make = || pd.rc(&sends).recv_cq(&cq).recv_depth(DEPTH).build().unwrap();
        let (a, b) = (make(), make());
        let (addr_a, addr_b) = (a.address(), b.address());
        let (a, b) = (a.connect(&addr_b).unwrap(), b.connect(&addr_a).unwrap());
        Ground { pd, sends, cq, a, b }
    }

    fn post(&mut self, memory: impl Into<Local>, wr_id: u64) {
        self.b.recv(memory).id(wr_id).post().unwrap();
    }

    fn send(&mut self, message: &[u8]) {
        send(&self.pd, &mut self.a, &mut self.sends, message);
    }

    /// Passes a message whose receive is posted, to show that the queue pairs are in order.
    fn works(&mut self, wr_id: u64) {
        self.send(&[9; 30]);
        let done = received(&mut self.cq);
        assert_eq!((done.wr_id(), done.message()), (wr_id, Some(&[9; 30][..])));
    }
}

/// Sends a message that finds a receive.
fn send(pd: &ProtectionDomain, qp: &mut QueuePair, cq: &mut CompletionQueue, message: &[u8]) {
    let mut buffer = pd.alloc(message.len().max(1)).unwrap();
    buffer[..message.len()].copy_from_slice(message);
    qp.send(buffer).range(0..message.len()).signaled().post().unwrap();
    cq.wait_for(LIMIT).unwrap().ok().unwrap();
}

/// The next completion, which must be that of a receive.
#[track_caller]
fn received(cq: &mut CompletionQueue) -> Completion<'_> {
    let done = cq.wait_for(LIMIT).unwrap();
    assert_eq!((done.status(), done.opcode()), (WcStatus::SUCCESS, WcOpcode::RECV));
    done
}

/// What is done with the next receive, polled for by one who reads messages where they are.
#[track_caller]
fn in_place<R>(cq: &mut CompletionQueue, with: impl FnOnce(Completion<'_>) -> R) -> R {
    let start = Instant::now();
    loop {
        if let Some(done) = cq.poll_in_place().unwrap() {
            assert_eq!((done.status(), done.opcode()), (WcStatus::SUCCESS, WcOpcode::RECV));
            return with(done);
        }
        assert!(start.elapsed() < LIMIT, "nothing completed in time");
        std::thread::yield_now();
    }
}

#[track_caller]
fn refused(result: Result<(), Rejected>) -> (PostError, Local) {
    result.expect_err("it can not be posted").into_parts()
}

const LENGTHS: [usize; 9] = [0, 1, 8, 40, 41, 100, 101, 220, 221];

fn what_is_taken_out_after_all_holds_the_message(env: &Env) {
    let mut ground = Ground::new(env);
    for len in LENGTHS {
        let message = vec![len as u8 | 1; len];
        let mut buffer = ground.pd.alloc(300).unwrap();
        buffer.fill(7);
        ground.post(buffer, 1);
        ground.send(&message);
        let done = received(&mut ground.cq);
        assert_eq!(done.message(), Some(&message[..]));
        let buffer = done.into_buffer().unwrap();
        assert_eq!(buffer[..len], message);
        assert!(buffer[len..].iter().all(|&byte| byte == 7), "{len}: bytes behind the message were written");
        ground.post(buffer.into_slab(), 2);
        ground.send(&message);
        let slab = received(&mut ground.cq).into_slab().unwrap();
        assert_eq!(slab[..len], message);
        ground.post(slab, 3);
        ground.send(&message);
        let done = received(&mut ground.cq);
        assert!(done.message().is_some());
        match done.into_memory() {
            Local::Slab(slab) => assert_eq!(slab[..len], message),
            other => panic!("{}", other.form()),
        }
    }
}

fn longer_messages_are_read_in_place_too(env: &Env) {
    let mut ground = Ground::new(env);
    for len in (0..600).step_by(7).chain(LENGTHS).chain([579, 580, 581, 900]) {
        let message: Vec<u8> = (0..len).map(|at| (at ^ len) as u8 | 1).collect();
        ground.post(ground.pd.alloc(900).unwrap(), len as u64);
        for _ in 0..3 {
            ground.send(&message);
            in_place(&mut ground.cq, |done| {
                assert_eq!((done.wr_id(), done.message()), (len as u64, Some(&message[..])));
                ground.b.repost(done).unwrap();
            });
        }
        ground.send(&message);
        in_place(&mut ground.cq, |done| {
            let buffer = done.into_buffer().unwrap();
            assert_eq!(buffer[..len], message);
            assert!(buffer[len..].iter().all(|&byte| byte == 0), "{len}: bytes behind the message were written");
        });
        // Others do as before.
        ground.post(ground.pd.alloc(900).unwrap(), 1);
        ground.send(&message);
        assert_eq!(received(&mut ground.cq).message(), Some(&message[..]));
        ground.post(ground.pd.alloc(900).unwrap(), 1);
        ground.send(&message);
        in_place(&mut ground.cq, |done| drop(done));
    }
}

/// Long messages go into the memory, so that it shows which receive has which.
fn the_memory_of_a_receive_stays_with_its_number(env: &Env) {
    for posted in 1..=u64::from(DEPTH) {
        let mut ground = Ground::new(env);
        for wr_id in 0..posted {
            ground.post(ground.pd.alloc(300 + wr_id as usize).unwrap(), wr_id);
        }
        for turn in 0..50 {
            ground.send(&vec![turn as u8; if turn % 3 == 0 { 300 } else { 8 }]);
            let done = received(&mut ground.cq);
            assert_eq!((done.wr_id(), done.message().unwrap()[0]), (turn % posted, turn as u8));
            ground.b.repost(done).unwrap();
        }
        for turn in 50..50 + posted {
            ground.send(&[turn as u8; 300]);
            let done = received(&mut ground.cq);
            let wr_id = done.wr_id();
            let buffer = done.into_buffer().unwrap();
            assert_eq!((wr_id, buffer.len(), buffer[299]), (turn % posted, 300 + wr_id as usize, turn as u8));
        }
    }
}

fn only_buffers_and_slabs_have_messages(env: &Env) {
    let mut ground = Ground::new(env);
    let region = ground.pd.expose(300, Access::NONE).unwrap();
    let list = vec![ground.pd.alloc(10).unwrap(), ground.pd.alloc(290).unwrap()];
    ground.post(region.local(0..300), 1);
    ground.post(list, 2);
    for turn in 0..3 {
        for wr_id in 1..3 {
            ground.send(&[turn; 50]);
            let done = received(&mut ground.cq);
            assert_eq!((done.wr_id(), done.message()), (wr_id, None));
            ground.b.repost(done).unwrap();
            let mut bytes = [0; 50];
            region.read(0, &mut bytes).unwrap();
            assert_eq!(bytes, [turn; 50]);
        }
    }
    let target = ground.pd.expose(8, Access::REMOTE_WRITE).unwrap();
    ground.a.write_inline(&[1; 8], target.remote(0..8)).imm(5).signaled().post().unwrap();
    assert_eq!(ground.sends.wait_for(LIMIT).unwrap().message(), None);
    let done = ground.cq.wait_for(LIMIT).unwrap();
    assert_eq!((done.opcode(), done.message()), (WcOpcode::RECV_RDMA_WITH_IMM, None));
    ground.b.repost(done).unwrap();
    for wr_id in [2, 1] {
        ground.send(&[6; 20]);
        assert_eq!(received(&mut ground.cq).wr_id(), wr_id);
    }
}

fn a_completion_of_anything_else_is_no_receive(env: &Env) {
    let mut ground = Ground::new(env);
    ground.post(ground.pd.alloc(64).unwrap(), 5);
    let target = ground.pd.expose(64, Access::REMOTE_ALL).unwrap();
    let mut buffer = ground.pd.alloc(64).unwrap();
    buffer.fill(3);
    ground.a.write(buffer, target.remote(0..64)).signaled().post().unwrap();
    let (error, memory) = refused(ground.a.repost(ground.sends.wait_for(LIMIT).unwrap()));
    assert!(matches!(memory, Local::Buffer(buffer) if buffer[..] == [3; 64]));
    assert_eq!((error, error.is_retryable()), (PostError::NotAReceive, false));
    ground.a.write_inline(&[0; 8], target.remote(0..8)).signaled().post().unwrap();
    let (error, memory) = refused(ground.b.repost(ground.sends.wait_for(LIMIT).unwrap()));
    assert!(matches!((error, memory), (PostError::NotAReceive, Local::None)));
    ground.works(5);
}

fn a_full_queue_hands_the_message_back(env: &Env) {
    for len in LENGTHS {
        let mut ground = Ground::new(env);
        let message = vec![5; len];
        ground.post(ground.pd.alloc(300).unwrap(), 0);
        ground.send(&message);
        let done = received(&mut ground.cq);
        // The completion has left its place to another, and so on until none is left.
        let mut more = 0;
        while ground.b.recv(ground.pd.alloc(300).unwrap()).id(1).post().is_ok() {
            more += 1;
            assert!(more < 1000, "the queue never runs full");
        }
        assert!(more >= DEPTH, "only {more}");
        let (error, memory) = refused(ground.b.repost(done));
        assert!(matches!(error, PostError::ReceiveQueueFull { .. }) && error.is_retryable(), "{error}");
        assert!(matches!(memory, Local::Buffer(buffer) if buffer[..len] == message));
        ground.works(1);
    }
}

fn another_queue_pair_may_take_the_receive(env: &Env) {
    let mut ground = Ground::new(env);
    for len in LENGTHS {
        ground.post(ground.pd.alloc(300 + len).unwrap(), len as u64);
        ground.send(&vec![8; len]);
        ground.a.repost(received(&mut ground.cq)).unwrap();
        send(&ground.pd, &mut ground.b, &mut ground.sends, &[4; 250]);
        let done = received(&mut ground.cq);
        assert_eq!((done.wr_id(), done.qpn()), (len as u64, ground.a.number()));
        let buffer = done.into_buffer().unwrap();
        assert_eq!((buffer.len(), &buffer[..250]), (300 + len, &[4; 250][..]));
    }
}

fn memory_of_another_domain_is_refused_with_its_message(env: &Env) {
    let (mut ground, mut other) = (Ground::new(env), Ground::new(env));
    for len in LENGTHS {
        ground.post(ground.pd.alloc(300).unwrap(), 1);
        ground.send(&vec![2; len]);
        let (error, memory) = refused(other.b.repost(received(&mut ground.cq)));
        assert_eq!(error, PostError::WrongDomain);
        assert!(matches!(memory, Local::Buffer(buffer) if buffer[..len] == vec![2; len]));
    }
}

fn a_message_that_is_forgotten_is_gone(env: &Env) {
    let mut ground = Ground::new(env);
    ground.post(ground.pd.alloc(64).unwrap(), 1);
    ground.post(ground.pd.alloc(64).unwrap().into_slab(), 2);
    ground.send(&[1; 8]);
    ground.send(&[2; 8]);
    std::mem::forget(received(&mut ground.cq));
    let done = received(&mut ground.cq);
    assert_eq!((done.wr_id(), done.message()), (2, Some(&[2; 8][..])));
    drop(done);
    ground.post(ground.pd.alloc(64).unwrap(), 3);
    ground.works(3);
}

fn a_failed_queue_pair_flushes_what_is_posted_again(env: &Env) {
    let mut ground = Ground::new(env);
    ground.post(ground.pd.alloc(64).unwrap(), 1);
    ground.send(&[1; 8]);
    let done = received(&mut ground.cq);
    ground.b.to_error().unwrap();
    assert_eq!(done.message(), Some(&[1; 8][..]));
    ground.b.repost(done).unwrap();
    for turn in 0..3 {
        let done = ground.cq.wait_for(LIMIT).unwrap();
        assert_eq!((done.wr_id(), done.status(), done.message()), (1, WcStatus::WR_FLUSH_ERR, None), "turn {turn}");
        ground.b.repost(done).unwrap();
    }
    assert_eq!(ground.cq.wait_for(LIMIT).unwrap().into_memory().len(), 64);
    assert!(ground.cq.wait_for(Duration::from_millis(30)).is_err());
}

fn a_shared_queue_takes_its_receives_again(env: &Env) {
    let (ctx, pd) = (env.ctx(), env.ctx().alloc_pd().unwrap());
    let (mut sends, mut cq) = (ctx.create_cq(64).unwrap(), ctx.create_cq(64).unwrap());
    let mut srq = pd.create_srq(8).unwrap();
    let (a, b) = (pd.rc(&sends).build().unwrap(), pd.rc(&sends).recv_cq(&cq).srq(&srq).build().unwrap());
    let (addr_a, addr_b) = (a.address(), b.address());
    let (mut a, mut b) = (a.connect(&addr_b).unwrap(), b.connect(&addr_a).unwrap());
    for wr_id in 0..3 {
        srq.post(pd.alloc(300).unwrap().into_slab(), wr_id).unwrap();
    }
    for turn in 0..50_u64 {
        let len = LENGTHS[turn as usize % LENGTHS.len()];
        send(&pd, &mut a, &mut sends, &vec![turn as u8; len]);
        let done = received(&mut cq);
        assert_eq!((done.wr_id(), done.message()), (turn % 3, Some(&vec![turn as u8; len][..])));
        srq.repost(done).unwrap();
    }
    send(&pd, &mut a, &mut sends, &[1; 8]);
    let (error, memory) = refused(b.repost(received(&mut cq)));
    assert_eq!(error, PostError::UsesSharedReceiveQueue);
    assert!(matches!(memory, Local::Slab(slab) if slab[..8] == [1; 8]));
}

fn datagrams_are_read_in_place(env: &Env) {
    let (ctx, pd) = (env.ctx(), env.ctx().alloc_pd().unwrap());
    let (sends, mut cq) = (ctx.create_cq(64).unwrap(), ctx.create_cq(64).unwrap());
    let (a, mut b) = (pd.ud(&sends).build().unwrap(), pd.ud(&sends).recv_cq(&cq).build().unwrap());
    b.recv(pd.alloc(300).unwrap()).id(1).post().unwrap();
    let address = b.address();
    let (mut a, mut b) = (a.activate().unwrap(), b.activate().unwrap());
    let to = a.address_handle(&address).unwrap();
    for turn in 0..9_u8 {
        a.send_inline(&[turn; 20], &to).post().unwrap();
        let done = received(&mut cq);
        assert_eq!((done.wr_id(), &done.message().unwrap()[GRH_BYTES..]), (1, &[turn; 20][..]));
        b.repost(done).unwrap();
    }
}
