//! Operations beyond plain messages: wildcards, probes, active messages, requests, streams, notifications, flushes, early ends.

#[path = "operations/requests.rs"]
mod requests;
mod support;

use std::time::Duration;

use qpair_transport::{
    Config, EndpointId, Event, HandlerId, Handlers, Notice, OpError, OpId, Payload, RecvFailure, Request, Returned,
    SendFailure, Source, StreamEnd, StreamId, Tag, TagPattern, Unmatched, Worker,
};
use qpair_verbs::{Access, Local};
use support::*;

/// Longer than any eager limit.
const LONG: usize = 100_000;
const SOON: Duration = Duration::from_millis(5);

fn holding() -> Pair {
    let hold = || Config::default().unmatched(Unmatched::Hold);
    Pair::with(hold(), hold())
}

/// The operation that failed, why, and what came back.
fn failed(events: Vec<Event>, of: OpId) -> Option<(OpError, Returned)> {
    events.into_iter().find_map(|event| match event {
        Event::Failed { op, error, returned, .. } if op == of => Some((error, returned)),
        _ => None,
    })
}

fn is_failed(events: &[Event], of: OpId) -> bool {
    events.iter().any(|event| matches!(event, Event::Failed { op, .. } if *op == of))
}

fn is_released(events: &[Event], of: OpId) -> bool {
    events.iter().any(|event| matches!(event, Event::Released { op, .. } if *op == of))
}

// Receives, probes

#[test]
fn a_receive_takes_any_tag_of_anyone_and_the_first_that_came() {
    let mut pair = holding();
    let other = {
        let listener = pair.b.listen("127.0.0.1:0").unwrap();
        pair.b.connect(listener.local_addr()).unwrap()
    };
    pair.until(|_, b| count(b, |event| matches!(event, Event::Connected { .. } | Event::Accepted { .. })) == 2);
    pair.b.send(other, Tag(0x20), &b"of itself"[..]).unwrap();
    let mut pair_probes = |source: Source, tags| {
        let start = std::time::Instant::now();
        loop {
            pair.a.poll().unwrap();
            assert!(pair.b.poll().unwrap().is_none_or(|event| matches!(event, Event::Sent { .. })));
            if let Some(found) = pair.b.probe(source, tags) {
                return found;
            }
            assert!(start.elapsed() < LIMIT, "nothing came");
        }
    };
    let found = pair_probes(Source::Any, TagPattern::ANY);
    assert_eq!((found.tag, found.len), (Tag(0x20), 9));
    pair.a.send(pair.ep_a, Tag(0x21), pattern(LONG, 1)).unwrap();
    pair.a.send(pair.ep_a, Tag(0x31), &b"last"[..]).unwrap();
    let of_a: Source = pair.ep_b.into();
    let start = std::time::Instant::now();
    while pair.b.probe(of_a, Tag(0x31)).is_none() {
        pair.a.poll().unwrap();
        pair.b.poll().unwrap();
        assert!(start.elapsed() < LIMIT, "nothing came");
    }
    assert_eq!(pair.b.probe(of_a, TagPattern::ANY).unwrap().len, LONG as u64);
    assert_eq!(pair.b.probe(of_a, Tag(0x20)), None);

    let ends_in_one = TagPattern::masked(Tag(1), 0xf);
    let long = pair.b.recv(Source::Any, ends_in_one).unwrap();
    let memory = pair.b.domain().alloc(64).unwrap();
    let last = pair.b.recv_into(Source::Any, ends_in_one, memory, None).unwrap();
    let first = pair.b.recv(Source::Any, TagPattern::ANY).unwrap();
    let (_, of_b) = pair.until(|_, b| b.len() >= 3);
    for event in of_b {
        match event {
            Event::Matched { op, tag, message, .. } if op == long => {
                assert!(tag == Tag(0x21) && message == pattern(LONG, 1));
            }
            Event::Matched { op, tag, message, .. } if op == first => {
                assert!(tag == Tag(0x20) && message == b"of itself");
            }
            Event::ReceivedInto { op, tag, memory: Local::Buffer(buffer), len, .. } => {
                assert_eq!((op, tag, &buffer[..len]), (last, Tag(0x31), &b"last"[..]));
            }
            other => panic!("{}", brief(&other)),
        }
    }
}

