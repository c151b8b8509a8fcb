//! Rails on several devices: two of a libibverbs in memory, which know nothing of each other.

mod support;

use std::time::Instant;

use bytes::Bytes;
use qpair_fake_ibverbs::control::{Completion, Device};
use qpair_transport::{
    CloseReason, Config, EndpointId, Event, Lost, NoKey, OpError, Rail, Returned, SendFailure, Source, Tag, Worker,
    WorkerError,
};
use qpair_verbs::{Access, Local};
use support::*;

/// Another device.
const BESIDE: &str = "beside0";
/// `enum ibv_wc_status`.
const RETRY_EXC_ERR: u32 = 12;
const REM_OP_ERR: u32 = 11;
const FATAL_ERR: u32 = 19;
const GENERAL_ERR: u32 = 21;
const REM_ACCESS_ERR: u32 = 10;

fn config() -> Config {
    Config::default().rails([FAKE, BESIDE].map(Rail::device))
}

/// Two connected workers, once all rails are used.
fn pair() -> (Pair, Device) {
    Device::new(FAKE).unwrap();
    let beside = Device::new(BESIDE).unwrap();
    let mut pair = Pair::with(config(), config());
    until_up(&mut pair);
    (pair, beside)
}

fn stages(pair: &Pair) -> Vec<&'static str> {
    let ends = [pair.a.explain(pair.ep_a), pair.b.explain(pair.ep_b)];
    ends.into_iter().flatten().flat_map(|end| end.rails.into_iter().map(|rail| rail.stage)).collect()
}

fn until_up(pair: &mut Pair) {
    let begin = Instant::now();
    while stages(pair) != ["up"; 4] {
        assert!(begin.elapsed() < LIMIT, "{:?}", stages(pair));
        assert!(pair.a.poll().unwrap().is_none() && pair.b.poll().unwrap().is_none());
    }
}

/// Bytes that the second side read over each rail.
fn bytes(pair: &Pair) -> Vec<u64> {
    pair.b.explain(pair.ep_b).unwrap().rails.iter().map(|rail| rail.bytes).collect()
}

/// Waits until a message came and its sender knows.
fn arrives(pair: &mut Pair, expected: &[u8]) {
    let came = |event: &Event| matches!(event, Event::Received { message, .. } if *message == expected);
    let (_, of_b) =
        pair.until(|of_a, of_b| of_a.iter().any(|event| matches!(event, Event::Sent { .. })) && !of_b.is_empty());
    assert!(of_b.iter().any(came), "{}", brief(&of_b[0]));
}

fn left_behind(pair: Pair) {
    let fakes = [FAKE, BESIDE].map(|name| Device::new(name).unwrap());
    drop(pair);
    let begin = Instant::now();
    while fakes.iter().any(|fake| !fake.live().is_empty()) {
        assert!(begin.elapsed() < LIMIT, "{} {}", fakes[0].live(), fakes[1].live());
        std::thread::yield_now();
    }
    fakes.iter().for_each(Device::assert_clean);
}

#[test]
fn every_kind_of_payload_is_read_over_both_devices() {
    on_a_fake(|| {
        let (mut pair, _) = pair();
        let text = pattern(3_000_000, 7);
        let mut last = bytes(&pair);
        let mut over_both = |pair: &Pair, what: &str| {
            let now = bytes(pair);
            assert!(now.iter().zip(&last).all(|(now, last)| now > last), "{what}: {last:?}, then {now:?}");
            last = now;
        };
        // Registered where they lie, from the cache too, and kept.
        let shared = Bytes::from(text.clone());
        for _ in 0..2 {
            pair.a.send(pair.ep_a, Tag(1), shared.clone()).unwrap();
            arrives(&mut pair, &text);
            over_both(&pair, "bytes");
        }
        pair.a.register(shared.clone()).unwrap();
        pair.a.send(pair.ep_a, Tag(1), shared.slice(..)).unwrap();
        arrives(&mut pair, &text);
        over_both(&pair, "registered bytes");
        // Copied into memory of the pool.
        pair.a.send(pair.ep_a, Tag(1), vec![shared.slice(..1_000_000), shared.slice(1_000_000..)]).unwrap();
        arrives(&mut pair, &text);
        over_both(&pair, "pieces");
        // Memory of the application's, into memory of the application's.
        let mut buffer = pair.a.domain().alloc(text.len()).unwrap();
        buffer.copy_from_slice(&text);
        let into = pair.b.domain().alloc(text.len() + 1).unwrap();
        pair.b.recv_into(Source::Any, Tag(2), into, None).unwrap();
        pair.a.send(pair.ep_a, Tag(2), buffer).unwrap();
        let (_, of_b) = pair.until(|of_a, of_b| !of_a.is_empty() && !of_b.is_empty());
        let Event::ReceivedInto { memory: Local::Buffer(into), len, .. } = &of_b[0] else {
            panic!("{}", brief(&of_b[0]))
        };
        assert!(into[..*len] == text);
        over_both(&pair, "a buffer");
        drop((of_b, shared));
        left_behind(pair);
    });
}

