//! Matching, in the order of each channel; of one peer and of several.

use qpair_verbs::Rkey;

use crate::engine::*;

pub(super) const P: Peer = Peer(1);
pub(super) const Q: Peer = Peer(2);

pub(super) type TestInbox = Inbox<(), char>;

pub(super) fn inbox(hold_long: bool) -> TestInbox {
    Inbox::new(Policy { hold_short: false, hold_long, longest: 5000, orphans: 4, seeds: Seeds::SOME })
}

pub(super) fn holding() -> TestInbox {
    Inbox::new(Policy { hold_short: true, hold_long: true, longest: 5000, orphans: 4, seeds: Seeds::SOME })
}

pub(super) fn posted(op: u64, tag: u64, limit: u64) -> Posted<()> {
    let pattern = Pattern { source: Some(P), tag, mask: u64::MAX };
    Posted { op, pattern, fit: Fit { limit, granule: 4 }, staged: false, memory: () }
}

pub(super) fn wide(op: u64, source: Option<Peer>, tag: u64, mask: u64) -> Posted<()> {
    Posted { pattern: Pattern { source, tag, mask }, ..posted(op, tag, 100) }
}

pub(super) fn offer(id: u32) -> Offer {
    Offer { addr: 0, rkey: Rkey(0), id, rails: RailKeys::default(), in_parts: false }
}

pub(super) fn eager(inbox: &mut TestInbox, peer: Peer, tag: u64, body: char) -> Arrival<()> {
    inbox.eager(peer, Envelope::bare(tag), 8, || body)
}

/// The receive that takes a message of that peer and tag.
pub(super) fn taker(inbox: &mut TestInbox, peer: Peer, tag: u64) -> Option<u64> {
    match eager(inbox, peer, tag, 'x') {
        Arrival::Matched(posted) => Some(posted.op),
        Arrival::Unmatched => None,
        other => panic!("{other:?}"),
    }
}

/// Offers a payload that can be read at once.
pub(super) fn startable(inbox: &mut TestInbox, tag: u64, len: u64, id: u32) -> EntryKey {
    match inbox.offer(P, Envelope::bare(tag), len, offer(id), false) {
        Offered::Startable(key) => key,
        other => panic!("{other:?}"),
    }
}

/// Bodies and receives of what is delivered.
pub(super) fn due(inbox: &mut TestInbox) -> Vec<(char, Option<u64>)> {
    let next = || inbox.next_due().map(|due| (due.body.unwrap_or('-'), due.posted.map(|posted| posted.op)));
    std::iter::from_fn(next).collect()
}

/// Takes back a receive of a connection that goes on.
pub(super) fn cancel(inbox: &mut TestInbox, op: u64) -> Option<u64> {
    inbox.cancel(op, |_| false).map(|posted| posted.op)
}

/// What became of offers that lost their receives.
pub(super) fn freed(inbox: &mut TestInbox) -> Vec<Freed<()>> {
    std::iter::from_fn(|| inbox.next_freed()).collect()
}

#[test]
fn receives_match_their_tag_in_the_order_posted() {
    let mut inbox = inbox(false);
    for (op, tag) in [(1, 7), (2, 8), (3, 7)] {
        assert_eq!(inbox.post(posted(op, tag, 100)), Placed::Waits);
    }
    assert_eq!([7, 7, 7, 8].map(|tag| taker(&mut inbox, P, tag)), [Some(1), Some(3), None, Some(2)]);
}

#[test]
fn of_all_receives_that_take_a_message_the_first_does() {
    let mut inbox = inbox(false);
    inbox.post(wide(1, Some(Q), 7, u64::MAX));
    inbox.post(wide(2, None, 0x17, 0xf));
    inbox.post(wide(3, None, 7, u64::MAX));
    inbox.post(wide(4, Some(P), 7, u64::MAX));
    inbox.post(wide(5, Some(P), 0, 0));
    assert_eq!(taker(&mut inbox, P, 7), Some(2), "its low bits");
    assert_eq!(taker(&mut inbox, P, 7), Some(3), "anyone's");
    assert_eq!(taker(&mut inbox, P, 8), Some(5), "any tag");
    assert_eq!(taker(&mut inbox, P, 8), None);
    assert_eq!(taker(&mut inbox, P, 7), Some(4));
    assert_eq!(taker(&mut inbox, Q, 7), Some(1));
    assert!(inbox.is_plain());
}

