//! What can not be brought about from outside, or only by waiting: states of a worker set by hand.

mod clock;
mod combine;
mod datagrams;
mod devices;
#[path = "../../../tests/support/fake.rs"]
mod fake;
#[cfg(feature = "cuda")]
mod gpu;
#[cfg(feature = "cuda")]
#[path = "../../../tests/support/gpu.rs"]
mod gpu_memory;
mod held;
mod kept;
mod parts;
mod rails;
mod recovery;
mod storm;
mod trials;

use std::net::SocketAddr;
use std::task::Waker;
use std::time::{Duration, Instant};

use qpair_verbs::{Access, CompletionError, Inquiry, Local, PostError, Qpn, RemoteSlice, Rkey, WcOpcode, WcStatus};

use super::endpoint::{InFlight, OneSided, PART, Stage};
use super::memory::Target;
use super::*;
use crate::engine::{Class, Envelope};

const PATIENCE: Duration = Duration::from_secs(20);

/// What comes of a message whose queue pairs are this process's own.
fn nobody_asked() -> Inquiry {
    Inquiry::new(Waker::noop())
}

/// A worker that is connected to itself: it, the end that called, and the end that was called.
fn mirror(config: Config) -> (Worker, EndpointId, EndpointId) {
    let mut worker = Worker::new(config).unwrap();
    let (ep, accepted) = join(&mut worker, |worker, address| worker.connect(address));
    (worker, ep, accepted)
}

/// Connects a worker to itself, as `call` says: the end that called, and the end that was called.
fn join(
    worker: &mut Worker,
    call: impl FnOnce(&mut Worker, SocketAddr) -> Result<EndpointId, ConnectError>,
) -> (EndpointId, EndpointId) {
    let listener = worker.listen("127.0.0.1:0").unwrap();
    let ep = call(worker, listener.local_addr()).unwrap();
    let (mut up, mut accepted) = (false, None);
    while !up || accepted.is_none() {
        match worker.wait(Some(PATIENCE)).unwrap().expect("it connects in time") {
            Event::Connected { .. } => up = true,
            Event::Accepted { ep, .. } => accepted = Some(ep),
            other => panic!("{other:?}"),
        }
    }
    (ep, accepted.unwrap())
}

/// A worker may be made in one thread and used in another.
#[test]
fn a_worker_can_be_sent() {
    fn is_send<T: Send>() {}
    is_send::<Worker>();
}

/// Who gets ready for a sleep though there are events that it has not polled.
#[test]
fn what_comes_while_a_sleep_is_begun_is_behind_what_was_there() {
    let (mut worker, ep, _) = mirror(Config::default());
    worker.send_copy(ep, Tag(0), &[1; 8]).unwrap();
    while worker.ready.is_empty() {
        worker.take_all().unwrap();
    }
    worker.send_copy(ep, Tag(1), &[1; 8]).unwrap();
    assert_eq!(worker.arm().unwrap(), Armed::Ready);
    for number in 0..2 {
        let event = worker.wait(Some(PATIENCE)).unwrap();
        assert!(matches!(event, Some(Event::Received { tag: Tag(tag), .. }) if tag == number), "{number}: {event:?}");
    }
}

#[test]
fn operations_that_the_device_does_not_end_end_with_their_connection() {
    let (mut worker, ep, _) = mirror(Config::default());
    let endpoint = worker.endpoints.get_mut(ep).unwrap();
    let remote = RemoteSlice { addr: 0, len: 0, rkey: Rkey(0) }.into();
    let target = Target::new(Local::None, None);
    let what = |number| {
        let what = OneSided::Get { remote, calc: None };
        InFlight { number, order: 0, awaited: true, len: 0, what }
    };
    endpoint.reads.push_back(what(70));
    endpoint.reads.push_back(InFlight { what: OneSided::Put { remote, own: None }, ..what(71) });
    endpoint.reads.push_back(InFlight { what: OneSided::Combine { target, remote, pooled: 0 }, ..what(72) });
    endpoint.reads.push_back(InFlight { awaited: false, ..what(73) });
    worker.abort(ep);
    assert!(worker.endpoints.get(ep).is_some(), "the device has work of it");
    let memory = worker.domain().alloc(8).unwrap();
    let remote = RemoteSlice { addr: 0, len: 8, rkey: Rkey(0) };
    let refused = worker.get(ep, remote, memory, None).unwrap_err().error;
    assert_eq!(refused, OneSidedFailure::Closed(ep), "not to be tried again");
    worker.remove(ep.index as usize);
    let events: Vec<_> = worker.ready.drain(..).collect();
    let [
        Event::Failed { op: OpId { number: 70, .. }, returned: Returned::Withheld, .. },
        Event::Failed { op: OpId { number: 71, .. }, returned: Returned::Withheld, .. },
        Event::Failed { op: OpId { number: 72, .. }, returned: Returned::Memory(_), .. },
        Event::Closed { reason: CloseReason::Aborted, .. },
    ] = &events[..]
    else {
        panic!("{events:?}")
    };
}

