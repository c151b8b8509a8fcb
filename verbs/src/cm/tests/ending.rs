//! How connections end.

use std::time::{Duration, Instant};

use super::ground::{LIMIT, Side, accept, assert_fails, at, connect, sides, talk};
use crate::{CmError, ConnectError, ConnectOptions, Ended, WcStatus};

#[test]
fn either_side_disconnects() {
    let Some((a, mut b)) = sides() else { return };
    for is_near in [true, false] {
        let (near, far) = connect(&a, &b);
        let (mut ends, waits) = if is_near { (near, far) } else { (far, near) };
        ends.connection.disconnect();
        assert_eq!(waits.connection.wait(LIMIT).unwrap(), Ended::Disconnected);
        assert_eq!(ends.connection.wait(LIMIT).unwrap(), Ended::Disconnected);
        // Once more does no harm.
        ends.connection.disconnect();
        assert_eq!(waits.connection.poll(), Some(Ended::Disconnected));
        assert_fails(&ends);
        assert_fails(&waits);
        assert!(ends.queue_pair.send_inline(b"too late").post().is_ok());
    }
    while b.cq.poll().unwrap().is_some() {}
}

#[test]
fn what_is_dropped_disconnects() {
    let Some((a, b)) = sides() else { return };
    let (near, far) = connect(&a, &b);
    drop(near);
    assert_eq!(far.connection.wait(LIMIT).unwrap(), Ended::Disconnected);
    // The queue pair may be gone before.
    let (near, far) = connect(&a, &b);
    drop(near.queue_pair);
    assert!(matches!(far.connection.wait(Duration::from_millis(20)), Err(CmError::TimedOut { .. })));
    drop(near.connection);
    assert_eq!(far.connection.wait(LIMIT).unwrap(), Ended::Disconnected);
}

#[test]
fn both_sides_disconnect_at_once() {
    let Some((a, b)) = sides() else { return };
    for _ in 0..20 {
        let (near, far) = connect(&a, &b);
        std::thread::scope(|scope| {
            scope.spawn(|| near.connection.disconnect());
            scope.spawn(|| far.connection.disconnect());
        });
        for end in [&near, &far] {
            assert_eq!(end.connection.wait(LIMIT).unwrap(), Ended::Disconnected);
            assert_fails(end);
        }
    }
}

#[test]
fn what_is_posted_is_flushed_when_the_peer_disconnects() {
    let Some((a, mut b)) = sides() else { return };
    let (near, mut far) = connect(&a, &b);
    far.queue_pair.recv(b.pd.alloc(64).unwrap()).post().unwrap();
    drop(near);
    let done = b.cq.wait_for(LIMIT).unwrap();
    assert_eq!(done.status(), WcStatus::WR_FLUSH_ERR);
}

#[test]
fn what_came_before_the_end_is_there() {
    let Some((mut a, mut b)) = sides() else { return };
    let (mut near, mut far) = connect(&a, &b);
    talk((&mut near, &mut a), (&mut far, &mut b));
    far.queue_pair.recv(b.pd.alloc(64).unwrap()).post().unwrap();
    near.queue_pair.send_inline(b"last words").signaled().post().unwrap();
    assert!(a.cq.wait_for(LIMIT).unwrap().status().is_success());
    drop(near);
    assert_eq!(far.connection.wait(LIMIT).unwrap(), Ended::Disconnected);
    let done = b.cq.wait_for(LIMIT).unwrap();
    assert!(done.status().is_success());
    assert!(done.into_buffer().unwrap().starts_with(b"last words"));
}

#[test]
fn connections_are_forgotten_after_timewait() {
    let Some((a, b)) = sides() else { return };
    let count = |side: &Side| side.ctx.soft().unwrap().network().unwrap().connections();
    let listener = b.ctx.listen(0).unwrap();
    // They linger as long as a packet of theirs may be under way: 67 ms, and as much again for the peer's device.
    let quick = a.pd.rc(&a.cq).ack_timeout(Duration::from_millis(60)).build().unwrap();
    let mut asking = a.ctx.connect_to(at(listener.port()), quick, b"").unwrap();
    let mut accepting = accept(&b, &listener);
    let (near, far) = (asking.wait(LIMIT).unwrap(), accepting.wait(LIMIT).unwrap());
    near.connection.disconnect();
    near.connection.wait(LIMIT).unwrap();
    let begin = Instant::now();
    far.connection.wait(LIMIT).unwrap();
    assert!(count(&a) == 1 || begin.elapsed() > Duration::from_millis(60));
    drop((near, far));
    while count(&a) + count(&b) > 0 {
        assert!(begin.elapsed() < LIMIT, "{} and {} are left", count(&a), count(&b));
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn connections_go_on_without_their_listener() {
    let Some((mut a, mut b)) = sides() else { return };
    let (mut near, mut far) = connect(&a, &b); // It is dropped in there.
    talk((&mut near, &mut a), (&mut far, &mut b));
    assert_eq!(near.connection.poll(), None);
}

/// Without a limit of their own: nobody else would tell them.
#[test]
fn all_who_wait_are_told_that_the_device_has_failed() {
    let failed = |error: &CmError| matches!(error, CmError::Connect(ConnectError::DeviceFailed));
    let Some((a, b)) = sides() else { return };
    let (_far, near) = connect(&a, &b);
    let (silent, listener) = (a.ctx.listen(0).unwrap(), b.ctx.listen(0).unwrap());
    let mut asking = b.ask_with(silent.port(), &ConnectOptions::new());
    let request = silent.wait(LIMIT).unwrap();
    let prepared = b.pd.ud(&b.cq).build().unwrap();
    std::thread::scope(|scope| {
        let listens = scope.spawn(|| listener.wait(LIMIT).map(drop).unwrap_err());
        let asks = scope.spawn(|| asking.wait(LIMIT).map(drop).unwrap_err());
        let waits = scope.spawn(|| near.connection.wait(LIMIT).unwrap());
        b.ctx.soft().unwrap().network().unwrap().mine();
        let (listens, asks) = (listens.join().unwrap(), asks.join().unwrap());
        assert!(failed(&listens) && failed(&asks), "{listens}, {asks}");
        assert_eq!(waits.join().unwrap(), Ended::Lost);
    });
    assert_fails(&near);
    assert!(listener.poll().is_none());
    // Nor does anything begin.
    let refused = b.ctx.listen(0).unwrap_err();
    assert!(failed(&refused), "{refused}");
    let refused = b.ctx.connect_to(at(silent.port()), b.rc(), b"").unwrap_err();
    assert!(failed(&refused), "{refused}");
    let refused = prepared.activate().unwrap_err();
    assert!(matches!(refused, ConnectError::DeviceFailed), "{refused}");
    drop(request);
}