#[test]
fn a_message_that_does_not_fit_fails_the_receive_and_is_kept() {
    for (len, fits) in [(8, true), (12, false), (6, false)] {
        let mut inbox = inbox(false);
        inbox.post(posted(1, 7, 8));
        match inbox.eager(P, Envelope::bare(7), len, || 'x') {
            Arrival::Matched(_) => assert!(fits, "{len}"),
            Arrival::Misfit { posted, held } => assert!(!fits && posted.op == 1 && !held, "{len}"),
            other => panic!("{other:?}"),
        }
    }
    let mut inbox = inbox(true);
    inbox.post(posted(1, 7, 8));
    let Offered::Misfit { posted, startable: Some(key) } = inbox.offer(P, Envelope::bare(7), 12, offer(1), false)
    else {
        panic!("delivered all the same")
    };
    assert_eq!(posted.op, 1);
    assert!(inbox.start(key).is_some_and(|start| start.posted.is_none()));
}

#[test]
fn short_messages_wait_behind_a_long_one_of_their_tag_only() {
    let mut inbox = inbox(false);
    let first = startable(&mut inbox, 7, 1000, 1);
    inbox.start(first).unwrap();
    assert_eq!(inbox.start(first), None, "once");
    assert_eq!(eager(&mut inbox, P, 7, 'a'), Arrival::Held);
    assert_eq!(eager(&mut inbox, P, 8, 'b'), Arrival::Unmatched);
    assert_eq!(eager(&mut inbox, Q, 7, 'b'), Arrival::Unmatched);
    let second = startable(&mut inbox, 7, 2000, 2);
    inbox.start(second).unwrap();
    assert_eq!(eager(&mut inbox, P, 7, 'c'), Arrival::Held);
    // The second is read first, and waits for its turn.
    assert_eq!(inbox.finish(second, '2', None), Some((2, 2000)));
    assert_eq!(due(&mut inbox), []);
    assert_eq!(inbox.finish(first, '1', None), Some((1, 1000)));
    assert_eq!(inbox.finish(first, '1', None), None, "once");
    assert_eq!(due(&mut inbox), [('1', None), ('a', None), ('2', None), ('c', None)]);
    assert!(inbox.is_plain());
}

#[test]
fn only_what_is_ordered_waits() {
    let mut inbox = inbox(false);
    let envelope = |class, port, tag| Envelope { class, port, tag };
    inbox.offer(P, envelope(Class::Active, 3, 1), 1000, offer(1), false);
    let mut waits = |class, port, tag| match inbox.eager(P, envelope(class, port, tag), 8, || 'x') {
        Arrival::Held => true,
        Arrival::Unmatched => false,
        other => panic!("{other:?}"),
    };
    assert!(waits(Class::Active, 3, 2), "one handler, whatever the argument");
    assert!(!waits(Class::Active, 4, 1));
    assert!(!waits(Class::Request, 3, 1));
    assert!(!waits(Class::Tagged, 0, 1));
}

#[test]
fn a_late_receive_matches_what_waits() {
    let mut inbox = inbox(true);
    assert_eq!(inbox.offer(P, Envelope::bare(7), 8, offer(1), false), Offered::Held);
    assert_eq!(eager(&mut inbox, P, 7, 'a'), Arrival::Held);
    assert!(matches!(inbox.post(posted(1, 7, 4)), Placed::Misfit { .. }));
    let Placed::Startable(P, key) = inbox.post(posted(1, 7, 8)) else { panic!("not startable") };
    assert_eq!(inbox.post(posted(2, 7, 8)), Placed::Waits);
    assert_eq!(inbox.post(posted(3, 7, 8)), Placed::Waits);
    let start = inbox.start(key).unwrap();
    assert_eq!(start.posted.map(|posted| posted.op), Some(1));
    inbox.finish(key, 'o', None);
    assert_eq!(due(&mut inbox), [('o', None), ('a', Some(2))]);
    assert_eq!(inbox.drop_peer(P).iter().map(|posted| posted.op).collect::<Vec<_>>(), [3]);
}