#[test]
fn a_probe_that_is_not_answered_ends_the_connection_and_one_answered_late_does_not() {
    let silent = |reason: &CloseReason| matches!(reason, CloseReason::PeerLost(Lost::Silent(_)));
    let config = Config::default().keepalive(PATIENCE, Duration::from_millis(1));
    for answered in [false, true] {
        let (mut worker, ep, _) = mirror(config.clone());
        let index = ep.index as usize;
        let late = worker.now() + 10 * PATIENCE;
        let endpoint = worker.endpoints.get_mut(ep).unwrap();
        assert_eq!(endpoint.link.tick(late), crate::engine::Pulse::Probe);
        let mut looks = (0..2000).map(|look| endpoint.link.tick(late + Duration::from_micros(look)));
        assert!(looks.any(|pulse| pulse == crate::engine::Pulse::Lost));
        worker.break_off(index, CloseReason::PeerLost(Lost::Silent(PATIENCE)));
        if answered {
            worker.endpoints.get_mut(ep).unwrap().link.probe_done(true);
        }
        worker.end_broken(None);
        assert_eq!(worker.broken, 0);
        let closed = worker.ready.iter().any(|event| matches!(event, Event::Closed { reason, .. } if silent(reason)));
        assert_eq!(closed, !answered);
    }
}

#[test]
fn the_device_is_asked_about_silent_queue_pairs_only() {
    let (mut worker, ep, _) = mirror(Config::default().keepalive(Duration::MAX, Duration::MAX));
    let start = worker.now() + PATIENCE;
    let endpoint = worker.endpoints.get_mut(ep).unwrap();
    let mut asked = |millis: u64, heard: bool| {
        let now = start + Duration::from_millis(millis);
        if heard {
            endpoint.link.probe_done(true);
        }
        let pulse = endpoint.link.tick(now);
        assert!(!endpoint.has_failed(pulse, now, Duration::from_millis(100)));
        endpoint.asked == now
    };
    // With a sign of life before each look, however far apart they are.
    assert!(!asked(0, true) && !asked(1, true) && !asked(5000, true) && !asked(9000, true));
    // Silence begins.
    assert!(!asked(9001, false) && !asked(9099, false) && asked(9100, false));
    assert!(!asked(9101, false) && !asked(9199, false) && asked(9200, false) && asked(9500, false));
    assert!(!asked(9700, true) && !asked(9799, false) && asked(9800, false));
    // A probe asks at once.
    let now = start + Duration::from_millis(9801);
    assert!(!endpoint.has_failed(crate::engine::Pulse::Probe, now, Duration::from_millis(100)));
    assert_eq!(endpoint.asked, now);
}

#[test]
fn what_came_before_a_break_is_delivered_however_late_it_is_looked_at() {
    let (mut worker, ep, back) = mirror(Config::default());
    for number in 0..40 {
        worker.send_copy(ep, Tag(number), b"before").unwrap();
    }
    worker.break_off(back.index as usize, CloseReason::PeerLost(Lost::HungUp));
    let late = worker.now() + Duration::from_secs(1);
    worker.service(late, Some(Duration::ZERO)).unwrap();
    let of_back: Vec<_> =
        worker.ready.drain(..).filter(|event| !matches!(event, Event::Closed { ep: of, .. } if *of == ep)).collect();
    let [before @ .., Event::Closed { ep: closed, .. }] = &of_back[..] else { panic!("{of_back:?}") };
    assert_eq!((before.len(), *closed), (40, back), "{of_back:?}");
    for (number, event) in before.iter().enumerate() {
        assert!(matches!(event, Event::Received { tag, .. } if *tag == Tag(number as u64)), "{event:?}");
    }
}

