//! Messages that lose their receives, and receives that lose their messages.

use super::matching::*;
use crate::engine::*;

#[test]
fn a_message_that_loses_its_receive_goes_to_the_first_of_those_that_wait() {
    let mut inbox = inbox(true);
    inbox.post(posted(1, 7, 8));
    let first = startable(&mut inbox, 7, 8, 1);
    for (op, limit) in [(2, 4), (3, 8), (4, 8)] {
        assert_eq!(inbox.post(posted(op, 7, limit)), Placed::Waits);
    }
    assert_eq!(cancel(&mut inbox, 1), Some(1));
    assert_eq!(freed(&mut inbox), [Freed::Startable(P, first)]);
    assert_eq!(inbox.start(first).unwrap().posted.map(|posted| posted.op), Some(3), "the second is too short for it");
    // The device does not take that one's memory.
    assert_eq!(inbox.unmatch(first, false), Some(3));
    assert_eq!(freed(&mut inbox), [Freed::Startable(P, first)]);
    assert_eq!(inbox.start(first).unwrap().posted.map(|posted| posted.op), Some(4));
    assert_eq!(inbox.unmatch(first, false), Some(4));
    assert_eq!(freed(&mut inbox), [Freed::Startable(P, first)], "the application gets it");
    assert_eq!(inbox.drop_peer(P).into_iter().map(|posted| posted.op).collect::<Vec<_>>(), [2]);
}

#[test]
fn what_does_not_fit_its_receive_goes_to_the_next_that_it_fits() {
    let mut inbox = holding();
    for (op, limit) in [(1, 4), (2, 4), (3, 100)] {
        inbox.post(posted(op, 7, limit));
    }
    let Arrival::Misfit { posted: failed, held: true } = eager(&mut inbox, P, 7, 'a') else { panic!("it fitted") };
    assert_eq!((failed.op, due(&mut inbox)), (1, vec![('a', Some(3))]));
    inbox.post(wide(4, None, 7, 0xff));
    let Offered::Misfit { posted: failed, startable: Some(key) } =
        inbox.offer(P, Envelope::bare(7), 12, offer(1), false)
    else {
        panic!("nobody took it")
    };
    assert_eq!((failed.op, inbox.start(key).unwrap().posted.map(|posted| posted.op)), (2, Some(4)));
}

#[test]
fn a_short_message_that_waits_for_its_turn_is_offered_again_when_its_receive_is_cancelled() {
    let mut inbox = inbox(false);
    let first = startable(&mut inbox, 7, 8, 1);
    inbox.start(first).unwrap();
    for op in [1, 2] {
        inbox.post(posted(op, 7, 8));
    }
    assert_eq!(eager(&mut inbox, P, 7, 'a'), Arrival::Held);
    assert_eq!(cancel(&mut inbox, 1), Some(1));
    assert_eq!(cancel(&mut inbox, 2), Some(2), "it had taken the message");
    inbox.post(posted(3, 7, 8));
    inbox.finish(first, 'f', None);
    assert_eq!(due(&mut inbox), [('f', None), ('a', Some(3))]);
}

#[test]
fn an_offer_whose_receive_is_cancelled_is_told_of() {
    let mut inbox = inbox(true);
    inbox.post(posted(1, 7, 8));
    let key = startable(&mut inbox, 7, 8, 1);
    assert_eq!(cancel(&mut inbox, 1), Some(1));
    assert_eq!(freed(&mut inbox), [Freed::Waits(Waiting { peer: P, tag: 7, len: 8 })]);
    assert_eq!(inbox.start(key), None);
    // Nobody posts receives any more: it is read without.
    let Placed::Startable(..) = inbox.post(posted(2, 7, 8)) else { panic!("not startable") };
    assert!(inbox.cancel(2, |_| true).is_some());
    assert_eq!(freed(&mut inbox), [Freed::Startable(P, key)]);
    assert!(inbox.start(key).is_some_and(|start| start.posted.is_none()));
}

