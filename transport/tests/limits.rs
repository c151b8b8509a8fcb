//! The limits of a worker: settings that can not be, times without end, more than fits, memory that is spent.

mod support;

use std::time::Duration;

use qpair_transport::{
    CloseReason, Config, Event, HandlerId, ListenError, OpError, Payload, Returned, SendCopyError, SendFailure, Tag,
    Unmatched, Worker, WorkerError,
};
use qpair_verbs::{Access, Local, RemoteSlice, Rkey};
use support::*;

fn refused(config: Config) -> WorkerError {
    Worker::new(config).map(|_| ()).unwrap_err()
}

#[test]
fn settings_out_of_range_are_named() {
    let none = Duration::ZERO;
    let some = Duration::from_secs(1);
    let cases = [
        (Config::default().eager_limit(10), "an eager limit"),
        (Config::default().window(0), "a window"),
        (Config::default().endpoints(0), "a number of endpoints"),
        (Config::default().send_depth(2), "a send depth"),
        (Config::default().keepalive(none, some), "a keepalive interval in ms"),
        (Config::default().keepalive(some, none), "a detection time in ms"),
        (Config::default().connect_timeout(none), "a connect timeout in ms"),
        (Config::default().hello_timeout(Duration::from_micros(999)), "a hello timeout in ms"),
        (Config::default().recovery(Duration::from_nanos(7)), "a recovery in ms"),
        (Config::default().close_timeout(none), "a close timeout in ms"),
    ];
    for (config, expected) in cases {
        match refused(config) {
            WorkerError::Config { what, .. } => assert_eq!(what, expected),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn settings_beyond_the_device_are_refused_instead_of_cut() {
    let error = refused(Config::default().endpoints(4096).window(4096));
    assert!(
        matches!(error, WorkerError::Device { what: "completion queue entries", needed: 17_326_080, .. }),
        "{error}"
    );
    assert!(error.to_string().contains("lower Config::endpoints"), "{error}");
    let error = refused(Config::default().endpoints(4096).send_depth(16).shared_receives(64, 0));
    assert!(
        matches!(error, WorkerError::Device { what: "receives in a shared queue", needed: 286_720, .. }),
        "{error}"
    );
}

#[test]
fn for_ever_is_a_limit_like_others() {
    let ever = Duration::MAX;
    let config =
        || Config::default().keepalive(ever, ever).connect_timeout(ever).hello_timeout(ever).close_timeout(ever);
    let mut pair = Pair::with(config(), config().patience(0, 0));
    pair.a.send_copy(pair.ep_a, Tag(1), b"hello").unwrap();
    let event = pair.b.wait(Some(ever)).unwrap();
    assert!(matches!(event, Some(Event::Received { .. })));
    drop(event);
    // Asleep for ever, until the other thread closes.
    let Pair { mut a, mut b, ep_a, .. } = pair;
    let sleeper = std::thread::spawn(move || closed(b.wait(Some(ever)).unwrap().unwrap()));
    a.close(ep_a);
    assert!(matches!(closed(next(&mut a)), CloseReason::Local));
    assert!(matches!(sleeper.join().unwrap(), CloseReason::Remote));
}

#[test]
fn a_peer_that_does_not_take_part_in_a_close_is_waited_for_so_long() {
    let limit = Duration::from_millis(50);
    let mut pair = Pair::with(Config::default().close_timeout(limit), Config::default());
    let region = pair.a.domain().expose(64, Access::REMOTE_READ).unwrap();
    let send = pair.a.send(pair.ep_a, Tag(1), region.remote(0..64)).unwrap();
    pair.a.close(pair.ep_a);
    // `b` is not polled.
    assert!(matches!(next(&mut pair.a), Event::Failed { op, returned: Returned::Payload(_), .. } if op == send));
    let reason = closed(next(&mut pair.a));
    assert!(matches!(reason, CloseReason::CloseTimedOut(after) if after == limit), "{reason}");
}

#[test]
fn more_listeners_than_there_are_places_and_longer_messages_than_any_are_refused() {
    let mut pair = Pair::new();
    let listeners: Vec<_> = std::iter::repeat_with(|| pair.a.listen("127.0.0.1:0")).take(65).collect();
    assert!(listeners[..64].iter().all(Result::is_ok));
    assert!(matches!(listeners[64], Err(ListenError::TooMany { limit: 64 })));
    pair.a.stop_listening(*listeners[0].as_ref().unwrap());
    pair.a.stop_listening(*listeners[0].as_ref().unwrap());
    assert!(pair.a.listen("127.0.0.1:0").is_ok());
    let long = RemoteSlice { addr: 0, len: (1 << 31) + 1, rkey: Rkey(1) };
    let refused = pair.a.send(pair.ep_a, Tag(1), long).unwrap_err();
    assert!(matches!(refused.error, SendFailure::TooLong { limit: 0x8000_0000, .. }), "{refused}");
    assert!(matches!(refused.payload, Payload::Exposed(back) if back == long.into()));
}

/// Messages too long to go inline need a buffer; there is none.
#[test]
fn what_there_is_no_buffer_for_is_handed_back_and_the_connection_stays() {
    let config = || Config::default().eager_limit(1 << 18).eager_threshold(1 << 18).pool_limit(64 << 10);
    let mut pair = Pair::with(config(), config());
    let before = pair.a.counters();
    let refused = pair.a.send_copy(pair.ep_a, Tag(1), &pattern(100_000, 1));
    assert_eq!(refused, Err(SendCopyError::NoMemory { len: 100_000 }));
    let refused = pair.a.send(pair.ep_a, Tag(1), pattern(100_000, 1)).unwrap_err();
    assert!(matches!(&refused.error, SendFailure::Memory(_)), "{refused}");
    assert!(matches!(refused.payload, Payload::Bytes(back) if back == pattern(100_000, 1)));
    assert_eq!(pair.a.counters().eager_sent, before.eager_sent);
    pair.a.send(pair.ep_a, Tag(2), pattern(30_000, 2)).unwrap();
    let (_, of_b) = pair.until(|a, b| !a.is_empty() && !b.is_empty());
    assert!(matches!(received(&of_b)[..], [(Tag(2), message)] if *message == pattern(30_000, 2)));
}

#[test]
fn a_message_longer_than_the_pool_waits_for_a_receive() {
    let mut pair = Pair::with(Config::default(), Config::default().pool_limit(64 << 10));
    pair.a.send(pair.ep_a, Tag(1), pattern(200_000, 1)).unwrap();
    pair.a.send(pair.ep_a, Tag(2), pattern(60_000, 2)).unwrap();
    let (_, of_b) = pair.until(|_, b| b.len() == 2);
    assert!(matches!(of_b[0], Event::Offered { tag: Tag(1), len: 200_000, .. }), "{}", brief(&of_b[0]));
    assert!(received(&of_b)[0].1 == &pattern(60_000, 2));
    let memory = pair.b.domain().alloc(200_000).unwrap();
    pair.b.recv_into(pair.ep_b, Tag(1), memory, None).unwrap();
    let (_, of_b) = pair.until(|_, b| !b.is_empty());
    let Event::ReceivedInto { memory: Local::Buffer(buffer), .. } = &of_b[0] else { panic!("{}", brief(&of_b[0])) };
    assert!(buffer[..] == pattern(200_000, 1)[..]);
}

/// Nobody can post a receive for these, so that they would wait for ever.
#[test]
fn what_is_not_tagged_and_longer_than_the_peers_pool_is_refused() {
    const LIMIT: u64 = 64 << 10;
    let mut worker = Worker::new(Config::default().pool_limit(LIMIT as usize)).unwrap();
    let listener = worker.listen("127.0.0.1:0").unwrap();
    let ep = worker.connect(listener.local_addr()).unwrap();
    // Nothing is known of the peer yet.
    let queued = worker.send_active(ep, HandlerId(1), 5, pattern(200_000, 1)).unwrap();
    let asked = worker.request(ep, HandlerId(1), pattern(200_000, 1)).unwrap();
    let (mut failed, mut is_up) = (Vec::new(), false);
    while failed.len() < 2 || !is_up {
        match next(&mut worker) {
            Event::Connected { .. } => is_up = true,
            Event::Accepted { .. } => {}
            Event::Failed { op, error: OpError::TooLongForPeer { limit: LIMIT }, returned, .. } => {
                assert!(matches!(returned, Returned::Payload(_)));
                failed.push(op);
            }
            other => panic!("{}", brief(&other)),
        }
    }
    assert_eq!(failed, [queued, asked]);
    let refused = worker.send_active(ep, HandlerId(1), 5, pattern(200_000, 1)).unwrap_err();
    assert!(matches!(refused.error, SendFailure::TooLongForPeer { len: 200_000, limit: LIMIT }), "{refused}");
    worker.send_active(ep, HandlerId(1), 5, pattern(LIMIT as usize, 2)).unwrap();
    let came = |worker: &mut Worker| loop {
        if let Event::Active { message, .. } = next(worker) {
            return message;
        }
    };
    assert!(came(&mut worker) == pattern(LIMIT as usize, 2));
}

#[test]
fn offers_that_nobody_takes_hold_their_sender_back() {
    let config = || Config::default().window(4).unmatched(Unmatched::HoldLong);
    let mut pair = Pair::with(config(), config());
    let region = pair.a.domain().expose(64, Access::REMOTE_READ).unwrap();
    const MANY: usize = 1100;
    for _ in 0..MANY {
        pair.a.send(pair.ep_a, Tag(1), region.remote(0..64)).unwrap();
    }
    let (_, of_b) = pair.until(|_, b| b.len() == 1024 + 4);
    assert_eq!(count(&of_b, |event| matches!(event, Event::Offered { .. })), 1024 + 4);
    for _ in 0..10_000 {
        assert!(pair.a.poll().unwrap().is_none() && pair.b.poll().unwrap().is_none(), "a window more, and no further");
    }
    for _ in 0..MANY {
        let memory = pair.b.domain().alloc(64).unwrap();
        pair.b.recv_into(pair.ep_b, Tag(1), memory, None).unwrap();
    }
    let into = |events: &[Event]| count(events, |event| matches!(event, Event::ReceivedInto { .. }));
    pair.until(|a, b| sent(a).len() == MANY && into(b) == MANY);
}

/// The pool holds one message. The first is read from memory that may not be read: its slab goes back unused.
#[test]
fn memory_that_comes_back_unused_serves_who_waits_for_it() {
    let mut worker = Worker::new(Config::default().pool_limit(64 << 10)).unwrap();
    let listener = worker.listen("127.0.0.1:0").unwrap();
    let mut peers = [Worker::new(Config::default()).unwrap(), Worker::new(Config::default()).unwrap()];
    let mut eps = Vec::new();
    for peer in &mut peers {
        let ep = peer.connect(listener.local_addr()).unwrap();
        while !matches!(worker.poll().unwrap(), Some(Event::Accepted { .. })) {
            peer.poll().unwrap();
        }
        eps.push(ep);
    }
    let region = peers[0].domain().expose(50_000, Access::REMOTE_WRITE).unwrap();
    peers[0].send(eps[0], Tag(1), region.remote(0..50_000)).unwrap();
    peers[1].send(eps[1], Tag(2), pattern(50_000, 2)).unwrap();
    let (mut lost, mut received) = (false, false);
    while !lost || !received {
        match next(&mut worker) {
            Event::Closed { reason: CloseReason::Completion(_), .. } => lost = true,
            Event::Received { tag: Tag(2), message, .. } => received = message == pattern(50_000, 2),
            other => panic!("{}", brief(&other)),
        }
    }
}

#[test]
fn a_connection_that_is_aborted_ends_at_once_with_all_that_was_under_way() {
    let hold = || Config::default().unmatched(Unmatched::HoldLong);
    let mut pair = Pair::with(hold(), hold());
    let region = pair.a.domain().expose(64, Access::REMOTE_READ).unwrap();
    let send = pair.a.send(pair.ep_a, Tag(1), region.remote(0..64)).unwrap();
    let memory = pair.a.domain().alloc(8).unwrap();
    let receive = pair.a.recv_into(pair.ep_a, Tag(2), memory, None).unwrap();
    pair.b.send_copy(pair.ep_b, Tag(3), b"too late").unwrap();
    pair.a.abort(pair.ep_a);
    pair.a.abort(pair.ep_a);
    let (of_a, of_b) = pair.until(|a, b| a.iter().any(is_closed) && b.iter().any(is_closed));
    let ended = |wanted| count(&of_a, |event| matches!(event, Event::Failed { op, .. } if *op == wanted));
    assert_eq!((of_a.len(), ended(send), ended(receive)), (3, 1, 1));
    assert!(matches!(of_a[2], Event::Closed { reason: CloseReason::Aborted, .. }), "{}", brief(&of_a[2]));
    assert!(matches!(of_b.last(), Some(Event::Closed { reason: CloseReason::PeerLost(_), .. })));
    assert_eq!((pair.a.counters().lost, pair.b.counters().lost), (0, 1));
    pair.a.abort(pair.ep_a);
    assert!(pair.a.poll().unwrap().is_none(), "it is gone");
}

/// What was queued before the peer was known is offered if the peer takes less by copy.
#[test]
fn messages_queued_before_connecting_keep_to_the_peers_limit() {
    let mut b = Worker::new(Config::default().eager_limit(512)).unwrap();
    let mut a = Worker::new(Config::default()).unwrap();
    let listener = b.listen("127.0.0.1:0").unwrap();
    let ep = a.connect(listener.local_addr()).unwrap();
    for (tag, len) in [(1, 400), (2, 8000), (1, 500)] {
        a.send(ep, Tag(tag), pattern(len, len)).unwrap();
    }
    let mut lengths = Vec::new();
    let start = std::time::Instant::now();
    while lengths.len() < 3 {
        assert!(!a.poll().unwrap().is_some_and(|event| is_closed(&event)));
        if let Some(Event::Received { tag, message, .. }) = b.poll().unwrap() {
            assert!(message == pattern(message.len(), message.len()));
            lengths.push((tag, message.len()));
        }
        assert!(start.elapsed() < LIMIT, "{lengths:?}");
    }
    lengths.sort_by_key(|(_, len)| *len);
    assert_eq!(lengths, [(Tag(1), 400), (Tag(1), 500), (Tag(2), 8000)]);
}

#[test]
fn an_answer_that_is_refused_can_be_given_again() {
    let mut pair = Pair::with(Config::default().window(2), Config::default().queue_limit(1));
    let asked = pair.a.request(pair.ep_a, HandlerId(1), &b"?"[..]).unwrap();
    let (_, of_b) = pair.until(|_, b| !b.is_empty());
    let Some(Event::Request(request)) = of_b.into_iter().next() else { panic!("no request") };
    while pair.b.send(pair.ep_b, Tag(1), &b"in the way"[..]).is_ok() {}
    let (refused, reply) = pair.b.respond(request.reply, &b"!"[..]).unwrap_err();
    assert!(matches!(refused.error, SendFailure::QueueFull { .. }));
    let (refused, mut reply) = pair.b.decline(reply, 1).unwrap_err();
    assert!(matches!(refused.error, SendFailure::QueueFull { .. }));
    let start = std::time::Instant::now();
    while let Err((_, again)) = pair.b.respond(reply, &b"!"[..]) {
        reply = again;
        pair.a.poll().unwrap();
        pair.b.poll().unwrap();
        assert!(start.elapsed() < LIMIT, "no room");
    }
    let (of_a, _) = pair.until(|a, _| a.iter().any(|event| event.op() == Some(asked)));
    let answer = of_a.into_iter().find(|event| event.op() == Some(asked));
    assert!(matches!(answer, Some(Event::Response { message, .. }) if message == *b"!"));
}
