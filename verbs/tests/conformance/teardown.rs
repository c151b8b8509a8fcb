//! Dropping things in every order, also with work posted: nothing crashes, hangs, or stays in use.

use qpair_verbs::{
    Access, Buffer, CompletionQueue, Context, CreateError, ExposedRegion, Local, ProtectionDomain, QueuePair, WcStatus,
};

use crate::harness::{Env, is_soft};

one_sided! {
    every_order_of_dropping_is_fine,
    every_order_of_dropping_is_fine_with_work_posted,
    memory_of_a_dropped_queue_pair_is_free_again,
    completions_of_a_dropped_queue_pair_are_not_lost_memory,
    a_region_outlives_its_domain_and_context,
    completions_not_taken_are_dropped_with_the_queue,
    queue_pairs_can_be_made_and_dropped_without_end,
    a_full_device_has_room_again_once_queues_are_closed,
    sides_can_be_dropped_at_the_same_time,
}

/// What is dropped in every order.
struct Things {
    ctx: Option<Context>,
    pd: Option<ProtectionDomain>,
    cq: Option<CompletionQueue>,
    qp: Option<QueuePair>,
    buffer: Option<Buffer>,
    region: Option<ExposedRegion>,
}

impl Things {
    /// With a queue pair connected to one of `peer_pd`, which is returned.
    fn new(device: &str, peer_pd: &ProtectionDomain, peer_cq: &CompletionQueue) -> (Things, QueuePair) {
        let ctx = Context::open(device).unwrap();
        let pd = ctx.alloc_pd().unwrap();
        let cq = ctx.create_cq(16).unwrap();
        let (qp, peer) = (pd.rc(&cq).build().unwrap(), peer_pd.rc(peer_cq).build().unwrap());
        let (address, peer_address) = (qp.address(), peer.address());
        let (qp, peer) = (qp.connect(&peer_address).unwrap(), peer.connect(&address).unwrap());
        let buffer = pd.alloc(4096).unwrap();
        let region = pd.expose(4096, Access::REMOTE_ALL).unwrap();
        let things = Things {
            ctx: Some(ctx),
            pd: Some(pd),
            cq: Some(cq),
            qp: Some(qp),
            buffer: Some(buffer),
            region: Some(region),
        };
        (things, peer)
    }

    fn post(&mut self) {
        let (Some(pd), Some(qp), Some(region)) = (&self.pd, &mut self.qp, &self.region) else { return };
        qp.recv(pd.alloc(64).unwrap()).post().unwrap();
        qp.recv(region.local(0..64)).post().unwrap();
        qp.send(pd.alloc(64).unwrap()).signaled().post().unwrap(); // waits for a receive
        qp.send(region.local(0..64)).post().unwrap();
        qp.send(pd.alloc(64).unwrap().into_slab()).post().unwrap();
    }

    fn drop_one(&mut self, which: usize) {
        match which {
            0 => drop(self.ctx.take()),
            1 => drop(self.pd.take()),
            2 => drop(self.cq.take()),
            3 => drop(self.qp.take()),
            4 => drop(self.buffer.take().map(|mut buffer| buffer.fill(1))),
            _ => drop(self.region.take().map(|region| region.write(0, &[1; 4096]).unwrap())),
        }
    }
}

/// All orders of six things.
fn orders() -> Vec<Vec<usize>> {
    let mut orders = vec![Vec::new()];
    for thing in 0..6 {
        orders = orders
            .iter()
            .flat_map(|order: &Vec<usize>| {
                (0..=order.len()).map(move |place| {
                    let mut order = order.clone();
                    order.insert(place, thing);
                    order
                })
            })
            .collect();
    }
    assert_eq!(orders.len(), 720);
    orders
}

