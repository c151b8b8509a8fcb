//! One state, one event, one expected outcome.

use std::time::Duration;

use qpair_verbs::{RemoteSlice, Rkey};

use super::matching::{inbox, startable};
use super::pair::{A, B, Pair};
use super::side::Way;
use crate::engine::*;

pub(super) type TestLink = Link<u64>;

fn opening(window: u32) -> TestLink {
    Link::new(&LinkConfig {
        window,
        depth: 16,
        epoch: 1,
        offers: 2,
        keepalive: Duration::from_secs(1),
        detection: Duration::from_secs(1),
    })
}

pub(super) fn established(credits: u32) -> TestLink {
    let mut link = opening(4);
    link.open(&PeerTerms { epoch: 2, credits }, Duration::ZERO).unwrap();
    link
}

pub(super) fn header(kind: Kind, sequence: u32) -> Header {
    let envelope = Envelope::bare(5);
    Header { kind, envelope, epoch: 2, sequence, credits: 8, length: 3, acknowledged: 0 }
}

// Opening

#[test]
fn opening_queues_and_flushes_when_open() {
    let mut link = opening(4);
    assert_eq!(link.eager(Envelope::bare(1), 1), Err(Blocked::Later));
    link.enqueue(Pending { op: 9, envelope: Envelope::bare(1), len: 1, readable: None, payload: 77 });
    assert_eq!(link.next_step(true), None);
    link.open(&PeerTerms { epoch: 2, credits: 1 }, Duration::ZERO).unwrap();
    assert!(matches!(link.next_step(true), Some(Step::Eager { op: 9, payload: 77, .. })));
    assert_eq!(link.next_step(true), None);
}

#[test]
fn opening_and_closed_flushes_then_closes() {
    let mut link = opening(4);
    link.enqueue(Pending { op: 9, envelope: Envelope::bare(1), len: 1, readable: None, payload: 77 });
    link.close();
    assert_eq!(link.eager(Envelope::bare(1), 1), Err(Blocked::Closed));
    link.open(&PeerTerms { epoch: 2, credits: 1 }, Duration::ZERO).unwrap();
    assert!(matches!(link.next_step(true), Some(Step::Eager { op: 9, .. })));
    let Some(Step::Control(frame)) = link.next_step(true) else { panic!("no CLOSE") };
    assert_eq!(frame.header.kind, Kind::Close);
    assert!(frame.work.signal);
}

// Open

#[test]
fn open_sends_until_credits_are_used_up() {
    let mut link = established(2);
    let first = link.eager(Envelope::bare(7), 3).unwrap().header;
    assert_eq!((first.sequence, first.epoch, first.envelope.tag), (0, 1, 7));
    assert_eq!((first.length, first.credits, first.acknowledged), (3, 4, 0));
    assert_eq!(link.eager(Envelope::bare(7), 3).unwrap().header.sequence, 1);
    assert_eq!(link.eager(Envelope::bare(7), 3), Err(Blocked::Later));
    let credit = Header { credits: 3, ..header(Kind::Credit, 0) };
    link.accept(&credit).unwrap();
    assert!(link.eager(Envelope::bare(7), 3).is_ok());
    assert_eq!(link.eager(Envelope::bare(7), 3), Err(Blocked::Later));
}

#[test]
fn open_sends_nothing_past_what_is_queued() {
    let mut link = established(1);
    link.eager(Envelope::bare(1), 1).unwrap();
    link.enqueue(Pending { op: 1, envelope: Envelope::bare(1), len: 1, readable: None, payload: 1 });
    link.accept(&header(Kind::Credit, 0)).unwrap();
    assert_eq!(link.eager(Envelope::bare(1), 1), Err(Blocked::Later), "would overtake");
    assert!(link.next_step(true).is_some());
    assert!(link.eager(Envelope::bare(1), 1).is_ok());
}

#[test]
fn open_stops_at_the_depth_of_the_send_queue() {
    let mut link = established(100);
    let frames: Vec<_> = std::iter::from_fn(|| link.eager(Envelope::bare(1), 1).ok()).collect();
    assert_eq!(frames.len(), 16);
    assert!(link.credit().is_none());
    link.retire(frames[7].work.number);
    assert_eq!(std::iter::from_fn(|| link.eager(Envelope::bare(1), 1).ok()).count(), 8);
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
    assert_eq!(link.eager(Envelope::bare(1), 1).unwrap().header.credits, 7, "piggybacked");
}

