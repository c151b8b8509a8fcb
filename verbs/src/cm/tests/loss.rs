//! Messages are lost, and peers vanish: what can be made good is, and nothing hangs.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::ground::{Kind, LIMIT, Side, accept, assert_fails, connect, sides, soon};
use crate::{CmError, Ended, RejectReason};

#[test]
fn each_message_may_be_lost() {
    let Some((a, b)) = sides() else { return };
    for kind in [Kind::Request, Kind::Reply, Kind::Ready, Kind::Disconnect, Kind::Disconnected] {
        let asks = matches!(kind, Kind::Request | Kind::Ready | Kind::Disconnect);
        let (near, far) = {
            let lost = if asks { a.lose(kind, 2) } else { b.lose(kind, 2) };
            let (near, far) = connect(&a, &b);
            near.connection.disconnect();
            assert_eq!(near.connection.wait(LIMIT).unwrap(), Ended::Disconnected, "{kind:?}");
            assert_eq!(far.connection.wait(LIMIT).unwrap(), Ended::Disconnected, "{kind:?}");
            assert_eq!(lost.load(Ordering::Relaxed), 2, "{kind:?}");
            (near, far)
        };
        assert_fails(&near);
        assert_fails(&far);
        for side in [&a, &b] {
            side.lose(kind, 0);
        }
    }
}

#[test]
fn a_request_is_repeated_though_nobody_listens_any_more() {
    let Some((a, b)) = sides() else { return };
    let listener = b.ctx.listen(0).unwrap();
    let port = listener.port();
    b.lose(Kind::Reply, 3);
    let mut asking = a.ask(port);
    let mut accepting = accept(&b, &listener);
    drop(listener);
    assert!(matches!(a.ctx.listen(port), Err(CmError::AddressInUse { .. })), "it may be repeated");
    // The device itself may listen again.
    drop(b.ctx.listen(port).unwrap());
    let (near, far) = (asking.wait(LIMIT).unwrap(), accepting.wait(LIMIT).unwrap());
    // It is given back now, or in a moment.
    let begin = Instant::now();
    while a.ctx.listen(port).is_err() {
        assert!(begin.elapsed() < LIMIT, "the port is kept");
    }
    assert_eq!((near.connection.poll(), far.connection.poll()), (None, None));
}

#[test]
fn data_says_that_the_peer_is_ready() {
    let Some((a, mut b)) = sides() else { return };
    a.lose(Kind::Ready, u32::MAX);
    let listener = b.ctx.listen(0).unwrap();
    let mut asking = a.ask(listener.port());
    let mut prepared = b.rc();
    prepared.recv(b.pd.alloc(64).unwrap()).post().unwrap();
    let mut accepting = listener.wait(LIMIT).unwrap().accept(prepared, b"").unwrap();
    let mut near = asking.wait(LIMIT).unwrap();
    near.queue_pair.send_inline(b"here I am").post().unwrap();
    let far = accepting.wait(LIMIT).unwrap();
    assert!(b.cq.wait_for(LIMIT).unwrap().status().is_success());
    assert_eq!((near.connection.poll(), far.connection.poll()), (None, None));
}

#[test]
fn a_silent_peer_is_given_up_in_time() {
    let Some((a, b)) = sides() else { return };
    let listener = b.ctx.listen(0).unwrap();
    b.lose(Kind::Reply, u32::MAX);
    let begin = Instant::now();
    let mut asking = a.ask_with(listener.port(), &soon().attempts(6));
    let mut accepting = accept(&b, &listener);
    assert!(matches!(asking.wait(Duration::from_millis(1)), Err(CmError::TimedOut { .. })));
    for error in [asking.wait(LIMIT).unwrap_err(), accepting.wait(LIMIT).unwrap_err()] {
        // Who gives up first says so.
        let expected =
            matches!(error, CmError::NoAnswer { .. } | CmError::Rejected { reason: RejectReason::TIMEOUT, .. });
        assert!(expected, "{error}");
    }
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
}