#[test]
fn where_messages_wait_for_receives_one_that_was_read_without_waits_too() {
    let mut inbox = holding();
    assert_eq!(inbox.offer(P, Envelope::bare(7), 8, offer(1), false), Offered::Held);
    let keys = inbox.release_offers(P);
    inbox.start(keys[0]).unwrap();
    inbox.finish(keys[0], 'a', None);
    assert_eq!(due(&mut inbox), []);
    assert_eq!(inbox.post(posted(1, 7, 8)), Placed::Due);
    assert_eq!(due(&mut inbox), [('a', Some(1))]);
    // A receive that was posted meanwhile takes it too.
    let Offered::Startable(key) = inbox.offer(P, Envelope::bare(7), 8, offer(2), true) else { panic!("held") };
    inbox.start(key).unwrap();
    assert_eq!(inbox.post(posted(2, 7, 8)), Placed::Waits);
    inbox.finish(key, 'b', None);
    assert_eq!(due(&mut inbox), [('b', Some(2))]);
}

/// A receive of tag 7 that ends while its payload is being read, and the payload.
fn left(inbox: &mut TestInbox) -> EntryKey {
    inbox.post(posted(1, 7, 8));
    let key = startable(inbox, 7, 8, 1);
    inbox.start(key).unwrap();
    inbox.detach(key);
    key
}

#[test]
fn a_payload_that_lost_its_receive_goes_to_the_next_before_what_comes_behind_it() {
    let mut inbox = holding();
    let key = left(&mut inbox);
    assert_eq!(inbox.post(posted(2, 7, 8)), Placed::Waits);
    assert_eq!(eager(&mut inbox, P, 7, 'b'), Arrival::Held);
    inbox.finish(key, 'a', None);
    assert_eq!(due(&mut inbox), [('a', Some(2))]);
    assert_eq!(inbox.post(posted(3, 7, 8)), Placed::Due);
    assert_eq!(due(&mut inbox), [('b', Some(3))]);
    // One that waits already has it at once.
    inbox.post(posted(1, 7, 8));
    let key = startable(&mut inbox, 7, 8, 2);
    inbox.start(key).unwrap();
    inbox.post(posted(2, 7, 8));
    inbox.detach(key);
    assert_eq!(eager(&mut inbox, P, 7, 'd'), Arrival::Held);
    inbox.finish(key, 'c', None);
    assert_eq!(due(&mut inbox), [('c', Some(2))]);
    assert_eq!(inbox.post(posted(3, 7, 8)), Placed::Due);
    assert_eq!(due(&mut inbox), [('d', Some(3))]);
    assert_eq!((inbox.posted().count(), inbox.counts(P)), (0, (0, 0)));
}

#[test]
fn a_receive_that_is_to_have_what_is_being_read_can_be_taken_back_and_outlives_a_failure() {
    let mut inbox = holding();
    let key = left(&mut inbox);
    inbox.post(posted(2, 7, 8));
    assert_eq!((cancel(&mut inbox, 2), cancel(&mut inbox, 2)), (Some(2), None));
    inbox.post(wide(3, None, 7, u64::MAX));
    assert_eq!(inbox.fail(key), None);
    assert_eq!(due(&mut inbox), []);
    assert_eq!(taker(&mut inbox, Q, 7), Some(3), "it waits for another message");
    let key = left(&mut inbox);
    inbox.post(posted(4, 7, 8));
    assert_eq!(inbox.drop_peer(P).iter().map(|posted| posted.op).collect::<Vec<_>>(), [4]);
    assert_eq!(inbox.fail(key), None);
    assert_eq!((inbox.posted().count(), inbox.counts(P)), (0, (0, 0)));
}

#[test]
fn a_receive_whose_message_is_lost_takes_what_waits_for_one() {
    let mut inbox = holding();
    let key = left(&mut inbox);
    inbox.post(wide(2, None, 7, u64::MAX));
    assert_eq!(eager(&mut inbox, Q, 7, 'q'), Arrival::Held);
    assert_eq!(inbox.fail(key), None);
    assert_eq!(due(&mut inbox), [('q', Some(2))]);
    // An offer can be read from then on. One that does not fit waits for another receive.
    let key = left(&mut inbox);
    inbox.post(wide(3, None, 7, u64::MAX));
    let offers = [101, 8].map(|len| inbox.offer(Q, Envelope::bare(7), len, offer(9), false));
    assert_eq!(offers, [Offered::Held, Offered::Held]);
    assert_eq!(inbox.fail(key), None);
    let [Freed::Startable(Q, key)] = freed(&mut inbox)[..] else { panic!() };
    assert_eq!(inbox.start(key).and_then(|start| Some((start.len, start.posted?.op))), Some((8, 3)));
}

