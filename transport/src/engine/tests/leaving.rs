//! Offers that are taken back, and what waits of peers that are gone.

use super::matching::{P, Q, due, holding, offer, posted, startable, taker, wide};
use crate::engine::*;

/// Its payload was being read when the connection ended, and its receive ended then.
#[test]
fn nobody_waits_for_a_payload_whose_peer_is_gone() {
    for detached_before in [false, true] {
        let mut inbox = holding();
        inbox.post(posted(1, 7, 8));
        let key = startable(&mut inbox, 7, 8, 1);
        inbox.start(key).unwrap();
        if detached_before {
            inbox.detach(key);
        }
        assert!(inbox.drop_peer(P).is_empty());
        if !detached_before {
            inbox.detach(key);
        }
        // None may be posted for it, and one for any peer waits for another.
        assert_eq!(inbox.probe(&posted(2, 7, 8).pattern), None);
        assert_eq!(inbox.post(wide(3, None, 7, u64::MAX)), Placed::Waits);
        assert_eq!(inbox.fail(key), None);
        assert_eq!(due(&mut inbox), []);
        assert_eq!(taker(&mut inbox, Q, 7), Some(3));
    }
}

#[test]
fn as_many_offers_as_there_may_be_are_taken_back_in_any_order() {
    const COUNT: u32 = 65_536;
    let mut inbox = holding();
    for id in 0..COUNT {
        // All of one channel, or each of its own.
        let tag = if id % 2 == 0 { 7 } else { u64::from(id) << 32 };
        assert_eq!(inbox.offer(P, Envelope::bare(tag), 100, offer(id), false), Offered::Held);
    }
    for turn in 0..COUNT {
        let id = turn.wrapping_mul(40_503) % COUNT;
        assert!(!inbox.withdraw(Q, id) && inbox.withdraw(P, id) && !inbox.withdraw(P, id), "{id}");
    }
    assert_eq!(inbox.counts(P), (0, 0));
}

#[test]
fn an_offer_whose_number_a_peer_gives_twice_stays_whole() {
    let mut inbox = holding();
    for tag in [1, 2] {
        assert_eq!(inbox.offer(P, Envelope::bare(tag), 100, offer(7), false), Offered::Held);
    }
    assert!(inbox.withdraw(P, 7) && !inbox.withdraw(P, 7));
    assert_eq!(inbox.counts(P), (0, 1));
    assert!(inbox.probe(&posted(1, 1, 100).pattern).is_some());
}