#[test]
fn open_gives_the_slots_of_offers_back_while_few_wait() {
    let mut link = established(8);
    for sequence in 0..4 {
        let header = header(Kind::ReadyToSend, sequence);
        link.accept(&header).unwrap();
        link.offered(&header, sequence).unwrap();
    }
    // A window of 4, and all its slots are posted again; but of four offers two may wait.
    assert_eq!((link.credit().unwrap().header.credits, link.outstanding_slots()), (6, 4));
    for (id, credits) in [(0, 7), (1, 8)] {
        assert_eq!(link.eager(Envelope::bare(1), 1).unwrap().header.credits, credits - 1);
        link.read(id, 3);
        assert_eq!(link.eager(Envelope::bare(1), 1).unwrap().header.credits, credits);
        while !matches!(link.next_step(true), None | Some(Step::Control(_))) {}
    }
}

#[test]
fn a_peer_that_takes_no_answers_can_not_offer_without_end() {
    let mut link = established(1);
    // Its one credit is gone, and it gives no more.
    link.eager(Envelope::bare(1), 1).unwrap();
    let most = 1 << 16;
    for id in 0..most {
        link.offered(&header(Kind::ReadyToSend, 0), 0).unwrap();
        link.read(id, 3);
        assert_eq!(link.next_step(true), None);
    }
    assert_eq!(link.offered(&header(Kind::ReadyToSend, 0), 0), Err(Violation::TooManyOffers { limit: 1 << 16 }));
}

#[test]
fn a_rendezvous_ends_with_the_peers_word() {
    let mut link = established(8);
    let remote = RemoteSlice { addr: 4096, len: 3, rkey: Rkey(1) };
    let (frame, offer) = link.offer(11, Envelope::bare(5), Readable::At(remote.into()), 42).unwrap();
    assert_eq!((frame.header.kind, frame.header.length, offer.addr), (Kind::ReadyToSend, 3, 4096));
    let done = Header { envelope: Envelope::bare(offer.id.into()), ..header(Kind::Finished, 0) };
    link.accept(&done).unwrap();
    let expected = Exposed { was_read: true, ..Exposed::new(11, Envelope::bare(5), 42) };
    assert_eq!(link.on_finished(&done), Ok(expected));
    assert!(link.on_finished(&done).is_err());
}

#[test]
fn parts_are_offered_once_they_are_wanted_and_one_goes_without_a_credit() {
    let mut link = established(2);
    let (_, offer) = link.offer(11, Envelope::bare(5), Readable::InParts(30), 42).unwrap();
    assert!(offer.in_parts && link.exposed(offer.id) == Some(&42) && link.exposed(offer.id + 1).is_none());
    let of = |kind, id: u32, sequence| {
        let envelope = Envelope::bare(id.into());
        Header { envelope, credits: 2, ..header(kind, sequence) }
    };
    let want = of(Kind::Want, offer.id, 0);
    link.accept(&want).unwrap();
    assert_eq!(link.on_want(&want), Ok(30));
    let again = Violation::Wanted { id: offer.id.into() };
    assert_eq!(link.on_want(&want), Err(again), "once is enough");
    // Messages wait behind parts, which go with the one credit there is, and with none.
    let remote = RemoteSlice { addr: 4096, len: 10, rkey: Rkey(1) };
    for op in 12..15 {
        let (envelope, readable) = (Envelope::part(offer.id), Some(Readable::At(remote.into())));
        link.enqueue_part(Pending { op, envelope, len: 10, readable, payload: 1 });
    }
    assert_eq!(link.eager(Envelope::bare(1), 1), Err(Blocked::Later));
    let mut ids = Vec::new();
    for envelope in [Envelope::part(offer.id), Envelope::part(offer.id).uncredited()] {
        let Some(Step::Offer { frame, offer: part }) = link.next_step(true) else { panic!("a part is due") };
        assert_eq!((frame.header.envelope, frame.header.takes_credit()), (envelope, !envelope.is_uncredited()));
        ids.push(part.id);
    }
    assert_eq!(link.next_step(true), None, "no more than one");
    for (sequence, id) in [(1, ids[1]), (2, ids[0])] {
        let done = Header { length: 10, ..of(Kind::Finished, id, sequence) };
        link.accept(&done).unwrap();
        assert!(link.on_finished(&done).unwrap().envelope.is_own());
    }
    let Some(Step::Offer { frame, .. }) = link.next_step(true) else { panic!("the last part is due") };
    assert!(!frame.header.takes_credit());
    // What has no parts is not wanted.
    let mut link = established(2);
    let (_, offer) = link.offer(1, Envelope::bare(5), Readable::At(remote.into()), 10).unwrap();
    let id = u64::from(offer.id);
    assert_eq!(link.on_want(&of(Kind::Want, offer.id, 0)), Err(Violation::Wanted { id }));
    // The payload ends with the peer's word, parts or not.
    link.close();
    assert_eq!(link.abort().0.len(), 1);
}

