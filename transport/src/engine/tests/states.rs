//! One state, one event, one expected outcome.

use std::time::Duration;

use qpair_verbs::{RemoteSlice, Rkey};

use super::pair::{A, B, Pair, Way};
use crate::engine::*;

type TestLink = Link<u64, (), u64>;

fn opening(window: u32) -> TestLink {
    Link::new(&LinkConfig {
        window,
        depth: 16,
        epoch: 1,
        unmatched: Unmatched { hold: false, longest: 1 << 20 },
        offers: 2,
        keepalive: Duration::from_secs(1),
        detection: Duration::from_secs(1),
    })
}

fn established(credits: u32) -> TestLink {
    let mut link = opening(4);
    link.open(&PeerTerms { epoch: 2, credits }, Duration::ZERO).unwrap();
    link
}

fn header(kind: Kind, sequence: u32) -> Header {
    Header { kind, epoch: 2, sequence, credits: 8, tag: 5, length: 3 }
}

// Opening

#[test]
fn opening_queues_and_flushes_when_open() {
    let mut link = opening(4);
    assert_eq!(link.eager(1, 1), Err(Blocked::Later));
    link.enqueue(Pending { op: 9, tag: 1, len: 1, remote: None, payload: 77 });
    assert_eq!(link.next_step(), None);
    link.open(&PeerTerms { epoch: 2, credits: 1 }, Duration::ZERO).unwrap();
    assert!(matches!(link.next_step(), Some(Step::Eager { op: 9, payload: 77, .. })));
    assert_eq!(link.next_step(), None);
}

#[test]
fn opening_and_closed_flushes_then_closes() {
    let mut link = opening(4);
    link.enqueue(Pending { op: 9, tag: 1, len: 1, remote: None, payload: 77 });
    link.close();
    assert_eq!(link.eager(1, 1), Err(Blocked::Closed));
    link.open(&PeerTerms { epoch: 2, credits: 1 }, Duration::ZERO).unwrap();
    assert!(matches!(link.next_step(), Some(Step::Eager { op: 9, .. })));
    let Some(Step::Control(frame)) = link.next_step() else { panic!("no CLOSE") };
    assert_eq!(frame.header.kind, Kind::Close);
    assert!(frame.work.signal);
}

// Open

#[test]
fn open_sends_until_credits_are_used_up() {
    let mut link = established(2);
    let first = link.eager(7, 3).unwrap().header;
    assert_eq!((first.sequence, first.epoch, first.tag, first.length, first.credits), (0, 1, 7, 3, 4));
    assert_eq!(link.eager(7, 3).unwrap().header.sequence, 1);
    assert_eq!(link.eager(7, 3), Err(Blocked::Later));
    let credit = Header { credits: 3, ..header(Kind::Credit, 0) };
    link.accept(&credit).unwrap();
    assert!(link.eager(7, 3).is_ok());
    assert_eq!(link.eager(7, 3), Err(Blocked::Later));
}

#[test]
fn open_sends_nothing_past_what_is_queued() {
    let mut link = established(1);
    link.eager(1, 1).unwrap();
    link.enqueue(Pending { op: 1, tag: 1, len: 1, remote: None, payload: 1 });
    link.accept(&header(Kind::Credit, 0)).unwrap();
    assert_eq!(link.eager(1, 1), Err(Blocked::Later), "would overtake");
    assert!(link.next_step().is_some());
    assert!(link.eager(1, 1).is_ok());
}

#[test]
fn open_stops_at_the_depth_of_the_send_queue() {
    let mut link = established(100);
    let frames: Vec<_> = std::iter::from_fn(|| link.eager(1, 1).ok()).collect();
    assert_eq!(frames.len(), 16);
    assert!(link.credit().is_none());
    link.retire(frames[7].work.number);
    assert_eq!(std::iter::from_fn(|| link.eager(1, 1).ok()).count(), 8);
}

#[test]
fn open_refuses_what_no_peer_sends() {
    let cases = [
        (Header { epoch: 3, ..header(Kind::Eager, 0) }, Violation::Epoch { expected: 2, got: 3 }),
        (header(Kind::Eager, 1), Violation::Sequence { expected: 0, got: 1 }),
        (Header { credits: u32::MAX, ..header(Kind::Credit, 0) }, Violation::Credits { said: u32::MAX, used: 0 }),
    ];
    for (header, violation) in cases {
        assert_eq!(established(1).accept(&header), Err(violation));
    }
    let mut link = established(1);
    for sequence in 0..4 {
        link.accept(&header(Kind::Eager, sequence)).unwrap();
    }
    assert_eq!(link.accept(&header(Kind::Eager, 4)), Err(Violation::NoCredit));
    assert!(matches!(established(1).on_finished(&header(Kind::Finished, 0)), Err(Violation::Finished { id: 5 })));
}

#[test]
fn open_returns_credits_with_a_message_of_their_own_only_when_due() {
    let mut link = established(8);
    for sequence in 0..2 {
        link.accept(&header(Kind::Eager, sequence)).unwrap();
    }
    link.give_slot();
    assert!(link.credit().is_none());
    link.give_slot();
    assert_eq!(link.credit().unwrap().header.credits, 6);
    assert!(link.credit().is_none());
    link.accept(&header(Kind::Eager, 2)).unwrap();
    link.give_slot();
    assert_eq!(link.eager(1, 1).unwrap().header.credits, 7, "piggybacked");
}

