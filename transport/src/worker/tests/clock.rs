//! Clocks that jump: the host was suspended, or the process stopped, and what was to be done meanwhile is all due at once.

use qpair_verbs::QueuePair;

use super::*;
use crate::worker::service::STRIDE;

const HOUR: Duration = Duration::from_secs(3600);

/// What comes within some polls.
fn events(worker: &mut Worker) -> Vec<Event> {
    (0..2000).filter_map(|_| worker.poll().unwrap()).collect()
}

#[test]
fn a_jump_alone_ends_no_connection_whose_peer_answers() {
    let (mut worker, ep, back) = mirror(Config::default());
    // The path is measured by then, with probes too.
    assert!(events(&mut worker).is_empty());
    let now = worker.now();
    // Questions that are under way when the clock jumps: the answer takes its time, as it does over a network.
    for end in [ep, back] {
        let endpoint = worker.endpoints.get_mut(end).unwrap();
        endpoint.link.tick(now);
        assert_eq!(endpoint.link.tick(now + HOUR), crate::engine::Pulse::Probe);
        endpoint.arrivals = endpoint.qp.as_ref().and_then(QueuePair::arrivals);
    }
    for hours in 2..5 {
        worker.service(now + hours * HOUR, Some(Duration::ZERO)).unwrap();
        let events = events(&mut worker);
        assert!(worker.broken == 0 && events.is_empty(), "{events:?}");
    }
    for end in [ep, back] {
        worker.endpoints.get_mut(end).unwrap().link.probe_done(true);
    }
    worker.service(now + 5 * HOUR, Some(Duration::ZERO)).unwrap();
    worker.send_copy(ep, Tag(1), b"as before").unwrap();
    let event = worker.wait(Some(PATIENCE)).unwrap();
    assert!(matches!(&event, Some(Event::Received { message, .. }) if *message == *b"as before"), "{event:?}");
}

#[test]
fn deadlines_that_a_jump_makes_due_end_once() {
    let (mut worker, _, back) = mirror(Config::default());
    let ops: Vec<_> = (0..3).map(|tag| worker.recv(back, Tag(tag)).unwrap()).collect();
    for &op in &ops {
        worker.set_deadline(op, HOUR);
    }
    let now = worker.now();
    worker.service(now, Some(Duration::ZERO)).unwrap();
    assert!(events(&mut worker).is_empty(), "none is due");
    for hours in 2..5 {
        worker.service(now + hours * HOUR, Some(Duration::ZERO)).unwrap();
    }
    let mut ended: Vec<_> = events(&mut worker)
        .into_iter()
        .map(|event| match event {
            Event::Failed { op, error: OpError::TimedOut, .. } => op,
            other => panic!("{other:?}"),
        })
        .collect();
    ended.sort_by_key(|op| op.number);
    assert_eq!(ended, ops);
}

/// Each connection is looked at once for all the times that went by.
#[test]
fn a_jump_lets_one_probe_go_to_each_peer() {
    let (mut worker, ep, back) = mirror(Config::default());
    // Whatever was asked is answered, and the answers were seen.
    let now = worker.now() + PATIENCE;
    for millis in [0, 2, 4] {
        worker.service(now + Duration::from_millis(millis), Some(Duration::ZERO)).unwrap();
        assert!(events(&mut worker).is_empty());
    }
    let posted = |worker: &mut Worker| [ep, back].map(|end| worker.endpoints.get_mut(end).unwrap().probed);
    let before = posted(&mut worker);
    worker.service(now + HOUR, Some(Duration::ZERO)).unwrap();
    let after = posted(&mut worker);
    assert!(after[0] > before[0] && after[1] > before[1]);
    for millis in 0..100 {
        worker.service(now + HOUR + Duration::from_millis(millis), Some(Duration::ZERO)).unwrap();
    }
    assert_eq!(posted(&mut worker), after);
}

#[test]
fn a_jump_alone_gives_up_no_connection_that_recovers() {
    use super::recovery::{end, two};
    let config = || Config::default().recovery(HOUR);
    // The peer is not polled, from here on.
    let (mut worker, ep, _peer, _) = two(config(), config());
    worker.endpoints.get_mut(ep).unwrap().qp.as_mut().unwrap().to_error().unwrap();
    let recovers = |worker: &Worker| worker.explain(ep).is_some_and(|now| now.stage == "recovering");
    while !recovers(&worker) {
        assert!(worker.poll().unwrap().is_none());
    }
    let now = worker.now();
    let mut jumps = 0;
    while recovers(&worker) {
        jumps += 1;
        worker.service(now + jumps * 24 * HOUR, Some(Duration::ZERO)).unwrap();
    }
    assert_eq!(jumps, 8, "a clock that does nothing but jump is believed in the end");
    assert!(matches!(end(&mut worker), CloseReason::PeerLost(_)));
}