#[test]
fn a_want_and_the_answer_to_a_part_go_without_a_credit() {
    let mut link = established(1);
    link.eager(Envelope::bare(1), 1).unwrap();
    let from_peer = |sequence, envelope, acknowledged| Header {
        envelope,
        credits: 1,
        acknowledged,
        ..header(Kind::ReadyToSend, sequence)
    };
    for id in [70, 71, 72] {
        let offer = from_peer(id - 70, Envelope::bare(5), 1);
        link.accept(&offer).unwrap();
        link.offered(&offer, id).unwrap();
        link.want_parts(id);
    }
    let says = |link: &mut TestLink| match link.next_step(true) {
        Some(Step::Control(Frame { header, .. })) => {
            assert!(!header.takes_credit());
            Some((header.kind, header.envelope.tag))
        }
        None => None,
        other => panic!("{other:?}"),
    };
    assert_eq!([says(&mut link), says(&mut link)], [Some((Kind::Want, 70)), None], "one at a time");
    // What the peer sends then says that it came; and its part is answered, though all others wait.
    let part = from_peer(3, Envelope::part(70).uncredited(), 2);
    link.accept(&part).unwrap();
    link.offered(&part, 9).unwrap();
    assert_eq!(link.offered(&part, 10), Err(Violation::NoCredit), "one at a time, too");
    link.read(8, 3);
    // A peer that gives two offers one number gets one answer so.
    link.read(9, 3);
    link.read(9, 3);
    assert_eq!([says(&mut link), says(&mut link)], [Some((Kind::Finished, 9)), Some((Kind::Want, 71))]);
    assert_eq!(says(&mut link), None, "the others were offered with a credit");
    // So does what has nothing to do with it, though no part of it ever comes.
    let tells = |acknowledged| Header { credits: 1, length: 0, acknowledged, ..header(Kind::Credit, 4) };
    for (acknowledged, want) in [(3, None), (4, Some((Kind::Want, 72)))] {
        link.accept(&tells(acknowledged)).unwrap();
        link.on_credit(&tells(acknowledged)).unwrap();
        assert_eq!(says(&mut link), want);
    }
    let mut bytes = [0; HEADER_BYTES];
    let bare = Header { envelope: Envelope::bare(9).uncredited(), ..header(Kind::Finished, 0) };
    bare.emit(&mut bytes);
    assert_eq!(Header::parse(&HeaderView::new_checked(&bytes).unwrap()), bare);
}

#[test]
fn a_send_is_taken_back_until_the_peer_has_it() {
    let mut link = established(1);
    let remote = RemoteSlice { addr: 0, len: 3, rkey: Rkey(1) };
    let (_, offer) = link.offer(1, Envelope::bare(5), Readable::At(remote.into()), 10).unwrap();
    link.enqueue(Pending { op: 2, envelope: Envelope::bare(5), len: 1, readable: None, payload: 20 });
    link.enqueue(Pending { op: 4, envelope: Envelope::bare(5), len: 1, readable: None, payload: 40 });
    assert_eq!(link.cancel(2), Cancelled::Taken(Envelope::bare(5), 20));
    assert_eq!((link.cancel(2), link.cancel(3)), (Cancelled::Unknown, Cancelled::Unknown));
    assert_eq!((link.cancel(1), link.cancel(1)), (Cancelled::Asked, Cancelled::Asked));
    link.accept(&header(Kind::Credit, 0)).unwrap();
    let Some(Step::Control(cancel)) = link.next_step(true) else { panic!("nothing to say") };
    assert_eq!((cancel.header.kind, cancel.header.envelope.tag), (Kind::Cancel, offer.id.into()));
    assert!(matches!(link.next_step(true), Some(Step::Eager { op: 4, .. })));
    assert_eq!(link.next_step(true), None, "asked once");
    let done = Header { envelope: Envelope::bare(offer.id.into()), ..header(Kind::Withdrawn, 0) };
    link.accept(&done).unwrap();
    assert_eq!(link.on_finished(&done), Ok(Exposed::new(1, Envelope::bare(5), 10)));
    assert_eq!(link.cancel(1), Cancelled::Unknown);
}

