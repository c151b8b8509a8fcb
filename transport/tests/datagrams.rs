//! Connections over datagrams: they do what others do, with messages no longer than a packet.

mod support;

use std::time::{Duration, Instant};

use bytes::Bytes;
use qpair_transport::{
    Armed, CloseReason, Config, ConnectError, ConnectFailure, EndpointId, Event, Lost, OneSidedFailure, OpError,
    Returned, SendFailure, Source, Tag, TagPattern, Unmatched, Worker,
};
use qpair_verbs::{Access, Local, PostError};
use support::*;

/// Two workers, connected over datagrams.
fn pair_with(config: impl Fn() -> Config) -> Pair {
    let (mut a, mut b) = (Worker::new(config()).unwrap(), Worker::new(config()).unwrap());
    let listener = b.listen("127.0.0.1:0").unwrap();
    let ep_a = a.connect_datagram(listener.local_addr()).unwrap();
    let (mut up, mut ep_b) = (false, None);
    let start = Instant::now();
    while !up || ep_b.is_none() {
        assert!(start.elapsed() < LIMIT, "no connection");
        up |= matches!(a.poll().unwrap(), Some(Event::Connected { .. }));
        if let Some(Event::Accepted { ep, .. }) = b.poll().unwrap() {
            ep_b = Some(ep);
        }
    }
    Pair { a, b, ep_a, ep_b: ep_b.unwrap() }
}

fn pair() -> Pair {
    pair_with(Config::default)
}

/// Longest message of a connection.
fn limit(worker: &Worker, ep: EndpointId) -> usize {
    worker.explain(ep).unwrap().eager_limit
}

#[test]
fn messages_of_every_length_come_once_and_in_order() {
    let shared = || Config::default().shared_receives(2, 64);
    let narrow = || Config::default().window(4).send_depth(8).eager_limit(300);
    for config in [Config::default, shared, narrow] {
        let mut pair = pair_with(config);
        let limit = limit(&pair.a, pair.ep_a);
        assert!((200..4096).contains(&limit), "{limit}");
        let lengths: Vec<_> = (0..600).map(|number| number * 131 % (limit + 1)).chain([limit, 0]).collect();
        for (number, &len) in lengths.iter().enumerate() {
            pair.a.send(pair.ep_a, Tag(number as u64), pattern(len, number)).unwrap();
            pair.b.send(pair.ep_b, Tag(number as u64), pattern(len, number + 7)).unwrap();
        }
        let mut counts = [(0, 0); 2];
        let begin = Instant::now();
        while counts != [(lengths.len(), lengths.len()); 2] {
            assert!(begin.elapsed() < LIMIT, "{counts:?}");
            for (worker, offset, (came, sent)) in
                [&mut pair.a, &mut pair.b].into_iter().zip([7, 0]).zip(&mut counts).map(|((a, b), c)| (a, b, c))
            {
                match worker.poll().unwrap() {
                    Some(Event::Received { tag, message, .. }) => {
                        assert_eq!(tag, Tag(*came as u64));
                        assert!(message == pattern(lengths[*came], *came + offset), "message {came}");
                        *came += 1;
                    }
                    Some(Event::Sent { .. }) => *sent += 1,
                    Some(other) => panic!("{}", brief(&other)),
                    None => {}
                }
            }
        }
        assert_eq!(pair.a.counters().packets_stray + pair.b.counters().packets_stray, 0);
        pair.a.close(pair.ep_a);
        let (of_a, of_b) = pair.until(|a, b| a.iter().any(is_closed) && b.iter().any(is_closed));
        let reason = |events: Vec<Event>| events.into_iter().find(is_closed).map(closed).unwrap();
        let (ours, theirs) = (reason(of_a), reason(of_b));
        assert!(matches!((&ours, &theirs), (CloseReason::Local, CloseReason::Remote)), "{ours}, {theirs}");
    }
}

#[test]
fn what_was_sent_before_a_close_is_delivered() {
    let mut pair = pair();
    for number in 0..500 {
        pair.a.send(pair.ep_a, Tag(number), pattern(900, number as usize)).unwrap();
    }
    pair.a.close(pair.ep_a);
    pair.b.close(pair.ep_b);
    let (of_a, of_b) = pair.until(|a, b| a.iter().any(is_closed) && b.iter().any(is_closed));
    assert_eq!((received(&of_b).len(), sent(&of_a).len()), (500, 500));
}

