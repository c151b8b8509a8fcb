//! What can not be posted is refused with a typed error, and the memory is handed back.

use qpair_verbs::{
    Access, Buffer, CompletionQueue, Context, GRH_BYTES, Local, PostError, ProtectionDomain, QpState, QueuePair,
    Rejected, SendRequest, WcOpcode, WcStatus,
};

use crate::harness::{Env, is_soft};

one_sided! {
    a_full_send_queue_can_be_tried_again,
    a_full_receive_queue_can_be_tried_again,
    memory_of_another_domain_is_refused,
    a_slab_that_is_shared_is_refused,
    a_slab_received_into_can_be_shared_and_posted_again,
    too_many_pieces_are_refused,
    lengths_must_agree,
    ranges_must_lie_within_the_buffer,
    ranges_need_memory,
    what_a_request_can_not_carry_is_refused,
    the_longest_timeout_is_no_limit,
    handles_of_another_domain_are_refused,
    inline_data_has_a_limit,
    an_empty_list_is_a_message_of_no_bytes,
    a_request_that_is_not_posted_does_nothing,
    a_failed_queue_pair_takes_work_and_flushes_it,
}

/// Two connected queue pairs on one completion queue.
struct Ground {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    a: QueuePair,
    b: QueuePair,
}

const DEPTH: u32 = 8;

impl Ground {
    fn new(ctx: &Context) -> Ground {
        let pd = ctx.alloc_pd().unwrap();
        let cq = ctx.create_cq(256).unwrap();
        let make = || pd.rc(&cq).send_depth(DEPTH).recv_depth(DEPTH).build().unwrap();
        let (a, b) = (make(), make());
        let (addr_a, addr_b) = (a.address(), b.address());
        let (a, b) = (a.connect(&addr_b).unwrap(), b.connect(&addr_a).unwrap());
        Ground { pd, cq, a, b }
    }

    fn buffer(&self, len: usize) -> Buffer {
        let mut buffer = self.pd.alloc(len).unwrap();
        buffer.fill(7);
        buffer
    }

    /// Passes a message, to show that the queue pairs are in order.
    fn works(&mut self) {
        self.b.recv(self.pd.alloc(8).unwrap()).id(111).post().unwrap();
        self.a.send_inline(&[1; 8]).id(222).signaled().post().unwrap();
        let mut ids = [self.next().0, self.next().0];
        ids.sort_unstable();
        assert_eq!(ids, [111, 222]);
        assert!(self.cq.poll().unwrap().is_none());
    }

    /// Number and memory of the next completion, which must be a success.
    fn next(&mut self) -> (u64, Local) {
        let done = self.cq.wait_for(crate::harness::LIMIT).unwrap();
        assert_eq!(done.status(), WcStatus::SUCCESS);
        (done.wr_id(), done.into_memory())
    }
}

/// The error, after a check that all `len` bytes of the memory came back.
#[track_caller]
fn refused(result: Result<(), Rejected>, len: usize) -> PostError {
    let (error, memory) = result.expect_err("it can not be posted").into_parts();
    assert_eq!(memory.len(), len, "the memory was not handed back");
    match memory {
        Local::Buffer(buffer) => assert!(buffer.iter().all(|byte| *byte == 7)),
        Local::List(list) => assert!(list.iter().all(|buffer| buffer.iter().all(|byte| *byte == 7))),
        Local::Slab(slab) => assert!(slab.iter().all(|byte| *byte == 7)),
        Local::Region(_) | Local::None => {}
        other => panic!("no case posts {}", other.form()),
    }
    error
}

fn a_full_send_queue_can_be_tried_again(env: &Env) {
    let mut ground = Ground::new(env.ctx());
    let target = ground.pd.expose(64, Access::REMOTE_ALL).unwrap();
    let mut posted = 0;
    let error = loop {
        match ground.a.write(ground.buffer(64), target.remote(0..64)).id(posted).signaled().post() {
            Ok(()) => posted += 1,
            Err(rejected) => break refused(Err(rejected), 64),
        }
        assert!(posted < 1000, "the queue never runs full");
    };
    assert!(posted >= u64::from(DEPTH), "only {posted}");
    assert!(matches!(error, PostError::SendQueueFull { .. }) && error.is_retryable(), "{error}");
    assert!(error.to_string().contains("poll"), "{error}");
    assert_eq!(ground.next().0, 0);
    ground.a.write(ground.buffer(64), target.remote(0..64)).id(posted).signaled().post().unwrap();
    for wr_id in 1..=posted {
        assert_eq!(ground.next().0, wr_id);
    }
    ground.works();
}