fn drop_in_every_order(env: &Env, with_work: bool) {
    let peer_pd = env.ctx().alloc_pd().unwrap();
    let peer_cq = env.ctx().create_cq(16).unwrap();
    // Where the kernel takes part, each takes so long that some of them have to do.
    for order in orders().into_iter().step_by(if is_soft() { 1 } else { 17 }) {
        let (mut things, peer) = Things::new(env.device(), &peer_pd, &peer_cq);
        if with_work {
            things.post();
        }
        order.into_iter().for_each(|which| things.drop_one(which));
        drop(peer);
    }
}

fn every_order_of_dropping_is_fine(env: &Env) {
    drop_in_every_order(env, false);
}

fn every_order_of_dropping_is_fine_with_work_posted(env: &Env) {
    drop_in_every_order(env, true);
}

/// Two connected queue pairs on a domain, each with a completion queue.
fn connected(pd: &ProtectionDomain, cqs: [&CompletionQueue; 2]) -> [QueuePair; 2] {
    let [a, b] = cqs.map(|cq| pd.rc(cq).build().unwrap());
    let (addr_a, addr_b) = (a.address(), b.address());
    [a.connect(&addr_b).unwrap(), b.connect(&addr_a).unwrap()]
}

fn memory_of_a_dropped_queue_pair_is_free_again(env: &Env) {
    let ctx = env.ctx();
    let pd = ctx.alloc_pd().unwrap();
    let (mut cq_a, cq_b) = (ctx.create_cq(64).unwrap(), ctx.create_cq(64).unwrap());
    let [mut a, b] = connected(&pd, [&cq_a, &cq_b]);
    let (first, second) = (pd.expose(4096, Access::NONE).unwrap(), pd.expose(4096, Access::NONE).unwrap());
    a.recv(first.local(0..4096)).post().unwrap();
    a.send(second.local(0..4096)).signaled().post().unwrap();
    drop(a);
    // What was flushed may still stand in the queue, with its memory.
    while cq_a.poll().unwrap().is_some_and(|done| !done.status().is_success()) {}
    assert_eq!(first.revoke().expect("nothing holds it").len(), 4096);
    assert_eq!(second.revoke().expect("nothing holds it").len(), 4096);
    drop(b);
}

fn completions_of_a_dropped_queue_pair_are_not_lost_memory(env: &Env) {
    let ctx = env.ctx();
    let pd = ctx.alloc_pd().unwrap();
    let (mut cq_a, mut cq_b) = (ctx.create_cq(64).unwrap(), ctx.create_cq(64).unwrap());
    for _ in 0..if is_soft() { 200 } else { 20 } {
        let [mut a, mut b] = connected(&pd, [&cq_a, &cq_b]);
        b.recv(pd.alloc(1 << 20).unwrap()).post().unwrap();
        a.send(pd.alloc(1 << 20).unwrap()).signaled().post().unwrap();
        a.recv(pd.alloc(1 << 20).unwrap()).post().unwrap();
        drop((a, b));
        for cq in [&mut cq_a, &mut cq_b] {
            while let Some(done) = cq.poll().unwrap() {
                assert!([WcStatus::SUCCESS, WcStatus::WR_FLUSH_ERR, WcStatus::RETRY_EXC_ERR].contains(&done.status()));
                assert!(matches!(done.into_memory(), Local::Buffer(buffer) if buffer.len() == 1 << 20));
            }
        }
    }
}

fn a_region_outlives_its_domain_and_context(env: &Env) {
    let ctx = Context::open(env.device()).unwrap();
    let pd = ctx.alloc_pd().unwrap();
    let (region, window) = (pd.expose(64, Access::REMOTE_ALL).unwrap(), pd.create_window().unwrap());
    let slab = pd.alloc(64).unwrap().into_slab();
    let bytes = slab.share(0..64);
    drop((pd, ctx, slab));
    assert_eq!(bytes[..], [0; 64]);
    region.store(0, 7).unwrap();
    assert_eq!(window.remote(), None);
    assert_eq!(region.revoke().unwrap()[..8], 7_u64.to_ne_bytes());
}