#[test]
fn what_came_can_be_received_after_the_connection_is_over() {
    let mut pair = holding();
    pair.a.send(pair.ep_a, Tag(1), &b"kept"[..]).unwrap();
    pair.a.close(pair.ep_a);
    let (_, of_b) = pair.until(|a, b| a.iter().any(is_closed) && b.iter().any(is_closed));
    assert_eq!(count(&of_b, |event| matches!(event, Event::Received { .. })), 0);
    let late = pair.b.recv(pair.ep_b, Tag(1)).unwrap();
    match next(&mut pair.b) {
        Event::Matched { op, message, .. } => assert!(op == late && message == b"kept"),
        other => panic!("{}", brief(&other)),
    }
    assert_eq!(pair.b.recv(pair.ep_b, Tag(1)), Err(RecvFailure::Closed(pair.ep_b)));
}

#[test]
fn whoever_holds_messages_holds_up_the_peer_and_nobody_else() {
    // Few bytes take as much of the window, until they are received.
    for (len, messages) in [(100, 40), (5, 100)] {
        let hold = || Config::default().unmatched(Unmatched::Hold).window(4);
        let mut pair = Pair::with(hold(), hold());
        // More than there are slots: the last ones wait at the sender.
        for number in 0..messages {
            pair.a.send(pair.ep_a, Tag(number.into()), vec![number; len]).unwrap();
        }
        pair.b.send(pair.ep_b, Tag(1), &b"the other way"[..]).unwrap();
        pair.until(|_, b| count(b, |event| matches!(event, Event::Sent { .. })) == 1);
        assert_eq!(pair.b.probe(Source::Any, Tag(u64::from(messages) - 1)), None);
        let receives: Vec<_> = (0..messages).map(|tag| pair.b.recv(Source::Any, Tag(tag.into())).unwrap()).collect();
        let is_matched = |event: &Event| matches!(event, Event::Matched { .. });
        let (_, of_b) = pair.until(|_, b| count(b, is_matched) == usize::from(messages));
        let matched = of_b.iter().filter_map(|event| match event {
            Event::Matched { op, message, .. } => Some((*op, message[len - 1])),
            _ => None,
        });
        assert!(matched.eq(receives.into_iter().zip(0..messages)));
    }
}

// Streams

/// What came of each stream, as text, and how it ended.
fn streams(events: &[Event]) -> Vec<(StreamId, Vec<u8>, Option<StreamEnd>)> {
    let mut found: Vec<(StreamId, Vec<u8>, Option<StreamEnd>)> = Vec::new();
    for event in events {
        match event {
            Event::StreamOpened { stream } => found.push((*stream, Vec::new(), None)),
            Event::StreamData { stream, message } => {
                let entry = found.iter_mut().find(|(id, ..)| id == stream).expect("it was opened");
                assert_eq!(entry.2, None, "nothing comes after the end");
                entry.1.extend_from_slice(message);
            }
            Event::StreamEnded { stream, end } => {
                found.iter_mut().find(|(id, ..)| id == stream).expect("it was opened").2 = Some(*end);
            }
            _ => {}
        }
    }
    found
}

#[test]
fn streams_are_ordered_each_by_itself_and_end_on_either_side_apart() {
    let mut pair = Pair::new();
    let ours: Vec<_> = (0..3).map(|_| pair.a.open_stream(pair.ep_a).unwrap()).collect();
    let mut expected = vec![Vec::new(); 3];
    for step in 0..30 {
        let part = pattern(if step % 7 == 0 { LONG } else { 10 * step }, step);
        expected[step % 3].extend_from_slice(&part);
        pair.a.stream_send(ours[step % 3], part).unwrap();
    }
    pair.a.stream_finish(ours[0], &b"."[..]).unwrap();
    expected[0].push(b'.');
    pair.a.stream_finish(ours[1], &[][..]).unwrap();
    pair.a.stream_reset(ours[2], 77).unwrap();
    let refused = pair.a.stream_send(ours[0], &b"more"[..]).unwrap_err();
    assert!(matches!(refused.error, SendFailure::StreamOver));
    let ended = |events: &[Event]| count(events, |event| matches!(event, Event::StreamEnded { .. }));
    let (_, of_b) = pair.until(|_, b| ended(b) == 3);
    let came = streams(&of_b);
    let ends = [StreamEnd::Finished, StreamEnd::Finished, StreamEnd::Reset(77)];
    // Which of them is heard of first is open.
    for (expected, wanted) in expected.iter().zip(ends) {
        let (stream, _, end) = came.iter().find(|(_, text, _)| text == expected).expect("all of it came");
        assert!(stream.is_peers() && stream.endpoint() == pair.ep_b);
        assert_eq!(*end, Some(wanted));
    }
    // The other half is open still.
    for (stream, ..) in &came {
        pair.b.stream_finish(*stream, &b"thanks"[..]).unwrap();
    }
    let (of_a, _) = pair.until(|a, _| ended(a) == 3);
    let thanks = of_a.iter().filter(|event| matches!(event, Event::StreamData { stream, message } if ours.contains(stream) && *message == b"thanks"));
    assert_eq!(thanks.count(), 3);
    assert!(pair.b.stream_send(came[0].0, &b"!"[..]).is_err(), "both halves are over");
}