fn a_full_receive_queue_can_be_tried_again(env: &Env) {
    let mut ground = Ground::new(env.ctx());
    let mut posted = 0;
    let error = loop {
        match ground.b.recv(ground.buffer(64)).id(posted).post() {
            Ok(()) => posted += 1,
            Err(rejected) => break refused(Err(rejected), 64),
        }
        assert!(posted < 1000, "the queue never runs full");
    };
    assert!(posted >= u64::from(DEPTH), "only {posted}");
    assert!(matches!(error, PostError::ReceiveQueueFull { .. }) && error.is_retryable(), "{error}");
    ground.a.send_inline(&[1; 8]).post().unwrap();
    assert_eq!(ground.next().0, 0);
    ground.b.recv(ground.buffer(64)).id(posted).post().unwrap();
    for wr_id in 1..=posted {
        ground.a.send_inline(&[1; 8]).signaled().id(999).post().unwrap();
        let mut ids = [ground.next().0, ground.next().0];
        ids.sort_unstable();
        assert_eq!(ids, [wr_id, 999]);
    }
    ground.works();
}

fn memory_of_another_domain_is_refused(env: &Env) {
    let mut ground = Ground::new(env.ctx());
    let other = env.ctx().alloc_pd().unwrap();
    let foreign = || {
        let mut buffer = other.alloc(64).unwrap();
        buffer.fill(7);
        buffer
    };
    let target = ground.pd.expose(64, Access::REMOTE_ALL).unwrap();
    let remote = target.remote(0..64);
    let region = other.expose(64, Access::NONE).unwrap();
    let mut vector = other.register(vec![7; 64]).unwrap();
    vector[0] = 7;
    let list = vec![ground.buffer(32), foreign()];
    let mut srq = ground.pd.create_srq(4).unwrap();
    for error in [
        refused(ground.a.send(foreign()).post(), 64),
        refused(ground.a.send(foreign().into_slab()).post(), 64),
        refused(ground.a.send(list).post(), 96),
        refused(ground.a.send(region.local(0..64)).post(), 64),
        refused(ground.a.send(vector).post(), 64),
        refused(ground.a.recv(foreign()).post(), 64),
        refused(ground.a.write(foreign(), remote).post(), 64),
        refused(ground.a.read(foreign(), remote).post(), 64),
        refused(srq.post(foreign(), 0), 64),
    ] {
        assert_eq!(error, PostError::WrongDomain);
        assert!(!error.is_retryable());
    }
    drop(region.revoke().expect("no request took it"));
    ground.works();
}

fn a_slab_that_is_shared_is_refused(env: &Env) {
    let mut ground = Ground::new(env.ctx());
    let slab = ground.buffer(64).into_slab();
    let bytes = slab.share(10..20);
    assert!(!slab.is_unique());
    let (error, memory) = ground.b.recv(slab).post().unwrap_err().into_parts();
    assert_eq!((error, error.is_retryable()), (PostError::StillShared, false));
    let Local::Slab(mut slab) = memory else { panic!("{}", memory.form()) };
    assert!(slab.get_mut().is_none());
    let part = bytes.slice(2..4);
    drop(bytes);
    assert!(!slab.is_unique());
    drop(part);
    assert!(slab.is_unique() && slab.get_mut().is_some());
    ground.b.recv(slab).post().unwrap();
    ground.a.send_inline(&[3; 64]).post().unwrap();
    let (_, memory) = ground.next();
    assert!(matches!(memory, Local::Slab(slab) if slab[..] == [3; 64]));
}

fn a_slab_received_into_can_be_shared_and_posted_again(env: &Env) {
    let mut ground = Ground::new(env.ctx());
    let mut slab = ground.buffer(4096).into_slab();
    for turn in 0..20_u8 {
        ground.b.recv(slab).post().unwrap();
        ground.a.send_inline(&[turn; 100]).signaled().post().unwrap();
        let mut received = None;
        for _ in 0..2 {
            let done = ground.cq.wait_for(crate::harness::LIMIT).unwrap();
            done.ok().unwrap();
            if done.opcode() == WcOpcode::RECV {
                let len = done.byte_len();
                received = Some((done.into_slab().unwrap(), len));
            }
        }
        let (taken, len) = received.expect("one of the two is the receive");
        let bytes = taken.share(0..len);
        let thread = std::thread::spawn(move || assert_eq!(bytes[..], [turn; 100]));
        thread.join().unwrap();
        assert!(taken.is_unique());
        slab = taken;
    }
}

