//! Two workers at once, in two threads and in two processes: floods, long messages, a peer that is killed.

mod support;

use std::time::{Duration, Instant};

use qpair_transport::{CloseReason, Config, EndpointId, Event, Lost, Payload, Returned, SendCopyError, Tag, Worker};
use support::*;

const FLOOD: u64 = 100_000;
const POURED: usize = 8 << 20;

/// Sends `FLOOD` short messages and receives as many, in order.
fn flood(worker: &mut Worker, ep: EndpointId) {
    let (mut sent, mut seen) = (0u64, 0u64);
    let mut progress = (Instant::now(), 0);
    while sent < FLOOD || seen < FLOOD {
        if sent < FLOOD {
            match worker.send_copy(ep, Tag(sent), &sent.to_le_bytes()) {
                Ok(()) => sent += 1,
                Err(SendCopyError::WouldBlock) => {}
                Err(error) => panic!("{error}"),
            }
        }
        // Every so often by sleeping: the wake-up must not be lost.
        let event = if sent % 1000 == 7 { worker.wait(Some(Duration::from_millis(5))) } else { worker.poll() };
        match event.unwrap() {
            Some(Event::Received { tag, message, .. }) => {
                assert_eq!(tag, Tag(seen));
                assert!(message == seen.to_le_bytes(), "message {seen}");
                seen += 1;
            }
            Some(other) => panic!("{}", brief(&other)),
            None => std::thread::yield_now(),
        }
        if progress.1 != sent + seen {
            progress = (Instant::now(), sent + seen);
        }
        assert!(progress.0.elapsed() < LIMIT, "it stands still: {sent} sent, {seen} seen");
    }
}

/// Waits for the other side's end, having closed this one.
fn part(worker: &mut Worker, ep: EndpointId) {
    worker.close(ep);
    loop {
        match next(worker) {
            Event::Closed { reason: CloseReason::Local | CloseReason::Remote, .. } => return,
            Event::Closed { reason, .. } => panic!("{reason}"),
            _ => {}
        }
    }
}

#[test]
fn a_flood_both_ways_between_threads() {
    let mut a = Worker::new(Config::default()).unwrap();
    let listener = a.listen("127.0.0.1:0").unwrap();
    let other = std::thread::spawn(move || {
        let mut b = Worker::new(Config::default()).unwrap();
        b.connect(listener.local_addr()).unwrap();
        let ep = connected(&mut b);
        flood(&mut b, ep);
        part(&mut b, ep);
    });
    let ep = connected(&mut a);
    flood(&mut a, ep);
    part(&mut a, ep);
    other.join().unwrap();
}

#[test]
#[ignore = "needs a test below to start it, as its other process"]
fn as_a_peer() {
    let Some((role, address)) = role() else { return };
    let mut worker = Worker::new(Config::default().recovery(LIMIT)).unwrap();
    worker.connect(address.as_str()).unwrap();
    let ep = connected(&mut worker);
    match role.as_str() {
        "flood" => {
            flood(&mut worker, ep);
            part(&mut worker, ep);
        }
        "echo" => loop {
            match next(&mut worker) {
                Event::Received { tag, message, .. } => {
                    worker.send(ep, tag, message.into_bytes()).unwrap();
                }
                Event::Closed { .. } => return,
                _ => {}
            }
        },
        // Until it is killed.
        "pour" => loop {
            let buffer = worker.domain().alloc(POURED).unwrap();
            worker.send(ep, Tag(1), buffer).unwrap();
            while !matches!(next(&mut worker), Event::Sent { .. }) {}
        },
        "sit" => loop {
            // Receives nothing, so that everything sent to it stays under way.
            std::thread::park();
        },
        other => panic!("unknown role {other}"),
    }
}

#[test]
fn a_flood_both_ways_between_processes() {
    let mut worker = Worker::new(Config::default()).unwrap();
    let peer = Process::start("flood", &mut worker);
    let ep = connected(&mut worker);
    flood(&mut worker, ep);
    part(&mut worker, ep);
    peer.finish();
}