fn completions_not_taken_are_dropped_with_the_queue(env: &Env) {
    let ctx = env.ctx();
    let pd = ctx.alloc_pd().unwrap();
    let (cq_a, cq_b) = (ctx.create_cq(64).unwrap(), ctx.create_cq(64).unwrap());
    let [mut a, mut b] = connected(&pd, [&cq_a, &cq_b]);
    let region = pd.expose(64, Access::NONE).unwrap();
    b.recv(region.local(0..64)).post().unwrap();
    a.send(pd.alloc(64).unwrap()).signaled().post().unwrap();
    drop((cq_b, cq_a));
    drop((a, b));
    assert_eq!(region.revoke().expect("nothing holds it").len(), 64);
}

fn queue_pairs_can_be_made_and_dropped_without_end(env: &Env) {
    let ctx = Context::open(env.device()).unwrap();
    let pd = ctx.alloc_pd().unwrap();
    let deep = ctx.attributes().max_qp_wr.min(1 << 14);
    // Each takes megabytes of what the device has: some dozens of them are all there is at a time.
    for turn in 0..70 {
        let cq = ctx.create_cq(512).unwrap();
        let mut prepared = pd.rc(&cq).send_depth(512).recv_depth(deep).build().unwrap();
        prepared.recv(pd.alloc(64).unwrap()).post().unwrap();
        assert_eq!(prepared.number(), prepared.address().qpn, "turn {turn}");
        let mut srq = pd.create_srq(deep).unwrap();
        srq.post(pd.alloc(64).unwrap(), turn).unwrap();
        drop(pd.rc(&cq).srq(&srq).build().unwrap());
        assert_eq!(srq.available(), 1);
        let mut datagram = pd.ud(&cq).recv_depth(deep).build().unwrap().activate().unwrap();
        datagram.recv(pd.alloc(64).unwrap()).post().unwrap();
    }
}

fn a_full_device_has_room_again_once_queues_are_closed(env: &Env) {
    if !env.able("running full before the machine does", is_soft()) {
        return;
    }
    let ctx = Context::open(env.device()).unwrap();
    let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(4).unwrap());
    let deep = ctx.attributes().max_qp_wr;
    let fill = || {
        let mut made = Vec::new();
        loop {
            match pd.rc(&cq).recv_depth(deep).build() {
                Ok(prepared) if made.len() < 500 => made.push(prepared),
                Ok(_) => return None,
                Err(error) => {
                    assert!(matches!(error, CreateError::Exhausted { .. }), "{error}");
                    return Some(made);
                }
            }
        }
    };
    let Some(first) = fill() else {
        _ = env.able("running full", false);
        return;
    };
    let count = first.len();
    drop(first);
    assert_eq!(fill().map(|made| made.len()), Some(count));
}

fn sides_can_be_dropped_at_the_same_time(env: &Env) {
    for turn in 0..if is_soft() { 100 } else { 15 } {
        let (ctx_a, ctx_b) = (Context::open(env.device()).unwrap(), Context::open(env.device()).unwrap());
        let (pd_a, pd_b) = (ctx_a.alloc_pd().unwrap(), ctx_b.alloc_pd().unwrap());
        let (cq_a, cq_b) = (ctx_a.create_cq(16).unwrap(), ctx_b.create_cq(16).unwrap());
        let (a, b) = (pd_a.rc(&cq_a).build().unwrap(), pd_b.rc(&cq_b).build().unwrap());
        let (addr_a, addr_b) = (a.address(), b.address());
        let (mut a, mut b) = (a.connect(&addr_b).unwrap(), b.connect(&addr_a).unwrap());
        a.send(pd_a.alloc(5000).unwrap()).post().unwrap();
        b.send(pd_b.alloc(5000).unwrap()).post().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || drop((a, cq_a, pd_a, ctx_a)));
            scope.spawn(move || drop((b, cq_b, pd_b, ctx_b)));
        });
        assert!(Context::open(env.device()).is_ok(), "turn {turn}");
    }
}