#[test]
fn a_stream_ends_with_its_connection() {
    let mut pair = Pair::new();
    let stream = pair.a.open_stream(pair.ep_a).unwrap();
    pair.a.stream_send(stream, &b"beginning"[..]).unwrap();
    pair.until(|_, b| count(b, |event| matches!(event, Event::StreamData { .. })) == 1);
    pair.b.abort(pair.ep_b);
    pair.until(|a, b| a.iter().any(is_closed) && b.iter().any(is_closed));
    assert!(matches!(pair.a.stream_send(stream, &b"end"[..]).unwrap_err().error, SendFailure::StreamOver));
    assert!(matches!(pair.a.open_stream(pair.ep_a), Err(SendFailure::Unknown(_))));
}

// Notifications

#[test]
fn a_notified_put_is_in_place_when_the_peer_hears_of_it() {
    let mut pair = Pair::new();
    let board = pair.b.domain().expose(1 << 20, Access::REMOTE_WRITE).unwrap();
    let counter = pair.b.counter().unwrap();
    let (half, full) = (pair.b.when_counted(counter, 500).unwrap(), pair.b.when_counted(counter, 1000).unwrap());
    let mut puts = 0;
    for round in 0..10u8 {
        let mut buffer = pair.a.domain().alloc(1 << 20).unwrap();
        buffer.fill(round);
        let notice = Notice::Count { counter: counter.remote(), add: 100 };
        pair.a.put_notify(pair.ep_a, buffer, board.remote(0..1 << 20), notice).unwrap();
        puts += 1;
        let (_, of_b) = pair.until(|a, _| count(a, |event| matches!(event, Event::Put { .. })) == 1);
        for event in of_b {
            let Event::Counted { op, value, .. } = event else { panic!("{}", brief(&event)) };
            assert_eq!((op, value), if value == 500 { (half, 500) } else { (full, 1000) });
        }
        let start = std::time::Instant::now();
        while pair.b.counted(counter) != Some(puts * 100) {
            assert!(pair.b.poll().unwrap().is_none_or(|event| matches!(event, Event::Counted { .. })));
            assert!(start.elapsed() < LIMIT);
        }
        let mut last = [0; 1];
        board.read((1 << 20) - 1, &mut last).unwrap();
        assert_eq!(last[0], round);
    }
    pair.a.notify(pair.ep_a, Notice::Value(42)).unwrap();
    let (_, of_b) = pair.until(|_, b| !b.is_empty());
    assert!(matches!(&of_b[..], [Event::Notified { ep, value: 42 }] if *ep == pair.ep_b));
}

#[test]
fn a_counter_that_is_removed_fails_who_waits_and_ignores_who_adds() {
    let mut pair = Pair::new();
    let counter = pair.b.counter().unwrap();
    let wait = pair.b.when_counted(counter, 1).unwrap();
    pair.b.remove_counter(counter);
    assert!(matches!(next(&mut pair.b), Event::Failed { op, error: OpError::Cancelled, .. } if op == wait));
    let other = pair.b.counter().unwrap();
    pair.a.notify(pair.ep_a, Notice::Count { counter: counter.remote(), add: 5 }).unwrap();
    pair.a.notify(pair.ep_a, Notice::Value(1)).unwrap();
    pair.until(|_, b| b.iter().any(|event| matches!(event, Event::Notified { .. })));
    assert_eq!((pair.b.counted(counter), pair.b.counted(other)), (None, Some(0)));
    assert!(pair.b.when_counted(counter, 1).is_err());
    let timed = pair.b.when_counted(other, 1).unwrap();
    pair.b.set_deadline(timed, SOON);
    assert!(matches!(next(&mut pair.b), Event::Failed { op, error: OpError::TimedOut, .. } if op == timed));
}