#[test]
fn all_that_is_no_payload_for_reading_works_as_elsewhere() {
    let mut pair = pair_with(|| Config::default().unmatched(Unmatched::Hold));
    // Tagged, into memory of the application's.
    let memory = pair.b.domain().alloc(100).unwrap();
    let receive = pair.b.recv_into(pair.ep_b, TagPattern::masked(Tag(0), 0), memory, None).unwrap();
    pair.a.send(pair.ep_a, Tag(5), pattern(60, 1)).unwrap();
    let (_, of_b) = pair.until(|_, of_b| !of_b.is_empty());
    let Event::ReceivedInto { op, len: 60, memory: Local::Buffer(memory), .. } = &of_b[0] else {
        panic!("{}", brief(&of_b[0]))
    };
    assert!(*op == receive && memory[..60] == pattern(60, 1));
    // One that waits for its receive, and is cancelled; another that is there first.
    let never = pair.b.recv(Source::Any, Tag(99)).unwrap();
    pair.b.cancel(never);
    pair.a.send(pair.ep_a, Tag(6), &b"held"[..]).unwrap();
    pair.until(|_, of_b| of_b.iter().any(|event| matches!(event, Event::Failed { error: OpError::Cancelled, .. })));
    let begin = Instant::now();
    while pair.b.probe(Source::Any, Tag(6)).is_none() {
        assert!(begin.elapsed() < LIMIT && pair.a.poll().unwrap().is_none() && pair.b.poll().unwrap().is_none());
    }
    pair.b.recv(Source::Any, Tag(6)).unwrap();
    let (_, of_b) = pair.until(|_, of_b| !of_b.is_empty());
    assert!(matches!(&of_b[0], Event::Matched { message, .. } if *message == b"held"[..]), "{}", brief(&of_b[0]));
    // All is there.
    let flush = pair.a.flush(pair.ep_a).unwrap();
    pair.a.fence(pair.ep_a).unwrap();
    let (of_a, _) = pair.until(|of_a, _| !of_a.is_empty());
    assert!(matches!(of_a[..], [Event::Flushed { op, .. }] if op == flush), "{}", brief(&of_a[0]));
    // Streams, part by part.
    let stream = pair.a.open_stream(pair.ep_a).unwrap();
    for part in 0..50 {
        pair.a.stream_send(stream, pattern(700, part)).unwrap();
    }
    pair.a.stream_finish(stream, Bytes::new()).unwrap();
    let ended = |event: &Event| matches!(event, Event::StreamEnded { .. });
    let (_, of_b) = pair.until(|_, of_b| of_b.iter().any(ended));
    let parts = of_b.iter().filter_map(|event| match event {
        Event::StreamData { message, .. } => Some(message),
        _ => None,
    });
    assert!(parts.enumerate().map(|(part, message)| assert!(*message == pattern(700, part))).count() == 50);
}

#[test]
fn what_needs_a_queue_pair_is_refused_and_says_so() {
    let mut pair = pair();
    let limit = limit(&pair.a, pair.ep_a) as u64;
    let error = pair.a.send(pair.ep_a, Tag(1), vec![0; limit as usize + 1]).unwrap_err();
    assert!(matches!(error.error, SendFailure::Datagrams { len, limit: most } if (len, most) == (limit + 1, limit)));
    assert!(error.to_string().contains("`connect`") && error.payload.len() == limit + 1, "{error}");
    let region =
        pair.b.domain().expose(64, Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC).unwrap();
    let error = pair.b.send(pair.ep_b, Tag(1), region.remote(0..64)).unwrap_err();
    assert!(matches!(error.error, SendFailure::Datagrams { len: 64, .. }), "{error}");
    let refused = |error: OneSidedFailure| {
        assert!(matches!(error, OneSidedFailure::Post(PostError::NotSupported { .. })), "{error}");
    };
    let memory = || pair.a.domain().alloc(64).unwrap();
    let (first, second) = (memory(), memory());
    refused(pair.a.put(pair.ep_a, first, region.remote(0..64)).unwrap_err().error);
    refused(pair.a.get(pair.ep_a, region.remote(0..64), second, None).unwrap_err().error);
    refused(pair.a.fetch_add(pair.ep_a, region.remote(0..8), 1).unwrap_err());
    refused(pair.a.put_copy(pair.ep_a, b"12345678", region.remote(0..8)).unwrap_err());
    // Nothing came of it.
    pair.a.send(pair.ep_a, Tag(2), &b"on"[..]).unwrap();
    let (_, of_b) = pair.until(|_, of_b| !of_b.is_empty());
    assert!(received(&of_b)[0].1 == &b"on"[..]);
}

