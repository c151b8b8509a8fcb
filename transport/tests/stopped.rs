//! A peer in another process that is stopped, or killed, in the middle of reading this one's memory: nothing waits for it,
//! and nothing that it may still touch is handed out.

mod support;

use std::time::{Duration, Instant};

use qpair_transport::{
    CloseReason, Config, EndpointId, Event, OneSidedFailure, OpError, Returned, Tag, Unmatched, Worker,
};
use qpair_verbs::{Access, ExposedRegion, RemoteSlice};
use rustix::process::{Pid, Signal, WaitOptions, kill_process};
use support::*;

/// Long enough that a process that reads it again and again is found in the middle.
const LONG: usize = 64 << 20;

#[test]
#[ignore = "needs a test below to start it, as its other process"]
fn as_a_peer() {
    let Some((_, address)) = role() else { return };
    let mut worker = Worker::new(Config::default().unmatched(Unmatched::HoldLong)).unwrap();
    worker.connect(address.as_str()).unwrap();
    let ep = connected(&mut worker);
    let Event::Received { message, .. } = next(&mut worker) else { panic!("no name of memory") };
    let remote: RemoteSlice = serde_json::from_slice(&message).unwrap();
    let mut memory = worker.domain().alloc(LONG).unwrap();
    let mut told = false;
    loop {
        worker.get(ep, remote, memory, None).unwrap();
        memory = loop {
            match next(&mut worker) {
                Event::Got { memory: qpair_verbs::Local::Buffer(memory), .. } => break memory,
                // The test is over.
                Event::Closed { .. } | Event::Failed { .. } => return,
                _ => {}
            }
        };
        if !told {
            worker.send_copy(ep, Tag(1), b"reading").unwrap();
            told = true;
        }
    }
}

/// A peer that reads a region of `worker` without end.
fn reader(worker: &mut Worker) -> (Process, EndpointId, ExposedRegion) {
    let region = worker.domain().expose(LONG, Access::REMOTE_READ).unwrap();
    let peer = Process::start("read", worker);
    let ep = connected(worker);
    worker.send(ep, Tag(0), serde_json::to_vec(&region.remote(0..LONG)).unwrap()).unwrap();
    assert!(matches!(next(worker), Event::Sent { .. }));
    assert!(matches!(next(worker), Event::Received { tag: Tag(1), .. }));
    (peer, ep, region)
}

fn signal(peer: &Process, signal: Signal) {
    kill_process(Pid::from_child(&peer.0), signal).unwrap();
}

/// Stops it in the middle of an access: where it is between two, once more.
fn stop(peer: &Process, mut probe: ExposedRegion) -> ExposedRegion {
    let start = Instant::now();
    loop {
        signal(peer, Signal::STOP);
        // It has stopped when this returns, inside or not.
        rustix::process::waitpid(Some(Pid::from_child(&peer.0)), WaitOptions::UNTRACED).unwrap();
        match probe.try_revoke() {
            Err(inside) => return inside.region,
            Ok(buffer) => probe = buffer.expose(Access::REMOTE_READ).unwrap(),
        }
        signal(peer, Signal::CONT);
        std::thread::yield_now();
        assert!(start.elapsed() < LIMIT, "it is never inside");
    }
}

/// A worker of which a peer is stopped in the middle of reading, with a connection to itself.
struct Beside {
    worker: Worker,
    ep: EndpointId,
    peer: Process,
    _regions: [ExposedRegion; 2],
}

fn beside_a_stopped_peer() -> Beside {
    let mut worker = Worker::new(Config::default()).unwrap();
    let (peer, _, region) = reader(&mut worker);
    let listener = worker.listen("127.0.0.1:0").unwrap();
    let ep = worker.connect(listener.local_addr()).unwrap();
    for _ in 0..2 {
        connected(&mut worker);
    }
    let probe = worker.domain().expose(64, Access::REMOTE_READ).unwrap();
    let probe = stop(&peer, probe);
    Beside { worker, ep, peer, _regions: [region, probe] }
}

/// Polls once; no poll may wait for a stopped peer, which would take three seconds.
fn poll(worker: &mut Worker) -> Option<Event> {
    let start = Instant::now();
    let event = worker.poll().unwrap();
    assert!(start.elapsed() < Duration::from_secs(2), "a poll took {:?}", start.elapsed());
    event
}

#[test]
fn a_peer_stopped_in_the_middle_of_reading_holds_nobody_else_up() {
    let Beside { mut worker, ep, peer, _regions } = beside_a_stopped_peer();
    for message in 0..5 {
        let buffer = worker.domain().alloc(100_000).unwrap();
        worker.send(ep, Tag(message), buffer).unwrap();
    }
    let (mut received, mut sent) = (0, 0);
    let start = Instant::now();
    while received < 5 {
        match poll(&mut worker) {
            Some(Event::Received { message, .. }) => received += usize::from(message.len() == 100_000),
            Some(Event::Sent { .. }) => sent += 1,
            Some(other) => panic!("{}", brief(&other)),
            None => {}
        }
        assert!(start.elapsed() < LIMIT, "{received} received");
    }
    // Whom it is reading can not be told: what it might be is handed out when it goes on.
    signal(&peer, Signal::CONT);
    while sent < 5 {
        match poll(&mut worker) {
            Some(Event::Sent { .. }) => sent += 1,
            Some(other) => panic!("{}", brief(&other)),
            None => {}
        }
        assert!(start.elapsed() < LIMIT, "{sent} sent");
    }
}