#[test]
fn what_the_application_exposed_is_read_by_the_key_that_it_told_of() {
    on_a_fake(|| {
        let (mut pair, _) = pair();
        let text = pattern(1_000_000, 3);
        let region = pair.a.domain().expose(text.len(), Access::REMOTE_READ).unwrap();
        region.write(0, &text).unwrap();
        let before = bytes(&pair);
        pair.a.send(pair.ep_a, Tag(1), region.remote(0..text.len())).unwrap();
        arrives(&mut pair, &text);
        let now = bytes(&pair);
        assert_eq!((now[0] - before[0], now[1] - before[1]), (text.len() as u64, 0));
        drop(region);
        left_behind(pair);
    });
}

#[test]
fn a_device_that_fails_is_left_out_and_comes_back() {
    on_a_fake(|| {
        let (mut pair, beside) = pair();
        for (round, status) in (0..).zip([RETRY_EXC_ERR, REM_OP_ERR, FATAL_ERR, GENERAL_ERR]) {
            beside.forge(1, Completion::new().status(status)).unwrap();
            let text = pattern(2_000_000, round);
            pair.a.send(pair.ep_a, Tag(1), text.clone()).unwrap();
            arrives(&mut pair, &text);
            assert_eq!(pair.b.counters().rails_lost, round as u64 + 1);
            until_up(&mut pair);
        }
        left_behind(pair);
    });
}

#[test]
fn a_device_that_gives_no_completions_takes_its_own_rails_along_and_no_more() {
    on_a_fake(|| {
        let (mut pair, beside) = pair();
        beside.poll_returns(-5).unwrap();
        let text = pattern(2_000_000, 4);
        pair.a.send(pair.ep_a, Tag(1), text.clone()).unwrap();
        // What that device has of memory does not come back.
        let (_, of_b) = pair.until(|_, of_b| of_b.iter().any(is_closed));
        let reason = of_b.into_iter().find(is_closed).map(closed).unwrap();
        assert!(matches!(reason, CloseReason::PeerLost(_)), "{reason}");
        // The worker goes on, without it.
        (pair.ep_a, pair.ep_b) = Pair::connect(&mut pair.a, &mut pair.b);
        pair.a.send(pair.ep_a, Tag(1), text.clone()).unwrap();
        arrives(&mut pair, &text);
        assert_eq!(pair.b.explain(pair.ep_b).unwrap().rails[1].stage, "one side does not have it");
    });
}

/// The rail that the messages of an end go over.
fn of_messages(worker: &Worker, ep: EndpointId) -> usize {
    let text = worker.explain(ep).unwrap().to_string();
    let at = text.find(" (and messages)").expect("one of them");
    text[..at].rsplit(' ').next().unwrap().parse().unwrap()
}

/// All that completes on a device fails, until it is reset.
fn fails(device: &Device) {
    for nth in 1..=1000 {
        device.forge(nth, Completion::new().status(RETRY_EXC_ERR)).unwrap();
    }
}

