//! What the software device does not do, on a device of a libibverbs in memory: one that sends what is posted to it only after
//! a while, and takes back what it has not sent when its queue pair is dropped; one whose queue pairs fail in silence.

mod support;

use std::time::{Duration, Instant};

use qpair_fake_ibverbs::control::Device;
use qpair_transport::{CloseReason, Config, Event, Lost, Rail, Tag, Worker};
use support::*;

/// Two connected workers on a device that sends what is posted after so many polls for its completion.
fn pair(lag: u64, close_timeout: Duration) -> (Pair, Device) {
    let fake = Device::new(FAKE).unwrap();
    let config = || Config::default().device(FAKE).close_timeout(close_timeout);
    let pair = Pair::with(config(), config());
    fake.set("lag", lag).unwrap();
    (pair, fake)
}

/// More polls than a worker that goes makes in passing, and fewer than it makes before it sleeps.
const LAG: u64 = 400;
/// Messages: the last is not signaled, and some are too long to be sent inline.
const MESSAGES: usize = 40;

fn message(number: usize) -> Vec<u8> {
    pattern(if number % 8 == 5 { 1000 } else { 30 }, number)
}

fn delivered(close: bool) {
    let (Pair { mut a, mut b, ep_a, .. }, _) = pair(LAG, LIMIT);
    for number in 0..MESSAGES {
        a.send_copy(ep_a, Tag(number as u64), &message(number)).unwrap();
    }
    if close {
        a.close(ep_a);
    }
    drop(a);
    for number in 0..MESSAGES {
        match next(&mut b) {
            Event::Received { tag, message: came, .. } => {
                assert_eq!(tag, Tag(number as u64));
                assert!(came == message(number), "message {number}");
            }
            other => panic!("message {number}: {}", brief(&other)),
        }
    }
    let reason = closed(next(&mut b));
    assert!(matches!(reason, CloseReason::PeerLost(_)), "its answer to a close finds nobody: {reason}");
}

#[test]
fn what_was_sent_comes_before_the_end_of_its_sender() {
    on_a_fake(|| delivered(false));
}

#[test]
fn so_does_what_was_sent_before_a_close() {
    on_a_fake(|| delivered(true));
}

#[test]
fn messages_go_where_queues_have_little_room_for_inline_data() {
    on_a_fake(|| {
        let fake = Device::new(FAKE).unwrap();
        let depth = 128;
        fake.set("send_bytes", u64::from(depth) * (64 + 32)).unwrap();
        let config = || Config::default().device(FAKE).send_depth(depth);
        let Pair { mut a, mut b, ep_a, .. } = Pair::with(config(), config());
        for len in [0, 1, 8, 31, 32, 33, 64, 200] {
            a.send_copy(ep_a, Tag(7), &pattern(len, len)).unwrap();
            match next(&mut b) {
                Event::Received { message, .. } => assert!(message == pattern(len, len), "{len} bytes"),
                other => panic!("{len} bytes: {}", brief(&other)),
            }
        }
        drop((a, b));
        assert_eq!(fake.violations(), "");
    });
}

#[test]
fn a_device_that_never_sends_holds_a_worker_up_for_a_bounded_time() {
    on_a_fake(|| {
        let limit = Duration::from_millis(30);
        let (Pair { mut a, mut b, ep_a, .. }, fake) = pair(u64::MAX, limit);
        a.send_copy(ep_a, Tag(1), b"never").unwrap();
        let begin = Instant::now();
        drop(a);
        let took = begin.elapsed();
        assert!(took >= limit && took < LIMIT, "{took:?}");
        assert!(is_closed(&next(&mut b)));
        drop(b);
        assert_eq!(fake.violations(), "");
    });
}

#[test]
fn a_queue_pair_that_fails_in_silence_is_found() {
    on_a_fake(|| {
        let fake = Device::new(FAKE).unwrap();
        let never = || Config::default().device(FAKE).keepalive(Duration::MAX, Duration::MAX);
        let lost = |reason: &CloseReason| matches!(reason, CloseReason::PeerLost(Lost::QueuePair));
        let mut pair = Pair::with(never(), never());
        fake.set("query_qp_state", IN_ERROR).unwrap();
        // By one that polls, though it is told never to probe.
        let begin = Instant::now();
        let event = loop {
            assert!(begin.elapsed() < LIMIT, "it is not found");
            if let Some(event) = pair.a.poll().unwrap() {
                break event;
            }
        };
        let reason = closed(event);
        assert!(lost(&reason), "{reason}");

        // And by one that sleeps.
        fake.reset().unwrap();
        let config = || Config::default().device(FAKE);
        let mut pair = Pair::with(config(), config());
        fake.set("query_qp_state", IN_ERROR).unwrap();
        let reason = closed(next(&mut pair.b));
        assert!(lost(&reason), "{reason}");
    });
}

