//! Another queue pair takes the place of one that failed.

use std::time::Duration;

use super::states::{established, header};
use crate::engine::*;

#[test]
fn another_queue_pair_is_proven_by_what_it_carries_itself() {
    let mut link = established(8);
    link.retain();
    let before = link.take_slot().unwrap();
    assert!(link.is_proven());
    let terms = PeerTerms { epoch: 2, credits: 8 };
    for shows in [0, 1] {
        link.suspend();
        link.renew(7);
        assert_eq!(link.resume(&terms, (0, 0), Duration::ZERO), Ok((Vec::new(), None)));
        link.go_on();
        assert!(!link.is_proven() && link.is_acknowledged(link.posted()), "nothing was to go out again");
        link.retire(before.number);
        assert!(!link.is_proven(), "that was over the one before");
        match shows {
            0 => {
                let probe = link.take_slot().unwrap();
                link.retire(probe.number);
            }
            _ => link.confirm(0).unwrap(),
        }
        assert!(link.is_proven());
    }
}

/// A peer that has to send again answers nothing before that: it gets its slots back however many of its offers wait.
#[test]
fn offers_that_come_again_hold_up_no_slots() {
    let mut link = established(8);
    link.retain();
    link.suspend();
    link.renew(7);
    let terms = PeerTerms { epoch: 2, credits: 8 };
    for sent in [u32::MAX, 1 << 17] {
        let refused = link.resume(&terms, (sent, 0), Duration::ZERO);
        assert_eq!(refused, Err(Violation::Sent { said: sent, received: 0 }));
    }
    assert_eq!(link.resume(&terms, (4, 0), Duration::ZERO), Ok((Vec::new(), None)));
    link.go_on();
    let mut told = |sequences: std::ops::Range<u32>| {
        for sequence in sequences {
            let header = header(Kind::ReadyToSend, sequence);
            link.accept(&header).unwrap();
            link.offered(&header, sequence).unwrap();
        }
        link.credit().map(|frame| frame.header.credits)
    };
    assert_eq!(told(0..4), Some(7), "four at first, and those that the next were waiting for");
    assert_eq!(told(4..7), None, "more than two wait");
}

/// Where some packets pass and others do not, it carries whatever the peer says, and fails by the same again.
#[test]
fn another_queue_pair_is_proven_once_the_first_has_come_of_what_goes_out_again() {
    let mut link = established(8);
    link.retain();
    let lost = link.eager(Envelope::bare(1), 4).unwrap();
    link.keep(Kind::Eager, lost.work.number, lost.header.sequence, b"lost");
    link.suspend();
    link.renew(7);
    let (again, _) = link.resume(&PeerTerms { epoch: 2, credits: 8 }, (0, 0), Duration::ZERO).unwrap();
    assert_eq!(again.len(), 1);
    link.confirm(0).unwrap();
    let probe = link.take_slot().unwrap();
    link.retire(probe.number);
    assert!(link.carries() && !link.is_proven());
    let first = link.repeat(&lost.header).unwrap();
    link.went_again();
    link.go_on();
    link.retire(probe.number);
    assert!(!link.is_proven());
    link.retire(first.work.number);
    assert!(link.is_proven());
}