#[test]
fn a_flush_waits_for_what_is_queued_offered_and_posted() {
    let mut link = established(1);
    let remote = RemoteSlice { addr: 0, len: 3, rkey: Rkey(1) };
    let (_, offer) = link.offer(1, Envelope::bare(5), Readable::At(remote.into()), 10).unwrap();
    link.enqueue(Pending { op: 2, envelope: Envelope::bare(5), len: 1, readable: None, payload: 20 });
    link.flush(3);
    assert_eq!(link.next_flushed(None), None);
    let done = Header { envelope: Envelope::bare(offer.id.into()), ..header(Kind::Finished, 0) };
    link.accept(&done).unwrap();
    link.on_finished(&done).unwrap();
    assert_eq!(link.next_flushed(None), None, "one is queued");
    let Some(Step::Eager { frame, .. }) = link.next_step(true) else { panic!("not sent") };
    assert_eq!((link.next_flushed(Some(2)), link.next_flushed(None)), (None, None));
    assert!(frame.work.signal || link.flush_needs_probe());
    let probe = link.take_slot().unwrap();
    assert!(!link.flush_needs_probe());
    link.retire(probe.number);
    assert_eq!((link.next_flushed(None), link.next_flushed(None)), (Some(3), None));
}

// Flushing and closing

#[test]
fn flushing_waits_for_rendezvous_and_refuses_new_sends() {
    let mut link = established(8);
    let remote = RemoteSlice { addr: 0, len: 3, rkey: Rkey(1) };
    let (_, offer) = link.offer(11, Envelope::bare(5), Readable::At(remote.into()), 42).unwrap();
    link.close();
    assert_eq!(link.eager(Envelope::bare(1), 1), Err(Blocked::Closed));
    assert_eq!(link.next_step(true), None);
    let done = Header { envelope: Envelope::bare(offer.id.into()), ..header(Kind::Finished, 0) };
    link.accept(&done).unwrap();
    link.on_finished(&done).unwrap();
    let Some(Step::Control(close)) = link.next_step(true) else { panic!("no CLOSE") };
    assert!(!link.is_finished());
    link.accept(&header(Kind::Close, 1)).unwrap();
    link.on_close();
    assert!(!link.is_finished(), "its own CLOSE has not completed");
    link.retire(close.work.number);
    assert!(link.is_finished());
}

#[test]
fn closing_says_nothing_of_what_came_about_meanwhile() {
    let mut link = established(1);
    let remote = RemoteSlice { addr: 0, len: 3, rkey: Rkey(1) };
    let (_, offer) = link.offer(1, Envelope::bare(5), Readable::At(remote.into()), 10).unwrap();
    assert_eq!(link.cancel(1), Cancelled::Asked);
    link.close();
    assert_eq!(link.next_step(true), None, "no credit to ask with");
    let done = Header { credits: 1, envelope: Envelope::bare(offer.id.into()), ..header(Kind::Finished, 0) };
    link.accept(&done).unwrap();
    link.on_finished(&done).unwrap();
    assert!(matches!(link.next_step(true), Some(Step::Control(frame)) if frame.header.kind == Kind::Close));
    link.accept(&Header { credits: 8, ..header(Kind::Credit, 1) }).unwrap();
    assert_eq!(link.next_step(true), None);
}

#[test]
fn closing_still_receives_until_the_peer_closes() {
    let mut link = established(8);
    link.close();
    let Some(Step::Control(close)) = link.next_step(true) else { panic!("no CLOSE") };
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
    link.offer(1, Envelope::bare(5), Readable::At(remote.into()), 10).unwrap();
    link.enqueue(Pending { op: 2, envelope: Envelope::bare(5), len: 1, readable: None, payload: 20 });
    link.flush(3);
    let (sends, flushes) = link.abort();
    assert_eq!(sends.iter().map(|send| (send.op, send.payload)).collect::<Vec<_>>(), [(1, 10), (2, 20)]);
    assert_eq!(flushes, [3]);
    assert_eq!(link.next_step(true), None);
    assert!(link.credit().is_none());
}

/// While there is no memory for a copy.
#[test]
fn what_needs_no_copy_goes_before_what_waits_for_one() {
    let mut link = established(4);
    let message = |op, payload| Pending { op, envelope: Envelope::bare(1), len: 1, readable: None, payload };
    link.enqueue(message(9, 77));
    let key = startable(&mut inbox(false), 5, 100, 0);
    link.want(key);
    link.read(3, 1);
    assert_eq!(link.next_copied(), None, "words go first");
    assert!(matches!(link.next_step(true), Some(Step::Control(frame)) if frame.header.kind == Kind::Finished));
    assert_eq!(link.next_copied(), Some(1));
    assert!(matches!(link.next_step(false), Some(Step::Pull(pulled)) if pulled == key));
    assert_eq!(link.next_step(false), None);
    link.close();
    assert_eq!(link.next_step(false), None, "it goes before the close");
    assert!(matches!(link.next_step(true), Some(Step::Eager { op: 9, .. })));
    assert!(matches!(link.next_step(true), Some(Step::Control(frame)) if frame.header.kind == Kind::Close));
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
    let mut now = link.due();
    while link.tick(now) == Pulse::Quiet {
        now = link.due();
    }
    assert_eq!(now, Duration::from_secs(2));
}
