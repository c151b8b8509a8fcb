//! How connections begin and end: refused, garbled, slow, closed in the middle of traffic, too many.

mod support;

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use qpair_transport::{
    Armed, CloseReason, Config, ConnectError, ConnectFailure, Event, HandshakeError, Lost, Returned, SendCopyError,
    SendFailure, Tag, Versions, Worker,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::*;

/// An address of this host at which nobody listens: other tests listen at 127.0.0.1.
fn nowhere() -> SocketAddr {
    "127.9.8.7:7".parse().unwrap()
}

#[test]
fn connecting_to_nothing_says_so() {
    let mut worker = Worker::new(Config::default()).unwrap();
    let address = nowhere();
    let ep = worker.connect(address).unwrap();
    worker.send(ep, Tag(1), &b"lost"[..]).unwrap();
    assert!(matches!(next(&mut worker), Event::Failed { returned: Returned::Payload(_), .. }));
    let reason = closed(next(&mut worker));
    assert!(matches!(reason, CloseReason::Failed(ConnectFailure::Refused(at)) if at == address), "{reason}");
    assert!(reason.to_string().contains("start the peer first"), "{reason}");
    let error = worker.send(ep, Tag(1), &b"again"[..]).unwrap_err().error;
    assert!(matches!(error, SendFailure::Unknown(id) if id == ep));
    assert_eq!(worker.send_copy(ep, Tag(1), b"again"), Err(SendCopyError::Closed(ep)));
    assert!(matches!(worker.connect("no such name"), Err(ConnectError::Address(_))));
}

#[test]
fn a_server_of_another_kind_is_told_from_a_silent_one() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut worker = Worker::new(Config::default().connect_timeout(Duration::from_millis(300))).unwrap();
    let address = server.local_addr().unwrap();
    worker.connect(address).unwrap();
    let (mut stream, _) = server.accept().unwrap();
    stream.write_all(b"220 smtp.example.org ESMTP\r\n").unwrap();
    let reason = closed(next(&mut worker));
    let expected = HandshakeError::Magic;
    assert!(
        matches!(&reason, CloseReason::Failed(ConnectFailure::Handshake { error, .. }) if *error == expected),
        "{reason}"
    );

    let start = Instant::now();
    worker.connect(address).unwrap();
    let (_silent, _) = server.accept().unwrap();
    let reason = closed(next(&mut worker));
    assert!(matches!(reason, CloseReason::Failed(ConnectFailure::TimedOut { .. })), "{reason}");
    assert!(start.elapsed() < LIMIT);

    worker.connect(address).unwrap();
    drop(server.accept().unwrap());
    let reason = closed(next(&mut worker));
    assert!(
        matches!(reason, CloseReason::Failed(ConnectFailure::Handshake { error: HandshakeError::HungUp, .. })),
        "{reason}"
    );
}

#[test]
fn garbage_on_the_port_is_turned_away() {
    let mut worker = Worker::new(Config::default().hello_timeout(Duration::from_millis(300))).unwrap();
    let listener = worker.listen("127.0.0.1:0").unwrap();
    let (ours, theirs) = (Versions { lowest: 3, highest: 3 }, Versions { lowest: 99, highest: 100 });
    let preface = b"QPTR\x03\x03\0\0\0\0\0\0";
    let then = |bytes: &[u8]| [&preface[..], bytes].concat();
    let cases = [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), HandshakeError::Magic),
        (b"QPTR\x63\x64\0\0\0\0\0\0".to_vec(), HandshakeError::NoCommonVersion { ours, theirs }),
        (b"QPTR\x03\x03\x01\0\0\0\0\0".to_vec(), HandshakeError::PeerWantsKey),
        (then(b"\xff\xff"), HandshakeError::TooLong { len: 65535, limit: 4096 }),
        (then(b"\x01\0\x03"), HandshakeError::Unexpected(3)),
        (b"QPTR".to_vec(), HandshakeError::TimedOut),
        (then(b"\x01"), HandshakeError::TimedOut),
    ];
    for (bytes, expected) in cases {
        let mut stream = TcpStream::connect(listener.local_addr()).unwrap();
        stream.write_all(&bytes).unwrap();
        match next(&mut worker) {
            Event::Rejected { error, listener: by, .. } => assert_eq!((error, by), (expected, listener.id())),
            other => panic!("{}", brief(&other)),
        }
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        // Some are told which versions this side speaks; nobody more.
        let mut answer = Vec::new();
        let read = stream.read_to_end(&mut answer);
        assert!(answer.is_empty() || answer == preface, "{answer:?}, {read:?}");
        let open = read.err().is_some_and(|error| error.kind() == ErrorKind::WouldBlock);
        assert!(!open, "the stream is closed");
    }
    drop(TcpStream::connect(listener.local_addr()).unwrap());
    assert!(matches!(next(&mut worker), Event::Rejected { error: HandshakeError::HungUp, .. }));
    assert_eq!(worker.counters().rejected, 8);
    let ep = worker.connect(listener.local_addr()).unwrap();
    worker.send(ep, Tag(1), &b"still works"[..]).unwrap();
    while !matches!(next(&mut worker), Event::Received { .. }) {}
}

