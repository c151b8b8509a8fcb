//! Memory windows: bound, used, withdrawn in each of the ways there are.

use qpair_verbs::{Access, RemoteSlice, Rkey, WcOpcode, WcStatus};

use crate::harness::{
    Command, Env, Fill, Mem, Op, Pair, QpId, QpSpec, Region, WindowId, Work, bind_refused, connect_pair, is_soft,
};

two_sided! {
    a_window_opens_its_range_and_no_more,
    a_window_gives_only_its_rights,
    a_window_works_over_the_queue_pair_that_bound_it_only,
    rebinding_withdraws_the_former_key,
    a_local_invalidate_withdraws_the_key,
    a_message_withdraws_the_key,
    a_window_may_end_before_the_message_that_withdraws_it_is_polled,
    a_message_with_a_wrong_key_to_withdraw_fails,
    dropping_a_window_withdraws_the_key,
    a_region_with_a_window_can_not_be_revoked,
    a_region_that_was_to_be_revoked_takes_no_window,
    windows_need_a_region_that_allows_them,
    a_window_must_lie_within_its_region,
}

const ALL: Access = Access::REMOTE_ALL;

fn bindable() -> Access {
    Access::REMOTE_ALL | Access::WINDOW_BIND
}

fn bind(window: WindowId, region: &Region, start: usize, end: usize, access: Access) -> Work {
    Work::new(Op::Bind { window, region: region.id, start, end, access }, Mem::None).signaled()
}

/// Binds a window of the far side to bytes 100..200 of a fresh region of 300.
fn bound(pair: &mut Pair, access: Access) -> (Region, WindowId, RemoteSlice) {
    let region = pair.far.expose(300, bindable());
    let window = pair.far.new_window();
    assert_eq!(pair.far.window_remote(window), None);
    pair.far.post(bind(window, &region, 100, 200, access));
    pair.far.done().assert_success(WcOpcode::BIND_MW);
    let remote = pair.far.window_remote(window).expect("the window is bound");
    assert_eq!((remote.addr, remote.len), (region.remote.addr + 100, 100));
    assert_ne!(remote.rkey, region.remote.rkey);
    (region, window, remote)
}

fn write_succeeds(pair: &mut Pair, remote: RemoteSlice) {
    pair.near.post(Work::write(Mem::seeded(remote.len as usize, 1), remote).signaled());
    pair.near.done().assert_success(WcOpcode::RDMA_WRITE);
}

/// Writes with a key that must not work (any more).
fn write_fails(pair: &mut Pair, remote: RemoteSlice) {
    pair.near.post(Work::write(Mem::seeded(remote.len as usize, 2), remote).signaled());
    pair.near.done().assert_status(WcStatus::REM_ACCESS_ERR);
    pair.near.assert_failed();
}

fn a_window_opens_its_range_and_no_more(env: &Env) {
    let bounded = env.sounder_than_rxe("keeping peers to the range of a window: its key reaches all of the region");
    for (shift, len) in [(0_i64, 101), (-1, 100), (100, 1), (-1, 1)] {
        let mut pair = env.rc();
        let (region, _, remote) = bound(&mut pair, ALL);
        write_succeeds(&mut pair, remote);
        pair.near.post(Work::read(remote).signaled());
        pair.near.done().assert_success(WcOpcode::RDMA_READ).memory.assert_is(&Fill::Seed(1).bytes(100));
        let beyond = RemoteSlice { addr: remote.addr.wrapping_add_signed(shift), len, ..remote };
        if bounded {
            write_fails(&mut pair, beyond);
        }
        pair.far.look_at(&region, 100, 200).assert_is(&Fill::Seed(1).bytes(100));
        pair.far.look_at(&region, 0, 100).assert_is(&[0; 100]);
        pair.far.look_at(&region, 200, 300).assert_is(&[0; 100]);
    }
}

fn a_window_gives_only_its_rights(env: &Env) {
    let mut pair = env.rc();
    let (_, _, remote) = bound(&mut pair, Access::REMOTE_READ);
    pair.near.post(Work::read(remote).signaled());
    pair.near.done().assert_success(WcOpcode::RDMA_READ).memory.assert_is(&[0; 100]);
    write_fails(&mut pair, remote);
}