#[test]
fn a_receive_of_any_peer_does_not_go_from_one_message_of_a_broken_connection_to_the_next() {
    let mut inbox = holding();
    let key = left(&mut inbox);
    inbox.post(wide(2, None, 7, u64::MAX));
    let offers = [P, Q].map(|peer| inbox.offer(peer, Envelope::bare(7), 8, offer(9), false));
    assert_eq!(offers, [Offered::Held, Offered::Held]);
    assert_eq!(inbox.fail(key), None);
    let [Freed::Startable(Q, of_q)] = freed(&mut inbox)[..] else { panic!("it has what will not come") };
    assert_eq!(inbox.drop_peer(P).len(), 0);
    assert_eq!(inbox.start(of_q).and_then(|start| start.posted).map(|posted| posted.op), Some(2));
    // What is here it has.
    let key = left(&mut inbox);
    inbox.post(wide(3, None, 7, u64::MAX));
    assert_eq!(eager(&mut inbox, P, 7, 'p'), Arrival::Held);
    assert_eq!(inbox.fail(key), None);
    assert_eq!(due(&mut inbox), [('p', Some(3))]);
}

#[test]
fn a_receive_whose_message_is_lost_waits_before_those_posted_after_it() {
    let mut inbox = holding();
    for mask in [u64::MAX, 0xff] {
        let key = left(&mut inbox);
        (2..6).for_each(|op| _ = inbox.post(wide(op, None, 7, mask)));
        assert_eq!(inbox.fail(key), None);
        assert_eq!([(); 4].map(|()| taker(&mut inbox, Q, 7)), [2, 3, 4, 5].map(Some));
    }
}

#[test]
fn a_payload_that_is_read_is_let_go_of_by_its_receive() {
    let mut inbox = inbox(true);
    for op in [1, 2, 3] {
        inbox.post(posted(op, 7, 8));
    }
    let keys = [1, 2, 3].map(|id| startable(&mut inbox, 7, 8, id));
    for key in keys {
        inbox.start(key).unwrap();
    }
    assert_eq!([1, 3, 4].map(|op| inbox.reads_for(op)), [Some(P), Some(P), None]);
    // The second was read, and waits for the first.
    assert_eq!(inbox.finish(keys[1], 'b', None), Some((2, 8)));
    assert_eq!((inbox.reads_for(2), inbox.take_whole(|&body| body == 'a')), (None, None));
    assert_eq!(inbox.take_whole(|&body| body == 'b'), Some('b'));
    // The first goes to whoever waits when it is there.
    inbox.detach(keys[0]);
    assert_eq!(inbox.reads_for(1), None);
    inbox.post(posted(5, 7, 8));
    assert_eq!(inbox.finish(keys[0], 'a', None), Some((1, 8)));
    assert_eq!((inbox.discard(keys[2]), inbox.discard(keys[2])), (Some((3, 8)), None));
    assert_eq!(due(&mut inbox), [('a', Some(5))]);
    assert!(inbox.is_plain());
}

/// The first receive fails by a message that is too long for it, which waits, and the next one would stand behind that.
#[test]
fn receives_do_not_wait_behind_a_message_that_does_not_fit_them() {
    for (mut inbox, len) in [(holding(), 100), (inbox(true), 6000)] {
        for op in [1, 2, 3] {
            inbox.post(posted(op, 7, 8));
        }
        let Offered::Misfit { posted: first, startable: None } =
            inbox.offer(P, Envelope::bare(7), len, offer(1), false)
        else {
            panic!("it fitted")
        };
        assert_eq!((first.op, freed(&mut inbox)), (1, vec![]));
        assert_eq!(eager(&mut inbox, P, 7, 'b'), Arrival::Held);
        assert_eq!(freed(&mut inbox), [2, 3].map(|op| Freed::Misfit { peer: P, posted: posted(op, 7, 8), len }));
        assert_eq!((inbox.posted().count(), due(&mut inbox)), (0, vec![]));
        // They come in order, once one takes it that is long enough.
        let Placed::Startable(P, key) = inbox.post(posted(4, 7, len)) else { panic!("not startable") };
        let start = inbox.start(key).unwrap();
        let behind = inbox.post(posted(5, 7, 8));
        assert_eq!(behind, Placed::Waits);
        inbox.finish(key, 'a', start.posted);
        assert_eq!(due(&mut inbox), [('a', Some(4)), ('b', Some(5))]);
    }
}