#[test]
fn a_close_in_the_middle_of_traffic_loses_nothing() {
    let mut pair = Pair::with(Config::default().window(4), Config::default().window(4));
    for at in 0..300usize {
        let len = if at % 7 == 0 { 20_000 } else { 30 };
        pair.a.send(pair.ep_a, Tag(1), pattern(len, at)).unwrap();
        pair.b.send(pair.ep_b, Tag(1), pattern(len, at)).unwrap();
    }
    let memory = pair.a.domain().alloc(10).unwrap();
    pair.a.recv_into(pair.ep_a, Tag(77), memory, None).unwrap();
    pair.a.close(pair.ep_a);
    let error = pair.a.send(pair.ep_a, Tag(1), &b"late"[..]).unwrap_err().error;
    assert!(matches!(error, SendFailure::Closing(_)));
    let (mut seen_a, mut seen_b) = (0, 0);
    let (mut end_a, mut end_b) = (None, None);
    let (mut sent_a, mut sent_b, mut failed) = (0, 0, 0);
    let start = Instant::now();
    while end_a.is_none() || end_b.is_none() {
        let polled = [(pair.a.poll().unwrap(), 0), (pair.b.poll().unwrap(), 1)];
        for (event, side) in polled {
            let (seen, sent, end) =
                if side == 0 { (&mut seen_a, &mut sent_a, &mut end_a) } else { (&mut seen_b, &mut sent_b, &mut end_b) };
            match event {
                Some(Event::Received { message, .. }) => {
                    let len = if *seen % 7 == 0 { 20_000 } else { 30 };
                    assert!(message == pattern(len, *seen), "message {seen} of side {side}");
                    *seen += 1;
                }
                Some(Event::Sent { .. }) => *sent += 1,
                Some(Event::Failed { returned: Returned::Memory(_), .. }) => failed += 1,
                Some(Event::Closed { reason, .. }) => *end = Some(reason),
                Some(other) => panic!("{}", brief(&other)),
                None => {}
            }
        }
        assert!(start.elapsed() < LIMIT, "a {seen_a}, b {seen_b}, {end_a:?}, {end_b:?}");
    }
    assert_eq!((seen_a, seen_b, sent_a, sent_b, failed), (300, 300, 300, 300, 1));
    assert!(matches!(end_a, Some(CloseReason::Local)), "{end_a:?}");
    assert!(matches!(end_b, Some(CloseReason::Remote)), "{end_b:?}");
}

#[test]
fn closing_from_both_sides_and_again_and_again() {
    again_and_again(Config::default().endpoints(2).window(9));
    again_and_again(Config::default().endpoints(2).window(9).shared_receives(9, 0));
    again_and_again(Config::default().endpoints(2).window(9).shared_receives(1, 8));
}