/// Messages that were sent before the peer had told how long they may be.
#[test]
fn what_turns_out_too_long_comes_back() {
    let mut a = Worker::new(Config::default()).unwrap();
    let mut b = Worker::new(Config::default().eager_limit(300)).unwrap();
    let listener = b.listen("127.0.0.1:0").unwrap();
    let ep = a.connect_datagram(listener.local_addr()).unwrap();
    let op = a.send(ep, Tag(1), vec![1; 301]).unwrap();
    a.send(ep, Tag(2), vec![2; 300]).unwrap();
    let begin = Instant::now();
    let (mut came, mut failed) = (false, false);
    while !came || !failed {
        assert!(begin.elapsed() < LIMIT);
        match a.poll().unwrap() {
            Some(Event::Failed { op: of, error: OpError::Datagrams { limit: 300 }, returned, .. }) => {
                assert!(of == op && matches!(returned, Returned::Payload(payload) if payload.len() == 301));
                failed = true;
            }
            Some(Event::Failed { error, .. }) => panic!("{error}"),
            _ => {}
        }
        if let Some(Event::Received { message, .. }) = b.poll().unwrap() {
            assert!(message == [2; 300]);
            came = true;
        }
    }
}

#[test]
fn hundreds_of_peers_share_a_worker_with_others_of_another_kind() {
    let config = || Config::default().window(4).endpoints(8);
    let (mut a, mut b) = (Worker::new(config()).unwrap(), Worker::new(config()).unwrap());
    let listener = b.listen("127.0.0.1:0").unwrap();
    let mut all: Vec<_> = (0..300).map(|_| a.connect_datagram(listener.local_addr()).unwrap()).collect();
    all.extend((0..8).map(|_| a.connect(listener.local_addr()).unwrap()));
    assert!(matches!(a.connect(listener.local_addr()), Err(ConnectError::TooManyEndpoints { limit: 8 })));
    for (number, &ep) in all.iter().enumerate() {
        for part in 0..10 {
            a.send(ep, Tag(number as u64), vec![part; 50]).unwrap();
        }
    }
    let (begin, limit) = (Instant::now(), patient_limit());
    let mut came = vec![0; all.len()];
    let mut back = 0;
    while back < all.len() * 10 {
        assert!(begin.elapsed() < limit, "{came:?}");
        match b.poll().unwrap() {
            Some(Event::Received { ep, tag, message }) => {
                let part = &mut came[tag.0 as usize];
                assert!(message == [*part; 50]);
                *part += 1;
                b.send(ep, tag, message.to_vec()).unwrap();
            }
            Some(Event::Closed { reason, .. }) => panic!("{reason}"),
            _ => {}
        }
        match a.poll().unwrap() {
            Some(Event::Received { ep, tag, .. }) => {
                assert_eq!(all[tag.0 as usize], ep);
                back += 1;
            }
            Some(Event::Closed { reason, .. }) => panic!("{reason}"),
            _ => {}
        }
    }
    all.iter().for_each(|&ep| a.close(ep));
    let (mut of_a, mut of_b) = (0, 0);
    while of_a < all.len() || of_b < all.len() {
        assert!(begin.elapsed() < limit, "{of_a} {of_b}");
        for (worker, count) in [(&mut a, &mut of_a), (&mut b, &mut of_b)] {
            if let Some(Event::Closed { reason, .. }) = worker.poll().unwrap() {
                assert!(matches!(reason, CloseReason::Local | CloseReason::Remote), "{reason}");
                *count += 1;
            }
        }
    }
}

#[test]
fn a_worker_that_takes_none_refuses_them() {
    let mut a = Worker::new(Config::default()).unwrap();
    let mut b = Worker::new(Config::default().datagram_endpoints(0)).unwrap();
    let listener = b.listen("127.0.0.1:0").unwrap();
    a.connect_datagram(listener.local_addr()).unwrap();
    assert!(matches!(b.connect_datagram("127.0.0.1:1"), Err(ConnectError::TooManyDatagramEndpoints { limit: 0 })));
    let begin = Instant::now();
    loop {
        assert!(begin.elapsed() < LIMIT);
        b.poll().unwrap();
        if let Some(Event::Closed { reason, .. }) = a.poll().unwrap() {
            assert!(matches!(reason, CloseReason::Failed(ConnectFailure::Rejected { .. })), "{reason}");
            assert!(reason.to_string().contains("Config::datagram_endpoints"), "{reason}");
            return;
        }
    }
}

/// It is alive for the system, and answers nothing.
#[test]
fn a_peer_that_does_not_poll_counts_as_lost() {
    let mut pair = pair_with(|| Config::default().keepalive(Duration::from_millis(50), Duration::from_millis(200)));
    let Event::Closed { reason, .. } = next(&mut pair.a) else { panic!("it ends") };
    assert!(matches!(reason, CloseReason::PeerLost(_)), "{reason}");
}

