//! Tag matching, in the order of each tag.

use qpair_verbs::Rkey;

use crate::engine::inbox::{Arrival, Fit, Inbox, Offered, Placed, Posted, Unmatched};
use crate::engine::wire::Offer;

fn inbox(hold: bool) -> Inbox<(), char> {
    Inbox::new(Unmatched { hold, longest: 5000 })
}

fn posted(op: u64, tag: u64, limit: u64) -> Posted<()> {
    Posted { op, tag, fit: Fit { limit, granule: 4 }, staged: false, memory: () }
}

fn offer(id: u32) -> Offer {
    Offer { addr: 0, rkey: Rkey(0), id }
}

#[test]
fn receives_match_their_tag_in_the_order_posted() {
    let mut inbox = inbox(false);
    for (op, tag) in [(1, 7), (2, 8), (3, 7)] {
        assert_eq!(inbox.post(posted(op, tag, 100)), Placed::Waits);
    }
    let eager = |inbox: &mut Inbox<(), char>, tag| match inbox.eager(tag, 8, || 'x') {
        Arrival::Matched(posted) => Some(posted.op),
        _ => None,
    };
    assert_eq!(eager(&mut inbox, 7), Some(1));
    assert_eq!(eager(&mut inbox, 7), Some(3));
    assert_eq!(eager(&mut inbox, 7), None);
    assert_eq!(eager(&mut inbox, 8), Some(2));
}

#[test]
fn a_message_that_does_not_fit_fails_the_receive_and_is_kept() {
    for (len, fits) in [(8, true), (12, false), (6, false)] {
        let mut inbox = inbox(false);
        inbox.post(posted(1, 7, 8));
        match inbox.eager(7, len, || 'x') {
            Arrival::Matched(_) => assert!(fits, "{len}"),
            Arrival::Misfit { posted, held } => assert!(!fits && posted.op == 1 && !held, "{len}"),
            other => panic!("{other:?}"),
        }
    }
    let mut inbox = inbox(true);
    inbox.post(posted(1, 7, 8));
    assert!(matches!(inbox.offer(7, 12, offer(1)), Offered::Misfit { posted, held: false } if posted.op == 1));
    assert!(inbox.start().is_some_and(|start| start.posted.is_none()), "delivered all the same");
}

#[test]
fn short_messages_wait_behind_a_long_one_of_their_tag_only() {
    let mut inbox = inbox(false);
    assert_eq!(inbox.offer(7, 1000, offer(1)), Offered::Startable);
    let start = inbox.start().unwrap();
    assert_eq!(inbox.eager(7, 4, || 'a'), Arrival::Held);
    assert_eq!(inbox.eager(8, 4, || 'b'), Arrival::Unmatched);
    assert_eq!(inbox.offer(7, 2000, offer(2)), Offered::Startable);
    let second = inbox.start().unwrap();
    assert_eq!(inbox.eager(7, 4, || 'c'), Arrival::Held);
    assert_eq!(inbox.next_held(), None);
    assert_eq!(inbox.pulled(start.key).unwrap().id, 1);
    assert_eq!(inbox.pulled(start.key), None, "once");
    assert_eq!(inbox.next_held().unwrap().body, 'a');
    assert_eq!(inbox.next_held(), None);
    assert_eq!(inbox.pulled(second.key).unwrap().id, 2);
    assert_eq!(inbox.next_held().unwrap().body, 'c');
    assert_eq!(inbox.next_held(), None);
}

#[test]
fn a_late_receive_matches_what_waits() {
    let mut inbox = inbox(true);
    assert_eq!(inbox.offer(7, 8, offer(1)), Offered::Held);
    assert_eq!(inbox.eager(7, 4, || 'a'), Arrival::Held);
    assert_eq!(inbox.start(), None);
    assert!(matches!(inbox.post(posted(1, 7, 4)), Placed::Misfit { .. }));
    assert_eq!(inbox.post(posted(1, 7, 8)), Placed::Startable);
    assert_eq!(inbox.post(posted(2, 7, 8)), Placed::Waits);
    assert_eq!(inbox.post(posted(3, 7, 8)), Placed::Waits);
    let start = inbox.start().unwrap();
    assert_eq!(start.posted.as_ref().map(|posted| posted.op), Some(1));
    assert_eq!(inbox.pulled(start.key).unwrap().op, Some(1));
    assert_eq!(inbox.next_held().unwrap().posted.unwrap().op, 2);
    assert_eq!(inbox.drain().iter().map(|posted| posted.op).collect::<Vec<_>>(), [3]);
}

#[test]
fn without_memory_unmatched_payloads_wait_and_others_do_not() {
    let mut inbox = inbox(false);
    inbox.offer(7, 8, offer(1));
    inbox.offer(7, 8, offer(2));
    let start = inbox.start().unwrap();
    inbox.stall(start);
    assert_eq!(inbox.start(), None);
    inbox.post(posted(9, 7, 8));
    assert_eq!(inbox.start().unwrap().posted.unwrap().op, 9, "the first of the tag");
    assert_eq!(inbox.start(), None);
    assert!(inbox.resume());
    assert!(!inbox.resume());
    assert_eq!(inbox.start().unwrap().offer.id, 2);
}

#[test]
fn without_memory_receives_that_need_it_first_wait_too() {
    let mut inbox = inbox(false);
    for (op, tag, staged) in [(1, 7, true), (2, 8, false)] {
        inbox.post(Posted { staged, ..posted(op, tag, 8) });
        inbox.offer(tag, 8, offer(op as u32));
    }
    let start = inbox.start().unwrap();
    assert_eq!(start.offer.id, 1);
    inbox.stall(start);
    assert_eq!(inbox.start().unwrap().posted.unwrap().op, 2, "it needs none");
    assert_eq!(inbox.start(), None);
    assert!(inbox.resume());
    assert_eq!(inbox.start().unwrap().posted.unwrap().op, 1);
}

#[test]
fn an_offer_for_which_there_is_never_memory_waits_for_a_receive() {
    let mut inbox = inbox(false);
    assert_eq!(inbox.offer(7, 5000, offer(1)), Offered::Startable);
    assert_eq!(inbox.offer(8, 5004, offer(2)), Offered::Held);
    inbox.post(posted(1, 9, 8));
    assert!(matches!(inbox.offer(9, 5004, offer(3)), Offered::Misfit { held: true, .. }));
    assert_eq!(inbox.start().unwrap().offer.id, 1);
    inbox.release_offers();
    assert_eq!(inbox.start(), None);
    assert_eq!(inbox.post(posted(2, 8, 6000)), Placed::Startable);
    let start = inbox.start().unwrap();
    assert_eq!(inbox.unmatch(start.key, start.offer), Some((2, Some((8, 5004)))), "the device did not take its memory");
    assert_eq!(inbox.start(), None);
    assert_eq!(inbox.post(posted(3, 8, 6000)), Placed::Startable);
}

#[test]
fn closing_reads_what_was_held() {
    let mut inbox = inbox(true);
    inbox.offer(7, 8, offer(1));
    assert!(!inbox.is_startable());
    inbox.release_offers();
    assert_eq!(inbox.start().unwrap().offer.id, 1);
    inbox.offer(7, 8, offer(2));
    assert_eq!(inbox.start().unwrap().offer.id, 2);
}