// Flush, fence

#[test]
fn a_flush_tells_that_all_before_it_has_come() {
    let mut pair = Pair::new();
    let board = pair.b.domain().expose(8 * 1000, Access::REMOTE_WRITE | Access::REMOTE_ATOMIC).unwrap();
    let (ep, empty) = (pair.ep_a, pair.a.flush(pair.ep_a).unwrap());
    assert!(matches!(next(&mut pair.a), Event::Flushed { op, .. } if op == empty));
    for number in 0..1000u64 {
        let at = 8 * number as usize;
        while pair.a.put_copy(ep, &number.to_le_bytes(), board.remote(at..at + 8)).is_err() {
            pair.a.poll().unwrap();
            pair.b.poll().unwrap();
        }
    }
    pair.a.send(ep, Tag(1), pattern(LONG, 3)).unwrap();
    let flush = pair.a.flush(ep).unwrap();
    let (of_a, _) = pair.until(|a, _| a.iter().any(|event| matches!(event, Event::Flushed { op, .. } if *op == flush)));
    assert!(matches!(&of_a[..], [Event::Sent { .. }, Event::Flushed { .. }]), "{of_a:?}");
    for number in 0..1000 {
        let mut word = [0; 8];
        board.read(8 * number, &mut word).unwrap();
        assert_eq!(u64::from_le_bytes(word), number as u64);
    }
    // What was fetched before a fence is there before what comes after it begins.
    pair.a.fetch_add(ep, board.remote(0..8), 7).unwrap();
    pair.a.fence(ep).unwrap();
    pair.a.send_copy(ep, Tag(2), b"after").unwrap();
    let (_, of_b) = pair.until(|_, b| received(b).iter().any(|(tag, _)| *tag == Tag(2)));
    assert!(received(&of_b).iter().any(|(_, message)| **message == b"after"));
    let mut word = [0; 8];
    board.read(0, &mut word).unwrap();
    assert_eq!(u64::from_le_bytes(word), 7);
}

#[test]
fn a_flush_fails_with_its_connection() {
    let hold = || Config::default().unmatched(Unmatched::HoldLong);
    let mut pair = Pair::with(hold(), hold());
    let send = pair.a.send(pair.ep_a, Tag(1), pattern(LONG, 1)).unwrap();
    let (flush, other) = (pair.a.flush(pair.ep_a).unwrap(), pair.a.flush(pair.ep_a).unwrap());
    pair.until(|_, b| b.iter().any(|event| matches!(event, Event::Offered { .. })));
    assert!(pair.a.cancel(other) && !pair.a.cancel(other));
    pair.b.abort(pair.ep_b);
    let (of_a, _) = pair.until(|a, _| a.iter().any(is_closed));
    for op in [send, flush, other] {
        assert!(is_failed(&of_a, op), "{op}");
    }
    assert!(pair.a.flush(pair.ep_a).is_err());
}

// Cancelling, deadlines

#[test]
fn a_long_message_is_taken_back_until_it_is_read() {
    let hold = || Config::default().unmatched(Unmatched::HoldLong);
    let mut pair = Pair::with(hold(), hold());
    let mut buffer = pair.a.domain().alloc(LONG).unwrap();
    buffer.fill(9);
    let send = pair.a.send(pair.ep_a, Tag(1), buffer).unwrap();
    pair.until(|_, b| b.iter().any(|event| matches!(event, Event::Offered { .. })));
    assert!(pair.a.cancel(send));
    let (of_a, _) = pair.until(|a, _| is_failed(a, send));
    let (error, returned) = failed(of_a, send).unwrap();
    assert_eq!(error, OpError::Cancelled);
    assert!(matches!(returned, Returned::Payload(Payload::Buffer(buffer)) if buffer.iter().all(|&byte| byte == 9)));
    assert!(!pair.a.cancel(send));
    // The receive that is posted now takes the next.
    let memory = pair.b.domain().alloc(LONG).unwrap();
    let receive = pair.b.recv_into(pair.ep_b, Tag(1), memory, None).unwrap();
    let next = pair.a.send(pair.ep_a, Tag(1), pattern(LONG, 2)).unwrap();
    let (of_a, of_b) = pair.until(|a, b| !sent(a).is_empty() && !b.is_empty());
    assert_eq!(sent(&of_a)[0].0, next);
    assert!(matches!(&of_b[..], [Event::ReceivedInto { op, .. }] if *op == receive));
    assert!(!pair.a.cancel(next) && !pair.b.cancel(receive), "they are over");
}