/// The peers have read all of it, but another might be in the middle of reading it.
#[test]
fn a_send_of_which_another_peer_keeps_the_memory_ends_in_time_and_before_its_connection() {
    let Beside { mut worker, ep, peer, _regions } = beside_a_stopped_peer();
    let sends = [(); 2].map(|()| {
        let buffer = worker.domain().alloc(100_000).unwrap();
        let send = worker.send(ep, Tag(0), buffer).unwrap();
        assert!(matches!(next(&mut worker), Event::Received { .. }));
        send
    });
    let start = Instant::now();
    let until = |worker: &mut Worker, what: &str| loop {
        match poll(worker) {
            Some(event) => break event,
            None => assert!(start.elapsed() < LIMIT, "{what}"),
        }
    };
    worker.set_deadline(sends[0], Duration::from_millis(1));
    let failed = |event: Event, send, of| match event {
        Event::Failed { op, error, returned: Returned::Withheld, .. } => assert!(op == send && error == of, "{error}"),
        other => panic!("{}", brief(&other)),
    };
    failed(until(&mut worker, "no end in time"), sends[0], OpError::TimedOut);
    assert!(!worker.cancel(sends[0]) && !worker.cancel(sends[1]));
    worker.close(ep);
    let mut ended = false;
    for _ in 0..3 {
        match until(&mut worker, "it does not close") {
            Event::Closed { ep: of, .. } => assert!(ended || of != ep),
            other => {
                failed(other, sends[1], OpError::Closed);
                ended = true;
            }
        }
    }
    signal(&peer, Signal::CONT);
    let mut released = [(); 2].map(|()| match until(&mut worker, "the memory does not come back") {
        Event::Released { op, returned: Returned::Payload(payload) } => {
            assert_eq!(payload.len(), 100_000);
            op
        }
        other => panic!("{}", brief(&other)),
    });
    released.sort_by_key(|op| *op != sends[0]);
    assert_eq!(released, sends);
}

#[test]
fn memory_that_a_stopped_peer_may_be_reading_is_withheld() {
    let mut worker = Worker::new(Config::default()).unwrap();
    let (mut peer, ep, region) = reader(&mut worker);
    let buffer = worker.domain().alloc(LONG).unwrap();
    let send = worker.send(ep, Tag(2), buffer).unwrap();
    let probe = worker.domain().expose(64, Access::REMOTE_READ).unwrap();
    let _probe = stop(&peer, probe);
    worker.abort(ep);
    let memory = worker.domain().alloc(8).unwrap();
    let refused = worker.get(ep, region.remote(0..8), memory, None).unwrap_err().error;
    assert_eq!(refused, OneSidedFailure::Closed(ep), "trying again does not help");
    let start = Instant::now();
    let mut events = Vec::new();
    while events.len() < 2 {
        events.extend(poll(&mut worker));
        assert!(start.elapsed() < LIMIT, "{}", events.len());
    }
    assert!(
        matches!(events[0], Event::Failed { op, returned: Returned::Withheld, .. } if op == send),
        "{}",
        brief(&events[0])
    );
    assert!(matches!(events[1], Event::Closed { reason: CloseReason::Aborted, .. }), "{}", brief(&events[1]));
    peer.kill();
}

/// However much of it the peer might be inside of.
#[test]
fn dropping_a_worker_waits_once_for_a_peer_that_is_stopped_in_the_middle_of_reading() {
    let mut worker = Worker::new(Config::default()).unwrap();
    let (peer, ep, _region) = reader(&mut worker);
    for message in 0..10 {
        let buffer = worker.domain().alloc(1 << 20).unwrap();
        worker.send(ep, Tag(10 + message), buffer).unwrap();
    }
    let probe = worker.domain().expose(64, Access::REMOTE_READ).unwrap();
    let _probe = stop(&peer, probe);
    let start = Instant::now();
    drop(worker);
    // Three seconds for each would be half a minute.
    assert!(start.elapsed() < LIMIT, "{:?}", start.elapsed());
}

#[test]
fn a_peer_killed_in_the_middle_of_reading_is_reported_in_time_and_memory_comes_back() {
    let mut worker = Worker::new(Config::default()).unwrap();
    let (mut peer, ep, region) = reader(&mut worker);
    let buffer = worker.domain().alloc(LONG).unwrap();
    let send = worker.send(ep, Tag(2), buffer).unwrap();
    let probe = worker.domain().expose(64, Access::REMOTE_READ).unwrap();
    let probe = stop(&peer, probe);
    peer.kill();
    let start = Instant::now();
    let mut events = Vec::new();
    while !events.iter().any(is_closed) {
        events.extend(poll(&mut worker));
        assert!(start.elapsed() < LIMIT, "not noticed in time");
    }
    assert!(
        matches!(&events[..], [Event::Failed { op, returned: Returned::Payload(payload), .. }, Event::Closed { .. }]
            if *op == send && payload.len() == LONG as u64),
        "{}",
        brief(&events[0])
    );
    assert!(probe.try_revoke().is_ok());
    assert!(region.try_revoke().is_ok());
}