#[test]
fn an_end_that_nobody_answers_is_one() {
    let Some((a, b)) = sides() else { return };
    let listener = b.ctx.listen(0).unwrap();
    let mut asking = a.ask_with(listener.port(), &soon().attempts(6));
    let mut accepting = accept(&b, &listener);
    let (near, far) = (asking.wait(LIMIT).unwrap(), accepting.wait(LIMIT).unwrap());
    a.lose(Kind::Disconnect, u32::MAX);
    near.connection.disconnect();
    assert_eq!(near.connection.wait(LIMIT).unwrap(), Ended::NoAnswer);
    assert_eq!(far.connection.poll(), None, "it was not told");
    assert_fails(&near);
}

#[test]
fn a_request_that_is_given_up_is_gone() {
    let Some((a, b)) = sides() else { return };
    let listener = b.ctx.listen(0).unwrap();
    drop(a.ask(listener.port()));
    let mut asking = a.ask(listener.port());
    // The first may be seen before it is taken back, and leads nowhere.
    let accepted = |_| listener.wait(LIMIT).unwrap().accept(b.rc(), b"").and_then(|mut it| it.wait(LIMIT)).ok();
    let far = std::thread::scope(|scope| {
        let far = scope.spawn(|| (0..2).find_map(accepted).expect("the second is asked for"));
        drop(asking.wait(LIMIT).unwrap());
        far.join().unwrap()
    });
    assert_eq!(far.connection.wait(LIMIT).unwrap(), Ended::Disconnected);
    assert!(listener.poll().is_none());
    // One that is known by then is over.
    let asking = a.ask(listener.port());
    let request = listener.wait(LIMIT).unwrap();
    drop(asking);
    let mut error = request.accept(b.rc(), b"");
    if let Ok(accepting) = &mut error {
        error = Err(accepting.wait(LIMIT).unwrap_err());
    }
    let Err(CmError::Rejected { reason: RejectReason::TIMEOUT, .. }) = error else { panic!("{error:?}") };
}

#[test]
fn an_acceptance_is_taken_back() {
    let Some((a, b)) = sides() else { return };
    let listener = b.ctx.listen(0).unwrap();
    b.lose(Kind::Reply, 1);
    let mut asking = a.ask(listener.port());
    drop(accept(&b, &listener));
    assert!(matches!(asking.wait(LIMIT), Err(CmError::Rejected { reason: RejectReason::CONSUMER, .. })));
}

#[test]
fn an_application_that_is_slow_to_answer_is_waited_for() {
    let Some((a, b)) = sides() else { return };
    let listener = b.ctx.listen(0).unwrap();
    let mut asking = a.ask(listener.port());
    let request = listener.wait(LIMIT).unwrap();
    // Longer than a message waits.
    std::thread::sleep(Duration::from_millis(300));
    assert!(listener.poll().is_none(), "the request that is repeated is the same");
    let mut accepting = request.accept(b.rc(), b"").unwrap();
    // And so is one that is slow to look.
    std::thread::sleep(Duration::from_millis(300));
    drop(asking.wait(LIMIT).unwrap());
    drop(accepting.wait(LIMIT).unwrap());
}

#[test]
fn a_bad_network_does_not_keep_them_apart() {
    let Some((a, b)) = sides() else { return };
    for (side, mut seed) in [(&a, 0x9e37_79b9_u32), (&b, 0x7f4a_7c15)] {
        lose_randomly(side, move || {
            seed ^= seed << 13;
            seed ^= seed >> 17;
            seed ^= seed << 5;
            seed
        });
    }
    for _ in 0..10 {
        let (near, far) = connect(&a, &b);
        far.connection.disconnect();
        assert!(matches!(far.connection.wait(LIMIT).unwrap(), Ended::Disconnected | Ended::NoAnswer));
        drop(near);
    }
}

/// A fifth of all messages.
fn lose_randomly(side: &Side, mut random: impl FnMut() -> u32 + Send + 'static) {
    side.ctx.soft().unwrap().network().unwrap().lose_messages(move |_| random().is_multiple_of(5));
}