#[test]
fn a_jump_alone_ends_no_connection_that_closes() {
    use super::recovery::two;
    let (mut worker, ep, mut peer, _) = two(Config::default(), Config::default());
    worker.close(ep);
    let now = worker.now();
    worker.service(now + HOUR, Some(Duration::ZERO)).unwrap();
    assert!(events(&mut worker).is_empty(), "the peer had no time to answer");
    let begin = Instant::now();
    let mut ends = [None, None];
    while ends.iter().any(Option::is_none) {
        assert!(begin.elapsed() < PATIENCE, "{ends:?}");
        for (worker, end) in [&mut worker, &mut peer].into_iter().zip(&mut ends) {
            if let Some(Event::Closed { reason, .. }) = worker.poll().unwrap() {
                *end = Some(reason);
            }
        }
    }
    assert!(ends.iter().flatten().all(CloseReason::is_orderly), "{ends:?}");
    // Nor is one closed for ever whose peer does nothing.
    let (mut worker, ep, _peer, _) = two(Config::default(), Config::default());
    worker.close(ep);
    let now = worker.now();
    let ended = (1..=20).find_map(|hours| {
        worker.service(now + hours * HOUR, Some(Duration::ZERO)).unwrap();
        events(&mut worker).pop()
    });
    assert!(matches!(ended, Some(Event::Closed { reason: CloseReason::CloseTimedOut(_), .. })), "{ended:?}");
}

/// The program did something else for a second, while the device flushed a connection that had ended.
#[test]
fn memory_that_came_back_while_nobody_polled_is_handed_out() {
    let (mut worker, ep, _) = mirror(Config::default());
    let region = worker.domain().expose(8, Access::REMOTE_ALL).unwrap();
    let op = worker.get(ep, region.remote(0..8), worker.domain().alloc(8).unwrap(), None).unwrap();
    worker.abort(ep);
    assert!(worker.endpoints.get(ep).is_some(), "the device has work of it");
    let now = worker.now();
    worker.service(now + HOUR, Some(Duration::ZERO)).unwrap();
    let ended: Vec<_> = events(&mut worker).into_iter().filter(|event| event.op() == Some(op)).collect();
    let is_back = matches!(&ended[..], [Event::Got { .. } | Event::Failed { returned: Returned::Memory(_), .. }]);
    assert!(is_back, "{ended:?}");
}

/// Those that were ready, and those that are taken from the queue.
#[test]
fn notifications_keep_their_windows_wherever_they_are_taken() {
    let (mut worker, ep, _) = mirror(Config::default());
    worker.keep_notices();
    worker.lend_short(true);
    for round in 0..3 {
        for value in 0..4 {
            worker.notify(ep, Notice::Value(value)).unwrap();
        }
        let start = Instant::now();
        while worker.ready.len() < 4 {
            assert!(start.elapsed() < PATIENCE, "they do not come");
            worker.take_all().unwrap();
        }
        for value in 0..4 {
            let event = worker.poll().unwrap();
            assert!(matches!(event, Some(Event::Notified { .. })), "{round}, {value}: {event:?}");
            assert!(worker.last_notice().is_some(), "{round}, {value}");
        }
    }
}

/// The program may take its time over each of them.
#[test]
fn few_events_go_by_after_idling_without_a_look_at_the_clock() {
    let (mut worker, ep, _) = mirror(Config::default());
    assert!(events(&mut worker).is_empty());
    worker.countdown = STRIDE;
    let (looked, mut seen) = (worker.pace.now(), 0);
    while worker.pace.now() == looked {
        // There may be no room for it.
        let _ = worker.send_copy(ep, Tag(1), b"one of many");
        seen += usize::from(worker.poll().unwrap().is_some());
        assert!(seen <= 64);
    }
    assert!(seen > 0);
}

/// Looks at a queue in between are no polls: the next look at the clock comes as soon as without them.
#[test]
fn what_is_taken_in_between_puts_no_look_at_the_clock_off() {
    let (mut worker, ..) = mirror(Config::default());
    events(&mut worker);
    for countdown in [1, 5, STRIDE] {
        worker.countdown = countdown;
        (0..3).for_each(|_| worker.take_all().unwrap());
        assert_eq!(worker.countdown, countdown);
    }
}