fn again_and_again(config: Config) {
    let mut a = Worker::new(config.clone()).unwrap();
    let mut b = Worker::new(config).unwrap();
    let listener = b.listen("127.0.0.1:0").unwrap();
    for round in 0..50usize {
        let ep = a.connect(listener.local_addr()).unwrap();
        a.send(ep, Tag(1), pattern(9000, round)).unwrap();
        if round % 3 == 0 {
            a.close(ep);
        }
        let (mut ends, mut messages) = (0, 0);
        let start = Instant::now();
        while ends < 2 {
            let event = a.poll().unwrap();
            ends += event.iter().filter(|event| is_closed(event)).count();
            match b.poll().unwrap() {
                Some(Event::Received { ep, message, .. }) => {
                    assert!(message == pattern(9000, round));
                    messages += 1;
                    b.close(ep);
                }
                Some(Event::Closed { reason, .. }) => {
                    assert!(matches!(reason, CloseReason::Local | CloseReason::Remote), "{reason}");
                    ends += 1;
                }
                _ => {}
            }
            assert!(start.elapsed() < LIMIT, "round {round}: {ends} ends");
        }
        assert_eq!(messages, 1);
    }
    assert_eq!((a.counters().lost, b.counters().lost), (0, 0));
}

#[test]
fn a_worker_that_goes_away_is_lost_to_its_peer() {
    let mut pair = Pair::new();
    pair.a.send_copy(pair.ep_a, Tag(1), b"last words").unwrap();
    let Pair { a, mut b, ep_b, .. } = pair;
    drop(a);
    let start = Instant::now();
    match next(&mut b) {
        Event::Received { message, .. } => assert!(message == b"last words"),
        other => panic!("{}", brief(&other)),
    }
    let reason = closed(next(&mut b));
    assert!(matches!(reason, CloseReason::PeerLost(Lost::HungUp | Lost::QueuePair | Lost::Completion(_))), "{reason}");
    assert!(start.elapsed() < LIMIT / 2, "it waits for nothing");
    assert!(matches!(b.send(ep_b, Tag(1), &b""[..]).unwrap_err().error, SendFailure::Unknown(_)));
    assert_eq!(b.counters().lost, 1);
}

#[test]
fn regions_of_pending_operations_are_free_once_the_worker_is_gone() {
    let mut pair = Pair::new();
    let region = pair.b.domain().expose(20_000, qpair_verbs::Access::REMOTE_READ).unwrap();
    pair.b.recv_into(pair.ep_b, Tag(1), region.local(0..20_000), None).unwrap();
    pair.b.recv_into(pair.ep_b, Tag(2), region.local(0..100), None).unwrap();
    pair.a.send(pair.ep_a, Tag(1), pattern(20_000, 1)).unwrap();
    // One poll each: the READ may be with the device when the worker goes.
    pair.b.poll().unwrap();
    let start = Instant::now();
    drop(pair.b);
    assert!(start.elapsed() < LIMIT / 2, "it waits for no peer");
    assert!(region.revoke().is_ok());
}

#[test]
fn too_many_connections_are_refused_on_either_side() {
    let mut a = Worker::new(Config::default().endpoints(1)).unwrap();
    let mut b = Worker::new(Config::default().endpoints(1)).unwrap();
    let listener = b.listen("127.0.0.1:0").unwrap();
    a.connect(listener.local_addr()).unwrap();
    assert!(matches!(a.connect(listener.local_addr()), Err(ConnectError::TooManyEndpoints { limit: 1 })));
    while !matches!(a.poll().unwrap(), Some(Event::Connected { .. })) {
        b.poll().unwrap();
    }
    let mut c = Worker::new(Config::default()).unwrap();
    c.connect(listener.local_addr()).unwrap();
    let reason = loop {
        b.poll().unwrap();
        if let Some(event) = c.poll().unwrap() {
            break closed(event);
        }
    };
    assert!(matches!(&reason, CloseReason::Failed(ConnectFailure::Rejected { .. })), "{reason}");
    assert!(reason.to_string().contains("raise Config::endpoints"), "{reason}");
}

#[test]
fn a_listener_can_be_stopped_and_a_port_taken() {
    let mut worker = Worker::new(Config::default()).unwrap();
    // At an address where no other test listens, who might take the port.
    let listener = worker.listen("127.9.8.6:0").unwrap();
    let error = worker.listen(listener.local_addr()).unwrap_err();
    assert!(error.to_string().contains("choose another port"), "{error}");
    worker.stop_listening(listener);
    assert!(TcpStream::connect(listener.local_addr()).is_err());
}