/// A device fails, until the messages of both ends go over that rail.
fn moves(pair: &mut Pair, failing: &Device, to: usize) {
    fails(failing);
    let text = pattern(40, to);
    pair.a.send(pair.ep_a, Tag(5), text.clone()).unwrap();
    let (_, of_b) = pair.until(|_, of_b| !of_b.is_empty());
    let came: Vec<_> = received(&of_b).into_iter().map(|(tag, message)| (tag, message.to_vec())).collect();
    assert_eq!(came, [(Tag(5), text)]);
    let mut until = |is_so: fn(&Pair, usize) -> bool| {
        let begin = Instant::now();
        while !is_so(pair, to) {
            assert!(begin.elapsed() < LIMIT);
            assert!(pair.b.poll().unwrap().is_none());
            if let Some(event) = pair.a.poll().unwrap() {
                assert!(matches!(event, Event::Sent { .. }), "{}", brief(&event));
            }
        }
    };
    until(|pair, to| [of_messages(&pair.a, pair.ep_a), of_messages(&pair.b, pair.ep_b)] == [to; 2]);
    failing.reset().unwrap();
    until(|pair, _| stages(pair) == ["up"; 4]);
}

#[test]
fn messages_go_on_over_another_device_and_what_is_under_way_with_them() {
    on_a_fake(|| {
        for config in [config().recovery(LIMIT), config().recovery(LIMIT).shared_receives(4, 16)] {
            let [fake, beside] = [FAKE, BESIDE].map(|name| Device::new(name).unwrap());
            let mut pair = Pair::with(config.clone(), config);
            until_up(&mut pair);
            let board = pair.b.domain().expose(64, Access::REMOTE_WRITE | Access::REMOTE_READ).unwrap();
            let (named, slice) = (pair.b.remote(&board, 0..64), board.remote(0..64));
            for (round, to) in (1..).zip([1, 0, 1]) {
                moves(&mut pair, if to == 1 { &fake } else { &beside }, to);
                // In both directions, of any length, and without a receive of the application's.
                let text = pattern(200_000, to);
                pair.a.send(pair.ep_a, Tag(9), text.clone()).unwrap();
                arrives(&mut pair, &text);
                pair.b.send(pair.ep_b, Tag(9), text.clone()).unwrap();
                let (of_a, _) = pair.until(|of_a, of_b| !of_a.is_empty() && !of_b.is_empty());
                assert!(matches!(&of_a[0], Event::Received { message, .. } if *message == text));
                // The peer's memory by the keys of all its devices.
                let mut from = pair.a.domain().alloc(64).unwrap();
                from.fill(round);
                pair.a.put(pair.ep_a, from, named).unwrap();
                pair.a.put_copy(pair.ep_a, &[99; 4], named.slice(4..8)).unwrap();
                let into = pair.a.domain().alloc(64).unwrap();
                pair.a.get(pair.ep_a, named, into, None).unwrap();
                let (of_a, _) = pair.until(|of_a, _| of_a.len() == 2);
                let [Event::Put { .. }, Event::Got { memory: Local::Buffer(got), .. }] = &of_a[..] else {
                    panic!("{}", brief(&of_a[0]))
                };
                assert_eq!(got[..8], [round, round, round, round, 99, 99, 99, 99]);
                // And by that of the first.
                let from = pair.a.domain().alloc(64).unwrap();
                match pair.a.put(pair.ep_a, from, slice) {
                    Ok(_) => assert!(to == 0 && matches!(next(&mut pair.a), Event::Put { .. })),
                    Err(refused) => assert_eq!((refused.error, to), (NoKey { rail: 1 }.into(), 1)),
                }
            }
            drop(board);
            assert_eq!(pair.a.counters().lost + pair.b.counters().lost, 0);
            left_behind(pair);
        }
    });
}

#[test]
fn what_can_not_be_written_by_another_device_ends_the_connection() {
    on_a_fake(|| {
        let [fake, _] = [FAKE, BESIDE].map(|name| Device::new(name).unwrap());
        let config = || config().recovery(LIMIT);
        let mut pair = Pair::with(config(), config());
        until_up(&mut pair);
        let board = pair.b.domain().expose(64, Access::REMOTE_WRITE).unwrap();
        fails(&fake);
        let from = pair.a.domain().alloc(64).unwrap();
        pair.a.put(pair.ep_a, from, board.remote(0..64)).unwrap();
        let (of_a, _) = pair.until(|of_a, _| of_a.iter().any(is_closed));
        fake.reset().unwrap();
        drop(board);
        let [Event::Failed { error, returned: Returned::Memory(memory), .. }, Event::Closed { reason, .. }] = &of_a[..]
        else {
            panic!("{}", brief(&of_a[0]))
        };
        assert_eq!((error, memory.len()), (&OpError::Closed, 64));
        assert!(matches!(reason, CloseReason::PeerLost(Lost::Completion(_))), "{reason}");
        drop(of_a);
        left_behind(pair);
    });
}

