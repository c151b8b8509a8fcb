//! Completion queues that run over: a typed error, an event, failed queue pairs, and no memory lost.

use qpair_verbs::{Access, AsyncEvent, AsyncEvents, CompletionQueue, CqError, QpState};

use crate::harness::{Env, over_network};

one_sided! {
    completions_of_sends_run_over,
    completions_of_receives_run_over,
    a_full_queue_has_not_run_over,
}

/// Polls until the queue says that it ran over; gives the number of completions before that.
fn polled_until_overrun(cq: &mut CompletionQueue) -> u32 {
    for count in 0..=cq.depth() {
        let next = cq.wait_for(crate::harness::LIMIT).map(drop);
        match next {
            Ok(()) => {}
            Err(error) => {
                assert!(matches!(error, CqError::Overrun { depth } if depth == cq.depth()), "{error}");
                assert!(error.to_string().contains("deeper"), "{error}");
                assert!(matches!(cq.poll(), Err(CqError::Overrun { .. })), "once over, always over");
                return count;
            }
        }
    }
    panic!("more completions than the queue holds");
}

fn assert_event(events: &mut AsyncEvents) {
    let came = std::iter::from_fn(|| events.next_event()).any(|event| event == AsyncEvent::CqError);
    assert!(came, "no event of the overrun");
}

fn completions_of_sends_run_over(env: &Env) {
    // On a network they come one by one, and may be polled as they come.
    if !env.able("completing at once", !over_network()) {
        return;
    }
    let ctx = env.ctx();
    let pd = ctx.alloc_pd().unwrap();
    let mut events = ctx.events().unwrap();
    let (mut small, large) = (ctx.create_cq(4).unwrap(), ctx.create_cq(64).unwrap());
    let depth = small.depth();
    let (a, b) = (pd.rc(&small).send_depth(4 * depth).build().unwrap(), pd.rc(&large).build().unwrap());
    let (addr_a, addr_b) = (a.address(), b.address());
    let (mut a, _b) = (a.connect(&addr_b).unwrap(), b.connect(&addr_a).unwrap());
    let target = pd.expose(8, Access::REMOTE_WRITE).unwrap();
    for wr_id in 0..u64::from(2 * depth) {
        a.write_inline(&[1; 8], target.remote(0..8)).id(wr_id).signaled().post().unwrap();
    }
    assert!(polled_until_overrun(&mut small) <= depth);
    assert_eq!(a.state(), QpState::Err);
    assert_event(&mut events);
    drop((a, small));
    assert_eq!(target.revoke().unwrap()[..], [1; 8]);
}

fn completions_of_receives_run_over(env: &Env) {
    // On a network they come one by one, and may be polled as they come.
    if !env.able("completing at once", !over_network()) {
        return;
    }
    let ctx = env.ctx();
    let pd = ctx.alloc_pd().unwrap();
    let mut events = ctx.events().unwrap();
    let (large, mut small) = (ctx.create_cq(64).unwrap(), ctx.create_cq(4).unwrap());
    let depth = small.depth();
    let make = |cq| pd.rc(cq).send_depth(4 * depth).recv_depth(4 * depth).build().unwrap();
    let (a, b) = (make(&large), make(&small));
    let (addr_a, addr_b) = (a.address(), b.address());
    let (mut a, mut b) = (a.connect(&addr_b).unwrap(), b.connect(&addr_a).unwrap());
    for wr_id in 0..u64::from(2 * depth) {
        b.recv(pd.alloc(64).unwrap()).id(wr_id).post().unwrap();
    }
    for _ in 0..2 * depth {
        a.send_inline(&[1; 8]).post().unwrap();
    }
    assert!(polled_until_overrun(&mut small) <= depth);
    assert_eq!(b.state(), QpState::Err);
    assert_event(&mut events);
}

fn a_full_queue_has_not_run_over(env: &Env) {
    let ctx = env.ctx();
    let pd = ctx.alloc_pd().unwrap();
    let mut cq = ctx.create_cq(4).unwrap();
    let depth = cq.depth();
    assert!(depth >= 4);
    let make = || pd.rc(&cq).send_depth(4 * depth).build().unwrap();
    let (a, b) = (make(), make());
    let (addr_a, addr_b) = (a.address(), b.address());
    let (mut a, _b) = (a.connect(&addr_b).unwrap(), b.connect(&addr_a).unwrap());
    let target = pd.expose(8, Access::REMOTE_WRITE).unwrap();
    for round in 0..10 {
        for turn in 0..depth {
            // Unsignaled requests take no place.
            a.write_inline(&[2; 8], target.remote(0..8)).post().unwrap();
            a.write_inline(&[1; 8], target.remote(0..8)).id(u64::from(round * depth + turn)).signaled().post().unwrap();
        }
        for turn in 0..depth {
            let done = cq.wait_for(crate::harness::LIMIT).unwrap();
            assert_eq!(done.wr_id(), u64::from(round * depth + turn));
        }
        assert!(cq.poll().unwrap().is_none());
    }
    assert_eq!(a.state(), QpState::Rts);
}