#[test]
fn messages_of_every_size_come_back_from_another_process() {
    let mut worker = Worker::new(Config::default()).unwrap();
    let peer = Process::start("echo", &mut worker);
    let ep = connected(&mut worker);
    for (seed, len) in [0, 1, 188, 189, 8192, 8193, 100_001, (3 << 20) + 17].into_iter().enumerate() {
        worker.send(ep, Tag(seed as u64), pattern(len, seed)).unwrap();
        let (mut sent, mut back) = (false, false);
        while !sent || !back {
            match next(&mut worker) {
                Event::Sent { .. } => sent = true,
                Event::Received { tag, message, .. } => {
                    assert_eq!(tag, Tag(seed as u64));
                    assert!(message == pattern(len, seed), "{len} bytes");
                    back = true;
                }
                other => panic!("{}", brief(&other)),
            }
        }
    }
    part(&mut worker, ep);
    peer.finish();
}

fn lost(reason: &CloseReason) -> bool {
    matches!(reason, CloseReason::PeerLost(Lost::HungUp | Lost::QueuePair | Lost::Completion(_)))
}

#[test]
fn a_killed_peer_is_reported_in_time_and_everything_is_handed_back() {
    // Where it recovers, too: its process is gone, and with it the socket.
    for (sleeping, recovery) in [(false, Duration::ZERO), (true, Duration::ZERO), (true, 10 * LIMIT)] {
        let mut worker = Worker::new(Config::default().recovery(recovery)).unwrap();
        let mut peer = Process::start("sit", &mut worker);
        let ep = connected(&mut worker);
        let buffer = worker.domain().alloc(1 << 20).unwrap();
        let long = worker.send(ep, Tag(1), buffer).unwrap();
        let memory = worker.domain().alloc(100).unwrap();
        let receive = worker.recv_into(ep, Tag(2), memory, None).unwrap();
        let mut queued = 0;
        for _ in 0..200 {
            worker.send(ep, Tag(3), &b"short"[..]).unwrap();
            queued += 1;
        }
        peer.kill();
        let start = Instant::now();
        let (mut sent, mut failed, mut seen_long, mut seen_receive) = (0, 0, false, false);
        let reason = loop {
            let event = if sleeping { worker.wait(Some(LIMIT)).unwrap() } else { worker.poll().unwrap() };
            match event {
                Some(Event::Sent { .. }) => sent += 1,
                Some(Event::Failed { op, returned: Returned::Payload(Payload::Buffer(buffer)), .. }) => {
                    assert_eq!((op, buffer.len()), (long, 1 << 20));
                    seen_long = true;
                }
                Some(Event::Failed { returned: Returned::Payload(_), .. }) => failed += 1,
                Some(Event::Failed { op, returned: Returned::Memory(_), .. }) => {
                    assert_eq!(op, receive);
                    seen_receive = true;
                }
                Some(Event::Closed { reason, .. }) => break reason,
                Some(other) => panic!("{}", brief(&other)),
                None => {}
            }
            assert!(start.elapsed() < LIMIT, "not noticed in time");
        };
        assert!(lost(&reason), "{reason}");
        assert_eq!(sent + failed, queued);
        assert!(seen_long && seen_receive);
    }
}

#[test]
fn a_peer_killed_while_its_messages_are_read_is_reported_in_time() {
    let mut worker = Worker::new(Config::default()).unwrap();
    let mut peer = Process::start("pour", &mut worker);
    connected(&mut worker);
    let mut killed = None;
    for message in 0.. {
        match next(&mut worker) {
            Event::Received { message, .. } => assert_eq!(message.len(), POURED),
            Event::Closed { reason, .. } => {
                assert!(lost(&reason), "{reason}");
                break;
            }
            other => panic!("{}", brief(&other)),
        }
        // The next message is on its way, or being read.
        if message == 5 {
            peer.kill();
            killed = Some(Instant::now());
        }
    }
    assert!(killed.expect("it was killed first").elapsed() < LIMIT, "not noticed in time");
}