#[test]
fn open_gives_the_slots_of_offers_back_while_few_wait() {
    let mut link = established(8);
    let offer = |id| Offer { addr: 0, rkey: Rkey(1), id };
    for id in 0..4 {
        link.accept(&header(Kind::ReadyToSend, id)).unwrap();
        assert_eq!(link.on_offer(&header(Kind::ReadyToSend, id), offer(id)), Offered::Startable);
    }
    // A window of 4, and all its slots are posted again; but of four offers two may wait.
    assert_eq!((link.credit().unwrap().header.credits, link.outstanding_slots()), (6, 4));
    for credits in [7, 8] {
        let Some(Step::Pull(start)) = link.next_step() else { panic!("nothing to read") };
        assert_eq!(link.eager(1, 1).unwrap().header.credits, credits - 1);
        link.pulled(start.key).unwrap();
        assert_eq!(link.eager(1, 1).unwrap().header.credits, credits);
        while !matches!(link.next_step(), None | Some(Step::Control(_))) {}
    }
}

#[test]
fn a_rendezvous_ends_with_the_peers_word() {
    let mut link = established(8);
    let remote = RemoteSlice { addr: 4096, len: 3, rkey: Rkey(1) };
    let (frame, offer) = link.offer(11, 5, remote, 42).unwrap();
    assert_eq!((frame.header.kind, frame.header.length, offer.addr), (Kind::ReadyToSend, 3, 4096));
    let done = Header { tag: u64::from(offer.id), ..header(Kind::Finished, 0) };
    link.accept(&done).unwrap();
    assert_eq!(link.on_finished(&done), Ok((11, 42)));
    assert!(link.on_finished(&done).is_err());
}

// Flushing and closing

#[test]
fn flushing_waits_for_rendezvous_and_refuses_new_sends() {
    let mut link = established(8);
    let remote = RemoteSlice { addr: 0, len: 3, rkey: Rkey(1) };
    let (_, offer) = link.offer(11, 5, remote, 42).unwrap();
    link.close();
    assert_eq!(link.eager(1, 1), Err(Blocked::Closed));
    assert_eq!(link.next_step(), None);
    let done = Header { tag: u64::from(offer.id), ..header(Kind::Finished, 0) };
    link.accept(&done).unwrap();
    link.on_finished(&done).unwrap();
    let Some(Step::Control(close)) = link.next_step() else { panic!("no CLOSE") };
    assert!(!link.is_finished());
    link.accept(&header(Kind::Close, 1)).unwrap();
    link.on_close();
    assert!(!link.is_finished(), "its own CLOSE has not completed");
    link.retire(close.work.number);
    assert!(link.is_finished());
}

#[test]
fn closing_still_receives_until_the_peer_closes() {
    let mut link = established(8);
    link.close();
    let Some(Step::Control(close)) = link.next_step() else { panic!("no CLOSE") };
    link.retire(close.work.number);
    link.accept(&header(Kind::Eager, 0)).unwrap();
    link.accept(&header(Kind::Close, 1)).unwrap();
    link.on_close();
    assert!(link.is_finished());
    assert_eq!(link.accept(&header(Kind::Eager, 2)), Err(Violation::AfterClose));
}

#[test]
fn abort_hands_everything_back() {
    let mut link = established(1);
    let remote = RemoteSlice { addr: 0, len: 3, rkey: Rkey(1) };
    link.offer(1, 5, remote, 10).unwrap();
    link.enqueue(Pending { op: 2, tag: 5, len: 1, remote: None, payload: 20 });
    link.post(Posted { op: 3, tag: 5, fit: Fit { limit: 9, granule: 1 }, staged: false, memory: () });
    let (sends, receives) = link.abort();
    assert_eq!(sends, [(1, 10), (2, 20)]);
    assert_eq!(receives.iter().map(|posted| posted.op).collect::<Vec<_>>(), [3]);
    assert_eq!(link.next_step(), None);
    assert!(link.credit().is_none());
}

// The pair

#[test]
fn a_pair_closes_and_loses_nothing() {
    for seed in 0..50 {
        let mut pair = Pair::established(4, 16, seed);
        for message in 0..40 {
            assert!(pair.send(A, 1, if message % 5 == 0 { 1000 } else { 10 }).is_some());
            assert!(pair.send(B, 2, 10).is_some());
        }
        pair.close(A);
        assert_eq!(pair.send(A, 1, 1), None);
        pair.run_all();
        for (from, to) in [(A, B), (B, A)] {
            assert!(pair.sides[from].link.is_finished(), "seed {seed}");
            assert_eq!(pair.sides[to].delivered.len(), 40, "seed {seed}");
            assert_eq!(pair.sides[from].sent.len(), 40, "seed {seed}");
        }
    }
}

#[test]
fn one_way_traffic_needs_one_credit_message_per_half_window() {
    let mut pair = Pair::established(16, 64, 1);
    pair.hold = 1;
    for _ in 0..1000 {
        pair.send(A, 1, 10);
        pair.run(4);
    }
    pair.run_all();
    assert_eq!(pair.sides[B].delivered.len(), 1000);
    assert!(pair.sides[B].credit_messages <= 1000 / 8 + 1, "{}", pair.sides[B].credit_messages);
    assert!(pair.sides[B].delivered.iter().all(|(_, _, way)| *way == Way::Received));
}

#[test]
fn a_dead_peer_costs_a_probe_and_the_detection_time() {
    let mut link = established(1);
    assert_eq!(link.tick(Duration::from_millis(999)), Pulse::Quiet);
    assert_eq!(link.tick(Duration::from_secs(1)), Pulse::Probe);
    assert_eq!(link.due(), Duration::from_secs(2));
    assert_eq!(link.tick(Duration::from_secs(2)), Pulse::Lost);
}