#[test]
fn a_silent_queue_pair_is_asked_about_rarely() {
    on_a_fake(|| {
        let (mut pair, fake) = pair(0, LIMIT);
        let (period, during) = (Duration::from_millis(100), Duration::from_millis(500));
        let begin = Instant::now();
        // Calls that fail are recorded; what fails to answer says nothing of the queue pair.
        fake.fail_times("ibv_query_qp", 1, 0, 5).unwrap();
        while begin.elapsed() < during {
            // Each look at the sockets, every millisecond, is one at the queue pairs.
            for worker in [&mut pair.a, &mut pair.b] {
                assert!(worker.poll().unwrap().is_none());
            }
        }
        let asked = fake.calls().lines().filter(|call| call.starts_with("ibv_query_qp")).count();
        let periods = begin.elapsed().as_millis() / period.as_millis() + 1;
        // A probe asks too, after half a second of silence.
        let probes = begin.elapsed().as_millis() / 500 + 1;
        assert!(asked > 0 && asked as u128 <= 2 * (periods + probes), "{asked} times in {periods} periods");
    });
}

/// Of messages, of slices on each rail, and of datagrams.
#[test]
fn all_packets_are_of_the_class_that_was_asked_for() {
    on_a_fake(|| {
        let fake = Device::new(FAKE).unwrap();
        let rails = [Rail::port(1), Rail::port(1).gid_index(1)];
        let config = || Config::default().device(FAKE).rails(rails.clone()).service_level(3).traffic_class(96);
        let Pair { mut a, mut b, .. } = Pair::with(config(), config());
        let listener = b.listen("127.0.0.1:0").unwrap();
        let ep = a.connect_datagram(listener.local_addr()).unwrap();
        let begin = Instant::now();
        while !matches!(a.poll().unwrap(), Some(Event::Connected { ep: connected, .. }) if connected == ep) {
            assert!(begin.elapsed() < LIMIT);
            b.poll().unwrap();
        }
        let calls = fake.calls();
        // Of either side: messages, and slices on two rails.
        let paths: Vec<_> = calls.lines().filter(|call| call.contains(" sl=")).collect();
        let are_all = paths.iter().all(|call| call.contains(" sl=3 ") && call.contains(" class=96 "));
        assert!(are_all && paths.len() == 2 * (1 + 2), "{paths:#?}");
        // The handle of datagrams; others are made to see where a way leads.
        assert_eq!(calls.lines().filter(|call| call.contains(" sl 3 tc 96 ")).count(), 2, "{calls}");
        drop((a, b, listener));
        assert_eq!(fake.violations(), "");
    });
}

/// Nobody waits while the kernel looks for a peer's port on the network but who is connected to that.
#[test]
fn messages_come_while_a_peers_port_is_looked_for() {
    on_a_fake(|| {
        let (Pair { mut a, mut b, ep_a, .. }, fake) = pair(0, LIMIT);
        let listener = b.listen("127.0.0.1:0").unwrap();
        for (becomes, over_datagrams) in [(KNOWN, false), (SILENT, false), (KNOWN, true), (SILENT, true)] {
            fake.set("neighbours", LOOKED_FOR).unwrap();
            let mut c = Worker::new(Config::default().device(FAKE)).unwrap();
            let ep_c = match over_datagrams {
                true => c.connect_datagram(listener.local_addr()),
                false => c.connect(listener.local_addr()),
            };
            let (ep_c, start) = (ep_c.unwrap(), Instant::now());
            let (mut came, mut is_accepted, mut ended) = (0, None, None);
            while is_accepted.is_none() || is_accepted == Some(false) && ended.is_none() {
                assert!(start.elapsed() < LIMIT, "after {came} messages");
                a.send_copy(ep_a, Tag(1), b"meanwhile").unwrap();
                match next(&mut b) {
                    Event::Received { .. } => came += 1,
                    Event::Accepted { .. } => is_accepted = Some(true),
                    Event::Rejected { error, .. } => {
                        assert!(error.to_string().contains("no port"), "{error}");
                        is_accepted = Some(false);
                    }
                    other => panic!("{}", brief(&other)),
                }
                match c.poll().unwrap() {
                    Some(Event::Closed { ep, reason }) if ep == ep_c => ended = Some(reason),
                    Some(Event::Connected { .. }) | None => {}
                    Some(other) => panic!("{}", brief(&other)),
                }
                while a.poll().unwrap().is_some() {}
                // Either side asks for the other's.
                if came >= MEANWHILE && fake.get("waiting").unwrap() > 0 {
                    fake.set("neighbours", becomes).unwrap();
                }
            }
            assert!(came >= MEANWHILE);
            assert_eq!(is_accepted, Some(becomes == KNOWN));
            drop(c);
            while is_accepted == Some(true) && !is_closed(&next(&mut b)) {}
            assert!(ended.is_none_or(|reason| reason.to_string().contains("no port")));
        }
        drop((a, b, listener));
        assert_eq!(fake.violations(), "");
    });
}

/// Messages that come while a port is looked for.
const MEANWHILE: usize = 100;
/// What the setting `neighbours` means.
const LOOKED_FOR: u64 = 0;
const KNOWN: u64 = 1;
const SILENT: u64 = 2;
/// Of `enum ibv_qp_state`.
const IN_ERROR: u64 = 6;