fn a_window_works_over_the_queue_pair_that_bound_it_only(env: &Env) {
    let mut pair = env.rc();
    connect_pair(&mut pair.near, &QpSpec::rc(), &mut pair.far, &QpSpec::rc());
    let (_, _, remote) = bound(&mut pair, ALL);
    pair.near.post_on(QpId(1), Work::write(Mem::seeded(100, 3), remote).signaled());
    pair.near.done().assert_status(WcStatus::REM_ACCESS_ERR);
    pair.near.assert_qp_failed(QpId(1));
    pair.far.assert_qp_failed(QpId(1));
    write_succeeds(&mut pair, remote);
}

fn rebinding_withdraws_the_former_key(env: &Env) {
    let mut pair = env.rc();
    let (region, window, first) = bound(&mut pair, ALL);
    if !is_soft() {
        // Windows of type 2 have to be free before they are bound.
        pair.far.post(Work::invalidate(first.rkey));
    }
    pair.far.post(bind(window, &region, 0, 50, ALL));
    pair.far.done().assert_success(WcOpcode::BIND_MW);
    let second = pair.far.window_remote(window).expect("the window is bound");
    assert_ne!(first.rkey, second.rkey);
    assert_eq!((second.addr, second.len), (region.remote.addr, 50));
    write_succeeds(&mut pair, second);
    write_fails(&mut pair, first);
}

fn a_local_invalidate_withdraws_the_key(env: &Env) {
    let mut pair = env.rc();
    let (region, window, remote) = bound(&mut pair, ALL);
    write_succeeds(&mut pair, remote);
    pair.far.post(Work::invalidate(remote.rkey).id(5).signaled());
    assert_eq!(pair.far.done().assert_success(WcOpcode::LOCAL_INV).wr_id, 5);
    assert_eq!(pair.far.window_remote(window), None);
    write_fails(&mut pair, remote);
    pair.far.revoke(&region).expect("no window is bound to it any more");
}

fn a_message_withdraws_the_key(env: &Env) {
    let mut pair = env.rc();
    let (region, window, remote) = bound(&mut pair, ALL);
    for len in [8, 5000] {
        pair.far.recv(Mem::blank(len), 0);
        let again = pair.far.window_remote(window).expect("the window is bound");
        write_succeeds(&mut pair, again);
        pair.near.post(Work::send(Mem::seeded(len, 4)).invalidating(again.rkey).signaled());
        let received = pair.far.done().assert_success(WcOpcode::RECV);
        assert_eq!((received.invalidated, received.imm), (Some(again.rkey), None));
        received.memory.assert_is(&Fill::Seed(4).bytes(len));
        pair.near.done().assert_success(WcOpcode::SEND);
        assert_eq!(pair.far.window_remote(window), None);
        pair.far.post(bind(window, &region, 100, 200, ALL));
        pair.far.done().assert_success(WcOpcode::BIND_MW);
    }
    let last = pair.far.window_remote(window).expect("the window is bound");
    pair.far.recv(Mem::None, 1);
    pair.near.post(Work::send(Mem::None).invalidating(last.rkey).signaled());
    pair.near.done().assert_success(WcOpcode::SEND);
    assert_eq!(pair.far.done().assert_success(WcOpcode::RECV).invalidated, Some(last.rkey));
    pair.far.revoke(&region).expect("no window is bound to it any more");
    write_fails(&mut pair, last);
    assert_ne!(last.rkey, remote.rkey);
}

fn a_window_may_end_before_the_message_that_withdraws_it_is_polled(env: &Env) {
    let mut pair = env.rc();
    let (_, window, remote) = bound(&mut pair, ALL);
    pair.far.recv(Mem::blank(8), 0);
    pair.near.post(Work::send(Mem::seeded(8, 4)).invalidating(remote.rkey).signaled());
    pair.near.done().assert_success(WcOpcode::SEND);
    pair.far.ask::<()>(Command::DropWindow { window });
    let received = pair.far.done().assert_success(WcOpcode::RECV);
    assert_eq!(received.invalidated, Some(remote.rkey));
    received.memory.assert_is(&Fill::Seed(4).bytes(8));
    write_fails(&mut pair, remote);
}