/// There is no memory for it as long as the application keeps another.
#[test]
fn what_is_behind_a_long_message_comes_when_that_is_taken_back() {
    let mut pair = Pair::with(Config::default(), Config::default().pool_limit(128 << 10));
    pair.a.send(pair.ep_a, Tag(1), pattern(40_000, 1)).unwrap();
    let (_, kept) = pair.until(|_, b| b.len() == 1);
    let long = pair.a.send(pair.ep_a, Tag(7), pattern(LONG, 2)).unwrap();
    pair.a.send(pair.ep_a, Tag(7), pattern(40_000, 3)).unwrap();
    for _ in 0..20_000 {
        pair.a.poll().unwrap();
        assert!(pair.b.poll().unwrap().is_none());
    }
    assert!(pair.a.cancel(long));
    let (_, of_b) = pair.until(|_, b| b.len() == 1);
    assert!(received(&of_b)[0].1 == &pattern(40_000, 3));
    assert!(received(&kept)[0].1 == &pattern(40_000, 1));
}

#[test]
fn a_send_whose_time_is_over_fails_and_its_memory_comes_later() {
    let hold = || Config::default().unmatched(Unmatched::HoldLong);
    let mut pair = Pair::with(hold(), hold());
    let send = pair.a.send(pair.ep_a, Tag(1), pair.a.domain().alloc(LONG).unwrap()).unwrap();
    pair.a.set_deadline(send, SOON);
    pair.a.set_deadline(send, LIMIT);
    // The peer takes no part for now.
    let mut of_a: Vec<Event> = vec![next(&mut pair.a)];
    assert!(is_failed(&of_a, send));
    of_a.extend(pair.until(|a, _| is_released(a, send)).0);
    let (error, returned) = failed(of_a, send).unwrap();
    assert!(error == OpError::TimedOut && matches!(returned, Returned::Withheld));
}

#[test]
fn what_waits_is_taken_back_at_once() {
    let mut pair = Pair::with(Config::default().window(2), Config::default().window(2));
    let memory = pair.a.domain().alloc(100).unwrap();
    let receive = pair.a.recv_into(pair.ep_a, Tag(1), memory, None).unwrap();
    let any = pair.a.recv(Source::Any, Tag(2)).unwrap();
    assert!(pair.a.cancel(receive) && pair.a.cancel(any) && !pair.a.cancel(any));
    let events = [next(&mut pair.a), next(&mut pair.a)];
    assert!(
        matches!(&events[0], Event::Failed { op, returned: Returned::Memory(Local::Buffer(_)), .. } if *op == receive)
    );
    assert!(matches!(&events[1], Event::Failed { op, error: OpError::Cancelled, .. } if *op == any));
    // Of these, some wait for room at the peer.
    let sends: Vec<_> = (0..8).map(|number| pair.a.send(pair.ep_a, Tag(3), vec![number; 9]).unwrap()).collect();
    assert!(pair.a.cancel(sends[7]) && pair.a.cancel(sends[5]) && !pair.a.cancel(sends[0]));
    let (_, of_b) = pair.until(|_, b| received(b).len() == 6);
    let numbers: Vec<_> = received(&of_b).iter().map(|(_, message)| message[0]).collect();
    assert_eq!(numbers, [0, 1, 2, 3, 4, 6]);
}

/// Nobody of a connection that is not there can be cancelled, nor anything twice.
#[test]
fn operations_of_ended_connections_are_over() {
    let mut pair = Pair::new();
    let (ep, stale): (EndpointId, _) = (pair.ep_a, pair.a.flush(pair.ep_a).unwrap());
    next(&mut pair.a);
    pair.a.abort(ep);
    assert!(is_closed(&next(&mut pair.a)));
    assert!(!pair.a.cancel(stale));
    pair.a.set_deadline(stale, Duration::ZERO);
    assert!(pair.a.wait(Some(SOON)).unwrap().is_none());
}