fn too_many_pieces_are_refused(env: &Env) {
    let mut ground = Ground::new(env.ctx());
    let of_device = env.ctx().attributes().max_sge as usize;
    let pd = ground.pd.clone();
    let list = |count: usize| (0..count).map(|_| pd.alloc(8).unwrap()).collect::<Vec<_>>();
    let mut limit = of_device;
    for result in [ground.a.send(list(of_device + 1)).post(), ground.b.recv(list(of_device + 1)).post()] {
        let (error, memory) = result.unwrap_err().into_parts();
        let PostError::TooManyPieces { count, limit: told } = error else { panic!("{error}") };
        assert_eq!((count, memory.len()), (of_device + 1, 8 * (of_device + 1)));
        // This crate may have room for fewer than the device.
        assert!(told == of_device || told < of_device && !is_soft(), "{told}");
        limit = told;
    }
    let most = list(limit);
    ground.b.recv(ground.buffer(8 * limit)).post().unwrap();
    ground.a.send(most).post().unwrap();
    assert_eq!(ground.next().1.len(), 8 * limit);
    ground.works();
}

fn lengths_must_agree(env: &Env) {
    let mut ground = Ground::new(env.ctx());
    let target = ground.pd.expose(64, Access::REMOTE_ALL).unwrap();
    for (local, remote) in [(64, 63), (63, 64), (1, 0), (8, 64)] {
        let slice = target.remote(0..remote);
        let want = PostError::LengthMismatch { local, remote };
        assert_eq!(refused(ground.a.write(ground.buffer(local), slice).post(), local), want);
        assert_eq!(refused(ground.a.read(ground.buffer(local), slice).post(), local), want);
        let list = vec![ground.buffer(local), ground.buffer(1)];
        let want = PostError::LengthMismatch { local: local + 1, remote };
        match local + 1 == remote {
            true => drop(list),
            false => assert_eq!(refused(ground.a.write(list, slice).post(), local + 1), want),
        }
    }
    let narrowed = ground.a.write(ground.buffer(64), target.remote(0..64)).range(0..63);
    assert_eq!(refused(narrowed.post(), 64), PostError::LengthMismatch { local: 63, remote: 64 });
    assert_eq!(
        refused(ground.a.write_inline(&[1; 8], target.remote(0..9)).post(), 0),
        PostError::LengthMismatch { local: 8, remote: 9 }
    );
    ground.works();
}

#[allow(clippy::reversed_empty_ranges, reason = "that is what is tested")]
fn ranges_must_lie_within_the_buffer(env: &Env) {
    let mut ground = Ground::new(env.ctx());
    for (start, end) in [(0, 65), (65, 65), (64, 66), (usize::MAX, usize::MAX), (10, 9), (usize::MAX, 0)] {
        let error = refused(ground.a.send(ground.buffer(64)).range(start..end).post(), 64);
        assert_eq!(error, PostError::Range { start, end, len: 64 });
    }
    ground.works();
}

#[allow(clippy::reversed_empty_ranges, reason = "that is what is tested")]
fn ranges_need_memory(env: &Env) {
    let mut ground = Ground::new(env.ctx());
    let target = ground.pd.expose(64, Access::REMOTE_ALL).unwrap();
    for (start, end) in [(0, 8), (0, 1_000_000), (1, 1), (10, 5), (usize::MAX, 0)] {
        let want = PostError::Range { start, end, len: 0 };
        assert_eq!(refused(ground.a.send(Local::None).range(start..end).post(), 0), want);
        assert_eq!(refused(ground.a.write(Local::None, target.remote(0..8)).range(start..end).post(), 0), want);
        assert_eq!(refused(ground.a.read(Local::None, target.remote(0..8)).range(start..end).post(), 0), want);
    }
    for (start, end) in [(0, 8), (0, 9), (10, 5)] {
        let error = refused(ground.a.send_inline(&[1; 8]).range(start..end).post(), 0);
        assert!(matches!(error, PostError::NotSupported { .. }), "{error}");
    }
    ground.b.recv(Local::None).id(1).post().unwrap();
    ground.a.send(Local::None).range(0..0).id(2).signaled().post().unwrap();
    let mut ids = [ground.next().0, ground.next().0];
    ids.sort_unstable();
    assert_eq!(ids, [1, 2]);
    ground.works();
}