#[test]
fn an_idle_connection_lives_though_both_sides_sleep() {
    let mut pair = pair_with(|| Config::default().keepalive(Duration::from_millis(20), Duration::from_millis(500)));
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(300) {
        for worker in [&mut pair.a, &mut pair.b] {
            let event = worker.wait(Some(Duration::from_millis(5))).unwrap();
            assert!(event.is_none(), "{}", brief(&event.unwrap()));
        }
    }
    assert_eq!((pair.a.counters().lost, pair.b.counters().lost), (0, 0));
}

#[test]
fn a_peer_that_goes_is_missed_at_once() {
    let mut pair = pair();
    pair.a.send(pair.ep_a, Tag(1), &b"never read"[..]).unwrap();
    drop(pair.b);
    let reason = loop {
        match next(&mut pair.a) {
            Event::Closed { reason, .. } => break reason,
            Event::Sent { .. } => {}
            other => panic!("{}", brief(&other)),
        }
    };
    assert!(matches!(reason, CloseReason::PeerLost(Lost::HungUp)), "{reason}");
}

#[test]
fn explanations_tell_of_packets() {
    let mut pair = pair();
    pair.a.send(pair.ep_a, Tag(1), &b"x"[..]).unwrap();
    pair.until(|_, of_b| !of_b.is_empty());
    let explanation = pair.a.explain(pair.ep_a).unwrap();
    let state = explanation.datagrams.unwrap();
    assert!(state.window >= 10 && state.timeout >= Duration::from_millis(5), "{state:?}");
    let text = explanation.to_string();
    assert!(text.contains("datagrams of up to ") && text.contains("messages sent 1 (1 bytes)"), "{text}");
    assert!(pair.a.metrics().to_string().contains("qpair_packets_repeated_total"));
}

/// Longer packets than its devices take inline go out of registered memory.
#[test]
fn a_device_with_little_inline_carries_the_same() {
    on_a_fake(|| {
        let mut pair = pair_with(|| Config::default().device(FAKE));
        let limit = limit(&pair.a, pair.ep_a);
        for number in 0..300 {
            pair.a.send(pair.ep_a, Tag(number), pattern(number as usize * 17 % (limit + 1), number as usize)).unwrap();
        }
        let mut next = 0;
        let begin = Instant::now();
        while next < 300 {
            assert!(begin.elapsed() < LIMIT, "{next}");
            pair.a.poll().unwrap();
            if let Some(Event::Received { tag, message, .. }) = pair.b.poll().unwrap() {
                assert_eq!(tag, Tag(next));
                assert!(message == pattern(next as usize * 17 % (limit + 1), next as usize));
                next += 1;
            }
        }
        pair.a.close(pair.ep_a);
        pair.until(|of_a, of_b| of_a.iter().any(is_closed) && of_b.iter().any(is_closed));
    });
}

/// What came before a peer hung up is delivered before its end, however late this side looks.
#[test]
fn what_a_peer_sent_before_it_died_comes() {
    for round in 0..10 {
        let mut worker = Worker::new(Config::default()).unwrap();
        let mut process = Process::start("send and die", &mut worker);
        let Event::Accepted { ep, .. } = next(&mut worker) else { panic!("not accepted") };
        assert!(matches!(next(&mut worker), Event::Received { tag: Tag(100), .. }));
        worker.send_copy(ep, Tag(200), b"go").unwrap();
        // It ends while this side sleeps.
        let mut came = 0;
        while worker.arm().unwrap() == Armed::Ready {
            came += u64::from(matches!(worker.poll().unwrap(), Some(Event::Received { .. })));
        }
        process.0.wait().unwrap();
        loop {
            match next(&mut worker) {
                Event::Received { tag, .. } => {
                    assert_eq!(tag, Tag(came));
                    came += 1;
                }
                Event::Closed { reason, .. } => {
                    assert!(matches!(reason, CloseReason::PeerLost(_)), "{reason}");
                    break;
                }
                other => panic!("{}", brief(&other)),
            }
        }
        assert_eq!(came, 5, "round {round}");
    }
}

#[test]
#[ignore = "needs a test above to start it, as its other process"]
fn as_a_peer() {
    let Some((_, address)) = role() else { return };
    let mut worker = Worker::new(Config::default()).unwrap();
    let ep = worker.connect_datagram(address).unwrap();
    assert!(matches!(next(&mut worker), Event::Connected { .. }));
    worker.send_copy(ep, Tag(100), b"here").unwrap();
    assert!(matches!(next(&mut worker), Event::Received { tag: Tag(200), .. }));
    for number in 0..5 {
        worker.send_copy(ep, Tag(number), b"last words").unwrap();
    }
    // Without a farewell.
    std::process::abort();
}