#[test]
fn what_can_not_be_read_by_another_device_fails_alone() {
    on_a_fake(|| {
        let [fake, _beside] = [FAKE, BESIDE].map(|name| Device::new(name).unwrap());
        let config = || config().recovery(LIMIT);
        let mut pair = Pair::with(config(), config());
        until_up(&mut pair);
        let board = pair.b.domain().expose(64, Access::REMOTE_READ).unwrap();
        fails(&fake);
        let into = pair.a.domain().alloc(64).unwrap();
        pair.a.get(pair.ep_a, board.remote(0..64), into, None).unwrap();
        let (of_a, _) = pair.until(|of_a, _| !of_a.is_empty());
        fake.reset().unwrap();
        let [Event::Failed { error, returned: Returned::Memory(memory), .. }] = &of_a[..] else {
            panic!("{}", brief(&of_a[0]))
        };
        assert_eq!((error, memory.len()), (&NoKey { rail: 1 }.into(), 64));
        // Nor could a message that lies in such memory; by the keys of all devices it can.
        let text = pattern(100_000, 5);
        let region = pair.a.domain().expose(text.len(), Access::REMOTE_READ).unwrap();
        region.write(0, &text).unwrap();
        let refused = pair.a.send(pair.ep_a, Tag(3), region.remote(0..text.len())).unwrap_err();
        assert!(matches!(refused.error, SendFailure::NoKey(NoKey { rail: 1 })), "{refused}");
        pair.a.send(pair.ep_a, Tag(3), pair.a.remote(&region, 0..text.len())).unwrap();
        arrives(&mut pair, &text);
        assert_eq!(pair.a.counters().lost + pair.b.counters().lost, 0);
    });
}

#[test]
fn a_further_device_that_gives_no_completions_is_left_by_messages_too() {
    on_a_fake(|| {
        let [fake, beside] = [FAKE, BESIDE].map(|name| Device::new(name).unwrap());
        let config = || config().recovery(LIMIT);
        let mut pair = Pair::with(config(), config());
        until_up(&mut pair);
        moves(&mut pair, &fake, 1);
        beside.poll_returns(-5).unwrap();
        pair.a.send(pair.ep_a, Tag(1), &b"back"[..]).unwrap();
        let (_, of_b) = pair.until(|_, of_b| !of_b.is_empty());
        assert!(matches!(&of_b[0], Event::Received { message, .. } if *message == b"back"[..]), "{}", brief(&of_b[0]));
        assert_eq!([of_messages(&pair.a, pair.ep_a), of_messages(&pair.b, pair.ep_b)], [0; 2]);
    });
}

#[test]
fn what_the_peer_does_not_allow_ends_the_connection_and_not_a_rail() {
    on_a_fake(|| {
        let (mut pair, beside) = pair();
        beside.forge(1, Completion::new().status(REM_ACCESS_ERR)).unwrap();
        pair.a.send(pair.ep_a, Tag(1), pattern(2_000_000, 1)).unwrap();
        let (_, of_b) = pair.until(|_, of_b| of_b.iter().any(is_closed));
        let reason = of_b.into_iter().find(is_closed).map(closed).unwrap().to_string();
        assert!(reason.contains("memory"), "{reason}");
        assert_eq!(pair.b.counters().rails_lost, 0);
    });
}

#[test]
fn rails_that_can_not_be_are_refused() {
    on_a_fake(|| {
        Device::new(FAKE).unwrap();
        Device::new(BESIDE).unwrap();
        let error = Worker::new(config().device(BESIDE)).unwrap_err();
        assert!(matches!(error, WorkerError::FirstRail { .. }), "{error}");
        let error = Worker::new(Config::default().rails(["soft0", FAKE].map(Rail::device))).unwrap_err();
        assert!(error.to_string().contains("software device"), "{error}");
        let error = Worker::new(Config::default().device(FAKE).rails((0..9).map(|_| Rail::port(1)))).unwrap_err();
        assert!(error.to_string().starts_with("a number of rails of 9"), "{error}");
    });
}