/// Nothing that a request says is ignored.
fn what_a_request_can_not_carry_is_refused(env: &Env) {
    let mut ground = Ground::new(env.ctx());
    let pd = ground.pd.clone();
    let target = pd.expose(64, Access::REMOTE_ALL).unwrap();
    let (word, rkey) = (target.remote(0..8), target.rkey());
    let mut check = |make: &dyn for<'a> Fn(&'a mut QueuePair, Buffer) -> SendRequest<'a>| {
        let error = refused(make(&mut ground.a, ground.pd.alloc(8).unwrap().filled()).post(), 8);
        assert!(matches!(error, PostError::NotSupported { .. }), "{error}");
    };
    check(&|qp, buffer| qp.send(buffer).imm(1).invalidating(rkey));
    check(&|qp, buffer| qp.write(buffer, word).invalidating(rkey));
    check(&|qp, buffer| qp.write(buffer, word).imm(1).invalidating(rkey));
    check(&|qp, buffer| qp.read(buffer, word).imm(1));
    check(&|qp, buffer| qp.read(buffer, word).invalidating(rkey));
    check(&|qp, buffer| qp.fetch_add(buffer, word, 1).imm(1));
    check(&|qp, buffer| qp.compare_swap(buffer, word, 0, 1).imm(1));
    check(&|qp, buffer| qp.compare_swap(buffer, word, 0, 1).invalidating(rkey));
    ground.works();

    let mut datagrams = pd.ud(&ground.cq).qkey(1).build().unwrap().activate().unwrap();
    let to = datagrams.address_handle(&datagrams.address()).unwrap();
    let error = refused(datagrams.send(ground.buffer(8), &to).invalidating(rkey).post(), 8);
    assert!(matches!(error, PostError::NotSupported { .. }), "{error}");
    datagrams.recv(ground.buffer(GRH_BYTES + 8)).id(1).post().unwrap();
    datagrams.send(ground.buffer(8), &to).imm(5).id(2).signaled().post().unwrap();
    let mut ids = [ground.next().0, ground.next().0];
    ids.sort_unstable();
    assert_eq!(ids, [1, 2]);
    assert_eq!(target.load(0).unwrap(), 0);
}

trait Filled {
    fn filled(self) -> Buffer;
}

impl Filled for Buffer {
    fn filled(mut self) -> Buffer {
        self.fill(7);
        self
    }
}

fn the_longest_timeout_is_no_limit(env: &Env) {
    let pd = env.ctx().alloc_pd().unwrap();
    let mut cq = env.ctx().create_cq(16).unwrap();
    let make = || pd.rc(&cq).ack_timeout(std::time::Duration::MAX).build().unwrap();
    let (a, b) = (make(), make());
    let (addr_a, addr_b) = (a.address(), b.address());
    let target = pd.expose(8, Access::REMOTE_ALL).unwrap();
    let mut a = a.connect(&addr_b).unwrap();
    let mut b = Some(b);
    // What finds nobody on the network is sent again after the timeout only.
    let later = if is_soft() { None } else { Some(b.take().unwrap().connect(&addr_a).unwrap()) };
    a.write_inline(&[1; 8], target.remote(0..8)).id(1).signaled().post().unwrap();
    assert!(!is_soft() || cq.poll().unwrap().is_none(), "the peer is not connected yet");
    let _b = later.unwrap_or_else(|| b.take().unwrap().connect(&addr_a).unwrap());
    let done = cq.wait_for(crate::harness::LIMIT).unwrap();
    assert_eq!((done.wr_id(), done.status()), (1, WcStatus::SUCCESS));
}

fn handles_of_another_domain_are_refused(env: &Env) {
    let ground = Ground::new(env.ctx());
    let mut datagrams = ground.pd.ud(&ground.cq).qkey(1).build().unwrap().activate().unwrap();
    let elsewhere = Context::open(env.device()).unwrap();
    for ctx in [env.ctx(), &elsewhere] {
        let cq = ctx.create_cq(1).unwrap();
        let others = ctx.alloc_pd().unwrap().ud(&cq).qkey(1).build().unwrap().activate().unwrap();
        let to = others.address_handle(&datagrams.address()).unwrap();
        assert_eq!(refused(datagrams.send(ground.buffer(8), &to).post(), 8), PostError::WrongDomain);
    }
}