/// The peer has all and is gone; that it has, the device is not told any more.
#[test]
fn a_peer_that_has_all_and_said_farewell_is_not_lost() {
    for parted in [true, false] {
        let (mut worker, ep, _) = mirror(Config::default());
        worker.begin_close(ep);
        let endpoint = worker.endpoints.get_mut(ep).unwrap();
        endpoint.link.on_close();
        endpoint.parted = parted;
        assert!(!endpoint.link.is_finished(), "its last word is under way");
        worker.break_off(ep.index as usize, CloseReason::PeerLost(Lost::HungUp));
        worker.end_broken(None);
        let reason = match worker.endpoints.get_mut(ep).map(|endpoint| &endpoint.stage) {
            Some(Stage::Ending { reason, .. }) => reason,
            // Nothing of it was with the device or the peer any more.
            _ => {
                let closed = worker.ready.iter().find_map(|event| match event {
                    Event::Closed { ep: of, reason } if *of == ep => Some(reason),
                    _ => None,
                });
                closed.expect("it ended")
            }
        };
        assert_eq!(matches!(reason, CloseReason::Local), parted, "{reason:?}");
    }
}

/// The hang-up travels apart from the completion of what it was about, and may be there first.
#[test]
fn a_hang_up_over_a_request_waits_for_what_the_device_says_of_it() {
    for told in [true, false] {
        let (mut worker, ep, _) = mirror(Config::default());
        let index = ep.index as usize;
        worker.endpoints.get_mut(ep).unwrap().reads.push_back(InFlight {
            number: 70,
            order: 0,
            awaited: true,
            len: 0,
            what: OneSided::Get { remote: RemoteSlice { addr: 0, len: 0, rkey: Rkey(0) }.into(), calc: None },
        });
        worker.break_off(index, CloseReason::PeerLost(Lost::HungUp));
        // Of a peer that is gone, a device may say this.
        let gone = CompletionError { qpn: Qpn(1), opcode: WcOpcode::SEND, status: WcStatus::REM_OP_ERR, vendor_err: 0 };
        worker.break_off(index, CloseReason::Completion(gone));
        worker.end_broken(None);
        assert_eq!(worker.broken, 1, "the request is under way");
        let (opcode, status) = (WcOpcode::RDMA_READ, WcStatus::REM_ACCESS_ERR);
        let error = CompletionError { qpn: Qpn(1), opcode, status, vendor_err: 0 };
        if told {
            worker.break_off(index, CloseReason::Completion(error));
            worker.end_broken(None);
        } else {
            let late = worker.now() + Duration::from_secs(1);
            worker.end_broken(Some(late));
        }
        let stage = &worker.endpoints.get_mut(ep).unwrap().stage;
        let Stage::Ending { reason, .. } = stage else { panic!("{stage:?}") };
        match reason {
            CloseReason::Completion(why) => assert!(told && *why == error),
            other => assert!(!told && matches!(other, CloseReason::PeerLost(Lost::HungUp)), "{other:?}"),
        }
    }
}