#[test]
fn waiting_ends_at_its_limit() {
    let mut worker = Worker::new(Config::default()).unwrap();
    let start = Instant::now();
    assert!(worker.wait(Some(Duration::from_millis(30))).unwrap().is_none());
    assert!(start.elapsed() >= Duration::from_millis(30));
    assert!(start.elapsed() < LIMIT);
}

/// A process that has no descriptor left while someone connects to it.
#[test]
#[ignore = "needs a test below to start it, as its other process"]
fn as_a_peer() {
    let Some((_, address)) = role() else { return };
    let mut worker = Worker::new(Config::default()).unwrap();
    worker.connect(address.as_str()).unwrap();
    let ep = connected(&mut worker);
    let listener = worker.listen("127.0.0.1:0").unwrap();
    let whole = getrlimit(Resource::Nofile);
    // The lowest number that is free, which the system gives next.
    let lowest = File::open("/dev/null").unwrap().as_raw_fd();
    setrlimit(Resource::Nofile, Rlimit { current: Some(lowest as u64), ..whole }).unwrap();
    worker.send_copy(ep, Tag(1), listener.local_addr().to_string().as_bytes()).unwrap();
    assert!(matches!(next(&mut worker), Event::Received { tag: Tag(2), .. }));
    // Someone waits now, and is looked at in each of these.
    for _ in 0..20 {
        let event = worker.wait(Some(Duration::from_millis(5))).unwrap();
        assert!(event.is_none(), "{}", brief(&event.unwrap()));
    }
    setrlimit(Resource::Nofile, whole).unwrap();
    assert!(matches!(next(&mut worker), Event::Rejected { error: HandshakeError::Magic, .. }));
    worker.close(ep);
    assert!(is_closed(&next(&mut worker)));
}

#[test]
fn who_connects_while_there_is_no_descriptor_is_accepted_when_there_is() {
    let mut worker = Worker::new(Config::default()).unwrap();
    let peer = Process::start("starve", &mut worker);
    let ep = connected(&mut worker);
    let Event::Received { message, .. } = next(&mut worker) else { panic!("no address") };
    let mut stranger = TcpStream::connect(std::str::from_utf8(&message).unwrap()).unwrap();
    stranger.write_all(b"hello?").unwrap();
    worker.send_copy(ep, Tag(2), b"someone waits").unwrap();
    assert!(is_closed(&next(&mut worker)));
    peer.finish();
}

#[test]
fn a_call_that_fails_at_once_is_no_reason_to_sleep() {
    let mut worker = Worker::new(Config::default()).unwrap();
    for _ in 0..3 {
        assert!(worker.poll().unwrap().is_none());
        // No TCP goes to many at once: the system says so without a packet.
        let ep = worker.connect("224.0.0.1:1").unwrap();
        assert!(matches!(worker.arm().unwrap(), Armed::Ready));
        let event = worker.poll().unwrap().expect("it was armed and ready");
        assert!(matches!(event, Event::Closed { ep: of, .. } if of == ep), "{}", brief(&event));
    }
}

#[test]
fn who_comes_after_a_long_sleep_has_all_its_time() {
    const HELLO: Duration = Duration::from_millis(400);
    let mut server = Worker::new(Config::default().hello_timeout(HELLO)).unwrap();
    let listener = server.listen("127.0.0.1:0").unwrap();
    let to = listener.local_addr();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut client = Worker::new(Config::default()).unwrap();
            // It is no matter whether the other sleeps for all of it.
            std::thread::sleep(2 * HELLO);
            client.connect(to).unwrap();
            let event = client.wait(Some(LIMIT)).unwrap().expect("it is up");
            assert!(matches!(event, Event::Connected { .. }), "{}", brief(&event));
        });
        let event = server.wait(Some(LIMIT)).unwrap().expect("somebody comes");
        assert!(matches!(event, Event::Accepted { .. }), "{}", brief(&event));
        // Until it is gone.
        while !matches!(server.wait(Some(LIMIT)).unwrap(), Some(Event::Closed { .. })) {}
    });
}