#[test]
fn all_that_is_held_is_found_by_probes_and_taken_in_the_order_of_arrival() {
    let mut inbox = holding();
    assert!(!inbox.is_plain());
    let any = Pattern { source: None, tag: 0, mask: 0 };
    assert_eq!(inbox.probe(&any), None);
    for (peer, tag, body) in [(Q, 0x17, 'a'), (P, 7, 'b'), (P, 8, 'c'), (P, 7, 'd')] {
        assert_eq!(eager(&mut inbox, peer, tag, body), Arrival::Held);
    }
    assert_eq!(inbox.probe(&any), Some(Waiting { peer: Q, tag: 0x17, len: 8 }));
    let of_p = Pattern { source: Some(P), ..any };
    assert_eq!(inbox.probe(&of_p), Some(Waiting { peer: P, tag: 7, len: 8 }));
    assert_eq!(inbox.probe(&Pattern { tag: 9, mask: u64::MAX, ..any }), None);
    assert_eq!(inbox.post(wide(1, None, 7, 0xf)), Placed::Due);
    assert_eq!(inbox.post(wide(2, None, 7, 0xf)), Placed::Due);
    assert_eq!(inbox.post(posted(3, 7, 100)), Placed::Due);
    assert_eq!(inbox.post(posted(4, 7, 100)), Placed::Waits);
    assert_eq!(due(&mut inbox), [('a', Some(1)), ('b', Some(2)), ('d', Some(3))]);
    // What came whole can be received when its connection is over.
    assert_eq!(inbox.drop_peer(P).len(), 1);
    assert_eq!(inbox.post(wide(5, Some(P), 8, u64::MAX)), Placed::Due);
    assert_eq!(due(&mut inbox), [('c', Some(5))]);
}

#[test]
fn without_memory_unmatched_payloads_wait_and_others_do_not() {
    let mut inbox = inbox(false);
    let keys = [1, 2].map(|id| startable(&mut inbox, 7, 8, id));
    let start = inbox.start(keys[0]).unwrap();
    inbox.stall(start);
    let Placed::Startable(P, key) = inbox.post(posted(9, 7, 8)) else { panic!("not startable") };
    assert_eq!(key, keys[0], "the first of the tag");
    assert_eq!(inbox.start(key).unwrap().posted.unwrap().op, 9);
    assert_eq!(inbox.resume(), [(P, keys[0])]);
    assert_eq!(inbox.start(keys[0]), None, "it is being read");
    assert_eq!(inbox.resume(), []);
}

#[test]
fn an_offer_for_which_there_is_never_memory_waits_for_a_receive() {
    let mut inbox = inbox(false);
    startable(&mut inbox, 7, 5000, 1);
    assert_eq!(inbox.offer(P, Envelope::bare(8), 5004, offer(2), false), Offered::Held);
    inbox.post(posted(1, 9, 8));
    let misfit = inbox.offer(P, Envelope::bare(9), 5004, offer(3), false);
    assert!(matches!(misfit, Offered::Misfit { startable: None, .. }));
    assert_eq!(inbox.release_offers(P), []);
    let Placed::Startable(P, key) = inbox.post(posted(2, 8, 6000)) else { panic!("not startable") };
    inbox.start(key).unwrap();
    let waiting = Waiting { peer: P, tag: 8, len: 5004 };
    assert_eq!(inbox.unmatch(key, false), Some(2), "the device did not take its memory");
    assert_eq!(freed(&mut inbox), [Freed::Waits(waiting)]);
    assert_eq!(inbox.start(key), None);
    assert!(matches!(inbox.post(posted(3, 8, 6000)), Placed::Startable(..)));
}

#[test]
fn closing_reads_what_was_held() {
    let mut inbox = inbox(true);
    for id in [1, 2] {
        assert_eq!(inbox.offer(P, Envelope::bare(7), 8, offer(id), false), Offered::Held);
    }
    let ids = inbox.release_offers(P).into_iter().map(|key| inbox.start(key).unwrap().offer.id);
    assert_eq!(ids.collect::<Vec<_>>(), [1, 2]);
    assert!(matches!(inbox.offer(P, Envelope::bare(7), 8, offer(3), true), Offered::Startable(_)));
}