/// More completions than one batch takes, none of them an event, and a message behind them.
#[test]
fn before_it_sleeps_it_has_taken_all_that_came_before() {
    const MANY: usize = 60;
    let config = Config::default().endpoints(2 * MANY).window(8).send_depth(8).keepalive(Duration::MAX, Duration::MAX);
    let mut worker = Worker::new(config.clone()).unwrap();
    let mut peer = Worker::new(config).unwrap();
    let listener = worker.listen("127.0.0.1:0").unwrap();
    for _ in 0..MANY {
        peer.connect(listener.local_addr()).unwrap();
    }
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    while ours.len() < MANY || theirs.len() < MANY {
        ours.extend(worker.poll().unwrap().map(|event| match event {
            Event::Accepted { ep, .. } => ep,
            other => panic!("{other:?}"),
        }));
        theirs.extend(peer.poll().unwrap().map(|event| match event {
            Event::Connected { ep } => ep,
            other => panic!("{other:?}"),
        }));
    }
    for &last in &theirs {
        // Every second one is signaled.
        for &ep in &ours {
            worker.send_copy(ep, Tag(0), b"").unwrap();
            worker.send_copy(ep, Tag(0), b"").unwrap();
        }
        peer.send_copy(last, Tag(1), b"behind them").unwrap();
        let start = Instant::now();
        let now = worker.now();
        // On a network its own messages are done later, and wake it too.
        let mut event = None;
        while event.is_none() && start.elapsed() < PATIENCE {
            event = worker.sleep(now, Some(now + PATIENCE)).unwrap();
        }
        assert!(matches!(event, Some(Event::Received { .. })), "{event:?}");
        assert!(start.elapsed() < PATIENCE / 2, "it slept on it");
        drop(event);
        while worker.poll().unwrap().is_some() || peer.poll().unwrap().is_some() {}
        for _ in 0..4 * MANY {
            worker.poll().unwrap();
            peer.poll().unwrap();
        }
    }
}

/// A probe that finds no room is tried again later, not over and over.
#[test]
fn a_full_send_queue_does_not_hold_up_the_timers() {
    let (mut worker, ep, _) = mirror(Config::default().keepalive(Duration::from_millis(1), PATIENCE));
    while worker.endpoints.get_mut(ep).unwrap().link.take_slot().is_some() {}
    let late = worker.now() + PATIENCE;
    worker.service(late, Some(Duration::ZERO)).unwrap();
    worker.service(late + PATIENCE, Some(Duration::ZERO)).unwrap();
    assert!(worker.timers.next().is_some_and(|due| due > late + PATIENCE), "and it is looked after again");
}

#[test]
fn nothing_is_flushed_on_a_connection_that_ends() {
    let (mut worker, ep, _) = mirror(Config::default());
    worker.endpoints.get_mut(ep).unwrap().reads.push_back(InFlight {
        number: 70,
        order: 0,
        awaited: true,
        len: 0,
        what: OneSided::Get { remote: RemoteSlice { addr: 0, len: 0, rkey: Rkey(0) }.into(), calc: None },
    });
    worker.abort(ep);
    assert_eq!(worker.flush(ep), Err(OneSidedFailure::Closed(ep)));
}

#[test]
fn deadlines_of_operations_that_ended_are_forgotten() {
    let (mut worker, ep, _) = mirror(Config::default());
    for _ in 0..1000 {
        let send = worker.send(ep, Tag(1), &b"short"[..]).unwrap();
        worker.set_deadline(send, PATIENCE);
        let events = [(); 2].map(|()| worker.wait(Some(PATIENCE)).unwrap().unwrap());
        assert!(events.iter().any(|event| event.op() == Some(send)));
    }
    assert_eq!(worker.deadlines.next(), None);
}

/// A worker that is connected to itself, and to which a long message of tag 1 is offered, of so many bytes.
fn offered(len: usize) -> Worker {
    let (mut worker, ep, _) = mirror(Config::default().unmatched(Unmatched::HoldLong));
    worker.send(ep, Tag(1), vec![7; len]).unwrap();
    assert!(matches!(worker.wait(Some(PATIENCE)).unwrap(), Some(Event::Offered { .. })));
    worker
}

#[test]
fn a_receive_whose_payload_is_being_read_ends_in_time_and_its_memory_comes_later() {
    for len in [100_000, 3 * PART as usize] {
        its_memory_comes_later(len);
    }
}

