//! Streams that go wrong: parts that are taken back or lost, reasons that are too large.

mod support;

use qpair_transport::{Config, Event, Message, OpId, SendFailure, StreamEnd, StreamId, Tag};
use support::*;

/// Longer than any eager limit.
const LONG: usize = 100_000;

/// A pair with so many slots for each other.
fn with_window(window: u32) -> Pair {
    Pair::with(Config::default().window(window), Config::default().window(window))
}

/// A pair of which one side has no memory for a long part, as long as the message is kept: the part waits, unread.
fn with_full_pool() -> (Pair, Message) {
    let mut pair = Pair::with(Config::default(), Config::default().pool_limit(1 << 17));
    pair.a.send(pair.ep_a, Tag(1), pattern(LONG, 0)).unwrap();
    let (_, of_b) = pair.until(|a, b| !a.is_empty() && !b.is_empty());
    let kept = received(&of_b)[0].1.clone();
    (pair, kept)
}

fn is_failed(events: &[Event], of: OpId) -> bool {
    events.iter().any(|event| matches!(event, Event::Failed { op, .. } if *op == of))
}

fn ends(events: &[Event]) -> Vec<StreamEnd> {
    let end = |event: &Event| match event {
        Event::StreamEnded { end, .. } => Some(*end),
        _ => None,
    };
    events.iter().filter_map(end).collect()
}

fn text(events: &[Event]) -> Vec<u8> {
    let mut text = Vec::new();
    for event in events {
        if let Event::StreamData { message, .. } = event {
            assert!(ends(events).is_empty() || message.len() < LONG, "nothing comes after a gap");
            text.extend_from_slice(message);
        }
    }
    text
}

fn open(pair: &mut Pair) -> StreamId {
    pair.a.open_stream(pair.ep_a).unwrap()
}

#[test]
fn a_stream_of_which_a_queued_part_is_taken_back_is_broken_for_both() {
    let mut pair = with_window(2);
    let stream = open(&mut pair);
    // The peer has two slots: the others wait.
    let parts: Vec<_> = (0..6).map(|number| pair.a.stream_send(stream, vec![number; 3]).unwrap()).collect();
    assert!(pair.a.cancel(parts[4]) && !pair.a.cancel(parts[4]), "once");
    let refused = pair.a.stream_send(stream, &b"more"[..]).unwrap_err();
    assert!(matches!(refused.error, SendFailure::StreamBroken));
    let (of_a, of_b) = pair.until(|a, b| !ends(b).is_empty() && sent(a).len() == 5);
    assert!(is_failed(&of_a, parts[4]));
    assert_eq!((text(&of_b), ends(&of_b)), (vec![0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3], vec![StreamEnd::Broken]));
    // The connection goes on, and the number of the stream is no violation.
    let other = open(&mut pair);
    pair.a.stream_finish(other, &b"well"[..]).unwrap();
    let (of_a, of_b) = pair.until(|_, b| !ends(b).is_empty());
    assert_eq!((text(&of_b), ends(&of_b)), (b"well".to_vec(), vec![StreamEnd::Finished]));
    assert_eq!(sent(&of_a).len(), 1, "what stands for lost parts is nobody's operation");
}

#[test]
fn a_stream_whose_last_part_is_taken_back_does_not_end_as_if_finished() {
    let mut pair = with_window(2);
    let stream = open(&mut pair);
    let parts: Vec<_> = (0..4).map(|number| pair.a.stream_send(stream, vec![number]).unwrap()).collect();
    let last = pair.a.stream_finish(stream, &b"last"[..]).unwrap();
    assert!(pair.a.cancel(last));
    let (of_a, of_b) = pair.until(|a, b| !ends(b).is_empty() && sent(a).len() == parts.len());
    assert!(is_failed(&of_a, last));
    assert_eq!((text(&of_b), ends(&of_b)), (vec![0, 1, 2, 3], vec![StreamEnd::Broken]));
}

#[test]
fn a_stream_of_which_an_offered_part_is_taken_back_is_broken_for_both() {
    let (mut pair, _kept) = with_full_pool();
    let stream = open(&mut pair);
    pair.a.stream_send(stream, &b"before"[..]).unwrap();
    let part = pair.a.stream_send(stream, pattern(LONG, 1)).unwrap();
    let after = pair.a.stream_send(stream, pattern(10, 2)).unwrap();
    assert!(pair.a.cancel(part));
    let (of_a, of_b) = pair.until(|a, b| !ends(b).is_empty() && is_failed(a, part));
    assert!(sent(&of_a).iter().any(|(op, _)| *op == after), "it was sent");
    assert_eq!((text(&of_b), ends(&of_b)), (b"before".to_vec(), vec![StreamEnd::Broken]));
    let refused = pair.a.stream_finish(stream, &b"the end"[..]).unwrap_err();
    assert!(matches!(refused.error, SendFailure::StreamBroken));
}

#[test]
fn a_stream_of_which_a_part_is_lost_with_the_connection_does_not_end_as_if_finished() {
    let (mut pair, _kept) = with_full_pool();
    let stream = open(&mut pair);
    pair.a.stream_send(stream, &b"before"[..]).unwrap();
    pair.a.stream_send(stream, pattern(LONG, 1)).unwrap();
    pair.a.stream_finish(stream, &b"the end"[..]).unwrap();
    // The end went behind the offer, and is there when this is: an abort may overtake what was sent last.
    pair.a.send(pair.ep_a, Tag(1), &b"all is there"[..]).unwrap();
    let came = |events: &[Event]| events.iter().any(|event| matches!(event, Event::Received { .. }));
    let (_, first) = pair.until(|_, b| came(b));
    pair.a.abort(pair.ep_a);
    let (_, of_b) = pair.until(|_, b| b.iter().any(is_closed));
    assert_eq!((text(&first), text(&of_b)), (b"before".to_vec(), Vec::new()));
    assert_eq!(ends(&of_b), [StreamEnd::Broken]);
}

#[test]
fn a_reason_that_has_no_room_is_refused() {
    let mut pair = Pair::new();
    let stream = open(&mut pair);
    let refused = pair.a.stream_reset(stream, 1 << 14).unwrap_err();
    assert!(matches!(refused.error, SendFailure::Reason { reason: 0x4000, limit: 0x4000 }));
    pair.a.stream_reset(stream, (1 << 14) - 1).unwrap();
    let (_, of_b) = pair.until(|_, b| !ends(b).is_empty());
    assert_eq!(ends(&of_b), [StreamEnd::Reset((1 << 14) - 1)]);
}