#[test]
fn an_offer_is_withdrawn_unless_it_is_being_read() {
    let mut inbox = inbox(true);
    assert_eq!(inbox.offer(P, Envelope::bare(7), 8, offer(1), false), Offered::Held);
    assert_eq!(eager(&mut inbox, P, 7, 'a'), Arrival::Held);
    assert!(!inbox.withdraw(P, 2) && !inbox.withdraw(Q, 1));
    assert!(inbox.withdraw(P, 1) && !inbox.withdraw(P, 1));
    assert_eq!(due(&mut inbox), [('a', None)], "nothing is before it any more");
    inbox.post(posted(1, 7, 8));
    let key = startable(&mut inbox, 7, 8, 3);
    assert!(!inbox.withdraw(P, 3), "it has a receive");
    inbox.start(key).unwrap();
    assert!(!inbox.withdraw(P, 3));
}

#[test]
fn a_receive_is_cancelled_until_its_payload_is_read() {
    let mut inbox = inbox(true);
    inbox.post(wide(1, Some(P), 7, u64::MAX));
    inbox.post(wide(2, None, 7, u64::MAX));
    assert_eq!(cancel(&mut inbox, 2), Some(2));
    assert_eq!(cancel(&mut inbox, 2), None);
    let key = startable(&mut inbox, 7, 8, 1);
    assert_eq!(cancel(&mut inbox, 1), Some(1), "matched, not read");
    assert_eq!(inbox.start(key), None, "it waits again");
    let Placed::Startable(P, key) = inbox.post(posted(4, 7, 8)) else { panic!("not startable") };
    inbox.start(key).unwrap();
    assert_eq!(cancel(&mut inbox, 4), None, "it is being read");
    assert_eq!(taker(&mut inbox, Q, 7), None);
    inbox.post(posted(5, 7, 8));
    assert_eq!(cancel(&mut inbox, 5), Some(5));
}

#[test]
fn a_lost_payload_lets_go_of_what_came_behind_it() {
    let mut inbox = inbox(false);
    inbox.post(posted(1, 7, 2000));
    let key = startable(&mut inbox, 7, 1000, 1);
    inbox.start(key).unwrap();
    eager(&mut inbox, P, 7, 'a');
    assert_eq!(inbox.drop_peer(P), []);
    assert_eq!(due(&mut inbox), [], "a read is under way");
    assert_eq!((inbox.fail(key), inbox.fail(key)), (Some(1), None));
    assert_eq!(due(&mut inbox), [('a', None)]);
    assert!(inbox.is_plain());
}

#[test]
fn behind_one_that_waits_for_memory_none_takes_any() {
    let mut inbox = inbox(false);
    let [first, second] = [1, 2].map(|id| startable(&mut inbox, 7, 8, id));
    let other = startable(&mut inbox, 8, 8, 3);
    let start = inbox.start(first).unwrap();
    inbox.stall(start);
    assert_eq!(inbox.start(second), None, "its memory would come back after the first's only");
    assert_eq!(inbox.start(other).unwrap().offer.id, 3);
    assert_eq!(inbox.resume(), [(P, first), (P, second)]);
    assert_eq!([first, second].map(|key| inbox.start(key).unwrap().offer.id), [1, 2]);
    // With memory of its own it waits for none.
    let [first, second] = [4, 5].map(|id| startable(&mut inbox, 9, 8, id));
    let start = inbox.start(first).unwrap();
    inbox.stall(start);
    assert_eq!(inbox.start(second), None);
    let Placed::Startable(P, key) = inbox.post(posted(9, 9, 8)) else { panic!("not startable") };
    assert_eq!((key, inbox.start(key).is_some(), inbox.is_stalled()), (first, true, true));
    assert_eq!(inbox.resume(), [(P, first), (P, second)]);
    assert_eq!((inbox.start(first), inbox.start(second).unwrap().offer.id), (None, 5));
}

#[test]
fn what_no_receive_takes_may_not_be_longer_than_what_is_read_without() {
    let mut inbox = inbox(true);
    for class in [Class::Active, Class::Request, Class::Response, Class::Stream] {
        let envelope = Envelope { class, port: 0, tag: 7 };
        assert_eq!(inbox.offer(P, envelope, 5001, offer(1), false), Offered::TooLong { limit: 5000 });
    }
    assert!(inbox.is_plain(), "nothing is kept of it");
    assert_eq!(inbox.offer(P, Envelope::bare(7), 5001, offer(1), false), Offered::Held);
}