fn its_memory_comes_later(len: usize) {
    let mut worker = offered(len);
    let memory = worker.domain().alloc(len).unwrap();
    let receive = worker.recv_into(Source::Any, Tag(1), memory, None).unwrap();
    assert!(!worker.cancel(receive), "the device has its memory");
    worker.set_deadline(receive, Duration::ZERO);
    worker.expire_operations(PATIENCE);
    match worker.ready.pop_front() {
        Some(Event::Failed { op, error: OpError::TimedOut, returned: Returned::Withheld, .. }) => {
            assert_eq!(op, receive);
        }
        other => panic!("{other:?}"),
    }
    let (mut released, mut sent) = (false, false);
    while !released || !sent {
        match worker.wait(Some(PATIENCE)).unwrap().expect("it comes in time") {
            Event::Released { op, returned: Returned::Memory(Local::Buffer(memory)) } => {
                assert!(op == receive && !released);
                assert_eq!(memory[0], 7);
                assert!(len <= PART as usize || memory[len - 1] == 0, "nobody waits for the rest");
                released = true;
            }
            Event::Sent { .. } => sent = true,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_message_that_is_read_for_a_receive_that_ends_goes_to_the_next() {
    for cancelled in [false, true] {
        let mut worker = offered(100_000);
        let receive = worker.recv(Source::Any, Tag(1)).unwrap();
        if cancelled {
            assert!(worker.cancel(receive));
        } else {
            worker.set_deadline(receive, Duration::ZERO);
            worker.expire_operations(PATIENCE);
        }
        assert!(matches!(worker.ready.pop_front(), Some(Event::Failed { op, .. }) if op == receive));
        let next = worker.recv(Source::Any, Tag(1)).unwrap();
        let matched = loop {
            match worker.wait(Some(PATIENCE)).unwrap().expect("it comes in time") {
                Event::Matched { op, message, .. } => break (op, message),
                Event::Sent { .. } => {}
                other => panic!("{other:?}"),
            }
        };
        assert!(matched.0 == next && matched.1 == vec![7; 100_000]);
    }
}

#[test]
fn streams_are_counted_for_each_connection_and_side() {
    let (mut worker, ep, accepted) = mirror(Config::default());
    let other = worker.connect(worker.endpoints.get(ep).unwrap().peer).unwrap();
    let (mut ended, mut opened) = (0, Vec::new());
    for round in 0..50 {
        // Of both sides at once: they are told apart.
        for end in [ep, accepted] {
            let stream = worker.open_one_way_stream(end).unwrap();
            worker.stream_send(stream, vec![round]).unwrap();
            worker.stream_finish(stream, &b""[..]).unwrap();
        }
    }
    while ended < 100 {
        match worker.wait(Some(PATIENCE)).unwrap().expect("they come in time") {
            Event::StreamOpened { stream } => opened.push(stream),
            Event::StreamEnded { stream, end: StreamEnd::Finished } => {
                let refused = worker.stream_send(stream, &b"back"[..]).unwrap_err();
                assert!(matches!(refused.error, SendFailure::StreamOver) && stream.is_one_way() && stream.is_peers());
                ended += 1;
            }
            _ => {}
        }
    }
    assert_eq!((worker.streams.len(), opened.len()), (0, 100), "nothing is left of them");
    // A connection with all the streams that it may have leaves the others theirs.
    let full: Vec<_> = std::iter::from_fn(|| worker.open_stream(ep).ok()).collect();
    assert_eq!(full.len(), 1 << 16);
    assert!(matches!(worker.open_one_way_stream(ep), Err(SendFailure::TooManyStreams { .. })));
    let theirs = worker.open_stream(accepted).unwrap();
    worker.open_stream(other).unwrap();
    worker.stream_send(theirs, &b"well"[..]).unwrap();
    while !matches!(worker.wait(Some(PATIENCE)).unwrap(), Some(Event::StreamData { .. })) {}
    assert!(worker.endpoints.get(ep).is_some_and(|endpoint| endpoint.broken.is_none()));
}

#[test]
fn what_was_sent_with_a_request_that_is_over_is_released_once() {
    let (mut worker, ep, _) = mirror(Config::default());
    let envelope = Envelope { class: Class::Request, port: 1, tag: 7 };
    // The connection ends while the peer is in the middle of reading it, after it answered.
    worker.send_failed(70, ep, envelope, OpError::Closed, Returned::Withheld);
    assert!(worker.ready.is_empty());
    let payload = || Returned::Payload(b"it"[..].into());
    worker.send_failed(70, ep, envelope, OpError::Closed, payload());
    assert!(matches!(worker.ready.pop_front(), Some(Event::Released { op, .. }) if op == OpId::new(70, Some(ep))));
    assert!(worker.ready.is_empty());
}