fn a_message_with_a_wrong_key_to_withdraw_fails(env: &Env) {
    for of_region in [true, false] {
        let mut pair = env.rc();
        let (region, window, remote) = bound(&mut pair, ALL);
        // The key of a region is not for peers to withdraw.
        let wrong = if of_region { region.remote.rkey } else { Rkey(remote.rkey.0 ^ 0x1000) };
        pair.far.recv(Mem::blank(8), 0);
        pair.near.post(Work::send(Mem::seeded(8, 4)).invalidating(wrong).signaled());
        let refused = pair.near.done();
        if is_soft() {
            refused.assert_status(WcStatus::REM_ACCESS_ERR);
            pair.near.assert_failed();
        } // Elsewhere it may be an error of the receiver alone, once the message has arrived.
        pair.far.assert_failed();
        assert!(pair.far.window_remote(window).is_some());
    }
}

fn dropping_a_window_withdraws_the_key(env: &Env) {
    let mut pair = env.rc();
    let (region, window, remote) = bound(&mut pair, ALL);
    write_succeeds(&mut pair, remote);
    pair.far.ask::<()>(Command::DropWindow { window });
    write_fails(&mut pair, remote);
    pair.far.revoke(&region).expect("no window is bound to it any more");
}

fn a_region_with_a_window_can_not_be_revoked(env: &Env) {
    let mut pair = env.rc();
    let (region, window, remote) = bound(&mut pair, ALL);
    assert_eq!(pair.far.revoke(&region).expect_err("a window is bound"), "BoundWindows");
    write_succeeds(&mut pair, remote);
    pair.far.ask::<()>(Command::DropWindow { window });
    let content = pair.far.revoke(&region).expect("no window is bound to it any more");
    assert_eq!(content.len, 300);
    write_fails(&mut pair, remote);
}

fn a_region_that_was_to_be_revoked_takes_no_window(env: &Env) {
    let mut pair = env.rc();
    let (region, window) = (pair.far.expose(300, bindable()), pair.far.new_window());
    pair.far.recv(Mem::Region { region: region.id, start: 0, end: 100 }, 1);
    assert_eq!(pair.far.revoke(&region).expect_err("a receive is posted"), "PostedWork");
    let refused = pair.far.try_post(QpId(0), bind(window, &region, 0, 100, ALL)).expect_err("its key is withdrawn");
    assert_eq!(refused.kind, "Withdrawn");
    assert_eq!(pair.far.window_remote(window), None);
    pair.near.post(Work::send(Mem::seeded(100, 2)).signaled());
    pair.far.done().assert_success(WcOpcode::RECV);
    pair.far.revoke(&region).expect("nothing is posted any more");
}

fn windows_need_a_region_that_allows_them(env: &Env) {
    let mut pair = env.rc();
    let region = pair.far.expose(300, ALL);
    let window = pair.far.new_window();
    pair.far.post(bind(window, &region, 0, 100, Access::REMOTE_READ));
    pair.far.done().assert_one_of(bind_refused());
    assert_eq!(pair.far.window_remote(window), None);
    pair.far.assert_failed();
}

fn a_window_must_lie_within_its_region(env: &Env) {
    for (start, end) in [(0, 301), (300, 301), (usize::MAX - 1, usize::MAX), (200, 100)] {
        let mut pair = env.rc();
        let region = pair.far.expose(300, bindable());
        let window = pair.far.new_window();
        // A device may look at the range when it is posted or when it is carried out.
        match pair.far.try_post(QpId(0), bind(window, &region, start, end, ALL)) {
            Ok(()) => _ = pair.far.done().assert_one_of(bind_refused()),
            Err(refused) => assert!(refused.kind == "Range" || !is_soft(), "{refused:?}"),
        }
        assert_eq!(pair.far.window_remote(window), None);
    }
}