fn inline_data_has_a_limit(env: &Env) {
    let mut ground = Ground::new(env.ctx());
    let limit = env.ctx().attributes().max_inline as usize;
    let target = ground.pd.expose(limit + 1, Access::REMOTE_ALL).unwrap();
    let data = vec![5; limit + 1];
    let remote = target.remote(0..limit + 1);
    for error in
        [refused(ground.a.send_inline(&data).post(), 0), refused(ground.a.write_inline(&data, remote).post(), 0)]
    {
        assert!(matches!(error, PostError::TooLong { len, limit: most, .. } if len == limit + 1 && most == limit));
    }
    ground.a.write_inline(&data[..limit], target.remote(0..limit)).id(1).signaled().post().unwrap();
    assert_eq!(ground.next().0, 1);
    let buffer = target.revoke().unwrap();
    assert_eq!((&buffer[..limit], buffer[limit]), (&data[..limit], 0));
    ground.works();
}

fn an_empty_list_is_a_message_of_no_bytes(env: &Env) {
    let mut ground = Ground::new(env.ctx());
    ground.b.recv(Vec::new()).id(1).post().unwrap();
    ground.a.send(Vec::new()).post().unwrap();
    let done = ground.cq.wait_for(crate::harness::LIMIT).unwrap();
    assert_eq!((done.wr_id(), done.byte_len(), done.status()), (1, 0, WcStatus::SUCCESS));
    drop(done);
    ground.works();
}

#[allow(unused_must_use, reason = "that is what is tested")]
fn a_request_that_is_not_posted_does_nothing(env: &Env) {
    let mut ground = Ground::new(env.ctx());
    let target = ground.pd.expose(64, Access::REMOTE_ALL).unwrap();
    for _ in 0..3 * DEPTH {
        ground.a.write(ground.buffer(64), target.remote(0..64)).signaled();
        ground.a.send(ground.buffer(64)).signaled();
        ground.b.recv(ground.buffer(64));
    }
    assert!(ground.cq.poll().unwrap().is_none());
    ground.works();
    assert_eq!(target.revoke().unwrap()[..], [0; 64]);
}

fn a_failed_queue_pair_takes_work_and_flushes_it(env: &Env) {
    let mut ground = Ground::new(env.ctx());
    let target = ground.pd.expose(64, Access::REMOTE_ALL).unwrap();
    let remote = target.remote(0..64);
    ground.a.to_error().unwrap();
    assert_eq!(ground.a.state(), QpState::Err);
    ground.a.to_error().expect("from Err to Err is legal");
    let window = ground.pd.create_window().unwrap();
    ground.a.send(ground.buffer(64)).id(0).post().unwrap();
    ground.a.write(ground.buffer(64), remote).id(1).post().unwrap();
    ground.a.read(ground.buffer(64), remote).id(2).signaled().post().unwrap();
    ground.a.send_inline(&[1; 8]).id(3).post().unwrap();
    ground.a.fetch_add(ground.buffer(8), target.remote(0..8), 1).id(4).post().unwrap();
    ground.a.bind(&window, &target, 0..8, Access::REMOTE_READ).id(5).post().unwrap();
    ground.a.invalidate(target.rkey()).id(6).post().unwrap();
    ground.a.recv(ground.buffer(64)).id(7).post().unwrap();
    let mut ids = Vec::new();
    for _ in 0..8 {
        let done = ground.cq.wait_for(crate::harness::LIMIT).unwrap();
        assert_eq!(done.status(), WcStatus::WR_FLUSH_ERR);
        ids.push(done.wr_id());
        let error = done.ok().unwrap_err();
        assert_eq!((error.qpn, error.status), (ground.a.number(), WcStatus::WR_FLUSH_ERR));
        assert!([0, 8, 64].contains(&done.into_memory().len()));
    }
    if !is_soft() {
        ids.sort_unstable(); // there is an order among sends, and one among receives
    }
    assert_eq!(ids, (0..8).collect::<Vec<_>>());
    assert_eq!(window.remote(), None);
    assert_eq!(target.revoke().unwrap()[..], [0; 64]);
}
